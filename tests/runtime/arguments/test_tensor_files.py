"""Tensor files: written tensors are read back, and errors name wrong tensors."""

from __future__ import annotations

import io
import resource
import zipfile

import numpy as np
import pytest

from spyre.dtypes import HOST_DTYPES, decode_dl16, encode_dl16
from spyre.errors import LaunchError, UnsupportedError
from spyre.runtime.arguments.host_tensor import (
    HostTensor,
    TensorSpec,
    conform_tensor,
    load_tensors,
    parse_tensor_spec,
    random_tensor,
    save_tensors,
)

DTYPES = [n for n in HOST_DTYPES if not n.startswith("q")]
BITS = [n for n in DTYPES if HOST_DTYPES[n].holds_bits]


def assert_same(a: HostTensor, b: HostTensor):
    assert (a.dtype_name, a.shape) == (b.dtype_name, b.shape)
    np.testing.assert_array_equal(a.to_array(), b.to_array())


class TestHostTensor:
    def test_strides_and_offset(self):
        storage = np.arange(20, dtype=np.float32)
        tensor = HostTensor("x", "float32", (3, 2), (1, 5), 4, storage)
        assert tensor.to_array().tolist() == [[4, 9], [5, 10], [6, 11]]

    def test_from_array(self):
        array = np.arange(6, dtype=np.int64).reshape(2, 3).T
        tensor = HostTensor.from_array("x", array)
        assert (tensor.dtype_name, tensor.shape, tensor.strides) == ("int64", (3, 2), (2, 1))
        np.testing.assert_array_equal(tensor.to_array(), array)

    def test_values_of_bit_patterns(self):
        tensor = HostTensor.from_array("x", np.array([0x3FC0], np.uint16), "bfloat16")
        assert tensor.to_values().tolist() == [1.5]

    @pytest.mark.parametrize(
        ("array", "name"),
        [
            (np.zeros(2, np.complex64), None),
            (np.zeros(2, np.float32), "float16"),
            (np.zeros(2, np.float16), "bfloat16"),
            (np.array(["a"]), None),
        ],
    )
    def test_impossible_storage(self, array, name):
        with pytest.raises(LaunchError, match="SPY334"):
            HostTensor.from_array("x", array, name)


class TestRandom:
    @pytest.mark.parametrize("dtype", DTYPES)
    def test_reproducible(self, dtype):
        assert_same(random_tensor((4, 5), dtype, 7), random_tensor((4, 5), dtype, 7))
        if dtype != "bool":
            other = random_tensor((4, 5), dtype, 8).to_array()
            assert (random_tensor((4, 5), dtype, 7).to_array() != other).any()

    @pytest.mark.parametrize("dtype", [n for n in DTYPES if "float" in n])
    def test_floats_are_exact_in_dl16(self, dtype):
        values = random_tensor((5000,), dtype, 0).to_values()
        np.testing.assert_array_equal(decode_dl16(encode_dl16(values)), values)
        assert 0.9 < values.std() < 1.1

    def test_integers_are_small(self):
        values = random_tensor((1000,), "int64", 0).to_values()
        assert (values.min(), values.max()) == (0, 7)

    def test_unsupported(self):
        with pytest.raises(UnsupportedError, match="complex64"):
            random_tensor((1,), "complex64", 0)


class TestShapeArgument:
    @pytest.mark.parametrize(
        ("text", "shape", "dtype"),
        [
            ("10x512@fp16", (10, 512), "float16"),
            ("64", (64,), "float16"),
            ("2x3x4@bf16", (2, 3, 4), "bfloat16"),
            ("7@torch.int64", (7,), "int64"),
            ("1x1@i32", (1, 1), "int32"),
            ("scalar@fp32", (), "float32"),
            ("0x64@bool", (0, 64), "bool"),
        ],
    )
    def test_parse(self, text, shape, dtype):
        spec = parse_tensor_spec(text, "x")
        assert spec == TensorSpec("x", shape, dtype)
        assert parse_tensor_spec(str(spec), "x") == spec

    @pytest.mark.parametrize("text", ["", "axb@fp16", "10,512", "10x@fp16", "-1x4", "1.5"])
    def test_unreadable(self, text):
        with pytest.raises(LaunchError, match="SPY337"):
            parse_tensor_spec(text)

    def test_unknown_dtype(self):
        with pytest.raises(UnsupportedError, match="fp17"):
            parse_tensor_spec("4@fp17")


