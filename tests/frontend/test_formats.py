"""Enums, dtypes and layouts of the extension: texts and numbers that torch-spyre writes down."""

from __future__ import annotations

import warnings

import pytest
import torch

from spyre.dtypes import encode_device
from spyre.frontend import formats
from spyre.frontend.formats import DataFormats, ElementArrangement
from spyre.frontend.kernels import extract_kernel_provenance_key
from spyre.frontend.layouts import FrontendLayout
from spyre.frontend.native_logging import LoggingConfig, LogLevel, make_module


def test_formats_are_numbered_and_named():
    assert [member.name for member in DataFormats][:3] == ["SEN169_FP16", "IEEE_FP32", "INVALID"]
    assert [int(member) for member in DataFormats] == list(range(19))
    assert str(DataFormats.SEN169_FP16) == "DataFormats.SEN169_FP16"
    assert repr(DataFormats.SEN169_FP16) == "<DataFormats.SEN169_FP16: 0>"
    assert DataFormats.__module__ == ElementArrangement.__module__ == "torch_spyre._C"
    assert DataFormats(15) is DataFormats.IEEE_FP16


def test_members_equal_themselves_only():
    assert DataFormats.IEEE_FP32 != 1
    assert ElementArrangement.QFP8WT != DataFormats.SENINT2
    assert [1, 2, 3][DataFormats.IEEE_FP32] == 2
    assert len({*DataFormats, *ElementArrangement}) == 25


@pytest.mark.parametrize(
    ("name", "lanes"), [("SEN169_FP16", 64), ("IEEE_FP32", 32), ("INVALID", 0), ("SENINT24", 0)]
)
def test_elements_of_a_stick(name, lanes):
    assert DataFormats[name].elems_per_stick() == lanes


def test_dtypes_of_the_card():
    assert formats.get_device_dtype(torch.bool) is DataFormats.SEN169_FP16
    assert formats.get_device_dtype(torch.float64) is DataFormats.INVALID
    assert formats.get_elem_in_stick(torch.float64) == 0
    assert formats.get_elem_in_stick(torch.float8_e4m3fn) == 128
    with pytest.raises(RuntimeError, match="Spyre backend does not support dtype Double"):
        formats.check_dtype(torch.float64)


def test_int64_warns_once(monkeypatch):
    monkeypatch.setattr(formats, "_has_warned", False)
    with pytest.warns(UserWarning, match="Backend Spyre does not support int64"):
        formats.get_device_dtype(torch.int64)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        formats.get_device_dtype(torch.int64)
    torch.set_warn_always(True)
    try:
        with pytest.warns(UserWarning, match="Backend Spyre does not support int64"):
            formats.get_device_dtype(torch.int64)
    finally:
        torch.set_warn_always(False)


def test_constants_are_codes():
    assert formats.encode_constant(1.5, DataFormats.IEEE_FP32) == 0x3FC00000
    assert formats.encode_constant(1.0, DataFormats.SEN169_FP16) == encode_device(
        torch.ones(1).numpy(), "SEN169_FP16"
    )


def test_layout_from_host_sizes():
    layout = FrontendLayout([64, 128], torch.float16)
    assert layout.device_size == [2, 64, 64]
    assert layout.stride_map == [64, 128, 1]
    assert (
        str(layout)
        == repr(layout)
        == (
            "SpyreTensorLayout(device_size=[2, 64, 64], stride_map =[64, 128, 1], "
            "device_dtype=DataFormats.SEN169_FP16)"
        )
    )


def test_stick_count_is_not_clamped():
    assert FrontendLayout([4, 3], torch.float16).stride_map == [64, 3, 1]


def test_layout_of_a_dim_order():
    transposed = FrontendLayout([8, 128], [128, 1], torch.float16, [1, 0])
    assert (transposed.device_size, transposed.stride_map) == ([1, 128, 64], [8192, 1, 128])
    sparse = FrontendLayout([8, 4], [4, 1], torch.float32, [0, 1, -1])
    assert sparse.device_size[-1] == 32
    assert sparse.stride_map[-1] == -1


