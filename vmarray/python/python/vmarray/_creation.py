"""NumPy's functions that create arrays, such as ``linspace``. They write the items of large arrays piece by piece."""

from __future__ import annotations

import os
from typing import Any

import numpy as np

from . import _array, _ufuncs
from ._array import Array, _options_like, asarray


def asanyarray(values: Any, dtype: Any = None, order: Any = None, **options: Any) -> Array:
    """Converts values to an array, like `asarray`."""
    return asarray(values, dtype, order=order, **options)


def asarray_chkfinite(values: Any, dtype: Any = None, order: Any = None) -> Array:
    """Converts values to an array, and raises a ValueError for infinities and NaNs."""
    array = asarray(values, dtype, order=order)
    if array.dtype.kind in "fc" and not np.all(np.isfinite(array)):
        raise ValueError("array must not contain infs or NaNs")
    return array


def ascontiguousarray(values: Any, dtype: Any = None, **options: Any) -> Array:
    """Converts values to an array whose items are contiguous, with at least one axis."""
    array = asarray(values, dtype, **options)
    array = array if array.ndim else array.reshape(1)
    return array if array._is_contiguous() else array.copy()


def require(values: Any, dtype: Any = None, requirements: Any = None, **options: Any) -> Array:
    """Converts values to an array, whose items are contiguous if `requirements` contains "C"; "F" is an error."""
    wanted = {one.upper() for one in requirements or ()}
    is_c, is_fortran = (bool(wanted & {one, f"{one}_CONTIGUOUS", name}) for one, name in _ORDERS)
    if is_c and is_fortran:
        raise ValueError("Cannot specify both \"C\" and \"F\" order")
    array = asarray(values, dtype, "F" if is_fortran else "C" if is_c else "K", **options)
    return array if array.flags.writeable or not wanted & {"W", "WRITEABLE"} else array.copy()


#: Names of requirements of an order.
_ORDERS = (("C", "CONTIGUOUS"), ("F", "FORTRAN"))


def asfortranarray(values: Any, dtype: Any = None, **options: Any) -> Array:
    """Converts values to an array whose items are contiguous along the first axis, with at least one axis."""
    array = asarray(values, dtype, "F", **options)
    return array if array.ndim else array.reshape(1)


def _axis(length: int, ndim: int, own: int, dtype: Any, options: dict[str, Any]) -> Array:
    return _array.arange(length, dtype=dtype, **options).reshape((-1,) + (1,) * (ndim - own - 1))


def diagonal_of(array: Array, k: int) -> Array:
    """A writable view of diagonal `k` of a new two-dimensional array."""
    rows, columns = array.shape
    count = max(0, min(rows + min(k, 0), columns - max(k, 0)))
    start = k if k >= 0 else -k * columns
    return array.reshape(-1)[start : start + count * (columns + 1) : columns + 1][:count]


def eye(N: int, M: int | None = None, k: int = 0, dtype: Any = float, **options: Any) -> Array:  # noqa: N803
    """An array of two axes with ones on a diagonal, like ``numpy.eye``; see `empty` for the options."""
    rows, columns = N, N if M is None else M
    if _array._order(options.pop("order", "C")) == "F":
        return eye(columns, rows, -k, dtype, **options).transpose()
    array = _array.zeros((rows, columns), dtype, **options)
    diagonal_of(array, k)[...] = np.ones((), array.dtype)
    return array


def identity(n: int, dtype: Any = None, **options: Any) -> Array:
    """The identity matrix, like ``numpy.identity``; see `empty` for the options."""
    return eye(n, dtype=float if dtype is None else dtype, **options)


def tri(N: int, M: int | None = None, k: int = 0, dtype: Any = float, **options: Any) -> Array:  # noqa: N803
    """Ones at and below a diagonal, and zeroes above it, like ``numpy.tri``; see `empty` for the options."""
    rows, columns = N, N if M is None else M
    result = _array.empty((rows, columns), dtype, **options)
    if result.size:
        own = {"devices": result.devices}
        mask = _axis(rows, 2, 0, np.int64, own) >= _array.arange(columns, dtype=np.int64, **own) - k
        result[...] = mask.astype(result.dtype)
    return result


def linspace(
    start: Any,
    stop: Any,
    num: int = 50,
    endpoint: bool = True,
    retstep: bool = False,
    dtype: Any = None,
    axis: int = 0,
    *,
    device: Any = None,
    **options: Any,
) -> Any:
    """Equally spaced numbers, like ``numpy.linspace``; see `empty` for the options.

    Examples
    --------
    >>> import vmarray as vm
    >>> vm.linspace(0, 1, 5)
    Array([0.  , 0.25, 0.5 , 0.75, 1.  ], dtype=float64)
    """
    limits = {"device": device, "dtype": dtype, "endpoint": endpoint, "retstep": True}
    if np.ndim(start) or np.ndim(stop) or num <= _ufuncs.PIECE:
        like = _options_like(start, stop)
        start, stop = (np.asarray(one) if isinstance(one, Array) else one for one in (start, stop))
        values, step = np.linspace(start, stop, num, axis=axis, **limits)
        array = asarray(values, **_device(like | options, device))
    else:
        # Let NumPy determine the dtype from two numbers, and raise its errors.
        kind = np.linspace(start, stop, 2, **limits)[0].dtype
        array, step = _spaced(start, stop, num, endpoint, kind, _device(options, device))
    return (array, step) if retstep else array


