"""Operations on the CPU behind the card's back: arguments down, results and changes up."""

from __future__ import annotations

import pytest
import torch
from torch.testing import assert_close

from spyre.torch_backend.device.dtypes import Int64Overflow, UnsupportedDtype
from spyre.torch_backend.fallback import cpu_fallback


@pytest.fixture
def counted():
    """Names of the operations that fell back during the test."""
    torch.spyre.reset_fallbacks()
    return torch.spyre.fallbacks


def agrees(function, *tensors):
    """Check that ``function`` has the CPU's results, strides and changes of arguments."""
    on_card = [t.to("spyre") for t in tensors]
    on_host = [t.clone(memory_format=torch.preserve_format) for t in tensors]
    found, wanted = function(*on_card), function(*on_host)
    for one, other in zip(leaves(found), leaves(wanted), strict=True):
        assert one.device.type == "spyre"
        assert one.stride() == other.stride()
        assert_close(one.cpu(), other)
    for one, other in zip(on_card, on_host, strict=True):
        assert_close(one.cpu(), other)


def leaves(result):
    return [result] if isinstance(result, torch.Tensor) else [t for r in result for t in leaves(r)]


# --- copies to the host --------------------------------------------------------------------------


@pytest.mark.parametrize("number", [2, -2.5, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.int32])
@pytest.mark.parametrize("rank", [0, 1])
def test_numbers_where_a_tensor_is_taken(number, dtype, rank):
    x = torch.tensor([3, -4, 7]).to(dtype)[0 if rank == 0 else slice(None)]
    for function in (torch.copysign, torch.fmod, torch.xlogy):
        if function is torch.xlogy and number < 0:
            continue
        wanted, found = function(x, number), function(x.to("spyre"), number)
        assert found.dtype == wanted.dtype
        assert_close(found.cpu(), wanted, rtol=2e-2, atol=0)


def test_numbers_rank_below_tensors(counted):
    halves = torch.tensor([1.0, 2.0], dtype=torch.float16, device="spyre")
    assert torch.copysign(halves, -1.5).dtype is torch.float16
    assert torch.copysign(halves[0], -1.5).dtype is torch.float16
    assert torch.copysign(torch.tensor([1, 2], device="spyre"), -1).dtype is torch.float32
    assert counted()["aten.copysign"] == 3


def test_tensors_that_share_memory_share_it_on_the_cpu():
    def function(x):
        return torch.atan2(x[1:], x[:-1]), x[0].lgamma_(), torch.atan2(x.t(), x.t())

    agrees(function, torch.arange(1.0, 13).reshape(3, 4) / 7)


@pytest.mark.parametrize(
    "view",
    [
        lambda x: x.t(),
        lambda x: x[:, ::2],
        lambda x: x[1],
        lambda x: x[:0],
        lambda x: x.unsqueeze(0).expand(2, 3, 4),
        lambda x: x.as_strided((2, 2), (1, 5), 1),
    ],
)
def test_views(view):
    agrees(lambda x: torch.lgamma(view(x)), torch.arange(1.0, 13).reshape(3, 4))


@pytest.mark.parametrize("view", [lambda x: x.t(), lambda x: x[:, 1:3], lambda x: x[2, ::3]])
def test_in_place_on_views(view):
    agrees(lambda x: view(x).lgamma_(), torch.arange(1.0, 13).reshape(3, 4))


def test_lists_and_optional_tensors():
    x, y, k = torch.rand(3, 4), torch.rand(2, 4), torch.tensor([1, 0])
    agrees(lambda x, y: torch._foreach_lgamma([x, y]), x, y)
    agrees(lambda x, y: torch._foreach_lgamma_([x, y[1:]]) or [x, y], x, y)
    agrees(lambda x, k: torch.ops.aten._unsafe_index(x, [None, k]), x, k)
    agrees(lambda x: torch.bincount(x, weights=None, minlength=5), torch.tensor([1, 1, 3]))


def test_nothing_to_do():
    agrees(lambda x: torch.lgamma(x), torch.empty(0, 3))
    agrees(lambda x: x.lgamma_(), torch.empty(2, 0))
    agrees(lambda x: torch.linalg.inv(x), torch.empty(0, 2, 2))


def test_channels_last():
    x = torch.rand(2, 3, 4, 5).contiguous(memory_format=torch.channels_last)
    agrees(lambda x: torch.lgamma(x + 1), x)
    agrees(lambda x: torch.nn.functional.avg_pool2d(x, 2), x)


# --- copies to the card --------------------------------------------------------------------------


def test_given_results_are_resized():
    x = torch.rand(3, 4)
    out = torch.empty(0, device="spyre")
    assert torch.lgamma(x.to("spyre"), out=out) is out
    assert_close(out.cpu(), torch.lgamma(x))
    where = torch.empty(7, dtype=torch.int64, device="spyre")
    with pytest.warns(UserWarning, match="was resized"):
        torch.nonzero(x.to("spyre") > 0.5, out=where)
    assert torch.equal(where.cpu(), torch.nonzero(x > 0.5))


