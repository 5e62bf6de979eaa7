"""Reads and writes NumPy's files and Zarr stores, which other programs also use. Both may be larger than RAM."""

from __future__ import annotations

import atexit
import functools
import math
import os
import threading
from collections.abc import Iterable
from typing import Any

import numpy as np

from . import _array, _core, _ufuncs
from ._array import Array

#: Items of a file that each thread copies at once.
_PIECE = 1 << 22
#: Threads that copy; the time is spent in the system and in compression.
_THREADS = min(8, 2 * (os.cpu_count() or 1))


def _in_parallel(work: Any, pieces: Iterable[Any], total: int, progress: Any) -> None:
    """Runs `work` for each piece on threads. `work` returns a number of bytes, which the bar `progress` (like ``tqdm``)
    adds up to `total`."""
    from concurrent.futures import ThreadPoolExecutor

    if progress is not None:
        progress.reset(total=total)
    with ThreadPoolExecutor(_THREADS) as pool:
        tasks = [pool.submit(work, one) for one in pieces]
        try:
            for task in tasks:
                done = task.result()
                if progress is not None:
                    progress.update(done)
        except BaseException:
            pool.shutdown(cancel_futures=True)
            raise


def save(path: str | os.PathLike[str], array: Any, *, progress: Any = None) -> None:
    """Writes an array to a new file in NumPy's format, which ``numpy.load`` and `load` read.

    Until the file is complete, its name ends in ``.unfinished``.

    Parameters
    ----------
    path : path
        The file. The call replaces an existing file.
    array : array
        An array of any dtype with a fixed number of bytes for each item.
    progress : optional
        A bar like ``tqdm``, which receives the number of written bytes.

    Examples
    --------
    >>> import os, tempfile, numpy as np, vmarray as vm
    >>> path = os.path.join(tempfile.mkdtemp(), "a.npy")
    >>> vm.save(path, vm.arange(10) ** 2)
    >>> np.load(path)[3], vm.load(path)[3]
    (np.int64(9), np.int64(9))
    """
    array = _array.asarray(array).compute()
    path = os.fspath(path)
    unfinished = path + ".unfinished"
    strides = np.cumprod((array.itemsize, *array.shape[:0:-1]))[::-1] if array.ndim else ()
    try:
        with open(unfinished, "wb") as file:
            header = {"descr": np.lib.format.dtype_to_descr(array.dtype), "fortran_order": False, "shape": array.shape}
            np.lib.format.write_array_header_2_0(file, header)
            begin = file.tell()

            def work(block: tuple[Any, ...]) -> int:
                part = np.asarray(array[block]) if array.ndim else np.asarray(array)
                start = begin + sum((one.start or 0) * stride for one, stride in zip(block, strides))
                left = part.reshape(-1).view(np.uint8).data
                while left:
                    written = os.pwrite(file.fileno(), left, int(start))
                    left, start = left[written:], start + written
                return part.nbytes

            file.flush()
            _in_parallel(work, _ufuncs.blocks(array.shape, _PIECE), array.nbytes, progress)
            os.fsync(file.fileno())
        os.replace(unfinished, path)
    finally:
        if os.path.exists(unfinished):
            os.remove(unfinished)


def load(path: str | os.PathLike[str], *, progress: Any = None, **options: Any) -> Array:
    """Reads a file in NumPy's format into a new array; see `empty` for the options, and `save`.

    Parameters
    ----------
    path : path
        A ``.npy`` file.
    progress : optional
        A bar like ``tqdm``, which receives the number of read bytes.
    """
    mapped = np.load(path, mmap_mode="r", allow_pickle=False)
    if not isinstance(mapped, np.ndarray):
        raise ValueError(f"{os.fspath(path)} has several arrays; load one by numpy.load, and give it to asarray")
    array = _array.empty(mapped.shape, mapped.dtype, **options)

    def work(block: tuple[Any, ...]) -> int:
        array[block] = mapped[block]
        return mapped[block].nbytes

    _in_parallel(work, _ufuncs.blocks(array.shape, _PIECE), array.nbytes, progress)
    return array


def zarr_array(store: Any) -> Any:
    """Returns an array of the package ``zarr``, or opens the array of a path or store."""
    if hasattr(store, "chunks") and hasattr(store, "shape"):
        return store
    return _zarr().open_array(store, mode="r")


def _zarr() -> Any:
    """The package ``zarr``."""
    try:
        import zarr
        import zarr.codecs
    except ImportError as error:
        raise ImportError(
            "the package zarr is not installed; `pip install 'vmarray[zarr]'` installs it", name="zarr"
        ) from error
    return zarr


def create_zarr(store: Any, checksums: bool, **given: Any) -> Any:
    """Returns ``zarr.create_array`` with the parameters `given`, and with checksums of chunks if requested."""
    for name in ("shape", "dtype", "data"):
        if name in given:
            raise TypeError(f"the written array determines its {name}; leave `{name}` out")
    if given.get("shards") is not None and given.get("chunks") in (None, "auto"):
        # Store one chunk in each shard, because zarr's automatic choice of chunks ignores shards.
        given["chunks"] = given["shards"]
    zarr = _zarr()
    if checksums and "compressors" not in given and given.get("zarr_format", 3) == 3:
        given["compressors"] = [zarr.codecs.ZstdCodec(), zarr.codecs.Crc32cCodec()]
    return functools.partial(zarr.create_array, store, **given)


def chunk_of(array: Any) -> tuple[int, ...]:
    """The unit of reads and writes of a ``zarr`` array: a shard, or a chunk if there are no shards."""
    return tuple(getattr(array, "shards", None) or array.chunks)


