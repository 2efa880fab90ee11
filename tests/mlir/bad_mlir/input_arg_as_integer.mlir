module {
  func.func @sdsc_bundle(%a: !sdscbundle.input_arg<index>) {
    sdscbundle.sdsc_execute (%a) {sdsc_filename="a.json", symbol_ids=[-1]}
    return
  }
}
