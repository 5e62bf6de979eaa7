"""Files of other programs in place, compared with ``numpy.memmap`` and the libraries that write them."""

import json
import multiprocessing
import os
import pickle
import subprocess
import sys

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import vmarray as vm
from conftest import ALL, RECORD, same, seeds, shapes, values


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("mapped")


@given(shapes, st.sampled_from(ALL), seeds, st.integers(0, 70), st.booleans(), st.sampled_from(["r", "c", "r+", "w+"]))
def test_a_memory_map_is_numpys(folder, shape, dtype, seed, offset, is_fortran, mode):
    order = "F" if is_fortran else "C"
    own, other = values(shape, dtype, seed), values(shape, dtype, seed + 1)
    ours, numpys = folder / "ours", folder / "numpys"
    for path in (ours, numpys):
        path.write_bytes(bytes(range(offset)) + own.tobytes(order) + b"end")
    # NumPy maps only ranges that have bytes.
    theirs = np.memmap(numpys, dtype, mode, offset, shape, order) if own.size else own
    with vm.memmap(ours, dtype, mode, offset, shape, order) as array:
        assert (array.shape, array.dtype, array.flags.writeable) == (theirs.shape, theirs.dtype, mode != "r")
        same(array, theirs)
        if mode == "r" and own.size:
            with pytest.raises(ValueError, match="read-only"):
                array[...] = other
        elif own.size:
            array[...] = theirs[...] = other
            same(array, theirs)
            theirs.flush()
    if own.size:
        assert ours.read_bytes() == numpys.read_bytes()


def test_a_memory_map_has_the_defaults_of_numpys(tmp_path):
    path = tmp_path / "a"
    own = np.arange(100, dtype="u1")
    own.tofile(path)
    with vm.memmap(path) as array:
        same(array, np.memmap(path))
        array[3] = 77
    assert np.fromfile(path, "u1")[3] == 77
    with open(path, "r+b") as file, vm.memmap(file, "u2", "readonly", 10) as array:
        same(array, np.memmap(path, "u2", "r", 10))
    with vm.memmap(path, "u1", shape=150) as array:
        same(array[100:], np.zeros(50, "u1"))
    for arguments, error in [
        (("u8", "r", 3), ValueError),
        (("u1", "r", 0, 151), ValueError),
        (("u1", "r", 151), ValueError),
        (("u1", "w+"), ValueError),
        (("u1", "x"), ValueError),
        (("u1", "r", -1), ValueError),
        (("u1", "r", 0, (2, -1)), ValueError),
        (("O", "r", 0, 3), TypeError),
    ]:
        with pytest.raises(error):
            vm.memmap(path, *arguments)
    with pytest.raises(FileNotFoundError):
        vm.memmap(tmp_path / "none")
    with pytest.raises((IsADirectoryError, vm.Error)):
        vm.memmap(tmp_path, "u1", shape=1)
    with vm.memmap(path, mode="r"), vm.memmap(path, mode="c"), pytest.raises(vm.FileError, match="in use"):
        vm.memmap(path, "u1", "w+", shape=3)
    assert path.stat().st_size == 150


def test_files_are_known_by_their_contents(tmp_path):
    own = np.arange(24, dtype=">i4").reshape(2, 3, 4)
    for order in "CF":
        np.save(tmp_path / "a.npy", np.asarray(own, order=order))
        with vm.open(tmp_path / "a.npy") as array:
            same(array, own)
            array[1, 2] = 5
        expected = own.copy()
        expected[1, 2] = 5
        same(np.load(tmp_path / "a.npy"), expected)
    with pytest.raises(vm.FileError, match=">i4"):
        vm.open(tmp_path / "a.npy", "f8")
    with pytest.raises(ValueError, match="shape"):
        vm.open(tmp_path / "a.npy", shape=(3, 2, 4))
    own.tofile(tmp_path / "raw")
    same(vm.open(tmp_path / "raw", ">i4", (6, 4), mode="c"), own.reshape(6, 4))
    with pytest.raises(ValueError, match="dtype"):
        vm.open(tmp_path / "raw")
    with pytest.raises(ValueError, match="reshape"):
        vm.open(tmp_path / "raw", ">i4", (5, 4))
    np.savez(tmp_path / "b.npz", own)
    with pytest.raises(ValueError, match="archive"):
        vm.open(tmp_path / "b.npz")
    with pytest.raises(ValueError, match="folder"):
        vm.open(tmp_path)
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(ValueError, match="regular"):
        vm.open(tmp_path / "pipe")


