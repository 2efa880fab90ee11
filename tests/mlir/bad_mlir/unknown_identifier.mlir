#map = affine_map<(d0)[s0] -> (s0 + 64*d1)>
module {
  func.func @sdsc_bundle() {
    %c = arith.constant 1 : index
    return
  }
}
