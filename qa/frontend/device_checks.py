"""Tests of the stand-in in a process that `test_device` starts; its package torch_spyre consists
of the extension only."""

from __future__ import annotations

import copy
import json
import pickle
import shutil
import warnings
from pathlib import Path

import pytest
import torch
import torch_spyre._C as native
from torch.fx.experimental.proxy_tensor import make_fx

from spyre.frontend.copies import PAIRS
from spyre.frontend.formats import formats_of
from spyre.runtime.spyrecode import compile_directory

SOFTMAX = Path(__file__).parents[2] / "examples" / "softmax"
H, F = torch.float16, torch.float32


@pytest.fixture
def matrix():
    return torch.randn(5, 70).to(H)


def put(tensor, layout=None, dtype=None):
    made = layout or native.SpyreTensorLayout(tensor.size(), dtype or tensor.dtype)
    card = native.spyre_empty_with_layout(
        tensor.size(), tensor.stride(), dtype or tensor.dtype, made
    )
    return native.copy_tensor(tensor, card)


def get(tensor, dtype=None):
    host = torch.empty(tensor.size(), dtype=dtype or tensor.dtype)
    return native.copy_tensor(tensor, host)


def same(card, host):
    """Compare with the tolerance of the card's 16-bit format."""
    torch.testing.assert_close(get(card), host, rtol=2**-8, atol=0)


def test_module_and_classes_are_the_extension():
    assert native.__name__ == "torch_spyre._C"
    for name in ("SpyreTensorLayout", "DataFormats", "JobPlan", "_SpyreStreamBase"):
        assert (getattr(native, name).__module__, getattr(native, name).__name__) == (
            "torch_spyre._C",
            name,
        )


def softmax_that_warns(x: torch.Tensor):
    return torch.nn.functional.softmax(x)


def test_functions_that_warn_are_scripted():
    scripted = torch.jit.script(softmax_that_warns)
    with pytest.warns(UserWarning, match="Implicit dimension"):
        assert scripted(torch.zeros(2, 2))[0, 0] == 0.5


def test_pickles_name_the_extension():
    layout = native.SpyreTensorLayout([4, 64], H)
    for value in (layout, native.DataFormats.SENINT8, native.ElementArrangement.EXX2):
        data = pickle.dumps(value)
        assert b"torch_spyre._C" in data
        assert pickle.loads(data) == value
        assert copy.deepcopy(value) is value


def test_copies_and_views(matrix):
    card = put(matrix)
    same(card, matrix)
    same(card.t(), matrix.t())
    same(card[1:3, 5:69], matrix[1:3, 5:69])
    same(card.unfold(1, 3, 2), matrix.unfold(1, 3, 2))
    same(card.view(350), matrix.view(350))
    same(card[2].expand(4, 70), matrix[2].expand(4, 70))


def test_writing_a_view_keeps_the_rest(matrix):
    card, part = put(matrix), torch.full((2, 4), 3.0, dtype=H)
    native.copy_tensor(part, card[1:3, 60:64])
    matrix[1:3, 60:64] = part
    same(card, matrix)


@pytest.mark.parametrize("order", [(0, 1, 2), (1, 0, 2), (2, 1, 0)], ids=str)
def test_folded_layouts_of_hosts_whose_dims_lie_apart(order):
    fold = native.SpyreTensorLayout([2, 32, 64], [64, 128, 1], native.DataFormats.SEN169_FP16)
    values = torch.randn(4, 8, 128).to(H)
    apart = torch.empty([(4, 8, 128)[k] for k in order], dtype=H)
    apart = apart.permute([order.index(k) for k in range(3)]).copy_(values)
    card = native.spyre_empty_with_layout(values.size(), values.stride(), H, fold)
    same(native.copy_tensor(apart, card), values)
    torch.testing.assert_close(native.copy_tensor(card, apart), values, rtol=2**-8, atol=0)


def test_rank_0_and_empty():
    number = put(torch.tensor(2.5, dtype=H))
    assert get(number).item() == 2.5
    empty = torch.empty(0, 4, dtype=H, device="spyre")
    assert get(empty).numel() == 0
    assert native.get_spyre_tensor_layout(empty).device_size == [1, 0, 64]


def test_aliases_have_the_layout_of_what_they_alias(matrix):
    order = native.SpyreTensorLayout([5, 70], [70, 1], H, [1, 0])
    card = put(matrix)
    seen = native.reinterpret_tensor_with_layout(card, [5, 70], [70, 1], 0, order)
    for alias in (seen, seen.detach(), seen.data, torch.nn.Parameter(seen, False)):
        assert native.get_spyre_tensor_layout(alias) == order
    assert native.get_spyre_tensor_layout(card) == native.SpyreTensorLayout([5, 70], H)
    assert native.get_spyre_tensor_layout(seen[1:]) == order


