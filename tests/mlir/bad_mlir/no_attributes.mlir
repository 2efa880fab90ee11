module {
  func.func @sdsc_bundle() {
    sdscbundle.sdsc_execute ()
    %c = arith.constant 1 : index
    return
  }
}
