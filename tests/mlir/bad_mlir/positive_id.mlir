module {
  func.func @sdsc_bundle(%a: !sdscbundle.input_arg<index>) {
    %v = sdscbundle.input_arg_extract value from %a : !sdscbundle.input_arg<index> -> index
    sdscbundle.sdsc_execute (%v) {sdsc_filename="a.json", symbol_ids=[1]}
    return
  }
}
