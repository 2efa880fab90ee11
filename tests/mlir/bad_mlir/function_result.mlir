module {
  func.func @f() -> index {
    return
  }
}