def test_files_of_the_package_know_their_dtype(tmp_path):
    nested = np.dtype([("a", [("b", "<f2"), ("c", ">u8", (2, 1))]), (("title", "d"), "S3")])
    for number, (dtype, shape) in enumerate([("f8", (3, 4)), (RECORD, (5,)), (nested, (2, 2)), ("M8[ms]", ()), ("?", 7)]):
        with vm.create(tmp_path / str(number), shape, dtype) as array:
            array[...] = own = np.zeros(array.shape, dtype)
        with vm.open(tmp_path / str(number), mode="r") as array:
            same(array, own)
    with vm.create(tmp_path / "long", 3, [(f"field number {i}", "f4") for i in range(200)]):
        pass
    with pytest.raises(ValueError, match="pass `dtype`"):
        vm.open(tmp_path / "long")
    with vm.create(tmp_path / "grows", 3, "f4") as array:
        array.append([1.0, 2.0])
    same(vm.open(tmp_path / "grows"), np.array([0, 0, 0, 1, 2], "f4"))


@pytest.mark.parametrize("version", [2, 3])
def test_a_zarr_folder_is_opened(tmp_path, version):
    zarr = pytest.importorskip("zarr")
    own = np.arange(30.0).reshape(5, 6)
    zarr.create_array(tmp_path / "g" / "a", data=own, chunks=(2, 6), zarr_format=version)
    zarr.open_group(tmp_path / "g", mode="a", zarr_format=version)
    with vm.open(tmp_path / "g" / "a") as array:
        array[0] *= 2
        own[0] *= 2
        same(array, own)
    with pytest.raises(vm.FileError, match="float64"):
        vm.open(tmp_path / "g" / "a", "i4")
    with pytest.raises(ValueError, match="group"):
        vm.open(tmp_path / "g")


def test_safetensors_are_opened_in_place(tmp_path):
    safetensors = pytest.importorskip("safetensors.numpy")
    own = {
        f"layer.{number}": values(shape, np.dtype(dtype), number)
        for number, (shape, dtype) in enumerate(
            [((3, 4), "f4"), ((), "i8"), ((0, 5), "u1"), ((7,), "f2"), ((2, 1, 3), "?"), ((5,), "u4"), ((4,), "f8")]
        )
    }
    path = tmp_path / "a.safetensors"
    safetensors.save_file(own, path, metadata={"format": "np"})
    tensors = vm.open(path)
    assert (set(tensors), tensors.metadata, len(tensors)) == (set(own), {"format": "np"}, len(own))
    for name, items in own.items():
        same(tensors[name], items)
    with pytest.raises(KeyError):
        tensors["none"]
    with pytest.raises(ValueError, match="read-only"):
        tensors["layer.0"][0] = 1
    private = vm.open(path, mode="c")["layer.0"]
    private[0] = 1
    assert private[0, 1] == 1
    same(safetensors.load_file(path)["layer.0"], own["layer.0"])
    with pytest.raises(ValueError, match="mode"):
        vm.open(path, mode="r+")


def test_sixteen_bit_tensors_have_their_type(tmp_path):
    ml_dtypes = pytest.importorskip("ml_dtypes")
    own = np.array([1.5, -2, 0], ml_dtypes.bfloat16)
    header = json.dumps({"w": {"dtype": "BF16", "shape": [3], "data_offsets": [0, 6]}}).encode()
    for name in ("1.safetensors", "2.safetensors"):
        data = header.replace(b'"w"', f'"{name[0]}"'.encode())
        (tmp_path / name).write_bytes(len(data).to_bytes(8, "little") + data + own.tobytes())
    tensors = vm.open(tmp_path / "1.safetensors")
    assert tensors["1"].dtype == ml_dtypes.bfloat16
    same(np.asarray(tensors["1"]).view("u2"), own.view("u2"))
    same(tensors.raw("1"), own.view("u2"))
    index = tmp_path / "all.safetensors.index.json"
    index.write_text(json.dumps({"weight_map": {"1": "1.safetensors", "2": "2.safetensors"}}))
    same(vm.open(index).raw("2"), own.view("u2"))
    for wrong in ({"1": "../x"}, {"1": "/etc/passwd"}, {"3": "1.safetensors"}, {"1": 5}, [], 3):
        index.write_text(json.dumps({"weight_map": wrong}))
        with pytest.raises((vm.FileError, FileNotFoundError, vm.InvalidError)):
            vm.open(index)["1"]


