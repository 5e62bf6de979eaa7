"""Sorts, searches, ``unique``, group-by and histograms. Devices compute them for numbers along one axis. NumPy computes
all other cases in RAM, which must hold a line of items along the axis."""

from __future__ import annotations

import functools
import operator
from typing import Any, NamedTuple

import numpy as np

from . import _array, _core, _ufuncs
from ._array import Array
from ._dispatch import NotOnDevices, is_small
from ._functions import lines, where_of

#: The most bins that devices count at once.
_BINS = 4096


def _has_order(array: Array) -> bool:
    """True if devices sort items of the array's dtype."""
    return _ufuncs.is_computed(array.dtype) and array.dtype not in (np.bool_, np.float16)


def _as_key(array: Array) -> Array:
    """Converts items so that devices sort them in NumPy's order: all zeroes equal, all NaNs equal and last."""
    if array.dtype.kind != "f":
        return array
    nan = np.asarray(np.nan, array.dtype)
    return where_of(np.isnan(array), nan, array + np.zeros((), array.dtype))


def _places(core: Any) -> Array:
    """Converts indices from devices to NumPy's dtype of indices."""
    return Array._of(core).view(np.intp)


def _flat(array: Any) -> Array:
    array = _array.asarray(array)
    return array if array.ndim == 1 else array.reshape(-1)


def _nth(array: Array, places: list[int]) -> np.ndarray[Any, Any]:
    """The items that a sort would move to the indices `places`, in an array of one axis."""
    found = _core.nth(array._core, places)
    if found is None:
        # `_core.nth` needs contiguous items, so copy the items and try again.
        found = _core.nth(array.copy()._core, places)
    if found is None:
        raise NotOnDevices
    return found


def argsort(array: Array, axis: Any = -1, kind: Any = None, order: Any = None, *, stable: Any = None) -> Array:
    """The indices that would sort an array, like a stable ``numpy.argsort``.

    Examples
    --------
    >>> import vmarray as vm
    >>> vm.argsort(vm.array([30, 10, 20]))
    Array([1, 2, 0], dtype=int64)
    """
    if order is not None or kind not in (None, "quicksort", "mergesort", "heapsort", "stable"):
        raise NotOnDevices
    if kind is not None and stable is not None:
        raise NotOnDevices
    array = _array.asarray(array)
    if axis is None:
        return argsort(array.reshape(-1))
    if array.ndim == 1 and axis in (-1, 0) and _has_order(array):
        core = _core.argsort(_as_key(array)._core)
        if core is not None:
            return _places(core)
    if not array.ndim:
        return _array.asarray(np.argsort(np.asarray(array), axis), **_array._options_like(array))
    return lines(lambda part, own: np.argsort(part, own, kind="stable"), array, axis, np.intp)


def searchsorted(sorted_array: Any, values: Any, side: str = "left", sorter: Any = None) -> Any:
    """Indices of values in a sorted array, like ``numpy.searchsorted``.

    Examples
    --------
    >>> import vmarray as vm
    >>> vm.searchsorted(vm.array([1, 3, 5]), [0, 3, 9])
    Array([0, 1, 3], dtype=int64)
    """
    if side not in ("left", "right"):
        raise ValueError(f"side must be 'left' or 'right', not {side!r}")
    like = _array._options_like(sorted_array, values)
    sorted_array = _array.asarray(sorted_array, **like)
    if not hasattr(values, "dtype"):
        values = np.asarray(values)
    if values.dtype.kind not in "biuf":
        raise NotOnDevices
    if sorted_array.ndim != 1:
        raise ValueError(
            "object too deep for desired array" if sorted_array.ndim else "an array of one axis is searched"
        )
    if sorter is not None:
        sorted_array = take(sorted_array, sorter)
    kind = np.result_type(sorted_array.dtype, values.dtype if hasattr(values, "dtype") else np.asarray(values).dtype)
    is_one = np.ndim(values) == 0
    values = _array.asarray(np.reshape(values, 1) if is_one else values, **like).astype(kind, copy=False)
    sorted_array = sorted_array.astype(kind, copy=False)
    core = None
    if _has_order(values):
        core = _core.search(_as_key(_flat(values))._core, _as_key(sorted_array)._core, side == "right")
    if core is not None:
        found = _places(core).reshape(values.shape)
    else:
        among = np.asarray(sorted_array)
        found = _ufuncs.by_pieces(
            lambda part: np.searchsorted(among, part, side), [values], values.shape, (np.dtype(np.intp),)
        )[0]
    return np.intp(found.item()) if is_one else found


