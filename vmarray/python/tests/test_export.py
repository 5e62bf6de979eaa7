"""Exports of items to other packages: to NumPy in RAM, and to torch on a GPU if there is one."""

import gc

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import vmarray as vm
from conftest import ALL, COMPUTED, seeds, shapes, values


def on_card():
    torch = pytest.importorskip("torch")
    if not torch.cuda.is_available():
        pytest.skip("torch has no card")
    return torch


@given(shapes.filter(lambda shape: 0 not in shape), st.sampled_from(COMPUTED), seeds)
def test_numpy_reads_and_writes_items_where_they_lie(shape, dtype, seed):
    numpys, new = values(shape, dtype, seed), values(shape, dtype, seed + 1)
    ours = vm.asarray(numpys, devices="host", page_len=5)
    views = [lambda a: a, lambda a: a.T, lambda a: a.reshape(-1)[::-2], lambda a: a[None, ..., None]]
    view = views[seed % 4]
    later = ours == ours
    with view(ours).device_memory() as memory:
        exported = np.from_dlpack(memory)
        assert exported.tobytes() == view(numpys).tobytes()
        assert exported.__array_interface__["data"][0] == memory.address
        exported[...] = view(new)
        with pytest.raises(vm.ExportError):
            np.asarray(ours)
        with pytest.raises(vm.ExportError):
            ours.close()
        del exported
    view(numpys)[...] = view(new)
    assert np.asarray(ours).tobytes() == numpys.tobytes()
    assert later.shape == shape


def test_exports_show_cached_items_and_pending_results_keep_their_inputs():
    a = vm.zeros(100, "i4", devices="host", page_len=10, max_len=200)
    a[37] = 5
    twice = a * 2
    with a[30:].device_memory() as memory:
        exported = np.from_dlpack(memory)
        assert exported[7] == 5
        exported += 1
        del exported
    assert (int(a.sum()), int(a[29]), int(twice.sum())) == (75, 0, 10)
    a.append([7])
    with a.device_memory() as memory:
        assert memory.shape == (101,)


def test_an_array_is_lent_until_the_last_tensor_is_gone():
    a = vm.arange(10, devices="host")
    memory = a.device_memory()
    one, other = np.from_dlpack(memory), np.from_dlpack(memory)
    with pytest.raises(vm.ExportError, match="exported"):
        a.device_memory()
    memory.close()
    with pytest.raises(vm.ClosedError):
        np.from_dlpack(memory)
    del one
    with pytest.raises(vm.ExportError, match="delete"):
        a[0]
    other[0] = 9
    del other
    assert a[0] == 9
    # A capsule that no consumer takes.
    memory = a.device_memory()
    for version in (None, (1, 0)):
        memory.__dlpack__(max_version=version)
    del memory
    gc.collect()
    assert a[0] == 9
    # Objects that use the memory keep the array alive.
    memory = vm.arange(1000, devices="host").device_memory()
    kept = np.from_dlpack(memory)
    del memory
    gc.collect()
    assert kept.sum() == 499_500


def test_arrays_that_cannot_be_exported_are_refused(tmp_path):
    cards = [vm.devices("host")[0], vm.devices("host")[0]]
    striped = vm.arange(100, devices=cards, page_len=10)
    with pytest.raises(vm.InvalidError, match="page_bytes"):
        striped.device_memory()
    with striped[20:30].device_memory() as memory:
        np.from_dlpack(memory)[...] = 0
    assert int(striped.sum()) == 4950 - 245
    with vm.create(tmp_path / "a", 10) as file:
        with pytest.raises(vm.Error, match="use an array on"):
            file.device_memory()
        assert file[0] == 0
    with pytest.raises(vm.Error, match="checksums"):
        vm.zeros(10, devices="host", checksums=True).device_memory()
    with pytest.raises(vm.InvalidError):
        vm.zeros(0, devices="host").device_memory()
    a = vm.zeros((2, 3), devices="host")
    with a.device_memory() as memory:
        for wrong in ({"copy": True}, {"dl_device": (2, 0)}):
            with pytest.raises(BufferError):
                memory.__dlpack__(**wrong)
        with pytest.raises(AttributeError):
            memory.__cuda_array_interface__
    with np.broadcast_to(a[0], (4, 3)).copy().device_memory() as memory:
        assert np.from_dlpack(memory).flags.writeable
    with np.broadcast_to(a, (4, 2, 3)).device_memory() as memory:
        assert not np.from_dlpack(memory).flags.writeable
        with pytest.raises(BufferError):
            memory.__dlpack__()


