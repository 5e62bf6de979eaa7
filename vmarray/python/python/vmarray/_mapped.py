"""Arrays on files of other programs, in place: raw files, NumPy's files, Zarr stores and safetensors."""

from __future__ import annotations

import builtins
import json
import math
import os
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from . import _array, _core
from ._array import Array
from ._errors import FileError, InvalidError

_MODES = {"readonly": "r", "copyonwrite": "c", "readwrite": "r+", "write": "w+"}
#: First bytes of files that no array can use in place, with a remedy.
_FOREIGN = {
    b"PK\x03\x04": "an archive, which may have several arrays; unpack it, or read it by numpy.load or zarr",
    b"\x89HDF\r\n\x1a\n": "an HDF5 file; vmarray.load(path, name) reads a data set of it",
    b"II*\0": "a TIFF file; vmarray.load(path) reads its images",
    b"MM\0*": "a TIFF file; vmarray.load(path) reads its images",
    b"II+\0": "a TIFF file; vmarray.load(path) reads its images",
    b"MM\0+": "a TIFF file; vmarray.load(path) reads its images",
    b"PAR1": "a Parquet file; read a column by pyarrow or polars, and pass it to vmarray.asarray",
    b"ARROW1": "an Arrow file; read a column by pyarrow or polars, and pass it to vmarray.asarray",
}
#: Most bytes of the header of a safetensors file, as in the package safetensors.
_HEADER_MAX = 100_000_000
#: Element types of safetensors, as NumPy's or as classes of the package ml_dtypes.
_TENSOR_TYPES = {
    "BOOL": "?", "U8": "u1", "I8": "i1", "U16": "<u2", "I16": "<i2", "U32": "<u4", "I32": "<i4", "U64": "<u8",
    "I64": "<i8", "F16": "<f2", "F32": "<f4", "F64": "<f8", "C64": "<c8", "BF16": "bfloat16",
    "F8_E4M3": "float8_e4m3fn", "F8_E5M2": "float8_e5m2", "F8_E8M0": "float8_e8m0fnu",
}  # fmt: skip
#: Bytes of the element types that only ml_dtypes has.
_ML_BYTES = {"BF16": 2, "F8_E4M3": 1, "F8_E5M2": 1, "F8_E8M0": 1}
#: Dtypes of the elements of stores that other programs than this package have created.
_STORED = {
    "u8": "u1", "u16": "u2", "u32": "u4", "u64": "u8", "i8": "i1", "i16": "i2", "i32": "i4", "i64": "i8",
    "f16": "f2", "f32": "f4", "f64": "f8", "bool": "?",
}  # fmt: skip


