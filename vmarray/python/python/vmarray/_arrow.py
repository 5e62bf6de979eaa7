"""Arrow's C data interface: arrays as columns of pyarrow, polars and DuckDB, and columns as arrays.

Arrays of one axis are columns of numbers, arrays of more axes columns of lists with a fixed length, and arrays of
structures are tables. The package needs none of these libraries.
"""

from __future__ import annotations

import ctypes
import math
from typing import Any

import numpy as np

from . import _array, _core, _ufuncs
from ._array import Array
from ._errors import InvalidError

#: Formats of Arrow, by dtypes of NumPy.
_FORMATS = {
    "i1": "c", "u1": "C", "i2": "s", "u2": "S", "i4": "i", "u4": "I", "i8": "l", "u8": "L", "f2": "e", "f4": "f",
    "f8": "g", "b1": "b", "M8[D]": "tdD", "M8[s]": "tss:", "M8[ms]": "tsm:", "M8[us]": "tsu:", "M8[ns]": "tsn:",
    "m8[s]": "tDs", "m8[ms]": "tDm", "m8[us]": "tDu", "m8[ns]": "tDn",
}  # fmt: skip
_DTYPES = {form: np.dtype(name) for name, form in _FORMATS.items()}
#: Most bytes of a piece of an array that is converted at once.
_PIECE = 16 << 20
_NULLABLE = 2


class _Schema(ctypes.Structure):
    pass


class _Chunk(ctypes.Structure):
    pass


class _Stream(ctypes.Structure):
    pass


_SCHEMA, _CHUNK, _STREAM = (ctypes.POINTER(one) for one in (_Schema, _Chunk, _Stream))
_FREE_SCHEMA, _FREE_CHUNK, _FREE_STREAM = (ctypes.CFUNCTYPE(None, one) for one in (_SCHEMA, _CHUNK, _STREAM))
_GET_SCHEMA, _GET_NEXT = (ctypes.CFUNCTYPE(ctypes.c_int, _STREAM, one) for one in (_SCHEMA, _CHUNK))
_GET_ERROR = ctypes.CFUNCTYPE(ctypes.c_void_p, _STREAM)
_Schema._fields_ = [
    ("format", ctypes.c_char_p), ("name", ctypes.c_char_p), ("metadata", ctypes.c_void_p), ("flags", ctypes.c_int64),
    ("n_children", ctypes.c_int64), ("children", ctypes.POINTER(_SCHEMA)), ("dictionary", _SCHEMA),
    ("release", _FREE_SCHEMA), ("private", ctypes.c_void_p),
]  # fmt: skip
_Chunk._fields_ = [
    ("length", ctypes.c_int64), ("null_count", ctypes.c_int64), ("offset", ctypes.c_int64),
    ("n_buffers", ctypes.c_int64), ("n_children", ctypes.c_int64), ("buffers", ctypes.POINTER(ctypes.c_void_p)),
    ("children", ctypes.POINTER(_CHUNK)), ("dictionary", _CHUNK), ("release", _FREE_CHUNK),
    ("private", ctypes.c_void_p),
]  # fmt: skip
_Stream._fields_ = [
    ("get_schema", _GET_SCHEMA), ("get_next", _GET_NEXT), ("get_last_error", _GET_ERROR), ("release", _FREE_STREAM),
    ("private", ctypes.c_void_p),
]  # fmt: skip

_new_capsule = ctypes.pythonapi.PyCapsule_New
_new_capsule.restype, _new_capsule.argtypes = ctypes.py_object, [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p]
_pointer_of = ctypes.pythonapi.PyCapsule_GetPointer
_pointer_of.restype, _pointer_of.argtypes = ctypes.c_void_p, [ctypes.py_object, ctypes.c_char_p]

_set_context = ctypes.pythonapi.PyCapsule_SetContext
_set_context.restype, _set_context.argtypes = ctypes.c_int, [ctypes.py_object, ctypes.c_void_p]

_increase = ctypes.pythonapi.Py_IncRef
_increase.restype, _increase.argtypes = None, [ctypes.py_object]

_ADDRESSES = _core.arrow_releases()
_RELEASE_SCHEMA, _RELEASE_CHUNK, _RELEASE_STREAM = (
    kind(address) for kind, address in zip((_FREE_SCHEMA, _FREE_CHUNK, _FREE_STREAM), _ADDRESSES)
)


