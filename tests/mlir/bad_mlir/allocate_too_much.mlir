module {
  func.func @sdsc_bundle() {
    %m = sdscbundle.device_mem_allocate 16106127360 bytes : index
    %n = sdscbundle.device_mem_allocate 1 bytes : index
    return
  }
}
