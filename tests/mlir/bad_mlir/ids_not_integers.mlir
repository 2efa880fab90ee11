module {
  func.func @sdsc_bundle() {
    sdscbundle.sdsc_execute () {sdsc_filename="a.json", symbol_ids=["x"]}
    return
  }
}
