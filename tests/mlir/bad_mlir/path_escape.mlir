module {
  func.func @sdsc_bundle() {
    sdscbundle.sdsc_execute () {sdsc_filename="../other/sdsc_0.json"}
    sdscbundle.sdsc_execute () {sdsc_filename="/etc/passwd"}
    return
  }
}
