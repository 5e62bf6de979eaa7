"""NumPy's functions that change shapes, concatenate, compute cumulative sums, or reduce without NaNs."""

from __future__ import annotations

import operator
from collections.abc import Sequence
from typing import Any

import numpy as np

from . import _array, _core, _ufuncs
from ._array import Array
from ._creation import diagonal_of
from ._dispatch import NotOnDevices
from ._functions import axis_of, concatenate, reduced, where_of
from ._order import searchsorted, take, unique

_axes_of = np.lib.array_utils.normalize_axis_tuple


# Functions that return views.


def expand_dims(array: Array, axis: Any) -> Array:
    """A view with additional axes of length 1, as ``numpy.expand_dims``."""
    axes = axis if isinstance(axis, (tuple, list)) else (axis,)
    own = _axes_of(tuple(axes), array.ndim + len(axes))
    return array[tuple(None if number in own else slice(None) for number in range(array.ndim + len(axes))) + (...,)]


def moveaxis(array: Array, source: Any, destination: Any) -> Array:
    """A view with axes at other places, like ``numpy.moveaxis``."""
    source, destination = _axes_of(source, array.ndim, "source"), _axes_of(destination, array.ndim, "destination")
    if len(source) != len(destination):
        raise ValueError("`source` and `destination` arguments must have the same number of elements")
    order = [number for number in range(array.ndim) if number not in source]
    for to, of in sorted(zip(destination, source)):
        order.insert(to, of)
    return array.transpose(order)


def flip(array: Array, axis: Any = None) -> Array:
    """A view with the items in reverse order along axes, like ``numpy.flip``."""
    axes = range(array.ndim) if axis is None else _axes_of(axis, array.ndim)
    if not array.ndim:
        return array[()]
    return array[
        tuple(slice(None, None, -1) if number in axes else slice(None) for number in range(array.ndim)) + (...,)
    ]


def _flipped(axis: int) -> Any:
    def work(array: Array) -> Array:
        if array.ndim <= axis:
            raise ValueError(f"Input must be >= {axis + 1}-d.")
        return flip(array, axis)

    return work


def rot90(array: Array, k: int = 1, axes: Any = (0, 1)) -> Array:
    """A view rotated by multiples of 90 degrees, as ``numpy.rot90``."""
    if any(not -array.ndim <= axis < array.ndim for axis in axes):
        raise ValueError(f"Axes={tuple(axes)} out of range for array of ndim={array.ndim}.")
    one, other = (axis % array.ndim for axis in axes)
    if one == other:
        raise ValueError(f"Axes must be different. (axes={tuple(axes)} and ndim={array.ndim}).")
    k %= 4
    if k == 2:
        return flip(flip(array, one), other)
    if k == 3:
        return flip(array.swapaxes(one, other), other)
    return flip(array, other).swapaxes(one, other) if k else array[...]


def atleast(count: int) -> Any:
    """Returns the implementation of ``numpy.atleast_1d``, ``atleast_2d`` or ``atleast_3d``, for `count` axes."""

    def work(*arrays: Any) -> Any:
        results = []
        for one in arrays:
            one = one if isinstance(one, Array) else np.asarray(one)
            if count == 3 and one.ndim in (1, 2):
                one = one[None, :, None] if one.ndim == 1 else one[..., None]
            while one.ndim < count:
                one = one[None]
            results.append(one)
        return tuple(results) if len(results) > 1 else results[0]

    return work


def broadcast_arrays(*arrays: Any, subok: bool = False) -> tuple[Any, ...]:
    """Views of the arrays, broadcast to one shape, like ``numpy.broadcast_arrays``."""
    shape = np.broadcast_shapes(*(np.shape(one) for one in arrays))
    return tuple(np.broadcast_to(one, shape) for one in arrays)


def array_split(array: Array, sections: Any, axis: int = 0) -> list[Any]:
    """Consecutive parts of an array as views, as ``numpy.array_split``."""
    own = axis_of(axis, array.ndim)
    extent = array.shape[own]
    if np.ndim(sections) == 0:
        count = operator.index(sections)
        if count <= 0:
            raise ValueError("number sections must be larger than 0.")
        each, more = divmod(extent, count)
        ends = np.cumsum([each + 1] * more + [each] * (count - more)).tolist()
        starts = [0, *ends[:-1]]
    else:
        starts, ends = [0, *sections], [*sections, extent]
    before = (slice(None),) * own
    return [array[(*before, slice(start, end), ...)] for start, end in zip(starts, ends)]


