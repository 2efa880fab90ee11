#map = affine_map<(d0) -> (d0, d0)>
module {
  func.func @sdsc_bundle() {
    %c = arith.constant 1 : index
    return
  }
}
