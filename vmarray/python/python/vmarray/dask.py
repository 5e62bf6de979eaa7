"""Creates arrays of ``dask.array``: from an array of this process, or from files, with chunks on the workers of a
cluster.

A chunk on a worker is an array of this package, on the devices of the worker. The operations of ``dask`` - expressions,
reductions, ``map_blocks``, ``map_overlap`` - run there. Workers exchange results and edges as bytes. If a worker is
lost, ``dask`` reads or computes its chunks again on another worker.

Examples
--------
>>> import os, tempfile, vmarray as vm
>>> import vmarray.dask
>>> path = os.path.join(tempfile.mkdtemp(), "a.zarr")
>>> vm.to_zarr(vm.arange(100).reshape(10, 10), path, chunks=(5, 10))
>>> x = vmarray.dask.from_zarr(path)
>>> x.chunks, type(x._meta).__name__
(((5, 5), (10,)), 'Array')
>>> int((x * 2 + 1).sum().compute())
10000
"""

from __future__ import annotations

import functools
import uuid
from typing import Any

import numpy as np

try:
    import dask.array as da
    from dask.array.chunk_types import register_chunk_type
    from dask.base import normalize_token
    from dask.sizeof import sizeof
except ImportError as error:
    raise ImportError(
        "the package dask is not installed; `pip install 'vmarray[dask]'` installs it", name="dask"
    ) from error

from . import _array, _files
from ._array import Array

__all__ = ["from_dask", "from_zarr", "to_dask", "to_zarr"]

register_chunk_type(Array)


@normalize_token.register(Array)
def _token(array: Array) -> Any:
    # Items may change at any time, so two arrays never count as equal for dask's cache.
    return "vmarray", uuid.uuid4().hex


@sizeof.register(Array)
def _sizeof(array: Array) -> int:
    return array.nbytes


def _register_messages() -> None:
    try:
        from distributed.protocol import dask_deserialize, dask_serialize
    except ImportError:
        return

    @dask_serialize.register(Array)
    def _sent(array: Array) -> tuple[Any, ...]:
        items = np.asarray(array)
        header = {"shape": items.shape, "dtype": np.lib.format.dtype_to_descr(items.dtype)}
        return header, [memoryview(items.reshape(-1).view(np.uint8))]

    @dask_deserialize.register(Array)
    def _received(header: dict[str, Any], frames: list[Any]) -> Array:
        dtype = np.lib.format.descr_to_dtype(header["dtype"])
        items = b"".join(bytes(one) for one in frames) if len(frames) != 1 else frames[0]
        return _array.asarray(np.frombuffer(items, dtype).reshape(header["shape"]))


_register_messages()


class _Reference:
    """A reference to an array in a file. Each process opens the file when it first reads items."""

    def __init__(self, array: Array) -> None:
        array.sync()
        self.dtype, self.shape, self.ndim = array.dtype, array.shape, array.ndim
        self.opening = array._path, array.dtype, array.shape, "r", array._place
        self._own: Array | None = array

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_own": None}

    def __getitem__(self, key: Any) -> np.ndarray[Any, Any]:
        array = self._own
        return np.asarray((_opened(self.opening) if array is None else array)[key])


@functools.lru_cache(maxsize=64)
def _opened(opening: Any) -> Array:
    return Array._of(_array._opened(opening, {}))


def to_dask(array: Array, chunks: Any = "auto") -> da.Array:
    """A ``dask.array`` of the items of an array. Threads of this process read the items when they are needed.

    If the array is in a file, dask pickles only the path, and other processes read the file themselves. They read the
    contents at that time, so no program may have the file open for writing meanwhile.

    Parameters
    ----------
    array : Array
        The array with the items. The call does not copy the array, so do not write to the array until dask has
        computed all results.
    chunks : optional
        Chunks, as in ``dask.array.from_array``.

    Examples
    --------
    >>> import vmarray as vm, vmarray.dask
    >>> x = vmarray.dask.to_dask(vm.arange(1000), chunks=100)
    >>> x.numblocks, int(x.sum().compute())
    ((10,), 499500)
    """
    array = _array.asarray(array).compute()
    source = array if array._path is None else _Reference(array)
    return da.from_array(
        source,
        chunks,
        name=f"vmarray-{uuid.uuid4().hex}",
        lock=False,
        asarray=True,
        meta=np.empty((0,) * array.ndim, array.dtype),
    )


def _loaded(store: Any, options: dict[str, Any], block_info: Any = None) -> Array:
    place = tuple(slice(*one) for one in block_info[None]["array-location"])
    return _array.asarray(np.asarray(_files.zarr_array(store)[place]), **options)


def _meta(ndim: int, dtype: Any) -> Array:
    return _array.empty((0,) * ndim, dtype, devices="host")


def from_zarr(store: Any, chunks: Any = None, **options: Any) -> da.Array:
    """A ``dask.array`` of a Zarr array. Each chunk is an array on the devices of the worker that reads it.

    Parameters
    ----------
    store : str, path or zarr.Array
        The store, which all workers must be able to access.
    chunks : optional
        Chunks, as in ``dask.array``. By default the shards of the store, or its chunks if it has no shards, so that
        each chunk is read once.
    **options
        Options of the arrays of workers; see `vmarray.empty`. The environment of a worker determines its default
        devices.
    """
    _array._checked(options)
    source = _files.zarr_array(store)
    chunks = da.core.normalize_chunks(
        _files.chunk_of(source) if chunks is None else chunks, source.shape, dtype=source.dtype
    )
    return da.map_blocks(
        _loaded,
        store,
        options,
        chunks=chunks,
        dtype=source.dtype,
        meta=_meta(source.ndim, source.dtype),
        name=f"vmarray-zarr-{uuid.uuid4().hex}",
    )