def take(array: Any, indices: Any, axis: int | None = None, out: Any = None, mode: str = "raise") -> Any:
    """The items at `indices`, like ``numpy.take``. An array of NumPy is first copied to the devices of the indices.

    Examples
    --------
    >>> import vmarray as vm
    >>> vm.take(vm.arange(10) ** 2, [3, -1])
    Array([ 9, 81], dtype=int64)
    """
    if out is not None:
        raise NotOnDevices
    array = _array.asarray(array, **_array._options_like(indices))
    if not hasattr(indices, "dtype"):
        # Convert Python's numbers to indices by NumPy's unsafe rule.
        indices = np.array(indices, np.intp)
    if not array.ndim or (axis is None and array.ndim != 1):
        array = array.reshape(-1)
    own = operator.index(axis or 0)
    if not -array.ndim <= own < array.ndim:
        raise np.exceptions.AxisError(own, array.ndim)
    extent, shape = array.shape[own], np.shape(indices)
    kind = indices.dtype
    if kind.kind not in "iub":
        raise TypeError(f"Cannot cast array data from {kind!r} to {np.dtype(np.intp)!r} according to the rule 'safe'")
    rest = (array.shape[: own % array.ndim], array.shape[own % array.ndim + 1 :])
    is_empty = not np.size(indices) or 0 in (*rest[0], *rest[1])
    if not extent and not is_empty:
        raise IndexError("cannot do a non-empty take from an empty axes.")
    if is_empty and (not extent or not np.size(indices)):
        return _array.zeros((*rest[0], *shape, *rest[1]), array.dtype, **_array._options_like(array))
    if not shape:
        index = operator.index(np.asarray(indices)[()])
        index = index % extent if mode == "wrap" else min(max(index, 0), extent - 1) if mode == "clip" else index
        found = array[(slice(None),) * (own % array.ndim) + (index,)]
        return found.copy() if isinstance(found, Array) else found
    indices = _array.asarray(indices, **_array._options_like(array)).astype(np.intp, copy=False)
    if mode == "wrap":
        indices = indices % extent
    elif mode == "clip":
        indices = indices.clip(0, extent - 1)
    elif mode == "raise":
        outside = (indices < -extent) | (indices >= extent)
        if outside.any():
            first = np.asarray(indices.reshape(-1)[int(outside.reshape(-1).argmax())])
            raise IndexError(f"index {first} is out of bounds for axis {own % array.ndim} with size {extent}")
        indices = where_of(indices < 0, indices + extent, indices)
    else:
        raise ValueError(f"mode must be 'raise', 'wrap' or 'clip', not {mode!r}")
    if array.ndim == 1:
        places = indices.astype(np.uint64).reshape(-1).compute()
        core = _core.take(array._core, places._core)
        if core is not None:
            return Array._of(core).reshape(shape)
    key = (slice(None),) * (own % array.ndim) + (np.asarray(indices),)
    return _array.asarray(array[key], **_array._options_like(array))


class UniqueResult(NamedTuple):
    """Result of `unique`: the distinct values, and each optional result, or None if not requested."""

    values: Array
    indices: Array | None
    inverse_indices: Array | None
    counts: Array | None


