"""The lowered form of bundle.mlir: parameters, loops of executes, symbol values, schedules."""
