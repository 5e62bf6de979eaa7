"""Namespace of the Python array API standard (2024.12).

A function with the name of a NumPy function is NumPy's function, which dispatches to arrays of this package. GUIDE.md
lists the differences from NumPy.

Examples
--------
>>> import vmarray as vm
>>> xp = vm.arange(3).__array_namespace__()
>>> xp.concat([xp.arange(2), xp.linspace(0, 1, 3)])
Array([0. , 1. , 0. , 0.5, 1. ], dtype=float64)
"""

from __future__ import annotations

import types
from typing import Any

import numpy as np
from numpy import (  # noqa: F401
    bool,
    complex64,
    complex128,
    e,
    finfo,
    float32,
    float64,
    iinfo,
    inf,
    int8,
    int16,
    int32,
    int64,
    isdtype,
    nan,
    newaxis,
    pi,
    uint8,
    uint16,
    uint32,
    uint64,
)

from . import _array, _core, _order, _shapes
from ._array import Array

__array_api_version__ = "2024.12"


def __getattr__(name: str) -> Any:
    """Returns NumPy's object with this name, or an extension of the standard."""
    if name in _EXTENSIONS:
        return _EXTENSIONS[name]
    if name.startswith("_") or name == "random":
        raise AttributeError(f"the namespace of vmarray has no {name}")
    return getattr(np, name)


def __array_namespace_info__() -> _Info:
    """Dtypes, devices, and limits of the namespace."""
    return _Info()


class _Info:
    def capabilities(self) -> dict[str, Any]:
        return {"boolean indexing": True, "data-dependent shapes": True, "max dimensions": 64}

    def default_device(self) -> Any:
        return None

    def default_dtypes(self, *, device: Any = None) -> dict[str, Any]:
        return np.__array_namespace_info__().default_dtypes()

    def devices(self) -> list[Any]:
        return [None, *_core.devices()]

    def dtypes(self, *, device: Any = None, kind: Any = None) -> dict[str, Any]:
        return np.__array_namespace_info__().dtypes(kind=kind)


def _options(device: Any) -> dict[str, Any]:
    return {} if device is None else {"devices": list(device) if isinstance(device, tuple) else device}


# Functions that create arrays.


def asarray(obj: Any, /, *, dtype: Any = None, device: Any = None, copy: Any = None) -> Array:
    """Converts values to an array."""
    is_same = isinstance(obj, Array) and (dtype is None or dtype == obj.dtype)
    if copy is False and not is_same:
        kind = f"an array of dtype {obj.dtype}" if isinstance(obj, Array) else f"a value of type {type(obj).__name__}"
        raise ValueError(f"{kind} must be copied for this array; leave `copy` out")
    if isinstance(obj, Array) and not copy:
        return obj if is_same else obj.astype(dtype)
    return _array.array(obj, dtype, **_options(device))


def arange(start: Any, /, stop: Any = None, step: Any = 1, *, dtype: Any = None, device: Any = None) -> Array:
    """Equally spaced numbers between two limits."""
    limits = (0, start, step) if stop is None else (start, stop, step)
    return asarray(np.arange(*limits, dtype=dtype), device=device)


def linspace(
    start: Any, stop: Any, /, num: int, *, dtype: Any = None, device: Any = None, endpoint: Any = True
) -> Array:
    """A given number of equally spaced numbers between two limits."""
    return asarray(np.linspace(start, stop, num, dtype=dtype, endpoint=endpoint), device=device)


def eye(rows: int, cols: Any = None, /, *, k: int = 0, dtype: Any = None, device: Any = None) -> Array:
    """An array of two axes with ones on a diagonal, and zeroes elsewhere."""
    return asarray(np.eye(rows, cols, k, dtype or float64), device=device)


def empty(shape: Any, *, dtype: Any = None, device: Any = None) -> Array:
    """A new array; its items are zero."""
    return _array.empty(shape, dtype or float64, **_options(device))


def zeros(shape: Any, *, dtype: Any = None, device: Any = None) -> Array:
    """An array of zeroes."""
    return _array.zeros(shape, dtype or float64, **_options(device))


def ones(shape: Any, *, dtype: Any = None, device: Any = None) -> Array:
    """An array of ones."""
    return _array.ones(shape, dtype or float64, **_options(device))


def full(shape: Any, fill_value: Any, *, dtype: Any = None, device: Any = None) -> Array:
    """An array of one value."""
    return _array.full(shape, fill_value, dtype, **_options(device))


