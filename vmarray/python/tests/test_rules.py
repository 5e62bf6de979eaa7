"""NumPy's rules for rare inputs: byte orders, casts of assigned values, requested dtypes, infinities."""

import multiprocessing
import operator
import os
import pickle
import warnings

import numpy as np
import pytest

import vmarray as vm
from conftest import RECORD, outcome, same

BIG = [np.dtype(name) for name in (">i2", ">u4", ">i8", ">f4", ">f8", ">c16", ">M8[s]", ">U3")]


@pytest.mark.parametrize("dtype", BIG, ids=str)
def test_masked_items_of_another_byte_order(dtype, tmp_path):
    own = np.array([1, 2, 3]).astype(dtype)
    mask = np.array([False, True, False])
    expected = own.copy()
    expected[mask] = own[0]
    for choose in (vm.asarray(mask), mask):
        array = vm.asarray(own)
        array[choose] = own[0]
        same(array, expected)
        array[vm.asarray(~mask & mask)] = own[0]
        same(array, expected)
    if dtype.kind in "iuf":
        pytest.importorskip("zarr")
        vm.to_zarr(own, tmp_path / "a.zarr", chunks=(2,))
        with vm.open_zarr(tmp_path / "a.zarr", home=True) as array:
            array[array > 9] = 0
            array[array == 2] = 7
        expected[mask] = 7
        assert np.asarray(vm.open_zarr(tmp_path / "a.zarr")).tolist() == expected.tolist()


def test_results_are_of_the_native_byte_order():
    own = np.array([3, 1, 2], ">i4")
    array = vm.asarray(own)
    for work in (
        lambda a: a + a,
        lambda a: -a,
        lambda a: np.where(a > 1, a, a),
        lambda a: np.add(a, a, dtype="f8"),
        lambda a: a.sum(),
        lambda a: a.max(),
        lambda a: np.concatenate([a, a]),
        lambda a: np.clip(a, 1, 2),
        lambda a: np.sort(a),
        lambda a: np.round(a),
        lambda a: np.cumsum(a),
    ):
        same(work(array), work(own))


def test_operands_are_cast_to_a_dtype_before():
    for dtype in (">i4", "i4", "u1"):
        own = np.array([2**31 - 1, 250, 3], "i8").astype(dtype)
        for kind in ("f8", "i8", "c16"):
            same(np.add(vm.asarray(own), vm.asarray(own), dtype=kind), np.add(own, own, dtype=kind))
            same(np.multiply(vm.asarray(own), own, dtype=kind), np.multiply(own, own, dtype=kind))
            same(vm.asarray(own).sum(dtype=kind), own.sum(dtype=kind))
    with pytest.raises(TypeError):
        np.add(vm.arange(3), 1, dtype="i1", casting="safe")


@pytest.mark.parametrize("value", [300, -1, [300, 1, 2], [1, -1, 2], [1, np.nan, 2], np.nan, "7", "x", 1.5, [1.5, 2, 3], None])
@pytest.mark.parametrize("key", [slice(None), np.arange(3), [0, 1, 2], np.ones(3, bool), Ellipsis])
@pytest.mark.parametrize("dtype", ["u1", "i8", ">u2", "f4", "?"])
def test_assigned_values_are_cast_like_numpy(value, key, dtype):
    own, array = np.zeros(3, dtype), vm.zeros(3, dtype)
    wanted = outcome(lambda: own.__setitem__(key, value))[1]
    assert outcome(lambda: array.__setitem__(key, value))[1] == wanted
    # NumPy may have written some items before it refuses one; here none is written.
    same(array, own if wanted is None else np.zeros(3, dtype))
    if key is not Ellipsis and np.ndim(value) == 0:
        own, array = np.zeros(3, dtype), vm.zeros(3, dtype)
        wanted = outcome(lambda: own.__setitem__(own == 0, value))[1]
        assert outcome(lambda: array.__setitem__(array == 0, value))[1] == wanted
        same(array, own)


