"""Operators, functions and reductions compared with NumPy bit for bit, except for sums and functions of floats."""

import operator

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

import vmarray as vm
from conftest import ALL, COMPUTED, outcome, same, seeds, shapes, values
from vmarray import _functions, _shapes

BINARY = (
    "add subtract multiply divide floor_divide remainder bitwise_and bitwise_or bitwise_xor left_shift right_shift "
    "equal not_equal less less_equal greater greater_equal maximum minimum fmax fmin logical_and logical_or "
    "logical_xor power fmod divmod copysign"
).split()
UNARY = (
    "negative positive absolute invert logical_not sqrt floor ceil trunc rint square reciprocal sign isnan isinf "
    "isfinite bitwise_count signbit modf fabs"
).split()
#: Errors in ulps of both sides, at most.
FUNCTIONS = dict.fromkeys("exp exp2 expm1 log log1p log2 log10 sin cos arcsin arccos cbrt".split(), 3)
FUNCTIONS |= dict.fromkeys("tan arctan sinh cosh tanh arcsinh arccosh arctanh".split(), 5)


def compared(ours, numpys, is_zero_of_any_sign=False):
    for own, theirs in zip(*(one if isinstance(one, tuple) else (one,) for one in (ours, numpys))):
        own, theirs = np.asarray(own), np.asarray(theirs)
        if is_zero_of_any_sign and theirs.dtype.kind == "f":
            own, theirs = own + 0.0, theirs + 0.0
            own, theirs = np.where(own == 0, 0, own).astype(own.dtype), np.where(theirs == 0, 0, theirs).astype(theirs.dtype)
        same(own, theirs)


@given(st.data(), hnp.mutually_broadcastable_shapes(num_shapes=2, max_dims=3), seeds)
def test_operations_of_two(data, both, seed):
    name = data.draw(st.sampled_from(BINARY))
    kinds = [data.draw(st.sampled_from(COMPUTED)) for _ in range(2)]
    one, other = (values(shape, kind, seed + n) for n, (shape, kind) in enumerate(zip(both.input_shapes, kinds)))
    second = data.draw(st.sampled_from(["ours", "numpys", "int", "float", "bool"]))
    if name == "power" and (second in ("float",) or np.result_type(one, other).kind == "f"):
        return  # A function: see below.
    other = {"int": 3, "float": 2.5, "bool": True}.get(second, other)
    function = getattr(np, name)
    ours = vm.asarray(other) if second == "ours" else other
    (result, error), (expected, wanted) = (
        outcome(lambda: function(vm.asarray(one), ours)),
        outcome(lambda: function(one, other)),
    )
    assert error == wanted, (name, one.dtype, other)
    if error is None:
        compared(result, expected, name in ("maximum", "minimum", "fmax", "fmin"))


@given(st.data(), shapes, st.sampled_from(COMPUTED), seeds)
def test_operations_of_one(data, shape, dtype, seed):
    function = getattr(np, data.draw(st.sampled_from(UNARY)))
    own = values(shape, dtype, seed)
    (ours, error), (expected, wanted) = outcome(lambda: function(vm.asarray(own))), outcome(lambda: function(own))
    assert error == wanted
    if error is None:
        compared(ours, expected)


@pytest.mark.parametrize("name", FUNCTIONS)
@pytest.mark.parametrize("dtype", ["f4", "f8"])
def test_functions_are_close(name, dtype):
    own = np.random.default_rng(1).uniform(-3, 3, 1000).astype(dtype)
    if name in ("log", "log2", "log10"):
        own = abs(own)
    if name in ("arcsin", "arccos", "arctanh", "log1p"):
        own = own / 3
    if name == "arccosh":
        own = abs(own) + 1
    ours, numpys = np.asarray(getattr(np, name)(vm.asarray(own))), getattr(np, name)(own)
    assert ours.dtype == numpys.dtype
    exact = getattr(np, name)(own.astype(np.longdouble))
    ulps = abs(ours - exact) / np.spacing(abs(numpys))
    assert np.nanmax(ulps.astype(float)) <= FUNCTIONS[name]


@given(st.data(), shapes, st.sampled_from(COMPUTED), seeds)
def test_reductions(data, shape, dtype, seed):
    own = values(shape, dtype, seed)
    if dtype.kind == "f":
        own = np.where(np.abs(own) < 1e3, own, 1).astype(dtype)
    name = data.draw(st.sampled_from("sum prod min max mean any all argmin argmax var std".split()))
    axis = data.draw(st.sampled_from([None, *range(len(shape))]))
    keepdims = data.draw(st.booleans())
    array = vm.asarray(own)
    (ours, error), (expected, wanted) = (
        outcome(lambda: getattr(np, name)(one, axis=axis, keepdims=keepdims)) for one in (array, own)
    )
    assert error == wanted
    if error is not None:
        return
    ours, expected = np.asarray(ours), np.asarray(expected)
    if expected.dtype.kind == "f" and name not in ("min", "max"):
        assert ours.dtype == expected.dtype and ours.shape == expected.shape
        wide = getattr(np, name)(own.astype("f8"), axis=axis, keepdims=keepdims)
        eps = float(np.finfo(expected.dtype).eps) * max(1, own.size)
        scale = np.abs(own.astype("f8")).max(initial=1) ** (own.size if name == "prod" else 2) * max(1, own.size)
        holds = np.isfinite(wide) & np.isfinite(expected)
        assert np.all(np.abs(ours.astype("f8") - wide)[holds] <= 4 * eps * scale)
    else:
        compared(ours, expected, name in ("min", "max"))


