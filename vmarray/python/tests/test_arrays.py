"""Properties of arrays other than their items: files, memory, threads, processes, signals, growth, and printing."""

import _thread
import doctest
import gc
import importlib.util
import multiprocessing
import os
import pickle
import signal
import sys
import threading
import weakref

import numpy as np
import pytest

import vmarray as vm
from conftest import FEW, RECORD, same
from vmarray import _on_host


def test_examples_of_the_documentation():
    _on_host.ITEMS_MAX = FEW
    names = ["", "._array", "._kernel", "._order", "._progress", "._ragged", "._sets", "._shapes", ".array_api", ".random"]
    names += ["._arrow", "._mapped"] + [".xarray"] * bool(importlib.util.find_spec("xarray"))
    names += ["._files"] * bool(importlib.util.find_spec("zarr"))
    names += [".dask"] * all(map(importlib.util.find_spec, ("dask", "zarr")))
    for name in names:
        result = doctest.testmod(importlib.import_module("vmarray" + name))
        assert (result.failed, result.attempted > 1) == (0, True), name


@pytest.mark.parametrize("name", ["README.md", "GUIDE.md", "TEN_MINUTES.md"])
def test_the_documents(name):
    _on_host.ITEMS_MAX = FEW
    pytest.importorskip("zarr")
    pytest.importorskip("pyarrow")
    pytest.importorskip("dask.array")
    document = os.path.join(os.path.dirname(__file__), "..", name)
    result = doctest.testfile(document, module_relative=False)
    assert (result.failed, result.attempted > 5) == (0, True)


def test_creation():
    same(vm.zeros((2, 3), "i4"), np.zeros((2, 3), "i4"))
    same(vm.ones(3), np.ones(3))
    same(vm.full((2, 2), 7), np.full((2, 2), 7))
    same(vm.full(2, (1.5, 2, (1, 2, 3)), RECORD), np.full(2, np.array((1.5, 2, (1, 2, 3)), RECORD)))
    for limits in [(5,), (2, 9), (9, 2, -2), (0, 1, 0.3), (3, 3)]:
        same(vm.arange(*limits), np.arange(*limits))
    same(vm.asarray([[1, 2], [3, 4]], "f4"), np.asarray([[1, 2], [3, 4]], "f4"))
    same(vm.from_dlpack(np.arange(5)), np.arange(5))
    same(np.from_dlpack(vm.arange(5)), np.arange(5))
    same(vm.zeros(3, "(2,)f4"), np.zeros(3, "(2,)f4"))
    array = vm.arange(5)
    assert vm.asarray(array) is array and vm.array(array) is not array
    assert (len(array), array.nbytes, array.itemsize, array.ndim, array.size) == (5, 40, 8, 1, 5)
    assert list(array) == [0, 1, 2, 3, 4] and 3 in array and 7 not in array
    assert [row.sum() for row in array.reshape(5, 1)] == [0, 1, 2, 3, 4]
    assert (array[2:3].item(), int(vm.asarray(2)), bool(array[2:3]), array.tolist()) == (2, 2, True, [0, 1, 2, 3, 4])


