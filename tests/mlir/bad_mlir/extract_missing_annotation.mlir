module {
  func.func @sdsc_bundle(%a: !sdscbundle.input_arg<index>) {
    %v = sdscbundle.input_arg_extract max_value from %a : !sdscbundle.input_arg<index> -> index
    return
  }
}
