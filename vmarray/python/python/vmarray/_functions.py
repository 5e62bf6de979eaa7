"""NumPy's reductions, element-wise functions and others, implemented for arrays of the package."""

from __future__ import annotations

import functools
import math
import operator
from typing import Any

import numpy as np

from . import _array, _core, _dispatch, _layout, _on_host, _ufuncs
from ._array import Array


def called(ufunc: np.ufunc, method: str, inputs: tuple[Any, ...], given: dict[str, Any]) -> Any:
    """Implements ``__array_ufunc__``: the result of a NumPy ufunc, or of one of its methods, for arrays of the package.
    """
    if method == "reduce":
        return _reduce(ufunc, *inputs, **given)
    if method == "__call__" and ufunc.signature is not None:
        from . import _products

        return _products.called_ufunc(ufunc, inputs, given)
    if method != "__call__":
        return _in_form(ufunc, method, inputs, given)
    if "out" in given and not all(_ufuncs.is_computed(one.dtype) for one in _arrays(inputs, given)):
        if sum(one.nbytes for one in _arrays(inputs, given)) <= _dispatch.RAM_BYTES_MAX:
            return _dispatch.on_copies(ufunc, inputs, given)
    outs = given.pop("out", None)
    mask, casting = given.pop("where", True), given.pop("casting", "same_kind")
    dtype = given.pop("dtype", None)
    given.pop("subok", None)
    is_fortran = _array._order(given.pop("order", "K")) == "F"
    if given:
        raise _dispatch.refused(ufunc, f"takes no {min(given)}")
    kind = None if dtype is None else np.dtype(dtype)
    if outs is not None:
        # Check casts of outputs first, because NumPy raises this error before any error of the operands.
        gives = _types(ufunc, inputs, kind, casting)[ufunc.nin :]
        if not all(out is None or np.can_cast(one, out.dtype, casting) for one, out in zip(gives, outs)):
            _raised_by_numpy(ufunc, inputs, kind, casting, outs)
    results = _computed(ufunc, inputs, kind, casting)
    if outs is None:
        if mask is not True:
            # Set the items outside of the mask to zero; NumPy leaves them undefined.
            mask = _mask(mask)
            shape = np.broadcast_shapes(np.shape(mask), results[0].shape)
            results = tuple(where_of(np.broadcast_to(mask, shape), one, np.zeros((), one.dtype)) for one in results)
        results = tuple(one.copy("F") for one in results) if is_fortran else results
        return results if ufunc.nout > 1 else results[0]
    written = []
    for out, result in zip(outs, results):
        written.append(result if out is None else _written(out, result, mask, casting, ufunc, True))
    return tuple(written) if ufunc.nout > 1 else written[0]


def _in_form(ufunc: np.ufunc, method: str, inputs: tuple[Any, ...], given: dict[str, Any]) -> Any:
    """Computes a ufunc's method, such as ``outer``: NumPy for small operands, else the package."""
    given = {name: one[0] if name == "out" else one for name, one in given.items()}
    is_large = sum(one.nbytes for one in _dispatch.arrays_in([inputs, given])) > _dispatch.RAM_BYTES_MAX
    if is_large and method == "outer":
        one, other = inputs
        if isinstance(one, (Array, np.ndarray)):
            return ufunc(one.reshape(*one.shape, *(1,) * np.ndim(other)), other, **given)
    if is_large and method == "accumulate" and ufunc in _ufuncs.ASSOCIATIVE and isinstance(inputs[0], Array):
        from ._shapes import accumulated

        array, axis, dtype, out = (*inputs, *(given.get(one) for one in ("axis", "dtype", "out")[len(inputs) - 1 :]))
        if out is None:
            return accumulated(ufunc)(array, 0 if axis is None else axis, dtype)
    if is_large and method == "at" and isinstance(inputs[0], Array) and inputs[0].ndim == 1:
        array, places, *values = inputs
        if sum(one.nbytes for one in _dispatch.arrays_in([places, values])) <= _dispatch.RAM_BYTES_MAX:
            places = np.asarray(places)
            if places.dtype.kind in "iu" and not ((places < -len(array)) | (places >= len(array))).any():
                rows, own = np.unique(places % len(array), return_inverse=True)
                items = np.asarray(array[rows])
                ufunc.at(items, own.reshape(places.shape), *map(np.asarray, values))
                array[rows] = items
                return None
    return _dispatch.on_copies(getattr(ufunc, method), inputs, given)


def _arrays(inputs: tuple[Any, ...], given: dict[str, Any]) -> list[Any]:
    """The operands and outputs of a call that are arrays."""
    return [one for one in (*inputs, *given["out"]) if isinstance(one, (Array, np.ndarray, np.generic))]


def _written(out: Any, result: Any, mask: Any, casting: str, ufunc: np.ufunc, is_own: bool) -> Any:
    """Writes a result to `out` where `mask` is true; returns `out`. `is_own`: no other object refers to the result."""
    if not np.can_cast(result.dtype, out.dtype, casting):
        _raised_by_numpy(np.positive, (result,), None, casting, (out,))
        raise TypeError(f"cannot cast the output of {ufunc.__name__} from {result.dtype} to {out.dtype}")
    if np.broadcast_shapes(out.shape, np.shape(result)) != out.shape:
        raise ValueError(
            f"non-broadcastable output operand with shape {out.shape} doesn't match the broadcast shape "
            f"{np.shape(result)}"
        )
    if mask is not True:
        mask = _mask(mask)
        result, is_own = where_of(mask, result.astype(out.dtype), out), True
    if is_own and isinstance(out, Array) and isinstance(result, Array) and out._is_computed_from(result) and out.ndim:
        # Pass True: no other object uses the expression, so its values need not be stored before the change.
        out._core.assign(result._fitted(out.shape)._core, True)
    elif isinstance(out, Array):
        out._assign(result)
    elif isinstance(result, Array) and result.shape == out.shape:
        for block in _ufuncs.blocks(out.shape):
            out[block] = np.asarray(result[block])
    else:
        out[...] = np.asarray(result)
    return out


