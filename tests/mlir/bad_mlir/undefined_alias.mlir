#map_0 = affine_map<(d0)[s0] -> (s0 + d0)>
module {
  func.func @sdsc_bundle() {
    %c0 = arith.constant 0 : index
    %c1 = arith.constant 1 : index
    %c4 = arith.constant 4 : index
    %e = affine.apply #map_1(%c0)[%c1]
    return
  }
}
