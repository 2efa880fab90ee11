module {
  func.func @sdsc_bundle() {
    %c = arith.constant -128 : index
    sdscbundle.sdsc_execute (%c) {sdsc_filename="a.json", symbol_ids=[-1]}
    return
  }
}
