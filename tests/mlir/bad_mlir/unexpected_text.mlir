module {
  func.func @sdsc_bundle() {
    %c = arith.constant %d : index
    return
  }
}
