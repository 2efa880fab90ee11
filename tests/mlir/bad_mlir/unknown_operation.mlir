module {
  func.func @sdsc_bundle() {
    %c = arith.constant 1 : index
    %d = arith.muli %c, %c : index
    return
  }
}
