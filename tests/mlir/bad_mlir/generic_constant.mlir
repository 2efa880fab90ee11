module {
  func.func @sdsc_bundle() {
    %c = "arith.constant"() {value = 1 : index} : () -> index
    return
  }
}
