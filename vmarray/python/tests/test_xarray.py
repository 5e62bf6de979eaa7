"""xarray with the package's chunk manager."""

import importlib.metadata

import numpy as np
import pytest

import vmarray as vm
from conftest import same

xarray = pytest.importorskip("xarray")


def test_a_data_set_is_read_into_arrays(tmp_path):
    pytest.importorskip("zarr")
    from vmarray.xarray import ChunkManager

    own = xarray.Dataset(
        {"heat": (("t", "y", "x"), np.arange(210.0).reshape(6, 5, 7)), "mask": (("y", "x"), np.eye(5, 7, dtype=bool))},
        coords={"t": np.arange(6)},
    )
    own.to_zarr(tmp_path / "a.zarr", consolidated=False, encoding={"heat": {"chunks": (2, 5, 3)}})
    found = xarray.open_zarr(tmp_path / "a.zarr", consolidated=False, chunks={}, chunked_array_type=ChunkManager())
    assert isinstance(found.heat.data, vm.Array) and isinstance(found.mask.data, vm.Array)
    same(found.heat.data, own.heat.values)
    same((found.heat * 2 + 1).sum("t").values, (own.heat * 2 + 1).sum("t").values)
    same(found.heat.isel(t=slice(1, 3)).values, own.heat.isel(t=slice(1, 3)).values)
    xarray.testing.assert_identical(found.load(), own)


def test_chunks_are_divided_as_asked():
    from vmarray.xarray import ChunkManager

    manager = ChunkManager()
    assert manager.normalize_chunks((2, -1, (3, 4)), (5, 6, 7)) == ((2, 2, 1), (6,), (3, 4))
    assert manager.normalize_chunks("auto", (5, 0), previous_chunks=((3, 2), None)) == ((3, 2), (0,))
    assert manager.normalize_chunks({0: 4}, (5, 2)) == ((4, 1), (2,))
    with pytest.raises(ValueError, match="add up"):
        manager.normalize_chunks(((2, 2),), (5,))
    assert manager.compute(vm.arange(3), 5)[1] == 5


def test_xarray_finds_the_manager():
    names = [one.name for one in importlib.metadata.entry_points(group="xarray.chunkmanagers")]
    if "vmarray" not in names:
        pytest.skip("the package is not installed")
    array = xarray.DataArray(np.arange(5)).chunk(2, chunked_array_type="vmarray")
    assert isinstance(array.data, vm.Array)
