module {
  func.func @sdsc_bundle() {
    %c = arith.constant 1 : i64
    return
  }
}
