"""Arrays in the worker processes of torch, joblib and Dask."""

import multiprocessing
import warnings

import numpy as np
import pytest

import vmarray as vm
from conftest import same


class Rows:
    """A data set whose items are rows of an array."""

    def __init__(self, array):
        self.array = array

    def __len__(self):
        return len(self.array)

    def __getitem__(self, number):
        return np.asarray(self.array[number])

    def __getitems__(self, numbers):
        return list(self.array[np.asarray(numbers)])


@pytest.fixture
def rows(tmp_path):
    own = np.arange(4000, dtype="f4").reshape(1000, 4)
    own.tofile(tmp_path / "rows")
    return own, vm.memmap(tmp_path / "rows", "f4", "r", shape=own.shape, cache_bytes=1 << 20)


@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_loaders_of_torch(rows, method):
    data = pytest.importorskip("torch.utils.data")
    if method not in multiprocessing.get_all_start_methods():
        pytest.skip(f"there is no {method}")
    own, array = rows
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for _ in range(2):
            loader = data.DataLoader(
                Rows(array), batch_size=50, num_workers=4, multiprocessing_context=method, shuffle=True
            )
            found = np.concatenate([batch.numpy() for batch in loader])
            same(found[np.argsort(found[:, 0])], own)
    same(array[999], own[999])


def _total(array, number):
    return float(array[number].sum()), type(array).__name__


def test_joblib(rows):
    joblib = pytest.importorskip("joblib")
    own, array = rows
    for given in (array, vm.asarray(own)):
        work = (joblib.delayed(_total)(given, number) for number in (0, 7, 999))
        found = joblib.Parallel(n_jobs=2)(work)
        assert found == [(float(own[number].sum()), "Array") for number in (0, 7, 999)]


def test_dask_reads_files_of_other_programs(rows):
    pytest.importorskip("dask")
    import vmarray.dask

    own, array = rows
    x = vmarray.dask.to_dask(array, chunks=(100, 4))
    assert float(x.sum().compute(scheduler="processes", num_workers=2)) == float(own.sum(dtype="f8"))
    assert float(x.sum().compute(scheduler="threads")) == float(own.sum(dtype="f8"))


def test_zarr_stores_travel(tmp_path):
    pytest.importorskip("zarr")
    vm.to_zarr(vm.arange(100).reshape(10, 10), tmp_path / "a.zarr", chunks=(5, 10))
    with vm.open(tmp_path / "a.zarr", mode="r") as array, multiprocessing.get_context("spawn").Pool(1) as pool:
        assert pool.apply_async(_total, (array, 3)).get(60) == (345.0, "Array")
