"""Files that other programs read and write, compared with the results of these programs; and progress."""

import gc
import os
import subprocess
import sys

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import vmarray as vm
from conftest import ALL, same, seeds, shapes, values

zarr = pytest.importorskip("zarr")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("files")


class Progress:
    """The methods of ``tqdm`` that the package uses."""

    def reset(self, total):
        self.total, self.n = total, 0

    def update(self, n):
        self.n += n


@given(shapes, st.sampled_from(ALL), seeds, st.booleans())
def test_npy_both_ways(folder, shape, dtype, seed, is_fortran):
    own, path = values(shape, dtype, seed), folder / "a.npy"
    vm.save(path, vm.asarray(own).T)
    same(np.load(path), own.T)
    np.save(path, np.asarray(own, order="F" if is_fortran else "C"))
    same(vm.load(path), own)
    assert os.listdir(folder).count("a.npy.unfinished") == 0


@pytest.mark.parametrize("shards", [None, (8,)])
def test_damaged_chunks_are_errors(tmp_path, shards):
    path = tmp_path / "damaged.zarr"
    vm.to_zarr(vm.arange(16), path, chunks=(4,), shards=shards)
    file = path / "c" / "1"
    whole = file.read_bytes()
    for at in range(len(whole)):
        file.write_bytes(whole[:at] + bytes([whole[at] ^ 4]) + whole[at + 1 :])
        with pytest.raises(Exception):
            vm.open_zarr(path)
        with pytest.raises(Exception):
            np.asarray(vm.open_zarr(path, home=True, mode="r"))
    file.write_bytes(whole)
    assert np.array_equal(vm.open_zarr(path), np.arange(16))



@pytest.mark.parametrize("dtype", ["i4", "f2", "c8", "?", "u1"])
@pytest.mark.parametrize("shards", [None, (6, 8)])
def test_zarr_both_ways(tmp_path, dtype, shards):
    own = values((13, 17), np.dtype(dtype), 5)
    progress = Progress()
    vm.to_zarr(vm.asarray(own), tmp_path / "a.zarr", chunks=(3, 4), shards=shards, progress=progress)
    assert progress.n == progress.total == own.nbytes
    store = zarr.open_array(tmp_path / "a.zarr", mode="r")
    assert store.chunks == (3, 4)
    same(store[...], own)
    progress = Progress()
    same(vm.open_zarr(tmp_path / "a.zarr", progress=progress), own)
    assert progress.n == progress.total == own.nbytes
    same(vm.open_zarr(store, devices="host"), own)


def test_files_in_pieces(tmp_path, monkeypatch):
    from vmarray import _files

    monkeypatch.setattr(_files, "_PIECE", 56)
    own = np.arange(3 * 5 * 4).reshape(3, 5, 4)
    progress = Progress()
    vm.save(tmp_path / "a.npy", vm.asarray(own), progress=progress)
    assert progress.n == own.nbytes
    same(np.load(tmp_path / "a.npy"), own)
    same(vm.load(tmp_path / "a.npy", progress=progress), own)
    assert progress.n == progress.total == own.nbytes


@pytest.mark.parametrize("chunks", [None, (2, 3, 4), (5, 4, 1)])
def test_hdf5_is_read_by_chunks(tmp_path, monkeypatch, chunks):
    from vmarray import _files

    h5py = pytest.importorskip("h5py")
    monkeypatch.setattr(_files, "_PIECE", 100)
    own = np.random.default_rng(1).integers(0, 99, (13, 7, 5)).astype(">i4")
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file.create_dataset("group/one", data=own, chunks=chunks, compression="gzip" if chunks else None)
    progress = Progress()
    same(vm.load(tmp_path / "a.h5", progress=progress), own)
    assert progress.n == progress.total == own.nbytes
    with h5py.File(tmp_path / "a.h5", "a") as file:
        file["number"] = 3.5
        file["text"] = "text"
        file["none"] = h5py.Empty("f4")
        file["empty"] = np.zeros((0, 3), "f2")
    same(vm.load(tmp_path / "a.h5", "number"), np.array(3.5))
    same(vm.load(tmp_path / "a.h5", "empty"), np.zeros((0, 3), "f2"))
    same(vm.load(tmp_path / "a.h5", "/group/one"), own)
    for name, error in [(None, ValueError), ("x", ValueError), ("group", ValueError), ("text", TypeError), ("none", ValueError)]:
        with pytest.raises(error):
            vm.load(tmp_path / "a.h5", name)
    (tmp_path / "a.h5").write_bytes((tmp_path / "a.h5").read_bytes()[:900])
    with pytest.raises(OSError):
        vm.load(tmp_path / "a.h5")


