module {
  func.func @sdsc_bundle() {
    %d = arith.addi %c, %c : index
    %c = arith.constant 1 : index
    return
  }
}