def split(array: Array, sections: Any, axis: int = 0) -> list[Any]:
    """Consecutive parts of equal length as views, as ``numpy.split``."""
    if np.ndim(sections) == 0 and array.shape[axis] % operator.index(sections):
        raise ValueError("array split does not result in an equal division")
    return array_split(array, sections, axis)


# Functions that copy items.


def stack(arrays: Any, axis: int = 0, out: Any = None, *, dtype: Any = None, casting: str = "same_kind") -> Array:
    """Arrays of one shape along a new axis, like ``numpy.stack``."""
    arrays = list(arrays)
    arrays = [_array.asarray(one, **_array._options_like(*arrays)) for one in arrays]
    if len({one.shape for one in arrays}) > 1:
        raise ValueError("all input arrays must have the same shape")
    return concatenate(
        [expand_dims(one, axis) for one in arrays],
        axis_of(axis, arrays[0].ndim + 1),
        out,
        dtype=dtype,
        casting=casting,
    )


def _stacked(count: int, axis: int) -> Any:
    def work(arrays: Any, *, dtype: Any = None, casting: str = "same_kind") -> Array:
        arrays = list(arrays)
        arrays = [atleast(count)(_array.asarray(one, **_array._options_like(*arrays))) for one in arrays]
        return concatenate(arrays, min(axis, arrays[0].ndim - 1), dtype=dtype, casting=casting)

    return work


def column_stack(arrays: Any) -> Array:
    """Arrays of one axis as the columns of an array, as ``numpy.column_stack``."""
    arrays = list(arrays)
    arrays = [_array.asarray(one, **_array._options_like(*arrays)) for one in arrays]
    return concatenate([one if one.ndim > 1 else atleast(1)(one)[:, None] for one in arrays], 1)


def append(array: Any, values: Any, axis: int | None = None) -> Array:
    """A copy of the array with ``values`` added at its end, like ``numpy.append``."""
    return concatenate([one if isinstance(one, Array) else np.asarray(one) for one in (array, values)], axis)


def repeat(array: Array, repeats: Any, axis: int | None = None) -> Array:
    """An array with each item repeated `repeats` times, as ``numpy.repeat``."""
    array = array.reshape(-1) if axis is None or not array.ndim else array
    own = axis_of(axis or 0, array.ndim)
    return take(array, np.repeat(np.arange(array.shape[own]), np.asarray(repeats)), own)


def tile(array: Array, reps: Any) -> Array:
    """An array repeated several times along each axis, as ``numpy.tile``."""
    reps = tuple(reps) if isinstance(reps, Sequence) or np.ndim(reps) else (operator.index(reps),)
    ndim = max(array.ndim, len(reps))
    shape, reps = (1,) * (ndim - array.ndim) + array.shape, (1,) * (ndim - len(reps)) + reps
    result = _array._result(tuple(e * r for e, r in zip(shape, reps)), array.dtype, **_array._options_like(array))
    array = array.reshape(shape)
    if result.size:
        for at in np.ndindex(*reps):
            result[tuple(slice(n * e, (n + 1) * e) for n, e in zip(at, shape))] = array
    return result


def roll(array: Array, shift: Any, axis: Any = None) -> Array:
    """Items shifted along axes; the last items move to the beginning, as ``numpy.roll``."""
    if axis is None:
        return roll(array.reshape(-1), shift, 0).reshape(array.shape)
    shifts, axes = np.broadcast_arrays(shift, np.asarray(_axes_of(axis, array.ndim, allow_duplicate=True)))
    for own, by in zip(axes.ravel().tolist(), shifts.ravel().tolist()):
        extent, before = array.shape[own], (slice(None),) * own
        if extent and by % extent:
            at = extent - by % extent
            parts = [array[(*before, slice(at, None))], array[(*before, slice(at))]]
            array = concatenate(parts, own, dtype=array.dtype)
    return array.copy()


