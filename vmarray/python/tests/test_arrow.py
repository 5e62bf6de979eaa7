"""Columns and tables of Arrow in both directions, with the libraries that people use."""

import gc
import weakref

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

import vmarray as vm
from conftest import COMPUTED, same, values
from vmarray import _arrow

pa = pytest.importorskip("pyarrow")
KINDS = [*COMPUTED, *map(np.dtype, [">i4", ">f8", "M8[s]", "M8[ns]", "M8[D]", "m8[ms]"])]
TABLE = np.dtype([("x", "f4"), ("id", ">i8"), ("ok", "?"), ("at", "M8[us]"), ("v", "u1", (3,))])


@given(st.sampled_from(KINDS), hnp.array_shapes(min_dims=1, max_dims=3, min_side=0, max_side=9), st.integers(0, 99))
def test_columns_travel_both_ways(dtype, shape, seed):
    shape = (shape[0], *(max(1, extent) for extent in shape[1:]))
    own = values(shape, dtype, seed)
    own = own.astype("M8[D]") if dtype == "M8[D]" else own
    if dtype.kind in "mM":
        own = (own.view("i8") % 10**6).view(dtype)
        own = own.astype("i4").astype(dtype) if dtype == "M8[D]" else own
    column = pa.chunked_array(vm.asarray(own))
    assert len(column) == len(own)
    native = own.astype(own.dtype.newbyteorder("="))
    if own.ndim == 1 and dtype.kind not in "mM":
        same(np.asarray(column).astype(native.dtype), native)
    same(vm.from_arrow(column), native)
    same(vm.from_arrow(vm.asarray(own)), native)


def test_dates_and_missing_dates_are_arrows_own():
    days = np.array(["2020-01-01", "NaT", "1969-12-31", "2021-01-01"], "M8[D]")
    for own in (days, days.astype("M8[ns]"), days - days[0]):
        column = pa.chunked_array(vm.asarray(own.astype("m8[s]") if own.dtype.kind == "m" else own))
        assert column.null_count == 1
        assert column.to_pylist()[0] == pa.array(own.astype("m8[s]") if own.dtype.kind == "m" else own).to_pylist()[0]
    same(vm.from_arrow(pa.array(days.tolist())), days)
    same(vm.from_arrow(pa.array(days)), days)
    with pytest.raises(OSError, match="outside of the range"):
        pa.chunked_array(vm.asarray(np.array([2**40], "i8").view("M8[D]")))


def test_capsules_outlive_what_consumers_take_from_them():
    capsule = vm.asarray(np.zeros(10, TABLE)).__arrow_c_stream__()
    assert pa.RecordBatchReader._import_from_c_capsule(capsule).read_all().num_rows == 10
    gc.collect()
    del capsule
    gc.collect()
    with pytest.raises(TypeError, match="copy"):
        vm.from_arrow(pa.array([1.0, 2.0]), copy=False)


def test_tables_travel_both_ways(monkeypatch):
    monkeypatch.setattr(_arrow, "_PIECE", 300)
    own = np.zeros(1000, TABLE)
    own["x"], own["id"], own["ok"] = np.arange(1000) / 3, np.arange(1000) * 7, np.arange(1000) % 3 == 0
    own["v"] = np.arange(3000).reshape(1000, 3)
    table = pa.table(vm.asarray(own))
    assert table.num_rows == 1000 and table.column("x").num_chunks > 50
    columns = vm.from_dataframe(table)
    for name in TABLE.names:
        same(columns[name], own[name].astype(own[name].dtype.newbyteorder("=")))
    part = table.slice(13, 500)
    for name, column in vm.from_dataframe(part).items():
        same(column, own[name][13:513].astype(own[name].dtype.newbyteorder("=")))
    # All that was exported is freed, also if no library has read it.
    kept = weakref.ref(array := vm.asarray(own))
    for work in (pa.table, lambda array: array.__arrow_c_stream__()):
        work(array)
    del array
    gc.collect()
    assert kept() is None


def test_columns_with_offsets_and_gaps():
    column = pa.array([1.5, None, 3, None, 5], pa.float32())
    same(vm.from_arrow(column), np.array([1.5, np.nan, 3, np.nan, 5], "f4"))
    same(vm.from_arrow(column[2:]), np.array([3, np.nan, 5], "f4"))
    same(vm.from_arrow(pa.array([True, False, True] * 7)[5:19]), np.array(([True, False, True] * 7)[5:19]))
    same(vm.from_arrow(pa.chunked_array([[1, 2], [], [3]], pa.int16())), np.array([1, 2, 3], "i2"))
    same(vm.from_arrow(pa.chunked_array([], pa.int16())), np.array([], "i2"))
    lists = pa.FixedSizeListArray.from_arrays(pa.array(range(12), pa.int32()), 3)
    same(vm.from_arrow(lists[1:3]), np.arange(3, 9, dtype="i4").reshape(2, 3))
    for wrong in (
        pa.array([1, None]), pa.array([True, None]), pa.array(["a"]), pa.array([[1], [2, 3]]),
        pa.array(["a", "b"]).dictionary_encode(), pa.array([None]),
    ):  # fmt: skip
        with pytest.raises(vm.InvalidError):
            vm.from_arrow(wrong)
    with pytest.raises(TypeError, match="Arrow"):
        vm.from_arrow(3)
    for wrong in (vm.zeros(3, "c16"), vm.zeros((), "f4"), vm.zeros(3, "S4")):
        with pytest.raises(vm.InvalidError):
            pa.chunked_array(wrong)


def test_errors_while_reading_are_errors_of_the_consumer(tmp_path):
    np.arange(100_000, dtype="f8").tofile(tmp_path / "a")
    array = vm.memmap(tmp_path / "a", "f8", "r", cache_bytes=1 << 16)
    (tmp_path / "a").write_bytes(b"")
    with pytest.raises(Exception, match="shortened"):
        pa.chunked_array(array)


def test_polars_reads_and_is_read():
    pl = pytest.importorskip("polars")
    own = np.zeros(100, [("id", "i8"), ("x", "f4")])
    own["id"], own["x"] = np.arange(100), np.arange(100) / 8
    frame = pl.DataFrame(pa.table(vm.asarray(own))).filter(pl.col("id") > 50)
    same(vm.from_dataframe(frame)["x"], own["x"][51:])
    series = pl.Series(vm.arange(10))
    assert series.to_list() == [*range(10)]
    same(vm.from_arrow(series), np.arange(10))
    assert vm.arange(3).to_numpy().tolist() == [0, 1, 2]


def test_duckdb_reads_and_is_read():
    duckdb = pytest.importorskip("duckdb")
    own = np.zeros(1000, [("id", "i8"), ("x", "f8")])
    own["id"], own["x"] = np.arange(1000) % 10, np.arange(1000)
    rows = pa.table(vm.asarray(own))  # noqa: F841
    found = duckdb.sql("select id, sum(x) as total from rows group by id order by id")
    columns = vm.from_dataframe(found)
    same(columns["id"], np.arange(10))
    same(columns["total"], np.array([own["x"][own["id"] == number].sum() for number in range(10)]))


def test_pandas_columns():
    pd = pytest.importorskip("pandas")
    columns = vm.from_dataframe(pd.DataFrame({"a": [1, 2], "b": [0.5, 1.5]}))
    same(columns["a"], np.array([1, 2]))
    same(columns["b"], np.array([0.5, 1.5]))