def npy_header(shape):
    stream = io.BytesIO()
    header = {"descr": "<f2", "fortran_order": False, "shape": shape}
    np.lib.format.write_array_header_1_0(stream, header)
    return stream.getvalue()


def write_member(file, content):
    """A .npy file, or the same as the member of an .npz file."""
    if file.suffix == ".npy":
        file.write_bytes(content)
        return
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("x.npy", content)


class TestNumpyFiles:
    @pytest.mark.parametrize("dtype", [n for n in DTYPES if n not in BITS])
    def test_npy(self, tmp_path, dtype):
        tensor = random_tensor((3, 4), dtype, 1)
        save_tensors(tmp_path / "a.npy", [tensor])
        (found,) = load_tensors(tmp_path / "a.npy")
        assert found.name == "a"
        assert_same(found, tensor)

    @pytest.mark.parametrize("dtype", BITS)
    def test_npy_holds_numbers_of_dtypes_numpy_lacks(self, tmp_path, dtype):
        tensor = random_tensor((3, 4), dtype, 1)
        save_tensors(tmp_path / "a.npy", [tensor])
        (found,) = load_tensors(tmp_path / "a.npy")
        assert found.dtype_name == "float32"
        assert_same(conform_tensor(found, tensor.spec), tensor)

    def test_npz_in_order_and_by_key(self, tmp_path):
        tensors = [random_tensor((n,), "float16", n, name) for n, name in ((3, "file"), (2, "a"))]
        save_tensors(tmp_path / "t.npz", tensors)
        found = load_tensors(tmp_path / "t.npz")
        assert [t.name for t in found] == ["file", "a"]
        for a, b in zip(found, tensors, strict=True):
            assert_same(a, b)
        (one,) = load_tensors(f"{tmp_path}/t.npz:a")
        assert_same(one, tensors[1])

    def test_numpy_itself_reads_our_npz(self, tmp_path):
        save_tensors(tmp_path / "t.npz", [random_tensor((3,), "int64", 0, "x")])
        assert np.load(tmp_path / "t.npz")["x"].shape == (3,)

    def test_unknown_key(self, tmp_path):
        np.savez(tmp_path / "t.npz", a=np.zeros(1))
        with pytest.raises(LaunchError, match="has no array 'b'") as caught:
            load_tensors(f"{tmp_path}/t.npz:b")
        assert caught.value.code == "SPY332"

    def test_pickles_are_refused(self, tmp_path):
        np.save(tmp_path / "o.npy", np.array([{}], dtype=object), allow_pickle=True)
        np.savez(tmp_path / "o.npz", a=np.array([None], dtype=object))
        for name in ("o.npy", "o.npz"):
            with pytest.raises(LaunchError, match="SPY335"):
                load_tensors(tmp_path / name)

    @pytest.mark.parametrize("name", ["x.npy", "x.npz"])
    def test_damaged(self, tmp_path, name):
        save_tensors(tmp_path / name, [random_tensor((100,), "float32", 0)])
        data = (tmp_path / name).read_bytes()
        (tmp_path / name).write_bytes(data[: len(data) // 2])
        with pytest.raises(LaunchError, match="SPY330"):
            load_tensors(tmp_path / name)

    @pytest.mark.parametrize("shape", [(2**60,), (2**70,), (-1,), (2**32, 2**32), (10**6,)])
    @pytest.mark.parametrize("name", ["x.npy", "x.npz"])
    def test_headers_that_promise_more_than_follows(self, tmp_path, shape, name):
        write_member(tmp_path / name, npy_header(shape) + b"xx")
        with pytest.raises(LaunchError, match="SPY330"):
            load_tensors(tmp_path / name)

    @pytest.mark.parametrize(
        "content", [b"", b"\x93NUMPY", b"\x93NUMPY\x01\x00\x10\x00{((((((((((((((\n", b"abc" * 40]
    )
    @pytest.mark.parametrize("name", ["x.npy", "x.npz"])
    def test_damaged_headers(self, tmp_path, content, name):
        write_member(tmp_path / name, content)
        with pytest.raises(LaunchError, match="SPY330"):
            load_tensors(tmp_path / name)

    @pytest.mark.parametrize(
        ("offset", "value"),
        [(6, 1), (8, 99), (100, 0xFF)],
        ids=["encrypted", "method of compression", "deflated bytes"],
    )
    def test_damaged_members(self, tmp_path, offset, value):
        content = np.random.default_rng(0).bytes(2000)
        write_member(tmp_path / "x.npz", npy_header((1000,)) + content)
        data = bytearray((tmp_path / "x.npz").read_bytes())
        data[offset] ^= value
        if offset < 30:  # the directory at the end says it again
            data[data.find(b"PK\x01\x02") + offset + 2] ^= value
        (tmp_path / "x.npz").write_bytes(data)
        with pytest.raises(LaunchError, match="SPY330"):
            load_tensors(tmp_path / "x.npz")

    def test_nothing_is_unpacked_that_is_refused_by_its_header(self, tmp_path):
        """Its content is damaged, which would show."""
        write_member(tmp_path / "x.npz", npy_header((2**20,)) + bytes(2**21))
        data = bytearray((tmp_path / "x.npz").read_bytes())
        data[1000:1100] = b"\xff" * 100
        (tmp_path / "x.npz").write_bytes(data)

        def refuse(found):
            raise AssertionError(*map(str, found))

        with pytest.raises(AssertionError, match="1048576@float16"):
            load_tensors(tmp_path / "x.npz", check=refuse)
        with pytest.raises(LaunchError, match="SPY330"):
            load_tensors(tmp_path / "x.npz")

    def test_empty_and_column_major(self, tmp_path):
        np.savez(tmp_path / "t.npz", e=np.zeros((0, 3)), f=np.arange(6.0).reshape(2, 3).T)
        empty, columns = load_tensors(tmp_path / "t.npz")
        assert empty.shape == (0, 3)
        assert columns.to_array().tolist() == [[0, 3], [1, 4], [2, 5]]

    def test_same_name_twice(self, tmp_path):
        tensor = random_tensor((1,), "float16", 0, "x")
        with pytest.raises(LaunchError, match="SPY336"):
            save_tensors(tmp_path / "t.npz", [tensor, tensor])


class TestRawFiles:
    @pytest.mark.parametrize("dtype", DTYPES)
    def test_round_trip(self, tmp_path, dtype):
        tensor = random_tensor((3, 4), dtype, 1, "x")
        save_tensors(tmp_path / "a.bin", [tensor])
        (found,) = load_tensors(tmp_path / "a.bin", [tensor.spec])
        assert found.name == "x"
        assert_same(found, tensor)

    def test_wrong_size(self, tmp_path):
        (tmp_path / "a.bin").write_bytes(bytes(10))
        with pytest.raises(LaunchError, match="SPY333") as caught:
            load_tensors(tmp_path / "a.bin", [parse_tensor_spec("2x3@fp16")])
        assert caught.value.finding.expected == "12 bytes for 2x3@float16"
        assert caught.value.finding.found == "10 bytes"

    def test_needs_a_spec(self, tmp_path):
        (tmp_path / "a.bin").write_bytes(bytes(10))
        with pytest.raises(LaunchError, match="SPY332"):
            load_tensors(tmp_path / "a.bin")


class TestTorchFiles:
    @pytest.fixture(autouse=True)
    def torch(self):
        return pytest.importorskip("torch")

    @pytest.mark.parametrize("dtype", DTYPES)
    def test_round_trip(self, tmp_path, dtype):
        tensors = [random_tensor((3, 4), dtype, seed) for seed in (1, 2)]
        save_tensors(tmp_path / "one.pt", tensors[:1])
        save_tensors(tmp_path / "two.pt", tensors)
        assert_same(*load_tensors(tmp_path / "one.pt"), tensors[0])
        for a, b in zip(load_tensors(tmp_path / "two.pt"), tensors, strict=True):
            assert_same(a, b)

    def test_numbers_agree_with_torch(self, tmp_path, torch):
        original = torch.randn(5).to(torch.bfloat16)
        torch.save([original, original.to(torch.float8_e4m3fn)], tmp_path / "t.pt")
        wide, narrow = load_tensors(tmp_path / "t.pt")
        np.testing.assert_array_equal(wide.to_values(), original.float().numpy())
        np.testing.assert_array_equal(
            narrow.to_values(), original.to(torch.float8_e4m3fn).float().numpy()
        )

    def test_views_keep_their_strides(self, tmp_path, torch):
        view = torch.arange(24.0).reshape(4, 6)[1:, ::2].T
        torch.save(view, tmp_path / "v.pt")
        (found,) = load_tensors(tmp_path / "v.pt")
        assert (found.shape, found.strides, found.storage_offset) == ((3, 3), (2, 6), 6)
        np.testing.assert_array_equal(found.to_array(), view.numpy())

    def test_containers(self, tmp_path, torch):
        torch.save({"tensors": [torch.ones(2), torch.zeros(3)]}, tmp_path / "d.pt")
        assert [t.name for t in load_tensors(tmp_path / "d.pt")] == ["d[0]", "d[1]"]

    def test_gradients_are_no_obstacle(self, tmp_path, torch):
        torch.save(torch.ones(2, requires_grad=True), tmp_path / "g.pt")
        assert load_tensors(tmp_path / "g.pt")[0].to_array().tolist() == [1.0, 1.0]

    @pytest.mark.parametrize("content", [3, {"a": 1}, [1, 2], "text"])
    def test_no_tensors(self, tmp_path, torch, content):
        torch.save(content, tmp_path / "n.pt")
        with pytest.raises(LaunchError, match="SPY332"):
            load_tensors(tmp_path / "n.pt")

    def test_sparse(self, tmp_path, torch):
        torch.save(torch.eye(3).to_sparse(), tmp_path / "s.pt")
        with pytest.raises(LaunchError, match="SPY332"):
            load_tensors(tmp_path / "s.pt")

    @pytest.mark.parametrize("kind", ["meta", "conj", "neg", "nested"])
    def test_tensors_that_are_no_plain_numbers(self, tmp_path, torch, kind):
        ones = torch.ones(2)
        tensor = {
            "meta": lambda: ones.to("meta"),
            "conj": lambda: ones.to(torch.complex64).conj(),
            "neg": lambda: torch._neg_view(ones),
            "nested": lambda: torch.nested.nested_tensor([ones, ones]),
        }[kind]()
        torch.save(tensor, tmp_path / "t.pt")
        with pytest.raises(LaunchError, match=r"SPY33[25]"):
            load_tensors(tmp_path / "t.pt")

    def test_damaged_bytes_raise_only_launch_errors(self, tmp_path, torch):
        torch.save(torch.ones(10), tmp_path / "x.pt")
        content = (tmp_path / "x.pt").read_bytes()
        refused = 0
        for place in range(0, len(content), len(content) // 20):
            damaged = bytearray(content)
            damaged[place] ^= 0x55
            (tmp_path / "x.pt").write_bytes(damaged)
            try:
                load_tensors(tmp_path / "x.pt")
            except LaunchError:
                refused += 1
        assert 0 < refused < 20

    def test_pickles_are_refused(self, tmp_path, torch):
        torch.save([TensorSpec("x", (1,), "float16")], tmp_path / "p.pt")
        with pytest.raises(LaunchError, match="SPY335"):
            load_tensors(tmp_path / "p.pt")

    def test_compressed(self, tmp_path, torch):
        """A compressed file is refused: torch would unpack it before the shape is known."""
        torch.save(torch.zeros(1 << 16), tmp_path / "x.pt")
        with (
            zipfile.ZipFile(tmp_path / "x.pt") as plain,
            zipfile.ZipFile(tmp_path / "y.pt", "w", zipfile.ZIP_DEFLATED) as packed,
        ):
            for name in plain.namelist():
                packed.writestr(name, plain.read(name))
        with pytest.raises(LaunchError, match=r"SPY330.*is compressed"):
            load_tensors(tmp_path / "y.pt")

    def test_damaged(self, tmp_path):
        (tmp_path / "x.pt").write_bytes(b"PK\x03\x04 not a zip archive")
        with pytest.raises(LaunchError, match="SPY330"):
            load_tensors(tmp_path / "x.pt")


def test_without_torch(tmp_path, monkeypatch):
    (tmp_path / "x.pt").write_bytes(b"")
    monkeypatch.setitem(__import__("sys").modules, "torch", None)
    with pytest.raises(UnsupportedError, match="needs torch"):
        load_tensors(tmp_path / "x.pt")


@pytest.mark.parametrize("name", ["missing.npy", "missing.npz", "missing.npz:a", "missing.bin"])
def test_missing_file(tmp_path, name):
    with pytest.raises(LaunchError, match=r"SPY330.*does not exist"):
        load_tensors(f"{tmp_path}/{name}")


@pytest.mark.parametrize("name", ["x.txt", "x", "x.safetensors"])
def test_unknown_kind(tmp_path, name):
    with pytest.raises(LaunchError, match="SPY331"):
        load_tensors(tmp_path / name)
    with pytest.raises(LaunchError, match="SPY331"):
        save_tensors(tmp_path / name, [random_tensor((1,), "float16", 0)])


@pytest.mark.parametrize("name", ["x.npy", "x.bin"])
@pytest.mark.parametrize("count", [0, 2])
def test_files_of_one_tensor(tmp_path, name, count):
    with pytest.raises(LaunchError, match="SPY336"):
        save_tensors(tmp_path / name, [random_tensor((1,), "float16", 0)] * count)


class TestConform:
    def test_takes_the_name(self):
        tensor = random_tensor((2, 3), "float16", 0, "file")
        found = conform_tensor(tensor, TensorSpec("arg0", (2, 3), "float16"))
        assert found.name == "arg0"
        assert_same(found, tensor)

    def test_wrong_shape(self):
        with pytest.raises(LaunchError, match=r"SPY333.*arg0") as caught:
            conform_tensor(random_tensor((2, 3), "fp16", 0), TensorSpec("arg0", (3, 2), "float16"))
        assert caught.value.finding.expected == "3x2@float16"
        assert caught.value.finding.found == "2x3@float16"

    def test_wrong_dtype(self):
        with pytest.raises(LaunchError, match="SPY334"):
            conform_tensor(random_tensor((2,), "fp32", 0), TensorSpec("arg0", (2,), "float16"))

    def test_numbers_that_would_change(self):
        tensor = HostTensor.from_array("x", np.array([1.0, 0.1], np.float32))
        with pytest.raises(LaunchError, match="SPY334"):
            conform_tensor(tensor, TensorSpec("arg0", (2,), "bfloat16"))


@pytest.mark.parametrize("name", ["x.npy", "x.npz", "x.bin", "x.pt"])
def test_a_file_that_cannot_be_written_whole_is_unchanged(tmp_path, monkeypatch, name):
    """A disk that is full shows when the file is in part written."""
    file = tmp_path / name
    save_tensors(file, [random_tensor((3,), "float16", 0)])
    before = file.read_bytes()
    _, most = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (5000, most))
    try:
        with pytest.raises(LaunchError, match="SPY370"):
            save_tensors(file, [random_tensor((10_000,), "float16", 0)])
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (most, most))
    assert file.read_bytes() == before
    assert [path.name for path in tmp_path.iterdir()] == [name]


def test_a_link_to_a_file_stays_a_link(tmp_path):
    (tmp_path / "link.npy").symlink_to(tmp_path / "y.npy")
    save_tensors(tmp_path / "link.npy", [random_tensor((3,), "float16", 0)])
    assert (tmp_path / "link.npy").is_symlink()
    assert np.load(tmp_path / "y.npy").shape == (3,)
