module {
  func.func @sdsc_bundle() {
    return
    %c = arith.constant 1 : index
  }
}