def _keep(*objects: Any) -> int:
    """The address of a new object that keeps others alive, with a reference that the release of a structure drops."""
    _increase(objects)
    return id(objects)


def _form(dtype: np.dtype[Any]) -> str:
    form = _FORMATS.get(dtype.newbyteorder("=").str[1:].replace("|", ""))
    if form is None:
        raise InvalidError(f"Arrow has no numbers of dtype {dtype}; convert them by astype")
    return form


def _schema_of(dtype: np.dtype[Any], shape: tuple[int, ...], name: str, into: _Schema) -> None:
    """Fills the structure that describes a column of items of a dtype and a shape."""
    children: list[_Schema] = []
    if dtype.subdtype is not None:
        shape, dtype = (*shape, *dtype.subdtype[1]), dtype.subdtype[0]
    if shape:
        form = f"+w:{shape[0]}"
        children.append(_Schema())
        _schema_of(dtype, shape[1:], "item", children[0])
    elif dtype.names is not None:
        form = "+s"
        for field in dtype.names:
            children.append(_Schema())
            _schema_of(dtype[field], (), field, children[-1])
    else:
        form = _form(dtype)
    kind: Any = _SCHEMA * len(children)
    pointers = kind(*map(ctypes.pointer, children))
    texts = form.encode(), name.encode()
    flags = _NULLABLE if dtype.kind in "mM" and not shape else 0
    into.format, into.name, into.metadata, into.flags, into.dictionary = *texts, None, flags, None
    into.n_children, into.children = len(children), ctypes.cast(pointers, ctypes.POINTER(_SCHEMA))
    into.release, into.private = _RELEASE_SCHEMA, _keep(children, pointers, texts)


def _chunk_of(items: np.ndarray[Any, Any], into: _Chunk) -> None:
    """Fills the structure of the items of a NumPy array along its first axis."""
    children: list[_Chunk] = []
    length, missing = len(items), 0
    buffers: list[Any] = [None]
    owned: list[Any] = []
    if items.ndim > 1:
        children.append(_Chunk())
        _chunk_of(items.reshape(items.shape[0] * items.shape[1], *items.shape[2:]), children[0])
    elif items.dtype.names is not None:
        for field in items.dtype.names:
            children.append(_Chunk())
            _chunk_of(items[field], children[-1])
    else:
        items = np.ascontiguousarray(items, items.dtype.newbyteorder("="))
        if items.dtype.kind in "mM":
            is_there = ~np.isnat(items)
            missing = length - int(is_there.sum())
            if missing:
                owned.append(np.packbits(is_there, bitorder="little"))
                buffers[0] = owned[0].ctypes.data
            if items.dtype == "M8[D]":
                items = _days(items, is_there)
        data = np.packbits(items, bitorder="little") if items.dtype == np.bool_ else items
        buffers.append(data.ctypes.data if data.size else None)
        items = data
    kind: Any = _CHUNK * len(children)
    pointers = kind(*map(ctypes.pointer, children))
    addresses = (ctypes.c_void_p * len(buffers))(*buffers)
    into.length, into.null_count, into.offset, into.dictionary = length, missing, 0, None
    into.n_buffers, into.buffers = len(buffers), ctypes.cast(addresses, ctypes.POINTER(ctypes.c_void_p))
    into.n_children, into.children = len(children), ctypes.cast(pointers, ctypes.POINTER(_CHUNK))
    into.release, into.private = _RELEASE_CHUNK, _keep(children, pointers, addresses, items, owned)