@pytest.mark.parametrize("value", [[5.0], np.array([5.0]), np.array(5.0), np.array([[5.0]]), [5.0, 6.0], np.float32(5), (5,)])
@pytest.mark.parametrize("key", [0, (0,), -1, np.int64(1), (0, Ellipsis), slice(0, 1)])
def test_one_item_is_assigned(value, key):
    for given in (value, vm.asarray(value) if isinstance(value, np.ndarray) else value):
        own, array = np.zeros(3), vm.zeros(3)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)
            wanted = outcome(lambda: own.__setitem__(key, value))[1]
            assert outcome(lambda: array.__setitem__(key, given))[1] == wanted
        same(array, own)


def test_infinities_have_no_deviation():
    own = np.array([1, np.inf, np.nan, -np.inf])
    for name in ("nanstd", "nanvar", "nanmean", "nansum", "std", "var", "mean"):
        for part in (own, own[:2], own[[0, 2]], own[[2]]):
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", RuntimeWarning)
                same(getattr(np, name)(vm.asarray(part)), getattr(np, name)(part))


def test_items_that_are_close():
    for one, other in [
        (np.array([1, 2], "u1"), np.array([2, 1], "u1")),
        (np.array([1, 2], "u8"), [2, 2]),
        ([1, 2], np.array([1, 2.0])),
        (np.array([1, 250], "u1"), 3),
        (np.array([np.inf, np.nan, 1]), np.array([np.inf, np.nan, 1 + 1e-9])),
        (np.array([1 + 1j]), np.array([1 + 1j])),
    ]:
        for equal_nan in (False, True):
            ours = [vm.asarray(value) if isinstance(value, np.ndarray) else value for value in (one, other)]
            same(np.isclose(*ours, equal_nan=equal_nan), np.isclose(one, other, equal_nan=equal_nan))
            assert np.allclose(*ours, equal_nan=equal_nan) == np.allclose(one, other, equal_nan=equal_nan)


@pytest.mark.parametrize(
    ("limits", "dtype"),
    [
        ((1, 2, 0.1), None),
        ((0, 0.9, 0.3), None),
        ((4, 1, -1.2), "i8"),
        ((np.uint64(3), np.uint64(9)), None),
        ((2**63, 2**63 + 5), "u8"),
        ((0, 3.0), None),
        ((np.float32(0), np.float32(1), np.float32(0.1)), None),
        ((0, 5, 2), "u1"),
        ((0, 2, 0.25), "f2"),
        ((0, 1, 0.1), "c16"),
        ((5, 0), None),
        ((True, 5), None),
        ((0, 2), "?"),
        ((-3, 3), ">i4"),
        ((10, 0, -3), "i1"),
        ((np.int8(0), np.float32(9.5), np.uint8(2)), None),
        ((np.uint64(1), 20, np.float16(2.5)), ">f4"),
        ((np.datetime64("2020-01-01"), np.datetime64("2020-01-05")), None),
    ],
    ids=str,
)
def test_arange(limits, dtype):
    same(vm.arange(*limits, dtype=dtype), np.arange(*limits, dtype=dtype))


def test_zeroes_with_signs():
    own = np.array([0.0, -0.0, np.nan, -0.0, 0.0, -1.0, -np.nan])
    for dtype in ("f4", "f8", "f2"):
        array = vm.asarray(own.astype(dtype))
        expected = np.sort(own.astype(dtype), kind="stable")
        for ours in (vm.sort(array), array.take(array.argsort()), np.sort(array)):
            assert np.signbit(np.asarray(ours)).tolist() == np.signbit(expected).tolist()
            same(ours, expected)


def test_bincount():
    for values, weights in [([1, 2, 2], [0.5, 1, 2]), ([1, 2, 2], None), ([3, 1], [1, 2]), ([0, 1], np.array([1, 2], ">i4"))]:
        same(np.bincount(vm.asarray(values), weights), np.bincount(values, weights))
        same(vm.bincount(values, weights), np.bincount(values, weights))
    for wrong in ([1.0, 2, 3, 4], [1.0]):
        with pytest.raises(ValueError, match="same length"):
            np.bincount(vm.asarray([1, 2, 2]), wrong)
    for dtype in ("u8", "?", "f8", "i1"):
        own = np.array([1, 1], dtype)
        (ours, mistake), (numpys, error) = outcome(lambda: np.bincount(vm.asarray(own))), outcome(lambda: np.bincount(own))  # noqa: B023
        assert mistake == error and (error or same(ours, numpys) is None)