@given(st.data(), shapes.filter(lambda shape: len(shape) > 1 and 0 not in shape), st.sampled_from(COMPUTED), seeds)
def test_lines_along_an_axis_by_devices(data, shape, dtype, seed):
    own = values(shape, dtype, seed)
    if dtype.kind == "f":
        own = np.where(np.abs(own) < 1e3, np.round(own), 1).astype(dtype)
    axis, first = data.draw(st.integers(0, len(shape) - 1)), data.draw(st.integers(0, shape[0] - 1))
    array = vm.asarray(own, page_len=16)
    for ours, numpys in [(array, own), (array[first:], own[first:]), (array.T, own.T), (array + array, own + own)]:
        expected = numpys.sum(axis=axis)
        sums = _functions._summed_along(ours, axis, expected.dtype, is_anywhere=True)
        # Rows that form no box of all items, and 16-bit floats, are left to NumPy.
        assert sums is not None or dtype == np.float16 or first
        if sums is not None:
            same(sums, expected)
        least = _functions._extreme_along(np.minimum, ours, axis, is_anywhere=True)
        assert (least is None) == (sums is None)
        if least is not None:
            compared(least, numpys.min(axis=axis), True)
            compared(_functions._extreme_along(np.maximum, ours, axis, is_anywhere=True), numpys.max(axis=axis), True)
            same(_functions._argument_along("min", ours, axis, is_anywhere=True), numpys.argmin(axis))
            same(_functions._argument_along("max", ours, axis, is_anywhere=True), numpys.argmax(axis))
        for ufunc, expected in (np.add, np.cumsum(numpys, axis)), (np.multiply, np.cumprod(numpys, axis)):
            result = vm.empty(expected.shape, expected.dtype, page_len=16)
            is_done = _shapes.accumulated_on_cards(ufunc, ours, axis, result, is_anywhere=True)
            assert is_done == (dtype != np.float16 and (sums is not None or dtype != expected.dtype))
            if is_done:
                compared(result, expected, True)
        line, expected = ours.reshape(-1), np.cumsum(numpys)
        result = vm.empty(expected.shape, expected.dtype, page_len=16)
        if _shapes.accumulated_on_cards(np.add, line, 0, result, is_anywhere=True):
            compared(result, expected, True)


def test_nans_along_an_axis_are_extremes():
    own = np.array([[1, np.nan, 3], [4, 5, np.nan], [-0.0, np.nan, 0.0], [0.0, 1, -np.inf]])
    array = vm.asarray(own)
    for axis in (0, 1):
        same(_functions._extreme_along(np.minimum, array, axis, is_anywhere=True), own.min(axis))
        same(_functions._extreme_along(np.maximum, array, axis, is_anywhere=True), own.max(axis))
        same(_functions._argument_along("min", array, axis, is_anywhere=True), own.argmin(axis))
        same(_functions._argument_along("max", array, axis, is_anywhere=True), own.argmax(axis))


@given(st.data(), shapes, st.sampled_from(ALL), st.sampled_from(COMPUTED), seeds)
def test_astype(data, shape, dtype, to, seed):
    own = values(shape, dtype, seed)
    if dtype.kind in "fc" and to.kind in "iu":
        own = np.zeros(shape, dtype) + 3
    ours, numpys = (outcome(lambda: one.astype(to)) for one in (vm.asarray(own), own))  # noqa: B023
    assert ours[1] == numpys[1]
    if ours[1] is None:
        same(ours[0], numpys[0])


@given(st.data(), hnp.mutually_broadcastable_shapes(num_shapes=3, max_dims=3), seeds)
def test_where(data, all_three, seed):
    mask, *own = (
        values(shape, data.draw(st.sampled_from(COMPUTED)), seed + n) for n, shape in enumerate(all_three.input_shapes)
    )
    same(np.where(vm.asarray(mask), vm.asarray(own[0]), own[1]), np.where(mask, *own))