def test_data_and_set_take_the_record_along(matrix):
    card, other = put(matrix), put(matrix[:3].contiguous())
    card.data = other
    same(card, matrix[:3])
    again = put(torch.zeros(7, dtype=H))
    again.set_(other.untyped_storage(), 0, other.size(), other.stride())
    same(again, matrix[:3])


def test_set_layout_changes_the_tensor():
    card = put(torch.ones(4, 64, dtype=H))
    layout = native.SpyreTensorLayout([4, 64], [64, 1], H, [1, 0])
    native.set_spyre_tensor_layout(card, layout)
    assert native.get_spyre_tensor_layout(card) == layout
    assert native.get_spyre_tensor_layout(card.view(256)) == layout


def test_saved_tensors_do_not_take_records_along(matrix):
    assert b"spyre.frontend" not in pickle.dumps(put(matrix).__dict__)


def test_resize(matrix):
    card = put(matrix)
    card.resize_(5, 60)
    assert card.size() == (5, 60)
    card = put(matrix)
    card.resize_(2, 100)
    same(card, matrix.clone().resize_(2, 100))
    with pytest.raises(RuntimeError, match="does not support MemoryFormat::Preserve"):
        card.resize_(3, memory_format=torch.preserve_format)


@pytest.mark.parametrize(
    ("make", "text"),
    [
        (
            lambda: torch.empty(2, dtype=torch.float64, device="spyre"),
            "does not support dtype Double",
        ),
        (
            lambda: torch.empty((1, 2, 2, 2), device="spyre", memory_format=torch.channels_last),
            "only supports contiguous memory format, got: ChannelsLast",
        ),
        (
            lambda: native.copy_tensor(self=torch.ones(2), dst=torch.ones(2)),
            "Unsupported copy types: src on cpu dst on cpu",
        ),
        (
            lambda: put(torch.ones(2, dtype=torch.int16), dtype=F),
            "Unsupported DCI data format conversion: src=9 dst=1 ",
        ),
        (
            lambda: torch.empty(2, dtype=H, device="spyre", pin_memory=True),
            "Pin memory can only be on CPU",
        ),
        (
            lambda: torch.empty_strided((2,), (1,), dtype=torch.complex64, device="spyre"),
            "does not support dtype ComplexFloat",
        ),
        (lambda: native.fill_tensor(self=torch.ones(1), value=1.0), "must be on spyre device"),
        (
            lambda: native.fill_tensor(torch.empty(0, dtype=H, device="spyre"), 1.0),
            "cannot fill empty tensor",
        ),
        (
            lambda: native.host_compute_stream_by_id(id=3, device=torch.device("spyre")),
            "stream id 3 is not a host compute stream id",
        ),
        (lambda: native.set_device(9), r"Device index 9 out of range \[0, 1\)"),
        (
            lambda: native.launch_jobplan(None, (torch.ones(1),)),
            "argument 0 must be on Spyre device",
        ),
    ],
)
def test_texts_of_errors(make, text):
    with pytest.raises(RuntimeError, match=text):
        make()


HOSTS = (F, H, torch.bfloat16, torch.bool, torch.int64, torch.int32, torch.int16, torch.int8)
HOSTS += (torch.uint8, torch.float8_e4m3fn)


@pytest.mark.parametrize("host", HOSTS, ids=str)
@pytest.mark.parametrize("stored", HOSTS, ids=str)
def test_every_pair_of_formats(host, stored):
    """Small whole numbers survive every supported conversion."""
    values = torch.tensor([[0, 1, 3], [5, 7, 2]])
    values = values.bool() if torch.bool in (host, stored) else values
    host_format, card_format = formats_of(host)[0], formats_of(stored)[1]
    if (host_format.name, card_format.name) not in PAIRS:
        with pytest.raises(RuntimeError, match="Unsupported DCI data format conversion"):
            put(values.to(host), dtype=stored)
    else:
        card = put(values.to(host), dtype=stored)
        if (card_format.name, host_format.name) in PAIRS:
            assert get(card, host).to(torch.int64).tolist() == values.to(torch.int64).tolist()
    if (card_format.name, host_format.name) in PAIRS:
        card = put(values.to(stored))
        assert get(card, host).to(torch.int64).tolist() == values.to(torch.int64).tolist()