def _days(dates: np.ndarray[Any, Any], is_there: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """Dates as Arrow's numbers of days, which have 4 bytes; 0 for a missing date."""
    days = np.where(is_there, dates.astype("i8"), 0)
    if (days != days.astype("i4")).any():
        raise InvalidError("some dates are outside of the range of Arrow's dates; convert them by astype('M8[s]')")
    return days.astype("i4")


class _Source:
    """An exported array: its pieces, and the functions that a consumer calls."""

    def __init__(self, array: Array) -> None:
        self._array, self._error = array, b""
        rows = max(1, _PIECE // max(1, array.itemsize * math.prod(array.shape[1:])))
        self._starts = iter(range(0, len(array), rows))
        self._rows = rows
        self.stream = _Stream(
            _GET_SCHEMA(self._schema), _GET_NEXT(self._next), _GET_ERROR(self._last_error), _RELEASE_STREAM
        )

    def _schema(self, _: Any, into: Any) -> int:
        try:
            _schema_of(self._array.dtype, self._array.shape[1:], "", into.contents)
            return 0
        except BaseException as error:
            return self._failed(error)

    def _next(self, _: Any, into: Any) -> int:
        try:
            start = next(self._starts, None)
            if start is None:
                into.contents.release = _FREE_CHUNK()
                return 0
            items = np.asarray(self._array[start : start + self._rows])
            _chunk_of(items, into.contents)
            return 0
        except BaseException as error:
            return self._failed(error)

    def _failed(self, error: BaseException) -> int:
        # A consumer's code in C has no exceptions: it only receives the error number EIO and this text.
        self._error = (str(error) or type(error).__name__).encode() + b"\0"
        return 5

    def _last_error(self, _: Any) -> Any:
        return ctypes.cast(ctypes.c_char_p(self._error), ctypes.c_void_p).value if self._error else None


def exported(array: Array) -> Any:
    """The capsule of a stream of the items of an array, which reads them piece by piece."""
    if not array.ndim:
        raise InvalidError("an array without axes is no column; use array.reshape(1)")
    _schema_of(array.dtype, array.shape[1:], "", probe := _Schema())
    _end(ctypes.pointer(probe))
    source = _Source(array)
    source.stream.private = _keep(source)
    capsule = _new_capsule(ctypes.addressof(source.stream), b"arrow_array_stream", _ADDRESSES[3])
    # The capsule reads the stream when it ends, so it also keeps the stream alive.
    _set_context(capsule, _keep(source))
    return capsule


def from_arrow(values: Any, **options: Any) -> Array:
    """A column of pyarrow, polars, DuckDB or another library of Arrow as a new array; see `empty` for the options.

    Lists of a fixed length become axes, tables become arrays of structures (`from_dataframe` returns their columns).
    Missing floats become NaN, and missing dates NaT. Other missing items, texts and lists of any length are errors. In
    the other direction, these libraries read arrays themselves: ``polars.Series(array)``,
    ``pyarrow.chunked_array(array)`` or, for an array of structures, ``pyarrow.table(array)``.

    Examples
    --------
    >>> import vmarray as vm
    >>> vm.from_arrow(vm.arange(5))[3]
    np.int64(3)
    """
    options = _array._checked(options)
    if hasattr(values, "__arrow_c_stream__"):
        capsule = values.__arrow_c_stream__()
        stream = ctypes.cast(_pointer_of(capsule, b"arrow_array_stream"), _STREAM)
        try:
            return _of_stream(stream, options)
        finally:
            _end(stream)
    if hasattr(values, "__arrow_c_array__"):
        schema, chunk = values.__arrow_c_array__()
        schemas, chunks = _pointer(schema, b"arrow_schema", _SCHEMA), _pointer(chunk, b"arrow_array", _CHUNK)
        try:
            dtype = _dtype_of(schemas.contents)
            return _array.asarray(_items(schemas.contents, chunks.contents, dtype), **options)
        finally:
            _end(chunks)
            _end(schemas)
    raise TypeError(f"{type(values).__name__} is no column of a library of Arrow; use vmarray.asarray")


def _pointer(capsule: Any, name: bytes, kind: Any) -> Any:
    return ctypes.cast(_pointer_of(capsule, name), kind)


def _end(pointer: Any) -> None:
    if pointer.contents.release:
        pointer.contents.release(pointer)


def _of_stream(stream: Any, options: dict[str, Any]) -> Array:
    def checked(code: int) -> None:
        if code:
            error = stream.contents.get_last_error(stream)
            text = ctypes.string_at(error).decode(errors="replace") if error else f"error {code}"
            raise InvalidError(f"the library of Arrow cannot read the column: {text}")

    schema = _Schema()
    checked(stream.contents.get_schema(stream, ctypes.byref(schema)))
    parts: list[Array] = []
    try:
        dtype = _dtype_of(schema)
        while True:
            chunk = _Chunk()
            checked(stream.contents.get_next(stream, ctypes.byref(chunk)))
            if not chunk.release:
                break
            try:
                parts.append(_array.asarray(_items(schema, chunk, dtype), **options))
            finally:
                _end(ctypes.pointer(chunk))
    finally:
        _end(ctypes.pointer(schema))
    if len(parts) == 1:
        return parts[0]
    base, shape = (dtype.base, dtype.shape) if dtype.subdtype is not None else (dtype, ())
    result, start = _array.empty((sum(map(len, parts)), *shape), base, **options), 0
    while parts:
        part = parts.pop(0)
        result[start : start + len(part)] = part
        start += len(part)
    return result


def _dtype_of(schema: _Schema) -> np.dtype[Any]:
    form = schema.format.decode()
    if schema.dictionary:
        raise InvalidError("a column of categories has no dtype; convert it to numbers, for example to its codes")
    if form.startswith("+w:"):
        return np.dtype((_dtype_of(schema.children[0].contents), (int(form[3:]),)))
    if form == "+s":
        children = [schema.children[number].contents for number in range(schema.n_children)]
        return np.dtype([(one.name.decode(), _dtype_of(one)) for one in children])
    # A time zone only affects how other libraries print times.
    form = form[:4] if form.startswith("ts") else form
    if form not in _DTYPES:
        raise InvalidError(f"a column of Arrow's type {form!r} has no dtype; convert texts and decimals to numbers")
    return _DTYPES[form]


def _items(schema: _Schema, chunk: _Chunk, dtype: np.dtype[Any], start: int = 0, length: int | None = None) -> Any:
    """The items of a chunk from `start` on, after the chunk's own offset."""
    length, start = chunk.length if length is None else length, chunk.offset + start
    form = schema.format.decode()
    if form == "+s":
        items = np.empty(length, dtype)
        for number, name in enumerate(dtype.names or ()):
            child = chunk.children[number].contents
            items[name] = _items(schema.children[number].contents, child, dtype[name], start, length)
    elif form.startswith("+w:"):
        width, child = int(form[3:]), chunk.children[0].contents
        base = _dtype_of(schema.children[0].contents)
        inner = _items(schema.children[0].contents, child, base, start * width, length * width)
        items = inner.reshape(length, width, *inner.shape[1:])
    else:
        data = chunk.buffers[1]
        if dtype == np.bool_:
            items = _bits(data, start, length)
        elif length:
            stored = np.dtype("i4") if dtype == "M8[D]" else dtype
            raw = (ctypes.c_char * (length * stored.itemsize)).from_address(data + start * stored.itemsize)
            items = np.frombuffer(memoryview(raw), stored, length)
            if stored != dtype:
                items = items.astype("i8").view(dtype)
        else:
            items = np.empty(0, dtype)
    if chunk.null_count and chunk.buffers[0] and length:
        missing = ~_bits(chunk.buffers[0], start, length)
        if missing.any():
            if dtype.kind not in "fmM" or items.ndim > 1:
                raise InvalidError(f"{int(missing.sum())} items of dtype {dtype} are missing; fill them first")
            items = np.where(missing, np.array("NaT" if dtype.kind in "mM" else np.nan, dtype), items)
    return items


def _bits(address: Any, start: int, length: int) -> np.ndarray[Any, Any]:
    if not length:
        return np.empty(0, bool)
    first, end = start // 8, (start + length + 7) // 8
    raw = np.frombuffer(memoryview((ctypes.c_char * (end - first)).from_address(address + first)), np.uint8)
    return np.unpackbits(raw, bitorder="little")[start - first * 8 :][:length].astype(bool)


def from_dataframe(frame: Any, **options: Any) -> dict[str, Array]:
    """The columns of a data frame of pyarrow, polars, DuckDB or pandas as new arrays, by name; see `from_arrow`.

    Examples
    --------
    >>> import numpy as np, vmarray as vm
    >>> table = vm.array(np.array([(1, 0.5), (2, 1.5)], [("id", "i4"), ("mass", "f8")]))
    >>> vm.from_dataframe(table)["mass"]
    Array([0.5, 1.5], dtype=float64)
    """
    if hasattr(frame, "columns") and hasattr(frame, "to_numpy") and type(frame).__module__.startswith("pandas"):
        return {str(name): _array.asarray(frame[name].to_numpy(), **options) for name in frame.columns}
    array = from_arrow(frame, **options)
    if array.dtype.names is None:
        raise InvalidError("the values are one column; use vmarray.from_arrow")
    columns = {}
    for name in array.dtype.names:
        field = array[name]
        column = columns[name] = _array.empty(field.shape, field.dtype, **options)
        for block in _ufuncs.blocks(field.shape):
            column[block] = np.asarray(field[block])
    return columns