def _types(ufunc: np.ufunc, inputs: tuple[Any, ...], dtype: np.dtype[Any] | None, casting: Any) -> tuple[Any, ...]:
    """The dtypes of a function's converted operands, followed by the dtypes of its results, as NumPy selects them."""
    try:
        return _ufuncs.resolved(ufunc, tuple(map(_ufuncs.kind, inputs)), dtype, casting)
    except TypeError:
        # If the dtype cannot hold a Python integer, let NumPy raise its own error.
        _raised_by_numpy(ufunc, inputs, dtype, casting, None)
        raise


def _raised_by_numpy(
    ufunc: np.ufunc, inputs: tuple[Any, ...], dtype: np.dtype[Any] | None, casting: Any, outs: tuple[Any, ...] | None
) -> None:
    """Calls a NumPy function on empty arrays, so that NumPy raises its error for unsupported types of operands and
    results.
    """
    options: dict[str, Any] = {} if dtype is None else {"dtype": dtype}
    if outs is not None:
        options["out"] = tuple(None if one is None else np.empty(0, one.dtype) for one in outs)
    kinds = map(_ufuncs.kind, inputs)
    probes = (np.empty(0, kind) if isinstance(kind, np.dtype) else one for one, kind in zip(inputs, kinds))
    ufunc(*probes, casting=casting, **options)


def _mask(mask: Any) -> Any:
    """A mask as an array of bools. Converts lists of numbers, but not arrays, as NumPy does."""
    mask = mask if hasattr(mask, "dtype") else np.asarray(mask, bool)
    if mask.dtype != np.bool_:
        raise TypeError(f"Cannot cast array data from {mask.dtype!r} to dtype('bool') according to the rule 'safe'")
    return mask


def _computed(
    ufunc: np.ufunc, inputs: tuple[Any, ...], dtype: np.dtype[Any] | None, casting: Any = "same_kind"
) -> tuple[Any, ...]:
    if not any(isinstance(one, Array) or np.ndim(one) for one in inputs):
        # Only `out` is an array of the package: an expression of numbers alone has no devices.
        options = {} if dtype is None else {"dtype": dtype}
        found = ufunc(*inputs, casting=casting, **options)
        return tuple(map(np.asarray, found)) if ufunc.nout > 1 else (np.asarray(found),)
    shape = np.broadcast_shapes(*(np.shape(one) for one in inputs))
    by = _layout.common(inputs, shape)
    if by is not None:
        inputs = tuple(_layout.arranged(one, by) if isinstance(one, Array) and one.ndim else one for one in inputs)
        return tuple(_layout.arranged(one, _layout.inverse(by)) for one in _computed(ufunc, inputs, dtype, casting))
    types = _types(ufunc, inputs, dtype, casting)
    casts, gives = types[: ufunc.nin], types[ufunc.nin :]
    if ufunc is np.power and gives[0].kind == "f" and isinstance(inputs[0], Array) and np.size(inputs[1]) == 1:
        # For the exponent 0.5 NumPy computes the square root, whose results for -0.0 and infinities differ from those
        # of a power.
        if np.asarray(inputs[1]) == 0.5:
            return _computed(np.sqrt, (np.broadcast_to(inputs[0], shape).astype(gives[0], copy=False),), None)
    is_on_cards = any(isinstance(one, Array) and one._core.is_on_cards for one in inputs)
    if ufunc in _FAST and _on_host.ITEMS_MAX and not is_on_cards:
        options = {"casting": casting} if dtype is None else {"casting": casting, "dtype": dtype}
        return _ufuncs.by_pieces(functools.partial(ufunc, **options), list(inputs), shape, gives)
    if ufunc.nout == 1 and len(set(casts)) == 1 or ufunc.__name__.startswith("logical_"):
        name = ufunc.__name__
        if name.startswith("logical_"):
            casts = (np.dtype(bool),) * ufunc.nin
        core = _on_devices(name, inputs, casts, gives[0], shape)
        if core is not None:
            return (Array._of(core),)
    # Let NumPy convert the operands of each piece, by its rules for this `dtype`.
    options = {"casting": casting} if dtype is None else {"casting": casting, "dtype": dtype}
    return _ufuncs.by_pieces(functools.partial(ufunc, **options), list(inputs), shape, gives)


def _on_devices(
    name: str, inputs: tuple[Any, ...], casts: tuple[Any, ...], gives: np.dtype[Any], shape: tuple[Any, ...]
) -> _core.Core | None:
    operands = []
    for one, cast in zip(inputs, casts):
        if isinstance(one, Array):
            operands.append(one._core)
        elif np.ndim(one) == 0:
            try:
                # Convert a Python number as NumPy converts an item, if the program permits unsafe casts.
                is_unsafe = (type(one) is float and cast.kind in "iu") or (type(one) is complex and cast.kind != "c")
                operands.append(np.asarray(one).astype(cast) if is_unsafe else np.asarray(one, cast))
            except OverflowError:
                if name in _COMPARISONS:
                    return None
                raise
        else:
            operands.append(_array.asarray(one, **_array._options_like(*inputs))._core)
    return _ufuncs.applied(name, operands, casts, gives, shape)


#: Functions that NumPy computes several times as fast in RAM as devices that are RAM.
_FAST = {np.exp, np.exp2, np.expm1, np.log, np.log2, np.log10, np.log1p, np.sin, np.cos, np.tan, np.tanh}
_COMPARISONS = {"equal", "not_equal", "less", "less_equal", "greater", "greater_equal"}


