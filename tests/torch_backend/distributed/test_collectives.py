"""The collectives of torch.distributed on cards: exact, and the same bits on all ranks."""

from __future__ import annotations

import contextlib
import functools
import itertools
import math
import operator

import pytest
import torch
import torch.distributed as dist

from spyre.torch_backend.distributed import images
from spyre.torch_backend.distributed.group import live_groups
from tests.torch_backend.distributed.ranks import run_ranks

DTYPES = [torch.float16, torch.float32, torch.int32, torch.bool]
SHAPES = [(5,), (3, 70), (1000, 130), (64, 64), (2048, 256)]
WORLDS = [2, 4]


@functools.cache
def inputs(shape, dtype, ranks):
    """A CPU tensor per rank, with values that sums do not take out of the formats' ranges."""
    random = [torch.Generator().manual_seed(rank) for rank in range(ranks)]
    if dtype is torch.bool:
        return [torch.rand(shape, generator=g) > 0.5 for g in random]
    if dtype is torch.int32:
        return [torch.randint(-1000, 1000, shape, generator=g, dtype=dtype) for g in random]
    return [torch.randn(shape, generator=g).to(dtype) for g in random]


def on_card(tensors):
    return [tensor.to("spyre") for tensor in tensors]


def as_held(tensors):
    """Return the values of CPU tensors after a copy to the card."""
    return [tensor.cpu() for tensor in on_card(tensors)]


@functools.cache
def total(shape, dtype, ranks):
    """The card's own adds in rank order, on the CPU."""
    parts = on_card(inputs(shape, dtype, ranks))
    return functools.reduce(operator.or_ if dtype is torch.bool else torch.add, parts).cpu()


def matrix(function):
    function = pytest.mark.parametrize("ranks", WORLDS)(function)
    function = pytest.mark.parametrize("shape", SHAPES, ids=str)(function)
    return pytest.mark.parametrize("dtype", DTYPES, ids=str)(function)


@matrix
def test_reductions(dtype, shape, ranks):
    values, expected = inputs(shape, dtype, ranks), total(shape, dtype, ranks)

    def body(rank):
        x = values[rank].to("spyre")
        summed, reduced, out, listed = (
            x.clone(),
            x.clone(),
            torch.empty_like(x),
            torch.empty_like(x),
        )
        dist.all_reduce(summed)
        dist.reduce(reduced, ranks - 1)
        dist.reduce_scatter_tensor(out, torch.cat([x] * ranks))
        dist.reduce_scatter(listed, [x] * ranks)
        return [tensor.cpu() for tensor in (summed, reduced, out, listed)]

    own = as_held(values)
    for rank, (summed, reduced, out, listed) in enumerate(run_ranks(ranks, body)):
        for result in (summed, out, listed):
            assert torch.equal(result, expected)
        assert torch.equal(reduced, expected if rank == ranks - 1 else own[rank])


@matrix
def test_copies(dtype, shape, ranks):
    values = inputs(shape, dtype, ranks)

    def body(rank):
        x = values[rank].to("spyre")
        gathered, exchanged, at_root = ([torch.empty_like(x) for _ in range(ranks)] for _ in "abc")
        joined = torch.empty((ranks * shape[0], *shape[1:]), dtype=dtype, device="spyre")
        stacked = torch.empty((ranks, *shape), dtype=dtype, device="spyre")
        single, spread, scattered = torch.empty_like(joined), x.clone(), torch.empty_like(x)
        dist.all_gather(gathered, x)
        dist.all_gather_into_tensor(joined, x)
        dist.all_gather_into_tensor(stacked, x)
        dist.gather(x, at_root if rank == 0 else None, 0)
        dist.scatter(scattered, on_card(values) if rank == 1 else None, 1)
        dist.broadcast(spread, ranks - 1)
        dist.all_to_all(exchanged, [x] * ranks)
        dist.all_to_all_single(single, torch.cat([x] * ranks))
        dist.barrier()
        lists = [[t.cpu() for t in tensors] for tensors in (gathered, exchanged, at_root)]
        return lists, [t.cpu() for t in (joined, single, stacked, spread, scattered)]

    own = as_held(values)
    for rank, (lists, (joined, single, stacked, spread, scattered)) in enumerate(
        run_ranks(ranks, body)
    ):
        for tensors in lists[: 3 if rank == 0 else 2]:
            assert all(map(torch.equal, tensors, own))
        assert torch.equal(joined, torch.cat(own))
        assert torch.equal(single, torch.cat(own))
        assert torch.equal(stacked, torch.stack(own))
        assert torch.equal(spread, own[-1])
        assert torch.equal(scattered, own[rank])


