"""NumPy's functions on all cores: `Parallel` is a NumPy array whose ufuncs, reductions and copies run part by part, on
threads. NumPy computes each part, and releases Python's lock meanwhile."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from ._ufuncs import ASSOCIATIVE, CORES, blocks, in_threads

#: Number of items of 8 bytes in a part: a thread computes them in about a hundred microseconds.
PART = 1 << 18
#: Least number of items that are computed in parts, and least number of their bytes if memory limits the speed.
ITEMS_MIN = 1 << 18
BYTES_MIN = 6 << 20
#: Ufuncs whose speed memory limits.
_STREAMS: set[Any] = {np.add, np.subtract, np.multiply, np.negative, np.positive, np.absolute, np.fabs, np.square}
_STREAMS |= {np.maximum, np.minimum, np.fmax, np.fmin, np.equal, np.not_equal, np.less, np.less_equal, np.greater}
_STREAMS |= {np.greater_equal, np.logical_and, np.logical_or, np.logical_not, np.bitwise_and, np.bitwise_or, np.invert}
_STREAMS |= {np.bitwise_xor, np.clip, np.isfinite, np.isnan, np.signbit, np.sign, np.conjugate}
#: Number of items of a block that a thread computes twice, because they stay in the caches of its core.
_CACHED = 1 << 14
#: Number of items of the rows into which a part is divided to be added up.
_ADDED = 1 << 11
#: Rows and columns of a tile that is copied to the other order of axes.
_TILE = 256


class Parallel(np.ndarray):
    """A NumPy array whose functions run on all cores."""

    def __array_ufunc__(self, ufunc: np.ufunc, method: str, *inputs: Any, **given: Any) -> Any:
        if "out" in given:
            given["out"] = tuple(map(plain, given["out"]))
        if "where" in given:
            given["where"] = plain(given["where"])
        return parallel(computed(ufunc, method, tuple(map(plain, inputs)), given))

    def __array_function__(self, function: Any, types: Any, args: Any, given: Any) -> Any:
        own = _OWN.get(function)
        if own is not None and len(args) and not given.keys() - {"axis"}:
            found = own(*map(plain, args), **given)
            if found is not None:
                return parallel(found)
        if function in _NAN_EXTREMES:
            return parallel(function(*map(plain, args), **{name: plain(one) for name, one in given.items()}))
        return super().__array_function__(function, types, args, given)

    def __setitem__(self, key: Any, value: Any) -> None:
        if type(value) is Parallel and type(key) in (tuple, slice):
            part = plain(self)[key]
            if part.shape == value.shape and part.dtype == value.dtype and np.may_share_memory(self, part):
                copy_to(part, plain(value))
                return
        super().__setitem__(key, value)

    def copy(self, order: Any = "C") -> Any:
        return parallel(copied(plain(self), self.dtype, order))


def plain(value: Any) -> Any:
    """A `Parallel` as a NumPy array; other values as they are."""
    if type(value) is Parallel:
        return value.view(np.ndarray)
    if type(value) in (list, tuple):
        return type(value)(map(plain, value))
    return value


def parallel(value: Any) -> Any:
    """NumPy arrays of many items as `Parallel`; other values as they are."""
    if type(value) is np.ndarray and value.size >= ITEMS_MIN:
        return value.view(Parallel)
    return tuple(map(parallel, value)) if type(value) is tuple else value


def computed(ufunc: np.ufunc, method: str, inputs: tuple[Any, ...], given: dict[str, Any]) -> Any:
    """The result of a ufunc, or of one of its methods, for NumPy arrays."""
    work = _METHODS.get(method)
    if work is not None and ufunc.nout == 1 and ufunc.signature is None and not _has_objects(inputs):
        found = work(ufunc, *inputs, **given)
        if found is not None:
            return found
    return (ufunc if method == "__call__" else getattr(ufunc, method))(*inputs, **given)


def _has_objects(inputs: tuple[Any, ...]) -> bool:
    return any(isinstance(one, np.ndarray) and one.dtype.hasobject for one in inputs)


def _order(array: Any) -> tuple[int, ...] | None:
    """The axes in the order of memory; None if they are in this order already."""
    if array.ndim < 2 or array.flags.c_contiguous:
        return None
    steps = [abs(stride) if extent > 1 else 0 for stride, extent in zip(array.strides, array.shape)]
    order = tuple(sorted(range(array.ndim), key=lambda axis: -steps[axis]))
    return order if order != tuple(range(array.ndim)) else None


def _laid(array: Any, order: tuple[int, ...] | None) -> Any:
    """An array with its axes in an order; the array itself for None, and for operands without axes."""
    return array.transpose(order) if order and _has_axes(array) else array


def _back(array: Any, order: tuple[int, ...] | None) -> Any:
    """An array whose axes are in an order, with its axes as they were before."""
    return array.transpose(np.argsort(order)) if order else array


def _has_axes(operand: Any) -> bool:
    return isinstance(operand, np.ndarray) and operand.ndim > 0


def _operand(value: Any) -> Any:
    """An operand that is no array, but has axes, as an array."""
    return value if isinstance(value, np.ndarray) or not np.ndim(value) else np.asarray(value)


def _cut(operands: list[Any], key: Any) -> list[Any]:
    """The parts of operands at a key; operands without axes stay whole."""
    return [one[key] if _has_axes(one) else one for one in operands]


def _at(axis: int, part: slice) -> tuple[slice, ...]:
    """The key of a part of an axis."""
    return (*(slice(None),) * axis, part)


def _part_items(array: Any) -> int:
    """Number of items of a part, so that each thread gets at least one."""
    return max(1, min(PART * 8 // max(1, array.itemsize), -(-array.size // CORES)))


def _parts(array: Any) -> list[Any]:
    """Keys of the parts of an array, in C order."""
    return [*blocks(array.shape, _part_items(array))]


def _mapped(ufunc: np.ufunc, *inputs: Any, out: Any = (None,), **given: Any) -> Any:
    out = out[0] if isinstance(out, tuple) else out
    inputs = tuple(map(_operand, inputs))
    arrays = [one for one in (*inputs, out) if _has_axes(one)]
    leader = max(arrays, key=np.size, default=None)
    if leader is None or given.keys() - {"casting", "dtype"}:
        return None
    shape = leader.shape
    if any(one.shape != shape for one in arrays):
        shape = np.broadcast_shapes(*(one.shape for one in arrays))
    count = math.prod(shape)
    if ufunc in _STREAMS and sum(one.nbytes for one in arrays) + count * leader.itemsize < BYTES_MIN:
        return None
    if count < ITEMS_MIN or (out is not None and (out.shape != shape or _overlaps(out, inputs))):
        return None
    if out is not None and not out.flags.writeable:
        return None
    order = _order(leader) if leader.shape == shape else None
    wide = [np.broadcast_to(one, shape) if _has_axes(one) and one.shape != shape else one for one in inputs]
    operands, empty = [_laid(one, order) for one in wide], slice(0)
    if out is None:
        kind = ufunc(*_cut(operands, empty), **given).dtype
        result = np.empty([shape[axis] for axis in order or range(len(shape))], kind)
    else:
        result = _laid(out, order)
        ufunc(*_cut(operands, empty), out=result[empty], **given)

    def work(key: Any) -> None:
        ufunc(*_cut(operands, key), out=result[key], **given)

    in_threads(work, _parts(result))
    return _back(result, order) if out is None else out


def _overlaps(out: Any, inputs: tuple[Any, ...]) -> bool:
    """True if an input shows items of the output in other places."""
    for one in inputs:
        if isinstance(one, np.ndarray) and np.may_share_memory(one, out):
            there, here = one.__array_interface__, out.__array_interface__
            if there["data"][0] != here["data"][0] or one.strides != out.strides or one.shape != out.shape:
                return True
    return False


def _split(extents: list[tuple[int, int]], size: int) -> tuple[int, list[slice]] | None:
    """The longest of some axes, and slices that divide it into parts for threads; None if it is too short."""
    extent, axis = max(extents, default=(0, 0))
    if extent < CORES:
        return None
    count = min(extent, max(CORES, min(4 * CORES, size // PART)))
    return axis, [slice(extent * at // count, extent * (at + 1) // count) for at in range(count)]


def _reduced(
    ufunc: np.ufunc, array: Any, axis: Any = 0, dtype: Any = None, out: Any = None, keepdims: bool = False, **given: Any
) -> Any:
    out = out[0] if isinstance(out, tuple) else out
    given = {name: one for name, one in given.items() if one is not np._NoValue and one is not True}
    if not isinstance(array, np.ndarray) or array.size < ITEMS_MIN or out is not None or given:
        return None
    if ufunc not in ASSOCIATIVE or array.dtype.kind not in "biufcmM":
        return None
    if array.nbytes < BYTES_MIN and ufunc in _STREAMS:
        return None
    axes = range(array.ndim) if axis is None else np.lib.array_utils.normalize_axis_tuple(axis, array.ndim)
    kept = [(extent, at) for at, extent in enumerate(array.shape) if at not in axes]
    split = _split(kept, array.size)
    if split is not None:
        at, slices = split
        parts = in_threads(
            lambda one: ufunc.reduce(array[_at(at, one)], axis=tuple(axes), dtype=dtype, keepdims=True), slices
        )
        result = np.concatenate(parts, at)
    else:
        order = _order(array)
        whole = _laid(array, order)
        reduces = tuple(at if order is None else order.index(at) for at in axes)
        is_row = ufunc is np.add and len(axes) == array.ndim and dtype is None and array.dtype.char in "fd"

        def work(key: Any) -> Any:
            part = whole[key]
            if is_row and part.flags.c_contiguous and part.size % _ADDED == 0:
                # Add rows to one another: NumPy adds them by vectors, and the items of one row one by one.
                part = np.add.reduce(part.reshape(-1, _ADDED), axis=0).reshape((1,) * (part.ndim - 1) + (-1,))
            return ufunc.reduce(part, axis=reduces, dtype=dtype, keepdims=True)

        parts = in_threads(work, _along(whole, reduces))
        # NumPy refuses a unit of time as dtype.
        kind = None if parts[0].dtype.kind in "mM" else parts[0].dtype
        result = _back(ufunc.reduce(np.stack(parts), axis=0, dtype=kind), order)
    if not keepdims:
        result = result.reshape([extent for extent, _ in sorted(kept, key=lambda one: one[1])])
    return result if result.ndim else result[()]


def _along(array: Any, axes: tuple[int, ...]) -> list[Any]:
    """Keys that divide an array along reduced axes."""
    shape = tuple(extent if at in axes else 1 for at, extent in enumerate(array.shape))
    kept = math.prod(array.shape) // math.prod(shape)
    keys = blocks(shape, max(1, _part_items(array) // kept))
    return [tuple(one if at in axes else slice(None) for at, one in enumerate(key)) for key in keys]


def _accumulated(ufunc: np.ufunc, array: Any, axis: Any = 0, dtype: Any = None, out: Any = None) -> Any:
    out = out[0] if isinstance(out, tuple) else out
    if not isinstance(array, np.ndarray) or array.size < ITEMS_MIN or out is not None or not array.ndim:
        return None
    kind = ufunc.accumulate(array[:0] if array.ndim == 1 else array[..., :0], axis=0, dtype=dtype).dtype
    axis = np.lib.array_utils.normalize_axis_index(axis, array.ndim)
    split = _split([(extent, at) for at, extent in enumerate(array.shape) if at != axis], array.size)
    if split is not None:
        at, slices = split
        result = np.empty_like(array, kind, order="K" if _order(array) else "C", subok=False)

        def work(one: slice) -> None:
            key = _at(at, one)
            ufunc.accumulate(array[key], axis=axis, dtype=dtype, out=result[key])

        in_threads(work, slices)
        return result
    if array.ndim > 1 or ufunc is not np.add or kind.kind not in "iuf" or kind.itemsize < 4:
        return None
    return _prefix_sums(array, kind)


def _prefix_sums(array: Any, kind: np.dtype[Any]) -> Any:
    """The sums of all items up to each one: first the sums of parts, then the sums within parts, from them on."""
    keys = _parts(array)
    # The sum of no items: -0.0 plus an item is that item, also if it is -0.0.
    none = -0.0 if kind.kind == "f" else 0
    totals = in_threads(lambda key: np.add.reduce(array[key], dtype=kind, initial=none), keys)
    begins = np.add.accumulate(np.array([none, *totals[:-1]], kind))
    result = np.empty(array.shape, kind)

    def work(number: int) -> None:
        items, sums, begin = array[keys[number]], result[keys[number]], begins[number]
        for start in range(0, len(items), _CACHED):
            block = sums[start : start + _CACHED]
            np.add.accumulate(items[start : start + _CACHED], dtype=kind, out=block)
            block += begin
            begin = block[-1]

    in_threads(work, [*range(len(keys))])
    return result


def _cast_to(to: Any, source: Any, where: Any = True) -> None:
    """Copies items. Floats outside of an integer's range become the nearest integer, and NaN becomes 0."""
    if source.dtype.kind == "f" and to.dtype.kind in "iu":
        limits = np.iinfo(to.dtype)
        with np.errstate(invalid="ignore"):
            items = source.astype(to.dtype)
            items[source >= float(limits.max)] = limits.max
            items[source <= limits.min] = limits.min
        items[np.isnan(source)] = 0
        source = items
    np.copyto(to, source, casting="unsafe", where=where)