def test_wrong_arguments_have_clear_errors():
    for wrong, error in [
        (lambda: vm.zeros(3, object), TypeError),
        (lambda: vm.zeros(-1), ValueError),
        (lambda: vm.zeros((2**40, 2**40)), ValueError),
        (lambda: vm.zeros(3, page=5), TypeError),
        (lambda: vm.zeros(3, devices="no such"), vm.NoDeviceError),
        (lambda: vm.zeros(3, devices=","), ValueError),
        (lambda: vm.zeros(2**42, "u1", devices="host"), vm.OutOfMemoryError),
        (lambda: bool(vm.zeros(3)), ValueError),
        (lambda: len(vm.zeros(())), TypeError),
        (lambda: vm.arange(6).reshape(4), ValueError),
        (lambda: vm.arange(3) + vm.arange(4), ValueError),
        (lambda: vm.zeros(3, bool) - vm.zeros(3, bool), TypeError),
        (lambda: vm.zeros(3) << 1, TypeError),
        (lambda: vm.zeros(0).max(), ValueError),
        (lambda: np.asarray(vm.zeros(3), copy=False), ValueError),
        (lambda: hash(vm.zeros(3)), TypeError),
        (lambda: vm.Array(), TypeError),
        (lambda: pickle.dumps(vm.zeros(1 << 30, "u1")), TypeError),
        (lambda: vm.zeros((2, 2)).append(3), vm.InvalidError),
        (lambda: vm.zeros(4)[1:].append(3), vm.InvalidError),
    ]:
        with pytest.raises(error):
            wrong()
    with pytest.raises(vm.OutOfMemoryError) as raised:
        vm.zeros(2**42, "u1", devices="host")
    assert raised.value.kind == "DoesNotFit" and raised.value.advice in str(raised.value)
    assert isinstance(raised.value, MemoryError) and isinstance(raised.value, vm.Error)


def test_files_are_there_again(tmp_path):
    for dtype, shape in [("f8", (20, 5)), ("?", (7,)), (RECORD, (9,)), ("f2", (3,)), ("c16", (4,)), ("S5", (6,))]:
        path = tmp_path / np.dtype(dtype).char
        own = np.zeros(shape, dtype)
        own.reshape(-1)[1:3] = 1 if np.dtype(dtype).kind != "S" else b"ab"
        with vm.create(path, shape, dtype) as array:
            array[...] = own
        with vm.open(path, dtype, shape) as array:
            same(array, own)
            again = pickle.loads(pickle.dumps(path))
            assert again == path
        same(vm.open(path, dtype, shape, mode="r"), own)
    path = tmp_path / "d"
    with pytest.raises(FileExistsError):
        vm.create(path, 3)
    with pytest.raises(FileNotFoundError):
        vm.open(tmp_path / "none")
    with pytest.raises(vm.FileError, match="f64"):
        vm.open(path, "i4")
    with pytest.raises(ValueError, match="cannot reshape"):
        vm.open(path, "f8", (3, 3))
    one = vm.open(path, "f8")
    with pytest.raises(OSError, match="use"):
        vm.open(path, "f8")
    one.close()
    read_only = vm.open(path, "f8", mode="r")
    with pytest.raises(vm.FileError):
        read_only[0] = 1
    read_only.close()
    own = vm.open(path, "f8", (20, 5))
    shown = pickle.dumps(own)
    own.close()
    same(pickle.loads(shown)[0, 1:3], np.ones(2))


def test_growth(tmp_path):
    array, own = vm.zeros(0, "i4", max_len=1000), np.zeros(0, "i4")
    for n in range(20):
        array.append(np.arange(n))
        own = np.append(own, np.arange(n, dtype="i4"))
    same(array, own)
    doubled = array * 2
    array.append(5)
    same(doubled, own * 2)
    assert array[-1] == 5 and len(array) == len(own) + 1
    with vm.create(tmp_path / "rows", 0, RECORD) as rows:
        rows.append(np.ones(3, RECORD))
    assert len(vm.open(tmp_path / "rows", RECORD)) == 3


def test_closed_arrays_say_so():
    array = vm.arange(10)
    view, later = array[2:], array + 1
    array.close()
    array.close()
    for use in (lambda: array[0], lambda: view.sum(), lambda: array + 1, lambda: view.__setitem__(0, 1)):
        with pytest.raises(vm.ClosedError):
            np.asarray(use())
    same(later, np.arange(10) + 1)
    assert array.closed and "closed" in repr(array)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork")
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_a_forked_process_gets_an_error():
    array = vm.arange(10)
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            array[0]
            answer = b"no error"
        except vm.ForkedError:
            answer = b"refused"
        del array
        gc.collect()
        os.write(writing, answer)
        os._exit(0)
    assert os.read(reading, 20) == b"refused"
    assert os.waitpid(child, 0)[1] == 0
    assert array[3] == 3


