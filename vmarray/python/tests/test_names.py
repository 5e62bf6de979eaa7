"""The names of NumPy's main namespace, and of its arrays: each one is there, or says why not."""

import inspect
import io

import numpy as np
import pytest

import vmarray as vm
from conftest import same
from vmarray import _dispatch, _functions, _large, _names


def _numpys():
    return {name for name in {*np.__all__, *dir(np)} if not name.startswith("_") and _names._is_there(name)}


def test_the_table_has_each_name_of_numpy_once():
    assert _numpys() <= set(_names.known()) <= set(dir(vm))
    listed = [name for names in _names.NAMES.values() for name in names.split()]
    assert len(listed) == len(set(listed))
    assert set(_names.ADVICE) == set(_names.NAMES["refused"].split())


@pytest.mark.parametrize("way", _names.NAMES)
def test_the_table_says_which_code_computes(way):
    for name in set(_names.NAMES[way].split()) & set(_names.known()):
        ours, numpys = getattr(vm, name), getattr(np, name, None)
        if way in ("ufuncs", "numpy"):
            assert ours is numpys and isinstance(numpys, np.ufunc) == (way == "ufuncs"), name
        elif way == "refused":
            with pytest.raises(TypeError, match="; "):
                ours(vm.zeros(2))
        elif way == "package":
            assert ours is not numpys, name
        else:
            is_known = way != "copy" and _functions.is_known(numpys)
            assert is_known == (way != "copy") and ours.__module__ in ("vmarray", "vmarray._names"), name


def test_names_that_are_not_there_are_errors():
    with pytest.raises(AttributeError, match="no attribute 'summ'"):
        vm.summ  # noqa: B018


def test_functions_make_arrays_of_lists_and_of_numpys_arrays():
    for values in ([3, 1, 2], np.array([3, 1, 2]), vm.array([3, 1, 2])):
        for made in (
            vm.cumsum(values),
            vm.concatenate([values, [1]]),
            vm.ediff1d(values),
            vm.diag(values),
            vm.sinc(values),
        ):
            assert isinstance(made, vm.Array)
    assert vm.sum([1, 2]) == 3 and vm.pi == np.pi and vm.float32 is np.float32


@pytest.mark.parametrize(
    "call",
    """eye(3) eye(3,2,1) eye(2,k=-5) identity(2) tri(3) tri(2,4,-1) tri(3,2,1,dtype='i2') linspace(0,1,5)
    linspace(0,1,5,endpoint=False) linspace(0,5,3,dtype=int) linspace([0,1],[2,3],4) logspace(0,2,3) geomspace(1,8,4)
    arange(start=2,stop=5) arange(5,step=2) arange(3,None) indices((2,3)) indices((2,3),dtype='u1') full((2,),fill_value=3)
    fromfunction(np.add,(2,3)) array([1,2],ndmin=3) array([1,2],copy=True,order='C') asanyarray([1,2]) zeros(2,int,'C')
    ones((2,2),order='C') empty_like([1,2],shape=0) full_like([1,2],7) require([1,2],'f4','C') ascontiguousarray(3)
    fromiter([1,2],int) frombuffer(b'abc',np.uint8) fromstring('1,2',sep=',') hanning(5) vander([1,2]) r_[1:4,0,4] c_[[1,2],[3,4]]
    mgrid[0:2,0:3] histogram_bin_edges([1,2],3)""".split(),
)
def test_creation(call):
    with np.errstate(all="ignore"):
        own, other = (
            eval(
                call,
                {"vm": one, "np": np, **{name: getattr(one, name) for name in (call.split("(")[0].split("[")[0],)}},
            )
            for one in (vm, np)
        )
    assert isinstance(own, vm.Array) and own.dtype == other.dtype and own.shape == other.shape
    assert np.array_equal(np.asarray(own), other)


def test_large_arrays_are_created_by_pieces(monkeypatch):
    monkeypatch.setattr("vmarray._ufuncs.PIECE", 100)
    for given in ((0, 1, 1003), (3, 3, 500), (5, -2, 301, False)):
        assert np.array_equal(np.asarray(vm.linspace(*given)), np.linspace(*given))
    assert np.array_equal(np.asarray(vm.linspace(0, 99, 400, dtype=int)), np.linspace(0, 99, 400, dtype=int))


