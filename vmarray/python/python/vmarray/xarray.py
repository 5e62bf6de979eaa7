"""The chunk manager of xarray: ``xarray.open_zarr(path, chunks={}, chunked_array_type="vmarray")`` reads variables into
arrays of this package, chunk by chunk.

Their items are on the devices, and the arithmetic of xarray runs there. The arrays have no chunks of their own.

Examples
--------
>>> import numpy as np, xarray
>>> from vmarray.xarray import ChunkManager
>>> heat = xarray.DataArray(np.arange(12.0).reshape(3, 4), dims=("x", "y"))
>>> ours = heat.chunk({"x": 2}, chunked_array_type=ChunkManager())
>>> type(ours.data).__name__, float((ours * 2).sum())
('Array', 132.0)
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

import numpy as np
from xarray.namedarray.parallelcompat import ChunkManagerEntrypoint

from . import _array
from ._array import Array
from ._errors import InvalidError


class ChunkManager(ChunkManagerEntrypoint[Any]):
    """Creates arrays of this package for xarray; xarray finds the class by the name ``"vmarray"``."""

    array_cls = Array
    available = True

    def __init__(self) -> None:
        pass

    def chunks(self, data: Any) -> tuple[tuple[int, ...], ...]:
        return tuple((extent,) for extent in data.shape)

    def normalize_chunks(
        self,
        chunks: Any,
        shape: tuple[int, ...] | None = None,
        limit: int | None = None,
        dtype: Any = None,
        previous_chunks: Any = None,
    ) -> tuple[tuple[int, ...], ...]:
        if shape is None:
            raise ValueError("the shape of the array must be known")
        if isinstance(chunks, dict):
            chunks = tuple(chunks.get(axis) for axis in range(len(shape)))
        elif not isinstance(chunks, (tuple, list)):
            chunks = (chunks,) * len(shape)
        before = previous_chunks or (None,) * len(shape)
        return tuple(_lengths(*one) for one in zip(chunks, before, shape, strict=True))

    def from_array(self, data: Any, chunks: Any, **options: Any) -> Array:
        known = {name: one for name, one in options.items() if name in _array._OPTIONS}
        array = _array.empty(data.shape, data.dtype, **known)
        lengths = self.normalize_chunks(chunks, data.shape)
        ends = [list(itertools.accumulate(one, initial=0)) for one in lengths]
        for key in itertools.product(*(map(slice, one, one[1:]) for one in ends)):
            array[key] = np.asarray(data[key])
        return array

    def rechunk(self, data: Any, chunks: Any, **given: Any) -> Any:
        return data

    def compute(self, *data: Any, **given: Any) -> tuple[Any, ...]:
        return tuple(np.asarray(one) if isinstance(one, Array) else one for one in data)

    def apply_gufunc(self, func: Any, signature: str, *args: Any, **given: Any) -> Any:
        for name in ("axes", "axis"):
            if given.get(name) is not None:
                raise InvalidError(f"apply_gufunc has no option {name!r}; move the axes first")
        if given.get("keepdims"):
            raise InvalidError("apply_gufunc has no option 'keepdims'; expand the result")
        if given.get("vectorize"):
            func = np.vectorize(func, otypes=given.get("output_dtypes"), signature=signature)
        names = ("axes", "axis", "keepdims", "output_dtypes", "output_sizes", "vectorize", "allow_rechunk", "meta")
        return func(*args, **{name: one for name, one in given.items() if name not in names})


def _lengths(chunk: Any, before: Any, extent: int) -> tuple[int, ...]:
    """The lengths of the chunks along an axis."""
    if isinstance(chunk, Sequence) and not isinstance(chunk, str):
        if sum(chunk) != extent:
            raise ValueError(f"chunks of {sum(chunk)} items do not add up to {extent}")
        return tuple(chunk)
    if chunk is None or chunk == "auto" or chunk == -1:
        if before is not None:
            return _lengths(before, None, extent)
        chunk = max(1, extent)
    return (chunk,) * (extent // chunk) + ((extent % chunk,) if extent % chunk else ()) or (0,)
