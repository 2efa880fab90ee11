"""Runs the recorded bodies of operations with numpy, loop iteration by loop iteration.

Slow and obvious: an iteration shifts the variables its loops advance, for all buffers but those
that are the same memory in every iteration.
"""

from __future__ import annotations

import msgspec
import numpy as np
import sympy
import torch

FUNCTIONS = {
    "add": np.add,
    "sub": np.subtract,
    "mul": np.multiply,
    "truediv": np.divide,
    "neg": np.negative,
    "exp": np.exp,
    "rsqrt": lambda x: 1 / np.sqrt(x),
    "maximum": np.maximum,
    "where": np.where,
    "abs": np.abs,
    "sign": np.sign,
    "eq": np.equal,
    "lt": np.less,
    "ne": np.not_equal,
    "logical_and": np.logical_and,
    "logical_or": np.logical_or,
    "logical_not": np.logical_not,
    "identity": lambda x: x,
    "ge": np.greater_equal,
    "le": np.less_equal,
    "fma": lambda x, y, z: x * y + z,
}
DTYPES = {torch.float32: np.float32, torch.float16: np.float16, torch.int64: np.int64}
REDUCTIONS = {"any": np.any, "sum": np.sum, "max": np.max}


class Step(msgspec.Struct):
    """One operation: variables with extents, how many are not reduced, stores, indices it reads."""

    name: str
    variables: dict
    outer: int
    stores: list
    indices: dict
    tiled: list


class Loop(msgspec.Struct):
    count: int
    body: list


def loads_of(value):
    if isinstance(value, tuple):
        if value[0] == "load":
            yield value[1]
        for part in value:
            yield from loads_of(part)


def flat_storage(tensor):
    count = tensor.untyped_storage().nbytes() // tensor.itemsize
    empty = torch.empty(0, dtype=tensor.dtype)
    return empty.set_(tensor.untyped_storage(), 0, (count,), (1,)).numpy()


def run_kernel(steps, places, fixed, tensors):
    """``places``: the argument that each buffer is; ``fixed``: buffers loops do not advance."""
    memory = Memory(
        {name: flat_storage(tensors[p]) for name, p in places.items()},
        {name: tensors[p].storage_offset() for name, p in places.items()},
        fixed,
    )
    run(steps, memory, ())


class Memory(msgspec.Struct):
    flat: dict
    offsets: dict
    fixed: set


def run(steps, memory, iteration):
    for step in steps:
        if isinstance(step, Loop):
            for n in range(step.count):
                run(step.body, memory, (*iteration, (n, step.count)))
        else:
            StepRun(step, memory, iteration).run()


class StepRun:
    def __init__(self, step, memory, iteration):
        self.step, self.memory = step, memory
        self.rank = len(step.variables)
        self.here, self.moved = {}, {}
        for axis, (variable, extent) in enumerate(step.variables.items()):
            shape = [-1 if n == axis else 1 for n in range(self.rank)]
            self.here[variable] = np.arange(extent).reshape(shape)
            self.moved[variable] = self.here[variable] + self.start(variable, extent, iteration)

    def start(self, variable, extent, iteration):
        """The innermost loop over a variable steps by its extent, others by all inner ones."""
        start, pitch = 0, extent
        for (n, count), tiled in reversed(list(zip(iteration, self.step.tiled, strict=True))):
            if tiled == variable:
                start, pitch = start + n * pitch, pitch * count
        return start

    def numbers(self, expression, values):
        picked = {s.name: value for s, value in self.step.indices.items()}
        read = [s for s in sympy.sympify(expression).free_symbols if s.name in picked]
        values = {**values, **{s: self.evaluate(picked[s.name]) for s in read}}
        found = sympy.lambdify(list(values), expression, "numpy")(*values.values())
        return np.asarray(found)

    def at(self, name, index):
        values = self.here if name in self.memory.fixed else self.moved
        return self.numbers(index, values) + self.memory.offsets[name]

    def evaluate(self, value):
        if not isinstance(value, tuple):
            return value
        kind = value[0]
        if kind == "load":
            return self.memory.flat[value[1]][self.at(value[1], value[2])]
        if kind == "const":
            return np.array(value[1], value[2])
        if kind == "index":
            return self.numbers(value[1], self.here).astype(value[2])
        if kind == "cast":
            return np.asarray(self.evaluate(value[1])).astype(value[2])
        if kind == "reduce":
            return self.reduce(value[1], value[2])
        return FUNCTIONS[value[1]](*map(self.evaluate, value[2:]))

    def reduce(self, kind, value):
        axes = tuple(range(self.step.outer, self.rank))
        if kind == "batchmatmul":
            kind, found = "sum", self.evaluate(value[0]) * self.evaluate(value[1])
        else:
            found = self.evaluate(value)
        full = np.broadcast_to(found, tuple(self.step.variables.values()))
        return REDUCTIONS[kind](full, axis=axes, keepdims=True)

    def run(self):
        for name, index, value in self.step.stores:
            found, place = np.asarray(self.evaluate(value)), self.at(name, index)
            shape = np.broadcast_shapes(place.shape, found.shape)
            self.memory.flat[name][np.broadcast_to(place, shape)] = np.broadcast_to(found, shape)
