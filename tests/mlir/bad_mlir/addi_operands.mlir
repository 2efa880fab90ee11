module {
  func.func @sdsc_bundle() {
    %c = arith.constant 1 : index
    %d = arith.addi %c : index
    return
  }
}