def test_eight_ranks():
    values = inputs((1000, 130), torch.float16, 8)

    def body(rank):
        x = values[rank].to("spyre")
        dist.all_reduce(x)
        return x.cpu()

    for result in run_ranks(8, body):
        assert torch.equal(result, total((1000, 130), torch.float16, 8))


OPERATORS = [
    (dist.ReduceOp.SUM, operator.add),
    (dist.ReduceOp.PRODUCT, operator.mul),
    (dist.ReduceOp.MIN, torch.minimum),
    (dist.ReduceOp.MAX, torch.maximum),
    (dist.ReduceOp.BAND, operator.and_),
    (dist.ReduceOp.BOR, operator.or_),
    (dist.ReduceOp.BXOR, operator.xor),
]


@pytest.mark.parametrize(("op", "meaning"), OPERATORS)
@pytest.mark.parametrize("dtype", [torch.float16, torch.float32, torch.int32, torch.int64])
def test_operators(op, meaning, dtype):
    bitwise = op in (dist.ReduceOp.BAND, dist.ReduceOp.BOR, dist.ReduceOp.BXOR)
    if bitwise and dtype.is_floating_point:
        pytest.skip("floats have no bitwise reductions, see test_refusals")
    values = [(torch.arange(200) * (3 + rank) % 17).to(dtype) for rank in range(3)]

    def body(rank):
        x = values[rank].to("spyre")
        dist.all_reduce(x, op)
        return x.cpu()

    for result in run_ranks(3, body):
        assert torch.equal(result, functools.reduce(meaning, values))


NAN = float("nan")


@pytest.mark.parametrize("op", [dist.ReduceOp.MIN, dist.ReduceOp.MAX])
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
def test_extremes_are_those_of_one_card(op, dtype):
    """NaN in float32, zeros of both signs, infinities."""
    one = [1.0, NAN, 1.0, NAN, 0.0, -0.0, float("inf"), -float("inf"), 3.0]
    other = [NAN, 1.0, 2.0, NAN, -0.0, 0.0, 1.0, 1.0, -5.0]
    values = [torch.tensor(row * 100, dtype=dtype) for row in (one, other)]
    meaning = torch.minimum if op == dist.ReduceOp.MIN else torch.maximum
    expected = meaning(*on_card(values)).cpu()
    if dtype is torch.float32:
        assert expected[:4].isnan().tolist() == [True, True, False, True]

    def body(rank):
        x = values[rank].to("spyre")
        results = [x.clone() for _ in range(2)]
        out = torch.empty_like(x)
        dist.all_reduce(results[0], op)
        dist.reduce(results[1], 0, op)
        dist.reduce_scatter_tensor(out, torch.cat([x] * 2), op)
        return [result.cpu() for result in (results[0], out, results[1])][: 3 - rank]

    for results in run_ranks(2, body):
        for result in results:
            assert torch.equal(result.signbit(), expected.signbit()) or dtype is not torch.float32
            torch.testing.assert_close(result, expected, rtol=0, atol=0, equal_nan=True)


REDUCTIONS = {
    "all_reduce": lambda x, op: dist.all_reduce(x, op),
    "reduce": lambda x, op: dist.reduce(x, 0, op),
    "reduce_scatter": lambda x, op: dist.reduce_scatter(x, [x.clone(), x.clone()], op),
    "reduce_scatter_tensor": lambda x, op: dist.reduce_scatter_tensor(x, torch.cat([x, x]), op),
}


