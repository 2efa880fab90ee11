module {
  func.func @sdsc_bundle(%m: memref<4x4xf32>) {
    %c = arith.constant 1 : index
    return
  }
}