def from_dlpack(x: Any, /, *, device: Any = None, copy: Any = None) -> Array:
    """A copy of another package's array, by DLPack."""
    if copy is False and not isinstance(x, Array):
        raise BufferError(f"an array of type {type(x).__name__} can only be copied; leave `copy` out")
    return _array.from_dlpack(x, copy=copy, **_options(device))


def meshgrid(*arrays: Any, indexing: str = "xy") -> list[Any]:
    """Coordinate arrays of a grid, as views."""
    arrays = [one.reshape(-1) for one in arrays]
    count = len(arrays)
    order = [1, 0, *range(2, count)] if indexing == "xy" and count > 1 else list(range(count))
    shaped = [
        one[tuple(slice(None) if n == order[number] else None for n in range(count))]
        for number, one in enumerate(arrays)
    ]
    return broadcast_arrays(*shaped)


def broadcast_arrays(*arrays: Any) -> list[Any]:
    """Views of the arrays, broadcast to one shape."""
    return list(_shapes.broadcast_arrays(*arrays))


def _triangle(keeps: Any) -> Any:
    def work(x: Array, /, *, k: int = 0) -> Array:
        if x.ndim < 2:
            raise ValueError(f"the array has {x.ndim} axes, but needs at least two")
        rows, columns = (_array.arange(extent) for extent in x.shape[-2:])
        return np.where(keeps(columns[None, :] - rows[:, None], k), x, np.zeros((), x.dtype))

    return work


tril, triu = _triangle(np.less_equal), _triangle(np.greater_equal)


# Functions of dtypes, shapes and order.


def astype(x: Array, dtype: Any, /, *, copy: Any = True, device: Any = None) -> Array:
    """The items converted to another type."""
    if np.dtype(x.dtype).kind == "c" and np.dtype(dtype).kind in "iuf":
        raise TypeError("complex numbers cannot be converted to real numbers; use their real parts")
    return asarray(x).astype(dtype, copy=copy)


def can_cast(from_: Any, to: Any, /) -> Any:
    """True if a dtype can be cast to another one by NumPy's rules."""
    return np.can_cast(from_.dtype if isinstance(from_, Array) else from_, to)


def result_type(*arrays_and_dtypes: Any) -> np.dtype[Any]:
    """The dtype of an operation's result for these operands, by NumPy's promotion rules."""
    return np.result_type(*(one.dtype if isinstance(one, Array) else one for one in arrays_and_dtypes))


def reshape(x: Array, /, shape: Any, *, copy: Any = None) -> Array:
    """The same items in another shape. ``copy`` forces or forbids a copy."""
    if copy is False and x._core.reshaped(shape) is None:
        raise ValueError("this shape needs a copy of the items; leave `copy` out")
    return x.copy().reshape(shape) if copy else x.reshape(shape)


def unstack(x: Array, /, *, axis: int = 0) -> tuple[Any, ...]:
    """Divides an array along an axis into views without this axis."""
    own = np.lib.array_utils.normalize_axis_index(axis, x.ndim)
    return tuple(x[(*(slice(None),) * own, number, ...)] for number in range(x.shape[own]))


def permute_dims(x: Array, /, axes: tuple[Any, ...]) -> Array:
    """A view with the axes in another order."""
    return x.transpose(axes)


def matrix_transpose(x: Array, /) -> Array:
    """A view with the last two axes exchanged."""
    if x.ndim < 2:
        raise ValueError(f"the array has {x.ndim} axes, but needs at least two")
    return x.swapaxes(-1, -2)


def concat(arrays: Any, /, *, axis: Any = 0) -> Array:
    """Concatenates arrays along an axis."""
    return np.concatenate(list(arrays), axis=axis)


def argsort(x: Array, /, *, axis: int = -1, descending: Any = False, stable: Any = True) -> Array:
    """The indices that would sort the array along an axis."""
    if not descending:
        return np.argsort(x, axis)
    # For a descending order, sort the flipped array and flip the result, so that equal items keep their order.
    extent = x.shape[axis]
    return extent - 1 - np.flip(np.argsort(np.flip(x, axis), axis), axis)


def sort(x: Array, /, *, axis: int = -1, descending: Any = False, stable: Any = True) -> Array:
    """A sorted copy of the array along an axis."""
    result = _array.sort(x, axis)
    return np.flip(result, axis).copy() if descending else result