def _reduce(
    ufunc: np.ufunc, array: Any, axis: Any = 0, dtype: Any = None, out: Any = None, keepdims: bool = False, **given: Any
) -> Any:
    out = out[0] if isinstance(out, tuple) else out
    named = {"axis": axis, "dtype": dtype, "out": out, "keepdims": keepdims, **given}
    if named.get("where", True) is True:
        named.pop("where", None)
    named = {name: value for name, value in named.items() if value is not np._NoValue}
    is_usual = set(named) <= {"axis", "dtype", "out", "keepdims"} and out is None and isinstance(array, Array)
    is_usual = is_usual and _dispatch.is_plain(array) and _dispatch.is_computed_as(dtype)
    if is_usual and ufunc is np.add:
        return summed(array, axis, dtype, None, keepdims)
    if is_usual and dtype is None and ufunc in (np.minimum, np.maximum):
        return extreme(ufunc, array, axis, None, keepdims)
    if is_usual and dtype is None and ufunc in (np.logical_or, np.logical_and):
        return truth(ufunc, array, axis, None, keepdims)
    if is_usual and ufunc in _ufuncs.ASSOCIATIVE:
        return reduced(ufunc, array, axis, dtype, None, keepdims)
    if dtype is None:
        del named["dtype"]
    if out is None:
        del named["out"]
    return _dispatch.on_copies(ufunc.reduce, (array,), named)


#: One axis, counted from the first; a tuple is refused.
axis_of = np.lib.array_utils.normalize_axis_index


def _axes(array: Array, axis: Any) -> tuple[Any, ...] | None:
    """The axes that a reduction reduces, as numbers from 0; None for all axes."""
    if axis is None:
        return None
    if not isinstance(axis, tuple):
        axis = operator.index(axis)
    axes = np.lib.array_utils.normalize_axis_tuple(axis, array.ndim, "axis")
    return None if len(axes) == array.ndim and array.ndim == 1 else axes


def _given(value: Any, dtype: Any, array: Array, out: Any, keepdims: bool) -> Any:
    """Returns one number as the result of a reduction, in `out` if it is given."""
    result = np.asarray(value).astype(dtype, copy=False)
    if keepdims:
        result = result.reshape((1,) * array.ndim)
    if out is not None:
        out[...] = result
        return out
    return result if keepdims else result[()]


