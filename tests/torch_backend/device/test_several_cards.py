"""Several cards, each case in a process that has them."""

from __future__ import annotations

from tests.torch_backend.processes import run

HOST = "    host = torch.arange(24.0).reshape(4, 6)"


def cards(code: str, **environment: str) -> str:
    return run(HOST + code, **{"AIU_WORLD_SIZE": "3", **environment})


def test_tensors_on_each():
    cards("""
    assert torch.spyre.device_count() == torch.accelerator.device_count() == 3
    tensors = [host.to(f"spyre:{k}") for k in range(3)] + [host.to(k) for k in range(3)]
    assert [t.device.index for t in tensors] == [0, 1, 2] * 2
    for t in tensors:
        for found in (t + 1, t.sum(), torch.zeros_like(t), t.clone(), t[1:], t.new_ones(2)):
            assert found.device == t.device
        assert torch.equal((t * 2).cpu(), host * 2)
    assert torch.rand(2, device="spyre:1").device.index == 1
    del tensors, t, found
    torch.spyre.synchronize()
    x = host.to("spyre:2")
    assert [torch.spyre.memory_allocated(k) for k in range(3)] == [0, 0, 512]
    """)


def test_copies_between_them():
    cards("""
    x = host.to("spyre:1")
    for copy in (x.to("spyre:2"), x.t().to("spyre:0").t(), x[:, :].to(2), x.spyre(0)):
        assert torch.equal(copy.cpu(), host)
        assert copy.device.index != 1
    y = torch.zeros(4, 6, device="spyre:2")
    y[1:3].copy_(x[1:3])
    assert torch.equal(y.cpu()[1:3], host[1:3]) and y.cpu().sum() == host[1:3].sum()
    """)


def test_copies_between_them_keep_codes():
    """On the card float16 reaches further up and down than in IEEE's format."""
    cards("""
    large = torch.full((2, 64), 60000.0).half().to("spyre:0") * 4
    assert (large / 4)[0, 0].item() == 60032
    row = torch.zeros(3, 64, dtype=torch.float16, device="spyre:2")[1].copy_(large[0])
    both = torch.zeros(2, 2, 64, dtype=torch.float16, device="spyre:2").copy_(large)
    columns = torch.zeros(64, 2, dtype=torch.float16, device="spyre:1").t().copy_(large)
    for copy in (large.to("spyre:1"), large.t().to("spyre:1").t(), row, both, columns):
        assert torch.equal((copy / 4).cpu().float(), torch.full(copy.shape, 60032.0))
    wide = torch.zeros(2, 64, device="spyre:1").copy_(large)
    assert wide.unique().tolist() == [240128]
    small = torch.full((64,), 2.0**-14).half().to("spyre:0") / 4096
    assert (small.to("spyre:1") * 4096).cpu().unique().item() == 2.0**-14
    numbers = torch.arange(-3, 3)
    for dtype in (torch.int8, torch.int16, torch.int32, torch.int64, torch.bool, torch.uint8):
        there = numbers.to(dtype).to("spyre:0")
        assert torch.equal(there.to("spyre:1").cpu(), numbers.to(dtype))
    """)


def test_compiled_functions_run_where_their_tensors_are():
    cards("""
    f = torch.compile(lambda a, b: (a * 2 + b.sin(), (a - b).sum(1)))
    expected = [t.cpu() for t in f(host.to("spyre"), host.to("spyre"))]
    for current, index in ((0, 1), (1, 0), (2, 2), (0, 0)):
        torch.spyre.set_device(current)
        results = f(host.to(f"spyre:{index}"), host.to(f"spyre:{index}"))
        assert [r.device.index for r in results] == [index] * 2
        assert all(torch.equal(r.cpu(), e) for r, e in zip(results, expected))
    across = torch.compile(lambda a, b: ((a * 2).to(b.device) + b, (a + 1) * a, b * b))
    results = across(host.to("spyre:0"), host.to("spyre:1"))
    assert [r.device.index for r in results] == [1, 0, 1]
    assert [r.cpu().sum().item() for r in results] == [
        (host * 3).sum(), (host * host + host).sum(), (host * host).sum()]
    layer = torch.nn.Linear(6, 2).to("spyre:2")
    torch.compile(layer)(host.to("spyre:2")).sum().backward()
    assert layer.weight.grad.device.index == 2
    """)


def test_cards_are_counted_when_they_are_first_used():
    code = """
    import os
    os.environ["AIU_WORLD_SIZE"] = "2"
    torch.spyre.set_device(1)
    made = [torch.empty(2, device="spyre"), torch.ones(2).to("spyre"),
            torch.tensor([1.0], device="spyre"), torch.ones(2).new_tensor([1.0], device="spyre")]
    assert [m.device.index for m in made] == [1] * 4, made
    """
    run(code)


def test_current_card():
    cards("""
    with torch.spyre.device(2):
        assert torch.spyre.current_device() == torch.accelerator.current_device_index() == 2
        made = [torch.ones(2, device="spyre"), host.to("spyre"), host.to(device="spyre"),
                host.spyre(), torch.tensor([1.0], device="spyre"),
                torch.as_tensor([1.0], device="spyre"),
                torch.nn.Linear(2, 2).to("spyre").weight, torch.randn(2, device="spyre"),
                torch.UntypedStorage(4, device="spyre")]
        assert {m.device.index for m in made} == {2}, [m.device for m in made]
        assert host.to("spyre:1").device.index == 1
        assert torch.spyre.current_stream().device.index == 2
    assert torch.spyre.current_device() == 0
    with torch.accelerator.device_index(1):
        assert torch.empty(1, device="spyre").device.index == 1
    with torch.spyre.device_of(made[0]):
        assert torch.spyre.current_device() == 2
    torch.spyre.set_device("spyre:1")
    assert torch.spyre.current_device() == 1
    import threading
    seen = []
    thread = threading.Thread(target=lambda: seen.append(torch.spyre.current_device()))
    thread.start()
    thread.join()
    assert seen == [0]
    """)


