"""Reads and writes NumPy's files and Zarr stores, which other programs also use. Both may be larger than RAM."""

from __future__ import annotations

import atexit
import contextlib
import functools
import importlib.util
import math
import os
import threading
from collections.abc import Iterable
from typing import Any

import numpy as np

from . import _array, _core, _mapped, _ufuncs
from ._array import Array

#: Bytes of a file that each thread copies at once.
_PIECE = 4 << 20
#: Threads that copy; the time is spent in the system and in compression.
_THREADS = min(8, 2 * (os.cpu_count() or 1))


def _pieces(array: Any) -> Iterable[tuple[Any, ...]]:
    """Divides an array into keys of parts of `_PIECE` bytes."""
    return _ufuncs.blocks(array.shape, max(1, _PIECE // max(1, array.dtype.itemsize)))


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
            _in_parallel(work, _pieces(array), array.nbytes, progress)
            os.fsync(file.fileno())
        os.replace(unfinished, path)
    finally:
        if os.path.exists(unfinished):
            os.remove(unfinished)


def load(
    path: str | os.PathLike[str], name: Any = None, *, progress: Any = None, **options: Any
) -> Array:
    """Reads the array in a file into a new array, piece by piece; see `empty` for the options, and `open` to work on a
    file in place.

    Parameters
    ----------
    path : path
        A file of NumPy (``.npy``), of `create`, HDF5 (needs the package ``h5py``), TIFF (needs ``tifffile``) or
        safetensors, or the folder of a Zarr array (needs ``zarr``).
    name : str or int, optional
        The name of the data set in an HDF5 file or of the tensor, or the number of the series in a TIFF file.
        Necessary if the file has several.
    progress : optional
        A bar like ``tqdm``, which receives the number of read bytes.

    Examples
    --------
    >>> import os, tempfile, numpy as np, vmarray as vm
    >>> path = os.path.join(tempfile.mkdtemp(), "a.npy")
    >>> np.save(path, np.arange(10) ** 2)
    >>> vm.load(path).sum()
    np.int64(285)
    """
    if os.path.isfile(path):
        with open(path, "rb") as file:
            start = file.read(8)
        if start == b"\x89HDF\r\n\x1a\n":
            return _load_hdf5(path, name, progress, options)
        if start[:4] in (b"II*\0", b"MM\0*", b"II+\0", b"MM\0+"):
            return _load_tiff(path, name, progress, options)
        if start.startswith(b"PK"):
            raise ValueError(f"{os.fspath(path)} has several arrays; load one by numpy.load, and give it to asarray")
    elif os.path.isdir(path):
        return open_zarr(path if name is None else os.path.join(path, name), progress=progress, **options)
    source = _mapped.open(path, mode="r", cache_bytes=_SOURCE_CACHE)
    if isinstance(source, _mapped.SafeTensors):
        source = source[_only([*source], name, path)]
    with source:
        return _loaded(source, _pieces(source), progress, options)


#: The cache of an array in a file from which each item is read once.
_SOURCE_CACHE = 16 << 20


def _loaded(source: Any, blocks: Iterable[Any], progress: Any, options: dict[str, Any]) -> Array:
    """Copies parts of a source into a new array."""
    array = _array.empty(source.shape, source.dtype, **options)

    def work(block: tuple[Any, ...]) -> int:
        part = np.asarray(source[block])
        array[block] = part
        return part.nbytes

    _in_parallel(work, blocks, array.nbytes, progress)
    return array


def _only(names: list[Any], name: Any, path: Any) -> Any:
    """The name that the program has chosen, or the only one."""
    if name is None and len(names) == 1:
        return names[0]
    if name not in names:
        problem = "has several arrays" if name is None else f"has no array {name!r}"
        shown = ", ".join(map(repr, names[:20])) + (", ..." if len(names) > 20 else "")
        raise ValueError(f"{os.fspath(path)} {problem}; pass one of {shown or 'none'} as `name`")
    return name


def _load_hdf5(path: Any, name: Any, progress: Any, options: dict[str, Any]) -> Array:
    """Reads a data set of an HDF5 file, several of its chunks at a time."""
    h5py = _package("h5py")
    with h5py.File(path, "r") as file:
        names: list[str] = []
        file.visititems(lambda name, one: names.append(name) if isinstance(one, h5py.Dataset) else None)
        if name is None or name not in file or not isinstance(file[name], h5py.Dataset):
            name = _only(names, name, path)
        data = file[name]
        if data.shape is None:
            raise ValueError(f"the data set {name!r} of {os.fspath(path)} is empty, without a shape")
        return _loaded(data, _grid(data.shape, _enlarged(data)) if data.shape else _pieces(data), progress, options)


def _enlarged(data: Any) -> tuple[int, ...]:
    """The extents of some chunks of a data set, of `_PIECE` bytes if chunks are shorter."""
    if data.chunks is None:
        step = [1] * len(data.shape)
    else:
        step = [*data.chunks]
    for axis in reversed(range(len(step))):
        rest = max(1, _PIECE // max(1, data.dtype.itemsize * math.prod(step)))
        step[axis] = max(1, min(data.shape[axis] + step[axis] - 1, step[axis] * rest) // step[axis] * step[axis])
    return tuple(step)


def _load_tiff(path: Any, name: Any, progress: Any, options: dict[str, Any]) -> Array:
    """Reads the images of a series of a TIFF file, one at a time."""
    tifffile = _package("tifffile")
    with tifffile.TiffFile(path) as file:
        series = file.series[_only([*range(len(file.series))], name, path)]
        if len(series.pages) == 1 and series.dataoffset is not None:
            # One image that is stored contiguously, or a stack of images in one page.
            dtype = series.dtype.newbyteorder(file.byteorder)
            shape, native = tuple(series.shape), series.dtype.newbyteorder("=")
            with _mapped.memmap(path, dtype, "r", series.dataoffset, shape, cache_bytes=_SOURCE_CACHE) as source:
                return _loaded(_Converted(source, native), _pieces(source), progress, options)
        array = _array.empty(series.shape, series.dtype.newbyteorder("="), **options)
        rows, lock = array.reshape(len(series.pages), -1), threading.Lock()

        def work(number: int) -> int:
            # All threads share the position of the file. tifffile itself decodes a page on several threads.
            with lock:
                page = series.pages[number]
                items = None if page is None else page.asarray().reshape(-1)
            if items is not None:
                rows[number] = items
            return rows.nbytes // len(rows)

        _in_parallel(work, range(len(series.pages)), array.nbytes, progress)
    return array


class _Converted:
    """A source whose parts have another dtype."""

    def __init__(self, source: Array, dtype: np.dtype[Any]) -> None:
        self._source, self.dtype, self.shape = source, dtype, source.shape

    def __getitem__(self, block: Any) -> np.ndarray[Any, Any]:
        return np.asarray(self._source[block]).astype(self.dtype, copy=False)


def _package(name: str) -> Any:
    """An optional package that reads a kind of files."""
    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise ImportError(f"{name} is not installed; `pip install {name}` installs it", name=name) from error


def zarr_array(store: Any) -> Any:
    """Returns an array of the package ``zarr``, or opens the array of a path or store."""
    if hasattr(store, "chunks") and hasattr(store, "shape"):
        return store
    return _opened_zarr(store, "r")


def _opened_zarr(store: Any, mode: str) -> Any:
    zarr = _zarr()
    with _fast_codecs(zarr):
        return zarr.open_array(store, mode=mode)


def _fast_codecs(zarr: Any) -> Any:
    """While it is entered, ``zarr`` opens arrays whose chunks the package ``zarrs`` encodes and decodes, on several
    threads, if it is installed and the program has not configured another pipeline."""
    usual = "zarr.core.codec_pipeline.BatchedCodecPipeline"
    if zarr.config.get("codec_pipeline.path", None) != usual or importlib.util.find_spec("zarrs") is None:
        return contextlib.nullcontext()
    # The import registers the pipeline.
    importlib.import_module("zarrs")
    return zarr.config.set({"codec_pipeline.path": "zarrs.ZarrsCodecPipeline"})


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

    def created(**shape: Any) -> Any:
        with _fast_codecs(zarr):
            return zarr.create_array(store, **given, **shape)

    return created


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
        source = _opened_zarr(store, mode)
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

    close_at_exit()
    functions = (read, None if mode == "r" else write)
    name = f"the Zarr array {store}"
    return Array._of(_core.create_over(shape, dtype, rows * math.prod(shape[1:]), functions, name, options))


@functools.cache
def close_at_exit() -> None:
    """Closes arrays over files and stores before Python ends, and before it ends the threads of the package zarr."""
    getattr(threading, "_register_atexit", atexit.register)(_core.close_homes)


def open_zarr(store: Any, *, home: bool = False, mode: str = "r+", progress: Any = None, **options: Any) -> Array:
    """Reads a Zarr array into a new array, several chunks at a time; see `empty` for the options.

    Needs the package ``zarr``, which supports all compressors and storage: folders, archives, servers. If the package
    ``zarrs`` is installed, it decodes and encodes the chunks.

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