def _uniques(array: Array, wants_index: bool, wants_inverse: bool, wants_counts: bool) -> UniqueResult:
    flat = _flat(array)
    key = _as_key(flat).compute() if _has_order(flat) else None
    core = _core.unique(key._core) if key is not None else None
    if core is None:
        whole = np.unique(np.asarray(flat), True, True, True)
        values, index, inverse, counts = (_array.asarray(one, **_array._options_like(array)) for one in whole)
        return UniqueResult(values, index, inverse.reshape(array.shape), counts)
    values, index, inverse, counts = Array._of(core), None, None, None
    if wants_inverse:
        inverse = _places(_core.search(key._core, core, False)).reshape(array.shape)
    if wants_index or wants_counts:
        order = _core.argsort(key._core)
        ordered = _core.take(key._core, order)
        starts = _core.search(core, ordered, False)
        index = _places(_core.take(order, starts))
        counts = (Array._of(_core.search(core, ordered, True)) - Array._of(starts)).astype(np.intp)
    if flat.dtype.kind == "f" and len(zero := (values == 0).find(1)):
        # In `key` all zeroes have one sign. Give the zero in the result the sign of the first zero in the array.
        values[int(zero[0])] = flat[int((flat == 0).find(1)[0])]
    return UniqueResult(values, index, inverse, counts)


def unique(
    array: Any,
    return_index: bool = False,
    return_inverse: bool = False,
    return_counts: bool = False,
    axis: Any = None,
    *,
    equal_nan: bool = True,
    sorted: bool = True,
) -> Any:
    """The distinct items, in ascending order, like ``numpy.unique``.

    Examples
    --------
    >>> import vmarray as vm
    >>> vm.unique(vm.array([3, 1, 3, 2]), return_counts=True)
    (Array([1, 2, 3], dtype=int64), Array([1, 1, 2], dtype=int64))
    """
    array = _array.asarray(array)
    if axis not in (None, 0, -1) or (axis is not None and array.ndim != 1):
        raise NotOnDevices
    if not equal_nan and array.dtype.kind in "fc" and bool(np.isnan(array).any()):
        raise NotOnDevices
    found = _uniques(array, return_index, return_inverse, return_counts)
    asked = (return_index, return_inverse, return_counts)
    results = (found.values, *(one for one, is_asked in zip(found[1:], asked) if is_asked))
    return results if len(results) > 1 else results[0]


class Groups:
    """Items grouped by their key, from `group_by`. The groups are in ascending order of the keys.

    Examples
    --------
    >>> import vmarray as vm
    >>> groups = vm.group_by(vm.array([20, 10, 20]))
    >>> groups.keys, groups.counts, groups.sum([1, 2, 3])
    (Array([10, 20], dtype=int64), Array([1, 2], dtype=int64), Array([2, 4], dtype=int64))
    """

    def __init__(self, keys: Any) -> None:
        keys = _array.asarray(keys)
        if keys.ndim != 1:
            raise ValueError(f"keys must have one axis, not {keys.ndim}")
        # Map the keys to 64-bit numbers in the order of the keys, because devices group only such numbers.
        if keys.dtype.kind in "bu":
            numbers = keys.astype(np.uint64, copy=False)
        elif keys.dtype.kind == "i" and keys.dtype.isnative:
            numbers = keys.astype(np.int64, copy=False)
        else:
            uniques = _uniques(keys, False, True, False)
            numbers = uniques.inverse_indices.astype(np.uint64)
        self._len, self._grouped = len(keys), _core.grouped(numbers._core)
        #: Where in `order` each group begins, and where the last one ends.
        self.starts: Array = _places(self._grouped.starts())
        of_groups = Array._of(self._grouped.keys())
        if numbers.dtype.kind == "i":
            of_groups = (of_groups ^ np.uint64(2**63)).astype(np.int64)
        elif keys.dtype.kind not in "bu":
            of_groups = uniques.values
        #: The key of each group.
        self.keys: Array = of_groups.astype(keys.dtype, copy=False)

    def __len__(self) -> int:
        return len(self.keys)

    def __repr__(self) -> str:
        return f"<vmarray.Groups of {self._len} items, {len(self)} keys of dtype {self.keys.dtype}>"

    @functools.cached_property
    def order(self) -> Array:
        """The indices of items, group by group. The first access copies them to an array."""
        return _places(self._grouped.order())

    @property
    def counts(self) -> Array:
        """Number of items in each group."""
        return self.starts[1:] - self.starts[:-1]

    def _reduced(self, values: Any, what: str, ufunc: np.ufunc) -> Array:
        values = _array.asarray(values, **_array._options_like(self.starts))
        if values.shape != (self._len,):
            raise ValueError(f"values must have the shape {(self._len,)} of the keys, not {values.shape}")
        if what != "sum" and values.dtype.kind == "f":
            # Devices ignore NaNs in minima and maxima, unlike NumPy. So use devices only without NaNs.
            is_whole = values._core.reduce("first_nan") is None
        else:
            is_whole = True
        own = values.astype(np.int64) if values.dtype == np.bool_ and what == "sum" else values
        core = self._grouped.reduced(own._core, what) if is_whole and _has_order(own) else None
        if core is not None:
            return Array._of(core)
        # Reduce groups by NumPy, so RAM must hold the items of each group.
        kind = ufunc.reduce(np.empty(1, values.dtype)).dtype
        result, starts, first = (
            _array._result((len(self),), kind, **_array._options_like(self.starts)),
            np.asarray(self.starts),
            0,
        )
        while first < len(self):
            end = max(first + 1, int(np.searchsorted(starts, starts[first] + _ufuncs.PIECE, "right")) - 1)
            part = np.asarray(take(values, self.order[int(starts[first]) : int(starts[end])]))
            result[first:end] = ufunc.reduceat(part, starts[first:end] - starts[first])
            first = end
        return result

    def sum(self, values: Any) -> Array:
        """The sum of the values of each group. Integers have 64 bits and wrap; floats are added in 64 bits."""
        return self._reduced(values, "sum", np.add)

    def min(self, values: Any) -> Array:
        """The least value of each group; NaN if a value of the group is NaN."""
        return self._reduced(values, "min", np.minimum)

    def max(self, values: Any) -> Array:
        """The greatest value of each group; NaN if a value of the group is NaN."""
        return self._reduced(values, "max", np.maximum)

    def mean(self, values: Any) -> Array:
        """The mean of the values of each group."""
        return self.sum(values) / self.counts