def test_fill_covers_padding():
    card = torch.empty(3, 5, dtype=H, device="spyre")
    native.fill_tensor(card, 1.5)
    sticks = native.SpyreTensorLayout([3, 64], [64, 1], native.DataFormats.SEN169_FP16)
    rows = native.reinterpret_tensor_with_layout(card, [3, 64], [64, 1], 0, sticks)
    assert get(rows).eq(1.5).all()


def test_streams_and_events(matrix):
    stream = native.get_stream_from_pool(torch.device("spyre"), -1)
    before = native.set_current_stream(stream)
    try:
        assert native.current_stream(torch.device("spyre")).id() == stream.id() > 32
        card = put(matrix)
        stream.synchronize()
        assert stream.query()
    finally:
        native.set_current_stream(before)
    same(card, matrix)
    assert str(before) == "<torch_spyre.Stream device=0 id=0>"
    ids = [native.host_compute_stream(torch.device("spyre")).id() for _ in range(5)]
    assert ids == [65, 66, 67, 68, 65]
    assert native.stream_get_error_string(native.stream_get_error(stream)) == "Success"


def test_random_numbers_follow_the_seed():
    native.manual_seed_all(7)
    state = native.get_rng_state()
    assert native.initial_seed() == 7
    generator = native._get_default_generator(0)
    assert generator is native._get_default_generator()
    first = torch.rand(4, generator=generator.clone_state())
    native.set_rng_state(state)
    assert torch.equal(first, torch.rand(4, generator=generator))


def test_memory_is_counted():
    before = native._spyre_get_allocator_stats(0)
    card = torch.empty(64, 64, dtype=H, device="spyre")
    during = native._spyre_get_allocator_stats(0)
    assert during["allocated_bytes.all.current"] - before["allocated_bytes.all.current"] == 8192
    assert during["allocation.all.current"] == before["allocation.all.current"] + 1
    del card
    assert native._spyre_get_allocator_stats(0) == before


def test_attention_is_one_operation():
    def attend(q, mask):
        return torch.nn.functional.scaled_dot_product_attention(q, q, q, mask)

    q, mask = torch.empty(2, 4, 64, 64, dtype=H), torch.empty(64, 64, dtype=torch.bool)
    with torch.no_grad():
        graph = make_fx(attend, tracing_mode="fake")(q.to("spyre"), mask.to("spyre")).graph
    targets = {str(node.target) for node in graph.nodes}
    assert "aten._scaled_dot_product_fused_attention_overrideable.default" in targets
    assert "aten.bmm.default" not in targets


# --- kernels --------------------------------------------------------------------------------------


def plan_file(folder, execution, size="1024"):
    code = folder / "spyreCodeDir"
    code.mkdir()
    transfer = {"init_bin_file": "x.bin", "dev_ptr": str(7 << 34), "size": "1024"}
    preparation = [
        {"command": "Allocate", "properties": {"size": size}},
        {"command": "InitTransfer", "properties": transfer},
    ]
    plan = {"JobPreparationPlan": preparation, "JobExecPlan": execution}
    (code / "spyrecode.json").write_text(json.dumps(plan))
    (code / "x.bin").write_bytes(bytes(1024))
    return str(code)


COMPUTE = {"command": "ComputeOnDevice", "properties": {"job_bin_ptr": str(7 << 34)}}


def test_plans_of_other_compilers_can_be_looked_at(tmp_path):
    plan = native.prepare_kernel(plan_file(tmp_path, [COMPUTE]))
    assert (plan.num_steps(), plan.job_allocation_size()) == (1, 1024)
    assert (plan.get_step_type(0), plan.get_step_pipeline_barrier(0)) == ("Compute", True)
    assert plan.get_step_name(0) == f"{tmp_path.name}/spyreCodeDir/bundle.mlir#0"
    with pytest.raises(RuntimeError, match="Step index out of range"):
        plan.get_step_type(1)
    with pytest.raises(RuntimeError, match="SPY885"):
        native.launch_jobplan(plan, ())


def test_plans_with_wrong_numbers(tmp_path):
    with pytest.raises(RuntimeError, match="negative value not allowed for unsigned integer"):
        native.prepare_kernel(plan_file(tmp_path, [COMPUTE], size=" -5"))


def test_names_are_bounded(tmp_path):
    path = plan_file(tmp_path, [COMPUTE])
    assert native.prepare_kernel(path, profiler_name="p").get_step_name(0) == "p#0"
    with pytest.raises(RuntimeError, match="profiler-visible compute name exceeds AIUPTI limit"):
        native.prepare_kernel(path, profiler_name="p" * 126)


