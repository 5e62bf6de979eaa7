"""Arrays of dask over arrays of the package: threads, processes, and a cluster that loses a worker."""

import os
import signal

import numpy as np
import pytest

import vmarray as vm
from conftest import same

pytest.importorskip("dask.array")
distributed = pytest.importorskip("distributed")
zarr = pytest.importorskip("zarr")
import dask  # noqa: E402
import dask.array as da  # noqa: E402

import vmarray.dask  # noqa: E402

pytestmark = pytest.mark.filterwarnings("default")


def test_a_dask_array_over_an_array():
    own = np.arange(10_000.0).reshape(100, 100)
    x = vmarray.dask.to_dask(vm.asarray(own), chunks=(30, 50))
    assert x.chunks == ((30, 30, 30, 10), (50, 50))
    with dask.config.set(scheduler="threads"):
        same((x * 2 + 1).sum(axis=0).compute(), (own * 2 + 1).sum(axis=0))
        same(x[::7, [1, 5]].compute(), own[::7, [1, 5]])
        same(x.rechunk((100, 10)).T.compute(), own.T)


def test_a_file_is_read_by_processes(tmp_path):
    own = np.arange(1000).reshape(10, 100)
    with vm.create(tmp_path / "a", own.shape, own.dtype) as array:
        array[...] = own
    array = vm.open(tmp_path / "a", own.dtype, own.shape, mode="r")
    x = vmarray.dask.to_dask(array, chunks=(5, 50))
    with dask.config.set(scheduler="processes", num_workers=2):
        same((x + 1).compute(), own + 1)


@pytest.fixture(scope="module")
def store(tmp_path_factory):
    path = str(tmp_path_factory.mktemp("dask") / "a.zarr")
    own = np.random.default_rng(1).integers(0, 1000, (60, 80)).astype("f8")
    vm.to_zarr(own, path, chunks=(10, 20), shards=(20, 40))
    return path, own


def test_chunks_are_arrays_of_the_package(store):
    path, own = store
    x = vmarray.dask.from_zarr(path)
    assert x.chunks == ((20, 20, 20), (40, 40)) and isinstance(x._meta, vm.Array)
    with dask.config.set(scheduler="threads"):
        kinds = x.map_blocks(lambda part: np.full((1, 1), isinstance(part, vm.Array)), dtype=bool, chunks=(1, 1))
        assert kinds.compute().all()
        whole = x.compute()
        assert isinstance(whole, vm.Array)
        same(whole, own)
        for ours, numpys in (
            ((x * 2 + 1).sum(), (own * 2 + 1).sum()),
            (x.sum(axis=1), own.sum(axis=1)),
            (x.max(axis=0), own.max(axis=0)),
            (da.where(x > 500, x, 0).sum(axis=0), np.where(own > 500, own, 0).sum(axis=0)),
            (x[3:50:7, ::-1], own[3:50:7, ::-1]),
            (np.sqrt(x).T, np.sqrt(own).T),
            (x.rechunk((60, 10)), own),
            (da.concatenate([x, x + 1], axis=1), np.concatenate([own, own + 1], axis=1)),
            ((x > 10).any(axis=0), (own > 10).any(axis=0)),
            (x[x > 990], own[own > 990]) if False else (x.min(), own.min()),
        ):
            assert np.allclose(np.asarray(ours.compute()), numpys)
        assert np.allclose(np.asarray(x.mean(axis=0).compute()), own.mean(axis=0))
        assert np.allclose(np.asarray(x.std().compute()), own.std())
        assert np.array_equal(np.asarray(da.histogram(x, bins=10, range=(0, 1000))[0].compute()), np.histogram(own, 10, (0, 1000))[0])


def edges(part):
    """Each item and its neighbours along the first axis."""
    assert isinstance(part, vm.Array)
    return part[:-2] + part[1:-1] + part[2:]