def pad(array: Array, pad_width: Any, mode: Any = "constant", **given: Any) -> Array:
    """A padded array, as ``numpy.pad``, with the modes that repeat items, or with one value."""
    if mode not in ("constant", "edge", "reflect", "symmetric", "wrap") or set(given) - {"constant_values"}:
        raise NotOnDevices
    if mode != "constant" and given:
        raise NotOnDevices
    # For each axis, determine the numbers of items to add before and after.
    widths = (
        np.broadcast_to(np.asarray(pad_width), (array.ndim, 2)).tolist()
        if not isinstance(pad_width, dict)
        else [
            np.broadcast_to(pad_width.get(n, pad_width.get(n - array.ndim, 0)), 2).tolist() for n in range(array.ndim)
        ]
    )
    is_negative = not isinstance(pad_width, dict) and bool((np.asarray(pad_width) < 0).any())
    if is_negative or any(one < 0 for both in widths for one in both):
        raise ValueError("index can't contain negative values")
    if mode == "constant":
        values = np.broadcast_to(np.asarray(given.get("constant_values", 0)), (array.ndim, 2))
        shape = tuple(before + extent + after for extent, (before, after) in zip(array.shape, widths))
        result = _array._result(shape, array.dtype, **_array._options_like(array))
        for own, (before, after) in enumerate(widths):
            # Fill the borders along this axis; borders along later axes overwrite the corners.
            inner = (slice(None),) * own
            if before:
                result[(*inner, slice(0, before))] = values[own, 0]
            if after:
                result[(*inner, slice(shape[own] - after, None))] = values[own, 1]
        result[tuple(slice(before, before + extent) for extent, (before, _) in zip(array.shape, widths)) + (...,)] = (
            array
        )
        return result
    result = array.copy()
    for own, both in enumerate(widths):
        if any(both):
            result = take(result, np.pad(np.arange(array.shape[own]), both, mode), own)
    return result


# Functions for cumulative sums and differences.


#: Number of lines along an axis from which GPUs accumulate each line in the order of its items.
_LINES = 1 << 12


