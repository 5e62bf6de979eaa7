"""Calls NumPy's functions on arrays of the package: on the devices if they support it, else by NumPy on copies in RAM.
Arguments are bound by NumPy's own signatures."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Any

import numpy as np

from . import _ufuncs
from ._array import Array, _options_like, asarray
from ._progress import CALLBACK

#: The most bytes of arrays that are copied to RAM for a function of NumPy's.
RAM_BYTES_MAX = 256 << 20
#: The most bytes of arrays that NumPy sorts and searches, instead of devices: their kernels take longer to start.
SMALL_BYTES = 64 << 10
#: Functions that write to their first argument.
_WRITES = {np.fill_diagonal, np.place, np.put, np.put_along_axis, np.putmask}
#: Functions whose results are small, and arrays of NumPy.
_GIVES_NUMPYS = {np.nonzero, np.flatnonzero, np.histogram, np.bincount, np.where}


class NotOnDevices(Exception):  # noqa: N818
    """Raised by an implementation if devices cannot compute the function for these arguments. NumPy then computes
    the function."""


def is_plain(array: Array) -> bool:
    """True if devices can compute with the array: it has at least one item and one axis, and its items are numbers in
    the machine's byte order."""
    if not _ufuncs.is_computed(array.dtype) or array.dtype.names is not None:
        return False
    # Do not count the items of a selection by a mask here, because that would compute the mask.
    return not array._core.is_counted or (array.ndim > 0 and array.size > 0)


def is_small(*arrays: Array) -> bool:
    """True if NumPy sorts and searches the arrays faster than devices, and the program does not request progress
    reports."""
    return CALLBACK.get() is None and sum(one.nbytes for one in arrays) <= SMALL_BYTES


def arrays_in(values: Any) -> list[Array]:
    """The arrays of this package among arguments, including arrays in lists."""
    if isinstance(values, Array):
        return [values]
    if isinstance(values, dict):
        values = list(values.values())
    if isinstance(values, (list, tuple)):
        return [array for one in values for array in arrays_in(one)]
    return []


def _copied(values: Any, copies: list[tuple[Any, Array]]) -> Any:
    """Replaces arrays in arguments by copies in RAM. Adds each copy and its array to `copies`."""
    if isinstance(values, Array):
        # Copy an array only once if it is both an operand and the output.
        for copy, array in copies:
            if array is values:
                return copy
        copies.append((np.asarray(values), values))
        return copies[-1][0]
    if isinstance(values, dict):
        return {name: _copied(one, copies) for name, one in values.items()}
    if type(values) in (list, tuple):
        return type(values)(_copied(one, copies) for one in values)
    return values


def wrapped(result: Any, options: dict[str, Any], copies: list[tuple[Any, Array]]) -> Any:
    """Converts NumPy's results to arrays of this package, with `options`. If NumPy returns one of the `copies`, the
    result is the operand itself.
    """
    if isinstance(result, np.ndarray):
        operand = next((array for copy, array in copies if copy is result), None)
        return asarray(result, **options) if operand is None else operand
    if isinstance(result, tuple) and hasattr(result, "_fields"):
        return type(result)(*(wrapped(one, options, copies) for one in result))
    if isinstance(result, (tuple, list)):
        return type(result)(wrapped(one, options, copies) for one in result)
    return result


def name_of(function: Any) -> str:
    """The public name of a NumPy function, such as ``numpy.add.reduce``."""
    ufunc = getattr(function, "__self__", None)
    if isinstance(ufunc, np.ufunc):
        return f"numpy.{ufunc.__name__}.{function.__name__}"
    return f"numpy.{function.__name__}"


def refused(function: Any, why: str) -> TypeError:
    """Creates the error for arguments that neither devices nor NumPy on copies in RAM support."""
    name = name_of(function)
    return TypeError(
        f"{name} of vmarray.Array {why}; if RAM has room, {name} of numpy.asarray(array) works on a copy in RAM"
    )


def on_copies(function: Any, args: tuple[Any, ...], given: dict[str, Any]) -> Any:
    """Calls a NumPy function on copies in RAM. Returns the result as an array on the devices of the operands, or raises
    an error if the operands have more than `RAM_BYTES_MAX` bytes."""
    arrays = arrays_in([args, given])
    count = sum(one.nbytes for one in arrays)
    if count > RAM_BYTES_MAX:
        kinds = ", ".join(sorted({str(one.dtype) for one in arrays}))
        words = "".join(f" with {one}=" for one in sorted(given))
        raise refused(function, f"cannot run on devices for {kinds}{words}; {count} bytes exceed the limit of a copy")
    out = given.get("out")
    outs = out if isinstance(out, tuple) else (out,)
    copies: list[tuple[Any, Array]] = []
    given = _copied(given, copies)
    result = function(*_copied(args, copies), **given)
    # These functions change their first operand in place, so write the changed copy back to the array.
    is_in_place = function in _WRITES or name_of(function).endswith(".at")
    is_in_place |= function is np.nan_to_num and given.get("copy") is False
    for copy, array in copies:
        if any(array is one for one in outs) or (is_in_place and array is args[0]):
            array._assign(copy)
    gives_numpys = function in _GIVES_NUMPYS and not (function is np.where and len(args) > 1)
    if gives_numpys or any(isinstance(one, np.ndarray) for one in outs):
        return result
    return wrapped(result, _options_like(*arrays), copies)


@functools.lru_cache(maxsize=512)
def _signature(function: Any) -> inspect.Signature | None:
    try:
        return inspect.signature(function)
    except ValueError:
        # Older versions of NumPy have no signatures for functions written in C.
        return None


