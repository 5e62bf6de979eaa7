"""The order in which items are stored. Functions of single items and reductions work in this order, so that they need
no copy of a transposed or reversed array."""

from __future__ import annotations

from typing import Any

import numpy as np

from ._array import Array

#: The axes of an array in the order of their strides, and True for each axis that runs backwards.
Arrangement = tuple[tuple[int, ...], tuple[bool, ...]]


def arrangement(array: Array) -> Arrangement | None:
    """The arrangement that puts an array into the order of its memory; None if it is in this order already, or if it
    repeats items."""
    core = array._core
    if not core.is_counted:
        return None
    shape, strides = core.shape, core.strides
    if any(not stride and extent > 1 for stride, extent in zip(strides, shape)) or 0 in shape:
        return None
    steps = [stride if extent > 1 else 0 for stride, extent in zip(strides, shape)]
    order = sorted(range(len(steps)), key=lambda axis: -abs(steps[axis]) if steps[axis] else -np.inf)
    flips = tuple(steps[axis] < 0 for axis in order)
    wide = [axis for axis in order if steps[axis]]
    return (tuple(order), flips) if any(flips) or wide != sorted(wide) else None


def arranged(array: Array, by: Arrangement) -> Array:
    """A view with the axes in another order and direction."""
    return Array._of(array._core.arranged(*by))


def inverse(by: Arrangement) -> Arrangement:
    """The arrangement that undoes another one."""
    order, flips = by
    places = [order.index(axis) for axis in range(len(order))]
    return tuple(places), tuple(flips[place] for place in places)


def stored(array: Array) -> Array:
    """A view of the items in the order of their memory."""
    by = arrangement(array)
    return array if by is None else arranged(array, by)


def common(operands: tuple[Any, ...], shape: tuple[int, ...]) -> Arrangement | None:
    """The arrangement of all arrays among operands; None if there is none, or if they have several."""
    found: Arrangement | None = None
    for one in operands:
        if isinstance(one, Array) and one.ndim:
            by = arrangement(one) if one.shape == shape else None
            if by is None or (found is not None and by != found):
                return None
            found = by
        elif np.ndim(one):
            return None
    return found
