#map = affine_map<(d0, d1) -> (d0 floordiv d1)>
module {
  func.func @sdsc_bundle() {
    %c = arith.constant 1 : index
    return
  }
}
