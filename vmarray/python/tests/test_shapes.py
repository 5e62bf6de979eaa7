"""Shape functions, cumulative sums and NaN reductions, compared with NumPy."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import vmarray as vm
from conftest import ALL, COMPUTED, outcome, same, seeds, shapes, values

SAME = {
    "expand_dims": lambda np, a, n: np.expand_dims(a, (n % (a.ndim + 1), -1)),
    "moveaxis": lambda np, a, n: np.moveaxis(a, n % 5 - 2, (n // 5) % 5 - 2),
    "flip": lambda np, a, n: np.flip(a, [None, 0, -1, (0, 1)][n % 4]),
    "fliplr": lambda np, a, n: np.fliplr(a),
    "rot90": lambda np, a, n: np.rot90(a, n % 7 - 2, [(0, 1), (1, 0), (-1, 0)][n % 3]),
    "atleast": lambda np, a, n: [np.atleast_1d, np.atleast_2d, np.atleast_3d][n % 3](a),
    "broadcast_arrays": lambda np, a, n: np.broadcast_arrays(a, a[..., :1])[1],
    "array_split": lambda np, a, n: np.array_split(a, [3, [1, 4], 1][n % 3], n % 3 - 1)[-1],
    "split": lambda np, a, n: np.split(a, 2, n % 3)[1],
    "stack": lambda np, a, n: np.stack([a, a[::-1]], n % 4 - 2),
    "vstack": lambda np, a, n: np.vstack([a, a]),
    "hstack": lambda np, a, n: np.hstack([a, a]),
    "dstack": lambda np, a, n: np.dstack([a, a]),
    "column_stack": lambda np, a, n: np.column_stack([a, a]),
    "append": lambda np, a, n: np.append(a, a, [None, 0, 1][n % 3] if a.ndim else None),
    "repeat": lambda np, a, n: np.repeat(a, n % 4, [None, 0, -1][n % 3]),
    "tile": lambda np, a, n: np.tile(a, [2, (2, 1), (1, 0, 3), 1][n % 4]),
    "roll": lambda np, a, n: np.roll(a, n % 9 - 4, [None, 0, (0, -1)][n % 3]),
    "transpose": lambda np, a, n: np.transpose(a),
}
rows = shapes.filter(len)
PADS = ["constant", "edge", "reflect", "symmetric", "wrap"]


@given(st.sampled_from(sorted(SAME)), shapes, st.sampled_from(ALL), seeds)
def test_shapes(name, shape, dtype, seed):
    own = values(shape, dtype, seed)
    (ours, error), (numpys, wanted) = (
        outcome(lambda: SAME[name](np, vm.asarray(own), seed)),
        outcome(lambda: SAME[name](np, own, seed)),
    )
    assert error == wanted, name
    if error is None:
        # NumPy's `flip` of an array without axes is a scalar.
        assert isinstance(ours, vm.Array) == isinstance(numpys, np.ndarray), name
        same(ours, numpys)


@given(shapes, st.sampled_from(COMPUTED), seeds, st.sampled_from(PADS), st.integers(0, 3), st.integers(0, 3))
def test_pad(shape, dtype, seed, mode, before, after):
    own = values(shape, dtype, seed)
    given_values = {"constant_values": (1, 0)} if mode == "constant" and seed % 2 and own.ndim else {}
    (ours, error), (numpys, wanted) = (
        outcome(lambda: np.pad(vm.asarray(own), (before, after), mode, **given_values)),
        outcome(lambda: np.pad(own, (before, after), mode, **given_values)),
    )
    assert error == wanted
    if error is None:
        same(ours, numpys)


@given(rows, st.sampled_from([dtype for dtype in COMPUTED if dtype != np.float16]), seeds)
def test_sums_that_go_on(shape, dtype, seed):
    own = values(shape, dtype, seed)
    own = np.where(np.isfinite(own), np.clip(own, 0, 3), 0).astype(dtype) if dtype.kind == "f" else own
    axis = [None, 0, -1][seed % 3]
    for function in (np.cumsum, np.cumprod, lambda a, axis: np.diff(a, seed % 4, axis if axis is not None else -1)):
        (ours, error), (numpys, wanted) = outcome(lambda: function(vm.asarray(own), axis)), outcome(lambda: function(own, axis))
        assert error == wanted
        if error is None and dtype.kind != "f":
            same(ours, numpys)
        elif error is None:
            assert np.asarray(ours).dtype == numpys.dtype and np.allclose(np.asarray(ours), numpys, 1e-4)


@given(rows, st.sampled_from(["f4", "f8", "i4"]), seeds)
def test_without_nans(shape, dtype, seed):
    random = np.random.default_rng(seed)
    own = random.normal(size=shape) * 10
    own = np.asarray(np.where(random.random(shape) < 0.3, np.nan, own) if dtype != "i4" else own, dtype)
    axis = [None, 0, -1][seed % 3]
    for name in ("nansum", "nanprod", "nanmean", "nanvar", "nanstd", "nanmin", "nanmax", "ptp", "average"):
        if name == "average" and not own.size:
            continue  # NumPy divides by the number of results.
        function = getattr(np, name)
        with np.errstate(all="ignore"):
            (ours, error), (numpys, wanted) = (
                outcome(lambda: function(vm.asarray(own), axis=axis)),
                outcome(lambda: function(own, axis=axis)),
            )
        assert error == wanted, name
        if error is None:
            assert np.asarray(ours).dtype == numpys.dtype, name
            assert np.allclose(np.asarray(ours), numpys, 1e-4, 1e-5, equal_nan=True), name


@given(st.sampled_from(COMPUTED), st.sampled_from(COMPUTED), seeds)
def test_isin_and_isclose(one, other, seed):
    own, among = values((3, 5), one, seed), values((6,), other, seed + 1)
    same(np.isin(vm.asarray(own), among), np.isin(own, among))
    same(np.isin(own, vm.asarray(among), invert=True), np.isin(own, among, invert=True))
    own, near = np.asarray(own, "f8"), np.asarray(own, "f8") * (1 + 1e-6)
    near[0] = np.nan
    for equal in (True, False):
        with np.errstate(all="ignore"):
            same(np.isclose(vm.asarray(own), near, equal_nan=equal), np.isclose(own, near, equal_nan=equal))
            assert np.allclose(vm.asarray(own), own) == np.allclose(own, own)
    odd = np.array([np.nan, np.inf, -np.inf, 1, -0.0], "f4")
    same(np.nan_to_num(vm.asarray(odd)), np.nan_to_num(odd))
    same(np.nan_to_num(vm.asarray(odd), nan=5, posinf=3), np.nan_to_num(odd, nan=5, posinf=3))


def test_weights_and_parts():
    own = np.random.default_rng(2).integers(1, 9, (4, 5)).astype(float)
    assert np.allclose(np.average(vm.asarray(own), weights=own), np.average(own, weights=own))
    assert np.allclose(np.asarray(np.average(vm.asarray(own), 1, own[0])), np.average(own, 1, own[0]))
    with pytest.raises(ZeroDivisionError):
        np.average(vm.asarray(own), weights=np.zeros((4, 5)))
    complex_ones = own + 2j * own
    same(np.real(vm.asarray(complex_ones)), complex_ones.real)
    same(vm.asarray(complex_ones).imag, complex_ones.imag)


def test_pieces_are_carried_on(monkeypatch):
    from vmarray import _ufuncs

    monkeypatch.setattr(_ufuncs, "blocks", lambda shape, most=7, of=_ufuncs.blocks: of(shape, min(most, 7)))
    own = np.arange(-30, 30).reshape(3, 4, 5)
    for axis in (None, 0, 1, 2):
        same(np.cumsum(vm.asarray(own), axis), np.cumsum(own, axis))
        same(np.cumprod(vm.asarray(own), axis), np.cumprod(own, axis))
        same(vm.argsort(vm.asarray(own % 7), axis), np.argsort(own % 7, axis, kind="stable"))


def test_views_of_another_dtype():
    own = np.arange(12.0).reshape(3, 4)
    for dtype in ("i8", "u4", "f4", "u1", "c16", "S2", ">f8", "i4, f4"):
        array, numpys = vm.asarray(own), own.copy()
        same(array.view(dtype), numpys.view(dtype))
        array.view(dtype)[1] = array.view(dtype)[2]
        numpys.view(dtype)[1] = numpys.view(dtype)[2]
        same(array, numpys)
    for wrong in (lambda a: a.T.view("f4"), lambda a: a.view("S3"), lambda a: a[:, ::2].view("u1")):
        for array in (vm.asarray(own), own):
            with pytest.raises(ValueError):
                wrong(array)
    for wrong, word in (("?", "array != 0"), (np.ndarray, "numpy.asarray")):
        with pytest.raises(TypeError, match=word):
            vm.asarray(own).view(wrong)


def test_items_of_one_type_in_elements_of_another():
    """Sorts and searches compare the items, not the elements below them."""
    own = np.array([1.5, -2, -3, 0, 7])
    record = np.zeros(5, [("x", "f8")])
    record["x"] = own
    for array in (vm.asarray(record)["x"], vm.asarray(own.view("i8")).view("f8"), vm.asarray(own.view("u8")).view("f8")):
        with vm.progress(lambda done, total: None):
            same(np.argsort(array), np.argsort(own))
            same(np.unique(array), np.unique(own))
            same(np.searchsorted(vm.asarray(np.sort(own)), array), np.searchsorted(np.sort(own), own))
            assert np.median(array) == np.median(own) and array.max() == 7 and array.sum() == own.sum()
            same(array.take(vm.asarray([1, 0])), own[[1, 0]])
            array.sort()
        same(array, np.sort(own))


def test_real_and_imaginary_parts_are_views():
    for dtype in ("c8", "c16", ">c16"):
        own = (np.arange(6) + 2j).reshape(2, 3).astype(dtype)
        for part in ("real", "imag"):
            array, numpys = vm.asarray(own), own.copy()
            for one in (array, numpys):
                getattr(one, part)[:, 1] = 7
                getattr(np, part)(one)[1] = -1
            same(array, numpys)
            same(getattr(array.T, part), getattr(numpys.T, part))