def group_by(keys: Any) -> Groups:
    """Groups items by their keys, with one sort on the devices; see `Groups`.

    Examples
    --------
    >>> import vmarray as vm
    >>> city, income = vm.array([2, 1, 2, 2]), vm.array([10.0, 20.0, 30.0, 50.0])
    >>> vm.group_by(city).mean(income)
    Array([20., 30.], dtype=float64)
    """
    return Groups(keys)


def bincount(array: Any, weights: Any = None, minlength: int = 0) -> Any:
    """Counts how often each number occurs among the items, like ``numpy.bincount``."""
    array = _array.asarray(array)
    if array.ndim != 1:
        raise ValueError("object too deep for desired array" if array.ndim else "object of too small depth")
    # Let NumPy raise its error for a dtype that `bincount` does not support.
    np.bincount(np.zeros(1, array.dtype))
    if weights is not None:
        weights = weights if isinstance(weights, Array) else np.asarray(weights)
        if weights.shape != array.shape:
            raise ValueError("The weights and list don't have the same length.")
        if not np.can_cast(weights.dtype, float):
            raise TypeError(f"Cannot cast array data from {weights.dtype!r} to dtype('float64') by the rule 'safe'")
    if minlength < 0:
        raise ValueError("'minlength' must not be negative")
    least, most = (array.min(), array.max()) if array.size else (0, -1)
    if least < 0:
        raise ValueError("'list' argument must have no negative elements")
    count = max(int(most) + 1, minlength)
    if weights is None and 0 < count <= _BINS and array.dtype.isnative:
        counts = _core.histogram(array._core, count, (-0.5, count - 0.5), 1.0, "double") if array.size else [0] * count
        return np.asarray(counts, np.intp)
    result = np.zeros(count, np.intp if weights is None else float)
    for block in _ufuncs.blocks(array.shape):
        part = np.asarray(array[block]).astype(np.intp)
        result += np.bincount(part, None if weights is None else np.asarray(weights[block]), count)
    return result