def memmap(
    filename: Any,
    dtype: Any = np.uint8,
    mode: str = "r+",
    offset: int = 0,
    shape: Any = None,
    order: str = "C",
    **options: Any,
) -> Array:
    """An array of the items in a binary file, in place, like ``numpy.memmap``; see `empty` for the options.

    Items stay in the file. The array reads items when they are needed, at most ``cache_bytes`` of them at a time, and
    writes changed items when they leave the cache, and in ``flush``, ``sync`` and ``close``. The array does not map the
    file, so a file that another program shortens raises a `FileError`. A file is open for one writer, or for any number
    of readers.

    Parameters
    ----------
    filename : path or file
        The file.
    dtype : data type, optional
        The type of the items.
    mode : {"r+", "r", "w+", "c"}, optional
        ``"r"`` reads; ``"r+"`` reads and writes, and extends a file that is too short; ``"w+"`` creates the file, or
        overwrites it with zeroes; ``"c"`` keeps changes in a temporary file, which disappears with the array.
    offset : int, optional
        The byte at which the items begin; any number.
    shape : int or sequence of ints, optional
        The shape; by default all items up to the end of the file, along one axis.
    order : {"C", "F"}, optional
        The order of the items in the file.

    Examples
    --------
    >>> import os, tempfile, numpy as np, vmarray as vm
    >>> path = os.path.join(tempfile.mkdtemp(), "tokens.bin")
    >>> np.arange(1000, dtype="u2").tofile(path)
    >>> with vm.memmap(path, "u2", "r") as tokens:
    ...     tokens[[3, 999]], int(tokens.max())
    (array([  3, 999], dtype=uint16), 999)
    >>> with vm.memmap(path, "u2", "r+", offset=200, shape=(10, 10)) as part:
    ...     part[0] = 7
    >>> np.fromfile(path, "u2")[99:102]
    array([99,  7,  7], dtype=uint16)
    """
    mode = _MODES.get(mode, mode)
    if mode not in ("r", "c", "r+", "w+"):
        raise ValueError(f"mode must be one of {[*_MODES.values(), *_MODES]!r} (got {mode!r})")
    if order not in ("C", "F"):
        raise ValueError(f"order must be 'C' or 'F', not {order!r}")
    if hasattr(filename, "read"):
        filename.flush()
        filename = filename.name
    path, dtype, offset = _array._absolute(filename), np.dtype(dtype), int(offset)
    if offset < 0:
        raise ValueError(f"offset must not be negative, and is {offset}")
    if mode == "w+" and shape is None:
        raise ValueError("shape must be given if mode == 'w+'")
    if not dtype.itemsize:
        raise ValueError(f"items of dtype {dtype} have no bytes")
    if mode != "w+" and not os.path.exists(path):
        raise FileNotFoundError(f"there is no file {path}; mode 'w+' creates it")
    length = os.path.getsize(path) if mode != "w+" else 0
    if shape is None:
        if (length - offset) % dtype.itemsize or offset > length:
            raise InvalidError("Size of the available data is not a multiple of the data-type size.")
        shape = ((length - offset) // dtype.itemsize,)
    shape = _array._as_tuple(shape)
    end = offset + math.prod(shape) * dtype.itemsize
    if mode == "w+" or (mode == "r+" and end > length):
        _make(path, end, is_new=mode == "w+")
    elif end > length:
        raise InvalidError(f"the file {path} has {length} bytes, but the items end at byte {end}")
    return _over(path, dtype, shape, mode.replace("w", "r"), offset, order, options)


def _make(path: str, length: int, *, is_new: bool) -> None:
    """Creates a file of zeroes, or extends one, unless an array has it open."""
    descriptor = os.open(path, os.O_RDWR | (os.O_CREAT if is_new else 0) | getattr(os, "O_BINARY", 0), 0o666)
    try:
        try:
            import fcntl

            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except ImportError:
            pass
        except OSError:
            raise FileError(f"the file {path} is in use; close the arrays that have it open") from None
        if is_new:
            os.ftruncate(descriptor, 0)
        # Another program may have extended the file meanwhile.
        os.ftruncate(descriptor, max(length, 1, os.fstat(descriptor).st_size))
    finally:
        os.close(descriptor)


def _over(
    path: str, dtype: Any, shape: tuple[int, ...], mode: str, offset: int, order: str, options: dict[str, Any]
) -> Array:
    options = _array._checked(options)
    if 0 in shape or not np.dtype(dtype).itemsize:
        array = _array.empty(shape, dtype, order, **options)
        if mode == "r":
            array.flags.writeable = False
        return array
    from ._files import close_at_exit

    close_at_exit()
    place = (offset, order)
    core = _array._opened((path, np.dtype(dtype), shape, mode, place), options)
    # A private copy cannot travel by the name of its file, which does not have the changes.
    return Array._of(core, None if mode == "c" else path, mode, place)


def open(
    path: str | os.PathLike[str], dtype: Any = None, shape: Any = None, mode: str | None = None, **options: Any
) -> Any:
    """Opens the array in a file or folder, in place; see `empty` for the options.

    The contents determine the kind of the file:

    - a file of `create`: its dtype and shape are known;
    - NumPy's ``.npy``;
    - a folder of Zarr, version 2 or 3 (needs the package ``zarr``);
    - ``.safetensors``, or the ``.safetensors.index.json`` of several: returns a dictionary of arrays;
    - any other file: raw items of `dtype` in C order (see `memmap` for an offset).

    Parameters
    ----------
    path : path
        The file or folder.
    dtype : data type, optional
        The dtype of the items. Necessary for raw files; an error if another kind of file has another dtype.
    shape : int or sequence of ints, optional
        The shape, if the file does not store it; by default one axis.
    mode : {"r+", "r", "c"}, optional
        "r+" (the default, except for safetensors) to read and write, "r" to read only, "c" to keep changes out of the
        file. Files of `create` and Zarr stores have no "c", safetensors no "r+".

    Examples
    --------
    >>> import os, tempfile, numpy as np, vmarray as vm
    >>> path = os.path.join(tempfile.mkdtemp(), "a.npy")
    >>> np.save(path, np.arange(6).reshape(2, 3))
    >>> with vm.open(path) as a:
    ...     a[1] *= 10
    >>> np.load(path)
    array([[ 0,  1,  2],
           [30, 40, 50]])
    """
    path = _array._absolute(path)
    if not os.path.exists(path):
        raise FileNotFoundError(f"there is no file {path}; create it by vmarray.create")
    if mode not in (None, "r", "r+", "c"):
        raise ValueError(f"mode must be 'r', 'r+' or 'c', not {mode!r}")
    shape = None if shape is None else _array._as_tuple(shape)
    if os.path.isdir(path):
        return _of_folder(path, dtype, shape, mode or "r+", options)
    with _opened(path) as file:
        start = file.read(16)
    if start.startswith(b"vmarray\x1a"):
        return _of_store(path, dtype, shape, mode or "r+", options)
    if start.startswith(b"\x93NUMPY"):
        own, own_shape, offset, order = _npy_header(path)
        _expect(path, own, own_shape, dtype, shape)
        return _over(path, own, own_shape, mode or "r+", offset, order, options)
    is_named = path.endswith((".safetensors", ".safetensors.index.json"))
    if is_named and dtype is not None:
        raise FileError(f"{path} names the dtypes of its arrays; leave `dtype` out (vmarray.memmap opens the bytes)")
    if is_named or (dtype is None and start[8:9] == b"{"):
        return SafeTensors(path, "r" if mode is None else mode, **options)
    for magic, text in _FOREIGN.items():
        if start.startswith(magic):
            raise InvalidError(f"{path} is {text}; vmarray.memmap opens its bytes")
    if dtype is None:
        raise InvalidError(f"the kind of {path} is not known; pass the dtype of its items")
    mode = mode or "r+"
    if shape is not None and math.prod(shape) * np.dtype(dtype).itemsize != os.path.getsize(path):
        size = os.path.getsize(path) // (np.dtype(dtype).itemsize or 1)
        raise InvalidError(f"cannot reshape array of size {size} into shape {shape}; see vmarray.memmap")
    return memmap(path, dtype, mode, shape=shape, **options)


def _opened(path: str) -> Any:
    if not os.path.isfile(path):
        raise InvalidError(f"{path} is neither a file nor a folder; name a regular file")
    return builtins.open(path, "rb")


def _expect(path: str, own: Any, own_shape: Any, dtype: Any, shape: Any) -> None:
    """Raises an error if a file has another dtype or shape than the program expects."""
    if dtype is not None and np.dtype(dtype) != own:
        raise FileError(f"{path} has items of dtype {own}, not {np.dtype(dtype)}; leave `dtype` out, or use astype")
    if shape is not None and shape != tuple(own_shape):
        raise InvalidError(f"{path} has the shape {tuple(own_shape)}, not {shape}; leave `shape` out, or use reshape")


def _of_store(path: str, dtype: Any, shape: Any, mode: str, options: dict[str, Any]) -> Array:
    if mode == "c":
        raise InvalidError("files of vmarray.create have no mode 'c'; open a copy of the file, or use mode 'r'")
    element, kind, text = _core.described_file(path)
    if kind != "linear":
        raise InvalidError(f"{path} has an array of another kind ({kind}); open it by vmarray.Ragged.open, or in Rust")
    known = _annotated(text)
    if dtype is None:
        dtype = known[0] if known else np.dtype(_STORED[element]) if element in _STORED else None
        if dtype is None:
            raise InvalidError(f"{path} has elements {element}, whose dtype is not known; pass `dtype`")
    dtype = np.dtype(dtype)
    if shape is None and known and len(known[1]) != 1 and known[0] == dtype:
        shape = known[1]
    return Array._of(_core.open(path, dtype, shape, mode == "r", _array._checked(options)), path, mode)


def _annotated(text: str) -> tuple[np.dtype[Any], tuple[int, ...]] | None:
    """The dtype and the shape that `create` has stored in a file."""
    try:
        known = json.loads(text)
        descr = known["dtype"]
        descr = _as_descr(descr) if isinstance(descr, list) else descr
        return np.lib.format.descr_to_dtype(descr), tuple(int(one) for one in known["shape"])
    except (ValueError, TypeError, KeyError):
        return None


def _as_descr(fields: Any) -> Any:
    """The fields of a dtype, as tuples in place of JSON's lists."""
    return [
        (
            tuple(name) if isinstance(name, list) else name,
            _as_descr(of) if isinstance(of, list) else of,
            *map(tuple, rest),
        )
        for name, of, *rest in fields
    ]


def _of_folder(path: str, dtype: Any, shape: Any, mode: str, options: dict[str, Any]) -> Array:
    from ._files import open_zarr

    names = {"zarr.json", ".zarray", ".zgroup"} & {*os.listdir(path)}
    if not names:
        raise InvalidError(f"the folder {path} is no Zarr array; vmarray.Ragged.open opens rows")
    if mode == "c":
        raise InvalidError("Zarr stores have no mode 'c'; use mode 'r', or open a copy of the store")
    try:
        array = open_zarr(path, home=True, mode=mode, **options)
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise InvalidError(f"{path} cannot be opened as a Zarr array: {error}; name an array of a group") from error
    _expect(path, array.dtype, array.shape, dtype, shape)
    return array


def _npy_header(path: str) -> tuple[np.dtype[Any], tuple[int, ...], int, str]:
    """Dtype, shape, offset of the first item, and order of a file of NumPy."""
    try:
        # Only NumPy's parser reads all versions of headers. The map is dropped before its items are accessed.
        mapped = np.lib.format.open_memmap(path, mode="r")
    except OSError:
        raise
    except Exception as error:  # NumPy's parser raises errors of many classes, also those of Python's tokenizer.
        kind = InvalidError if "objects" in str(error) else FileError
        raise kind(f"{path} is no file of NumPy with numbers: {error}") from error
    order = "F" if mapped.flags.f_contiguous and not mapped.flags.c_contiguous else "C"
    return mapped.dtype, mapped.shape, mapped.offset, order


class SafeTensors(Mapping[str, Array]):
    """The tensors in a safetensors file, or in the files of an index, in place. `open` returns it for such files.

    A dictionary of names and arrays. The array of a tensor is opened when the program asks for it. Tensors of type
    ``BF16`` and ``F8_…`` have dtypes of the package ``ml_dtypes``, if that is installed; else use `raw`.

    Examples
    --------
    >>> import json, pathlib, tempfile, numpy as np, vmarray as vm
    >>> path = pathlib.Path(tempfile.mkdtemp(), "a.safetensors")
    >>> header = json.dumps({"w": {"dtype": "F32", "shape": [2, 2], "data_offsets": [0, 16]}}).encode()
    >>> _ = path.write_bytes(len(header).to_bytes(8, "little") + header + np.arange(4, dtype="f4").tobytes())
    >>> tensors = vm.open(path)
    >>> [*tensors], tensors["w"][1]
    (['w'], Array([2., 3.], dtype=float32))
    """

    def __init__(self, path: str | os.PathLike[str], mode: str = "r", **options: Any) -> None:
        path = _array._absolute(path)
        if mode not in ("r", "c"):
            raise InvalidError("safetensors files are opened by mode 'r' or 'c', because their tensors share the file")
        self._mode, self._options = mode, _array._checked(options)
        #: The metadata of the file: texts by name.
        self.metadata: dict[str, str] = {}
        #: For each name: path, type, shape and offset.
        self._tensors: dict[str, tuple[str, str, tuple[int, ...], int]] = {}
        if path.endswith(".json"):
            self._read_index(path)
        else:
            self._tensors = self._read(path)

    def _read(self, path: str) -> dict[str, tuple[str, str, tuple[int, ...], int]]:
        with _opened(path) as file:
            size = os.fstat(file.fileno()).st_size
            length = int.from_bytes(file.read(8), "little")
            if size < 8 or length > min(_HEADER_MAX, size - 8):
                raise FileError(f"{path} is no safetensors file: its header of {length} bytes does not fit")
            try:
                header = json.loads(file.read(length).decode(), object_pairs_hook=_unique)
                metadata = header.pop("__metadata__", {})
                tensors = {name: _tensor(one) for name, one in header.items()}
            except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
                raise FileError(f"{path} is no valid safetensors file: {error}") from error
        end = 0
        for start, stop in sorted((start, stop) for _, _, start, stop in tensors.values()):
            if start != end:
                raise FileError(f"{path} is no valid safetensors file: tensors overlap or leave a gap at byte {start}")
            end = stop
        if end != size - 8 - length:
            raise FileError(f"{path} has {size - 8 - length} bytes of tensors, but its header describes {end}")
        self.metadata |= metadata if isinstance(metadata, dict) else {}
        return {name: (path, kind, shape, 8 + length + start) for name, (kind, shape, start, _) in tensors.items()}

    def _read_index(self, path: str) -> None:
        with _opened(path) as file:
            try:
                places = json.loads(file.read(_HEADER_MAX).decode(), object_pairs_hook=_unique)["weight_map"]
                files = {str(one) for one in places.values()}
            except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
                raise FileError(f"{path} is no valid index of safetensors: {error}") from error
        if any(one != os.path.basename(one) or one in ("", ".", "..") for one in files):
            raise FileError(f"{path} names files outside of its folder")
        own = {one: self._read(os.path.join(os.path.dirname(path), one)) for one in sorted(files)}
        missing = [name for name, one in places.items() if name not in own[str(one)]]
        if missing:
            raise FileError(f"{path} names the tensor {missing[0]!r}, which its file does not have")
        self._tensors = {name: own[str(one)][name] for name, one in places.items()}

    def __getitem__(self, name: str) -> Array:
        path, kind, shape, offset = self._tensors[name]
        dtype = _TENSOR_TYPES.get(kind, "")
        if kind in _ML_BYTES:
            try:
                import ml_dtypes

                dtype = np.dtype(getattr(ml_dtypes, dtype))
            except ImportError:
                raise ImportError(
                    f"the tensor {name!r} has the type {kind}; install ml_dtypes, or use the bits: raw({name!r})",
                    name="ml_dtypes",
                ) from None
        if not dtype:
            raise InvalidError(f"the tensor {name!r} has the type {kind}, which is not supported")
        return _over(path, np.dtype(dtype), shape, self._mode, offset, "C", self._options)

    def raw(self, name: str) -> Array:
        """The tensor as unsigned integers with the same bits."""
        path, kind, shape, offset = self._tensors[name]
        dtype = np.dtype(f"u{_ML_BYTES.get(kind) or np.dtype(_TENSOR_TYPES[kind]).itemsize}")
        return _over(path, dtype, shape, self._mode, offset, "C", self._options)

    def __iter__(self) -> Iterator[str]:
        return iter(self._tensors)

    def __len__(self) -> int:
        return len(self._tensors)

    def __repr__(self) -> str:
        tensors = (f"{name}: {kind}{[*shape]}" for name, (_, kind, shape, _) in self._tensors.items())
        return f"SafeTensors({', '.join(tensors)})"


def _unique(pairs: Any) -> dict[str, Any]:
    """A dictionary of JSON without duplicate names."""
    found = dict(pairs)
    if len(found) != len(pairs):
        raise ValueError("a name occurs twice")
    return found


def _tensor(one: Any) -> tuple[str, tuple[int, ...], int, int]:
    """Type, shape, and first and last byte of a tensor in a header; raises an error if they do not fit."""
    kind, shape, (start, stop) = one["dtype"], one["shape"], one["data_offsets"]
    if not isinstance(kind, str) or any(type(number) is not int or number < 0 for number in [*shape, start, stop]):
        raise ValueError("a type is no text, or a shape or an offset no number")
    bits = _bits(kind)
    if bits and math.prod(shape) * bits != (stop - start) * 8:
        raise ValueError(f"a tensor of type {kind} and shape {shape} does not have {stop - start} bytes")
    if start > stop:
        raise ValueError("a tensor ends before it begins")
    return kind, tuple(shape), start, stop


def _bits(kind: str) -> int:
    if kind in _ML_BYTES:
        return 8 * _ML_BYTES[kind]
    return 8 * np.dtype(_TENSOR_TYPES[kind]).itemsize if kind in _TENSOR_TYPES else 0
