module {
  func.func @sdsc_bundle() {
    %d = arith.addi %x, %y : index
    return
  }
}