def copy_to(to: Any, source: Any, where: Any = True) -> None:
    """Copies items to an array of the same shape, and converts them. The arrays may overlap."""
    is_short = not to.ndim or to.nbytes + source.nbytes < BYTES_MIN or to.dtype.hasobject
    if is_short or where is not True or _overlaps(to, (source,)):
        _cast_to(to, source, where)
        return
    order = _order(to)
    to, source = _laid(to, order), _laid(source, order)

    def work(key: Any) -> None:
        _cast_to(to[key], source[key])

    is_other = source.ndim > 1 and source.strides[-1] and abs(source.strides[-1]) > min(map(abs, source.strides))
    in_threads(work, [*_tiles(to.shape)] if is_other else _parts(to))


def _tiles(shape: tuple[int, ...]) -> Iterator[Any]:
    """Keys of tiles over the last two axes, so that rows of either array stay in the caches."""
    for outer in np.ndindex(shape[:-2]):
        for row in range(0, shape[-2], _TILE):
            for column in range(0, shape[-1], _TILE):
                yield (*outer, slice(row, row + _TILE), slice(column, column + _TILE))


def copied(array: Any, dtype: Any, order: Any = "C") -> Any:
    """A copy in one of NumPy's orders, converted to a dtype."""
    if (order == "F" or (order == "A" and array.flags.fnc)) and array.ndim > 1:
        return copied(array.T, dtype).T
    kept = _order(array) if order == "K" else None
    if dtype.kind in "SUVmM" or array.dtype.kind in "SUVmMO" or array.size == 0:
        return array.astype(dtype, order=order, copy=True)
    result = _back(np.empty(_laid(array, kept).shape, dtype), kept)
    copy_to(result, array)
    return result


