"""Arrays of few items: NumPy computes on copies in RAM, because devices take longer to start."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import Any

import numpy as np

from . import _array, _core

#: The most items of an operand or a result that NumPy computes. Tests of the package set 0, so that devices compute.
ITEMS_MAX = 4096
#: Python's classes of numbers.
_NUMBERS = {bool, int, float, complex}
#: Functions of the table `_names.NAMES` that are not computed here: they write to an operand, have results of any size,
#: return arrays of NumPy, or differ from NumPy's.
_OTHERS = """argpartition argsort array2string array_repr array_str bincount copyto einsum fill_diagonal flatnonzero
    histogram isin kron nonzero outer pad partition percentile place put put_along_axis putmask quantile repeat
    resize save savetxt savez savez_compressed sort tensordot tile unique_all unique_counts unique_inverse
    unique_values vander where"""


class _Many(Exception):  # noqa: N818
    """Raised if an operand has more than `ITEMS_MAX` items."""


def made(core: _core.Core, found: Any) -> Any:
    """NumPy's result as an array on the devices of another array; NumPy's scalars stay as they are."""
    if type(found) is np.ndarray:
        return _array.Array._of(core.made(found if found.flags.c_contiguous else np.ascontiguousarray(found)))
    if isinstance(found, (tuple, list)):
        parts = [made(core, one) for one in found]
        return type(found)(*parts) if hasattr(found, "_fields") else type(found)(parts)
    return found


def copied(value: Any, copies: list[tuple[Any, Any]]) -> Any:
    """Replaces arrays in arguments by copies in RAM. Adds each copy and its array to `copies`. Raises `_Many` if an
    array has too many items, or if they are not counted."""
    kind = type(value)
    if kind is _array.Array:
        copy = value._core.few(ITEMS_MAX)
        if copy is None:
            raise _Many
        copies.append((copy, value))
        return copy
    if kind is list or kind is tuple:
        return kind([copied(one, copies) for one in value])
    if isinstance(value, np.ndarray):
        if value.size > ITEMS_MAX:
            raise _Many
        copies.append((value, value))
    return value


def _is_few(operands: list[Any]) -> bool:
    """True if a result of the operands has few items, or if they have shapes that do not fit, which NumPy reports."""
    try:
        return np.broadcast(*operands).size <= ITEMS_MAX
    except ValueError:
        return True


def _are_few_products(operands: list[Any]) -> bool:
    """True if a product of two matrices or vectors has few items."""
    depth = np.shape(operands[0])[-1] if np.ndim(operands[0]) else 0
    return len(operands) == 2 and 0 < math.prod(map(np.size, operands)) <= ITEMS_MAX * depth**2


def called(ufunc: np.ufunc, inputs: tuple[Any, ...], out: Any = None) -> Any:
    """The result of a ufunc, in `out` if that is given; None if an operand or the result may have many items."""
    core, shape, operands = None, None, []
    for one in inputs if out is None else (*inputs, out):
        kind = type(one)
        if kind is _array.Array:
            core = one._core
            copy = core.few(ITEMS_MAX)
            if copy is None:
                return None
        elif kind is np.ndarray and one.size <= ITEMS_MAX:
            copy = one
        elif kind in _NUMBERS or isinstance(one, np.generic):
            operands.append(one)
            continue
        else:
            return None
        operands.append(copy)
        if shape is None:
            shape = copy.shape
        elif shape != copy.shape and ufunc.signature is None and not _is_few(operands):
            return None
    if core is None or (ufunc.signature is not None and not _are_few_products(operands)):
        return None
    if out is None:
        found = ufunc(*operands)
        return made(core, found if type(found) is tuple or ufunc.signature is not None else np.asarray(found))
    ufunc(*operands)
    if type(out) is _array.Array:
        out._core.write(operands[-1])
    return out


def selected(array: Any, key: Any) -> Any:
    """The items that a mask, or an array of integers, selects; None if an operand has many items."""
    items = array._core.few(ITEMS_MAX)
    places = None if items is None else key._core.few(ITEMS_MAX)
    if places is None or (places.dtype != np.bool_ and items.size * places.size > ITEMS_MAX * max(1, len(items))):
        return None
    return made(array._core, items[places])


@functools.cache
def _functions() -> dict[Any, Callable[..., Any]]:
    from . import _names

    names = {name for way in ("devices", "pieces", "copy") for name in _names.NAMES[way].split()}
    names -= {*_OTHERS.split(), *_names.GRIDS}
    found = {getattr(np, name): getattr(np, name) for name in names if hasattr(np, name)}
    # These sort stably, and `where` with one argument returns arrays of NumPy.
    found[np.sort] = lambda array, axis=-1: np.sort(array, axis, kind="stable")
    found[np.argsort] = lambda array, axis=-1: np.argsort(array, axis, kind="stable")
    found[np.where] = lambda condition, one, other: np.where(condition, one, other)
    return found


def function(of: Any, args: tuple[Any, ...], given: dict[str, Any]) -> Any:
    """The result of a NumPy function that NumPy computes on copies in RAM; None if an operand has many items, or if the
    package has to compute the function."""
    work = _functions().get(of)
    if work is None or not given.keys() <= _KEYWORDS or (of in _SPECIAL and (given or len(args) != _SPECIAL[of])):
        return None
    copies: list[tuple[Any, Any]] = []
    try:
        args = copied(args, copies)
        given = {name: copied(one, copies) for name, one in given.items()} if given else given
    except _Many:
        return None
    arrays = [array for _, array in copies if type(array) is _array.Array]
    if not arrays or (len(copies) > 1 and not _is_few([copy for copy, _ in copies])):
        return None
    found = work(*args, **given)
    for copy, array in copies:
        if found is copy:
            # The array is the output, or the function returns its operand.
            if copy is not array:
                array._core.write(copy)
            return array
    return made(arrays[0]._core, found)


#: Keywords that do not ask for an output or for a way to sort.
_KEYWORDS = {"axis", "dtype", "keepdims", "initial", "where", "ddof", "min", "max", "a_min", "a_max", "decimals", "n"}
_SPECIAL = {np.sort: 1, np.argsort: 1, np.where: 3}
