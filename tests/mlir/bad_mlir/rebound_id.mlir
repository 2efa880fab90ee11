module {
  func.func @sdsc_bundle(%a: !sdscbundle.input_arg<index>) {
    %v = sdscbundle.input_arg_extract value from %a : !sdscbundle.input_arg<index> -> index
    %c0 = arith.constant 0 : index
    %c1 = arith.constant 1 : index
    %c4 = arith.constant 4 : index
    %w = arith.addi %v, %c4 : index
    sdscbundle.sdsc_execute (%v) {sdsc_filename="a.json", symbol_ids=[-1]}
    sdscbundle.sdsc_execute (%w) {sdsc_filename="b.json", symbol_ids=[-1]}
    return
  }
}
