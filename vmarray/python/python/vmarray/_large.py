"""Functions for arrays above `RAM_BYTES_MAX`, for which NumPy cannot compute on a copy in RAM. Each function calls
other functions of arrays, or lets NumPy compute one piece after the other."""

from __future__ import annotations

import functools
from typing import Any, NamedTuple

import numpy as np

from . import _array, _dispatch, _products, _ufuncs
from ._array import Array, _options_like
from ._dispatch import NotOnDevices
from ._functions import axis_of, compared, concatenate, lines, summed, where_of
from ._order import argsort, searchsorted, take, unique
from ._shapes import _without, cumprod, cumsum, isin


def _own(value: Any, *others: Any) -> Array:
    return _array.asarray(value, **_options_like(value, *others))


def _line(value: Any, *others: Any) -> Array:
    if type(value) in (bool, int, float, complex):
        # Let NumPy handle a Python number, which takes the dtype of the other operand.
        raise NotOnDevices
    return _own(value, *others).reshape(-1)


def _small(*values: Any) -> tuple[np.ndarray[Any, Any], ...]:
    """Copies of operands in RAM. Raises `NotOnDevices` if the operands are large."""
    if sum(one.nbytes for one in values if isinstance(one, Array)) > max(1 << 20, _dispatch.RAM_BYTES_MAX):
        raise NotOnDevices
    return tuple(np.asarray(one) for one in values)


def _elementwise(function: Any) -> Any:
    """Returns an implementation of an element-wise function, which lets NumPy compute piece by piece."""

    def work(array: Array, *args: Any, **given: Any) -> Any:
        one = functools.partial(lambda part: function(part, *args, **given))
        return _ufuncs.by_pieces(one, [array], array.shape, (one(np.empty(0, array.dtype)).dtype,))[0]

    return work