def _precision(edges: np.ndarray[Any, Any], step: float) -> str | None:
    """The precision in which devices compute NumPy's bin edges exactly; None if there is none."""
    numbers, first = np.arange(len(edges) - 1), edges[0]
    ways = {"double": numbers * step + np.float64(first)}
    ways["rounded"] = ways["double"].astype(np.float32)
    ways["single"] = numbers.astype(np.float32) * np.float32(step) + np.float32(first)
    return next((way for way, own in ways.items() if np.array_equal(own, edges[:-1])), None)


def histogram(
    array: Any, bins: Any = 10, range: Any = None, density: Any = None, weights: Any = None
) -> tuple[Any, ...]:
    """Histogram of an array, as ``numpy.histogram``: the number of items in each bin, and the edges of the bins, as
    NumPy arrays.

    The devices count up to 4096 bins of equal width, in one pass. NumPy counts all other histograms, piece by piece.

    Examples
    --------
    >>> import vmarray as vm
    >>> vm.histogram(vm.arange(100), bins=4, range=(0, 100))
    (array([25, 25, 25, 25]), array([  0.,  25.,  50.,  75., 100.]))
    """
    if weights is not None and np.shape(weights) != np.shape(array):
        raise ValueError("weights should have the same shape as a.")
    array = _flat(array)
    if isinstance(bins, str) or array.dtype == np.bool_:
        raise NotOnDevices
    if weights is not None:
        weights = weights.reshape(-1) if isinstance(weights, Array) else np.reshape(weights, -1)
    if np.ndim(bins) == 0 and range is None and array.size:
        range = (array.min(), array.max())
    sample = np.empty(0, array.dtype)
    edges = np.histogram_bin_edges(sample, bins, range) if np.ndim(bins) == 0 and array.size else None
    if edges is None:
        edges = np.histogram_bin_edges(sample, bins if np.ndim(bins) == 0 else np.asarray(bins), range)
    counts = None
    count = len(edges) - 1
    is_counted = array.dtype.kind != "b" and _ufuncs.is_computed(array.dtype)
    if np.ndim(bins) == 0 and weights is None and count <= _BINS and is_counted:
        step = float((edges.dtype.type(edges[-1]) - edges[0]) / edges.dtype.type(count)) if count else 0.0
        wide = (float(edges[-1]) - float(edges[0])) / max(count, 1)
        for one in (wide, step):
            way = _precision(edges, one) if array.dtype != np.float16 and array.size else None
            if way is not None and counts is None:
                limits = (float(edges[0]), float(edges[-1]))
                counts = np.asarray(_core.histogram(array._core, count, limits, one, way), np.intp)
    if counts is None:
        # Pass the bins as the caller wrote them: NumPy finds an item's bin by a division if the caller gave a number of
        # bins, and by a search if the caller gave edges. The results can differ by rounding.
        way = {"bins": bins, "range": range} if np.ndim(bins) == 0 else {"bins": edges}
        few = None if weights is None else np.empty(0, weights.dtype)
        counts = np.zeros(count, np.histogram(sample, weights=few, **way)[0].dtype)
        for block in _ufuncs.blocks(array.shape):
            part = None if weights is None else np.asarray(weights[block])
            counts += np.histogram(np.asarray(array[block]), weights=part, **way)[0]
    if density:
        return counts / np.diff(edges).astype(float) / counts.sum(), edges
    return counts, edges


#: For a share of the way between two items, which of these is taken: of ``numpy.quantile``.
_BETWEEN = {
    "linear": lambda share: share,
    "lower": lambda share: share * 0,
    "higher": lambda share: np.ceil(share),
    "midpoint": lambda share: np.where(share > 0, 0.5, 0.0),
}
#: True if NumPy keeps a share that is a number of Python; older versions round it to the dtype of the array.
_KEEPS_SHARES = bool(np.quantile(np.arange(11, dtype="f4"), 0.3 - 1e-9, method="lower") == 2)


