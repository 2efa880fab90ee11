module {
  func.func @sdsc_bundle() {
    sdscbundle.sdsc_execute (%a, %b) {sdsc_filename="s.json", symbol_ids=[-1, -99999999999999999999]}
    return
  }
}