def test_grids_of_coordinates():
    for given in ({}, {"sparse": True}, {"indexing": "ij"}, {"copy": False}):
        for own, other in zip(
            vm.meshgrid([1, 2], [3, 4, 5], [6], **given), np.meshgrid([1, 2], [3, 4, 5], [6], **given)
        ):
            assert isinstance(own, vm.Array) and np.array_equal(np.asarray(own), other)
    a, b = np.meshgrid(vm.arange(3), np.arange(2))
    assert isinstance(a, vm.Array) and a.shape == b.shape == (2, 3)


def test_like_makes_arrays_of_the_package():
    like = vm.zeros(1, devices="host")
    for made in (np.zeros(2, like=like), np.arange(3, like=like), np.asarray([1], like=like), np.eye(2, like=like)):
        assert isinstance(made, vm.Array) and made.devices == like.devices
    assert isinstance(np.fromiter([1, 2], int, like=like), vm.Array)
    assert vm.zeros(2, like=like).devices == like.devices


def test_arrays_have_the_names_of_numpys():
    array = vm.zeros(2)
    for name in dir(np.ndarray):
        if name.startswith("_") or hasattr(type(array), name):
            continue
        with pytest.raises(AttributeError, match=f"no attribute '{name}'; "):
            getattr(array, name)
    missing = {name for name in dir(np.ndarray) if not name.startswith("_")} - set(dir(array))
    assert missing == {"base", "ctypes", "data", "dump", "dumps", "getfield", "resize", "setfield"}
    with pytest.raises(TypeError, match="subclasses"):
        type("Own", (vm.Array,), {})


def test_orders_of_items():
    own = np.arange(12).reshape(3, 4)
    a = vm.asarray(own, order="F")
    for made in (
        a, vm.array(own, order="F"), vm.asfortranarray(own), a.copy("A"), vm.asarray(own).copy("F"), a.astype("f4", "F"),
        np.zeros_like(a, order="A"), np.full_like(vm.asarray(own), 2, order="F"), np.add(a, 1, order="F"),
        vm.zeros((3, 4), order="f"), vm.eye(3, 4, 1, order="F"), vm.require(own, None, "F"),
    ):  # fmt: skip
        assert made.flags.f_contiguous and vm.isfortran(made) and made.shape == (3, 4), made.strides
    same(a, own)
    same(vm.eye(3, 4, 1, order="F"), np.eye(3, 4, 1))
    assert a.copy().flags.c_contiguous and vm.asarray(a, order="C").flags.c_contiguous
    with pytest.raises(ValueError, match="'X'"):
        vm.zeros(3, order="X")


def test_flags_and_shared_memory():
    a = vm.arange(12)
    assert np.may_share_memory(a, a[6:]) and np.may_share_memory(a[::2], a[1::2]) and not np.shares_memory(a[::2], a[1::2])
    assert not np.may_share_memory(a, a.copy()) and not vm.shares_memory(a, a + 1) and not np.shares_memory(a, np.arange(12))
    view = a[:]
    view.flags.writeable = False
    with pytest.raises(ValueError, match="read-only"):
        view[0] = 1
    a.setflags(write=False)
    with pytest.raises(ValueError, match="read-only"):
        a += 1
    with pytest.raises(ValueError, match="write"):
        a.setflags(uic=True)


def test_attributes_that_are_set():
    a = vm.zeros((2, 3), complex)
    a.real, a.imag = 1, [2, 3, 4]
    same(a, np.array([[1 + 2j, 1 + 3j, 1 + 4j]] * 2))
    a.shape = 6
    assert a.shape == (6,)
    with pytest.raises(AttributeError, match="Incompatible"):
        vm.zeros((2, 3)).T.shape = 6
    with pytest.raises(TypeError, match="imaginary"):
        vm.zeros(2).imag = 1
    assert vm.ndarray((2, 3), "i4").shape == (2, 3) and vm.zeros(2, "S").dtype == "S1"


def test_arrays_among_indices_give_arrays():
    a, own = vm.arange(12).reshape(3, 4), np.arange(12).reshape(3, 4)
    rows, columns = np.array([0, 2]), np.array([1, 3])
    for key in ((vm.asarray(rows), columns), (rows, vm.asarray(columns)), vm.asarray(rows), (slice(1, 2), vm.asarray(rows))):
        found = a[key]
        numpys = tuple(map(np.asarray, key)) if isinstance(key, tuple) and not isinstance(key[0], slice) else None
        assert isinstance(found, vm.Array)
        same(found, own[numpys] if numpys else own[rows] if isinstance(key, vm.Array) else own[1:2, rows])