def test_hostile_headers_are_errors(tmp_path):
    path = tmp_path / "a.safetensors"
    fine = {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]}

    def written(header, length=None, data=b"\0" * 8):
        header = header if isinstance(header, bytes) else json.dumps(header).encode()
        path.write_bytes((len(header) if length is None else length).to_bytes(8, "little") + header + data)
        return path

    assert vm.open(written({"a": fine}))["a"].shape == (2,)
    for header in [
        *({"a": fine | wrong} for wrong in (
            {"shape": [3]}, {"shape": [-2]}, {"shape": [True, 2]}, {"shape": [2.0]}, {"shape": None}, {"shape": [2**64, 2**64]},
            {"data_offsets": [8, 0]}, {"data_offsets": [0, 16]}, {"data_offsets": [1, 9]}, {"data_offsets": [0]},
            {"data_offsets": "08"}, {"dtype": 3}, {"dtype": None}, {"dtype": ["F32"]},
        )),
        {"a": fine, "b": fine}, {"a": 3}, {"a": None}, [], 3, {}, b"{", b"\xff\xfe", b'{"a":1,"a":1}', b"[" * 100_000,
    ]:  # fmt: skip
        with pytest.raises(vm.FileError):
            vm.open(written(header))
    for length in (0, 5, 2**63, 10**9):
        with pytest.raises(vm.FileError):
            vm.open(written({"a": fine}, length))
    for data in (b"", b"\0" * 7, b"\0" * 9):
        with pytest.raises(vm.FileError):
            vm.open(written({"a": fine}, data=data))
    assert vm.open(written({"a": fine | {"dtype": "F7"}})).keys() == {"a"}
    with pytest.raises(ValueError, match="F7"):
        vm.open(path)["a"]


def test_every_damaged_byte_of_a_header_is_harmless(tmp_path):
    path, own = tmp_path / "a.npy", np.arange(12.0).reshape(3, 4)
    np.save(path, own)
    whole = path.read_bytes()
    for cut in [*range(0, 130, 7), len(whole) - 1]:
        path.write_bytes(whole[:cut])
        with pytest.raises((vm.Error, ValueError)):
            vm.open(path, mode="r")
    for at in range(128):
        path.write_bytes(whole[:at] + bytes([whole[at] ^ 5]) + whole[at + 1 :])
        try:
            with vm.open(path, mode="r") as array:
                np.asarray(array)
        except (vm.Error, ValueError, TypeError):
            pass
    np.save(path, np.array([{}]), allow_pickle=True)
    with pytest.raises(ValueError, match="objects"):
        vm.open(path)


def test_a_file_that_shrinks_is_an_error_and_no_signal(tmp_path):
    for mode in ("r", "r+", "c"):
        path = tmp_path / mode
        np.arange(1_000_000, dtype="f8").tofile(path)
        array = vm.memmap(path, "f8", mode, cache_bytes=1 << 20)
        assert array[10] == 10
        os.truncate(path, 4096)
        for work in (lambda: array[999_999], lambda: array[[5, 777_777]], array.sum, lambda: np.asarray(array), array.max):
            with pytest.raises(vm.FileError, match="shortened"):
                work()
        if mode == "r+":
            with pytest.raises(vm.Error):
                array[:] = 1
                array.sync()
        assert path.stat().st_size == 4096
        array.close() if mode != "r+" else None


def test_changes_are_written_when_python_ends(tmp_path):
    path = tmp_path / "a"
    np.zeros(1000, "i8").tofile(path)
    code = f"import vmarray as vm; view = vm.memmap({str(path)!r}, 'i8')[10:]; view[5] = 77; view.me = 1"
    subprocess.run([sys.executable, "-c", code.replace("; view.me = 1", "")], check=True, timeout=120)
    assert np.fromfile(path, "i8")[15] == 77


