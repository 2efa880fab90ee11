module {
  func.func @sdsc_bundle() {
    %c = arith.constant 0x7FFFFFFFFFFFFFFF : index
    %d = arith.addi %c, %c : index
    return
  }
}