@given(st.data(), st.sampled_from([np.dtype(name) for name in "? i2 u4 i8 f2 f4 f8".split()]), seeds)
def test_programs(data, dtype, seed):
    """Views, expressions and writes in turn: each is as if computed where it is written."""
    own = values((4, 6), dtype, seed)
    pairs = [(vm.asarray(own, page_len=3), own)]
    for _ in range(data.draw(st.integers(3, 14))):
        (ours, numpys), (more, others) = (data.draw(st.sampled_from(pairs)) for _ in range(2))
        what = data.draw(st.sampled_from("view transpose add multiply compare where write in_place copy mask".split()))
        number = np.asarray(data.draw(st.integers(0, 3))).astype(dtype)[()]
        if what == "view":
            key = data.draw(st.sampled_from([np.s_[1:], np.s_[:, ::2], np.s_[::-1], np.s_[:1], np.s_[:, :1]]))
            pairs.append((ours[key], numpys[key]))
        elif what == "transpose":
            pairs.append((ours.T, numpys.T))
        elif what == "copy":
            pairs.append((ours.copy(), numpys.copy()))
        elif what == "mask":
            same(ours[ours == number], numpys[numpys == number])
        elif outcome(lambda: np.broadcast_shapes(numpys.shape, others.shape))[1] is not None:  # noqa: B023
            continue
        elif what in ("add", "multiply", "compare"):
            function = {"add": operator.add, "multiply": operator.mul, "compare": operator.le}[what]
            pairs.append(tuple(function(*both).astype(dtype) for both in ((ours, more), (numpys, others))))
        elif what == "where":
            pairs.append((np.where(ours > number, more, number), np.where(numpys > number, others, number)))
        elif others.shape == numpys.shape:
            if what == "write":
                ours[...] = more
                numpys[...] = others.copy()
            else:
                ours *= more
                numpys *= others.copy()
        else:
            ours[...] = number
            numpys[...] = number
    for ours, numpys in pairs:
        same(ours, numpys)


def test_long_expressions_are_computed_in_parts():
    own = np.arange(1000.0)
    ours, numpys = vm.asarray(own), own
    for n in range(60):
        other = np.full(1000, float(n))
        ours = ours * 0.5 + vm.asarray(other)
        numpys = numpys * 0.5 + other
    assert ours.is_pending
    same(ours, numpys)


@pytest.mark.parametrize("dtype", ["i8", "f2", "f8"])
@pytest.mark.parametrize("name", ["floor_divide", "remainder", "maximum", "sign", "sqrt"])
def test_the_longest_operations_are_cut_as_well(name, dtype):
    own = np.random.default_rng(1).integers(1, 100, (40, 50)).astype(dtype)
    ours, numpys = vm.asarray(own[0]), own[0]
    for row in own[1:]:
        row = row + row.dtype.type(3)
        function = getattr(np, name)
        inputs = (lambda x: (x,)) if function.nin == 1 else (lambda x: (x, row))  # noqa: B023
        ours, numpys = function(*inputs(ours)) + row, function(*inputs(numpys)) + row
    same(ours, numpys)


def test_sums_are_exact_and_extremes_have_all_bits():
    own = np.array([2**64 - 1, 2**63, 5], "u8")
    array = vm.asarray(own)
    assert (array.max(), array.min(), array.sum()) == (own.max(), own.min(), own.sum())
    assert (array[array > 5].min(), array.argmax()) == (2**63, 0)
    with pytest.raises(OverflowError):
        array + 2**64
    assert not (array == -1).any() and (array > -1).all()


@pytest.mark.parametrize("dtype", "i1 u2 i8 f2 f4 f8 c8 S3".split())
def test_sort(dtype):
    own = values((37,), np.dtype(dtype), 5)
    array = vm.asarray(own, page_len=4)
    if own.dtype.kind == "f":
        own[3] = array[3] = -np.nan
        own[own == 0] = 0
        array[array == 0] = 0
    same(np.sort(array), np.sort(own))
    same(np.sort(array[::-2]), np.sort(own[::-2]))
    table = values((5, 7), np.dtype(dtype), 6)
    table[table != table] = 0
    for axis in (0, 1, -1):
        ours = vm.asarray(table)
        ours.sort(axis)
        assert np.array_equal(np.asarray(ours), np.sort(table, axis))


def test_in_place_and_out():
    own = np.arange(10, dtype="i4")
    array = vm.asarray(own)
    view = array[2:]
    array += 5
    own += 5
    same(view, own[2:])
    with pytest.raises(TypeError):
        array += 1.5
    np.add(array, 1, out=array, where=array > 8)
    np.add(own, 1, out=own, where=own > 8)
    same(array, own)
    into = np.zeros(10)
    assert np.sqrt(array, out=into) is into
    assert np.array_equal(into, np.sqrt(own))
    later, more, mask = array * 10, array * 20, array > 8
    np.copyto(array, more)
    array[mask] = 3
    array[:] = 0
    same(later, own * 10)
    same(more, own * 20)
    same(mask, own > 8)
    with pytest.raises(ValueError, match="read-only"):
        np.broadcast_to(array, (3, 10))[...] = 1


def test_numpys_functions():
    own = np.arange(12).reshape(3, 4)
    array = vm.asarray(own)
    same(np.concatenate([array, own]), np.concatenate([own, own]))
    same(np.concatenate([array, array], axis=1), np.concatenate([own, own], axis=1))
    same(np.clip(array, 2, 7), np.clip(own, 2, 7))
    same(np.zeros_like(array), np.zeros_like(own))
    same(np.full_like(array, 3), np.full_like(own, 3))
    same(array.nonzero()[1], own.nonzero()[1])
    assert np.count_nonzero(array) == 11 and np.array_equal(array, own)
    assert np.where(array > 9)[0].tolist() == [2, 2]
    same(np.linalg.svd(array).S, np.linalg.svd(own).S)
    same(array @ array.T, own @ own.T)
