"""What NumPy's functions do with arrays of the package."""

from __future__ import annotations

from typing import Any

import numpy as np

from . import _array, _core, _ufuncs
from ._array import Array


def called(ufunc: np.ufunc, method: str, inputs: tuple[Any, ...], given: dict[str, Any]) -> Any:
    """What a function of NumPy gives: ``__array_ufunc__``."""
    if method == "reduce":
        return _reduce(ufunc, *inputs, **given)
    if method != "__call__" or ufunc.signature is not None:
        raise TypeError(
            f"numpy.{ufunc.__name__} of this form is not there for vmarray.Array; where there is room, it works on "
            "numpy.asarray(array), a copy in RAM"
        )
    outs = given.pop("out", None)
    mask, casting = given.pop("where", True), given.pop("casting", "same_kind")
    dtype = given.pop("dtype", None)
    if given:
        raise TypeError(f"numpy.{ufunc.__name__} of vmarray.Array takes no {min(given)}")
    results = _computed(ufunc, inputs, None if dtype is None else np.dtype(dtype))
    if outs is None:
        if mask is not True:
            raise TypeError("where= needs out=, which has the items that are not computed")
        return results if ufunc.nout > 1 else results[0]
    written = []
    for out, result in zip(outs, results):
        written.append(result if out is None else _written(out, result, mask, casting, ufunc, True))
    return tuple(written) if ufunc.nout > 1 else written[0]


def _written(out: Any, result: Any, mask: Any, casting: str, ufunc: np.ufunc, is_own: bool) -> Any:
    """Writes a result, which nobody else has if it is said to be our own."""
    if not np.can_cast(result.dtype, out.dtype, casting):
        # In NumPy's own words.
        np.positive(np.ones(1, result.dtype), out=np.ones(1, out.dtype), casting=casting)
        raise TypeError(f"cannot cast the output of {ufunc.__name__} from {result.dtype} to {out.dtype}")
    if np.broadcast_shapes(out.shape, np.shape(result)) != out.shape:
        raise ValueError(
            f"non-broadcastable output operand with shape {out.shape} doesn't match the broadcast shape "
            f"{np.shape(result)}"
        )
    if mask is not True:
        result, is_own = where_of(mask, result, out), True
    if is_own and isinstance(out, Array) and isinstance(result, Array) and out._is_computed_from(result) and out.ndim:
        # An expression that nobody else has need not be kept from the change.
        out._core.assign(result._fitted(out.shape)._core, True)
    elif isinstance(out, Array):
        out._assign(result)
    elif isinstance(result, Array) and result.shape == out.shape:
        for block in _ufuncs.blocks(out.shape):
            out[block] = np.asarray(result[block])
    else:
        out[...] = np.asarray(result)
    return out


def _computed(ufunc: np.ufunc, inputs: tuple[Any, ...], dtype: np.dtype[Any] | None) -> tuple[Any, ...]:
    shape = np.broadcast_shapes(*(np.shape(one) for one in inputs))
    types = _ufuncs.resolved(ufunc, tuple(_ufuncs.kind(one) for one in inputs), dtype)
    casts, gives = types[: ufunc.nin], types[ufunc.nin :]
    if ufunc.nout == 1 and len(set(casts)) == 1 or ufunc.__name__.startswith("logical_"):
        name = ufunc.__name__
        if name.startswith("logical_"):
            casts = (np.dtype(bool),) * ufunc.nin
        core = _on_devices(name, inputs, casts, gives[0], shape)
        if core is not None:
            return (Array._of(core),)
    return _ufuncs.by_pieces(ufunc, list(inputs), shape, gives)


def _on_devices(
    name: str, inputs: tuple[Any, ...], casts: tuple[Any, ...], gives: np.dtype[Any], shape: tuple[Any, ...]
) -> _core.Core | None:
    operands = []
    for one, cast in zip(inputs, casts):
        if isinstance(one, Array):
            operands.append(one._core)
        elif np.ndim(one) == 0:
            try:
                operands.append(np.asarray(one, cast))
            except OverflowError:
                if name in _COMPARISONS:
                    return None
                raise
        else:
            operands.append(_array.asarray(one, **_array._beside(*inputs))._core)
    return _ufuncs.applied(name, operands, casts, gives, shape)


_COMPARISONS = {"equal", "not_equal", "less", "less_equal", "greater", "greater_equal"}


