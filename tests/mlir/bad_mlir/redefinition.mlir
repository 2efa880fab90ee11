module {
  func.func @sdsc_bundle() {
    %c = arith.constant 1 : index
    %c = arith.constant 2 : index
    return
  }
}