def blurred(x):
    return x.map_overlap(edges, depth={0: 1, 1: 0}, boundary="periodic", trim=False, dtype=x.dtype)


def test_edges_travel(store, tmp_path):
    path, own = store
    expected = np.roll(own, 1, 0) + own + np.roll(own, -1, 0)
    with dask.config.set(scheduler="threads"):
        same(blurred(vmarray.dask.from_zarr(path)).compute(), expected)
        for boundary in ("reflect", "nearest", 0.0, "none"):
            ours, theirs = (
                of.map_overlap(lambda part: part * 2, depth=2, boundary=boundary, dtype=own.dtype).compute()
                for of in (vmarray.dask.from_zarr(path), da.from_array(own, (20, 40)))
            )
            same(ours, theirs)
        vmarray.dask.to_zarr(blurred(vmarray.dask.from_zarr(path)), str(tmp_path / "b.zarr"))
        same(vm.open_zarr(tmp_path / "b.zarr"), expected)
        same((vmarray.dask.from_dask(da.from_array(own, (20, 40))) * 3).compute(), own * 3)


def test_a_worker_dies(store):
    path, own = store
    expected = np.roll(own, 1, 0) + own + np.roll(own, -1, 0)
    with (
        dask.config.set({"distributed.scheduler.allowed-failures": 10}),
        distributed.LocalCluster(n_workers=2, threads_per_worker=2, processes=True, dashboard_address=None) as cluster,
        distributed.Client(cluster) as client,
    ):
        x = vmarray.dask.from_zarr(path, devices="host", cache_bytes=1 << 20).persist()
        distributed.wait(x)
        held = client.run(lambda dask_worker: sum(type(one).__name__ == "Array" for one in dask_worker.data.values()))
        assert sum(held.values()) == 6 and min(held.values()) > 0
        same(np.asarray(blurred(x).compute()), expected)
        victim = next(iter(client.run(os.getpid).values()))
        later = client.compute(blurred(x * 1))
        os.kill(victim, signal.SIGKILL)
        same(np.asarray(later.result(timeout=120)), expected)
        assert float(x.sum().compute()) == own.sum()
        assert victim not in client.run(os.getpid).values()


def test_xarray_computes_on_both(store):
    xarray = pytest.importorskip("xarray")
    path, own = store
    dims = ("row", "column")
    for data in (vm.asarray(own), vmarray.dask.from_zarr(path)):
        ours, numpys = xarray.DataArray(data, dims=dims), xarray.DataArray(own, dims=dims)
        assert not isinstance(ours.data, np.ndarray)
        for work in (
            lambda x: x.mean("row"),
            lambda x: (x * 2 + 1).sum(),
            lambda x: x.isel(row=slice(3, 20, 2)).max("column"),
            lambda x: x.where(x > 500, 0).sum("row"),
            lambda x: x.transpose("column", "row")[5],
            lambda x: x.std("column"),
        ):
            with dask.config.set(scheduler="threads"):
                result = work(ours).compute().data
            assert np.allclose(np.asarray(result), work(numpys).data)
    ours = xarray.DataArray(vm.open_zarr(path), dims=dims)
    assert isinstance((ours + 1).data, vm.Array)


def test_functions_of_dask_and_zarr_store_chunks_of_the_package(tmp_path):
    own = np.arange(30.0).reshape(5, 6)
    for dtype in ("f8", ">i4", "c8", "?", "u2"):
        items = own.astype(dtype)
        x = vmarray.dask.from_dask(da.from_array(items, chunks=(2, 3)))
        target = zarr.create_array(str(tmp_path / f"{dtype}0.zarr"), shape=x.shape, dtype=x.dtype, chunks=(2, 3))
        with dask.config.set(scheduler="threads"):
            da.store(x, target)
            da.to_zarr(x, str(tmp_path / f"{dtype}1.zarr"))
        target_of_one = zarr.create_array(str(tmp_path / f"{dtype}2.zarr"), shape=x.shape, dtype=x.dtype, chunks=(5, 6))
        target_of_one[...] = vm.asarray(items)
        for number in range(3):
            assert np.array_equal(zarr.open_array(str(tmp_path / f"{dtype}{number}.zarr"), mode="r")[...], items)


