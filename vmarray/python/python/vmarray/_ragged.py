"""Ragged arrays: rows of different lengths, stored one after the other in one array."""

from __future__ import annotations

import itertools
import operator
import os
from collections.abc import Iterable, Iterator
from typing import Any, overload

import numpy as np
from numpy.typing import ArrayLike, DTypeLike, NDArray

from . import _array, _mapped
from ._array import Array
from ._errors import Error, InvalidError

#: Numbers of items, and of ends of rows, of one read or write.
_ITEMS = 1 << 20
_ROWS = 1 << 16
#: For how many items there is room: as many as the devices have.
_MOST = 2**64 - 1


def _growing(dtype: DTypeLike, options: dict[str, Any]) -> Array:
    """An empty array that can grow: up to `max_len` if given, else to any length if the devices support that."""
    if "max_len" in options:
        return _array.empty(0, dtype, **options)
    try:
        return _array.empty(0, dtype, max_len=_MOST, **options)
    except Error:
        return _array.empty(0, dtype, **options)


class Ragged:
    """Rows of different lengths, one after the other in one array.

    A second array stores the end of each row, so there may be more rows than fit into RAM. The lengths of rows are
    fixed. The program can change items, and add rows behind the last one.

    Parameters
    ----------
    rows : iterable of arrays
        The rows, each of one axis.
    dtype : data type, optional
        Dtype of the items; the dtype of the first row by default.
    **options
        Options of `empty`, for both arrays. ``max_len`` is the maximum number of items; by default the capacity of
        the devices. On OpenCL devices, set it if the program adds rows later.

    Attributes
    ----------
    values : Array
        The items of all rows, for operations that ignore rows: expressions, searches, sums.
    ends : Array
        End of each row in `values`, where the next row begins.

    Examples
    --------
    >>> import numpy as np, vmarray as vm
    >>> rows = vm.Ragged([[3, 1], [], [4, 1, 5]])
    >>> rows.append([9, 2])
    >>> len(rows), rows[2], rows.row_of(5)
    (4, Array([4, 1, 5], dtype=int64), np.int64(3))
    >>> rows[2][:] *= 2
    >>> [int(row.sum()) for row in rows], rows.values.max()
    ([4, 0, 20, 11], np.int64(10))
    """

    __slots__ = ("_first", "_stop", "ends", "values")
    values: Array
    ends: Array
    _first: int
    #: Index after the last row of a view of some rows, which cannot grow; otherwise None.
    _stop: int | None

    def __init__(self, rows: Iterable[ArrayLike] = (), dtype: DTypeLike | None = None, **options: Any) -> None:
        iterator = iter(rows)
        first = next(iterator, None)
        if dtype is None:
            dtype = float if first is None else np.asarray(first).dtype
        self.values, self.ends = _growing(dtype, options), _growing(np.int64, options)
        self._first, self._stop = 0, None
        if first is not None:
            self.extend(itertools.chain([first], iterator))

    @classmethod
    def _of(cls, values: Array, ends: Array, first: int = 0, stop: int | None = None) -> Ragged:
        made = object.__new__(cls)
        made.values, made.ends, made._first, made._stop = values, ends, first, stop
        return made

    @classmethod
    def from_lengths(cls, values: ArrayLike | Array, lengths: ArrayLike, **options: Any) -> Ragged:
        """Divides consecutive items into rows of these lengths; see `Ragged` for the options.

        Examples
        --------
        >>> import vmarray as vm
        >>> [row.tolist() for row in vm.Ragged.from_lengths(range(6), [1, 0, 5])]
        [[0], [], [1, 2, 3, 4, 5]]
        """
        given = values if isinstance(values, Array) else np.asarray(values)
        counts = np.asarray(lengths)
        if counts.size and (counts.dtype.kind not in "ui" or counts.min() < 0):
            raise ValueError("lengths must be integers of at least 0")
        if given.ndim != 1 or counts.ndim != 1 or int(counts.sum()) != given.size:
            raise ValueError(
                f"lengths and items must have one axis, and the sum of the lengths must be {given.size}, the number of "
                "items"
            )
        made = cls((), given.dtype, **options)
        for start in range(0, given.size, _ITEMS):
            made.values.append(np.asarray(given[start : start + _ITEMS]))
        made.ends.append(np.cumsum(counts, dtype=np.int64))
        return made

    @classmethod
    def create(cls, path: str | os.PathLike[str], dtype: DTypeLike = float, **options: Any) -> Ragged:
        """Creates persistent rows in two new files in a new folder; see `vmarray.create`. `open` reads them after a
        restart.

        Examples
        --------
        >>> import os, tempfile, numpy as np, vmarray as vm
        >>> path = os.path.join(tempfile.mkdtemp(), "words")
        >>> with vm.Ragged.create(path, "u1") as words:
        ...     words.extend([list(b"many"), list(b"words")])
        >>> bytes(np.asarray(vm.Ragged.open(path, "u1")[1]))
        b'words'
        """
        os.mkdir(path)
        values = _array.create(os.path.join(path, "values"), 0, dtype, **options)
        return cls._of(values, _array.create(os.path.join(path, "ends"), 0, np.int64, **options))

    @classmethod
    def open(cls, path: str | os.PathLike[str], dtype: DTypeLike = float, mode: str = "r+", **options: Any) -> Ragged:
        """Opens rows of the same dtype that `create` has created; see `vmarray.open`."""
        values = _mapped.open(os.path.join(path, "values"), dtype, mode=mode, **options)
        return cls._of(values, _mapped.open(os.path.join(path, "ends"), np.int64, mode=mode, **options))

    @property
    def dtype(self) -> np.dtype[Any]:
        """The type of the items."""
        return self.values.dtype

    def __len__(self) -> int:
        return (len(self.ends) if self._stop is None else self._stop) - self._first

    def __repr__(self) -> str:
        return f"<vmarray.Ragged of {len(self)} rows, dtype={self.dtype}>"

    def _end(self, rows: int) -> int:
        """The index in `values` at which the first `rows` rows end."""
        return int(self.ends[rows - 1]) if rows else 0

    def _ends(self, first: int, stop: int) -> NDArray[np.int64]:
        """The starts of the rows from `first` to below `stop`, and the end of the last of these rows."""
        if first:
            return np.asarray(self.ends[first - 1 : stop])
        return np.concatenate([np.zeros(1, np.int64), np.asarray(self.ends[:stop])])

    def lengths(self) -> NDArray[np.int64]:
        """Number of items in each row, as a NumPy array."""
        return np.diff(self._ends(self._first, self._first + len(self)))

    @overload
    def __getitem__(self, key: int) -> Array: ...
    @overload
    def __getitem__(self, key: slice | ArrayLike) -> Ragged: ...
    def __getitem__(self, key: Any) -> Any:
        """Returns one or several rows. An integer returns a row as a view, which shares memory. A slice returns rows
        that share memory. An array of integers returns copies of rows.
        """
        if isinstance(key, slice):
            start, stop, step = key.indices(len(self))
            if step == 1:
                return self._of(self.values, self.ends, self._first + start, self._first + max(start, stop))
            return self._taken(np.arange(start, stop, step))
        if np.ndim(key):
            return self._taken(np.asarray(key))
        row = operator.index(key)
        if not -len(self) <= row < len(self):
            raise IndexError(f"row {row} is out of bounds for {len(self)} rows")
        row += self._first + (len(self) if row < 0 else 0)
        start, end = self._ends(row, row + 1)
        return self.values[int(start) : int(end)]

    def __setitem__(self, key: int, value: Any) -> None:
        self[key][:] = value

    def _taken(self, rows: NDArray[Any]) -> Ragged:
        """Copies of the given rows; one list of indices gathers all items."""
        if rows.size and (rows.dtype.kind not in "ui" or rows.ndim != 1):
            raise IndexError("the index of rows must be an integer, a slice, or integers along one axis")
        rows = rows.astype(np.int64)
        if rows.size and not (-len(self) <= rows.min() and rows.max() < len(self)):
            raise IndexError(f"an index of a row is out of bounds for {len(self)} rows")
        rows = self._first + np.where(rows < 0, rows + len(self), rows)
        ends = np.asarray(self.ends[rows]) if rows.size else rows
        starts = np.where(rows > 0, np.asarray(self.ends[np.maximum(rows - 1, 0)]), 0) if rows.size else rows
        counts = ends - starts
        places = np.arange(counts.sum()) + np.repeat(starts - np.cumsum(counts) + counts, counts)
        return Ragged.from_lengths(self.values[places], counts, devices=self.values.devices)

    def __iter__(self) -> Iterator[NDArray[Any]]:
        for first in range(self._first, self._first + len(self), _ROWS):
            ends = self._ends(first, min(first + _ROWS, self._first + len(self)))
            row = 0
            while row < len(ends) - 1:
                # Read several rows at once, up to `_ITEMS` items; a longer row alone.
                stop = max(int(np.searchsorted(ends, ends[row] + _ITEMS, "right")) - 1, row + 1)
                items = np.asarray(self.values[int(ends[row]) : int(ends[stop])])
                yield from np.split(items, ends[row + 1 : stop] - ends[row])
                row = stop

    def row_of(self, items: ArrayLike) -> Any:
        """The numbers of the rows that contain these items. Items are numbered as in `values`.

        Examples
        --------
        >>> import vmarray as vm
        >>> rows = vm.Ragged([[3, 1], [], [4, 1, 5]])
        >>> rows.row_of((rows.values == 1).find())
        array([0, 2])
        """
        numbers = np.asarray(items)
        if numbers.size and not (0 <= numbers.min() and numbers.max() < self._end(len(self.ends))):
            raise IndexError("an item is out of bounds: it is in no row")
        return np.asarray(self.ends.searchsorted(numbers, "right"))[()] - self._first

    def append(self, row: ArrayLike) -> None:
        """Adds a row after the last row."""
        self.extend([row])

    def extend(self, rows: Iterable[ArrayLike]) -> None:
        """Adds rows after the last row, some thousands at a time.

        Examples
        --------
        >>> import vmarray as vm
        >>> rows = vm.Ragged(dtype="f4")
        >>> rows.extend([1.5] * n for n in range(1000))
        >>> len(rows), rows.values.sum()
        (1000, np.float32(749250.0))
        """
        if self._stop is not None:
            raise InvalidError("this object shows only some rows, and cannot grow; append to the object with all rows")
        batch, items = [], 0
        for row in rows:
            given = np.asarray(row)
            if given.ndim != 1:
                raise ValueError(f"a row must have one axis, not {given.ndim}")
            if not hasattr(row, "dtype") and (given.size == 0 or {given.dtype.kind, self.dtype.kind} <= set("iu")):
                # Convert to the array's dtype: an empty list has no dtype, and NumPy checks the range of integers.
                given = np.asarray(row, self.dtype)
            batch.append(given.astype(self.dtype, casting="same_kind"))
            items += given.size
            if items >= _ITEMS or len(batch) >= _ROWS:
                self._push(batch)
                batch, items = [], 0
        if batch:
            self._push(batch)

    def _push(self, rows: list[NDArray[Any]]) -> None:
        items, last = np.concatenate(rows), self._end(len(self.ends))
        # Overwrite the items that an interrupted append left after the last row.
        spare = min(len(self.values) - last, len(items))
        if spare:
            self.values[last : last + spare] = items[:spare]
        if spare < len(items):
            self.values.append(items[spare:])
        self.ends.append(last + np.cumsum([len(row) for row in rows], dtype=np.int64))

    def sync(self) -> None:
        """Makes all written rows in files durable, even if the power fails. Blocks until they are durable."""
        # Sync the items before the ends, so that after a crash no row lacks its items.
        self.values.sync()
        self.ends.sync()

    def close(self) -> None:
        """Frees the memory of the rows, and closes their files."""
        self.values.close()
        self.ends.close()

    def __enter__(self) -> Ragged:
        return self

    def __exit__(self, kind: Any, *_: object) -> None:
        if self.values._path is not None and kind is None and not self.values.closed:
            self.sync()
        self.close()
