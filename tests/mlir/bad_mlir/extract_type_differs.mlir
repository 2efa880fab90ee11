module {
  func.func @sdsc_bundle(%n: !sdscbundle.input_arg<index, granularity=64, max_value=512>) {
    %v = sdscbundle.input_arg_extract granularity from %n : !sdscbundle.input_arg<index, granularity=32> -> index
    return
  }
}
