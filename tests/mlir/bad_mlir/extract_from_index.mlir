module {
  func.func @sdsc_bundle(%n: index) {
    %v = sdscbundle.input_arg_extract value from %n : !sdscbundle.input_arg<index> -> index
    return
  }
}
