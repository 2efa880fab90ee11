module {
  func.func @sdsc_bundle() {
    memref.dealloc %c
    return
  }
}
