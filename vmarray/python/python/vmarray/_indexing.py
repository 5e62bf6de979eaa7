"""NumPy's indexing: recognises keys that select a view (integers, slices), and finds the items that other keys
select."""

from __future__ import annotations

import operator
from typing import Any

import numpy as np

#: NumPy combines fewer arrays than this, counting those of an index.
_ARRAYS_MAX = 64


def is_basic(key: tuple[Any, ...]) -> bool:
    """True if NumPy returns a view for this key: it has only integers, slices, ``None`` and ellipses."""
    return all(
        one is None or one is Ellipsis or isinstance(one, slice) or (not _is_bool(one) and _is_integer(one))
        for one in key
    )


def plain(key: tuple[Any, ...]) -> tuple[Any, ...]:
    """Converts the integers of a basic key to Python integers."""
    return tuple(
        one if one is None or one is Ellipsis or isinstance(one, slice) else operator.index(one) for one in key
    )


def _is_bool(one: object) -> bool:
    return isinstance(one, (bool, np.bool_))


def _is_integer(one: object) -> bool:
    if isinstance(one, (int, np.integer)):
        return True
    if isinstance(one, np.ndarray):
        return one.ndim == 0 and one.dtype.kind in "iu"
    if isinstance(one, (list, tuple, str)):
        return False
    return hasattr(one, "__index__") and not hasattr(one, "__array__")


def _as_array(one: object) -> np.ndarray[Any, Any]:
    array = np.asarray(one)
    if array.size == 0 and not isinstance(one, np.ndarray) and array.dtype.kind != "b":
        array = array.astype(np.intp)
    if array.dtype.kind not in "iub":
        if isinstance(one, np.ndarray) or hasattr(one, "__array__"):
            raise IndexError("arrays used as indices must be of integer (or boolean) type")
        raise IndexError(
            "only integers, slices (`:`), ellipsis (`...`), numpy.newaxis (`None`) and integer or boolean arrays are "
            "valid indices"
        )
    return array


def _parts(key: tuple[Any, ...], shape: tuple[Any, ...]) -> list[Any]:
    """Normalizes a key: converts lists to arrays, and adds full slices for missing axes."""
    parts: list[Any] = []
    consumed, ellipsis = 0, None
    for one in key:
        if one is Ellipsis:
            if ellipsis is not None:
                raise IndexError("an index can only have a single ellipsis ('...')")
            ellipsis = len(parts)
        elif one is None or isinstance(one, slice):
            parts.append(one)
            consumed += one is not None
        elif not _is_bool(one) and _is_integer(one):
            parts.append(np.asarray(operator.index(one)))
            consumed += 1
        else:
            array = _as_array(one)
            if array.dtype.kind == "b":
                parts.append(array)
                consumed += array.ndim
            else:
                parts.append(array.astype(np.intp, copy=False))
                consumed += 1
    if consumed > len(shape):
        raise IndexError(f"too many indices for array: array is {len(shape)}-dimensional, but {consumed} were indexed")
    at = len(parts) if ellipsis is None else ellipsis
    # Keep the ellipsis, even if it covers no axes: it separates index arrays, which changes the order of axes.
    apart = [] if ellipsis is None else [Ellipsis]
    return parts[:at] + apart + [slice(None)] * (len(shape) - consumed) + parts[at:]


def positions(
    key: tuple[Any, ...], shape: tuple[Any, ...], strides: tuple[Any, ...], offset: int
) -> np.ndarray[Any, Any]:
    """Byte offsets of the items that a key with arrays selects, if the first item of the array is at `offset`."""
    parts = _parts(key, shape)
    axis = 0
    # `plain` has an entry for each part of the key: None, Ellipsis, byte offsets of a slice, or `advanced` for arrays.
    plain: list[Any] = []
    advanced: list[Any] = []
    places: list[Any] = []
    for part in parts:
        if part is None or part is Ellipsis:
            plain.append(part)
        elif isinstance(part, slice):
            start, stop, step = part.indices(shape[axis])
            plain.append(np.arange(start, stop, step, dtype=np.int64) * strides[axis])
            axis += 1
        else:
            arrays = [part]
            if part.dtype.kind == "b":
                for own, extent in zip(range(axis, axis + part.ndim), part.shape):
                    if extent not in (0, shape[own]):
                        raise IndexError(
                            f"boolean index did not match indexed array along axis {own}; size of axis is "
                            f"{shape[own]} but size of corresponding boolean axis is {extent}"
                        )
                # A single bool adds an axis of length 1 (true) or 0 (false).
                arrays = list(np.nonzero(part)) if part.ndim else [np.zeros(int(part), np.intp)]
                if part.ndim == 0:
                    advanced.append(np.zeros(int(part), np.int64))
                    places.append(len(plain))
                    plain.append(advanced)
                    continue
            for array in arrays:
                extent = shape[axis]
                outside = (array < -extent) | (array >= extent)
                if outside.any():
                    first = array[outside].flat[0] if array.ndim else array[()]
                    raise IndexError(f"index {first} is out of bounds for axis {axis} with size {extent}")
                advanced.append(np.where(array < 0, array + extent, array).astype(np.int64) * strides[axis])
                places.append(len(plain))
                plain.append(advanced)
                axis += 1
    if len(advanced) >= _ARRAYS_MAX:
        raise IndexError(f"too many index arrays: {len(advanced)}; NumPy permits fewer than {_ARRAYS_MAX}")
    try:
        common = np.broadcast_shapes(*(array.shape for array in advanced))
    except ValueError:
        shapes = " ".join(str(array.shape) for array in advanced)
        raise IndexError(
            f"shape mismatch: indexing arrays could not be broadcast together with shapes {shapes}"
        ) from None
    starts = np.zeros(common, np.int64)
    for array in advanced:
        starts = starts + array
    # Adjacent index arrays keep the place of their axes in the result; others move their axes to the front.
    first = places[0] if places[-1] - places[0] == len(places) - 1 else 0
    before, after = (
        [one for one in part if one is not advanced and one is not Ellipsis] for part in (plain[:first], plain[first:])
    )
    ndim = len(before) + len(common) + len(after)
    whole = np.full((1,) * ndim, offset, np.int64)
    whole = whole + starts.reshape((1,) * len(before) + common + (1,) * len(after))
    for number, one in [*enumerate(before), *enumerate(after, len(before) + len(common))]:
        if one is not None:
            whole = whole + one.reshape((-1,) + (1,) * (ndim - number - 1))
    return whole
