module {
  func.func @sdsc_bundle() {
    %c = arith.constant 1
    %d = arith.constant 2 : index
    return
  }
}
