"""Names and signatures that torch-spyre, or code for its extension, calls."""

from __future__ import annotations

import enum
import inspect

import pytest

from spyre.frontend.extension import EXPORTS
from spyre.frontend.native_logging import make_module

CALLS = {
    "start_runtime": "",
    "free_runtime": "",
    "get_device_state": "",
    "device_count": "",
    "set_device": "idx",
    "current_device": "",
    "get_stream_from_pool": "device, priority=0",
    "current_stream": "device",
    "default_stream": "device",
    "set_current_stream": "stream",
    "host_compute_stream": "device",
    "host_compute_stream_by_id": "id, device",
    "synchronize": "device=None",
    "stream_get_error": "stream",
    "stream_get_error_string": "error",
    "_get_default_generator": "device=-1",
    "manual_seed": "seed, device=-1",
    "manual_seed_all": "seed",
    "get_rng_state": "device=-1",
    "set_rng_state": "new_state, device=-1",
    "initial_seed": "device=-1",
    "_spyre_get_allocator_stats": "device",
    "copy_tensor": "self, dst, non_blocking=False",
    "fill_tensor": "self, value",
    "prepare_kernel": "spyrecode_dir, stream=None, profiler_name=None",
    "launch_jobplan": "job_plan, args",
    "register_kernel_provenance": "event_base_name, debug_handle_ids",
    "lookup_kernel_provenance": "key",
    "extract_kernel_provenance_key": "event_name",
    "kernel_provenance_registry_stats": "",
    "get_downcast_warning": "",
}
"""Parameters that may be given by keyword, with their defaults, by function."""
POSITIONAL = {
    "encode_constant": 2,
    "get_device_dtype": 1,
    "get_elem_in_stick": 1,
    "set_downcast_warning": 1,
    "spyre_empty_with_layout": 4,
    "empty_with_layout": 6,
    "as_strided_with_layout": 5,
    "reinterpret_tensor": 4,
    "reinterpret_tensor_with_layout": 5,
    "get_spyre_tensor_layout": 1,
    "set_spyre_tensor_layout": 2,
    "createSpyreCCLBackend": 4,
    "_spyre_reset_accumulated_stats": 1,
    "_spyre_reset_peak_stats": 1,
}
"""Number of arguments, by function whose arguments have no names in the extension."""
CLASSES = {
    "DataFormats": "elems_per_stick",
    "ElementArrangement": "",
    "SpyreStreamError": "",
    "SpyreDeviceState": "",
    "SpyreTensorLayout": "device_size stride_map device_dtype element_arrangement elems_per_stick "
    "with_element_arrangement",
    "JobPlan": "num_steps job_allocation_size get_step_type get_step_pipeline_barrier "
    "get_step_name",
    "_SpyreStreamBase": "synchronize query device id priority",
    "NativePermutationLayoutSolver": "",
}
"""Attributes of instances, by name of the class."""
MORE = {"profile", "trace", "counting", "sanitizer_findings", "reset"}
"""Names that the simulator adds."""
LOGGING = {
    "log_level_to_string": "level",
    "string_to_log_level": "level_str",
    "log_message": "component, level, message",
    "emit_test_log": "component, level, message",
}
CONFIG = {
    "instance": "",
    "initialize_from_python": "self, config",
    "get_log_level": "self, component",
    "set_log_level": "self, component, level",
    "is_enabled": "self, component, level",
    "get_components": "self",
    "set_log_file": "self, path",
}


def parameters(function):
    """Return the text of a function's parameters, without annotations."""
    parts = inspect.signature(function).parameters.values()
    return ", ".join(str(part.replace(annotation=part.empty)) for part in parts)


def test_nothing_else_is_there():
    constants = {"AIUPTI_ACTIVITY_NAME_MAX_BYTES"}
    assert {*EXPORTS} == {*CALLS, *POSITIONAL, *CLASSES, *MORE, *constants}
    assert EXPORTS["AIUPTI_ACTIVITY_NAME_MAX_BYTES"] >= 70


@pytest.mark.parametrize("name", CALLS)
def test_calls(name):
    assert parameters(EXPORTS[name]) == CALLS[name]


@pytest.mark.parametrize("name", POSITIONAL)
def test_positional_calls(name):
    inspect.signature(EXPORTS[name]).bind(*range(POSITIONAL[name]))


@pytest.mark.parametrize("name", CLASSES)
def test_classes(name):
    found = EXPORTS[name]
    assert (found.__module__, found.__name__) == ("torch_spyre._C", name)
    # of an enum, its members have the methods
    assert all(hasattr(found, member) for member in CLASSES[name].split())


def test_steps_are_named_by_index():
    for name in ("get_step_type", "get_step_pipeline_barrier", "get_step_name"):
        assert parameters(getattr(EXPORTS["JobPlan"], name)) == "self, idx"


@pytest.mark.parametrize(
    ("name", "members"),
    [
        ("ElementArrangement", "STANDARD DL16_TO_FP32 QFP8CH EXX2 FP32_TO_DL16 QFP8WT"),
        ("SpyreStreamError", "Success Shutdown"),
        ("SpyreDeviceState", "Ok NotInitialized StreamError"),
        (
            "DataFormats",
            "SEN169_FP16 IEEE_FP32 INVALID SEN143_FP8 SEN152_FP8 SEN153_FP9 SENINT2 SENINT4 "
            "SENINT8 SENINT16 SENINT24 IEEE_INT64 IEEE_INT32 SENUINT32 SENUINT2 IEEE_FP16 BOOL "
            "BFLOAT16 SEN18F_FP24",
        ),
    ],
)
def test_members(name, members):
    kind = EXPORTS[name]
    assert issubclass(kind, enum.Enum)
    assert not issubclass(kind, int)
    assert [member.name for member in kind] == members.split()
    for number, member in enumerate(kind):
        assert (int(member), member.value, kind(number)) == (number, number, member)
        assert str(member) == f"{name}.{member.name}"
        assert repr(member) == f"<{name}.{member.name}: {number}>"


def test_logging():
    module = make_module()
    assert {name: parameters(getattr(module, name)) for name in LOGGING} == LOGGING
    assert {name: parameters(getattr(module.LoggingConfig, name)) for name in CONFIG} == CONFIG
    levels = {member.name: int(member) for member in module.LogLevel}
    assert levels == {
        "NOTSET": 0, "DEBUG": 10, "INFO": 20, "WARNING": 30, "ERROR": 40, "CRITICAL": 50
    }  # fmt: skip