@pytest.mark.parametrize("reduction", REDUCTIONS)
@pytest.mark.parametrize("size", [3, 40000])
def test_int64_is_exact_or_refused(reduction, size):
    """Also beside padding that holds anything."""
    cases = [
        (dist.ReduceOp.SUM, 2**31 - 1, None),
        (dist.ReduceOp.AVG, 2**31 - 1, None),
        (dist.ReduceOp.PRODUCT, 2**20, None),
        (dist.ReduceOp.SUM, 2**30 - 1, 2**31 - 2),
        (dist.ReduceOp.PRODUCT, -(2**15), 2**30),
        (dist.ReduceOp.MAX, 2**31 - 1, 2**31 - 1),
        (dist.ReduceOp.BAND, 2**31 - 1, 2**31 - 1),
    ]
    for op, value, expected in cases:

        def body(rank, op=op, value=value, expected=expected):
            x = torch.full((size,), value, dtype=torch.int64).to("spyre")
            x = (x + 1) - 1 if value < 2**30 else x  # its padding is no longer zero
            if expected is None and rank and reduction == "reduce":
                # the root need not tell those that have sent all
                with contextlib.suppress(dist.DistBackendError):
                    REDUCTIONS[reduction](x, op)
                return
            if expected is None:
                with pytest.raises(dist.DistBackendError, match=r"SPY901|SPY957[\s\S]*int64"):
                    REDUCTIONS[reduction](x, op)
            else:
                REDUCTIONS[reduction](x, op)
                assert rank or (x.cpu() == expected).all()

        run_ranks(2, body)


def test_words_wrap_as_those_of_one_card():
    def body(rank):
        wide = torch.full((70,), 2**31 - 1, dtype=torch.int32, device="spyre")
        byte = torch.full((70,), 200, dtype=torch.uint8, device="spyre")
        single = [(wide + wide)[0].item(), (byte + byte)[0].item()]
        dist.all_reduce(wide)
        dist.all_reduce(byte)
        return single, [wide[0].item(), byte[0].item()]

    for single, reduced in run_ranks(2, body):
        assert single == reduced == [-2, 144]


def test_average_divides_the_sum():
    values = inputs((1000, 130), torch.float16, 3)

    def body(rank):
        x, words = values[rank].to("spyre"), torch.full((4,), rank, device="spyre")
        dist.all_reduce(x, dist.ReduceOp.AVG)
        dist.all_reduce(words, dist.ReduceOp.AVG)
        return x.cpu(), words.cpu()

    expected = (total((1000, 130), torch.float16, 3).to("spyre") / 3).cpu()
    for result, words in run_ranks(3, body):
        assert torch.equal(result, expected)
        assert words.tolist() == [1] * 4


def test_views_and_empty_tensors():
    def body(rank):
        x = torch.arange(24.0, device="spyre").reshape(4, 6) + rank
        rows, columns = x.clone(), x.t()
        dist.all_reduce(rows[1:3, ::2])
        dist.all_reduce(columns)
        empty = torch.empty(0, 3, device="spyre")
        dist.all_reduce(empty)
        outs = [torch.empty(3 - k, device="spyre") for k in range(2)]
        dist.all_gather(outs, torch.full((3 - rank,), float(rank), device="spyre"))
        return rows.cpu(), x.cpu(), [out.cpu().tolist() for out in outs]

    base = torch.arange(24.0).reshape(4, 6)
    for rank, (rows, columns, outs) in enumerate(run_ranks(2, body)):
        expected = base + rank
        expected[1:3, ::2] = (2 * base + 1)[1:3, ::2]
        assert torch.equal(rows, expected)
        assert torch.equal(columns, 2 * base + 1)
        assert outs == [[0.0] * 3, [1.0] * 2]