def _grid(shape: tuple[Any, ...], chunk: tuple[Any, ...]) -> Iterable[tuple[slice, ...]]:
    for outer in np.ndindex(*(-(-extent // step) for extent, step in zip(shape, chunk))):
        yield tuple(slice(n * step, min(n * step + step, extent)) for n, step, extent in zip(outer, chunk, shape))


def _at_home(store: Any, mode: str, options: dict[str, Any]) -> Array:
    """Creates an array whose pages stay in a Zarr store. A page is a row of chunks: all with the same index along the
    first axis."""
    if mode not in ("r", "r+"):
        raise ValueError(f"mode must be 'r' or 'r+', not {mode!r}")
    source = store
    if not (hasattr(store, "chunks") and hasattr(store, "shape")):
        source = _zarr().open_array(store, mode=mode)
    shape, dtype = tuple(source.shape), np.dtype(source.dtype)
    if not shape or 0 in shape:
        raise ValueError(f"an array of shape {shape} has no chunks that could store its pages; leave `home` out")
    rows = chunk_of(source)[0]

    def read(page: int) -> np.ndarray[Any, Any]:
        part = np.zeros((rows, *shape[1:]), dtype)
        own = source[page * rows : min(page * rows + rows, shape[0])]
        part[: len(own)] = own
        return part

    def write(page: int, items: np.ndarray[Any, Any]) -> None:
        part = items.view(dtype).reshape(rows, *shape[1:])[: shape[0] - page * rows]
        source[page * rows : page * rows + len(part)] = part

    if not _HOMES:
        # Close the arrays before Python shuts down the threads that the package zarr uses.
        register = getattr(threading, "_register_atexit", atexit.register)
        _HOMES.append(register(_core.close_homes))
    functions = (read, None if mode == "r" else write)
    name = f"the Zarr array {store}"
    return Array._of(_core.create_over(shape, dtype, rows * math.prod(shape[1:]), functions, name, options))


#: Functions that close arrays over stores before Python ends, if there are such arrays.
_HOMES: list[Any] = []


def open_zarr(store: Any, *, home: bool = False, mode: str = "r+", progress: Any = None, **options: Any) -> Array:
    """Reads a Zarr array into a new array, several chunks at a time; see `empty` for the options.

    Needs the package ``zarr``, which supports all compressors and storage: folders, archives, servers.

    Parameters
    ----------
    store : str, path, store or zarr.Array
        An argument of ``zarr.open_array``, or an array of ``zarr``.
    home : bool, optional
        True to leave the items in the store, which may be larger than RAM and GPU memory. The array reads items when
        they are needed. The array writes changed chunks when they leave the cache, and in ``flush``, ``sync`` and
        ``close``. Chunks (or shards) with the same index along the first axis are read and written together; the cache
        holds at least four such rows. No other program may write to the store meanwhile.
    mode : {"r+", "r"}
        With ``home``: "r+" to read and write the store, "r" to read only.
    progress : optional
        A bar like ``tqdm``, which receives the number of read bytes.

    Examples
    --------
    >>> import os, tempfile, vmarray as vm
    >>> path = os.path.join(tempfile.mkdtemp(), "a.zarr")
    >>> vm.to_zarr(vm.arange(12).reshape(3, 4), path, chunks=(2, 4))
    >>> vm.open_zarr(path).sum(axis=0)
    Array([12, 15, 18, 21], dtype=int64)
    >>> with vm.open_zarr(path, home=True) as a:
    ...     a[1] *= 10
    >>> vm.open_zarr(path)[1, 3]
    np.int64(70)
    """
    if home:
        return _at_home(store, mode, _array._checked(options))
    source = zarr_array(store)
    array = _array.empty(source.shape, source.dtype, **options)

    def work(block: tuple[Any, ...]) -> int:
        part = np.asarray(source[block])
        array[block] = part
        return part.nbytes

    _in_parallel(work, _grid(array.shape, chunk_of(source)), array.nbytes, progress)
    return array


def to_zarr(
    array: Any,
    store: Any,
    *,
    chunks: Any = "auto",
    shards: Any = None,
    checksums: bool = True,
    progress: Any = None,
    **given: Any,
) -> None:
    """Writes an array to a new Zarr array, several chunks at a time; see `open_zarr`.

    Parameters
    ----------
    array : array
        The array to write.
    store : str, path or store
        An argument of ``zarr.create_array``.
    chunks, shards : tuple of int, optional
        Number of items along each axis of a chunk, which is compressed as a unit, and of a shard, which is a file of
        several chunks.
    checksums : bool, optional
        True to end each chunk with a CRC-32C of four bytes, so that reading a damaged chunk is an error. If you
        pass ``compressors``, append ``zarr.codecs.Crc32cCodec()``. Stores of Zarr version 2 have no checksums.
    progress : optional
        A bar like ``tqdm``, which receives the number of written bytes.
    **given
        Other arguments of ``zarr.create_array``: ``compressors``, ``overwrite``, ``name``, ``attributes``, ...
    """
    create = create_zarr(store, checksums, chunks=chunks, shards=shards, **given)
    array = _array.asarray(array).compute()
    target = create(shape=array.shape, dtype=array.dtype)

    def work(block: tuple[Any, ...]) -> int:
        part = np.asarray(array[block]) if array.ndim else np.asarray(array)
        target[block] = part
        return part.nbytes

    _in_parallel(work, _grid(array.shape, chunk_of(target)), array.nbytes, progress)