def reduced(
    ufunc: np.ufunc,
    array: Array,
    axis: Any,
    dtype: Any,
    out: Any,
    keepdims: bool,
    initial: Any = None,
    where: Any = True,
    before: Any = None,
) -> Any:
    """Reduces an array with NumPy, piece by piece. RAM must have room for the result. With a mask `where`, a function
    without an identity, such as ``maximum``, needs an initial value. `before` is a function of the items and the key of
    a piece, which returns the items to reduce."""
    by = _layout.arrangement(array) if where is True and before is None and array.ndim > 1 else None
    if by is not None:
        axes = tuple(range(array.ndim)) if axis is None else np.lib.array_utils.normalize_axis_tuple(axis, array.ndim)
        moved = tuple(by[0].index(one) for one in axes)
        result = reduced(ufunc, _layout.arranged(array, by), moved, dtype, None, True, initial)
        result = _layout.arranged(result, _layout.inverse(by))
        result = result if keepdims else np.squeeze(result, axes)
        return _dispatch.given_to(out, result if result.ndim else np.asarray(result)[()])
    mask = None if where is True else np.broadcast_to(where, array.shape)
    begin = {} if initial is None or ufunc.identity is not None else {"initial": initial}
    axes = _axes(array, axis)
    axes = tuple(range(array.ndim)) if axes is None else axes
    empty = np.empty((0,) * array.ndim if array.ndim else (), array.dtype)
    if array.ndim and ufunc.identity is not None:
        kind = ufunc.reduce(empty, axis=axes, dtype=dtype).dtype
    else:
        kind = array.dtype if dtype is None else np.dtype(dtype)
    shape = tuple(1 if number in axes else extent for number, extent in enumerate(array.shape))
    if array.size == 0 or not array.ndim:
        options = begin if mask is None else begin | {"where": np.asarray(mask)}
        result = ufunc.reduce(np.asarray(array), axis=axes, dtype=dtype, keepdims=True, **options)
    else:
        result, is_begun = np.empty(shape, kind), np.zeros(shape, bool)

        def one(block: Any) -> Any:
            options = begin if mask is None else begin | {"where": np.asarray(mask[block])}
            part = np.asarray(array[block])
            part = part if before is None else before(part, block)
            return ufunc.reduce(part, axis=axes, dtype=dtype, keepdims=True, **options)

        keys = [*_ufuncs.blocks(array.shape, _ufuncs.PIECE // 4)]
        for block, part in zip(keys, _ufuncs.in_threads(one, keys)):
            at = tuple(slice(None) if axis in axes else one for axis, one in enumerate(block))
            if is_begun[at].flat[0]:
                part = ufunc(result[at], part)
            result[at], is_begun[at] = part, True
    if initial is not None and not begin:
        result = ufunc(np.asarray(initial).astype(result.dtype), result)
    if not keepdims:
        result = result.reshape(tuple(one for number, one in enumerate(shape) if number not in axes))
    if out is not None:
        out[...] = result
        return out
    if result.ndim == 0:
        return result[()]
    return _array.asarray(result, **_array._options_like(array))


def summed(array: Array, axis: Any = None, dtype: Any = None, out: Any = None, keepdims: bool = False) -> Any:
    """Computes sums. Devices compute the sum of all items, and GPUs also along one axis. NumPy computes sums along
    several axes, and of items that are not numbers.
    """
    axes = _axes(array, axis)
    array = array if axes is not None else _layout.stored(array)
    is_number = _ufuncs.is_computed(array.dtype)
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
    """Computes sums along an axis on the devices, in 64 bits. None if the devices do not support the sums, or are only
    RAM and `is_anywhere` is false."""
    if not _dispatch.is_computed_as(kind) or (kind.kind != "f" and array.dtype.kind == "f"):
        return None
    core = _core.reduce_axis(array._core, axis, "float_sum" if kind.kind == "f" else "int_sum", is_anywhere)
    if core is None:
        return None
    # Add 0, because sums of NumPy begin with 0 and so are never -0.
    return (Array._of(core) + 0 if kind.kind == "f" else Array._of(core)).astype(kind, copy=False)


def _kept(result: Array, array: Array, axis: int, out: Any, keepdims: bool) -> Any:
    """Returns the result of a reduction along `axis`, in `out` if given. With `keepdims`, adds the reduced axis with
    length 1."""
    if keepdims:
        result = result.reshape([1 if at == axis else one for at, one in enumerate(array.shape)])
    if out is None:
        return result
    out[...] = result
    return out


def _extreme_along(ufunc: np.ufunc, array: Array, axis: int, is_anywhere: bool = False) -> Array | None:
    """Minima or maxima along an axis, by GPUs, or by any devices with `is_anywhere`. None if the devices do not support
    the dtype."""
    return _reduced_along("min" if ufunc is np.minimum else "max", array, axis, is_anywhere)


def _argument_along(which: str, array: Array, axis: int, is_anywhere: bool = False) -> Array | None:
    """Indices of minima or maxima along an axis, as `_extreme_along`."""
    found = _reduced_along(f"arg{which}", array, axis, is_anywhere)
    return None if found is None else found.view(np.intp)


def _reduced_along(what: str, array: Array, axis: int, is_anywhere: bool) -> Array | None:
    if not _ufuncs.is_computed(array.dtype) or not (is_anywhere or array._core.is_on_cards):
        return None
    core = _core.reduce_axis(array._core, axis, what, is_anywhere)
    return None if core is None else Array._of(core)


def mean(array: Array, axis: Any = None, dtype: Any = None, out: Any = None, keepdims: bool = False) -> Any:
    """Computes the mean. The devices compute the mean of all items, and NumPy computes means along axes."""
    kind = np.dtype(dtype) if dtype is not None else array.dtype if array.dtype.kind == "f" else np.dtype(float)
    if kind.kind != "f":
        raise _dispatch.NotOnDevices
    axes = _axes(array, axis)
    array = array if axes is not None else _layout.stored(array)
    if axes is None and _ufuncs.is_computed(array.dtype) and kind.kind == "f":
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
    """Computes the variance in 64 bits: the mean of the squared differences from the mean."""
    kind = np.dtype(dtype) if dtype is not None else array.dtype if array.dtype.kind == "f" else np.dtype(float)
    if kind.kind != "f":
        raise _dispatch.NotOnDevices
    axes = _axes(array, axis)
    if axes is not None and not array._core.is_on_cards and array.size:
        return _dispatch.given_to(out, _variance_along(array, axes, kind, ddof, keepdims))
    array = array if axes is not None else _layout.stored(array)
    middle = mean(array, axis, float, None, True)
    wide = array.astype(float, copy=False) - (middle if isinstance(middle, Array) else np.asarray(middle))
    total = summed(np.square(wide), axis, float, None, keepdims)
    count = array.size if axes is None else int(np.prod([array.shape[one] for one in axes]))
    with np.errstate(invalid="ignore", divide="ignore"):
        result = np.true_divide(total, np.float64(max(0, count - ddof))).astype(kind)
    if out is not None:
        out[...] = np.asarray(result)
        return out
    return result


def _variance_along(array: Array, axes: tuple[Any, ...], kind: np.dtype[Any], ddof: float, keepdims: bool) -> Any:
    """The variances along axes, by NumPy, piece by piece: the items are read twice, and nothing is stored."""
    by = _layout.arrangement(array)
    array = array if by is None else _layout.arranged(array, by)
    own = axes if by is None else tuple(by[0].index(one) for one in axes)
    middle = np.asarray(mean(array, own, float, None, True))

    def apart(part: Any, key: Any) -> Any:
        at = tuple(slice(None) if axis in own else one for axis, one in enumerate(key))
        return np.square(part - middle[at])

    total = reduced(np.add, array, own, float, None, True, before=apart)
    count = math.prod(array.shape[one] for one in own)
    with np.errstate(invalid="ignore", divide="ignore"):
        result = np.true_divide(total, np.float64(max(0, count - ddof))).astype(kind)
    result = result if by is None else _layout.arranged(result, _layout.inverse(by))
    result = result if keepdims else np.squeeze(result, axes)
    return result if result.ndim else np.asarray(result)[()]


def extreme(ufunc: np.ufunc, array: Array, axis: Any = None, out: Any = None, keepdims: bool = False) -> Any:
    """Computes minima or maxima. Devices search all items, and GPUs also search along one axis. NumPy searches along
    several axes, and searches items that are not numbers.
    """
    axes = _axes(array, axis)
    if axes is not None or not _ufuncs.is_computed(array.dtype):
        if axes is not None and len(axes) == 1 and array.ndim > 1:
            found = _extreme_along(ufunc, array, axes[0])
            if found is not None:
                return _kept(found, array, axes[0], out, keepdims)
        return reduced(ufunc, array, axis, None, out, keepdims)
    which = "min" if ufunc is np.minimum else "max"
    found = _extreme(which, _layout.stored(array))
    if found is not None and not found[1] and array.dtype.kind == "f":
        # The first zero in the order of the items has the sign of the result.
        found = _extreme(which, array)
    if found is None:
        name = ufunc.__name__
        raise ValueError(f"zero-size array to reduction operation {name} which has no identity")
    return _given(found[1], array.dtype, array, out, keepdims)


def _extreme(which: str, array: Array) -> tuple[Any, ...] | None:
    """Index of the first minimum or maximum, and its value; None if there are no items."""
    if array.dtype.kind != "f":
        found = array._core.reduce(f"int_{which}")
        if found is not None and array.dtype == np.uint64:
            return found[0], found[1] + 2**63
        return found
    found = array._core.reduce(f"float_{which}")
    if found is not None and np.isinf(found[1]):
        # The devices replaced NaNs by an infinity.
        place = array._core.reduce("first_nan")
        return found if place is None else (place[0], np.nan)
    if found is None or found[1]:
        return found
    # Devices compare zeroes without their signs, so read the sign of the found zero.
    if array._core.is_pending:
        place = ((array == 0) & (np.reciprocal(array) < 0))._core.reduce("first")
        return found[0], -0.0 if place is not None and place[0] == found[0] else 0.0
    return found[0], array[np.unravel_index(found[0], array.shape)]


def argument(which: str, array: Array, axis: Any = None, out: Any = None, keepdims: bool = False) -> Any:
    """Computes the index of the minimum or maximum. The devices search all items, and GPUs also search along an axis.
    Otherwise NumPy searches along an axis, and needs RAM for one line of items along this axis.
    """
    array._core.compute()
    function = np.argmin if which == "min" else np.argmax
    if array.size == 0 or not array.ndim:
        return function(np.asarray(array), axis, keepdims=keepdims)
    if axis is None and _ufuncs.is_computed(array.dtype):
        return _given(_extreme(which, array)[0], np.intp, array, out, keepdims)
    if axis is None:
        return argument(which, array.reshape(-1), 0, out, False)
    found = _argument_along(which, array, axis_of(axis, array.ndim)) if array.ndim > 1 else None
    if found is not None:
        return _kept(found, array, axis_of(axis, array.ndim), out, keepdims)
    return lines(lambda part, own: function(part, own, keepdims=True), array, axis, np.intp, keepdims, out)


def lines(function: Any, array: Array, axis: int, dtype: Any, keepdims: bool = True, out: Any = None) -> Any:
    """Applies a NumPy function to each line along an axis. The function returns a line of the same length, or a single
    item. For single items, the result lacks the axis unless `keepdims` is true. RAM must have room for a line.
    """
    own = axis_of(axis, array.ndim)
    kept = tuple(extent for number, extent in enumerate(array.shape) if number != own)
    # Process blocks of several whole lines, because NumPy needs whole lines.
    blocks = _ufuncs.blocks(kept, max(1, _ufuncs.PIECE // 4 // max(1, array.shape[own])))
    keys = [(*block[:own], slice(None), *block[own:]) for block in blocks]
    if keys:
        part = function(np.asarray(array[keys[0]]), own)
        shape = (*kept[:own], part.shape[own], *kept[own:])
        result = _array._result(shape, dtype, **_array._options_like(array))
        result[keys[0]] = part

        def one(key: Any) -> None:
            result[key] = function(np.asarray(array[key]), own)

        _ufuncs.in_threads(one, keys[1:])
    else:
        given = function(np.empty(array.shape, array.dtype), own)
        result = _array.asarray(given.astype(dtype, copy=False), **_array._options_like(array))
    if not keepdims:
        result = result.squeeze(own)
    if out is not None:
        out[...] = np.asarray(result)
        return out
    return result if result.ndim else np.asarray(result)[()]


def truth(ufunc: np.ufunc, array: Array, axis: Any = None, out: Any = None, keepdims: bool = False) -> Any:
    """Computes ``any`` or ``all``. The devices compute the result over all items, and NumPy computes results along
    axes.
    """
    if _axes(array, axis) is not None or not _ufuncs.is_computed(array.dtype):
        return reduced(ufunc, array, axis, None, out, keepdims)
    array = _layout.stored(array)
    if ufunc is np.logical_or:
        value = array._core.reduce("first") is not None
    else:
        value = array._core.reduce("count") == array.size
    return _given(value, bool, array, out, keepdims)


def masked(function: Any, array: Array, given: dict[str, Any]) -> Any:
    """Computes a reduction with a mask or an initial value, piece by piece; None if this package does not support the
    reduction."""
    if function in (np.mean, np.var, np.std) and set(given) <= {"axis", "dtype", "keepdims", "where", "ddof", "mean"}:
        return _masked_mean(array, **given) if function is np.mean else _masked_variance(function, array, **given)
    ufunc = {np.sum: np.add, np.prod: np.multiply, np.any: np.logical_or, np.all: np.logical_and}.get(function)
    ufunc = ufunc or {np.min: np.minimum, np.max: np.maximum, np.amin: np.minimum, np.amax: np.maximum}.get(function)
    if ufunc is None or not set(given) <= {"axis", "dtype", "keepdims", "initial", "where"}:
        return None
    if ufunc.identity is None and "initial" not in given:
        return None
    given = {"axis": None, "dtype": None, "keepdims": False} | given
    return reduced(ufunc, array, out=None, **given)


def _masked_mean(
    array: Array, axis: Any = None, dtype: Any = None, keepdims: bool = False, *, where: Any, ddof: Any = 0
) -> Any:
    """The mean of the items for which a mask is true: their sum, divided by their number less `ddof`."""
    kind = np.dtype(dtype) if dtype is not None else array.dtype if array.dtype.kind == "f" else np.dtype(float)
    axes = axis if axis is not None or array.ndim == 1 else tuple(range(array.ndim))
    total = reduced(np.add, array, axes, np.result_type(kind, np.float32), None, True, None, where)
    count = np.sum(np.broadcast_to(where, array.shape), axis=axes, dtype=np.intp, keepdims=True)
    with np.errstate(invalid="ignore", divide="ignore"):
        result = np.true_divide(total, np.maximum(count - ddof, 0)).astype(kind)
    if keepdims:
        return result
    result = np.squeeze(result, tuple(range(array.ndim)) if axis is None else axis)
    return result if result.ndim else np.asarray(result)[()]


def _masked_variance(
    function: Any, array: Array, axis: Any = None, dtype: Any = None, keepdims: bool = False, ddof: Any = 0,
    mean: Any = None, where: Any = True,
) -> Any:  # fmt: skip
    """The variance, or with `np.std` its root, of the items for which a mask is true."""
    kind = np.dtype(dtype) if dtype is not None else array.dtype if array.dtype.kind == "f" else np.dtype(float)
    middle = _masked_mean(array, axis, float, True, where=where) if mean is None else mean
    apart = np.square(array.astype(float, copy=False) - middle)
    result = _masked_mean(apart, axis, float, keepdims, where=where, ddof=ddof)
    return (np.sqrt(result) if function is np.std else result).astype(kind)


def count_nonzero(array: Array, axis: Any = None, *, keepdims: bool = False) -> Any:
    """Like ``numpy.count_nonzero``."""
    if axis is None and _ufuncs.is_computed(array.dtype):
        count = _layout.stored(array)._core.reduce("count")
        return _given(count, np.intp, array, None, True) if keepdims else count
    return summed(array != np.zeros((), array.dtype), axis, np.intp, None, keepdims)


def where_of(condition: Any, *values: Any) -> Any:
    """Like ``numpy.where``."""
    if not values:
        return _array.asarray(condition).nonzero()
    if len(values) != 2:
        raise ValueError("either both or neither of x and y should be given")
    # As in NumPy's promotion, Python's numbers adapt to the other dtypes. Arrays and NumPy's
    # scalars have fixed dtypes.
    dtype = np.result_type(*(one if type(one) in (bool, int, float, complex) else _ufuncs.kind(one) for one in values))
    dtype = np.dtype(dtype).newbyteorder("=")
    # For a Python integer that the dtype cannot hold, NumPy's `where` wraps around, or raises an
    # error from version 2.5 on.
    other = np.zeros((), dtype)
    inputs = (condition, *(np.where(True, one, other) if type(one) is int else one for one in values))
    shape = np.broadcast_shapes(*(np.shape(one) for one in inputs))
    by = _layout.common(inputs, shape)
    if by is not None:
        inputs = tuple(_layout.arranged(one, by) if isinstance(one, Array) and one.ndim else one for one in inputs)
        return _layout.arranged(where_of(*inputs), _layout.inverse(by))
    core = _on_devices("where", inputs, (np.dtype(bool), dtype, dtype), dtype, shape)
    if core is not None:
        return Array._of(core)
    return _ufuncs.by_pieces(lambda *parts: np.where(*parts).astype(dtype, copy=False), list(inputs), shape, (dtype,))[
        0
    ]


def clip(
    array: Any, a_min: Any = np._NoValue, a_max: Any = np._NoValue, *, min: Any = np._NoValue, max: Any = np._NoValue
) -> Any:
    """Like ``numpy.clip``."""
    if (a_min is np._NoValue) != (a_max is np._NoValue):
        raise TypeError("clip() takes both `a_min` and `a_max`, or neither")
    if (min is not np._NoValue or max is not np._NoValue) and (a_min is not np._NoValue or a_max is not np._NoValue):
        raise ValueError("Passing `min` or `max` keyword argument when `a_min` and `a_max` are provided is forbidden.")
    least, most = (
        None if one is np._NoValue and other is np._NoValue else other if one is np._NoValue else one
        for one, other in ((a_min, min), (a_max, max))
    )
    array = _array.asarray(array, **_array._options_like(least, most))
    if array.dtype.kind in "iu":
        # Drop a bound outside of the dtype's range, because it changes no item.
        limits = np.iinfo(array.dtype)
        least = None if type(least) is int and least <= limits.min else least
        most = None if type(most) is int and most >= limits.max else most
    if least is None and most is None:
        return np.positive(array)
    if least is None:
        return np.minimum(array, most)
    if most is None:
        return np.maximum(array, least)
    kind = _ufuncs.resolved(_CLIP, tuple(map(_ufuncs.kind, (array, least, most))), None)[-1]
    if kind.kind == "f" and (kind == np.float16 or np.size(least) == np.size(most) == 1):
        # If an item and its bound are zeroes of different sign, NumPy keeps the item. So compare with `less`.
        array, least, most = (
            one.astype(kind, copy=False) if isinstance(one, Array) else np.asarray(one, kind)
            for one in (array, least, most)
        )
        array = where_of(np.less(array, least) | np.isnan(least), least, array)
        return where_of(np.greater(array, most) | np.isnan(most), most, array)
    return np.minimum(np.maximum(array, least, dtype=kind), most, dtype=kind)


_CLIP: Any = np._core.umath.clip


def sort_in_place(array: Array, axis: int, order: Any = None) -> None:
    """Sorts along an axis. Devices sort an array of one axis; otherwise NumPy sorts, and needs RAM for one line of
    items along the axis. The sort is stable.
    """
    if not array.ndim:
        raise np.exceptions.AxisError(axis, 0)
    own = axis_of(axis, array.ndim)
    is_small = _dispatch.is_small(array)
    if array.ndim == 1 and not is_small and _dispatch.is_plain(array) and array.dtype not in (np.bool_, np.float16):
        if array.dtype.kind == "f":
            # Unlike NumPy, devices sort -0.0 before 0.0, and NaNs with a sign first: sort by indices, or replace NaNs.
            has_zeroes, has_nans = _signed(array)
            if has_zeroes:
                array._assign(array.take(np.argsort(array)))
                return
            if has_nans:
                array._assign(where_of(np.isnan(array), np.asarray(np.nan, array.dtype), array))
        if _core.sort(array._core, False):
            return
    kept = tuple(extent for number, extent in enumerate(array.shape) if number != own)
    for block in _ufuncs.blocks(kept, max(1, _ufuncs.PIECE // max(1, array.shape[own]))):
        key = (*block[:own], slice(None), *block[own:])
        array[key] = np.sort(np.asarray(array[key]), own, "stable", order)


def _signed(array: Array) -> tuple[bool, bool]:
    """Two bools: true if an item is -0.0, which has a negative reciprocal; true if an item is NaN. If both are false,
    one pass over the items suffices."""
    zeroes, nans = (array == 0) & (np.reciprocal(array) < 0), np.isnan(array)
    if (zeroes | nans)._core.reduce("first") is None:
        return False, False
    return zeroes._core.reduce("first") is not None, nans._core.reduce("first") is not None


def concatenate(arrays: Any, axis: int = 0, out: Any = None, *, dtype: Any = None, casting: str = "same_kind") -> Any:
    """Like ``numpy.concatenate``."""
    if out is not None or casting != "same_kind" or any(type(one) in (int, float, complex) for one in arrays):
        # Let NumPy concatenate Python's numbers, because they take the dtype of the other operands.
        raise _dispatch.NotOnDevices
    arrays = [one if isinstance(one, Array) else np.asarray(one) for one in arrays]
    if len({one.ndim for one in arrays}) > 1 and axis is not None:
        # Let NumPy raise the error that names the axes.
        raise _dispatch.NotOnDevices
    if axis is None:
        arrays, axis = [one.reshape(-1) for one in arrays], 0
    if not arrays:
        raise ValueError("need at least one array to concatenate")
    own = axis_of(axis, arrays[0].ndim)
    rest = {one.shape[:own] + one.shape[own + 1 :] for one in arrays}
    if len(rest) > 1 or len({one.ndim for one in arrays}) > 1:
        raise ValueError(
            "all the input array dimensions except for the concatenation axis must match exactly, but shapes are "
            + ", ".join(str(one.shape) for one in arrays)
        )
    kind = np.result_type(*(one.dtype for one in arrays)) if dtype is None else np.dtype(dtype)
    if any(not np.can_cast(one.dtype, kind, casting) for one in arrays):
        raise _dispatch.NotOnDevices
    extents = [one.shape[own] for one in arrays]
    shape = (*arrays[0].shape[:own], sum(extents), *arrays[0].shape[own + 1 :])
    result, at = _array._result(shape, kind, **_array._options_like(*arrays)), 0
    for one, extent in zip(arrays, extents):
        key = (slice(None),) * own + (slice(at, at + extent),)
        result[key] = one
        at += extent
    return result


def _like(value: Any) -> Any:
    def made(array: Any, *, dtype: Any = None, order: Any = "K", subok: bool = True, shape: Any = None) -> Array:
        shape, kind = array.shape if shape is None else shape, array.dtype if dtype is None else dtype
        order = "F" if array._is_fortran(_array._order(order)) else "C"
        if value == 0:
            return _array.empty(shape, kind, order, **_array._options_like(array))
        return _array.full(shape, value, kind, order, **_array._options_like(array))

    return made


def full_like(array: Any, fill_value: Any, **given: Any) -> Array:
    """Like ``numpy.full_like``."""
    given.setdefault("dtype", array.dtype)
    result = _like(0)(array, **given)
    result[...] = fill_value if isinstance(fill_value, Array) else _array._cast(fill_value, result.dtype)
    return result


def array_equal(one: Any, other: Any) -> bool:
    """Like ``numpy.array_equal``."""
    return np.shape(one) == np.shape(other) and bool(compared(one, other, True).all())


def compared(one: Any, other: Any, is_equal: bool) -> Any:
    """Compares items by ``==`` or ``!=``, also items of types without ``numpy.equal``, such as structures."""
    try:
        return (np.equal if is_equal else np.not_equal)(one, other)
    except TypeError:
        shape = np.broadcast_shapes(np.shape(one), np.shape(other))
        work = operator.eq if is_equal else operator.ne
        return _ufuncs.by_pieces(work, [one, other], shape, (np.dtype(bool),))[0]


def copyto(target: Any, source: Any, casting: str = "same_kind", where: Any = True) -> None:
    """Like ``numpy.copyto``."""
    if type(source) in (int, float, complex) and isinstance(target, Array):
        item = np.empty((), target.dtype)
        np.copyto(item, source, casting=casting)
        source = item
    # NumPy's rules for a NumPy scalar differ from those for arrays, so convert the scalar to an array.
    source = source if isinstance(source, Array) else np.asarray(source)
    _written(target, source, where, casting, np.positive, False)


def shares(a: Any, b: Any, max_work: Any, bounds: bool) -> bool:
    """Like ``numpy.shares_memory``; with `bounds`, like ``numpy.may_share_memory``."""
    if not (isinstance(a, Array) and isinstance(b, Array)):
        return False
    return a._core.shares(b._core, bounds, max_work)


def _same(array: Array, order: Any = "K", subok: bool = False) -> Array:
    return array.copy(order)


def _transposed(array: Array, axes: Any = None) -> Array:
    return array.transpose(axes)


def _sorted(array: Array, axis: Any = -1, kind: Any = None, stable: Any = None) -> Array:
    # Accept each `kind`: all sorts here are stable, which NumPy permits.
    if kind is not None and stable is not None or kind not in (None, *_SORTS):
        raise _dispatch.NotOnDevices
    result = array.ravel() if axis is None else array
    result = result.copy()
    sort_in_place(result, -1 if axis is None else axis)
    return result


_SORTS = ("quicksort", "mergesort", "heapsort", "stable")


def _broadcast(array: Any, shape: Any, subok: bool = False) -> Array:
    return Array._of(array._core.broadcast(_array._as_tuple(shape)))


def _reshaped(array: Array, shape: Any = None, order: Any = "C", copy: Any = None) -> Array:
    return array.reshape(shape, order=order, copy=copy)


def _size(array: Any, axis: Any = None) -> int:
    axes = range(array.ndim) if axis is None else np.lib.array_utils.normalize_axis_tuple(axis, array.ndim)
    return int(np.prod([array.shape[one] for one in axes], dtype=object))


def rounded(array: Array, decimals: int = 0) -> Array:
    """Like ``numpy.round``."""
    if array.dtype.kind in "f" and not decimals:
        return np.rint(array)
    kind = np.round(np.empty(0, array.dtype), decimals).dtype
    return _ufuncs.by_pieces(lambda part: np.round(part, decimals), [array], array.shape, (kind,))[0]


def _deviation(array: Array, axis: Any = None, dtype: Any = None, ddof: Any = 0, keepdims: bool = False) -> Any:
    return np.sqrt(variance(array, axis, dtype, None, ddof, keepdims))


def _extreme_of(ufunc: np.ufunc) -> Any:
    def work(array: Array, axis: Any = None, keepdims: bool = False) -> Any:
        return extreme(ufunc, array, axis, None, keepdims)

    return work


def _truth_of(ufunc: np.ufunc) -> Any:
    def work(array: Array, axis: Any = None, keepdims: bool = False) -> Any:
        return truth(ufunc, array, axis, None, keepdims)

    return work


def _argument_of(which: str) -> Any:
    def work(array: Array, axis: Any = None, keepdims: bool = False) -> Any:
        return argument(which, array, axis, None, keepdims)

    return work


def _product(array: Array, axis: Any = None, dtype: Any = None, keepdims: bool = False) -> Any:
    return reduced(np.multiply, array, axis, dtype, None, keepdims)


def _nonzero(array: Array) -> tuple[np.ndarray[Any, Any], ...]:
    return np.unravel_index(array.find(), array.shape)


#: Functions that make views, or ask about shapes and dtypes: of any dtype.
VIEWS: dict[Any, Any] = {
    np.copyto: copyto,
    np.isfortran: lambda a: a.flags.fnc,
    np.may_share_memory: lambda a, b, max_work=0: shares(a, b, max_work, True),
    np.shares_memory: lambda a, b, max_work=-1: shares(a, b, max_work, False),
    np.zeros_like: _like(0),
    np.empty_like: _like(0),
    np.ones_like: _like(1),
    np.full_like: full_like,
    np.transpose: _transposed,
    np.shape: lambda array: array.shape,
    np.ndim: lambda array: array.ndim,
    np.size: _size,
    np.copy: _same,
    np.broadcast_to: _broadcast,
    np.reshape: _reshaped,
    np.ravel: lambda array, order="C": array.ravel(order),
    np.swapaxes: lambda array, one, other: array.swapaxes(one, other),
    np.squeeze: lambda array, axis=None: array.squeeze(axis),
    np.diagonal: lambda array, offset=0, axis1=0, axis2=1: array.diagonal(offset, axis1, axis2),
}
#: Functions that move items: of any dtype, if there are too many bytes for copies in RAM.
MOVES: dict[Any, Any] = {np.where: where_of, np.concatenate: concatenate, np.sort: _sorted, np.array_equal: array_equal}
#: Functions that compute.
FUNCTIONS: dict[Any, Any] = {
    np.clip: clip,
    np.count_nonzero: count_nonzero,
    np.flatnonzero: lambda array: array.find(),
    np.nonzero: _nonzero,
    np.sum: summed,
    np.prod: _product,
    np.mean: mean,
    np.var: variance,
    np.std: _deviation,
    np.min: _extreme_of(np.minimum),
    np.max: _extreme_of(np.maximum),
    np.any: _truth_of(np.logical_or),
    np.all: _truth_of(np.logical_and),
    np.argmin: _argument_of("min"),
    np.argmax: _argument_of("max"),
    np.round: rounded,
    np.around: rounded,
}
FUNCTIONS |= {np.amin: FUNCTIONS[np.min], np.amax: FUNCTIONS[np.max]}


@functools.cache
def created() -> dict[Any, Any]:
    """Implementations of NumPy's functions that create arrays, for calls with ``like=`` and an array of the package."""
    from . import _creation

    return _creation.LIKE


@functools.cache
def copied() -> set[Any]:
    """Functions that NumPy computes on copies in RAM."""
    from . import _names

    names = set(_names.NAMES["copy"].split()) - set(_names.GRIDS)
    return {getattr(np, name) for name in names if hasattr(np, name)}


def is_known(function: Any) -> bool:
    """True if the package computes a function of NumPy."""
    if np.sort not in _KNOWN:
        from . import _order, _shapes

        for of, is_view, is_move in (
            (VIEWS | _shapes.VIEWS, True, False),
            (MOVES | _order.MOVES | _shapes.MOVES, False, True),
            (FUNCTIONS | _order.FUNCTIONS | _shapes.FUNCTIONS, False, False),
        ):
            _KNOWN.update(
                {known: (work, is_view, is_move, known in _order.SEARCHES) for known, work in of.items()}
            )
    return function in _KNOWN


def dispatched(function: Any, args: tuple[Any, ...], given: dict[str, Any]) -> Any:
    """Implements ``__array_function__``: the result of a NumPy function for arrays of the package."""
    found = _on_host.function(function, args, given)
    if found is not None:
        return found
    if not is_known(function):
        from . import _creation, _large, _products

        if function in _products.FUNCTIONS or function in _products.LINALG:
            return _products.called(function, args, given)
        if function in _creation.FROM_ARRAYS:
            return _creation.FROM_ARRAYS[function](*args, **given)
        if function is np.lib.stride_tricks.sliding_window_view:
            return _large.sliding_window_view(*args, **given)
        if function in copied():
            return _dispatch.copied(function, _large.FUNCTIONS.get(function), function in _large.MOVES, args, given)
        if function.__module__ in ("numpy.linalg", "numpy.fft"):
            return _dispatch.on_copies(function, *_dispatch._bound(function, args, given))
        name = f"{function.__module__}.{function.__name__}"
        raise TypeError(
            f"vmarray.Array does not support {name}; if RAM has room, {name} of numpy.asarray(array) "
            "works on a copy in RAM"
        )
    return _dispatch.called(function, *_KNOWN[function], args, given)


#: For each function how the package computes it, and whether it makes views, moves items, or searches.
_KNOWN: dict[Any, tuple[Any, bool, bool, bool]] = {}