def test_parts_that_are_views():
    """Their sticks are those of copies, which must live until the collective has read them."""

    def body(rank):
        parts = (torch.arange(280.0).reshape(4, 70) + 1000 * rank).to("spyre").chunk(2)
        shape = parts[0].shape
        outs = [torch.empty(shape, device="spyre") for _ in range(7)]
        dist.scatter(outs[0], list(parts) if rank == 0 else None, 0)
        dist.all_to_all(outs[1:3], list(parts))
        dist.gather(parts[1], outs[3:5] if rank == 0 else None, 0)
        dist.reduce_scatter(outs[5], list(parts))
        dist.all_gather_into_tensor(torch.empty(4, 70, device="spyre"), parts[1])
        dist.all_to_all_single(outs[6], parts[0])
        return [out.cpu() for out in outs]

    (a, b), (c, d) = (
        (torch.arange(280.0).reshape(4, 70) + 1000 * rank).chunk(2) for rank in range(2)
    )
    first, second = run_ranks(2, body)
    rows = [torch.cat((a[k : k + 1], c[k : k + 1])) for k in range(2)]
    assert all(map(torch.equal, first, (a, a, c, b, d, a + c, rows[0])))
    assert all(map(torch.equal, second[:3], (b, b, d)))
    assert all(map(torch.equal, second[5:], (b + d, rows[1])))


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32], ids=str)
@pytest.mark.parametrize("rest", [(), (1,), (3,), (2, 33)], ids=str)
def test_slices_have_the_sticks_of_separate_tensors(dtype, rest):
    """Parts that begin inside of a stick have none: they are sent as codes."""
    for rows, count in itertools.product((1, 17, 24, 31, 32, 48, 63, 64, 96), (2, 3)):
        shape = (count * rows, *rest)
        parts = torch.arange(math.prod(shape)).reshape(shape).to(dtype).chunk(count)
        found = images.slices(torch.cat(parts).to("spyre"), tuple(parts[0].size()), count)
        for part, image in zip(on_card(parts), found or [], strict=found is not None):
            assert image.tobytes() == images.sticks(part).tobytes(), (rows, count)


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32], ids=str)
def test_parts_that_begin_inside_of_a_stick(dtype):
    """As flat parameters and sharded biases do; 24 float32 are 3/4 of a stick."""
    sizes = (17, 24, 31, 33, 48, 63)

    def body(rank):
        for size in sizes:
            own = (torch.arange(size) + rank).to("spyre", dtype)
            whole = torch.zeros(2 * size, dtype=dtype, device="spyre")
            summed = torch.zeros_like(own)
            dist.all_gather_into_tensor(whole, own)
            dist.reduce_scatter_tensor(summed, whole)
            yield whole.cpu(), summed.cpu()

    for rank, results in enumerate(run_ranks(2, lambda rank: list(body(rank)))):
        for size, (whole, summed) in zip(sizes, results, strict=True):
            expected = torch.arange(size).to(dtype)
            assert torch.equal(whole, torch.cat((expected, expected + 1)))
            assert torch.equal(summed, 2 * (expected + rank))


def test_uneven_splits():
    def body(rank):
        counts = [1, 3] if rank == 0 else [2, 2]
        out_counts = [1, 2] if rank == 0 else [3, 2]
        x = (torch.arange(sum(counts) * 5.0) + 100 * rank).reshape(-1, 5).to("spyre")
        out = torch.empty(sum(out_counts), 5, device="spyre")
        dist.all_to_all_single(out, x, out_counts, counts)
        return out.cpu()[:, 0].tolist()

    assert run_ranks(2, body) == [[0, 100, 105], [5, 10, 15, 110, 115]]


def test_codes_travel_not_values():
    """DL16 reaches beyond binary16: sums above 65504 and far below its smallest stay numbers."""

    def body(rank):
        large = torch.full((70,), 61440.0, dtype=torch.float16).to("spyre")
        small = torch.full((70,), 2.0**-14, dtype=torch.float16).to("spyre") * 2.0**-14
        dist.all_reduce(large)
        dist.broadcast(small, 0)
        outs = [torch.empty_like(large) for _ in range(2)]
        dist.all_gather(outs, large)
        for out, reduce_scatter, part in (
            (outs[0], dist.reduce_scatter, [large, large]),
            (outs[1], dist.reduce_scatter_tensor, torch.cat([large, large])),
        ):
            reduce_scatter(out, part)
            assert ((out / 4).cpu() == 61440).all()
        outs[1 - rank].copy_(large)
        return (outs[1 - rank] / 4).cpu(), (small * 2.0**14).cpu()

    for large, small in run_ranks(2, body):
        assert torch.equal(large, torch.full((70,), 30720.0, dtype=torch.float16))
        assert torch.equal(small, torch.full((70,), 2.0**-14, dtype=torch.float16))