@pytest.mark.parametrize("shape", [(7,), (50, 3), (4, 5, 6), (1, 4), (0, 3)])
def test_shuffled_rows_are_the_same_rows(shape):
    for axis in range(len(shape)):
        own = np.arange(np.prod(shape)).reshape(shape)
        array = vm.asarray(own)
        vm.random.default_rng(3).shuffle(array, axis=axis)
        same(np.sort(np.asarray(array), axis), np.sort(own, axis))
        ours = np.moveaxis(np.asarray(array), axis, 0)
        rows = {row.tobytes() for row in np.moveaxis(own, axis, 0)}
        assert {row.tobytes() for row in ours} == rows
        permuted = vm.random.default_rng(3).permutation(own, axis=axis)
        assert {row.tobytes() for row in np.moveaxis(np.asarray(permuted), axis, 0)} == rows


def test_which_results_share_memory():
    own = np.arange(12).reshape(3, 4)
    for work in (
        lambda a: a.ravel(),
        lambda a: a[::2].ravel(),
        lambda a: a.T.ravel(),
        lambda a: a.reshape(-1),
        lambda a: a[:, ::2].reshape(-1),
        lambda a: a[0, ::2].ravel(),
        lambda a: a[0, ::2].reshape(1, 2),
        lambda a: np.ravel(a),
        lambda a: a.ravel("F"),
        lambda a: a.clip(),
        lambda a: np.clip(a, 0, 100),
        lambda a: a.astype(a.dtype),
        lambda a: a.astype(a.dtype, copy=False),
        lambda a: a.flatten(),
        lambda a: a.squeeze(),
        lambda a: np.nan_to_num(a, copy=False),
    ):
        numpys, ours = own.copy(), vm.asarray(own.copy())
        theirs, mine = work(numpys), work(ours)
        theirs[...], mine[...] = -1, -1
        same(ours, numpys)


def test_clip():
    own = np.array([0, 3, 200], "u1")
    for least, most in [(-1, 300), (1, None), (None, 7), (2, 5), (5, 2), (np.int64(-1), 3), (0.5, 2), (None, None)]:
        same(np.clip(vm.asarray(own), least, most), np.clip(own, least, most))
        same(vm.asarray(own).clip(least, most), own.clip(least, most))
    same(np.clip([1, 5, 9], vm.asarray([2, 2, 2]), 8), np.clip([1, 5, 9], [2, 2, 2], 8))
    for wrong in (lambda a: np.clip(a, 300, 400), lambda a: np.clip(a, -5, -1)):
        assert outcome(lambda: wrong(vm.asarray(own)))[1] == outcome(lambda: wrong(own))[1]  # noqa: B023


def test_powers_for_which_numpy_has_a_function():
    numbers = np.array([0, 1, 2, 3, -np.inf, -0.0, np.nan, 0.25, -2, np.inf])
    for dtype in ("?", "i1", "u8", "f2", "f4", "f8", "c16", ">f8"):
        own = (numbers if np.dtype(dtype).kind in "fc" else numbers[:4]).astype(dtype)
        for exponent in (2, 0.5, -1, 2.0, np.float64(0.5), np.array([0.5]), True):
            if own.dtype.kind in "biu" and exponent is not True and np.size(exponent) == 1 and exponent == -1:
                continue
            with np.errstate(all="ignore"):
                same(vm.asarray(own) ** exponent, own**exponent)
        if dtype != "?":
            with np.errstate(all="ignore"):
                ours, numpys = vm.asarray(own), own.copy()
                ours **= 2
                numpys **= 2
                same(ours, numpys)


def test_numbers_of_numpy_are_cast_at_masks_and_lists():
    for key in ([0, 1], np.array([True, True, False])):
        for value in (np.int64(300), np.int8(-1), np.float32(1.5), np.timedelta64(5, "s")):
            own, array, other = np.zeros(3, "u1"), vm.zeros(3, "u1"), vm.zeros(3, "u1")
            own[key] = value
            array[key] = value
            other[vm.asarray(np.array([True, True, False]))] = value
            same(array, own)
            same(other, own)