def _sum_of_file(path):
    with vm.open(path, "i8", mode="r") as array:
        return int(array.sum())


def test_other_processes_open_files(tmp_path):
    with vm.create(tmp_path / "a", 1000, "i8") as array:
        array[:] = 2
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        assert pool.apply(_sum_of_file, (tmp_path / "a",)) == 2000


def test_threads_compute_at_once():
    array, results = vm.arange(100_000), [None] * 8
    later = array * 3

    def work(number):
        own = vm.arange(1000) + number
        array[number * 1000 : number * 1000 + 1000] = own * 2
        results[number] = (int(later.sum()), int((array[number * 1000 :][:1000]).sum()))

    threads = [threading.Thread(target=work, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    whole = 3 * sum(range(100_000))
    assert results == [(whole, 2 * (sum(range(1000)) + 1000 * number)) for number in range(8)]


def test_an_interrupt_ends_long_work():
    # A process in the background may inherit a handler that ignores the signal.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    # On a busy machine the other thread may be late, after all rows are written.
    for _ in range(20):
        array = vm.zeros((60_000, 1000), "u1")

        def interrupt(array=array):
            while not array[0, 0]:
                pass
            _thread.interrupt_main()

        thread = threading.Thread(target=interrupt)
        is_written = False
        with pytest.raises(KeyboardInterrupt):
            thread.start()
            array.T[::3, ::2] = 1
            is_written = True
            while True:
                pass
        thread.join()
        if not is_written:
            break
    assert not is_written
    assert array[0, 0] == 1 and array[-2, -1] == 0
    assert array.sum() < 60_000 * 1000 / 6


def test_memory_of_results_is_used_again():
    own = np.arange(200_000)
    array, indices = vm.asarray(own), np.random.default_rng(1).integers(0, own.size, own.size)
    vm.release_memory()
    first = np.asarray(array)
    address, view = first.ctypes.data, first[5:]
    del first
    # A view keeps the memory in use, so no other array gets it.
    second = array[indices]
    assert second.ctypes.data != address and (view == own[5:]).all() and (second == own[indices]).all()
    assert array.memory()["kept_for_results_bytes"] == 0
    del view
    assert array.memory()["kept_for_results_bytes"] >= own.nbytes
    third, fourth = np.asarray(array[1:]), np.asarray(array)
    addresses = {one.ctypes.data for one in (second, third, fourth)}
    assert third.ctypes.data == address and len(addresses) == 3 and all(one % 64 == 0 for one in addresses)
    second[:], third[:] = 1, 2
    assert (fourth == own).all() and second.flags.writeable
    del second, third, fourth
    kept = array.memory()["kept_for_results_bytes"]
    assert 3 * own.nbytes <= kept <= 4 * own.nbytes
    assert vm.release_memory() == kept and vm.release_memory() == 0


def test_memory_of_results_is_shared_by_no_two_threads():
    array = vm.zeros((8, 100_000), "i8")
    array[...] = vm.asarray(np.arange(8)[:, None])
    wrong = []

    def work(number):
        held = []
        for _ in range(200):
            held.append(np.asarray(array[number]))
            held = held[-2:]
            wrong.extend(one[0] for one in held if (one != number).any())

    threads = [threading.Thread(target=work, args=(number,)) for number in range(8)]
    [thread.start() for thread in threads]
    [thread.join() for thread in threads]
    assert not wrong


@pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork")
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_results_are_read_after_a_fork():
    own = np.zeros(800_000, "V44")
    own.view("u4").reshape(-1, 11)[:, 0] = np.arange(len(own))
    array, indices = vm.asarray(own), np.arange(len(own))[::-1].copy()
    for _ in range(5):
        # From the third time on, the GPU writes the items itself, to page-locked memory.
        results = array[indices]
    child = os.fork()
    if child == 0:
        is_right = (results == own[::-1]).all()
        results[:] = own[1]
        del results
        os._exit(0 if is_right else 1)
    _, status = os.waitpid(child, 0)
    assert os.waitstatus_to_exitcode(status) == 0
    for _ in range(5):
        assert (results == own[::-1]).all()
        results[:] = own[7]
        results = array[indices]


def test_not_all_memory_of_results_is_kept():
    array = vm.zeros(8 << 20, "i8", devices="host")
    results = [np.asarray(array) for _ in range(18)]
    assert vm.release_memory() >= 0 and sum(one.nbytes for one in results) > 1 << 30
    del results
    assert 0 < array.memory()["kept_for_results_bytes"] <= 1 << 30
    vm.release_memory()


def test_nothing_is_left():
    array = vm.arange(1000)
    known = sys.getrefcount(array.dtype)
    for _ in range(3):
        for n in range(50):
            view = array[n:]
            later = (view * 2 + 1)[view > 3]
            later.sum()
            np.asarray(view[::2])
            view[:1] = later[:1]
        del view, later
    gc.collect()
    assert sys.getrefcount(array.dtype) - known < 20
    numbers = [weakref.ref(array[n:] + 1) for n in range(5)]
    gc.collect()
    assert all(one() is None for one in numbers)
    own = np.arange(10)
    known = sys.getrefcount(own)
    target = vm.zeros(10, own.dtype)
    for _ in range(10):
        target[:] = own
        target += own
    assert sys.getrefcount(own) == known


def test_arrays_are_shown():
    assert repr(vm.arange(3)) == "Array([0, 1, 2], dtype=int64)"
    big = vm.arange(10_000).reshape(100, 100)
    assert "..." in repr(big) and "shape=(100, 100)" in repr(big) and "9999" in str(big)
    html = big._repr_html_()
    assert "<td>(100, 100)</td>" in html and "int64" in html
    later = vm.zeros(10_000_000) + 1
    assert "not computed yet" in repr(later) and later.is_pending
    assert repr((vm.arange(3) + 1)[1:]) == "Array([2, 3], dtype=int64)"


def test_devices_and_memory():
    (device,) = vm.devices("host")
    assert device.backend == "host" and device.total_bytes > 0 and "host" in repr(device)
    for devices in ("host", device, [device]):
        array = vm.zeros(1000, devices=devices)
        later, summed = array + 1, array.reshape(10, 100).sum(axis=0)
        assert later.devices == np.fmod(array, 3).devices == summed.devices == array.devices == [device]
        assert later.is_pending and array[array > 3].devices == [device]
    small = vm.zeros(1 << 16, "u8", cache_bytes=1 << 14, page_len=256, checksums=True)
    small[:] = np.arange(1 << 16)
    memory = small.memory()
    assert memory["page_bytes"] == 2048 and memory["cache_max_bytes"] == 1 << 14 and memory["device_bytes"] >= 1 << 19
    assert small.sum() == sum(range(1 << 16))
    small.flush()


def test_numpys_own_pieces_are_cut(monkeypatch):
    from vmarray import _ufuncs

    monkeypatch.setattr(_ufuncs, "blocks", lambda shape, most=7, of=_ufuncs.blocks: of(shape, min(most, 7)))
    own = np.arange(-30, 30).reshape(3, 4, 5) + 0.5
    array = vm.asarray(own)
    for axis in (None, 0, 1, 2, (0, 2)):
        whole = own.astype("i8")
        same(vm.asarray(whole).prod(axis=axis), whole.prod(axis=axis))
        same(vm.asarray(whole).sum(axis=axis), whole.sum(axis=axis))
        same(array.max(axis=axis, keepdims=True), own.max(axis=axis, keepdims=True))
    for axis in (None, 0, 1, 2):
        same(array.argmin(axis=axis), own.argmin(axis=axis))
    same(np.divmod(array, 3)[1], np.divmod(own, 3)[1])
    same(np.fmod(array[:, :1], array), np.fmod(own[:, :1], own))
    same((array > 0).any(axis=1), (own > 0).any(axis=1))
    assert np.allclose(np.asarray(array.mean(axis=1)), own.mean(axis=1))
    assert np.allclose(np.asarray(array.std(axis=0)), own.std(axis=0))