def _reduce(
    ufunc: np.ufunc, array: Any, axis: Any = 0, dtype: Any = None, out: Any = None, keepdims: bool = False, **given: Any
) -> Any:
    if given and not (given.get("where", True) is True and given.get("initial", np._NoValue) is np._NoValue):
        raise TypeError(f"reductions of vmarray.Array take no {min(given)}; select the items before")
    out = out[0] if isinstance(out, tuple) else out
    if ufunc is np.add:
        return summed(array, axis, dtype, out, keepdims)
    if ufunc in (np.minimum, np.maximum):
        return extreme(ufunc, array, axis, out, keepdims)
    if ufunc in (np.logical_or, np.logical_and):
        return truth(ufunc, array, axis, out, keepdims)
    return reduced(ufunc, array, axis, dtype, out, keepdims)


def _axes(array: Array, axis: Any) -> tuple[Any, ...] | None:
    """The axes that are reduced; None for all."""
    if axis is None:
        return None
    axes = np.lib.array_utils.normalize_axis_tuple(axis, array.ndim, "axis")
    return None if len(axes) == array.ndim and array.ndim == 1 else axes


def _given(value: Any, dtype: Any, array: Array, out: Any, keepdims: bool) -> Any:
    """One number as a result."""
    result = np.asarray(value).astype(dtype, copy=False)
    if keepdims:
        result = result.reshape((1,) * array.ndim)
    if out is not None:
        out[...] = result
        return out
    return result if keepdims else result[()]


def reduced(ufunc: np.ufunc, array: Array, axis: Any, dtype: Any, out: Any, keepdims: bool, initial: Any = None) -> Any:
    """A reduction by NumPy, of a piece at a time. What there is along the axes that stay has room in RAM."""
    axes = _axes(array, axis)
    axes = tuple(range(array.ndim)) if axes is None else axes
    empty = np.empty((0,) * array.ndim if array.ndim else (), array.dtype)
    if array.ndim and ufunc.identity is not None:
        kind = ufunc.reduce(empty, axis=axes, dtype=dtype).dtype
    else:
        kind = array.dtype if dtype is None else np.dtype(dtype)
    shape = tuple(1 if number in axes else extent for number, extent in enumerate(array.shape))
    if array.size == 0 or not array.ndim:
        result = ufunc.reduce(np.asarray(array), axis=axes, dtype=dtype, keepdims=True)
    else:
        result, is_begun = np.empty(shape, kind), np.zeros(shape, bool)
        for block in _ufuncs.blocks(array.shape):
            part = ufunc.reduce(np.asarray(array[block]), axis=axes, dtype=dtype, keepdims=True)
            at = tuple(slice(None) if number in axes else one for number, one in enumerate(block))
            if is_begun[at].flat[0]:
                part = ufunc(result[at], part)
            result[at], is_begun[at] = part, True
    if not keepdims:
        result = result.reshape(tuple(one for number, one in enumerate(shape) if number not in axes))
    if out is not None:
        out[...] = result
        return out
    if result.ndim == 0:
        return result[()]
    return _array.asarray(result, **_array._beside(array))


def summed(array: Array, axis: Any = None, dtype: Any = None, out: Any = None, keepdims: bool = False) -> Any:
    """Of all items by the devices, along one axis by cards; along others, and what is no number, by NumPy."""
    axes = _axes(array, axis)
    is_number = array.dtype.kind in "biuf" and array.dtype.isnative
    kind = np.add.reduce(np.empty(0, array.dtype), dtype=dtype).dtype if is_number else array.dtype
    if axes is not None and len(axes) == 1 and is_number and array.ndim > 1:
        sums = _summed_along(array, axes[0], kind)
        if sums is not None:
            return _kept(sums, array, axes[0], out, keepdims)
    if axes is not None or not is_number:
        return reduced(np.add, array, axis, dtype, out, keepdims)
    if kind.kind in "iu" and array.dtype.kind in "biu":
        value = int(array._core.reduce("int_sum")) & (2**64 - 1)
        return _given(np.uint64(value).astype(kind), kind, array, out, keepdims)
    if kind.kind == "f":
        with np.errstate(over="ignore"):
            return _given(np.float64(array._core.reduce("float_sum")), kind, array, out, keepdims)
    return reduced(np.add, array, axis, dtype, out, keepdims)