def _spaced(start: Any, stop: Any, num: int, endpoint: bool, kind: Any, options: dict[str, Any]) -> tuple[Array, Any]:
    work = np.result_type(start, stop, float(num))
    start, stop = (np.asanyarray(one) * 1.0 for one in (start, stop))
    delta, count = np.subtract(stop, start, dtype=work), num - 1 if endpoint else num
    step = delta / count
    array = _array.empty(num, kind, **options)
    for (block,) in _ufuncs.blocks(array.shape):
        first, last = block.start or 0, num if block.stop is None else block.stop
        part = np.arange(first, last).astype(work)
        part = part / count * delta if step == 0 else part * step
        part = part + start
        if endpoint and last == num:
            part[-1] = stop
        array[block] = (np.floor(part) if kind.kind in "iu" else part).astype(kind, copy=False)
    return array, step


def _device(options: dict[str, Any], device: Any) -> dict[str, Any]:
    return options if device in (None, "cpu") else options | {"devices": device}


def indices(dimensions: Any, dtype: Any = int, sparse: bool = False, **options: Any) -> Any:
    """The indices of each item of a shape, like ``numpy.indices``; see `empty` for the options."""
    shape = _array._as_tuple(dimensions)
    own = [_axis(extent, len(shape), number, dtype, options) for number, extent in enumerate(shape)]
    if sparse:
        return tuple(one.reshape((1,) * number + one.shape) for number, one in enumerate(own))
    result = _array.empty((len(shape), *shape), dtype, **options)
    for number, one in enumerate(own):
        result[number] = one
    return result


def fromfunction(function: Any, shape: Any, *, dtype: Any = float, like: Any = None, **given: Any) -> Any:
    """Calls a function with the arrays of all indices, like ``numpy.fromfunction``."""
    places = indices(shape, dtype, **_options_like(like))
    result = function(*places, **given)
    return asarray(result, devices=places.devices) if isinstance(result, np.ndarray) else result


def fromfile(file: Any, dtype: Any = float, count: int = -1, sep: str = "", offset: int = 0, **options: Any) -> Array:
    """The items of a binary file, or of a file of text, like ``numpy.fromfile``; see `empty` for the options."""
    kind = np.dtype(dtype)
    if sep == "" and isinstance(file, (str, os.PathLike)) and kind.itemsize:
        length = (max(0, os.path.getsize(file) - offset)) // kind.itemsize
        length = length if count < 0 else min(count, length)
        if length:
            return asarray(np.memmap(file, kind, "r", offset, (length,)), **options)
    return asarray(np.fromfile(file, dtype, count, sep, offset), **options)


def meshgrid(*xi: Any, copy: bool = True, sparse: bool = False, indexing: str = "xy") -> tuple[Array, ...]:
    """Arrays of coordinates, like ``numpy.meshgrid``: views of the operands if not `copy`."""
    if indexing not in ("xy", "ij"):
        raise ValueError("Valid values for `indexing` are 'xy' and 'ij'.")
    arrays = [asarray(one, **_options_like(*xi)) for one in xi]
    ndim, places = len(arrays), [*range(len(arrays))]
    if indexing == "xy" and ndim > 1:
        places[:2] = 1, 0
    grids: list[Any] = [one.reshape((1,) * at + (-1,) + (1,) * (ndim - at - 1)) for one, at in zip(arrays, places)]
    if not sparse:
        shape = np.broadcast_shapes(*(one.shape for one in grids))
        grids = [np.broadcast_to(one, shape) for one in grids]
    return tuple(one.copy() if copy else one for one in grids)


#: Functions with ``like=``, by NumPy's functions.
LIKE: dict[Any, Any] = {
    getattr(np, name): make
    for name, make in {
        **{one: getattr(_array, one) for one in ("arange", "array", "asarray", "empty", "full", "ones", "zeros")},
        **{
            one.__name__: one
            for one in (asanyarray, ascontiguousarray, eye, fromfile, fromfunction, identity, require, tri)
        },
    }.items()
}
for _name in ("frombuffer", "fromiter", "fromstring", "genfromtxt", "loadtxt"):

    def _make(*args: Any, _function: Any = getattr(np, _name), devices: Any = None, **given: Any) -> Array:
        return asarray(_function(*args, **given), devices=devices)

    LIKE[getattr(np, _name)] = _make
#: Functions of NumPy that create arrays from arrays.
FROM_ARRAYS: dict[Any, Any] = {np.linspace: linspace, np.meshgrid: meshgrid}