# Functions that are no ufuncs. They return None for arguments that NumPy computes on one core.


def _large(*arrays: Any) -> bool:
    return all(type(one) is np.ndarray and not one.dtype.hasobject for one in arrays) and any(
        one.size >= ITEMS_MIN for one in arrays
    )


def _concatenated(arrays: Any, axis: Any = 0, out: Any = None, kind: Any = None) -> Any:
    if out is not None or type(arrays) not in (list, tuple) or not _large(*arrays) or axis is None:
        return None
    kinds = {(one.dtype, one.ndim) for one in arrays}
    axis = np.lib.array_utils.normalize_axis_index(axis, arrays[0].ndim)
    rests = {one.shape[:axis] + one.shape[axis + 1 :] for one in arrays}
    if len(kinds) > 1 or len(rests) > 1:
        return None
    shape = list(arrays[0].shape)
    shape[axis] = sum(one.shape[axis] for one in arrays)
    result, start = np.empty(shape, kind or np.result_type(*arrays)), 0
    for one in arrays:
        end = start + one.shape[axis]
        copy_to(result[_at(axis, slice(start, end))], one)
        start = end
    return result


def _where(condition: Any, *values: Any) -> Any:
    if not _large(condition) or len(values) != 2:
        return None
    operands = [condition, *map(_operand, values)]
    if any(_has_axes(one) and one.shape != condition.shape for one in operands):
        return None
    order = _order(condition)
    operands = [_laid(one, order) for one in operands]
    result = np.empty(operands[0].shape, np.where(*_cut(operands, slice(0))).dtype)

    def work(key: Any) -> None:
        result[key] = np.where(*_cut(operands, key))

    in_threads(work, [*blocks(result.shape, 2 * _CACHED)])
    return _back(result, order)