def test_loading_reads_every_kind(tmp_path):
    own = np.arange(60, dtype="f4").reshape(3, 4, 5)
    np.save(tmp_path / "a.npy", own.transpose())
    same(vm.load(tmp_path / "a.npy"), own.transpose())
    array = vm.load(tmp_path / "a.npy", devices="host", cache_bytes=1 << 20)
    array[...] = 0
    same(np.load(tmp_path / "a.npy"), own.transpose())


# Processes.


def _row(array):
    return np.asarray(array[2]).tolist(), array.dtype.str


def _error(array):
    try:
        array[0] = 1
    except vm.Error as error:
        return type(error).__name__
    except ValueError as error:
        return str(error)


@pytest.mark.parametrize("method", ["spawn", "fork", "forkserver"])
def test_arrays_travel_to_processes(tmp_path, method):
    if method not in multiprocessing.get_all_start_methods():
        pytest.skip(f"there is no {method}")
    own = np.arange(12, dtype=">f4").reshape(3, 4)
    np.save(tmp_path / "a.npy", np.asfortranarray(own))
    mapped = vm.open(tmp_path / "a.npy", mode="r")
    in_ram = vm.asarray(own)
    with multiprocessing.get_context(method).Pool(2) as pool:
        assert pool.apply_async(_row, (mapped,)).get(60) == (own[2].tolist(), ">f4")
        assert "read-only" in pool.apply_async(_error, (mapped,)).get(60)
        if method != "fork":
            assert pool.apply_async(_row, (in_ram,)).get(60) == (own[2].tolist(), ">f4")


def test_large_arrays_in_ram_do_not_travel(monkeypatch, tmp_path):
    from vmarray import _array

    monkeypatch.setattr(_array, "PICKLED_MAX", 1000)
    same(pickle.loads(pickle.dumps(vm.arange(100))), np.arange(100))
    with pytest.raises(TypeError, match="1000 bytes"):
        pickle.dumps(vm.arange(1000))
    np.arange(1000).tofile(tmp_path / "a")
    private = vm.memmap(tmp_path / "a", "i8", "c")
    with pytest.raises(TypeError, match="1000 bytes"):
        pickle.dumps(private)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork")
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_a_forked_process_reads_files_and_refuses_the_rest(tmp_path):
    own = np.arange(2000).reshape(500, 4)
    own.tofile(tmp_path / "a")
    own.tofile(tmp_path / "b")
    array, writable = vm.memmap(tmp_path / "a", "i8", "r", shape=(500, 4)), vm.memmap(tmp_path / "b", "i8")
    view = array[10:20, ::2]
    writable[7] = 1
    in_ram = vm.arange(10)
    child = os.fork()
    if child == 0:
        outcome = 1
        try:
            same(array, own)
            same(array[[7, 7, 499, 0]], own[[7, 7, 499, 0]])
            same(view[-1], own[19, ::2])
            assert array[3, 1] == 13
            for work in (array.sum, lambda: writable[0], lambda: in_ram[0], lambda: vm.zeros(3), lambda: (array + 1).compute()):
                try:
                    work()
                except vm.ForkedError:
                    continue
                raise AssertionError
            outcome = 0
        finally:
            # Run the functions that Python runs when it ends.
            import atexit

            atexit._run_exitfuncs()
            os._exit(outcome)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    same(array[499], own[499])
    writable.close()
    assert np.fromfile(tmp_path / "b", "i8")[7] == 1


def test_bools_of_files_may_have_any_byte(tmp_path):
    (tmp_path / "flags").write_bytes(bytes([2, 0, 255]) + bytes(4997))
    mask = vm.memmap(tmp_path / "flags", "?", "r")
    same(vm.arange(5000)[mask], np.array([0, 2]))


def test_files_with_named_dtypes_and_orders_keep_them(tmp_path):
    (tmp_path / "a.safetensors").write_bytes(bytes(100))
    with pytest.raises(vm.FileError, match="names the dtypes"):
        vm.open(tmp_path / "a.safetensors", dtype="u1")
    np.arange(12, dtype="u1").tofile(tmp_path / "b")
    array = vm.memmap(tmp_path / "b", "u1", "r", shape=(4, 3), order="F")
    with pytest.raises(AttributeError, match="in-place"):
        array.shape = (2, 2, 3)