def test_a_smaller_result_leaves_nothing_of_the_host():
    """Else int64 elements out of range are refused, and others copied to the card."""
    x = torch.tensor([0.0, 1.0, 0.0])
    for _ in range(20):
        where = torch.empty(7, dtype=torch.int64, device="spyre")
        torch.full((7,), 1 << 40)  # the allocator gives its bytes to the next storage
        with pytest.warns(UserWarning, match="was resized"):
            torch.nonzero(x.to("spyre"), out=where)
        assert where.cpu().tolist() == [[1]]


def test_given_views_keep_their_surroundings():
    def function(x, out):
        torch.linalg.inv(x, out=out[1:3, 1:3])
        return torch.lgamma(x + 3, out=out.t()[:2, 3:])

    agrees(function, torch.tensor([[2.0, 1.0], [1.0, 3.0]]), torch.zeros(5, 4))


def test_a_result_that_is_an_operand():
    agrees(lambda x: torch.lgamma(x, out=x), torch.rand(3, 4))
    agrees(lambda x: torch.atan2(x[0], x[1], out=x[0]), torch.rand(3, 4))


def test_views_the_operation_made_stay_views():
    x = torch.arange(6.0, device="spyre")
    part = cpu_fallback(torch.ops.aten._unsafe_view.default, x, [2, 3])
    part.lgamma_()
    assert torch.equal(part.cpu().reshape(-1), x.cpu())


def test_running_statistics():
    for momentum in (0.5, None):
        on_host = torch.nn.BatchNorm1d(4, momentum=momentum)
        on_card = torch.nn.BatchNorm1d(4, momentum=momentum).to("spyre")
        for _ in range(2):
            x = torch.randn(6, 4)
            assert_close(on_card(x.to("spyre")).cpu(), on_host(x), rtol=1e-4, atol=1e-5)
        assert_close(on_card.running_mean.cpu(), on_host.running_mean)
        assert_close(on_card.running_var.cpu(), on_host.running_var)
    agrees(
        lambda x, m, v: torch.nn.functional.instance_norm(x, m, v, momentum=0.3),
        *(torch.rand(2, 3, 5), torch.zeros(3), torch.ones(3)),
    )
    agrees(
        lambda x, m, v: torch.batch_norm_update_stats(x, m, v, 0.3),
        *(torch.rand(2, 3, 5), torch.zeros(3), torch.ones(3)),
    )


def test_the_operators_with_unmarked_statistics_are_known():
    """The statistics written by a new one in torch would be lost."""
    from spyre.torch_backend.fallback import UNMARKED_WRITES

    has_kernel = torch._C._dispatch_has_kernel_for_dispatch_key
    found = set()
    for name in torch._C._dispatch_get_all_op_names():
        packet, _, overload = name.removeprefix("aten::").partition(".")
        if not name.startswith("aten::") or not has_kernel(name, "CPU"):
            continue
        op = getattr(getattr(torch.ops.aten, packet), overload or "default")
        names = {a.name for a in op._schema.arguments if a.alias_info is None}
        if "running_mean" in names and "backward" not in packet:
            found.add(f"aten::{packet}")
    assert found == set(UNMARKED_WRITES)


def test_a_refused_result_changes_nothing():
    x = torch.rand(4, device="spyre")
    before = x.cpu()
    with pytest.raises(UnsupportedDtype, match="does not support dtype qint8"):
        torch.quantize_per_tensor(x, 1.0, 0, torch.qint8)
    out, big = torch.zeros(3, dtype=torch.int64, device="spyre"), torch.tensor([2, 40, 9])
    with pytest.raises(Int64Overflow, match="int32"):
        torch.pow(torch.tensor([2, 2, 2], device="spyre"), big.to("spyre"), out=out)
    assert torch.equal(x.cpu(), before)
    assert out.cpu().tolist() == [0, 0, 0]


# --- random numbers ------------------------------------------------------------------------------


def test_operations_without_a_generator_draw_from_the_card():
    """native_dropout takes none."""
    x = torch.ones(100, device="spyre")
    host = torch.get_rng_state()
    torch.spyre.manual_seed(5)
    first, _ = torch.native_dropout(x, 0.5, True)
    second, _ = torch.native_dropout(x, 0.5, True)
    torch.spyre.manual_seed(5)
    again, _ = torch.native_dropout(x, 0.5, True)
    assert torch.equal(first.cpu(), again.cpu())
    assert not torch.equal(first.cpu(), second.cpu())
    assert torch.equal(torch.get_rng_state(), host)


def test_generators():
    generator = torch.Generator(device="spyre")
    generator.manual_seed(3)
    first = torch.empty(9, device="spyre").cauchy_(generator=generator)
    generator.manual_seed(3)
    assert torch.equal(
        first.cpu(), torch.empty(9, device="spyre").cauchy_(generator=generator).cpu()
    )


def test_the_time_of_fallbacks_is_counted(counted):
    x = torch.rand(3, 4).to("spyre")
    assert torch.spyre.fallback_seconds() == {}
    torch.lgamma(x)
    first = torch.spyre.fallback_seconds()
    assert first.keys() == counted().keys() == {"aten.lgamma"}
    torch.lgamma(x)
    assert torch.spyre.fallback_seconds()["aten.lgamma"] > first["aten.lgamma"] > 0
    torch.spyre.reset_fallbacks()
    assert torch.spyre.fallback_seconds() == {}