@pytest.mark.parametrize("chunks", [(4, 4), (3, 5), (7, 2), (100, 100), (1, 1)])
@pytest.mark.parametrize("given", [{}, {"chunks": (4, 4)}, {"chunks": (2, 2), "shards": (6, 4)}, {"shards": (10, 10)}, {"chunks": (5, 3)}])
def test_stored_chunks_are_written_as_a_whole(tmp_path, chunks, given):
    own = np.arange(17 * 21.0).reshape(17, 21) + 1
    # Threads meet by chance: repeat a store that has few tasks.
    for n in range(1 if chunks == (1, 1) else 3):
        x = da.from_array(own, chunks=chunks)
        with dask.config.set(scheduler="threads", num_workers=8):
            vmarray.dask.to_zarr(x, str(tmp_path / f"{n}.zarr"), **given)
            assert np.array_equal(np.asarray(vm.open_zarr(tmp_path / f"{n}.zarr")), own)
            # Store to an existing array as well, and to a part of it.
            target = zarr.open_array(tmp_path / f"{n}.zarr", mode="r+")
            vmarray.dask.to_zarr(x + 1, target)
            assert np.array_equal(target[...], own + 1)
            vmarray.dask.to_zarr(x[:11, :13], target, region=(slice(3, 14), slice(7, 20)))
            expected = own + 1
            expected[3:14, 7:20] = own[:11, :13]
            assert np.array_equal(target[...], expected)


def test_forwarded_arguments_are_refused_or_used(tmp_path):
    x = da.from_array(np.arange(12.0).reshape(3, 4), chunks=(2, 2))
    target = zarr.create_array(str(tmp_path / "there.zarr"), shape=x.shape, dtype=x.dtype, chunks=(3, 3))
    for wrong in (
        lambda: vmarray.dask.to_zarr(x, target, chunks=(2, 2)),
        lambda: vmarray.dask.to_zarr(x, target, overwrite=True),
        lambda: vmarray.dask.to_zarr(x, str(tmp_path / "a.zarr"), dtype="i4"),
        lambda: vmarray.dask.to_zarr(x, str(tmp_path / "a.zarr"), no_such=1),
        lambda: vmarray.dask.to_zarr(x, str(tmp_path / "a.zarr"), region=(slice(0, 3),)),
        lambda: vmarray.dask.from_dask(x, name="x"),
        lambda: vmarray.dask.from_dask(x, chunks=(1, 1)),
        lambda: vm.to_zarr(np.ones(3), tmp_path / "a.zarr", shape=(5,)),
        lambda: vm.to_zarr(np.ones(3), tmp_path / "a.zarr", data=np.zeros(3)),
    ):
        with pytest.raises(TypeError):
            wrong()
    with pytest.raises(ValueError):
        vmarray.dask.to_zarr(x, target, region=(slice(0, 2), slice(None)))
    with pytest.raises(ValueError, match="compute_chunk_sizes"):
        vmarray.dask.to_zarr(x[x > 3], str(tmp_path / "a.zarr"))
    later = vmarray.dask.to_zarr(x, target, compute=False)
    assert not target[...].any()
    later.compute(scheduler="threads")
    same(target[...], np.arange(12.0).reshape(3, 4))
    vmarray.dask.to_zarr(x, str(tmp_path / "group.zarr"), component="b")
    same(vm.open_zarr(str(tmp_path / "group.zarr" / "b")), np.arange(12.0).reshape(3, 4))
    empty = da.zeros((0, 4), chunks=(2, 2))
    vmarray.dask.to_zarr(empty, str(tmp_path / "empty.zarr"))
    assert vm.open_zarr(tmp_path / "empty.zarr").shape == (0, 4)
