"""Types of public signatures. Only type checkers import this module."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal, SupportsIndex, TypeAlias, TypedDict

import numpy as np
from numpy.typing import ArrayLike, DTypeLike

from ._array import Array
from ._core import Device

#: Values that an array can be made of, or that can be written to one.
Values: TypeAlias = ArrayLike | Array
DType: TypeAlias = DTypeLike
#: One number or several: a shape, or indices.
Shape: TypeAlias = SupportsIndex | Sequence[SupportsIndex]
Axes: TypeAlias = SupportsIndex | Sequence[SupportsIndex] | None
#: An existing array for a result.
Out: TypeAlias = Array | np.ndarray[Any, Any] | None
#: True for the items that a reduction takes.
Where: TypeAlias = bool | Array | np.ndarray[Any, np.dtype[np.bool_]] | Sequence[Any]
#: "C", "F", "A" or "K".
Order: TypeAlias = str | None
Casting: TypeAlias = Literal["no", "equiv", "safe", "same_kind", "unsafe"]
Mode: TypeAlias = Literal["raise", "wrap", "clip"]
Side: TypeAlias = Literal["left", "right"]
#: Names of fields to sort by.
Fields: TypeAlias = str | Sequence[str] | None
SortKind: TypeAlias = Literal["quicksort", "mergesort", "heapsort", "stable"] | None
#: A filter, such as ``"cuda:0"``, or devices.
Devices: TypeAlias = str | Device | Sequence[Device] | None


class Options(TypedDict, total=False):
    """The options of a new array; see `vmarray.empty`."""

    devices: Devices
    cache_bytes: int | None
    page_len: int | None
    max_len: int | None
    checksums: bool | None
    like: Any
    device: Devices