def _paired(function: Any, arrays: list[Any], own: int, shape: tuple[Any, ...]) -> Any:
    """Calls a function for each block of whole lines along axis `own`, with the block's key and the blocks of all
    arrays. `shape` has the arrays' extents along the other axes."""
    longest = max(1, *(one.shape[own] for one in arrays))
    for block in _ufuncs.blocks(shape, max(1, _ufuncs.PIECE // longest)):
        key = (*block[:own], slice(None), *block[own:])
        function(key, *(np.asarray(one[key]) for one in arrays))


# Functions that select items.


def argwhere(array: Array) -> Array:
    """Like ``numpy.argwhere``."""
    if not array.ndim:
        raise NotOnDevices
    return _own(np.stack(np.unravel_index(array.find(), array.shape), -1), array)


def extract(condition: Any, array: Any) -> Array:
    """Like ``numpy.extract``."""
    mask, items = _line(condition, array), _line(array, condition)
    if len(mask) != len(items):
        raise NotOnDevices
    return items[mask.astype(bool, copy=False)].copy()


def compress(condition: Any, array: Any, axis: int | None = None) -> Array:
    """Like ``numpy.compress``."""
    (mask,) = _small(condition)
    if mask.ndim != 1:
        raise ValueError("condition must be a 1-d array")
    return take(_own(array), np.flatnonzero(mask), axis)


def delete(array: Array, obj: Any, axis: int | None = None) -> Array:
    """Like ``numpy.delete``."""
    array = array.reshape(-1) if axis is None else array
    own = axis_of(axis or 0, array.ndim)
    extent = array.shape[own]
    if extent * 9 > max(1 << 20, _dispatch.RAM_BYTES_MAX):
        raise NotOnDevices
    return take(array, np.delete(np.arange(extent), *_small(obj) if isinstance(obj, Array) else (obj,)), own)


def insert(array: Array, obj: Any, values: Any, axis: int | None = None) -> Array:
    """Like ``numpy.insert``, along one axis at one index."""
    array = array.reshape(-1) if axis is None else array
    if array.ndim != 1 or not isinstance(obj, (int, np.integer)):
        raise NotOnDevices
    axis_of(axis or 0, 1)
    if not -len(array) <= obj <= len(array):
        raise IndexError(f"index {obj} is out of bounds for axis 0 with size {len(array)}")
    at = int(obj) + (len(array) if obj < 0 else 0)
    values = _line(values, array)
    result = _array._result((len(array) + len(values),), array.dtype, **_options_like(array))
    result[:at], result[at : at + len(values)], result[at + len(values) :] = array[:at], values, array[at:]
    return result


def resize(array: Array, new_shape: Any) -> Array:
    """Like ``numpy.resize``."""
    shape = _array._as_tuple(new_shape)
    kind = np.concatenate([np.empty(0, array.dtype)]).dtype if array.size and 0 not in shape else array.dtype
    result = _array._result(shape, kind, **_options_like(array))
    flat, items = result.reshape(-1), array.reshape(-1)
    for start in range(0, len(flat) if len(items) else 0, max(1, len(items))):
        flat[start : start + len(items)] = items[: len(flat) - start]
    return result


def block(arrays: Any) -> Array:
    """Like ``numpy.block``."""
    depth, inner = 0, arrays
    while isinstance(inner, list):
        depth, inner = depth + 1, inner[0]
    leaves = _dispatch.arrays_in(arrays)
    ndim = max(depth, *(one.ndim for one in leaves))

    def joined(part: Any, axis: int) -> Any:
        if isinstance(part, list):
            return concatenate([joined(one, axis + 1) for one in part], axis)
        part = _own(part, *leaves)
        return part.reshape((1,) * (ndim - part.ndim) + part.shape)

    result = joined(arrays, ndim - depth)
    return result if depth else result.copy()


def select(condlist: Any, choicelist: Any, default: Any = 0) -> Array:
    """Like ``numpy.select``."""
    if len(condlist) != len(choicelist) or not condlist or any(_ufuncs.kind(one) != np.bool_ for one in condlist):
        raise NotOnDevices
    kind = np.result_type(
        *(one if type(one) in (int, float, complex) else _ufuncs.kind(one) for one in (*choicelist, default))
    )
    if not all(
        np.can_cast(one.dtype if hasattr(one, "dtype") else np.asarray(one).dtype, kind, "same_kind")
        for one in choicelist
    ):
        raise NotOnDevices
    result = default
    for condition, choice in zip(reversed(condlist), reversed(choicelist)):
        result = where_of(condition, choice, result)
    return result.astype(kind, copy=False)


def take_along_axis(array: Array, indices: Any, axis: int | None = -1) -> Array:
    """Like ``numpy.take_along_axis``."""
    array, indices = _own(array, indices), _own(indices, array)
    if axis is None:
        array, axis = array.reshape(-1), 0
    array, indices, own, shape = _along(array, indices, axis)
    result = _array._result((*shape[:own], indices.shape[own], *shape[own:]), array.dtype, **_options_like(array))

    def one(key: Any, part: Any, places: Any) -> None:
        result[key] = np.take_along_axis(part, places, own)

    _paired(one, [array, indices], own, shape)
    return result


def put_along_axis(array: Array, indices: Any, values: Any, axis: int | None) -> None:
    """Like ``numpy.put_along_axis``."""
    if axis is None or np.ndim(values):
        raise NotOnDevices
    target, indices, own, shape = _along(array, _own(indices, array), axis)
    if target.shape != array.shape:
        raise NotOnDevices

    def one(key: Any, part: Any, places: Any) -> None:
        np.put_along_axis(part, places, np.asarray(values), own)
        array[key] = part

    _paired(one, [array, indices], own, shape)


def _along(array: Array, indices: Array, axis: int) -> tuple[Array, Array, int, tuple[Any, ...]]:
    """Checks two arrays, and broadcasts them along all axes but `axis`. Returns both arrays, the axis as a number from
    0, and the common extents along the other axes."""
    if indices.dtype.kind not in "iu":
        raise IndexError("`indices` must be an integer array")
    if array.ndim != indices.ndim:
        raise ValueError("`indices` and `arr` must have the same number of dimensions")
    own = axis_of(axis, array.ndim)
    both = [one.shape[:own] + one.shape[own + 1 :] for one in (array, indices)]
    if any(1 in (one, other) and one != other for one, other in zip(*both)):
        shape = np.broadcast_shapes(*both)
        array, indices = (
            np.broadcast_to(one, (*shape[:own], one.shape[own], *shape[own:])) for one in (array, indices)
        )
    return array, indices, own, np.broadcast_shapes(*both)


def put(array: Array, ind: Any, v: Any, mode: str = "raise") -> None:
    """Like ``numpy.put``."""
    indices, values = _small(ind, v)
    indices, size = indices.reshape(-1), array.size
    if indices.dtype.kind not in "iub" or not size:
        raise NotOnDevices
    outside = indices[(indices < -size) | (indices >= size)]
    if mode == "raise" and outside.size:
        raise IndexError(f"index {outside[0]} is out of bounds for axis 0 with size {size}")
    places = indices.clip(0, size - 1) if mode == "clip" else indices.astype(np.intp) % size
    if values.size and places.size:
        _flat_write(array, places, np.resize(values, places.shape))


def _flat_write(array: Array, places: Any, values: Any) -> None:
    target = array if array.ndim else array.reshape(1)
    target[np.unravel_index(places, target.shape)] = values


def _masked(array: Array, mask: Any, values: Any, is_counted: bool) -> None:
    """Writes values where a mask is true. With `is_counted`, each selected item gets the next value; else the value at
    its own index."""
    mask, (values,) = _own(mask, array), _small(values)
    if mask.shape != array.shape or (
        values.dtype != array.dtype and not np.can_cast(values.dtype, array.dtype, "same_kind")
    ):
        raise NotOnDevices
    values, at = values.reshape(-1).astype(array.dtype), 0
    for key in _ufuncs.blocks(array.shape):
        chosen, part = np.asarray(mask[key]).astype(bool), np.asarray(array[key])
        places = at + (np.arange(np.count_nonzero(chosen)) if is_counted else np.flatnonzero(chosen))
        if len(places):
            if not len(values):
                raise NotOnDevices
            part[chosen] = values[places % len(values)]
            array[key] = part
        at += len(places) if is_counted else part.size


def fill_diagonal(array: Array, val: Any, wrap: bool = False) -> None:
    """Like ``numpy.fill_diagonal``."""
    if array.ndim != 2 or not np.size(val):
        raise NotOnDevices
    step = array.shape[1] + 1
    end = array.size if wrap else min(array.size, array.shape[1] ** 2)
    _flat_write(array, np.arange(0, end, step), np.resize(np.asarray(val), len(range(0, end, step))))


# Functions of triangles and diagonals.


def _triangle(is_lower: bool) -> Any:
    def work(array: Array, k: int = 0) -> Array:
        if array.ndim < 2:
            raise NotOnDevices
        own = _options_like(array)
        rows = _array.arange(array.shape[-2], dtype=np.int64, **own).reshape(-1, 1)
        columns = _array.arange(array.shape[-1], dtype=np.int64, **own)
        mask = rows >= columns - k if is_lower else rows <= columns - k
        return where_of(np.broadcast_to(mask, array.shape), array, np.zeros((), array.dtype))

    return work


def diagflat(array: Array, k: int = 0) -> Array:
    """Like ``numpy.diagflat``."""
    return np.diag(array.reshape(-1), k)


def trace(array: Array, offset: int = 0, axis1: int = 0, axis2: int = 1, dtype: Any = None) -> Any:
    """Like ``numpy.trace``."""
    return array.diagonal(offset, axis1, axis2).sum(-1, dtype)


# Functions based on sorted items, and set functions.


def digitize(array: Any, bins: Any, right: bool = False) -> Any:
    """Like ``numpy.digitize``."""
    (edges,) = _small(bins)
    if edges.ndim != 1 or _ufuncs.kind(array).kind not in "biuf":
        raise NotOnDevices
    steps = np.diff(edges)
    if np.all(steps >= 0):
        return searchsorted(edges, array, "left" if right else "right")
    if not np.all(steps <= 0):
        raise ValueError("bins must be monotonically increasing or decreasing")
    return len(edges) - searchsorted(edges[::-1].copy(), array, "left" if right else "right")


def lexsort(keys: Any, axis: int = -1) -> Array:
    """Like ``numpy.lexsort``, for keys of one axis."""
    keys = list(keys)
    if any(np.ndim(one) != 1 for one in keys) or len({len(one) for one in keys}) != 1 or axis not in (0, -1):
        raise NotOnDevices
    order = argsort(_own(keys[0], *keys))
    for key in keys[1:]:
        order = take(order, argsort(take(_own(key, *keys), order)))
    return order


def union1d(ar1: Any, ar2: Any) -> Array:
    """Like ``numpy.union1d``."""
    return unique(concatenate([_line(ar1, ar2), _line(ar2, ar1)]))


def setdiff1d(ar1: Any, ar2: Any, assume_unique: bool = False) -> Array:
    """Like ``numpy.setdiff1d``."""
    own = _line(ar1, ar2) if assume_unique else unique(_line(ar1, ar2))
    return own[isin(own, ar2, invert=True)].copy()


def intersect1d(ar1: Any, ar2: Any, assume_unique: bool = False) -> Array:
    """Like ``numpy.intersect1d``."""
    one, other = _line(ar1, ar2), _line(ar2, ar1)
    kind = np.result_type(one.dtype, other.dtype)
    if kind.kind == "f" and any(of.kind in "iu" and of.itemsize == 8 for of in (one.dtype, other.dtype)):
        # Let NumPy handle integers that the common dtype would round.
        raise NotOnDevices
    own = unique(one.astype(kind, copy=False))
    return own[isin(own, other.astype(kind, copy=False))].copy()


class UniqueAll(NamedTuple):
    """Result of `unique_all`, as in NumPy."""

    values: Any
    indices: Any
    inverse_indices: Any
    counts: Any


def unique_all(array: Array) -> UniqueAll:
    """Like ``numpy.unique_all``."""
    return UniqueAll(*unique(array, True, True, True, equal_nan=False))


# Cumulative sums and differences.


def _scanned(scan: Any, value: int) -> Any:
    def work(array: Array, axis: int | None = None, dtype: Any = None) -> Array:
        return scan(_without(array, value), axis, dtype)

    return work


def _cumulative(scan: Any, value: int) -> Any:
    def work(array: Array, *, axis: int | None = None, dtype: Any = None, include_initial: bool = False) -> Array:
        if not array.ndim:
            raise NotOnDevices
        if axis is None and array.ndim != 1:
            raise ValueError("For arrays which have more than one dimension ``axis`` argument is required.")
        result = scan(array, 0 if axis is None else axis, dtype)
        if not include_initial:
            return result
        own = axis_of(axis or 0, array.ndim)
        shape = (*array.shape[:own], 1, *array.shape[own + 1 :])
        return concatenate([_array.full(shape, value, result.dtype, **_options_like(array)), result], own)

    return work


def ediff1d(array: Array, to_end: Any = None, to_begin: Any = None) -> Array:
    """Like ``numpy.ediff1d``."""
    if array.dtype == np.bool_:
        raise NotOnDevices
    array = array.reshape(-1)
    ends = [None if one is None else np.asarray(one).reshape(-1) for one in (to_begin, to_end)]
    if any(one is not None and not np.can_cast(one.dtype, array.dtype, "same_kind") for one in ends):
        raise NotOnDevices
    apart = np.diff(array)
    parts = (ends[0], apart, ends[1])
    return (
        concatenate([one.astype(array.dtype) for one in parts if one is not None], 0)
        if any(one is not None for one in ends)
        else apart
    )


def _extreme_place(name: str, value: float) -> Any:
    def work(array: Array, axis: Any = None, keepdims: bool = False) -> Any:
        if array.dtype.kind == "c" or (array.dtype.kind == "f" and np.any(np.all(np.isnan(array), axis))):
            raise NotOnDevices
        return getattr(np, name)(_without(array, value), axis, keepdims=keepdims)

    return work


def trapezoid(array: Array, x: Any = None, dx: Any = 1.0, axis: int = -1) -> Any:
    """Like ``numpy.trapezoid``, for points at equal distances."""
    if x is not None or array.dtype.kind not in "f":
        raise NotOnDevices
    own = (slice(None),) * axis_of(axis, array.ndim)
    return (dx * (array[(*own, slice(1, None))] + array[(*own, slice(None, -1))]) / 2.0).sum(axis)


def gradient(array: Array, *distances: Any, axis: Any = None, edge_order: int = 1) -> Any:
    """Like ``numpy.gradient``: NumPy computes the gradient of pieces, each with two more items at each side."""
    if any(np.ndim(one) for one in distances) or array.dtype.kind not in "iufc" or edge_order not in (1, 2):
        raise NotOnDevices
    axes = np.lib.array_utils.normalize_axis_tuple(range(array.ndim) if axis is None else axis, array.ndim)
    each = distances * len(axes) if len(distances) == 1 else distances or (1.0,) * len(axes)
    if len(each) != len(axes):
        raise TypeError("invalid number of arguments")
    if any(array.shape[own] < edge_order + 1 for own in axes):
        raise ValueError(
            "Shape of array too small to calculate a numerical gradient, "
            "at least (edge_order + 1) elements are required."
        )
    kind = np.gradient(np.zeros(3, array.dtype)).dtype
    results = []
    for own, distance in zip(axes, each):
        result = _array._result(array.shape, kind, **_options_like(array))
        for key in _ufuncs.blocks(array.shape):
            key += (slice(None),) * (array.ndim - len(key))
            first, last, _ = key[own].indices(array.shape[own])
            start = max(0, first - 2)
            wide = (*key[:own], slice(start, last + 2), *key[own + 1 :])
            part = np.gradient(np.asarray(array[wide]), distance, axis=own, edge_order=edge_order)
            result[key] = part[(slice(None),) * own + (slice(first - start, last - start),)]
        results.append(result)
    return results[0] if len(axes) == 1 else tuple(results)


def interp(x: Any, xp: Any, fp: Any, left: Any = None, right: Any = None, period: Any = None) -> Any:
    """Like ``numpy.interp``, for points `xp` that fit in RAM."""
    xp, fp = _small(xp, fp)
    if not isinstance(x, Array) or not x.ndim:
        raise NotOnDevices
    return _elementwise(lambda part: np.interp(part, xp, fp, left, right, period))(x)


def convolve(a: Any, v: Any, mode: Any = "full") -> Array:
    """Like ``numpy.convolve``, for a large array and a small one."""
    if np.ndim(a) > 1 or np.ndim(v) > 1 or mode not in ("full", "same", "valid"):
        raise NotOnDevices
    a, v = (v, a) if np.size(v) > np.size(a) else (a, v)
    (small,), large = _small(v), _line(a, v)
    small, count, more = small.reshape(-1), len(large), np.size(v)
    if not more:
        raise ValueError("v cannot be empty")
    offset, length = {
        "full": (0, count + more - 1),
        "same": ((more - 1) // 2, count),
        "valid": (more - 1, count - more + 1),
    }[mode]
    kind = np.convolve(np.zeros(1, large.dtype), small[:1]).dtype
    result = _array._result((length,), kind, **_options_like(large))
    for (key,) in _ufuncs.blocks((length,)):
        first, last, _ = key.indices(length)
        start = max(0, first + offset - more + 1)
        part = np.convolve(np.asarray(large[start : last + offset]), small)
        result[first:last] = part[first + offset - start : last + offset - start]
    return result


def cov(m: Array, y: Any = None, rowvar: bool = True, bias: bool = False, ddof: int | None = None) -> Any:
    """Like ``numpy.cov``, for the rows or columns of one array of numbers."""
    if (
        y is not None
        or m.ndim > 2
        or m.dtype.kind not in "biuf"
        or not m.dtype.isnative
        or m.dtype.itemsize < 4
        or (ddof is not None and ddof != int(ddof))
    ):
        raise NotOnDevices
    rows = (m if rowvar or m.ndim < 2 else m.T).reshape((1, -1) if m.ndim < 2 else m.shape if rowvar else m.shape[::-1])
    count, kind = rows.shape[1], np.result_type(m.dtype, np.float64)
    middle = np.asarray(summed(rows, 1, np.float64, None, True)) / count
    total = np.zeros((rows.shape[0],) * 2, kind)
    step = max(1, _ufuncs.PIECE // max(1, rows.shape[0]))
    for start in range(0, count, step):
        part = np.asarray(rows[:, start : start + step]) - middle
        total += part @ part.T
    ddof = int(not bias) if ddof is None else ddof
    with np.errstate(all="ignore"):
        total = total * np.true_divide(1, max(0, count - ddof))
    return _own(total, m) if total.size > 1 else total.squeeze()[()]


def _equivalent(one: Any, other: Any) -> bool:
    try:
        np.broadcast_shapes(np.shape(one), np.shape(other))
    except ValueError:
        return False
    return bool(np.all(compared(one, other, True)))


def _without_items(operand: Any) -> Any:
    """An array of no items with the dtype of an operand; the operand itself if it is a number."""
    if not np.ndim(operand):
        return np.asarray(operand)[()] if isinstance(operand, Array) else operand
    return np.empty(0, operand.dtype if hasattr(operand, "dtype") else np.asarray(operand).dtype)


def choose(a: Any, choices: Any, mode: str = "raise") -> Array:
    """Like ``numpy.choose``."""
    parts = [a, *choices]
    empty = [_without_items(one) for one in choices]
    kind = np.choose(np.zeros(0, np.intp), empty, mode=mode).dtype
    shape = np.broadcast_shapes(*map(np.shape, parts))
    return _ufuncs.by_pieces(lambda one, *others: np.choose(one, others, mode=mode), parts, shape, (kind,))[0]


def piecewise(x: Array, condlist: Any, funclist: Any, *args: Any, **kw: Any) -> Array:
    """Like ``numpy.piecewise``. A function gets the items of one piece after the other."""
    if not isinstance(x, Array) or not x.ndim:
        raise NotOnDevices
    if np.isscalar(condlist) or not isinstance(condlist[0], (list, np.ndarray, Array)):
        condlist = [condlist]
    conditions = [one if isinstance(one, Array) else np.asarray(one, bool) for one in condlist]

    def work(part: Any, *masks: Any) -> Any:
        return np.piecewise(part, [*masks], funclist, *args, **kw)

    return _ufuncs.by_pieces(work, [x, *conditions], x.shape, (x.dtype,))[0]


def histogramdd(sample: Any, bins: Any = 10, range: Any = None, density: Any = None, weights: Any = None) -> Any:
    """Like ``numpy.histogramdd``: NumPy counts the points of one piece after the other."""
    own = [*sample] if isinstance(sample, (list, tuple)) else [*np.atleast_2d(sample.T)]
    columns = [_own(one, *_dispatch.arrays_in(own)) for one in own]
    if columns[0].ndim != 1 or not len(columns[0]) or len({one.shape for one in columns}) > 1:
        raise NotOnDevices
    # The edges depend on the least and the greatest coordinates alone.
    ends = np.array([[getattr(one, name)() for one in columns] for name in ("min", "max")])
    _, edges = np.histogramdd(ends, bins, range)
    counts = np.zeros([len(one) - 1 for one in edges])
    for (key,) in _ufuncs.blocks(columns[0].shape):
        shares = None if weights is None else np.asarray(weights[key])
        counts += np.histogramdd([np.asarray(one[key]) for one in columns], edges, weights=shares)[0]
    if density:
        total = counts.sum()
        for axis, one in enumerate(edges):
            counts = counts / np.diff(one).reshape([-1 if at == axis else 1 for at, _ in enumerate(edges)])
        counts /= total
    return _own(counts, *columns), [_own(one, *columns) for one in edges]


def histogram2d(
    x: Any, y: Any, bins: Any = 10, range: Any = None, density: Any = None, weights: Any = None
) -> tuple[Any, ...]:
    """Like ``numpy.histogram2d``."""
    if np.ndim(bins) == 1 and np.size(bins) not in (1, 2):
        bins = [np.asarray(bins)] * 2
    counts, edges = histogramdd([x, y], bins, range, density, weights)
    return (counts, *edges)


def _without_nans(name: str) -> Any:
    """Returns the implementation of ``nanmedian`` and others: of all items by `name`, along an axis by NumPy."""

    def work(array: Array, *q: Any, axis: Any = None, keepdims: bool = False, method: str = "linear") -> Any:
        named = {} if name == "median" else {"method": method}
        if array.dtype.kind != "f" or any(map(np.ndim, q)) or not (axis is None or isinstance(axis, int)):
            raise NotOnDevices
        if axis is not None:
            function = getattr(np, f"nan{name}")
            kind = function(np.zeros(1, array.dtype), *q, **named).dtype
            return lines(lambda part, own: function(part, *q, own, keepdims=True, **named), array, axis, kind, keepdims)
        flat = array.reshape(-1)
        result = getattr(np, name)(flat[~np.isnan(flat)].compute(), *q, **named)
        return _own(result, array).reshape((1,) * array.ndim) if keepdims else result

    return work


# Functions of sliding windows.


def sliding_window_view(
    x: Array, window_shape: Any, axis: Any = None, *, subok: bool = False, writeable: bool = False
) -> Array:
    """All windows of an array, like ``numpy.lib.stride_tricks.sliding_window_view``; the windows are copies on the
    devices."""
    window = _array._as_tuple(window_shape)
    axes = (
        tuple(range(x.ndim))
        if axis is None
        else np.lib.array_utils.normalize_axis_tuple(axis, x.ndim, allow_duplicate=True)
    )
    if len(window) != len(axes):
        raise ValueError(
            f"Must provide matching length window_shape and axis; got {len(window)} window_shape elements and "
            f"{len(axes)} axes elements."
        )
    shape = list(x.shape)
    for own, extent in zip(axes, window):
        shape[own] -= extent - 1
    if min(shape, default=0) < 0 or any(x.shape[own] < extent for own, extent in zip(axes, window)):
        raise ValueError("window shape cannot be larger than input array shape")
    result = _array._result((*shape, *window), x.dtype, **_options_like(x))
    for at in np.ndindex(*window):
        starts = [0] * x.ndim
        for own, by in zip(axes, at):
            starts[own] += by
        result[(..., *at)] = x[tuple(slice(start, start + extent) for start, extent in zip(starts, shape))]
    return result


#: The package's own functions, by NumPy's.
FUNCTIONS: dict[Any, Any] = {
    getattr(np, work.__name__): work
    for work in (
        argwhere, extract, compress, delete, insert, resize, block, select, take_along_axis, put_along_axis, put,
        fill_diagonal, diagflat, trace, digitize, lexsort, union1d, setdiff1d, intersect1d, unique_all, ediff1d,
        gradient, interp, convolve, cov, trapezoid, choose, piecewise, histogramdd, histogram2d,
    )
}  # fmt: skip
FUNCTIONS |= {
    one: _elementwise(one) for one in (np.angle, np.sinc, np.iscomplex, np.isreal, np.isneginf, np.isposinf, np.fix)
}
FUNCTIONS |= {
    np.place: functools.partial(_masked, is_counted=True),
    np.putmask: functools.partial(_masked, is_counted=False),
    np.tril: _triangle(True),
    np.triu: _triangle(False),
    np.nancumsum: _scanned(cumsum, 0),
    np.nancumprod: _scanned(cumprod, 1),
    np.nanargmax: _extreme_place("argmax", -np.inf),
    np.nanargmin: _extreme_place("argmin", np.inf),
    np.astype: lambda array, dtype, copy=True: array.astype(dtype, copy=copy),
    np.setxor1d: lambda one, other: np.sort(concatenate([setdiff1d(one, other), setdiff1d(other, one)])),
    np.histogram_bin_edges: lambda array, bins=10, range=None: np.histogram(array, bins, range)[1],
    np.array_equiv: _equivalent,
    np.nanmedian: _without_nans("median"),
    np.nanquantile: _without_nans("quantile"),
    np.nanpercentile: _without_nans("percentile"),
}
FUNCTIONS |= _products.FUNCTIONS
#: Functions that move items of any dtype.
MOVES = {
    np.extract, np.compress, np.delete, np.insert, np.resize, np.block, np.take_along_axis, np.put_along_axis,
    np.put, np.fill_diagonal, np.diagflat, np.place, np.putmask, np.tril, np.triu, np.lexsort, np.astype,
}  # fmt: skip
if hasattr(np, "cumulative_sum"):
    FUNCTIONS |= {np.cumulative_sum: _cumulative(cumsum, 0), np.cumulative_prod: _cumulative(cumprod, 1)}
