module {
  func.func @sdsc_bundle() {
    %c0 = arith.constant 0 : index
    %c1 = arith.constant 1 : index
    %c4 = arith.constant 4 : index
    scf.for %i = %c0 to %c4 step %c1 {
      %e = arith.addi %i, %c1 : index
    }
    %f = arith.addi %i, %e : index
    return
  }
}
