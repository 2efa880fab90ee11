module {
  func.func @sdsc_bundle() {
    sdscbundle.sdsc_execute () {"symbol_ids"=[]}
    return
  }
}