def test_calls_that_are_waited_for_come_behind_those_that_are_not():
    """The former run on the calling thread, but after earlier calls."""

    def body(rank):
        x, sums = torch.ones(70, device="spyre"), []
        for _ in range(20):
            dist.all_reduce(x)
            works = [dist.all_reduce(x, async_op=True) for _ in range(2)]
            dist.all_reduce(x, dist.ReduceOp.AVG)
            x /= 8
            sums.append(x[0].item())
            assert all(work.is_completed() for work in works)
        return sums

    assert run_ranks(2, body) == [[1.0] * 20] * 2


@pytest.mark.parametrize("is_async", [False, True])
def test_tensors_of_inference_mode(is_async):
    def body(rank):
        with torch.inference_mode():
            x = torch.ones(3, 70, device="spyre") * rank
            view = x[:, :5]
            for tensor in (x, view):
                work = dist.all_reduce(tensor, dist.ReduceOp.AVG, async_op=is_async)
                _ = work and work.wait()
            return x.cpu(), view.cpu()

    for x, view in run_ranks(2, body):
        assert (x == 0.5).all()
        assert (view == 0.5).all()


def test_an_interrupt_is_raised_and_the_others_fail():
    def body(rank):
        x = torch.ones(3, device="spyre")
        if rank == 0:

            def job():
                raise KeyboardInterrupt

            (group,) = [each for each in live_groups() if each.rank == 0]
            with pytest.raises(KeyboardInterrupt):
                group.submit("all_reduce", [x], job, [x], is_async=False)
        else:
            with pytest.raises(dist.DistBackendError, match=r"SPY957[\s\S]*KeyboardInterrupt"):
                dist.all_reduce(x)

    run_ranks(2, body)


def test_a_group_can_be_destroyed_and_made_again():
    def body(rank):
        sums = []
        for number in range(3):
            store = dist.PrefixStore(f"again/{number}", stores[rank])
            dist.destroy_process_group()
            dist.init_process_group("spyreccl", rank=rank, world_size=2, store=store)
            x = torch.ones(70, device="spyre") * number
            dist.all_reduce(x)
            sums.append(x[0].item())
        return sums

    stores = [dist.HashStore()] * 2
    assert run_ranks(2, body) == [[0.0, 2.0, 4.0]] * 2


def test_asynchronous_works_futures_and_point_to_point():
    def body(rank):
        x, y = torch.ones(300, device="spyre") * rank, torch.ones(300, device="spyre")
        work = dist.all_reduce(x, async_op=True)
        y += 1
        assert work.wait()
        assert work.is_completed()
        assert work.get_future().done()
        peer, received = 1 - rank, torch.empty(300, device="spyre")
        works = [dist.P2POp(dist.isend, y + rank, peer), dist.P2POp(dist.irecv, received, peer)]
        for one in dist.batch_isend_irecv(works):
            one.wait()
        return x.cpu(), received.cpu()

    for rank, (x, received) in enumerate(run_ranks(2, body)):
        assert (x == 1).all()
        assert (received == 3 - rank).all()


def test_subgroups_and_coalesced_operations():
    def body(rank):
        pair = dist.new_group([0, 2])
        x, y = torch.full((3,), float(rank), device="spyre"), torch.ones(70, device="spyre")
        if rank != 1:
            dist.all_reduce(x, group=pair)
        with dist._coalescing_manager(async_ops=True) as manager:
            dist.all_reduce(x)
            dist.all_reduce(y)
        manager.wait()
        return x.cpu().tolist(), y.cpu().tolist()

    for x, y in run_ranks(3, body):
        assert x == [5.0] * 3
        assert y == [3.0] * 70


