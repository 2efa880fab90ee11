module {
  func.func @sdsc_bundle(%a: !sdscbundle.input_arg<index>) {
    %d = sdscbundle.input_arg_extract size from %a : !sdscbundle.input_arg<index> -> index
    return
  }
}