def _first_of(find: Callable[..., Any]) -> Callable[..., Any]:
    def work(array: Any, axis: Any = None, out: Any = None) -> Any:
        if out is not None or (axis is not None and array.ndim > 1):
            return None
        if not _large(array) or array.nbytes < BYTES_MIN or array.dtype.kind not in "biuf":
            return None
        keys = _parts(array)
        found = in_threads(lambda key: find(array[key]), keys)
        best = int(find(np.array([array[key].flat[at] for key, at in zip(keys, found)], array.dtype)))
        starts = np.cumsum([0, *(array[key].size for key in keys)])
        return np.intp(starts[best] + found[best])

    return work


def _counted(array: Any, axis: Any = None) -> Any:
    if not _large(array) or axis is not None:
        return None
    array = _laid(array, _order(array))
    # NumPy counts bools faster than other items.
    is_bool = array.dtype.kind not in "iuf" or array.dtype.itemsize == 1
    parts = in_threads(lambda key: np.count_nonzero(array[key] if is_bool else array[key] != 0), _parts(array))
    return sum(map(int, parts))


def _flat_nonzero(array: Any) -> Any:
    if not _large(array) or array.ndim != 1:
        return np.flatnonzero(array.ravel()) if _large(array) else None
    return _joined(in_threads(lambda key: np.flatnonzero(array[key]) + (key[0].start or 0), _parts(array)))


