module {
  func.func @sdsc_bundle() {
    %c0 = arith.constant 0 : index
    %c1 = arith.constant 3 : index
    %c4 = arith.constant 4 : index
    scf.for %i = %c0 to %c4 step %c1 {
      sdscbundle.sdsc_execute () {sdsc_filename="a.json", "symbol_ids"=[]}
    }
    return
  }
}
