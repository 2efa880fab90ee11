module {
  func.func @sdsc_bundle() {
    %c = arith.constant 9223372036854775808 : index
    return
  }
}