def accumulated_on_cards(ufunc: np.ufunc, array: Array, axis: int, result: Array, is_anywhere: bool = False) -> bool:
    """Writes cumulative sums or products along `axis` to `result`. If there are many lines, devices accumulate each in
    NumPy's order. Otherwise the Rust library computes prefix sums along the last axis, in another order. Returns False
    if GPUs (with `is_anywhere`, any devices) should not compute the result, which the caller then overwrites.
    """
    kinds = (array.dtype, result.dtype)
    if not (is_anywhere or result._core.is_on_cards) or 0 in array.shape or ufunc not in (np.add, np.multiply):
        return False
    if any(one.kind not in "biuf" or one == np.float16 or not one.isnative for one in kinds):
        return False
    has_lines = array.ndim > 1 and (is_anywhere or array.size // array.shape[axis] >= _LINES)
    if has_lines:
        source = array.astype(result.dtype, copy=False)._core
        return _core.accumulate(result._core, source, axis, ufunc is np.multiply, is_anywhere)
    if axis != array.ndim - 1 or ufunc is not np.add:
        return False
    result[...] = array
    return _core.prefix_sums(result._core, is_anywhere)


def accumulated(ufunc: np.ufunc) -> Any:
    """Returns the implementation of ``cumsum``, ``cumprod`` and so on, piece by piece."""

    def work(array: Array, axis: int | None = None, dtype: Any = None, out: Any = None) -> Array:
        if out is not None:
            raise NotOnDevices
        if axis is None:
            array, axis = array.reshape(-1), 0
        own = axis_of(axis, array.ndim)
        # Let NumPy determine the dtype: sums and products of small integers have a wider one.
        few = np.empty(int(ufunc.identity is None), array.dtype)
        kind = ufunc.reduce(few).dtype if dtype is None else np.dtype(dtype)
        result = _array._result(array.shape, kind, **_array._options_like(array))
        if accumulated_on_cards(ufunc, array, own, result):
            return result
        carried: dict[str, Any] = {}
        for block in _ufuncs.blocks(array.shape):
            part = np.asarray(array[block])
            line = (*block[:own], *block[own + 1 :])
            key = tuple((one.start, one.stop) for one in line)
            if key in carried:
                # Start each piece with the last result of the previous one, to keep NumPy's order of operations.
                part = ufunc.accumulate(np.concatenate([carried[key], part.astype(kind)], own), own, kind)
                part = part[(slice(None),) * own + (slice(1, None),)]
            else:
                part = ufunc.accumulate(part, own, kind)
            if block[own] != slice(None):
                carried[key] = part[(slice(None),) * own + (slice(-1, None),)]
            result[block] = part
        return result

    return work


cumsum, cumprod = accumulated(np.add), accumulated(np.multiply)


def diff(array: Array, n: int = 1, axis: int = -1, prepend: Any = None, append: Any = None) -> Array:
    """Difference of each item and the previous item along an axis, `n` times, like ``numpy.diff``."""
    if n == 0:
        return array
    if prepend is not None or append is not None:
        if axis_of(axis, array.ndim) or any(np.ndim(one) > 1 for one in (prepend, append)) or array.ndim > 1:
            raise NotOnDevices
        array = concatenate([np.atleast_1d(one) for one in (prepend, array, append) if one is not None], 0)
    if n < 0:
        raise ValueError(f"order must be non-negative but got {n!r}")
    own = axis_of(axis, array.ndim)
    before = (slice(None),) * own
    work = np.not_equal if array.dtype == np.bool_ else np.subtract
    for _ in range(n):
        array = work(array[(*before, slice(1, None))], array[(*before, slice(None, -1))])
    return array


# Comparisons, and functions of sets.


def isclose(one: Any, other: Any, rtol: Any = 1e-05, atol: Any = 1e-08, equal_nan: bool = False) -> Any:
    """True for each pair of items that are nearly equal, like ``numpy.isclose``."""
    like = _array._options_like(one, other)
    numbers = (int, float, complex)
    one, other, rtol, atol = (
        value if isinstance(value, numbers) else _array.asarray(value, **like) for value in (one, other, rtol, atol)
    )
    # Convert to floats, so that no difference wraps around.
    if isinstance(other, Array):
        other = other.astype(np.result_type(other.dtype, 1.0), copy=False)
    elif isinstance(other, int):
        other = float(other)
    near = np.less_equal(abs(one - other), atol + rtol * abs(other)) & np.isfinite(other) | (one == other)
    return near | (np.isnan(one) & np.isnan(other)) if equal_nan else near


def allclose(one: Any, other: Any, rtol: float = 1e-05, atol: float = 1e-08, equal_nan: bool = False) -> bool:
    """True if all pairs of items are nearly equal, like ``numpy.allclose``."""
    return bool(np.all(isclose(one, other, rtol, atol, equal_nan)))


def isin(array: Any, among: Any, assume_unique: bool = False, invert: bool = False, *, kind: Any = None) -> Array:
    """True for each item that occurs in another array, as ``numpy.isin``. The devices search the other array.

    Examples
    --------
    >>> import numpy as np, vmarray as vm
    >>> np.isin(vm.arange(5), [3, 1])
    Array([False,  True, False,  True, False], dtype=bool)
    """
    array = _array.asarray(array, **_array._options_like(among))
    among = _array.asarray(among, **_array._options_like(array))
    try:
        common = np.result_type(array.dtype, among.dtype)
    except TypeError:
        raise NotOnDevices from None
    if common.kind == "f" and {array.dtype.kind, among.dtype.kind} <= set("biu"):
        # Let NumPy handle integers that the common dtype would round.
        raise NotOnDevices
    if kind not in (None, "sort"):
        raise NotOnDevices
    known, array = unique(among.astype(common, copy=False)), array.astype(common, copy=False)
    if not len(known):
        found = _array.zeros(array.shape, bool, **_array._options_like(array))
    else:
        at = searchsorted(known, array).clip(0, len(known) - 1)
        found = take(known, at) == array
    return ~found if invert else found


def real_if_close(array: Array, tol: float = 100) -> Array:
    """The real parts if all imaginary parts are nearly zero, else the array, like ``numpy.real_if_close``."""
    if array.dtype.kind != "c":
        return array
    if tol > 1:
        tol = np.finfo(array.dtype).eps * tol
    return array.real if bool(np.all(abs(array.imag) < tol)) else array


def nan_to_num(array: Array, copy: bool = True, nan: Any = 0.0, posinf: Any = None, neginf: Any = None) -> Array:
    """Replaces NaNs and infinities by numbers, as ``numpy.nan_to_num``."""
    if np.ndim(nan) or np.ndim(posinf) or np.ndim(neginf):
        raise NotOnDevices
    if array.dtype.kind != "f":
        return array.copy() if copy else array
    limits = np.finfo(array.dtype)
    kind = array.dtype.type
    result = where_of(np.isnan(array), kind(nan), array)
    result = where_of(array == np.inf, kind(limits.max if posinf is None else posinf), result)
    result = where_of(array == -np.inf, kind(limits.min if neginf is None else neginf), result)
    if not copy:
        array[...] = result
        return array
    return result


# Reductions and statistics.


def ptp(array: Array, axis: Any = None, out: Any = None, keepdims: bool = False) -> Any:
    """The maximum minus the minimum of the items, like ``numpy.ptp``."""
    return np.subtract(
        array.max(axis, keepdims=keepdims), array.min(axis, keepdims=keepdims), **({} if out is None else {"out": out})
    )


def average(
    array: Array, axis: Any = None, weights: Any = None, returned: bool = False, *, keepdims: bool = False
) -> Any:
    """The mean or the weighted mean, as ``numpy.average``."""
    array = _array.asarray(array, **_array._options_like(weights))
    if weights is not None and not isinstance(weights, Array):
        weights = np.asarray(weights)
    if isinstance(axis, tuple) or (weights is not None and weights.dtype.kind not in "biuf"):
        raise NotOnDevices
    if weights is None:
        result = array.mean(axis, keepdims=keepdims)
        count = np.asarray(array.size / max(1, np.size(result)), result.dtype)
        is_array = isinstance(result, Array)
        options = _array._options_like(array)
        total = _array.full(result.shape, count, **options) if is_array else np.full_like(result, count)[()]
    else:
        if np.shape(weights) != array.shape:
            if axis is None:
                raise TypeError("Axis must be specified when shapes of a and weights differ.")
            own = axis_of(axis, array.ndim)
            if np.shape(weights) != (array.shape[own],):
                raise ValueError("Shape of weights must be consistent with shape of a along specified axis.")
            weights = (
                weights.reshape((-1,) + (1,) * (array.ndim - own - 1))
                if isinstance(weights, Array)
                else np.reshape(weights, (-1,) + (1,) * (array.ndim - own - 1))
            )
            weights = np.broadcast_to(weights, array.shape)
        kinds = (array.dtype, weights.dtype, *([np.float64] if array.dtype.kind in "biu" else []))
        kind = np.result_type(*kinds)
        total = np.sum(weights, axis=axis, dtype=kind, keepdims=keepdims)
        if np.any(total == 0):
            raise ZeroDivisionError("Weights sum to zero, can't be normalized")
        result = np.multiply(array, weights, dtype=kind).sum(axis, keepdims=keepdims) / total
    return (result, total) if returned else result


def _without(array: Array, value: Any) -> Array:
    return where_of(np.isnan(array), np.asarray(value, array.dtype), array) if array.dtype.kind in "fc" else array


def nansum(array: Array, axis: Any = None, dtype: Any = None, out: Any = None, keepdims: bool = False) -> Any:
    """The sum without NaNs, like ``numpy.nansum``."""
    return _without(array, 0).sum(axis, dtype, out, keepdims)


def nanprod(array: Array, axis: Any = None, dtype: Any = None, out: Any = None, keepdims: bool = False) -> Any:
    """The product without NaNs, like ``numpy.nanprod``."""
    return _without(array, 1).prod(axis, dtype, out, keepdims)


def _check_float(dtype: Any) -> None:
    if dtype is not None and np.dtype(dtype).kind != "f":
        raise NotOnDevices


def nanmean(array: Array, axis: Any = None, dtype: Any = None, out: Any = None, keepdims: bool = False) -> Any:
    """The mean without NaNs, like ``numpy.nanmean``."""
    _check_float(dtype)
    if array.dtype.kind not in "fc":
        return array.mean(axis, dtype, out, keepdims)
    kind = array.dtype if dtype is None else np.dtype(dtype)
    if kind.kind != "f":
        raise NotOnDevices
    wide = np.result_type(kind, np.float32) if kind == np.float16 else kind
    count = np.logical_not(np.isnan(array)).sum(axis, keepdims=keepdims)
    with np.errstate(invalid="ignore", divide="ignore"):
        result = np.true_divide(nansum(array, axis, wide, None, keepdims), count).astype(kind)
    if out is not None:
        out[...] = np.asarray(result)
        return out
    return result


def nanvar(
    array: Array, axis: Any = None, dtype: Any = None, out: Any = None, ddof: int = 0, keepdims: bool = False
) -> Any:
    """The variance without NaNs, like ``numpy.nanvar``, in 64 bits."""
    _check_float(dtype)
    if array.dtype.kind not in "fc":
        return array.var(axis, dtype, out, ddof, keepdims)
    kind = array.dtype if dtype is None else np.dtype(dtype)
    if kind.kind != "f":
        raise NotOnDevices
    middle = nanmean(array, axis, float, None, True)
    apart = array.astype(float, copy=False) - (middle if isinstance(middle, Array) else np.asarray(middle))
    # Set only items that are NaN to 0: the difference of an infinity and the mean is NaN too, but must count.
    apart = where_of(np.isnan(array), 0.0, apart)
    count = np.logical_not(np.isnan(array)).sum(axis, keepdims=keepdims) - ddof
    with np.errstate(invalid="ignore", divide="ignore"):
        result = np.true_divide(np.square(apart).sum(axis, float, None, keepdims), count)
        result = (
            np.where(count > 0, result, np.nan) if not isinstance(count, Array) else where_of(count > 0, result, np.nan)
        )
    result = result.astype(kind)
    if out is not None:
        out[...] = np.asarray(result)
        return out
    return result[()] if isinstance(result, np.ndarray) else result


def nanstd(
    array: Array, axis: Any = None, dtype: Any = None, out: Any = None, ddof: int = 0, keepdims: bool = False
) -> Any:
    """The standard deviation without NaNs, as ``numpy.nanstd``."""
    return np.sqrt(nanvar(array, axis, dtype, out, ddof, keepdims))


def _nanextreme(ufunc: np.ufunc, name: str) -> Any:
    def work(array: Array, axis: Any = None, out: Any = None, keepdims: bool = False) -> Any:
        if array.dtype.kind != "f":
            return getattr(array, name)(axis, out, keepdims)
        return reduced(ufunc, array, axis, None, out, keepdims)

    return work


def _imaginary(part: str) -> Any:
    def work(array: Array) -> Array:
        if array.dtype.kind != "c":
            # Broadcast a single zero to all items; the view is read-only.
            zero = _array._result((), array.dtype, **_array._options_like(array))
            return array if part == "real" else np.broadcast_to(zero, array.shape)
        return Array._of(array._core.by_attribute(part))

    return work


def _split_along(name: str, axis: int, least: int) -> Any:
    def work(array: Array, sections: Any) -> list[Any]:
        if array.ndim < least:
            raise ValueError(f"{name} only works on arrays of {least} or more dimensions")
        return split(array, sections, 0 if array.ndim == 1 else axis)

    return work


def rollaxis(array: Array, axis: int, start: int = 0) -> Array:
    """A view with an axis at another place, like ``numpy.rollaxis``."""
    own, ndim = axis_of(axis, array.ndim), array.ndim
    if not -ndim <= start <= ndim:
        raise np.exceptions.AxisError(f"'start' arg requires {-ndim} <= start < {ndim + 1}, but {start} was passed in")
    start += ndim * (start < 0)
    order = [number for number in range(ndim) if number != own]
    order.insert(start - (own < start), own)
    return array.transpose(order)


def unstack(array: Array, *, axis: int = 0) -> tuple[Any, ...]:
    """The parts along an axis, like ``numpy.unstack``: views, or the items if the array has one axis."""
    if not array.ndim:
        raise ValueError("Input array must be at least 1-d.")
    moved = moveaxis(array, axis, 0)
    return tuple(moved)


def diag(array: Array, k: int = 0) -> Array:
    """A view of a diagonal, or a new array with a diagonal, like ``numpy.diag``."""
    if array.ndim == 2:
        return array.diagonal(k)
    if array.ndim != 1:
        raise ValueError("Input must be 1- or 2-d.")
    result = _array._result((len(array) + abs(k),) * 2, array.dtype, **_array._options_like(array))
    diagonal_of(result, k)[...] = array
    return result


def trim_zeros(array: Array, trim: str = "fb", axis: Any = None) -> Array:
    """A view without zeroes at the ends, like ``numpy.trim_zeros``."""
    if trim.lower() not in ("fb", "bf", "b", "f"):
        raise ValueError(f"unexpected character(s) in `trim`: {trim!r}")
    axes = range(array.ndim) if axis is None else _axes_of(axis, array.ndim)
    key = [slice(None)] * array.ndim
    is_set = array != np.zeros((), array.dtype) if array.dtype.kind in "biufV" else array.astype(bool)
    for own in axes:
        others = tuple(number for number in range(array.ndim) if number != own)
        found = np.flatnonzero(np.asarray(is_set.any(others) if others else is_set))
        first, last = (found[0], found[-1] + 1) if len(found) else (array.shape[own], array.shape[own])
        key[own] = slice(first if "f" in trim.lower() else 0, last if "b" in trim.lower() else array.shape[own])
    return array[(*key, ...)]


def ix_(*arrays: Any) -> tuple[Any, ...]:
    """Index arrays for all combinations, like ``numpy.ix_``: view `i` has its items along axis `i`. A bool array counts
    as the indices of its true items."""
    result = []
    for number, one in enumerate(arrays):
        one = _array.asarray(one, **_array._options_like(*arrays))
        if one.ndim != 1:
            raise ValueError("Cross index must be 1 dimensional")
        if one.dtype == np.bool_:
            one = _array.asarray(one.find(), devices=one.devices)
        result.append(one.reshape((1,) * number + (len(one),) + (1,) * (len(arrays) - number - 1)))
    return tuple(result)


def _matrix_transpose(array: Array) -> Array:
    if array.ndim < 2:
        raise ValueError(f"Input array must be at least 2-dimensional, but it is {array.ndim}")
    return array.swapaxes(-1, -2)


#: Functions that make views, or ask about dtypes.
VIEWS: dict[Any, Any] = {
    np.expand_dims: expand_dims,
    np.moveaxis: moveaxis,
    np.flip: flip,
    np.fliplr: _flipped(1),
    np.flipud: _flipped(0),
    np.rot90: rot90,
    np.atleast_1d: atleast(1),
    np.atleast_2d: atleast(2),
    np.atleast_3d: atleast(3),
    np.broadcast_arrays: broadcast_arrays,
    np.array_split: array_split,
    np.split: split,
    np.hsplit: _split_along("hsplit", 1, 1),
    np.vsplit: _split_along("vsplit", 0, 2),
    np.dsplit: _split_along("dsplit", 2, 3),
    np.diag: diag,
    np.ix_: ix_,
    np.trim_zeros: trim_zeros,
    np.rollaxis: rollaxis,
    np.unstack: unstack,
    np.matrix_transpose: _matrix_transpose,
    np.real: _imaginary("real"),
    np.imag: _imaginary("imag"),
    np.real_if_close: real_if_close,
    np.iscomplexobj: lambda array: array.dtype.kind == "c",
    np.isrealobj: lambda array: array.dtype.kind != "c",
    np.result_type: lambda *given: np.result_type(*(one.dtype if isinstance(one, Array) else one for one in given)),
    np.can_cast: lambda of, to, casting="safe": np.can_cast(of.dtype if isinstance(of, Array) else of, to, casting),
}
#: Functions that move items: of any dtype.
MOVES: dict[Any, Any] = {
    np.stack: stack,
    np.vstack: _stacked(2, 0),
    np.hstack: _stacked(1, 1),
    np.dstack: _stacked(3, 2),
    np.column_stack: column_stack,
    np.append: append,
    np.repeat: repeat,
    np.tile: tile,
    np.roll: roll,
    np.pad: pad,
}
#: Functions that compute.
FUNCTIONS: dict[Any, Any] = {
    np.cumsum: cumsum,
    np.cumprod: cumprod,
    np.diff: diff,
    np.isclose: isclose,
    np.allclose: allclose,
    np.isin: isin,
    np.nan_to_num: nan_to_num,
    np.ptp: ptp,
    np.average: average,
    np.nansum: nansum,
    np.nanprod: nanprod,
    np.nanmean: nanmean,
    np.nanvar: nanvar,
    np.nanstd: nanstd,
    np.nanmin: _nanextreme(np.fmin, "min"),
    np.nanmax: _nanextreme(np.fmax, "max"),
}
