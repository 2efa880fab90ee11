"""``torch.spyre``: cards, properties, and the same through ``torch.accelerator``."""

from __future__ import annotations

import importlib
import sys
from types import ModuleType

import pytest
import torch

from spyre.errors import LaunchError
from spyre.hw.spec import CORES, LX_BYTES, STICK_BYTES
from spyre.torch_backend.device import cards
from spyre.torch_backend.registration.device_module import EXPORTS
from tests.torch_backend.processes import run


def test_tensor_is_plain_and_on_the_card(host):
    x = host.to("spyre")
    assert type(x) is torch.Tensor
    assert x.device == torch.device("spyre:0")
    assert x.is_spyre
    assert torch.equal(x.cpu(), host)
    assert torch.equal(host.spyre().cpu(), host)
    assert x.get_device() == 0


def test_module_can_be_imported():
    assert importlib.import_module("torch.spyre") is torch.spyre
    assert torch.get_device_module("spyre") is torch.spyre
    assert torch.utils.backend_registration._get_custom_mod_func("device_count")() == 1


@pytest.mark.parametrize("name", [name for names in EXPORTS.values() for name in names])
def test_every_name_is_there(name):
    assert getattr(torch.spyre, name) is not None
    assert name in dir(torch.spyre)


def test_other_names_are_not():
    with pytest.raises(AttributeError, match="no attribute 'frobnicate'"):
        _ = torch.spyre.frobnicate
    assert not hasattr(torch.spyre, "nccl")


def test_counts():
    assert torch.spyre.device_count() == 1
    assert torch.spyre.is_available()
    assert torch.spyre.current_device() == 0
    torch.spyre.init()
    assert torch.spyre.is_initialized()


def test_set_device_takes_every_form():
    for device in (0, "spyre", "spyre:0", torch.device("spyre", 0), -1):
        torch.spyre.set_device(device)
        assert torch.spyre.current_device() == 0
    with pytest.raises(LaunchError, match="no Spyre device 1"):
        torch.spyre.set_device(1)
    with pytest.raises(ValueError, match="Expected a spyre device, but got: cpu"):
        torch.spyre.set_device("cpu")


def test_device_context():
    with torch.spyre.device("spyre:0"), torch.spyre.device(None), torch.spyre.device(-1):
        assert torch.spyre.current_device() == 0
    with torch.spyre.device_of(torch.ones(1, device="spyre")), torch.spyre.device_of(torch.ones(1)):
        assert torch.spyre.current_device() == 0


def test_missing_card_is_a_runtime_error():
    with pytest.raises(RuntimeError, match="there is no Spyre device 3"):
        torch.empty(2, device="spyre:3")
    with pytest.raises(RuntimeError, match="there is no Spyre device 3"):
        torch.spyre.synchronize(3)


def test_properties():
    found = torch.spyre.get_device_properties()
    assert (found.multi_processor_count, found.lx_bytes) == (CORES, LX_BYTES)
    assert found.stick_bytes == STICK_BYTES
    assert found.total_memory == torch.spyre.mem_get_info()[1]
    assert found.name == torch.spyre.get_device_name("spyre:0")
    assert found.mode == "VF"
    assert torch.float16 in torch.spyre.get_device_capability()["supported_dtypes"]
    assert torch.float64 not in torch.spyre.get_device_capability()["supported_dtypes"]


def test_usable_cores(monkeypatch):
    monkeypatch.setenv("SENCORES", "8")
    assert torch.spyre.get_device_properties().usable_cores == 8
    for wrong in ("0", "33", "many"):
        monkeypatch.setenv("SENCORES", wrong)
        with pytest.raises(LaunchError, match="SPY902"):
            torch.spyre.get_device_properties()


def test_accelerator():
    accelerator = torch.accelerator
    assert accelerator.current_accelerator() == torch.device("spyre")
    assert accelerator.current_accelerator(check_available=True) == torch.device("spyre")
    assert accelerator.is_available()
    assert accelerator.device_count() == 1
    assert accelerator.current_device_index() == 0
    accelerator.set_device_index(0)
    with accelerator.device_index(0):
        assert accelerator.current_device_index() == 0
    accelerator.synchronize()
    accelerator.synchronize("spyre:0")
    assert torch.device(0) == torch.device("spyre:0")
    accelerator.get_device_capability.cache_clear()
    assert torch.bfloat16 in accelerator.get_device_capability()["supported_dtypes"]


def test_default_device():
    with torch.device("spyre"):
        assert torch.zeros(3).device.type == "spyre"
        assert torch.nn.Linear(2, 2).weight.device.type == "spyre"
    torch.set_default_device("spyre")
    try:
        assert torch.ones(2).device == torch.device("spyre:0")
    finally:
        torch.set_default_device(None)


def test_nothing_is_made_before_it_is_needed():
    code = """
        assert not torch.spyre.is_initialized()
        torch.manual_seed(3)
        torch.spyre.device_count(), torch.accelerator.is_available(), torch.spyre.synchronize()
        assert not torch.spyre.is_initialized()
        torch.ones(2, device="spyre")
        assert torch.spyre.is_initialized()
    """
    run(code)


def test_a_thread_may_ask_while_another_imports_the_runtime(monkeypatch):
    """The module is there already, and has nothing yet."""
    name = "spyre.runtime.flex.device"
    monkeypatch.setitem(sys.modules, name, ModuleType(name))
    assert not cards.is_initialized()
    assert cards.made_cards() == []


FORK = """
    import os
    x = torch.ones(2, device="spyre")
    child = os.fork()
    if child == 0:
        assert torch.spyre._is_in_bad_fork()
        torch.manual_seed(1)
        make = lambda: torch.ones(2, device="spyre")
        for use in (lambda: x.cpu(), make, torch.spyre.synchronize):
            try:
                use()
            except RuntimeError as error:
                assert "forked subprocess" in str(error), error
                assert "spawn" in str(error)
            else:
                os._exit(2)
        os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert x.sum().item() == 2
"""


def test_forked_child_is_refused():
    run(FORK)


def test_forked_child_of_a_parent_without_cards_may_use_its_own():
    code = """
        import os
        child = os.fork()
        if child == 0:
            assert torch.ones(2, device="spyre").sum().item() == 2
            os._exit(0)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    """
    run(code)


def test_data_loader_with_workers():
    code = """
        x = torch.ones(2, device="spyre")
        from torch.utils.data import DataLoader, TensorDataset
        data = TensorDataset(torch.arange(6.0))
        loader = DataLoader(data, 2, num_workers=1, pin_memory=True, multiprocessing_context="fork")
        seen = [batch.is_pinned() and batch.to("spyre", non_blocking=True) for (batch,) in loader]
        assert torch.cat(seen).tolist() == [0, 1, 2, 3, 4, 5]
    """
    run(code)