def quantile(
    array: Any, q: Any, axis: Any = None, out: Any = None, method: str = "linear", keepdims: bool = False
) -> Any:
    """Quantiles, as ``numpy.quantile``. The devices find quantiles of all items without a sort, each in three to six
    passes.

    Examples
    --------
    >>> import vmarray as vm
    >>> vm.quantile(vm.arange(101), [0.25, 0.9])
    array([25., 90.])
    """
    array = _array.asarray(array)
    is_rounded = array.dtype.kind == "f" and isinstance(q, (int, float)) and not _KEEPS_SHARES
    shares = np.asarray(q, array.dtype if is_rounded else None)
    if shares.dtype.kind not in "iuf" or array.dtype.kind not in "iuf":
        raise NotOnDevices
    if ((shares < 0) | (shares > 1)).any():
        raise ValueError("Quantiles must be in the range [0, 1]")
    is_by_devices = axis is None and out is None and method in _BETWEEN and _has_order(array) and array.size
    if not is_by_devices:
        if axis is None or out is not None or np.ndim(q) or not isinstance(axis, (int, np.integer)):
            raise NotOnDevices
        kind = np.quantile(np.zeros(1, array.dtype), q, method=method).dtype
        return lines(
            lambda part, own: np.quantile(part, q, own, method=method, keepdims=True), array, axis, kind, keepdims
        )
    if is_small(array):
        return np.quantile(np.asarray(array), q, method=method, keepdims=keepdims)
    whole = np.quantile(np.zeros(2, array.dtype), q, method=method)
    if array.dtype.kind == "f" and array._core.reduce("first_nan") is not None:
        result = np.full(shares.shape, np.nan, whole.dtype)
    else:
        at = shares.astype(_place_kind(shares.dtype, array.size)) * (array.size - 1)
        below = np.floor(at).astype(np.intp)
        above = np.minimum(below + 1, array.size - 1)
        places, inverse = np.unique([below, above], return_inverse=True)
        items = _nth(_flat(array), places.tolist())[inverse.reshape(2, *shares.shape)]
        share = _BETWEEN[method](at - below)
        is_weak = _KEEPS_SHARES and type(q) in (int, float)
        share = float(share) if is_weak else share.astype(whole.dtype if whole.dtype.kind == "f" else float)
        if method in ("lower", "higher"):
            result = np.where(share > 0, items[1], items[0])
        elif whole.dtype.kind in "iu":
            # Return the item without interpolation, because a float would round integers of 64 bits.
            result = items[0]
        else:
            # Subtract floats in their own dtype, as NumPy does, and integers as floats, to avoid an overflow.
            step = np.subtract(items[1], items[0], dtype=array.dtype if array.dtype.kind == "f" else whole.dtype)
            result = np.where(share < 0.5, items[0] + step * share, items[1] - step * (1 - share))
        result = result.astype(whole.dtype)
    if keepdims:
        result = result.reshape(*shares.shape, *(1,) * array.ndim)
    return result if result.ndim else result[()]


def _place_kind(shares: np.dtype[Any], size: int) -> np.dtype[Any]:
    """The dtype for positions among `size` items: `shares`, the dtype of the quantiles, as in NumPy; but float64 if
    `shares` cannot hold all positions exactly."""
    is_exact = shares.kind == "f" and size - 1 <= 2 ** (np.finfo(shares).nmant + 1)
    return shares if is_exact else np.dtype(float)


def percentile(
    array: Any, q: Any, axis: Any = None, out: Any = None, method: str = "linear", keepdims: bool = False
) -> Any:
    """Like ``numpy.percentile``; see `quantile`."""
    array = _array.asarray(array)
    whole = 100 if _KEEPS_SHARES or array.dtype.kind != "f" else array.dtype.type(100)
    # Pass an array: NumPy would ignore the dtype of a float64 scalar, because its class is a subclass of `float`.
    share = np.asarray(np.true_divide(q, whole))
    shares = float(share) if type(q) in (int, float) and _KEEPS_SHARES else share
    return quantile(array, shares, axis, out, method, keepdims)


