#m = affine_map<(d0) -> (d0)>
#m = affine_map<(d0) -> (d0 + 1)>
module {
  func.func @sdsc_bundle() {
    %c0 = arith.constant 0 : index
    %c1 = arith.constant 1 : index
    %c4 = arith.constant 4 : index
    return
  }
}