def test_layouts_are_rebuilt_from_device_extents():
    arrangement = ElementArrangement.QFP8CH
    layout = FrontendLayout([1, 4, 128], [128, 128, 1], DataFormats.SEN143_FP8, arrangement)
    assert layout.element_arrangement is arrangement
    assert layout == layout.with_element_arrangement(arrangement)
    assert layout != layout.with_element_arrangement(ElementArrangement.STANDARD)
    assert str(layout).endswith("element_arrangement=ElementArrangement.QFP8CH)")
    state = layout.__getstate__()
    assert state[0] == 3
    again = FrontendLayout.__new__(FrontendLayout)
    again.__setstate__((2, *state[1:4]))
    assert again.element_arrangement is ElementArrangement.STANDARD


@pytest.mark.parametrize(
    ("state", "text"),
    [
        ((3, [1], [1]), "Invalid SpyreTensorLayout pickle v3: wrong tuple size"),
        ((9,), "Unsupported SpyreTensorLayout pickle version: 9"),
    ],
)
def test_pickles_of_other_versions(state, text):
    with pytest.raises(ValueError, match=text):
        FrontendLayout.__new__(FrontendLayout).__setstate__(state)


@pytest.mark.parametrize(
    ("arguments", "error", "text"),
    [
        (
            ([4, 4], [4, 1], torch.float16, [0]),
            RuntimeError,
            "Incompatible host_size and dim_order",
        ),
        (([1] * 8, torch.float16), RuntimeError, "Unsupported tensor rank: 8"),
        (([1] * 7, torch.float16), RuntimeError, "7-element dim_order"),
        (([4, 4], "float16"), TypeError, "incompatible constructor arguments"),
    ],
)
def test_wrong_layouts(arguments, error, text):
    with pytest.raises(error, match=text):
        FrontendLayout(*arguments)


def test_extents_of_zero():
    assert FrontendLayout([0, 64], torch.float16).device_size == [1, 0, 64]


def test_levels_go_up_the_dots(capsys):
    config = LoggingConfig()
    config.initialize_from_python([("a", 40), ("a.b", 10)])
    assert config.get_log_level("a.b.c") is LogLevel.DEBUG
    assert config.get_log_level("a.c") is LogLevel.ERROR
    assert config.get_log_level("x") is LogLevel.WARNING
    config.write("a.b", LogLevel.DEBUG, "seen")
    config.write("a", LogLevel.WARNING, "hidden")
    assert capsys.readouterr().err.startswith("[DEBUG] [a.b] ")


def test_lines_go_to_a_file(tmp_path):
    config = LoggingConfig()
    config.set_log_file(str(tmp_path / "log"))
    config.write("x", LogLevel.ERROR, "text")
    config.set_log_file("")
    assert (tmp_path / "log").read_text().endswith("text\n")


def test_logging_module_has_its_names():
    module = make_module()
    assert module.string_to_log_level("INFO") is module.INFO is LogLevel.INFO
    assert module.string_to_log_level("info") is LogLevel.NOTSET
    assert module.log_level_to_string(LogLevel.ERROR) == "ERROR"


@pytest.mark.parametrize(
    ("name", "key"),
    [
        ("spyre_kernel_v1_fused_mm_aaaabbbbccccdddd", "aaaabbbbccccdddd"),
        ("spyre_kernel_v1_fused_mm_aaaabbbbccccdddd#12", "aaaabbbbccccdddd"),
        ("spyre_kernel_v1_fused_mm_aaaabbbbccccdddd#", None),
        ("spyre_kernel_v1__aaaabbbbccccdddd", None),
        ("spyre_kernel_v1_mm_aaaabbbbccccddd1", None),
    ],
)
def test_keys_of_kernel_names(name, key):
    assert extract_kernel_provenance_key(name) == key