@pytest.mark.parametrize("dtype", [dtype for dtype in ALL if dtype.kind in "MSV" or not dtype.isnative])
def test_items_that_dlpack_does_not_have_are_refused(dtype):
    a = vm.zeros(3, dtype, devices="host")
    with a.device_memory() as memory, pytest.raises(BufferError, match="DLPack"):
        np.from_dlpack(memory)
    assert len(np.asarray(a)) == 3


def test_torch_reads_and_writes_items_on_the_card():
    torch = on_card()
    a = vm.arange(1 << 20, dtype="f4", devices="cuda:0", page_len=1 << 14)
    a[5] = -1
    with a.device_memory() as memory:
        tensor = torch.from_dlpack(memory)
        assert tensor.is_cuda and tensor.data_ptr() == memory.address and tensor[5] == -1
        # Only the end of the loan waits for the stream.
        for _ in range(100):
            tensor += 1
        del tensor
    assert (a[5], a[1000], float(a.sum(dtype="f8"))) == (99, 1100, (1 << 19) * ((1 << 20) - 1) + (100 << 20) - 6)
    part = a.reshape(1024, 1024)[1:3, ::2]
    with part.device_memory() as memory:
        tensor = torch.as_tensor(memory, device="cuda:0")
        assert tensor.data_ptr() == memory.address and tensor.shape == (2, 512)
        tensor.zero_()
        memory.close()
        with pytest.raises(vm.ExportError):
            a[0]
        del tensor
    del memory
    assert not np.asarray(part).any() and a[1025] == 1125


def test_tensors_of_a_card_are_copied_there():
    torch = on_card()
    for numpys in (np.arange(600, dtype="f4").reshape(20, 30), np.arange(6) % 2 == 0, np.zeros((0, 2), "i8")):
        tensor = torch.from_numpy(numpys).cuda()
        ours = vm.from_dlpack(tensor.permute(*range(tensor.ndim)[::-1]))
        assert ours.dtype == numpys.dtype and np.array_equal(np.asarray(ours), numpys.T)
        assert ours.device.backend == "cuda"


@given(shapes, st.sampled_from(ALL), seeds)
def test_memory_of_numpy_is_a_home(shape, dtype, seed):
    numpys, new = values(shape, dtype, seed), values(shape, dtype, seed + 1)
    own = numpys.copy()
    array = vm.asarray(own, copy=False, page_len=5)
    assert np.asarray(array).tobytes() == numpys.tobytes()
    key = (..., slice(None, None, 2)) if shape else ...
    array[key] = numpys[key] = new[key]
    array.flush()
    # An array without items has no memory to export.
    assert own.tobytes() == numpys.tobytes() == np.asarray(array).tobytes()
    array[...] = new
    array.close()
    assert own.tobytes() == new.tobytes()


def test_unsuitable_homes_have_clear_errors():
    own = np.arange(12.0).reshape(3, 4)
    for values_, kind in ((own.T, ValueError), ([1, 2], ValueError), (np.array([{}]), TypeError)):
        with pytest.raises(kind):
            vm.asarray(values_, copy=False)
    with pytest.raises(ValueError):
        vm.asarray(own, "f4", copy=False)
    array = vm.from_dlpack(own, copy=False)
    own_sum = float(array.sum())
    array[0] = 0
    del array
    gc.collect()
    assert own.sum() == own_sum - 6
    own.flags.writeable = False
    array = vm.asarray(own, copy=False)
    assert array.max() == 11
    with pytest.raises(vm.Error):
        array[0] = 1
    array.close()
    copy = vm.asarray(vm.asarray(own), copy=True)
    assert copy[2, 3] == 11
