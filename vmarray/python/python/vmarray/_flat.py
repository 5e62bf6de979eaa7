"""The iterator behind ``Array.flat``: all items of an array in C order, as one axis."""

from __future__ import annotations

import operator
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import numpy as np

from . import _ufuncs

if TYPE_CHECKING:
    from ._array import Array


class Flat:
    """The items of an array in C order, like ``numpy.flatiter``: reads are copies, and writes change the array.

    Examples
    --------
    >>> import vmarray as vm
    >>> a = vm.zeros((2, 3), int)
    >>> a.flat[1:5] = [7, 8]
    >>> a.flat[4], a
    (np.int64(8), Array([[0, 7, 8],
           [7, 8, 0]], dtype=int64))
    """

    __slots__ = ("_items", "base")

    def __init__(self, array: Array) -> None:
        #: The array.
        self.base = array
        self._items: Iterator[Any] | None = None

    def __len__(self) -> int:
        return self.base.size

    def __iter__(self) -> Iterator[Any]:
        for block in _ufuncs.blocks(self.base.shape):
            yield from np.asarray(self.base[(*block, ...)]).reshape(-1)

    def __next__(self) -> Any:
        self._items = self._items or iter(self)
        return next(self._items)

    def copy(self) -> Array:
        """A copy of the items, along one axis."""
        return self.base.flatten()

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray[Any, Any]:
        return np.asarray(self.base, dtype).reshape(-1)

    def _places(self, key: Any) -> Any:
        """The flat indices that a key selects: an integer, or an array of integers."""
        if isinstance(key, tuple) and len(key) == 1:
            (key,) = key
        if key is Ellipsis or (isinstance(key, tuple) and not key):
            key = slice(None)
        size = len(self)
        if isinstance(key, slice):
            return np.arange(*key.indices(size))
        if not isinstance(key, (int, np.integer)):
            key = np.asarray(key)
            if key.dtype == np.bool_:
                if key.shape != (size,):
                    raise IndexError(f"boolean index has shape {key.shape}, and there are {size} items")
                return np.flatnonzero(key)
            if key.size and key.dtype.kind not in "iu":
                raise IndexError("unsupported iterator index")
            key = key.astype(np.intp)
        outside = (np.asarray(key) < -size) | (np.asarray(key) >= size)
        if np.any(outside):
            raise IndexError(f"index {np.asarray(key)[outside].ravel()[0]} is out of bounds for size {size}")
        return (
            key % size
            if isinstance(key, np.ndarray) and size
            else key
            if isinstance(key, np.ndarray)
            else operator.index(key) % size
        )

    def __getitem__(self, key: Any) -> Any:
        places = self._places(key)
        if not self.base.ndim:
            return self.base.reshape(1)[places]
        found = self.base[np.unravel_index(places, self.base.shape)]
        from ._array import _options_like, asarray

        return asarray(found, **_options_like(self.base)) if np.ndim(found) else found

    def __setitem__(self, key: Any, value: Any) -> None:
        places = np.asarray(self._places(key))
        value = self.base._items(np.asarray(value) if hasattr(value, "dtype") else value).reshape(-1)
        if not value.size and places.size:
            raise ValueError("Error setting single item of array.")
        if places.size:
            # Repeat the values if there are too few, as NumPy does.
            values = np.resize(value, places.shape)
            target = self.base if self.base.ndim else self.base.reshape(1)
            target[np.unravel_index(places, target.shape)] = values if values.ndim else values[()]