def _bound(function: Any, args: tuple[Any, ...], given: dict[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Splits arguments by NumPy's signature: positional ones without a default, and named ones that differ from their
    default."""
    signature = _signature(function)
    if signature is None:
        return args, given
    bound = signature.bind(*args, **given)
    places: list[Any] = []
    named: dict[str, Any] = {}
    for name, value in bound.arguments.items():
        parameter = signature.parameters[name]
        if parameter.kind is parameter.VAR_POSITIONAL:
            places.extend(value)
        elif parameter.kind is parameter.VAR_KEYWORD:
            named.update(value)
        elif parameter.default is parameter.empty or parameter.kind is parameter.POSITIONAL_ONLY:
            places.append(value)
        elif not _is_default(value, parameter.default):
            named[name] = value
    return tuple(places), named


def _is_default(value: Any, default: Any) -> bool:
    if value is default or value is np._NoValue:
        return True
    return type(value) is type(default) and isinstance(value, (bool, int, float, str)) and value == default


def is_accepted(implementation: Callable[..., Any], args: tuple[Any, ...], given: dict[str, Any]) -> bool:
    """True if the package's implementation has parameters for all arguments."""
    signature = _signature(implementation)
    try:
        if signature is not None:
            signature.bind(*args, **given)
    except TypeError:
        return False
    return True


def called(
    function: Any,
    implementation: Callable[..., Any],
    is_view: bool,
    is_move: bool,
    is_search: bool,
    args: tuple[Any, ...],
    given: dict[str, Any],
) -> Any:
    """Computes a NumPy function for arrays of this package, by this package or by NumPy.

    The implementation in this package always runs for functions that return views, shapes or dtypes. For other
    functions, the choice depends on the arguments:

    - NumPy sorts and searches small arrays, on copies in RAM.
    - The package computes if devices support the dtype, and the implementation supports all given arguments.
    - The package also moves items of any other dtype, if the arrays are too large for copies in RAM.
    - NumPy computes everything else, on copies in RAM.
    """
    places, named = _bound(function, args, given)
    for name in ("where", "keepdims", "out"):
        if name in named and named[name] is {"where": True, "keepdims": False, "out": None}[name]:
            del named[name]
    is_known = is_accepted(implementation, places, named)
    if is_view:
        if not is_known:
            raise refused(function, f"takes no {', '.join(sorted(named))}" if named else "takes other arguments")
        return implementation(*places, **named)
    arrays = arrays_in([places, named])
    is_for_devices = all(map(is_plain, arrays)) and "out" not in named and is_computed_as(named.get("dtype"))
    if is_known and is_search and is_for_devices and is_small(*arrays):
        if function in (np.sort, np.argsort) and named.get("stable") is None:
            named["kind"] = "stable"
        # Drop `sorted`, because the functions of this package always sort distinct items.
        named.pop("sorted", None)
        return on_copies(function, places, named)
    if not is_known or not is_for_devices:
        is_large = sum(one.nbytes for one in arrays) > RAM_BYTES_MAX
        if is_large and "out" in named:
            kept = {name: one for name, one in named.items() if name != "out"}
            try:
                result = called(function, implementation, is_view, is_move, is_search, places, kept)
                return given_to(named["out"], result)
            except NotOnDevices:
                return on_copies(function, places, named)
        if is_large and not is_known and places and isinstance(places[0], Array) and is_plain(places[0]):
            from ._functions import masked

            found = masked(function, places[0], named)
            if found is not None:
                return found
        is_large = is_known and is_large
        if not (is_large and (is_move or is_for_devices)):
            return on_copies(function, places, named)
    try:
        return implementation(*places, **named)
    except NotOnDevices:
        return on_copies(function, places, named)


def given_to(out: Any, result: Any) -> Any:
    """Writes a result to `out`, and returns `out`. If `out` is None, returns the result itself."""
    if out is None:
        return result
    out = out[0] if isinstance(out, tuple) else out
    if getattr(out, "dtype", None) != getattr(result, "dtype", None):
        # Let NumPy compute, because some of its functions use the dtype of `out`.
        raise NotOnDevices
    if np.shape(out) != np.shape(result):
        shapes = f"{np.shape(out)} doesn't match {np.shape(result)}"
        raise ValueError(f"non-broadcastable output operand with shape {shapes}")
    np.copyto(out, result)
    return out


def copied(function: Any, implementation: Any, is_move: bool, args: tuple[Any, ...], given: dict[str, Any]) -> Any:
    """Lets NumPy compute a function on copies in RAM. For arrays above `RAM_BYTES_MAX`, calls the package's own
    implementation instead, if there is one. With `is_move`, the latter supports all dtypes."""
    places, named = _bound(function, args, given)
    if named.get("out", 0) is None:
        del named["out"]
    arrays = arrays_in([places, named])
    is_computed = implementation is not None and sum(one.nbytes for one in arrays) > RAM_BYTES_MAX
    if is_computed and (is_move or (all(map(is_plain, arrays)) and is_computed_as(named.get("dtype")))):
        kept = {name: one for name, one in named.items() if name != "out"}
        try:
            if is_accepted(implementation, places, kept):
                return given_to(named.get("out"), implementation(*places, **kept))
        except NotOnDevices:
            pass
    return on_copies(function, places, named)


def is_computed_as(dtype: Any) -> bool:
    """True if devices can compute sums in the requested dtype."""
    return dtype is None or (np.dtype(dtype).kind != "b" and _ufuncs.is_computed(np.dtype(dtype)))
