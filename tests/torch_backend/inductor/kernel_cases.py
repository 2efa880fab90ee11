"""Kernels of one or two operations for every kind of SDSC, with their reference functions."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import msgspec
import torch

from spyre.torch_backend.inductor.bundles.op_spec_form import Spec
from tests.torch_backend.inductor.bundles.spec_cases import arg, default_arg as tensor, op


class KernelCase(msgspec.Struct, frozen=True):
    """``expected``: of the inputs on the card, by its eager operations."""

    name: str
    specs: Sequence[Spec]
    shapes: Sequence[tuple[int, ...]]
    output: tuple[int, ...]
    expected: Callable[..., torch.Tensor]
    dtype: torch.dtype = torch.float16

    def inputs(self) -> list[torch.Tensor]:
        torch.manual_seed(1)
        return [torch.randn(shape).half().to("spyre") for shape in self.shapes]

    def empty(self) -> torch.Tensor:
        return torch.zeros(self.output, dtype=self.dtype).to("spyre")


ROWS = ("c0", "c1")
PADDED = {"c0": (100, 4), "c1": (150, 3)}


def binary(name, space, shapes, steps, output, result):
    args = [tensor(k, s, e) for k, (s, e) in enumerate(zip(shapes, steps, strict=True))]
    return [op(name, space, [*args, tensor(len(args), output, result, out=True)])]


def matmul(cores):
    space = {"c0": (64, cores[0]), "c1": (128, cores[1]), "c2": (256, cores[2])}
    args = [
        tensor(0, (64, 256), ("c0", "c2")),
        tensor(1, (256, 128), ("c2", "c1")),
        tensor(2, (64, 128), ("c0", "c1"), out=True),
    ]
    return [op("batchmatmul", space, args, reduces=True)]


def through(place, cores=4):
    """abs(neg(x)) with neg(x) elsewhere than among the arguments."""
    shape, space = (256, 512), {"c0": (256, 2), "c1": (512, cores)}
    middle = {"place": place}
    return [
        op("neg", space, [tensor(0, shape, ROWS), tensor(-1, shape, ROWS, out=True, **middle)]),
        op("abs", space, [tensor(-1, shape, ROWS, **middle), tensor(1, shape, ROWS, out=True)]),
    ]


def reduction(name, space, steps, output, result):
    args = [tensor(0, (100, 150), steps), tensor(1, output, result, out=True)]
    return [op(name, space, args, reduces=True)]


def copy(name, space, source, steps, target, result, **more):
    args = [tensor(0, source, steps), tensor(1, target, result, out=True, **more)]
    return [op(name, space, args)]


SUM_LANES = {"c0": (100, 4), "c1": (150, 1)}
CUBE = (6, 40, 128)

MERGED = (
    "Mod(c0, 40)",
    "floor(c1/128)",
    "floor(Mod(c1, 128)/64)",
    "floor(c0/40)",
    "Mod(c1, 64)",
)

CASES = (
    KernelCase(
        "padded",
        binary("add", PADDED, [(100, 150)] * 2, [ROWS] * 2, (100, 150), ROWS),
        [(100, 150)] * 2,
        (100, 150),
        torch.add,
    ),
    KernelCase(
        "row",
        binary("mul", PADDED, [(100, 150), (150,)], [ROWS, ("c1",)], (100, 150), ROWS),
        [(100, 150), (150,)],
        (100, 150),
        torch.mul,
    ),
    KernelCase(
        "column",
        binary("sub", PADDED, [(100, 150), (100, 1)], [ROWS, ("c0", "0")], (100, 150), ROWS),
        [(100, 150), (100, 1)],
        (100, 150),
        torch.sub,
    ),
    KernelCase(
        "cube",
        copy(
            "neg",
            {"c0": (6, 2), "c1": (40, 4), "c2": (128, 2)},
            CUBE,
            ("c0", "c1", "c2"),
            CUBE,
            ("c0", "c1", "c2"),
        ),
        [CUBE],
        CUBE,
        torch.neg,
    ),
    KernelCase(
        "slice",
        copy(
            "neg",
            {"c0": (100, 2), "c1": (128, 2)},
            (256, 512),
            ("c0 + 3", "c1 + 64"),
            (100, 128),
            ROWS,
        ),
        [(256, 512)],
        (100, 128),
        lambda x: -x[3:103, 64:192],
    ),
    KernelCase(
        "two symbols for one dim",
        copy(
            "neg",
            {"c0": (4, 2), "c1": (64, 1), "c2": (8, 4), "c3": (64, 1)},
            (256, 512),
            ("64*c0 + c1", "64*c2 + c3"),
            (256, 512),
            ("64*c0 + c1", "64*c2 + c3"),
        ),
        [(256, 512)],
        (256, 512),
        torch.neg,
    ),
    KernelCase(
        "permuted",
        copy(
            "identity",
            {"c0": (40, 8), "c1": (6, 2), "c2": (128, 2)},
            CUBE,
            ("c1", "c0", "c2"),
            (40, 6, 128),
            ("c0", "c1", "c2"),
        ),
        [CUBE],
        (40, 6, 128),
        lambda x: x.permute(1, 0, 2),
    ),
    KernelCase(
        "dims seen as one",
        [
            op(
                "add",
                {"c0": (240, 4), "c1": (256, 4)},
                [
                    arg(0, [40, 2, 2, 6, 64], MERGED),
                    tensor(1, (240, 256), ROWS),
                    tensor(2, (240, 256), ROWS, out=True),
                ],
            )
        ],
        [(6, 40, 2, 128), (240, 256)],
        (240, 256),
        lambda x, y: x.reshape(240, 256) + y,
    ),
    KernelCase(
        "wider",
        copy(
            "dl16tofp32",
            {"c0": (100, 4), "c1": (128, 2)},
            (100, 128),
            ROWS,
            (100, 128),
            ROWS,
            dtype="float32",
        ),
        [(100, 128)],
        (100, 128),
        torch.Tensor.float,
        torch.float32,
    ),
    KernelCase(
        "sum of rows",
        reduction("sum", {"c0": (150, 3), "c1": (100, 1)}, ("c1", "c0"), (150,), ("c0",)),
        [(100, 150)],
        (150,),
        lambda x: x.sum(0),
    ),
    KernelCase(
        "sum along lanes",
        reduction("sum", SUM_LANES, ROWS, (100, 1), ("c0", "0")),
        [(100, 150)],
        (100, 1),
        lambda x: x.sum(1, keepdim=True),
    ),
    KernelCase(
        "max along lanes",
        reduction("max", SUM_LANES, ROWS, (100, 1), ("c0", "0")),
        [(100, 150)],
        (100, 1),
        lambda x: x.amax(1, keepdim=True),
    ),
    KernelCase(
        "sum of all",
        reduction("sum", {"c0": (100, 1), "c1": (150, 1)}, ROWS, (1, 1), ("0", "0")),
        [(100, 150)],
        (1, 1),
        lambda x: x.sum((0, 1), keepdim=True),
    ),
    *(
        KernelCase(
            f"matmul on {cores}", matmul(cores), [(64, 256), (256, 128)], (64, 128), torch.matmul
        )
        for cores in ((1, 1, 1), (4, 2, 1), (4, 2, 4), (8, 1, 2))
    ),
    KernelCase(
        "batches",
        [
            op(
                "batchmatmul",
                {"c0": (3, 3), "c1": (40, 2), "c2": (192, 3), "c3": (128, 1)},
                [
                    tensor(0, (3, 40, 128), ("c0", "c1", "c3")),
                    tensor(1, (3, 128, 192), ("c0", "c3", "c2")),
                    tensor(2, (3, 40, 192), ("c0", "c1", "c2"), out=True),
                ],
                reduces=True,
            )
        ],
        [(3, 40, 128), (3, 128, 192)],
        (3, 40, 192),
        torch.matmul,
    ),
    KernelCase(
        "restickify",
        copy(
            "ReStickifyOpHBM", PADDED | {"c0": (100, 1)}, (100, 150), ROWS, (150, 100), ROWS[::-1]
        ),
        [(100, 150)],
        (150, 100),
        lambda x: x.t().contiguous(),
    ),
    KernelCase(
        "one element",
        [
            op(
                "add",
                {},
                [arg(0, [1, 64], "00"), arg(1, [1, 64], "00"), arg(2, [1, 64], "00", out=True)],
            )
        ],
        [(1,), ()],
        (1,),
        torch.add,
    ),
    KernelCase(
        "matmul of a row",
        [
            op(
                "batchmatmul",
                {"c1": (64, 1), "c2": (128, 1)},
                [
                    tensor(0, (1, 128), ("0", "c2")),
                    tensor(1, (128, 64), ("c2", "c1")),
                    tensor(2, (1, 64), ("0", "c1"), out=True),
                ],
                reduces=True,
            )
        ],
        [(1, 128), (128, 64)],
        (1, 64),
        torch.matmul,
    ),
    KernelCase("in the pool", through({"pool": 4096}), [(256, 512)], (256, 512), torch.abs),
    KernelCase("in LX", through({"lx": 1280}), [(256, 512)], (256, 512), torch.abs),
)
