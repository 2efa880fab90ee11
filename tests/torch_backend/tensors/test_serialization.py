"""Pickle, ``torch.save`` and ``torch.load``."""

from __future__ import annotations

import copy
import io
import pickle

import pytest
import torch

from tests.torch_backend.processes import run_bare


def saved(value, **options):
    file = io.BytesIO()
    torch.save(value, file, **options)
    file.seek(0)
    return file


@pytest.mark.parametrize("zipped", [True, False])
def test_save_and_load(card, host, zipped):
    loaded = torch.load(saved({"x": card, "v": card[1:3]}, _use_new_zipfile_serialization=zipped))
    assert loaded["x"].device == torch.device("spyre:0")
    assert torch.equal(loaded["x"].cpu(), host)
    assert torch.equal(loaded["v"].cpu(), host[1:3])
    loaded["v"].zero_()
    assert loaded["x"].cpu()[1:3].count_nonzero() == 0
    assert torch.equal(card.cpu(), host)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.bool, torch.int64])
def test_dtypes(host, dtype):
    x = host.to(dtype).to("spyre")
    assert torch.equal(torch.load(saved(x)).cpu(), host.to(dtype))
    assert torch.equal(torch.load(saved(x), map_location="cpu"), host.to(dtype))


def test_map_location(card, host):
    for location in ("cpu", torch.device("cpu"), {"spyre:0": "cpu"}, lambda s, where: s.cpu()):
        loaded = torch.load(saved(card), map_location=location, weights_only=False)
        assert loaded.device.type == "cpu"
        assert torch.equal(loaded, host)
    for location in ("spyre", "spyre:0", torch.device("spyre")):
        loaded = torch.load(saved(host), map_location=location)
        assert loaded.device == torch.device("spyre:0")
        assert torch.equal(loaded.cpu(), host)


def test_missing_card_is_named(card):
    with pytest.raises(RuntimeError, match=r"device 3 but torch.spyre.device_count\(\) is 1"):
        torch.load(saved(card), map_location="spyre:3")


def test_memory_mapped_files(host, tmp_path):
    path = tmp_path / "x.pt"
    torch.save(host, path)
    assert torch.equal(torch.load(path, mmap=True, map_location="spyre").cpu(), host)


@pytest.mark.parametrize("protocol", [2, 4, 5])
def test_pickle(card, host, protocol):
    loaded = pickle.loads(pickle.dumps(card, protocol))
    assert loaded.device == torch.device("spyre:0")
    assert torch.equal(loaded.cpu(), host)
    parameter = pickle.loads(pickle.dumps(torch.nn.Parameter(card), protocol))
    assert type(parameter) is torch.nn.Parameter
    assert parameter.device.type == "spyre"


def test_views_and_strides(card, host):
    loaded = torch.load(saved(card.t()))
    assert loaded.stride() == (1, 6)
    assert torch.equal(loaded.cpu(), host.t())


def test_files_can_be_read_without_the_device(card, tmp_path):
    path = tmp_path / "x.pt"
    torch.save(card, path)
    code = f"""
        import torch
        x = torch.load({str(path)!r}, map_location="cpu")
        assert x.sum().item() == {card.sum().item()}
        try:
            torch.load({str(path)!r})
        except RuntimeError as error:
            print("refused")
    """
    assert "refused" in run_bare(code)


def test_state_dict():
    model = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.BatchNorm1d(4)).to("spyre")
    state = torch.load(saved(model.state_dict()))
    assert {value.device.type for value in state.values()} == {"spyre"}
    for options in ({}, {"assign": True}):
        other = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.BatchNorm1d(4)).to("spyre")
        other.load_state_dict(copy.deepcopy(state), **options)
        assert torch.equal(other[0].weight.cpu(), model[0].weight.cpu())
        assert other[0].weight.device.type == "spyre"
    on_host = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.BatchNorm1d(4))
    on_host.load_state_dict(state)
    assert on_host[0].weight.device.type == "cpu"
    assert torch.equal(on_host[0].weight, model[0].weight.cpu())


def test_optimizer_state():
    model = torch.nn.Linear(3, 2).to("spyre")
    optimizer = torch.optim.Adam(model.parameters())
    model(torch.ones(1, 3, device="spyre")).sum().backward()
    optimizer.step()
    other = torch.optim.Adam(model.parameters())
    other.load_state_dict(torch.load(saved(optimizer.state_dict())))
    for parameter in model.parameters():
        assert torch.equal(
            other.state[parameter]["exp_avg"].cpu(), optimizer.state[parameter]["exp_avg"].cpu()
        )
        assert other.state[parameter]["exp_avg"].device.type == "spyre"


def test_layouts_can_be_pickled(card):
    layout = card.device_tensor_layout()
    assert pickle.loads(pickle.dumps(layout)) == layout
