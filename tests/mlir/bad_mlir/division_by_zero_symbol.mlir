module {
  func.func @sdsc_bundle() {
    %c = arith.constant 0 : index
    %d = affine.apply affine_map<(d0)[s0] -> (d0 ceildiv s0)>(%c)[%c]
    return
  }
}