def median(array: Any, axis: Any = None, out: Any = None, overwrite_input: bool = False, keepdims: bool = False) -> Any:
    """The middle item, or the mean of the two middle items, as ``numpy.median``.

    Examples
    --------
    >>> import vmarray as vm
    >>> vm.median(vm.array([7, 1, 3, 5]))
    np.float64(4.0)
    """
    array = _array.asarray(array)
    if out is not None or array.dtype.kind not in "iuf":
        raise NotOnDevices
    if axis is None and _has_order(array) and array.size:
        if array.dtype.kind == "f" and array._core.reduce("first_nan") is not None:
            middle = np.asarray(np.nan, array.dtype)
        else:
            places = sorted({(array.size - 1) // 2, array.size // 2})
            middle = np.asarray(np.mean(_nth(_flat(array), places)))
        return middle.reshape((1,) * array.ndim) if keepdims else middle[()]
    if axis is None or not isinstance(axis, (int, np.integer)):
        raise NotOnDevices
    kind = np.median(np.zeros(1, array.dtype)).dtype
    return lines(lambda part, own: np.median(part, own, keepdims=True), array, axis, kind, keepdims)


def partition(array: Array, kth: Any, axis: Any = -1, kind: str = "introselect", order: Any = None) -> Array:
    """A sorted copy, which is a valid result of ``numpy.partition``."""
    if order is not None or kind != "introselect":
        raise NotOnDevices
    _check_places(array, kth, axis)
    return np.sort(array, axis)


def argpartition(array: Array, kth: Any, axis: Any = -1, kind: str = "introselect", order: Any = None) -> Array:
    """The indices that sort the array, which are a valid result of ``numpy.argpartition``."""
    if order is not None or kind != "introselect":
        raise NotOnDevices
    _check_places(array, kth, axis)
    return np.argsort(array, axis)


def _check_places(array: Array, kth: Any, axis: Any) -> None:
    extent = array.size if axis is None else array.shape[np.lib.array_utils.normalize_axis_index(axis, array.ndim)]
    if np.asarray(kth).dtype.kind not in "iu":
        raise TypeError("Partition index must be integer")
    outside = [one for one in np.ravel(kth) if not -extent <= one < extent]
    if outside:
        raise ValueError(f"kth(={outside[0]}) out of bounds ({extent})")


def top_k(array: Array, count: int) -> np.ndarray[Any, Any]:
    """The `count` greatest items in descending order, or all items if there are fewer. A NaN counts as the greatest.

    Examples
    --------
    >>> import vmarray as vm
    >>> vm.top_k(vm.arange(1000) % 17, 3)
    array([16, 16, 16])
    """
    flat = _flat(array)
    count = min(operator.index(count), flat.size)
    if count <= 0:
        return np.empty(0, flat.dtype)
    if not _has_order(flat):
        return np.sort(np.asarray(flat))[::-1][:count].copy()
    key = _as_key(flat).compute()
    (least,) = _nth(key, [flat.size - count])
    above = np.asarray(key[(key > least).find(count)]) if not np.isnan(least) else np.empty(0, flat.dtype)
    if not np.isnan(least):
        above = np.concatenate([above, np.asarray(key[np.isnan(key).find(count)])])
    rest = np.full(count - len(above), least, flat.dtype)
    return np.concatenate([np.sort(above)[::-1], rest])


class UniqueCounts(NamedTuple):
    """Result of `unique_counts`, as in NumPy."""

    values: Any
    counts: Any


class UniqueInverse(NamedTuple):
    """Result of `unique_inverse`, as in NumPy."""

    values: Any
    inverse_indices: Any


#: Functions that move items: of any dtype.
MOVES: dict[Any, Any] = {np.take: take, np.argsort: argsort}
#: Functions that NumPy computes sooner than devices if there are few bytes.
SEARCHES = {np.sort, np.take, np.argsort, np.searchsorted, np.unique, np.median}
SEARCHES |= {np.flatnonzero, np.nonzero}
#: Functions that compute.
FUNCTIONS: dict[Any, Any] = {
    np.searchsorted: searchsorted,
    np.unique: unique,
    np.unique_values: lambda array: unique(array, equal_nan=False),
    np.unique_counts: lambda array: UniqueCounts(*unique(array, return_counts=True, equal_nan=False)),
    np.unique_inverse: lambda array: UniqueInverse(*unique(array, return_inverse=True, equal_nan=False)),
    np.bincount: bincount,
    np.histogram: histogram,
    np.quantile: quantile,
    np.percentile: percentile,
    np.median: median,
    np.partition: partition,
    np.argpartition: argpartition,
}