def test_long_doubles_are_numpys():
    a, own = vm.array([3, 1, 2], "longdouble"), np.array([3, 1, 2], "longdouble")
    for function in (np.max, np.min, np.argmax, np.count_nonzero, np.sum, np.sort, np.any, np.mean):
        assert np.array_equal(np.asarray(function(a)), function(own))


def test_flat():
    own = np.arange(12).reshape(3, 4)
    a = vm.asarray(own).T
    own = own.T
    keys = [0, -1, slice(1, 7, 2), [1, 3], np.arange(12) % 2 == 0, Ellipsis, slice(None)]
    for key in keys:
        assert np.array_equal(np.asarray(a.flat[key]), own.flat[key])
        a.flat[key] = own.flat[key] = 5 if isinstance(key, int) else [7, 8, 9]
        assert np.array_equal(np.asarray(a), own)
    a.flat = [1, 2]
    assert list(a.flat) == [1, 2] * 6 and len(a.flat) == 12 and next(a.flat) == 1
    with pytest.raises(IndexError):
        a.flat[12]


def test_items_as_bytes_and_in_files(tmp_path):
    own = np.arange(6, dtype=">i4").reshape(2, 3)
    a = vm.asarray(own)
    assert a.tobytes() == own.tobytes() and a.T.tobytes() == own.T.tobytes()
    a.tofile(tmp_path / "items")
    assert (tmp_path / "items").read_bytes() == own.tobytes()
    read = vm.fromfile(tmp_path / "items", ">i4", offset=4, count=4)
    assert np.array_equal(np.asarray(read), own.ravel()[1:5]) and read.dtype == own.dtype
    file = io.BytesIO()
    np.savez(file, a=a)
    assert np.array_equal(np.load(io.BytesIO(file.getvalue()))["a"], own)


def test_no_copy_exceeds_the_limit(monkeypatch):
    monkeypatch.setattr(_dispatch, "RAM_BYTES_MAX", 64)
    for name in _names.NAMES["copy"].split():
        function = getattr(np, name, None)
        if function in _large.FUNCTIONS or not hasattr(function, "_implementation"):
            continue
        required = [
            one
            for one in inspect.signature(function).parameters.values()
            if one.default is one.empty and one.kind is not one.VAR_KEYWORD
        ]
        with pytest.raises(TypeError, match="exceed the limit of a copy"):
            getattr(vm, name)(*[vm.zeros(20, "f4")] * len(required))


@pytest.fixture
def large(monkeypatch):
    """Arrays of any size are too large for copies, and pieces have few items."""
    monkeypatch.setattr(_dispatch, "RAM_BYTES_MAX", 64)
    monkeypatch.setattr(_dispatch, "SMALL_BYTES", 0)
    monkeypatch.setattr("vmarray._ufuncs.PIECE", 16)


OWN = np.arange(60.0).reshape(6, 10) % 7