def from_dask(x: da.Array, **options: Any) -> da.Array:
    """Copies each chunk of a ``dask.array`` to the devices of its worker."""
    work = functools.partial(_array.asarray, **_array._checked(options))
    return x.map_blocks(work, dtype=x.dtype, meta=_meta(x.ndim, x.dtype))


def _cuts(start: int, stop: int, step: int) -> tuple[int, ...]:
    """The lengths of the pieces when a range is cut at multiples of `step`."""
    ends = [*range(start // step * step + step, stop, step), stop]
    return tuple(end - begin for begin, end in zip([start, *ends], ends))


def _whole_chunks(x: da.Array, unit: tuple[int, ...], starts: tuple[int, ...]) -> da.Array:
    """Rechunks `x`, so that its chunks end at ends of stored chunks of the shape `unit`. Then one task writes each
    stored chunk. `starts` are the indices of the first item of `x` in the stored array."""
    fits = all(
        (start + int(end)) % step == 0
        for sizes, step, start in zip(x.chunks, unit, starts)
        for end in np.cumsum(sizes)[:-1]
    )
    if fits:
        return x
    steps = (max(1, most // step) * step for most, step in zip(x.chunksize, unit))
    return x.rechunk(
        tuple(_cuts(start, start + extent, step) for start, extent, step in zip(starts, x.shape, steps))
    )


def to_zarr(
    x: da.Array,
    store: Any,
    *,
    chunks: Any = None,
    shards: Any = None,
    checksums: bool = True,
    component: str | None = None,
    region: Any = None,
    compute: bool = True,
    **given: Any,
) -> Any:
    """Writes a ``dask.array`` to a Zarr array. Each worker writes its chunks.

    One task writes each stored chunk or shard as a whole. If chunks of the ``dask.array`` have other boundaries, dask
    first rechunks the array, which moves items between workers. If the chunks of ``x`` are multiples of the stored
    chunks, no items move.

    Parameters
    ----------
    x : dask.array.Array
        The array to write.
    store : str, path, store or zarr.Array
        An argument of ``zarr.create_array``, or an existing array of ``zarr`` of the same shape.
    chunks, shards : tuple of int, optional
        Number of items along each axis of a chunk, which is compressed as a unit, and of a shard, which is a file of
        several chunks; by default the longest chunk of ``x``.
    checksums : bool, optional
        True to end each chunk with a CRC-32C; see `vmarray.to_zarr`.
    component : str, optional
        The name of the array in the store.
    region : tuple of slice, optional
        The part of an existing array to which the items are written, with steps of 1.
    compute : bool, optional
        False to return a ``dask.delayed.Delayed``, which writes the items when the program computes it.
    **given
        Further arguments of ``zarr.create_array``: ``compressors``, ``overwrite``, ``attributes``, ...
    """
    if any(np.isnan(extent) for extent in x.shape):
        raise ValueError("the length of some chunks is not known; call `x.compute_chunk_sizes()` first")
    starts: tuple[int, ...] = (0,) * x.ndim
    if hasattr(store, "chunks") and hasattr(store, "shape"):
        if given or chunks is not None or shards is not None or component is not None:
            names = sorted({**given, **{k: v for k, v in (("chunks", chunks), ("shards", shards)) if v is not None}})
            raise TypeError(f"the array exists already, with its own {', '.join(names) or 'name'}; leave these out")
        target = store
        key = (slice(None),) * x.ndim if region is None else region if isinstance(region, tuple) else (region,)
        key += (slice(None),) * (x.ndim - len(key))
        if any(not isinstance(one, slice) or one.step not in (None, 1) for one in key):
            raise TypeError("`region` must be a tuple of slices with a step of 1")
        limits = [one.indices(extent) for one, extent in zip(key, target.shape)]
        starts = tuple(one[0] for one in limits)
        if len(target.shape) != x.ndim or tuple(stop - start for start, stop, _ in limits) != x.shape:
            raise ValueError(f"items of shape {x.shape} do not fit into {limits} of an array of shape {target.shape}")
    elif region is not None:
        raise TypeError("`region` needs an existing array; open it by zarr.open_array, and pass it as the store")
    else:
        if chunks is None:
            chunks = "auto" if shards is not None else tuple(max(1, extent) for extent in x.chunksize)
        if component is not None:
            given["name"] = component
        create = _files.create_zarr(store, checksums, chunks=chunks, shards=shards, **given)
        target = create(shape=x.shape, dtype=x.dtype)
    x = _whole_chunks(x, _files.chunk_of(target), starts)
    x = x.map_blocks(np.asarray, dtype=x.dtype, meta=np.empty((0,) * x.ndim, x.dtype))
    place = tuple(slice(start, start + extent) for start, extent in zip(starts, x.shape))
    return x.store(target, lock=False, regions=place if x.ndim else None, compute=compute)