@pytest.mark.parametrize("byteorder", ["<", ">"])
@pytest.mark.parametrize("given", [{}, {"compression": "zlib"}, {"contiguous": True}, {"bigtiff": True}, {"imagej": True}])
def test_tiff_is_read_by_images(tmp_path, byteorder, given):
    tifffile = pytest.importorskip("tifffile")
    if given.get("imagej") and byteorder == "<":
        pytest.skip("ImageJ writes big-endian files")
    own = np.random.default_rng(1).integers(0, 9999, (6, 31, 40)).astype("u2")
    path, kind = tmp_path / "a.tif", {name: one for name, one in given.items() if name in ("bigtiff", "imagej")}
    with tifffile.TiffWriter(path, byteorder=byteorder, **kind) as file:
        if given.get("imagej"):
            file.write(own)
        else:
            for image in own:
                file.write(image, contiguous=given.get("contiguous", False), compression=given.get("compression"))
    progress = Progress()
    expected = tifffile.imread(path, series=0)
    found = vm.load(path, 0, progress=progress)
    same(found, expected.astype(expected.dtype.newbyteorder("=")))
    assert progress.n == progress.total == expected.nbytes
    path.write_bytes(path.read_bytes()[:200])
    with pytest.raises(Exception):
        vm.load(path, 0)


def test_whole_chunks_are_written_without_a_read(tmp_path):
    store = zarr.storage.LocalStore(tmp_path / "a.zarr")
    vm.to_zarr(vm.zeros((20, 6)), store, chunks=(5, 6))
    read = []
    source = zarr.open_array(store, mode="r+")
    get = type(store).get

    async def counted(self, key, *arguments, **given):
        read.append(key)
        return await get(self, key, *arguments, **given)

    type(store).get = counted
    try:
        with vm.open_zarr(source, home=True) as array:
            array[:] = own = np.arange(120.0).reshape(20, 6)
            array.flush()
        assert not [key for key in read if "/" in key], read
    finally:
        type(store).get = get
    same(vm.open_zarr(tmp_path / "a.zarr"), own)


def test_memory_maps_of_numpy_are_copied_piece_by_piece(tmp_path, monkeypatch):
    from vmarray import _array

    monkeypatch.setattr(_array, "_MAPPED_MAX", 1000)
    own = np.arange(5000, dtype="i8").reshape(50, 100)
    own.tofile(tmp_path / "a")
    for mode in ("r", "r+", "c"):
        mapped = np.memmap(tmp_path / "a", "i8", mode, shape=(50, 100))
        if mode == "c":
            mapped[3] = own[3] = 7
        same(vm.asarray(mapped), own)
        same(vm.asarray(mapped[::2, 5:]), own[::2, 5:])
        same(vm.asarray(mapped, "f4"), own.astype("f4"))
        array = vm.zeros((50, 100), "i4")
        array[:] = mapped
        same(array, own.astype("i4"))
        same(mapped, own)


def test_unreadable_files_have_clear_errors(tmp_path):
    np.savez(tmp_path / "several.npz", a=np.zeros(3))
    with pytest.raises(ValueError, match="several arrays"):
        vm.load(tmp_path / "several.npz")
    with pytest.raises(FileNotFoundError):
        vm.load(tmp_path / "none.npy")
    np.save(tmp_path / "objects.npy", np.array([{}]), allow_pickle=True)
    with pytest.raises(ValueError):
        vm.load(tmp_path / "objects.npy")
    with pytest.raises(FileNotFoundError):
        vm.open_zarr(tmp_path / "none.zarr")


