"""Index sets: sets of tuples of integers, and joins of two of them."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from . import _core
from ._array import Array, _checked

#: Number of tuples that an iterator computes at once.
_ITERATED = 1 << 14


def _indices(values: ArrayLike) -> NDArray[np.uint64]:
    given = np.asarray(values)
    if given.size and given.dtype.kind not in "ui":
        raise TypeError(f"indices must be integers, not items of dtype {given.dtype}; convert them by `astype(int)`")
    if given.dtype.kind == "i" and given.size and (least := int(given.min())) < 0:
        raise ValueError(f"index {least} is negative; count indices from 0")
    return np.ascontiguousarray(given, np.uint64)


class IndexSet:
    """A multiset of tuples of indices, all of one length, with a dimension as the label of each column.

    Tuples keep their order, and duplicates are kept. Labels are distinct integers from 0 to 2**32 - 1. Sets are in RAM
    and do not change; their files have the format of Rust's ``vmarray::IndexSet``.

    Parameters
    ----------
    columns : mapping of int to arrays of integers
        The indices of each dimension. The first index of each dimension belongs to the first tuple.

    Examples
    --------
    >>> import vmarray as vm
    >>> seen = vm.IndexSet({7: [1, 2, 2], 0: [10, 11, 12]})
    >>> named = vm.IndexSet.from_rows([0, 3], [[11, 5], [12, 6], [11, 5]])
    >>> seen.combine(named).rows()
    array([[ 2, 11,  5],
           [ 2, 11,  5],
           [ 2, 12,  6]], dtype=uint64)
    """

    __slots__ = ("_set",)
    _set: _core.Set

    def __init__(self, columns: Mapping[int, ArrayLike]) -> None:
        self._set = _core.Set.from_columns(list(columns), [_indices(column) for column in columns.values()])

    @classmethod
    def _of(cls, of: _core.Set) -> IndexSet:
        made = object.__new__(cls)
        made._set = of
        return made

    @classmethod
    def from_rows(cls, dimensions: Iterable[int], rows: ArrayLike) -> IndexSet:
        """Creates a set from the rows of an array of two axes. `dimensions` are the labels of the columns.

        Examples
        --------
        >>> import vmarray as vm
        >>> len(vm.IndexSet.from_rows([4, 2], [[1, 2], [3, 4], [5, 6]]))
        3
        """
        labels, given = list(dimensions), _indices(rows)
        if given.size == 0:
            given = given.reshape(0, len(labels))
        if not labels or given.ndim != 2 or given.shape[1] != len(labels):
            raise ValueError(
                f"an index set of {len(labels)} dimensions needs an array of shape (n, {len(labels)}), not "
                f"{given.shape}"
            )
        return cls._of(_core.Set.from_rows(labels, given))

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> IndexSet:
        """Reads a file that `save`, or a Rust program with ``vmarray::IndexSet``, has written."""
        path = os.fspath(path)
        if not os.path.exists(path):
            raise FileNotFoundError(f"there is no file {path}; create it by `IndexSet.save`")
        return cls._of(_core.Set.load(path))

    def save(self, path: str | os.PathLike[str]) -> None:
        """Writes the set to a file. The file gets its name when it is complete.

        Examples
        --------
        >>> import os, tempfile, vmarray as vm
        >>> path = os.path.join(tempfile.mkdtemp(), "pairs")
        >>> pairs = vm.IndexSet({0: [1, 2], 1: [3, 4]})
        >>> pairs.save(path)
        >>> vm.IndexSet.load(path) == pairs
        True
        """
        self._set.save(os.fspath(path))

    @property
    def dimensions(self) -> tuple[int, ...]:
        """The labels of the columns."""
        return self._set.dimensions

    def __len__(self) -> int:
        return len(self._set)

    def __eq__(self, other: object) -> bool:
        return self._set == other._set if isinstance(other, IndexSet) else NotImplemented

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return f"<vmarray.IndexSet of {len(self)} tuples of dimensions {self.dimensions}>"

    def __iter__(self) -> Iterator[tuple[int, ...]]:
        for rows in self.pieces(_ITERATED):
            yield from map(tuple, rows.tolist())

    def rows(self, start: int = 0, stop: int | None = None) -> NDArray[np.uint64]:
        """A copy of the tuples ``start`` to ``stop``, as the rows of an array."""
        start, stop, _ = slice(start, stop).indices(len(self))
        return self._set.rows(start, max(start, stop))

    def pieces(self, tuples: int) -> Iterator[NDArray[np.uint64]]:
        """Copies of at most `tuples` tuples each.

        Examples
        --------
        >>> import vmarray as vm
        >>> [piece.shape for piece in vm.IndexSet({5: range(7)}).pieces(3)]
        [(3, 1), (3, 1), (1, 1)]
        """
        if tuples < 1:
            raise ValueError(f"tuples={tuples} is less than 1; pass the maximum number of tuples in a piece")
        return (self.rows(start, start + tuples) for start in range(0, len(self), tuples))

    def column(self, dimension: int) -> NDArray[np.uint64]:
        """A copy of the indices of a dimension."""
        return self.project([dimension]).rows()[:, 0]

    def to_columns(self) -> dict[int, NDArray[np.uint64]]:
        """Copies of the indices of all dimensions, made by all threads.

        Examples
        --------
        >>> import vmarray as vm
        >>> vm.IndexSet.from_rows([8, 9], [[1, 2], [3, 4]]).to_columns()[9]
        array([2, 4], dtype=uint64)
        """
        return dict(zip(self.dimensions, self._set.columns()))

    def project(self, dimensions: Iterable[int]) -> IndexSet:
        """A set of the given columns, in this order, with the same number of tuples."""
        return self._of(self._set.project(list(dimensions)))

    def relabel(self, dimensions: Iterable[int]) -> IndexSet:
        """A set of the same tuples with other dimensions as labels of the columns."""
        return self._of(self._set.relabel(list(dimensions)))

    def sorted(self) -> IndexSet:
        """A set of the same tuples in ascending order, by the first column, then by the second, and so on."""
        return self._of(self._set.sorted(False))

    def unique(self) -> IndexSet:
        """A set of the distinct tuples in ascending order.

        Examples
        --------
        >>> import vmarray as vm
        >>> [*vm.IndexSet.from_rows([0, 1], [[2, 0], [1, 9], [2, 0]]).unique()]
        [(1, 9), (2, 0)]
        """
        return self._of(self._set.sorted(True))

    def group(self, dimensions: Iterable[int]) -> tuple[IndexSet, NDArray[np.int64]]:
        """The distinct tuples of some of the columns, in ascending order, and the number of times that each occurs.

        Examples
        --------
        >>> import vmarray as vm
        >>> keys, counts = vm.IndexSet.from_rows([0, 1], [[2, 0], [1, 9], [2, 3]]).group([0])
        >>> [*keys], counts
        ([(1,), (2,)], array([1, 2]))
        """
        ordered = self.project(dimensions).sorted()
        rows = ordered.rows()
        is_new = np.ones(len(rows), bool)
        is_new[1:] = (rows[1:] != rows[:-1]).any(axis=1)
        starts = np.flatnonzero(is_new)
        return IndexSet.from_rows(ordered.dimensions, rows[starts]), np.diff(starts, append=len(rows))

    def combine(self, other: IndexSet) -> IndexSet:
        """Computes the natural join: merges each pair of tuples with equal indices in the common dimensions.

        The result has all dimensions of this set, followed by the dimensions that only `other` has. Results are in the
        order of two nested loops, over this set and over `other`. The method groups `other` in RAM, so pass the smaller
        set as `other`.
        """
        return self._of(self._set.combine(other._set, False))

    def product(self, other: IndexSet) -> IndexSet:
        """Computes the product of two sets without a common dimension: all pairs of tuples.

        Examples
        --------
        >>> import vmarray as vm
        >>> [*vm.IndexSet({0: [1, 2]}).product(vm.IndexSet({1: [3, 4]}))]
        [(1, 3), (1, 4), (2, 3), (2, 4)]
        """
        return self._of(self._set.combine(other._set, True))

    def combine_count(self, other: IndexSet) -> int:
        """Number of results of `combine`; counts them without storing any."""
        return self._set.count(other._set, False)

    def combine_pieces(self, other: IndexSet, tuples: int = 1 << 20) -> Iterator[IndexSet]:
        """Iterates over the results of `combine` in pieces of at most `tuples` tuples. While the program uses a piece,
        a thread computes the next one.

        Examples
        --------
        >>> import vmarray as vm
        >>> many = vm.IndexSet({0: [5] * 1000})
        >>> sum(len(piece) for piece in many.combine_pieces(many, tuples=30_000))
        1000000
        """
        if tuples < 1:
            raise ValueError(f"tuples={tuples} is less than 1; pass the maximum number of tuples in a piece")
        return map(self._of, self._set.combine_in_parts(other._set, False, tuples))

    def combine_to_array(self, other: IndexSet, **options: Any) -> tuple[tuple[int, ...], Array]:
        """Computes the natural join like `combine`, and stores the results as the rows of an array on devices. Returns
        the dimensions of the results, and the array. See `empty` for the options.

        The results need not fit into RAM.

        Examples
        --------
        >>> import vmarray as vm
        >>> many = vm.IndexSet({0: [5] * 1000})
        >>> dimensions, rows = many.combine_to_array(many, cache_bytes=1 << 20)
        >>> dimensions, rows.shape, bool((rows == 5).all())
        ((0,), (1000000, 1), True)
        """
        dimensions, core = self._set.combine_to_array(other._set, False, _checked(options))
        return tuple(dimensions), Array._of(core)
