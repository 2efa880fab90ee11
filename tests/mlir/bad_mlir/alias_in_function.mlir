module {
  func.func @sdsc_bundle() {
    #m = affine_map<(d0) -> (d0)>
    %c0 = arith.constant 0 : index
    %c1 = arith.constant 1 : index
    %c4 = arith.constant 4 : index
    %e = affine.apply #m(%c0)
    return
  }
}