def _summed_along(array: Array, axis: int, kind: np.dtype[Any], is_anywhere: bool = False) -> Array | None:
    """Sums along an axis by the devices, in 64 bits; None if these do not have them, or are RAM alone."""
    if kind.kind not in "iuf" or (kind.kind != "f" and array.dtype.kind == "f"):
        return None
    core = _core.reduce_axis(array._core, axis, "float_sum" if kind.kind == "f" else "int_sum", is_anywhere)
    if core is None:
        return None
    # Sums of NumPy begin with a zero, so that none is -0.
    return (Array._of(core) + 0 if kind.kind == "f" else Array._of(core)).astype(kind, copy=False)


def _kept(result: Array, array: Array, axis: int, out: Any, keepdims: bool) -> Any:
    """A result along an axis, with this axis if it is to be kept, or written to where it is wanted."""
    if keepdims:
        result = result.reshape([1 if at == axis else one for at, one in enumerate(array.shape)])
    if out is None:
        return result
    out[...] = result
    return out


def _extreme_along(ufunc: np.ufunc, array: Array, axis: int, is_anywhere: bool = False) -> Array | None:
    """Extremes along an axis by cards; None if they do not have them: of NaNs, which are extremes of NumPy's alone."""
    if array.dtype.kind not in "biuf" or not array.dtype.isnative:
        return None
    if not (is_anywhere or array._core.is_on_cards):
        return None
    if array.dtype.kind == "f" and np.isnan(array)._core.reduce("first") is not None:
        return None
    core = _core.reduce_axis(array._core, axis, "min" if ufunc is np.minimum else "max", is_anywhere)
    return None if core is None else Array._of(core)


def mean(array: Array, axis: Any = None, dtype: Any = None, out: Any = None, keepdims: bool = False) -> Any:
    """Of all items by the devices, along axes by NumPy."""
    kind = np.dtype(dtype) if dtype is not None else array.dtype if array.dtype.kind in "fc" else np.dtype(float)
    axes = _axes(array, axis)
    if axes is None and array.dtype.kind in "biuf" and array.dtype.isnative and kind.kind == "f":
        total, count = np.float64(array._core.reduce("float_sum")), array.size
        with np.errstate(invalid="ignore", divide="ignore"):
            return _given(total / np.float64(count), kind, array, out, keepdims)
    wide = np.result_type(kind, np.float32) if kind == np.float16 else kind
    total = summed(array, axis, wide, None, keepdims)
    count = array.size // max(1, np.size(total) if not isinstance(total, Array) else total.size)
    result = np.true_divide(total, count).astype(kind)
    if out is not None:
        out[...] = np.asarray(result)
        return out
    return result


def variance(
    array: Array, axis: Any = None, dtype: Any = None, out: Any = None, ddof: Any = 0, keepdims: bool = False
) -> Any:
    """The mean of the squares of differences from the mean, in 64 bits."""
    kind = np.dtype(dtype) if dtype is not None else array.dtype if array.dtype.kind == "f" else np.dtype(float)
    middle = mean(array, axis, float, None, True)
    wide = array.astype(float, copy=False) - (middle if isinstance(middle, Array) else np.asarray(middle))
    axes = _axes(array, axis)
    total = summed(np.square(wide), axis, float, None, keepdims)
    count = array.size if axes is None else int(np.prod([array.shape[one] for one in axes]))
    with np.errstate(invalid="ignore", divide="ignore"):
        result = np.true_divide(total, np.float64(max(0, count - ddof))).astype(kind)
    if out is not None:
        out[...] = np.asarray(result)
        return out
    return result


def extreme(ufunc: np.ufunc, array: Array, axis: Any = None, out: Any = None, keepdims: bool = False) -> Any:
    """Of all items by the devices, along one axis by cards; along others, and what is no number, by NumPy."""
    axes = _axes(array, axis)
    if axes is not None or array.dtype.kind not in "biuf" or not array.dtype.isnative:
        if axes is not None and len(axes) == 1 and array.ndim > 1:
            found = _extreme_along(ufunc, array, axes[0])
            if found is not None:
                return _kept(found, array, axes[0], out, keepdims)
        return reduced(ufunc, array, axis, None, out, keepdims)
    found = _extreme("min" if ufunc is np.minimum else "max", array)
    if found is None:
        name = ufunc.__name__
        raise ValueError(f"zero-size array to reduction operation {name} which has no identity")
    return _given(found[1], array.dtype, array, out, keepdims)


def _extreme(which: str, array: Array) -> tuple[Any, ...] | None:
    """Where the first extreme is, and its value; None if there are no items."""
    if array.dtype.kind != "f":
        found = array._core.reduce(f"int_{which}")
        if found is not None and array.dtype == np.uint64:
            return found[0], found[1] + 2**63
        return found
    place = np.isnan(array)._core.reduce("first")
    if place is not None:
        return place[0], np.nan
    return array._core.reduce(f"float_{which}")


