module {
  func.func @sdsc_bundle() {
    sdscbundle.sdsc_execute () {sdsc_filename="a.json", "sdsc_filename"="b.json"}
    return
  }
}
