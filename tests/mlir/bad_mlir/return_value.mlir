module {
  func.func @f() {
    %c = arith.constant 1 : index
    return %c : index
  }
}