def argument(which: str, array: Array, axis: Any = None, out: Any = None, keepdims: bool = False) -> Any:
    """Of all items by the devices, along an axis by NumPy, whose lines have room in RAM."""
    array._core.compute()
    function = np.argmin if which == "min" else np.argmax
    if array.size == 0 or not array.ndim:
        return function(np.asarray(array), axis, keepdims=keepdims)
    if axis is None and array.dtype.kind in "biuf" and array.dtype.isnative:
        return _given(_extreme(which, array)[0], np.intp, array, out, keepdims)
    if axis is None:
        return argument(which, array.reshape(-1), 0, out, False)
    return lines(lambda part, own: function(part, own, keepdims=True), array, axis, np.intp, keepdims, out)


def lines(function: Any, array: Array, axis: int, dtype: Any, keepdims: bool = True, out: Any = None) -> Any:
    """What a function of NumPy gives of each line along an axis: as many items again, or one, which is left out
    unless dimensions are kept. Lines have room in RAM."""
    (own,) = np.lib.array_utils.normalize_axis_tuple(axis, array.ndim)
    kept = tuple(extent for number, extent in enumerate(array.shape) if number != own)
    result = None
    # Whole lines, some at a time.
    for block in _ufuncs.blocks(kept, max(1, _ufuncs.PIECE // max(1, array.shape[own]))):
        key = (*block[:own], slice(None), *block[own:])
        part = function(np.asarray(array[key]), own)
        if result is None:
            shape = (*kept[:own], part.shape[own], *kept[own:])
            result = _array._result(shape, dtype, **_array._beside(array))
        result[key] = part
    if result is None:
        given = function(np.empty(array.shape, array.dtype), own)
        result = _array.asarray(given.astype(dtype, copy=False), **_array._beside(array))
    if not keepdims:
        result = result.squeeze(own)
    if out is not None:
        out[...] = np.asarray(result)
        return out
    return result if result.ndim else np.asarray(result)[()]


def truth(ufunc: np.ufunc, array: Array, axis: Any = None, out: Any = None, keepdims: bool = False) -> Any:
    """Of all items by the devices, along axes by NumPy."""
    if _axes(array, axis) is not None or array.dtype.kind not in "biuf" or not array.dtype.isnative:
        return reduced(ufunc, array, axis, None, out, keepdims)
    if ufunc is np.logical_or:
        value = array._core.reduce("first") is not None
    else:
        value = array._core.reduce("count") == array.size
    return _given(value, bool, array, out, keepdims)


def count_nonzero(array: Array, axis: Any = None, *, keepdims: bool = False) -> Any:
    """As ``numpy.count_nonzero``."""
    if axis is None and array.dtype.kind in "biuf" and array.dtype.isnative:
        count = array._core.reduce("count")
        return _given(count, np.intp, array, None, True) if keepdims else count
    return summed(array != np.zeros((), array.dtype), axis, np.intp, None, keepdims)


def where_of(condition: Any, *values: Any) -> Any:
    """As ``numpy.where``."""
    if not values:
        return condition.nonzero()
    if len(values) != 2:
        raise ValueError("either both or neither of x and y should be given")
    # Numbers of Python are weak, all others count by their dtypes.
    dtype = np.result_type(*(one if type(one) in (bool, int, float, complex) else _ufuncs.kind(one) for one in values))
    inputs = (condition, *values)
    shape = np.broadcast_shapes(*(np.shape(one) for one in inputs))
    core = _on_devices("where", inputs, (np.dtype(bool), dtype, dtype), dtype, shape)
    if core is not None:
        return Array._of(core)
    return _ufuncs.by_pieces(lambda *parts: np.where(*parts).astype(dtype, copy=False), list(inputs), shape, (dtype,))[
        0
    ]


def clip(array: Any, min: Any = None, max: Any = None, **given: Any) -> Any:
    """As ``numpy.clip``."""
    if given:
        raise TypeError(f"clip of vmarray.Array takes no {next(iter(given))}")
    if min is not None:
        array = np.maximum(array, min)
    return array if max is None else np.minimum(array, max)


def sort_in_place(array: Array, axis: int) -> None:
    """Along one axis by the devices, else by NumPy, whose lines have room in RAM."""
    if not array.ndim:
        raise np.exceptions.AxisError(axis, 0)
    (own,) = np.lib.array_utils.normalize_axis_tuple(axis, array.ndim)
    if array.ndim == 1 and array.dtype.kind in "iuf" and array.dtype != np.float16:
        if array.dtype.kind == "f" and np.isnan(array)._core.reduce("first") is not None:
            # Those with a sign would come first.
            array._assign(where_of(np.isnan(array), np.asarray(np.nan, array.dtype), array))
        if _core.sort(array._core, False):
            return
    kept = tuple(extent for number, extent in enumerate(array.shape) if number != own)
    for block in _ufuncs.blocks(kept, max(1, _ufuncs.PIECE // max(1, array.shape[own]))):
        key = (*block[:own], slice(None), *block[own:])
        array[key] = np.sort(np.asarray(array[key]), own)


def concatenate(arrays: Any, axis: int = 0, out: Any = None, *, dtype: Any = None, casting: str = "same_kind") -> Any:
    """As ``numpy.concatenate``."""
    if out is not None or casting != "same_kind":
        raise TypeError("concatenate of vmarray.Array takes neither out nor casting")
    arrays = [one if isinstance(one, Array) else np.asarray(one) for one in arrays]
    if axis is None:
        arrays, axis = [one.reshape(-1) for one in arrays], 0
    if not arrays:
        raise ValueError("need at least one array to concatenate")
    (own,) = np.lib.array_utils.normalize_axis_tuple(axis, arrays[0].ndim)
    rest = {one.shape[:own] + one.shape[own + 1 :] for one in arrays}
    if len(rest) > 1 or len({one.ndim for one in arrays}) > 1:
        raise ValueError(
            "all the input array dimensions except for the concatenation axis must match exactly, but shapes are "
            + ", ".join(str(one.shape) for one in arrays)
        )
    kind = np.result_type(*(one.dtype for one in arrays)) if dtype is None else np.dtype(dtype)
    extents = [one.shape[own] for one in arrays]
    shape = (*arrays[0].shape[:own], sum(extents), *arrays[0].shape[own + 1 :])
    result, at = _array._result(shape, kind, **_array._beside(*arrays)), 0
    for one, extent in zip(arrays, extents):
        key = (slice(None),) * own + (slice(at, at + extent),)
        result[key] = one
        at += extent
    return result


def _like(value: Any) -> Any:
    def made(array: Any, dtype: Any = None, shape: Any = None, **given: Any) -> Array:
        shape = array.shape if shape is None else shape
        return _array.full(shape, value, array.dtype if dtype is None else dtype, **_array._beside(array))

    return made


def full_like(array: Any, fill_value: Any, dtype: Any = None, shape: Any = None, **given: Any) -> Array:
    """As ``numpy.full_like``."""
    return _like(fill_value)(array, dtype, shape)


def array_equal(one: Any, other: Any) -> bool:
    """As ``numpy.array_equal``."""
    return np.shape(one) == np.shape(other) and bool(np.equal(one, other).all())


def copyto(target: Any, source: Any, casting: str = "same_kind", where: Any = True) -> None:
    """As ``numpy.copyto``."""
    _written(target, source if hasattr(source, "dtype") else np.asarray(source), where, casting, np.positive, False)


def _method(name: str) -> Any:
    return lambda array, *args, **given: getattr(array, name)(*args, **given)


#: What NumPy's functions are for arrays of the package.
FUNCTIONS: dict[Any, Any] = {
    np.where: where_of,
    np.clip: clip,
    np.concatenate: concatenate,
    np.count_nonzero: count_nonzero,
    np.copyto: copyto,
    np.array_equal: array_equal,
    np.sort: lambda array, axis=-1, **given: _array.sort(array, axis),
    np.flatnonzero: lambda array: array.find(),
    np.zeros_like: _like(0),
    np.empty_like: _like(0),
    np.ones_like: _like(1),
    np.full_like: full_like,
    np.transpose: lambda array, axes=None: array.transpose(axes),
    np.shape: lambda array: array.shape,
    np.ndim: lambda array: array.ndim,
    np.size: lambda array, axis=None: array.size if axis is None else array.shape[axis],
    np.copy: lambda array, **given: array.copy(),
    np.broadcast_to: lambda array, shape, **given: Array._of(array._core.broadcast(_array._as_tuple(shape))),
    **{
        getattr(np, name): _method(name)
        for name in (
            "sum prod mean var std min max any all argmin argmax nonzero ravel swapaxes squeeze diagonal round reshape"
        ).split()
    },
}