def searchsorted(x1: Array, x2: Any, /, *, side: str = "left", sorter: Any = None) -> Array:
    """Indices at which to insert values so that a sorted array stays sorted."""
    return np.searchsorted(x1, x2, side, sorter)


def clip(x: Any, /, min: Any = None, max: Any = None) -> Array:
    """The items, limited to the range from ``min`` to ``max``."""
    return np.clip(x, min, max)


def count_nonzero(x: Array, /, *, axis: Any = None, keepdims: Any = False) -> Any:
    """Number of items that are not zero."""
    count = np.count_nonzero(x, axis, keepdims=keepdims)
    return np.intp(count) if isinstance(count, int) else count


def diff(x: Array, /, *, axis: int = -1, n: int = 1, prepend: Any = None, append: Any = None) -> Array:
    """Difference of each item and the previous item along an axis, `n` times."""
    parts = [one for one in (prepend, x, append) if one is not None]
    return np.diff(np.concatenate(parts, axis) if len(parts) > 1 else x, n, axis)


def unique_all(x: Array, /) -> Any:
    """The distinct items, the index of the first occurrence of each, the inverse indices, and the counts."""
    return _order.UniqueResult(*_order._uniques(x, True, True, True))


def cumulative_sum(x: Array, /, *, axis: Any = None, dtype: Any = None, include_initial: Any = False) -> Array:
    """Cumulative sums along an axis."""
    return _cumulated(np.cumsum, x, axis, dtype, include_initial, 0)


def cumulative_prod(x: Array, /, *, axis: Any = None, dtype: Any = None, include_initial: Any = False) -> Array:
    """Cumulative products along an axis."""
    return _cumulated(np.cumprod, x, axis, dtype, include_initial, 1)


def _cumulated(function: Any, x: Array, axis: Any, dtype: Any, include_initial: Any, initial: int) -> Array:
    if axis is None and x.ndim != 1:
        raise ValueError("an array of several axes needs the argument `axis`")
    own = np.lib.array_utils.normalize_axis_index(axis or 0, x.ndim)
    result = function(x, own, dtype)
    if not include_initial:
        return result
    return np.pad(result, [(int(n == own), 0) for n in range(x.ndim)], constant_values=initial)


def std(x: Array, /, *, axis: Any = None, correction: float = 0.0, keepdims: Any = False, **given: Any) -> Any:
    """The standard deviation of the items, or the standard deviations along axes. Also takes NumPy's `ddof` and
    `dtype`."""
    return x.std(axis, keepdims=keepdims, **{"ddof": correction, **given})


def var(x: Array, /, *, axis: Any = None, correction: float = 0.0, keepdims: Any = False, **given: Any) -> Any:
    """The variance of the items, or the variances along axes. Also takes NumPy's `ddof` and `dtype`."""
    return x.var(axis, keepdims=keepdims, **{"ddof": correction, **given})


def take_along_axis(x: Array, indices: Array, /, *, axis: int = -1) -> Array:
    """Takes items at indices along an axis, line by line."""
    own = np.lib.array_utils.normalize_axis_index(axis, x.ndim)
    shape = indices.shape
    key = [
        np.arange(extent).reshape(tuple(-1 if n == number else 1 for n in range(len(shape))))
        for number, extent in enumerate(shape)
    ]
    key[own] = np.asarray(indices)
    return asarray(x[tuple(key)])


# Extensions of the standard: NumPy's functions, which dispatch to arrays of this package.

_LINALG = """cholesky cross det diagonal eigh eigvalsh inv matmul matrix_norm matrix_power matrix_rank
    matrix_transpose outer pinv qr slogdet solve svd svdvals tensordot trace vecdot vector_norm"""
_FFT = "fft ifft fftn ifftn rfft irfft rfftn irfftn hfft ihfft fftshift ifftshift"


def _frequencies(function: Any) -> Any:
    def work(n: int, /, *, d: float = 1.0, dtype: Any = None, device: Any = None) -> Array:
        return asarray(function(n, d), dtype=dtype, device=device)

    work.__name__ = function.__name__
    return work


_EXTENSIONS = {
    name: types.SimpleNamespace(**{one: getattr(module, one) for one in names.split() if hasattr(module, one)})
    for name, module, names in (("linalg", np.linalg, _LINALG), ("fft", np.fft, _FFT))
}
for _function in (np.fft.fftfreq, np.fft.rfftfreq):
    setattr(_EXTENSIONS["fft"], _function.__name__, _frequencies(_function))