def _nonzero(array: Any) -> Any:
    return (_flat_nonzero(array),) if _large(array) and array.ndim == 1 else None


def _joined(parts: list[Any]) -> Any:
    kind = parts[0].dtype
    found = _concatenated(parts, kind=kind) if sum(map(np.size, parts)) >= ITEMS_MIN else None
    return np.concatenate(parts, dtype=kind) if found is None else found


def _vdot(one: Any, other: Any) -> Any:
    if not _large(one, other) or one.shape != other.shape or one.dtype != other.dtype or one.dtype.kind not in "iufc":
        return None
    if one.dtype.itemsize < 4 and one.dtype.kind == "f":
        return None
    order = _order(one)
    if _order(other) == order:
        one, other = _laid(one, order), _laid(other, order)
    if one.dtype.kind in "fc":
        # NumPy's library for products has threads of its own.
        return np.vdot(one, other)
    parts = in_threads(lambda key: np.vdot(one[key], other[key]), _parts(one))
    return np.add.reduce(np.array(parts), dtype=parts[0].dtype)


def _searched(array: Any, values: Any, side: Any = "left", sorter: Any = None) -> Any:
    if sorter is not None or not _large(values) or not isinstance(array, np.ndarray):
        return None
    result = np.empty(values.shape, np.intp)

    def work(key: Any) -> None:
        result[key] = np.searchsorted(array, values[key], side)

    in_threads(work, _parts(values))
    return result


def _histogram(array: Any, bins: Any = 10, range: Any = None, density: Any = None, weights: Any = None) -> Any:
    if density or weights is not None or range is not None or type(bins) is not int or bins < 1:
        return None
    if not _large(array) or array.dtype.kind not in "iuf":
        return None
    array = _laid(array, _order(array))
    limits = (_reduced(np.minimum, array, None), _reduced(np.maximum, array, None))
    if not (np.isfinite(limits[0]) and np.isfinite(limits[1])):
        return None
    edges = np.histogram_bin_edges(np.array(limits, array.dtype), bins, limits)
    parts = in_threads(lambda key: np.histogram(array[key], bins, limits)[0], _parts(array))
    return np.add.reduce(parts), edges


def selected(array: Any, mask: Any) -> Any:
    """The items at which a mask of the same shape is true, in C order."""
    if array.size < ITEMS_MIN or array.dtype.hasobject:
        return array[mask]
    return _joined(in_threads(lambda key: array[key][mask[key]], _parts(array)))


def taken(array: Any, indices: Any) -> Any:
    """The items, or rows, at indices of the first axis."""
    if indices.size * math.prod(array.shape[1:]) < ITEMS_MIN or indices.ndim != 1 or array.dtype.hasobject:
        return array[indices]
    result = np.empty((len(indices), *array.shape[1:]), array.dtype)
    split = _split([(len(indices), 0)], result.size)

    def work(one: slice) -> None:
        result[one] = array[indices[one]]

    in_threads(work, split[1] if split else [slice(None)])
    return result


def _nan_extreme(ufunc: np.ufunc) -> Callable[..., Any]:
    def work(array: Any, axis: Any = None) -> Any:
        found = _reduced(ufunc, array, axis) if _large(array) else None
        # NumPy warns of NaNs in the result.
        return None if found is None or (found != found).any() else found

    return work


_METHODS: dict[str, Callable[..., Any]] = {"__call__": _mapped, "reduce": _reduced, "accumulate": _accumulated}
#: Functions that NumPy computes differently for a subclass of its array, without a reason that applies here.
_NAN_EXTREMES: set[Any] = {np.nanmax, np.nanmin}
_OWN: dict[Any, Callable[..., Any]] = {
    np.nanmax: _nan_extreme(np.fmax),
    np.nanmin: _nan_extreme(np.fmin),
    np.concatenate: _concatenated,
    np.where: _where,
    np.argmin: _first_of(np.argmin),
    np.argmax: _first_of(np.argmax),
    np.count_nonzero: _counted,
    np.flatnonzero: _flat_nonzero,
    np.nonzero: _nonzero,
    np.vdot: _vdot,
    np.searchsorted: _searched,
    np.histogram: _histogram,
}
