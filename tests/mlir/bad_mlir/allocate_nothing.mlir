module {
  func.func @sdsc_bundle() {
    %m = sdscbundle.device_mem_allocate 0 bytes : index
    return
  }
}
