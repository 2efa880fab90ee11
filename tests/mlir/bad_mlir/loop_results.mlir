module {
  func.func @sdsc_bundle() {
    %c = arith.constant 1 : index
    %r = scf.for %i = %c to %c step %c {
    }
    return
  }
}
