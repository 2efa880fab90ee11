module {
  func.func @sdsc_bundle(%n: !sdscbundle.input_arg<index, minimum=4>) {
    %c = arith.constant 1 : index
    return
  }
}