@pytest.mark.parametrize("work", [
    lambda np, a: np.sum(a, where=a > 2), lambda np, a: np.sum(a, axis=0, where=a > 2, initial=3.0),
    lambda np, a: np.prod(a, axis=1, where=a > 4), lambda np, a: np.max(a, axis=1, initial=5.0, where=a > 2),
    lambda np, a: np.any(a, axis=(0, 1), where=a > 9), lambda np, a: np.all(a, axis=1, where=a > 0),
    lambda np, a: np.min(a, initial=-1.0), lambda np, a: np.cumsum(a, axis=1, out=np.zeros((6, 10))),
    lambda np, a: np.gradient(a, 2.0, edge_order=2), lambda np, a: np.gradient(a[0]), lambda np, a: np.take_along_axis(a, np.argsort(a, 1), 1),
    lambda np, a: np.convolve(a.ravel(), [1, 2, 3.5], "same"), lambda np, a: np.cov(a), lambda np, a: np.tril(a, 1),
    lambda np, a: np.diff(a[0], prepend=1.0, append=[2.0, 3.0]), lambda np, a: np.resize(a, (9, 20)),
    lambda np, a: np.block([[a, a], [a, a]]), lambda np, a: np.delete(a, [1, 3], 1), lambda np, a: np.interp(a, [0, 3], [1.0, 5.0]),
    lambda np, a: np.outer(a[0], a), lambda np, a: np.lexsort((a[0], a[1])), lambda np, a: np.digitize(a, [5, 3, 1]),
    lambda np, a: np.mean(a, where=a > 2), lambda np, a: np.mean(a, axis=1, keepdims=True, where=a[0] > 1),
    lambda np, a: np.var(a, axis=0, ddof=1, where=a > 1), lambda np, a: np.std(a, axis=(0, 1), where=a > 1, dtype="f8"),
    lambda np, a: np.choose((a % 3).astype(int), [a, -a, 7.0]), lambda np, a: np.histogram2d(a[0], a[1], 4),
    lambda np, a: np.piecewise(a, [a < 2, a > 4], [-1, lambda x: x * 2]),
    lambda np, a: np.histogramdd(a.T[:, :3], (2, 3, 2), density=True)[0],
    lambda np, a: np.histogram2d(a[0], a[1], [0, 2, 5, 7], weights=a[2])[0],
    lambda np, a: np.nanmedian(np.where(a > 3, a, np.nan)), lambda np, a: np.nanmedian(np.where(a > 3, a, np.nan), axis=1),
    lambda np, a: np.nanquantile(np.where(a > 3, a, np.nan), 0.3, keepdims=True),
    lambda np, a: np.setxor1d(a, a[:2] + 1), lambda np, a: np.union1d(a, [3, 99.0]), lambda np, a: np.select([a > 3, a > 1], [a, -a]),
])  # fmt: skip
def test_large_arrays_are_computed_by_pieces(large, work):
    own, ours = work(np, OWN), work(vm, vm.asarray(OWN))
    for one, other in zip(own, ours) if isinstance(own, (tuple, list)) else [(own, ours)]:
        assert np.asarray(other).dtype == one.dtype
        np.testing.assert_allclose(np.asarray(other), one, rtol=1e-12)


def test_methods_of_ufuncs(monkeypatch):
    for limit in (256 << 20, 64):
        monkeypatch.setattr(_dispatch, "RAM_BYTES_MAX", limit)
        a, own = vm.asarray(OWN), OWN
        assert np.array_equal(np.asarray(np.maximum.accumulate(a, axis=1)), np.maximum.accumulate(own, axis=1))
        assert np.array_equal(np.asarray(np.subtract.outer(a, own[0])), np.subtract.outer(own, own[0]))
        line, items = vm.arange(20), np.arange(20)
        for one in (line, items):
            np.add.at(one, np.array([1, 1, -1]), np.array([5, 6, 7]))
        assert np.array_equal(np.asarray(line), items)
        masked = np.add(a, 1, where=own > 2)
        assert np.array_equal(np.asarray(masked)[own > 2], own[own > 2] + 1)
    monkeypatch.setattr(_dispatch, "RAM_BYTES_MAX", 256 << 20)
    assert np.array_equal(np.asarray(np.add.reduceat(a, [0, 3], axis=1)), np.add.reduceat(own, [0, 3], axis=1))
    assert np.array_equal(np.asarray(a @ a.T), own @ own.T)


def test_windows():
    view = np.lib.stride_tricks.sliding_window_view
    for window, axis in (((2, 3), None), (4, 1), ((2, 2), (1, 1))):
        made = view(vm.asarray(OWN), window, axis=axis)
        assert isinstance(made, vm.Array) and np.array_equal(np.asarray(made), view(OWN, window, axis=axis))


def test_numbers_with_an_output():
    out = vm.zeros(3, "i4")
    assert np.add(1, 2, out=out[1:2]).tolist() == [3] and np.add(np.int64(2), 3, out=out, where=np.array([1, 0, 0], bool)) is out
    same(out, np.array([5, 3, 0], "i4"))
    quotient, rest = vm.zeros(()), vm.zeros(2)
    np.divmod(7, 2, out=(quotient, rest))
    assert quotient == 3 and rest.tolist() == [1, 1]


def test_where_of_other_items_gives_arrays():
    for a in (vm.zeros((0, 2)), vm.array(["a", "b"]), vm.zeros(2, ">i4")):
        assert isinstance(np.where(a == a, a, a), vm.Array)