@pytest.mark.parametrize("shards", [None, (14, 20, 4)])
def test_a_store_is_a_home(tmp_path, shards):
    path, own = tmp_path / "a.zarr", np.random.default_rng(1).integers(0, 1000, (50, 30, 4))
    vm.to_zarr(vm.asarray(own), path, chunks=(7, 10, 4), shards=shards)
    with vm.open_zarr(path, home=True) as array:
        assert array.memory()["page_bytes"] == (14 if shards else 7) * 30 * 4 * 8
        same(array, own)
        array[3:20, ::2] += 1
        own[3:20, ::2] += 1
        array[[1, 49], 0] = own[[1, 49], 0] = 5
        later = array * 2
        array.flush()
        same(zarr.open_array(path, mode="r")[...], own)
        array[...] = own[...] = 3 * own
        assert array.sum() == own.sum()
    same(vm.open_zarr(path), own)
    same(later, np.where(True, 2 * (own // 3), 0))
    with vm.open_zarr(path, home=True, mode="r") as array:
        same(array[::-5, :, 1], own[::-5, :, 1])
        with pytest.raises(vm.Error):
            array[0] = 1
    # The array is never closed, but changes through its views are stored.
    array = vm.open_zarr(path, home=True)
    view = array[-1]
    del array
    view[...] = own[-1] = 9
    del view
    gc.collect()
    same(vm.open_zarr(path), own)
    array = vm.open_zarr(path, home=True)
    (path / "c/0/0/0").write_bytes(b"no chunk")
    with pytest.raises(vm.Error):
        array.sum()
    with pytest.raises(ValueError, match="mode"):
        vm.open_zarr(path, home=True, mode="w")


def test_a_home_is_written_when_python_ends(tmp_path):
    path = str(tmp_path / "a.zarr")
    vm.to_zarr(vm.arange(1000), path, chunks=(64,))
    code = f"import vmarray as vm; view = vm.open_zarr({path!r}, home=True)[10:]; view[5] = 77"
    subprocess.run([sys.executable, "-c", code], check=True, timeout=120)
    assert vm.open_zarr(path)[15] == 77


@pytest.mark.parametrize("version", [2, 3])
def test_zarrs_decodes_chunks_if_it_is_installed(tmp_path, version):
    pytest.importorskip("zarrs")
    path, own = tmp_path / "a.zarr", np.random.default_rng(1).integers(0, 1000, (50, 30))
    vm.to_zarr(vm.asarray(own), path, chunks=(7, 10), zarr_format=version)
    before = zarr.config.get("codec_pipeline.path")
    assert type(vm._files.zarr_array(path)._async_array.codec_pipeline).__name__ == "ZarrsCodecPipeline"
    assert zarr.config.get("codec_pipeline.path") == before
    same(vm.open_zarr(path), own)
    with vm.open_zarr(path, home=True) as array:
        array[3:9] += 1
    own[3:9] += 1
    assert np.array_equal(zarr.open_array(path)[:], own)
    with zarr.config.set({"codec_pipeline.path": "another.Pipeline"}):
        assert isinstance(vm._files._fast_codecs(zarr), type(vm._files.contextlib.nullcontext()))


@pytest.mark.parametrize("driver", ["zarr", "zarr3"])
def test_tensorstore_reads_and_writes_the_same_arrays(tmp_path, driver):
    tensorstore = pytest.importorskip("tensorstore")
    own = np.random.default_rng(1).random((50, 30), np.float32)

    def opened(name, **given):
        spec = {"driver": driver, "kvstore": {"driver": "file", "path": str(tmp_path / name)}}
        return tensorstore.open(spec, **given).result()

    vm.to_zarr(vm.asarray(own), tmp_path / "ours", chunks=(7, 10), zarr_format=3 if driver == "zarr3" else 2)
    assert np.array_equal(opened("ours", open=True).read().result(), own)
    theirs = opened("theirs", create=True, dtype=tensorstore.float32, shape=own.shape)
    theirs.write(own).result()
    same(vm.open_zarr(tmp_path / "theirs"), own)
    with vm.open_zarr(tmp_path / "theirs", home=True) as array:
        array[10] = 3
    own[10] = 3
    assert np.array_equal(opened("theirs", open=True).read().result(), own)
