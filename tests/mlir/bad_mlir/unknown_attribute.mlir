module {
  func.func @sdsc_bundle() {
    sdscbundle.sdsc_execute () {sdsc_filename="a.json", priority = 3 : i32, "odd key" = [1, "x", {y}], async}
    return
  }
}