def test_an_axis_is_one_number():
    own = np.arange(6.0).reshape(2, 3)
    for name in ("cumsum", "cumprod", "argmax", "sort", "argsort", "diff"):
        with pytest.raises(TypeError):
            getattr(np, name)(vm.asarray(own), axis=(0, 1))
    with pytest.raises(TypeError):
        vm.asarray(own).sum(axis=[0, 1])


def test_the_weights_of_a_mean_that_is_no_number():
    own = np.array([[1, np.inf, 2], [np.nan, 1, 1]])
    for axis in (None, 0, 1):
        for one, other in zip(np.average(vm.asarray(own), axis, returned=True), np.average(own, axis, returned=True)):
            same(one, other)


def test_single_items():
    own = np.arange(6.0).reshape(2, 3)
    array = vm.asarray(own)
    assert array.item(-1) == own.item(-1) and array.item(1, 2) == own.item(1, 2)
    for wrong in (6, -7):
        with pytest.raises(IndexError):
            array.item(wrong)
    assert f"{vm.asarray(np.array(2.5)):.1f}" == "2.5" and f"{array}" == str(array)
    array.T[::2].fill(7)
    own.T[::2].fill(7)
    same(array, own)
    with pytest.raises(AttributeError, match=r"numpy\.asarray\(array\)\.data"):
        array.data
    for indices in ([1.0], [True, False], 1.0):
        same(np.take(array, indices), np.take(own, indices))
    with pytest.raises(TypeError):
        np.take(array, np.array([1.0]))


def test_reductions_of_any_axes():
    own = np.arange(24.0).reshape(2, 3, 4)
    for name in "sum prod min max mean any all std var ptp".split():
        work = getattr(np, name)
        for axis in (None, (), (0, 1), (2, 0), (0, 1, 2), -1, (-1, 0)):
            same(work(vm.asarray(own), axis=axis), work(own, axis=axis))
        for single in (np.array(3.0), np.array(True), np.array(4, "i2")):
            for axis in (None, ()):
                result, wanted = outcome(lambda: work(vm.asarray(single), axis=axis)), outcome(lambda: work(single, axis=axis))  # noqa: B023
                assert result[1] == wanted[1]
                if wanted[1] is None:
                    same(result[0], wanted[0])
    same(np.sort(vm.asarray(own[::-1]), axis=None), np.sort(own[::-1], axis=None))
    same(vm.sort(vm.asarray(own[::-1]), axis=None), np.sort(own[::-1], axis=None))
    same(own.sum(initial=3, where=own > 2), vm.asarray(own).sum(initial=3, where=vm.asarray(own) > 2))


def test_comparisons_of_structures_and_strings():
    own = np.zeros(3, RECORD)
    own["y"] = [1, 2, 3]
    for work in (
        lambda a, b: a == b,
        lambda a, b: a != b,
        lambda a, b: a == b[1],
        lambda a, b: a["x"] == b["x"],
    ):
        same(work(vm.asarray(own), vm.asarray(own[::-1])), work(own, own[::-1]))
        same(work(vm.asarray(own), own[::-1]), work(own, own[::-1]))
    numbers, texts = np.arange(3), np.array(["a", "b", "c"])
    same(vm.asarray(numbers) == "a", numbers == "a")
    same(vm.asarray(texts) == "a", texts == "a")
    same(vm.asarray(texts) != vm.asarray(texts[::-1]), texts != texts[::-1])
    same(vm.asarray(numbers) == None, numbers == None)  # noqa: E711


def _seen(array):
    try:
        array[0] = 5
        return float(array.sum()), "written"
    except OSError:
        return float(array.sum()), "read"


def _tried(array):
    try:
        return float(array[0])
    except vm.FileError as error:
        return type(error).__name__


