#map = affine_map<(d0, d1)[s0] -> (s0 + d0 * d1)>
module {
  func.func @sdsc_bundle() {
    %c = arith.constant 1 : index
    return
  }
}
