"""Arrays in RAM: NumPy computes on their items in place, on all cores, and its results become arrays without a copy.
For arrays of few items on other devices, NumPy computes on copies, because devices take longer to start."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import Any

import numpy as np

from . import _array, _core, _parallel
from ._parallel import parallel, plain
from ._progress import CALLBACK
from ._ufuncs import blocks

#: The most items of an operand or a result that NumPy computes for other devices than RAM. With 0, devices compute all
#: arrays: tests of the package do that.
ITEMS_MAX = 4096
#: The most bytes of an array that NumPy sorts by indices; devices sort longer ones faster.
SORTED_BYTES_MAX = 64 << 10
#: Python's classes of numbers.
_NUMBERS = {bool, int, float, complex}
#: Functions of the table `_names.NAMES` that are not computed here: they write to an operand, return arrays of NumPy,
#: or differ from NumPy's.
_OTHERS = """array2string array_repr array_str bincount copyto einsum fill_diagonal
    isin kron outer pad place put put_along_axis putmask
    resize save savetxt savez savez_compressed tensordot unique_all unique_counts unique_inverse
    unique_values vander"""
#: Functions whose results may have many items, although their operands have few.
_OF_ANY_SIZE = (np.repeat, np.tile)
#: Functions that return arrays of NumPy.
_GIVES_NUMPYS = {np.nonzero, np.flatnonzero, np.histogram, np.quantile, np.percentile}


class _Elsewhere(Exception):  # noqa: N818
    """Raised if the items of an array are not in RAM, and too many for a copy."""


def made(core: _core.Core, found: Any) -> Any:
    """NumPy's result as an array on the devices of another array; NumPy's scalars stay as they are."""
    if isinstance(found, np.ndarray):
        return _array.Array._of(core.made(found))
    if isinstance(found, (tuple, list)):
        parts = [made(core, one) for one in found]
        return type(found)(*parts) if hasattr(found, "_fields") else type(found)(parts)
    return found


def shown(array: Any) -> Any:
    """The items of an array as a NumPy array: in place and read-only if they are in RAM, else a copy of few items; None
    if they are many and elsewhere."""
    return array._core.shown(ITEMS_MAX) if ITEMS_MAX else None


def _copied(value: Any, copies: list[tuple[Any, Any]]) -> Any:
    """Replaces arrays in arguments by NumPy arrays of their items. Adds each with its array to `copies`. Raises
    `_Elsewhere` if an array has many items elsewhere."""
    kind = type(value)
    if kind is _array.Array:
        copy = shown(value)
        if copy is None:
            raise _Elsewhere
        copy = parallel(copy)
        copies.append((copy, value))
        return copy
    if kind is list or kind is tuple:
        return kind([_copied(one, copies) for one in value])
    if isinstance(value, np.ndarray):
        copies.append((value, value))
    return value


def _is_allowed(core: _core.Core, operands: list[Any]) -> bool:
    """True if a result of the operands may be computed in RAM: the array is there, or the result has few items, or the
    operands have shapes that do not fit, which NumPy reports."""
    if core.is_in_ram:
        return True
    try:
        return np.broadcast(*operands).size <= ITEMS_MAX
    except ValueError:
        return True


def _are_few_products(operands: list[Any]) -> bool:
    """True if a product of two matrices or vectors has few items."""
    depth = np.shape(operands[0])[-1] if np.ndim(operands[0]) else 0
    return len(operands) == 2 and 0 < math.prod(map(np.size, operands)) <= ITEMS_MAX * depth**2


def _is_by_blas(operand: Any) -> bool:
    """True if NumPy multiplies such matrices by a library for that."""
    return operand.dtype.char in "fdFD"


def called(ufunc: np.ufunc, method: str, inputs: tuple[Any, ...], given: dict[str, Any]) -> Any:
    """The result of a ufunc or of its method, in `out` if that is given; None if the package has to compute it."""
    if not ITEMS_MAX:
        return None
    core, operands, many = None, [], 0
    outs = given.get("out", ())
    if len(outs) > 1 or method not in _UFUNC_KEYWORDS or not given.keys() <= _UFUNC_KEYWORDS[method]:
        return None
    for one in (*inputs, *outs):
        kind = type(one)
        if kind is _array.Array:
            core = core or one._core
            copy = one._core.shown(ITEMS_MAX)
            if copy is None:
                return None
        elif kind is np.ndarray:
            copy = one
        elif kind in _NUMBERS or isinstance(one, np.generic) or method != "__call__":
            operands.append(one)
            continue
        else:
            return None
        operands.append(copy)
        many = max(many, copy.size)
    if core is None:
        return None
    if ufunc.signature is not None:
        if not _are_few_products(operands) and not (core.is_in_ram and all(map(_is_by_blas, operands))):
            return None
    elif method == "__call__" and not _is_allowed(core, operands):
        return None
    if outs:
        return _given(ufunc, method, operands, outs[0], given)
    if many < _parallel.ITEMS_MIN:
        found = ufunc(*operands, **given) if method == "__call__" else getattr(ufunc, method)(*operands, **given)
    else:
        found = _core.pooled(_parallel.computed, ufunc, method, tuple(operands), given)
    is_array = method == "__call__" and ufunc.signature is None and type(found) is not tuple
    return made(core, np.asarray(found) if is_array else found)


#: For each method of ufuncs, the arguments by name that are computed here.
_UFUNC_KEYWORDS: dict[str, set[str]] = {
    "__call__": {"out", "dtype", "casting"},
    "reduce": {"axis", "dtype", "keepdims", "initial", "where"},
    "accumulate": {"axis", "dtype"},
    "outer": set(),
    "reduceat": {"axis", "dtype"},
}


def _given(ufunc: np.ufunc, method: str, operands: list[Any], out: Any, given: dict[str, Any]) -> Any:
    """Computes a ufunc into `out`, whose items are the last of the operands."""
    *inputs, target = operands

    def work(items: Any) -> None:
        _core.pooled(_parallel.computed, ufunc, method, tuple(inputs), {**given, "out": (items,)})

    if type(out) is not _array.Array:
        work(out)
    elif not out._core.change_in_place(work):
        work(target)
        out._core.write(target)
    return out


def changed(array: Any, work: Callable[[Any], None]) -> bool:
    """Calls a function with the items of an array in place, which it may change; False if they are not in RAM."""
    return bool(ITEMS_MAX and array._core.is_in_ram and array._core.change_in_place(work))


def assigned(array: Any, value: Any, where: Any = True) -> bool:
    """Writes items of another array, converted, to the items for which a mask is true; False if an array is not in RAM.
    """
    if not ITEMS_MAX or not array._core.is_in_ram:
        return False
    items, mask = (shown(one) if type(one) is _array.Array else one for one in (value, where))
    if items is None or mask is None:
        return False
    if mask is True:
        items = np.broadcast_to(items, array.shape)
    return changed(array, lambda own: _core.pooled(_parallel.copy_to, own, items, mask))


def copied(array: Any, dtype: Any, order: str) -> Any:
    """A copy of an array in RAM, converted to a dtype; None for other arrays."""
    items = shown(array)
    if items is None:
        return None
    return made(array._core, _core.pooled(_parallel.copied, items, dtype, order))


def from_numpy(values: Any, is_fortran: bool, given: dict[str, Any]) -> Any:
    """An array in RAM with a copy of the items of a NumPy array; None if the options name other devices."""
    if not ITEMS_MAX or values.dtype.hasobject or not values.dtype.itemsize:
        return None
    if not _core.begins_on_host(values.nbytes, given):
        return None
    copy = _core.pooled(_parallel.copied, values, values.dtype, "F" if is_fortran else "C")
    return _array.Array._of(_core.made_of(copy, given))


def selected(array: Any, key: Any) -> Any:
    """A NumPy array of the items that a mask, or an array of integers, selects; None if an operand is not in RAM."""
    items = shown(array)
    places = shown(key) if type(key) is _array.Array else key
    if items is None or places is None:
        return None
    if not array._core.is_in_ram and places.dtype != np.bool_ and items.size * places.size > ITEMS_MAX * len(items):
        return None
    if places.dtype == np.bool_ and places.shape == items.shape:
        return _core.pooled(_parallel.selected, items, places)
    return _core.pooled(_parallel.taken, items, places)


@functools.cache
def _functions() -> dict[Any, Callable[..., Any]]:
    from . import _names

    names = {name for way in ("devices", "pieces", "copy") for name in _names.NAMES[way].split()}
    names -= {*_OTHERS.split(), *_names.GRIDS}
    found = {getattr(np, name): getattr(np, name) for name in names if hasattr(np, name)}
    found[np.sort] = _sorted
    found[np.argsort] = lambda array, axis=-1, kind=None: np.argsort(array, axis, kind="stable")
    return found


def _sorted(array: Any, axis: Any = -1, kind: Any = None) -> Any:
    """Sorts stably: equal items that differ are zeroes with signs. Short integers are sorted by their digits."""
    of, by_digits = array.dtype.kind, array.dtype.itemsize <= 2
    is_stable = of not in "iufb" or (of == "f" and _has_signed_zeroes(plain(array)))
    return np.sort(array, axis, kind="stable" if is_stable or (by_digits and of != "f") else None)


def _has_signed_zeroes(array: Any) -> bool:
    return any((np.signbit(part) & (part == 0)).any() for part in (array[key] for key in blocks(array.shape)))


def function(of: Any, args: tuple[Any, ...], given: dict[str, Any]) -> Any:
    """The result of a NumPy function that NumPy computes on items in RAM; None if items are elsewhere, or if the
    package has to compute the function."""
    work = _functions().get(of) if ITEMS_MAX else None
    if work is None or CALLBACK.get() is not None:
        return None
    if given:
        given = {name: one for name, one in given.items() if one is not _DEFAULTS.get(name, np._NoValue)}
        if not given.keys() <= _KEYWORDS:
            return None
    if of is np.where and len(args) != 3:
        # It returns places, as NumPy arrays.
        return None
    out, names = given.pop("out", None), _after_out(of)
    if names is not None and len(args) > names[0]:
        out, given = args[names[0]], given | dict(zip(names[1], args[names[0] + 1 :]))
        args = args[: names[0]]
    copies: list[tuple[Any, Any]] = []
    try:
        args = _copied(args, copies)
        given = {name: _copied(one, copies) for name, one in given.items()} if given else given
    except _Elsewhere:
        return None
    arrays = [array for _, array in copies if type(array) is _array.Array]
    if of is np.argsort and any(one.nbytes > SORTED_BYTES_MAX for one in arrays):
        return None
    core = next((one._core for one in (*arrays, out) if type(one) is _array.Array), None)
    if core is None:
        return None
    if not core.is_in_ram and (of in _OF_ANY_SIZE or not _is_allowed(core, [copy for copy, _ in copies])):
        return None
    is_large = any(copy.size >= _parallel.ITEMS_MIN for copy, _ in copies)
    call = functools.partial(_core.pooled, work) if is_large else work
    if out is not None:

        def write(items: Any) -> None:
            call(*args, out=items, **given)

        if type(out) is not _array.Array:
            write(out)
        elif not changed(out, write):
            return None
        return out
    found = call(*args, **given)
    if any(found is copy for copy, _ in copies):
        # The function returns its operand.
        return next(array for copy, array in copies if found is copy)
    if of not in _GIVES_NUMPYS:
        return made(core, found)
    # A result of NumPy that is an operand, such as the edges of bins, must not show the items of an array.
    shown_here = [copy for copy, array in copies if copy is not array]
    if type(found) is tuple:
        found = tuple(one.copy() if any(one is copy for copy in shown_here) else one for one in found)
    return plain(found)


@functools.lru_cache(maxsize=512)
def _after_out(of: Any) -> tuple[int, list[str]] | None:
    """The number of the parameter `out`, if it may be given by place, and the names of later parameters."""
    from ._dispatch import _signature

    signature = _signature(of)
    names = [] if signature is None else [*signature.parameters]
    return (names.index("out"), names[names.index("out") + 1 :]) if "out" in names else None


#: Keywords with values that change nothing.
_DEFAULTS: dict[str, Any] = {"where": True, "dtype": None, "keepdims": False}
#: Keywords that do not ask for a way to sort.
_KEYWORDS = {"out", "axis", "dtype", "keepdims", "initial", "where", "ddof", "min", "max", "a_min", "a_max", "n"}
_KEYWORDS |= {"decimals", "return_counts", "return_inverse", "return_index", "bins", "kind"}