def test_operations_coalesced_on_a_card():
    def body(rank):
        x, out = torch.full((3,), float(rank), device="spyre"), torch.empty(3, device="spyre")
        with dist._coalescing_manager(device=x.device, async_ops=True) as manager:
            dist.isend(x, 1 - rank)
            dist.irecv(out, 1 - rank)
        manager.wait()
        with dist._coalescing_manager(device=x.device):
            dist.all_reduce(x)
        return out.cpu().tolist(), x.cpu().tolist()

    assert run_ranks(2, body) == [([1.0 - rank] * 3, [1.0] * 3) for rank in range(2)]


def test_errors_of_coalesced_operations():
    def body(rank):
        with dist._coalescing_manager(device=torch.device("spyre"), async_ops=True) as manager:
            dist.irecv(torch.empty(3, device="spyre"), 1 - rank)
            dist.isend(torch.empty(4 - rank, device="spyre"), 1 - rank)
        if rank == 1:
            with pytest.raises(dist.DistBackendError, match="SPY952"):
                manager.wait()
        else:
            manager.wait()

    run_ranks(2, body)


def test_objects_travel_with_and_without_gloo():
    def body(rank):
        everything, one = [None] * 2, ["none", {"rank": rank}]
        dist.all_gather_object(everything, {"rank": rank})
        dist.broadcast_object_list(one, 1)
        return everything, one

    for backend in ("cpu:gloo,spyre:spyreccl", "spyreccl"):
        for everything, one in run_ranks(2, body, backend):
            assert everything == [{"rank": 0}, {"rank": 1}]
            assert one == ["none", {"rank": 1}]


def test_the_backend_is_the_devices_default():
    assert dist.get_default_backend_for_device("spyre") == "spyreccl"
    assert dist.is_backend_available("spyreccl")

    def body(rank):
        x = torch.ones(3, device="spyre")
        dist.all_reduce(x)
        return x.cpu().tolist()

    assert run_ranks(2, body, backend=None) == [[2.0] * 3] * 2


@pytest.mark.parametrize("backend", [None, "spyreccl", "cpu:gloo,spyre:spyreccl"])
def test_the_default_backend_of_a_group_is_there(backend, capfd):
    """DDP asks it for its name, the end of a group for hooks."""

    def body(rank):
        group = dist.new_group([0, 1])
        for each in (dist.group.WORLD, group):
            assert each._get_backend_name() == "custom"
            assert not each._has_hooks()
        model = torch.nn.Linear(3, 3).to("spyre")
        torch.nn.parallel.DistributedDataParallel(model)

    run_ranks(2, body, backend=backend)
    assert "No backend of type" not in capfd.readouterr().err


def refused(call, match):
    def body(rank):
        with pytest.raises((dist.DistBackendError, ValueError, RuntimeError), match=match):
            call(rank)

    run_ranks(2, body)


def test_refusals():
    def card(*size):
        return torch.ones(*size, device="spyre")

    refused(lambda rank: dist.all_reduce(card(3), dist.ReduceOp.BOR), "SPY953")
    refused(lambda rank: dist.all_reduce(card(3) > 0, dist.ReduceOp.AVG), "SPY953")
    premultiplied = dist._make_nccl_premul_sum(2.0)
    refused(lambda rank: dist.all_reduce(card(3), premultiplied), r"SPY958[\s\S]*premultiplied")


def test_ranks_that_differ_all_fail_and_the_group_is_dead():
    def body(rank):
        x = torch.ones(3 + rank, device="spyre")
        with pytest.raises(dist.DistBackendError, match=r"SPY95[27]"):
            dist.all_reduce(x)
        with pytest.raises(dist.DistBackendError, match="SPY956"):
            dist.all_reduce(x)
        return (x + 1).cpu().tolist()

    assert run_ranks(2, body) == [[2.0] * 3, [2.0] * 4]


def test_a_missing_rank_is_an_error_within_the_timeout():
    def body(rank):
        x = torch.ones(3, device="spyre")
        if rank == 0:
            work = dist.all_reduce(x, async_op=True)
            with pytest.raises(dist.DistBackendError, match=r"SPY955[\s\S]*rank 1"):
                work.wait()

    run_ranks(2, body, timeout=0.3)