def test_pickles_keep_mode_and_identity(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with vm.create("a", 3) as array:
        array[:] = 2
        assert pickle.loads(pickle.dumps(array)) is array
    array = vm.open("a", mode="r")
    assert pickle.loads(pickle.dumps(array)) is array
    shown = pickle.dumps(array)
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        assert pool.apply_async(_seen, (array,)).get(60) == (6.0, "read")
    array.close()
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir("elsewhere")
    again = pickle.loads(shown)
    with pytest.raises(vm.FileError):
        again[0] = 1
    same(again, np.full(3, 2.0))
    again.close()
    # An array open for writing has its file to itself: a second use is an error, and no process waits
    # forever.
    array = vm.open(tmp_path / "a")
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        assert pool.apply_async(_tried, (array,)).get(60) == "FileError"
    shown = pickle.dumps(array)
    array.close()
    again = pickle.loads(shown)
    again[0] = 9
    same(again, [9.0, 2, 2])


def test_messages_have_pythons_names(tmp_path):
    array = vm.zeros(2, max_len=3)
    with vm.create(tmp_path / "a", 3) as made:
        made[:] = 1
    for work in (
        lambda: array.append([1, 2, 3]),
        lambda: vm.zeros(3).append([1] * 100),
        lambda: vm.zeros(2**42, "u1", devices="host"),
        lambda: vm.zeros(3, devices="no such"),
        lambda: vm.zeros(3, devices=","),
        lambda: vm.open(tmp_path / "a", "i2"),
        lambda: vm.open(tmp_path / "a", mode="r").__setitem__(0, 1),
        lambda: vm.zeros(3, page_len=2**60),
        lambda: np.flatnonzero(vm.zeros(3), wrong=1),
        lambda: np.sum(vm.zeros(3), wrong=1),
        lambda: vm.arange(3).sum(wrong=1),
        lambda: np.copy(vm.zeros((2, 2)), order="X"),
        lambda: np.linalg.inv(vm.zeros(2)),
    ):
        with pytest.raises(Exception) as raised:  # noqa: PT011
            work()
        text = str(raised.value) + getattr(raised.value, "advice", "")
        for rust in ("::", "HostDevice", "FileDevice", "<lambda>", "Some(", "None)"):
            assert rust not in text, text
        # Construct the error as `distributed` constructs exceptions that workers send.
        type(raised.value).__new__(type(raised.value), *raised.value.args)
        again = pickle.loads(pickle.dumps(raised.value))
        assert str(again) == str(raised.value)
    with pytest.raises(vm.OutOfMemoryError, match="vmarray.create") as raised:
        vm.zeros(2**42, "u1", devices="host")
    assert "vmarray.create" in raised.value.advice
    with pytest.raises(Exception, match="max_len="):
        array.append([1, 2, 3])


def test_the_repr_shows_pending_expressions():
    later = vm.zeros((2000, 5000), devices="host") + 1
    assert "shape=(2000, 5000)" in repr(later) and "float64" in repr(later) and "not computed yet" in repr(later)
    assert later.devices[0].name in repr(later)
    chosen = later[later > 0]
    assert "not counted yet" in repr(chosen) and "float64" in repr(chosen)


def test_packages_that_are_missing_are_named(monkeypatch, tmp_path):
    import sys

    monkeypatch.setitem(sys.modules, "zarr", None)
    for work in (
        lambda: vm.open_zarr(tmp_path / "a.zarr"),
        lambda: vm.to_zarr(np.ones(3), tmp_path / "a.zarr"),
        lambda: vm.open_zarr(tmp_path / "a.zarr", home=True),
    ):
        with pytest.raises(ImportError, match=r"pip install 'vmarray\[zarr\]'"):
            work()
    monkeypatch.setitem(sys.modules, "dask", None)
    monkeypatch.setitem(sys.modules, "dask.array", None)
    monkeypatch.delitem(sys.modules, "vmarray.dask", raising=False)
    with pytest.raises(ImportError, match=r"pip install 'vmarray\[dask\]'"):
        import vmarray.dask  # noqa: F401


def test_options_of_an_array_that_is_there_are_not_ignored():
    array = vm.arange(100, devices="host")
    assert vm.asarray(array) is array and vm.asarray(array, devices="host") is array
    other = vm.asarray(array, cache_bytes=1 << 14, page_len=16, devices="host")
    assert other is not array and other.memory()["page_bytes"] == 128
    same(other, array)
    assert vm.asarray(array, "f4", page_len=16).dtype == np.float32
    with pytest.raises(ValueError, match="leave `copy` out"):
        vm.asarray(array, page_len=16, copy=False)
    with pytest.raises(TypeError, match="no option"):
        vm.asarray(array, page=16)
    assert vm.array(array, devices="host", page_len=16).memory()["page_bytes"] == 128


def test_numbers_in_lists_of_arrays_are_of_their_dtype():
    own = np.array([1, 2], "i1")
    for more in (0, 2.5, [1, 2], True):
        same(np.concatenate([vm.asarray(own), more], axis=None), np.concatenate([own, more], axis=None))


def test_writes_to_some_fields_keep_the_others():
    own = np.zeros(6, RECORD)
    own["x"], own["y"], own["z"] = 1, 2, 3
    for fields in (["x"], ["z", "x"], ["y"]):
        for key in (Ellipsis, slice(1, 4), [0, 2], 3, np.array([True, False] * 3)):
            array, numpys = vm.asarray(own), own.copy()
            value = np.ones((), numpys[fields].dtype)[()]
            for one in (array, numpys):
                one[fields][key] = value
            same(array, numpys)
        array, numpys = vm.asarray(own), own.copy()
        array[fields] = vm.asarray(own[::-1][fields])
        numpys[fields] = own[::-1][fields]
        array[fields] = vm.asarray(own)[fields]
        same(array, numpys)


def test_several_items_of_one_element_are_written():
    """Items shorter than the elements that a structure is made of."""
    for record in (RECORD, np.dtype("S7, (2,3)u2, u1"), np.dtype([("a", "u1", (8,))]), np.dtype([("a", "u1"), ("b", "u1", (5,))])):
        own = np.zeros(6, record)
        for name in record.names:
            if not record[name].shape:
                continue
            shape = own[name].shape
            ones = np.arange(1, np.prod(shape) + 1).reshape(shape).astype(own[name].dtype)
            for key in (Ellipsis, slice(1, 4), [0, 2], [3, 3, 1], 0, (0, 1), np.s_[::-1], np.s_[:, ::2], np.s_[:, 1:]):
                for value in (1, ones[key], vm.asarray(ones)[key]):
                    array, numpys = vm.asarray(own), own.copy()
                    numpys[name][key] = np.asarray(value)
                    array[name][key] = value
                    same(array, numpys)
            array, numpys = vm.asarray(own), own.copy()
            array[name][...] = vm.asarray(ones) * 2 + 1
            numpys[name][...] = ones * 2 + 1
            array[name][array[name] > 5] = 0
            numpys[name][numpys[name] > 5] = 0
            same(array, numpys)
    texts = vm.zeros(4, "S6, S1, S1")
    texts["f1"], texts["f2"] = b"a", b"b"
    assert np.asarray(texts).tolist() == [(b"", b"a", b"b")] * 4


def test_appended_values_are_cast_like_assigned_ones():
    for dtype in ("u1", "i1", ">i2", "i8"):
        array, rows = vm.zeros(0, dtype, max_len=100), vm.Ragged(dtype=dtype)
        for value in (2**70, [1, -(2**70)], np.nan, [np.nan], "x"):
            for work in (lambda: array.append(value), lambda: rows.append(np.ravel(value).tolist())):  # noqa: B023
                with pytest.raises((OverflowError, ValueError, TypeError)):
                    work()
        assert len(array) == len(rows) == 0
        array.append([1, 2])
        array.append(3)
        rows.append([1, 2])
        assert array.tolist() == [1, 2, 3] and rows[0].tolist() == [1, 2]
    for work in (lambda: vm.zeros(0, "u1", max_len=9).append([300]), lambda: vm.Ragged(dtype="i1").append([300])):
        with pytest.raises(OverflowError):
            work()


def test_a_cast_that_is_forbidden_is_the_first_error():
    own = np.array([1, 2], "u4")
    for work in (
        lambda a: operator.ipow(a, np.array([1, -2], "i2")),
        lambda a: operator.itruediv(a, 2),
        lambda a: np.power(a, np.array([-1, 1]), out=a),
        lambda a: np.bitwise_xor(a, -1, dtype="u1"),
    ):
        errors = []
        for array in (own.copy(), vm.asarray(own)):
            with pytest.raises((TypeError, OverflowError)) as raised:
                work(array)
            errors.append((raised.type, str(raised.value)))
        assert errors[0] == errors[1]


def test_a_value_that_does_not_fit_is_an_error_before_a_wrong_key():
    for array in (np.zeros(3, "i1"), vm.zeros(3, "i1")):
        with pytest.raises(OverflowError):
            array[[7, 1]] = 300
        np.copyto(array, np.int32(2**31 - 2))
        assert array.tolist() == [-2, -2, -2]
        np.left_shift(array, 1.5, out=array, casting="unsafe", dtype="i1")
        assert array.tolist() == [-4, -4, -4]


def test_strings_are_multiplied_in_place():
    for own in (np.array(["a", "bc"]), np.array([b"a", b"bc"]), np.array(["a", "bc"], ">U3")):
        for factor in (2, np.array([0, 3])):
            array, numpys = vm.asarray(own), own.copy()
            array *= factor
            numpys *= factor
            same(array, numpys)


def test_a_zero_between_bounds_keeps_its_sign():
    for dtype in ("f2", "f4", "f8"):
        own = np.array([-0.0, 0.0, 1, -1, np.nan], dtype)
        for least, most in ((0.0, 1), (-0.0, 1), (-1, 0.0), (-1, -0.0), (0, 0), (0.0, -0.0), (np.nan, 1), (0, np.nan)):
            same(np.clip(vm.asarray(own), least, most), np.clip(own, least, most))
        bounds = np.array([0.0, -0.0, -0.0, 0.0, 1], dtype)
        same(np.clip(vm.asarray(own), bounds, 3), np.clip(own, bounds, 3))
        same(np.clip(vm.asarray(own), -3, vm.asarray(bounds)), np.clip(own, -3, bounds))


def test_infinite_items_have_the_quantiles_of_numpy():
    own = np.array([np.inf, np.inf, 1, -np.inf])
    with vm.progress(lambda done, total: None), np.errstate(all="ignore"):
        same(np.quantile(vm.asarray(own), [0, 0.3, 0.5, 1]), np.quantile(own, [0, 0.3, 0.5, 1]))
        same(np.percentile(vm.asarray(own), 50), np.percentile(own, 50))


@pytest.mark.parametrize("dtype", "i1 u1 i2 u8 i8 f4 f8".split())
def test_quantiles_of_devices_equal_numpys(dtype):
    random = np.random.default_rng(5)
    sizes = (1, 2, 3, 11, 64, 101, 20_001) if os.environ.get("VMARRAY_ALL_CASES") else (1, 2, 64)
    for size in sizes:
        own = random.integers(0, 127, size) if dtype[0] in "iu" else random.standard_normal(size) * 50
        own = own.astype(dtype)
        for share in (0.5, 0.1, 0.3, 0.7, 1 / 3, 0, 1, [0.1, 0.9], [0, 1], np.float32(0.1), np.float64(0.7)):
            percent = share * 100 if np.ndim(share) == 0 else [100 * one for one in share]
            for method in ("linear", "lower", "higher", "midpoint"):
                with vm.progress(lambda done, total: None):
                    ours = [vm.quantile(own, share, method=method), vm.percentile(own, percent, method=method)]
                same(ours[0], np.quantile(own, share, method=method))
                same(ours[1], np.percentile(own, percent, method=method))


@pytest.mark.parametrize("order", "CKA")
def test_a_cast_to_the_same_dtype_is_a_copy_if_the_order_differs(order):
    fields = np.zeros(4, [("a", "i2"), ("b", ">i4")])
    for whole in (np.ones((3, 4)), np.ones(8), fields, np.ones((2, 0)), np.ones((1, 5))):
        for view in (lambda a: a, lambda a: a.T, lambda a: a["b"] if a.dtype.names else a[::2], lambda a: a[::-1]):
            own, array = view(whole), view(vm.asarray(whole))
            for copy in (True, False):
                is_own = own.astype(own.dtype, order=order, copy=copy) is own
                assert (array.astype(own.dtype, order=order, copy=copy) is array) == is_own, (own.strides, copy)


def test_integer_quantiles_of_devices_are_exact():
    for own in (np.array([8, 5, 2**64 - 2], "u8"), np.array([-(2**63), 3, 2**63 - 1], "i8")):
        with vm.progress(lambda done, total: None):
            for share in (0, 1):
                same(np.quantile(vm.asarray(own), share), np.quantile(own, share))


def test_errors_name_the_value_and_a_remedy():
    array = vm.zeros(3)
    xp = array.__array_namespace__()
    for work, kind, words in (
        (lambda: vm.arange(1, 2, 3, 4, 5), TypeError, ["not 5", "arange(start, stop, step)"]),
        (lambda: vm.asarray(array, "i4", copy=False), ValueError, ["float64", "int32", "leave `copy` or `dtype` out"]),
        (lambda: vm.asarray(np.zeros((2, 3)).T, copy=False), ValueError, ["(8, 24)", "leave `copy` out"]),
        (lambda: xp.asarray([1], copy=False), ValueError, ["list", "leave `copy` out"]),
        (lambda: xp.asarray(array, dtype=xp.int32, copy=False), ValueError, ["float64", "leave `copy` out"]),
        (lambda: xp.from_dlpack(np.zeros(1), copy=False), BufferError, ["ndarray", "leave `copy` out"]),
        (lambda: vm.IndexSet({0: [1, -7]}), ValueError, ["-7", "from 0"]),
        (lambda: vm.IndexSet({0: [1.5]}), TypeError, ["float64", "astype(int)"]),
    ):
        with pytest.raises(kind) as raised:
            work()
        assert all(word in str(raised.value) for word in words), raised.value
    assert xp.asarray(array, copy=False) is array


def test_a_write_with_several_faults_has_the_error_of_numpy():
    pairs = np.zeros((3, 4), [("x", "f4"), ("y", "i8")])
    cases = [
        (np.zeros((3, 4)), np.s_[::2], pairs),
        (np.zeros(7, ">u8"), np.array([True, False] * 3 + [True]), np.zeros(7, "i2, S2")),
        (np.zeros((2, 3, 2), "m8[s]"), ([0, 1], [0, 0]), pairs),
        (np.zeros((2, 3, 2)), (None, [0, 2], None), [[[4.5, 1]], [[8.5, 1]]]),
        (np.zeros((2, 0), "f2"), (), np.zeros((2, 0), "i2, S2")),
    ]
    for own, key, value in cases:
        for given in (value, vm.asarray(value)):
            with pytest.raises((TypeError, ValueError, IndexError)) as theirs:
                own.copy()[key] = value
            array = vm.asarray(own)
            with pytest.raises(theirs.type):
                array[key] = given
            same(array, own)


@pytest.mark.parametrize("dtype", "? i1 i4 u1 i8 u8 f2 f8 c8 M8[s] S3 U2 >i2".split())
def test_where_takes_an_integer_of_python_as_numpy_does(dtype):
    # NumPy wraps an integer that the dtype cannot hold; from version 2.5 on it raises an error.
    mask, own = np.array([True, False]), np.zeros(2, dtype)
    for number in (7, -1, 300, 2**63 - 1, -(2**31) - 1, 2**63, 2**64 - 1, 2**70):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            theirs, error = outcome(lambda: np.where(mask, own, number))  # noqa: B023
            ours, mistake = outcome(lambda: np.where(vm.asarray(mask), vm.asarray(own), number))  # noqa: B023
        assert error == mistake, (number, error, mistake)
        if error is None:
            same(ours, theirs)


def test_a_complex_number_is_converted_by_unsafe_casting():
    own, options = np.array([3 + 1j, 1j]), {"dtype": "f8", "casting": "unsafe"}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        same(np.true_divide(6 + 1j, vm.asarray(own), **options), np.true_divide(6 + 1j, own, **options))


def test_nan_to_num_in_place_without_axes():
    for dtype in ("f4", "c8"):
        own = np.array(np.nan, dtype)
        array = vm.asarray(own)
        np.nan_to_num(array, copy=False), np.nan_to_num(own, copy=False)
        same(array, own)


def test_an_extreme_of_zeroes_has_their_sign():
    for dtype in ("f2", "f4", "f8"):
        for own in (np.full(3, -0.0, dtype), np.zeros((2, 2), dtype)):
            array = vm.asarray(own)
            same(array.min(), own.min())
            same(array.max(), own.max())
            same((array * 1).min(), (own * 1).min())