def test_backward():
    cards("""
    x = host.to("spyre:1").requires_grad_()
    y = (x * 2).to("spyre:2")
    (y * 3).sum().backward()
    assert x.grad.device.index == 1
    assert torch.equal(x.grad.cpu(), torch.full_like(host, 6))
    model = torch.nn.Linear(6, 2).to("spyre:2")
    model(x.detach().to("spyre:2")).sum().backward()
    assert model.weight.grad.device.index == 2
    """)


def test_streams_belong_to_their_card():
    cards("""
    a, b = torch.spyre.Stream("spyre:1"), torch.spyre.Stream("spyre:2")
    assert a.stream_id == b.stream_id == 1 and a != b
    with a:
        assert torch.spyre.current_device() == 1
        assert torch.spyre.current_stream() == a
        assert torch.spyre.current_stream("spyre:2") == torch.spyre.default_stream(2)
        with torch.spyre.stream(b):
            assert torch.spyre.current_device() == 2
        assert torch.spyre.current_device() == 1
    assert torch.spyre.current_device() == 0
    import threading
    gate = threading.Event()
    a.flex.add_callback(gate.wait)
    event = a.record_event()
    assert event.device.index == 1 and not event.query()
    threading.Timer(0.05, gate.set).start()
    b.wait_event(event)
    assert event.query()
    torch.spyre.synchronize(1)
    torch.spyre.synchronize()
    """)


def test_mixing_them_is_an_error():
    cards("""
    a, b = host.to("spyre:0"), host.to("spyre:1")
    index = b.long()[0]
    for mix in (lambda: a + b, lambda: a @ b.t(), lambda: torch.cat([a, b]), lambda: a[index]):
        try:
            mix()
        except RuntimeError as error:
            assert "same device" in str(error), error
        else:
            raise AssertionError("no error")
    """)


def test_random_numbers_of_each():
    cards("""
    torch.manual_seed(3)
    states = torch.spyre.get_rng_state_all()
    first = [torch.rand(3, device=f"spyre:{k}").cpu() for k in range(3)]
    torch.spyre.set_rng_state(states[1], 1)
    assert torch.equal(torch.rand(3, device="spyre:1").cpu(), first[1])
    assert not torch.equal(torch.rand(3, device="spyre:2").cpu(), first[2])
    with torch.random.fork_rng(devices=[0, 2], device_type="spyre"):
        torch.rand(3, device="spyre:2")
    torch.spyre.set_rng_state_all(states)
    assert torch.equal(torch.rand(3, device="spyre:2").cpu(), first[2])
    assert torch.Generator("spyre:2").device.index == 2
    """)


def test_load_keeps_the_card():
    cards("""
    import io
    file = io.BytesIO()
    torch.save(host.to("spyre:1"), file)
    for location, index in ((None, 1), ("spyre:2", 2), ("spyre", 0), ({"spyre:1": "spyre:0"}, 0)):
        file.seek(0)
        loaded = torch.load(file, map_location=location)
        assert loaded.device.index == index, (location, loaded.device)
        assert torch.equal(loaded.cpu(), host)
    """)


def test_load_under_a_default_device():
    cards("""
    import io
    torch.set_default_device("spyre")
    for source in (host, host.to("spyre:1"), host.to("spyre:1").half()[1:]):
        file = io.BytesIO()
        torch.save(source, file)
        for location in (None, "spyre", "spyre:2", "cpu"):
            file.seek(0)
            loaded = torch.load(file, map_location=location)
            assert torch.equal(loaded.cpu(), source.cpu())
    x = torch.ones(3, requires_grad=True)
    torch.autograd.backward([(x.masked_fill(x > 3, 2.0).fmod(3) ** 2).sum()])
    assert x.grad.tolist() == [2, 2, 2]
    """)


def test_visible_cards():
    code = """
    assert torch.spyre.device_count() == 2
    assert [torch.spyre.get_device_properties(k).card for k in range(2)] == [2, 0]
    assert host.to("spyre:1").device.index == 1
    """
    cards(code, SPYRE_DEVICES="2,0")


def test_data_parallel_by_hand():
    cards("""
    import copy
    torch.manual_seed(0)
    model = torch.nn.Linear(6, 2)
    replicas = [copy.deepcopy(model).to(f"spyre:{k}") for k in range(2)]
    for replica, part in zip(replicas, host.chunk(2)):
        replica(part.to(replica.weight.device)).sum().backward()
    total = sum(replica.weight.grad.cpu() for replica in replicas)
    model(host).sum().backward()
    assert torch.allclose(total, model.weight.grad)
    """)


def test_a_rank_of_torchrun_begins_with_its_card():
    run(
        """
    import threading
    assert torch.tensor([1.0]).to(torch.float16).device.type == "cpu"
    assert not torch.spyre.is_initialized()
    assert torch.ones(2).to("spyre").device.index == 1
    assert torch.empty(2, device="spyre").device.index == torch.spyre.current_device() == 1
    assert torch.spyre.device_count() == 2
    assert torch.spyre.can_device_access_peer(0, "spyre:1")
    assert not torch.spyre.can_device_access_peer(1, 1)
    seen = []
    thread = threading.Thread(target=lambda: seen.append(torch.spyre.current_device()))
    thread.start()
    thread.join()
    assert seen == [1]
    """,
        LOCAL_RANK="1",
        LOCAL_WORLD_SIZE="2",
    )
