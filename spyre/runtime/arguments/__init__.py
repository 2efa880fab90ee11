"""A kernel's arguments: host tensors, specs of arguments, where they come from."""