def test_transfers_from_tensors(tmp_path, monkeypatch):
    monkeypatch.setenv("BUNDLE_SYMBOLIC_ARGS", "0")
    transfer = {"dirn": "true", "host_handle": "out", "dev_ptr": "128", "size": "128"}
    path = plan_file(tmp_path, [{"command": "DataTransfer", "properties": transfer}])
    plan = native.prepare_kernel(path)
    assert plan.get_step_type(0) == "D2H"
    native.launch_jobplan(plan, (torch.empty(128, dtype=H, device="spyre"),))
    with pytest.raises(RuntimeError, match="D2H transfer out of bounds"):
        native.launch_jobplan(plan, (torch.empty(64, dtype=H, device="spyre"),))
    with pytest.raises(RuntimeError, match="D2H tensor-segment lookup out of range"):
        native.launch_jobplan(plan, ())
    monkeypatch.setenv("BUNDLE_SYMBOLIC_ARGS", "1")
    with pytest.raises(RuntimeError, match="D2H dev_ptr must be in program segment"):
        native.prepare_kernel(path)


@pytest.fixture
def kernel(tmp_path):
    bundle = shutil.copytree(SOFTMAX, tmp_path / "softmax")
    return native.prepare_kernel(str(compile_directory(bundle).directory), None, "my_kernel")


def test_launch(kernel):
    rows, columns = 128, 256
    x = torch.randn(rows, columns).to(H)
    card, out = put(x), torch.empty(rows, columns, dtype=H, device="spyre")
    native.launch_jobplan(kernel, (card, out))
    torch.testing.assert_close(get(out), torch.softmax(x, -1), rtol=2e-2, atol=1e-3)
    with native.profile() as profiled:
        native.launch_jobplan(kernel, (card, out))
    assert "my_kernel" in {each.name for each in profiled.of_card().kernels}


def test_launch_with_views_of_other_offsets(kernel):
    """The kernel reads where it was compiled to read, as on the card, and that is said once."""
    rows, columns = 128, 256
    card = put(torch.randn(2 * rows, columns).to(H))
    out = torch.empty(rows, columns, dtype=H, device="spyre")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        native.launch_jobplan(kernel, (card[:rows], out))
        native.launch_jobplan(kernel, (card[:rows], out))
    first = get(out)
    with pytest.warns(UserWarning, match=r"my_kernel.*\(32768, 0\).*\(0, 0\)"):
        native.launch_jobplan(kernel, (card[rows:], out))
    assert torch.equal(get(out), first)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        native.launch_jobplan(kernel, (card[rows:], out))


def test_launch_with_too_few_tensors(kernel):
    with pytest.raises(RuntimeError, match="takes 2 tensors"):
        native.launch_jobplan(kernel, (torch.empty(4, device="spyre"),))
    state = native.get_device_state()
    assert state is native.SpyreDeviceState.Ok


def test_provenance():
    name = "spyre_kernel_v1_mm_aaaabbbbccccdddd"
    assert native.register_kernel_provenance(name, ["1"])
    assert native.register_kernel_provenance(name, ["1"])
    with pytest.warns(UserWarning, match="is not taken"):
        assert not native.register_kernel_provenance(name, ["2"])
    assert native.lookup_kernel_provenance("aaaabbbbccccdddd") == ["1"]
    assert native.lookup_kernel_provenance("bbbbbbbbccccdddd") is None
    counts = native.kernel_provenance_registry_stats()
    assert (counts["hits"], counts["misses"], counts["conflicts"]) == (1, 1, 1)


def test_memory_reaches_torchs_profiler():
    before = torch.empty(1024, device="spyre")
    activities = [torch.profiler.ProfilerActivity.CPU]
    with torch.profiler.profile(activities=activities, profile_memory=True, record_shapes=True,
                                with_stack=True) as prof:  # fmt: skip
        del before
        torch.empty(64, device="spyre")
    timeline = prof._memory_profile().timeline
    found = [(a.name, size) for _, a, (key, _), size in timeline if key.device.type == "spyre"]
    assert found == [
        ("PREEXISTING", 4096), ("DESTROY", 4096), ("CREATE", 256), ("DESTROY", 256)
    ]  # fmt: skip


def test_unknown_names_say_whose_they_are():
    assert not hasattr(native, "launch_kernel")
    with pytest.raises(ImportError, match=r"simulator \(spyre .*'launch_kernel'.*2026-08-19"):
        from torch_spyre._C import launch_kernel  # noqa: F401
    with pytest.raises(AttributeError, match=r"simulator .*frontend check"):
        _ = native.launch_kernel
