module {
  func.func @sdsc_bundle(%n: !sdscbundle.input_arg<index, granularity=0>) {
    %c = arith.constant 1 : index
    return
  }
}
