"""The class ``Array``, which implements NumPy's array interface, and functions that create arrays."""

from __future__ import annotations

import builtins
import json
import math
import mmap
import operator
import os
import weakref
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, SupportsIndex

import numpy as np

from . import _core, _indexing, _on_host, _ufuncs
from ._errors import Error, InvalidError
from ._flat import Flat

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from ._core import Core, Device
    from ._export import DeviceMemory
    from ._types import (
        Axes,
        Casting,
        Devices,
        DType,
        Fields,
        Mode,
        Options,
        Order,
        Out,
        Shape,
        Side,
        SortKind,
        Values,
        Where,
    )  # fmt: skip

#: NumPy. Its functions return this package's arrays for such arguments, but NumPy's stubs do not know that.
_numpy: Any = np
#: Most bytes of a pending expression that are computed to show it.
_SHOWN_BYTES = 16 << 20
#: The functions that the operator ``**`` of NumPy calls for a few exponents of Python.
_POWERS: dict[tuple[type, object], Any] = {(int, 2): np.square, (int, -1): np.reciprocal, (float, 0.5): np.sqrt}
#: The classes of keys that may select a view or an item.
_PLAIN_KEYS = {int, slice, tuple, type(Ellipsis), type(None)}
#: The classes of NumPy's errors for keys and values, and most items or bytes of a write that is repeated for one.
_KEY_ERRORS = (TypeError, ValueError, IndexError, OverflowError)
_REPEATED_MAX = 1 << 26
#: Advice for attributes of NumPy's arrays that this class does not have.
_REFUSED = {
    "resize": "numpy.resize(array, shape) returns a larger array, and array.append adds items at the end",
    "setfield": "write to array['name'], or to array.view(dtype)",
    "getfield": "read array['name'], or array.view(dtype)",
}
#: Most bytes of a memory map of NumPy that a copy maps at once.
_MAPPED_MAX = 64 << 20
#: Items that an iterator reads at once.
_ITERATED = 1 << 16


def _as_tuple(shape: Any) -> tuple[Any, ...]:
    if isinstance(shape, Iterable):
        shape = tuple(operator.index(one) for one in shape)
    else:
        shape = (operator.index(shape),)
    if any(one < 0 for one in shape):
        raise ValueError("negative dimensions are not allowed")
    return shape


def _has_gaps(dtype: np.dtype[Any]) -> bool:
    """True if items have bytes outside of the dtype's fields, such as other fields if the dtype shows only some."""
    if dtype.names is None or dtype.fields is None:
        return False
    kinds = [dtype.fields[name][0] for name in dtype.names]
    return sum(one.itemsize for one in kinds) != dtype.itemsize or any(map(_has_gaps, kinds))


def _order(order: Any) -> str:
    """One of NumPy's orders of items, as "C", "F", "A" or "K"."""
    name = "K" if order is None else str(order).upper()
    if name not in ("C", "F", "A", "K"):
        raise ValueError(f"order must be one of 'C', 'F', 'A', or 'K' (got {order!r})")
    return name


def _is_number(value: Any) -> bool:
    return not isinstance(value, Array) and np.ndim(value) == 0


def _is_known(value: object) -> bool:
    """True if `Array` handles operations with the value, instead of leaving them to the value's class."""
    return isinstance(value, (Array, np.ndarray, np.generic)) or not hasattr(value, "__array_ufunc__")


def _in_ram(value: Any) -> Any:
    """Converts arrays and NumPy's scalars to NumPy arrays, because NumPy casts both alike in writes by a list or
    mask."""
    return np.asarray(value) if isinstance(value, (Array, np.generic)) else value


def _is_list(key: Any) -> bool:
    """True if a key is a NumPy array of signed integers with at least one axis."""
    return type(key) is np.ndarray and key.ndim > 0 and key.dtype.kind == "i"


#: Error text for values whose shape does not fit a list of indices.
_MISMATCH = "shape mismatch: value array of shape {} could not be broadcast to indexing result of shape {}"


def _spread(value: Any, shape: tuple[Any, ...], message: str) -> np.ndarray[Any, Any]:
    """Broadcasts a value to a shape. If that is impossible, raises an error with `message`."""
    value = np.asarray(value)
    while value.ndim > len(shape) and value.shape[0] == 1:
        value = value[0]
    try:
        return np.broadcast_to(value, shape)
    except ValueError:
        raise ValueError(message.format(value.shape, shape)) from None


class Array(np.lib.mixins.NDArrayOperatorsMixin):
    """An array of any shape and dtype. Devices store the items, and RAM caches them.

    Index, compute and reduce it like a NumPy array. GPUs compute an expression when the program first needs its items;
    changes to the operands in between do not affect the result. NumPy computes on arrays in RAM at once. Views share
    memory with their array.

    `zeros`, `ones`, `full`, `empty`, `arange`, `asarray`, `array`, `create` and `open` create arrays.

    Examples
    --------
    >>> import vmarray as vm
    >>> a = vm.arange(10)
    >>> a[::2] = 0
    >>> ((a * 2 + 1)[a > 3]).sum()
    np.int64(45)
    """

    __slots__ = ("__weakref__", "_core", "_mode", "_opening", "_path", "_place")
    _core: Core
    #: The path of its file, and the mode that this was opened by.
    _path: str | None
    _mode: str
    #: Offset and order of the items in a file of another program; None in a file of this package.
    _place: tuple[int, str] | None
    #: Path, dtype, shape, mode and place of an array that was pickled, and is opened when it is used first.
    _opening: Opening
    __array_priority__ = 100.0

    if TYPE_CHECKING:
        # NumPy's stubs declare that operators return any object.
        def __add__(self, other: Any) -> Array: ...
        def __radd__(self, other: Any) -> Array: ...
        def __iadd__(self, other: Any) -> Array: ...
        def __sub__(self, other: Any) -> Array: ...
        def __rsub__(self, other: Any) -> Array: ...
        def __isub__(self, other: Any) -> Array: ...
        def __mul__(self, other: Any) -> Array: ...
        def __rmul__(self, other: Any) -> Array: ...
        def __imul__(self, other: Any) -> Array: ...
        def __truediv__(self, other: Any) -> Array: ...
        def __rtruediv__(self, other: Any) -> Array: ...
        def __itruediv__(self, other: Any) -> Array: ...
        def __floordiv__(self, other: Any) -> Array: ...
        def __rfloordiv__(self, other: Any) -> Array: ...
        def __ifloordiv__(self, other: Any) -> Array: ...
        def __mod__(self, other: Any) -> Array: ...
        def __rmod__(self, other: Any) -> Array: ...
        def __imod__(self, other: Any) -> Array: ...
        def __and__(self, other: Any) -> Array: ...
        def __rand__(self, other: Any) -> Array: ...
        def __iand__(self, other: Any) -> Array: ...
        def __or__(self, other: Any) -> Array: ...
        def __ror__(self, other: Any) -> Array: ...
        def __ior__(self, other: Any) -> Array: ...
        def __xor__(self, other: Any) -> Array: ...
        def __rxor__(self, other: Any) -> Array: ...
        def __ixor__(self, other: Any) -> Array: ...
        def __lshift__(self, other: Any) -> Array: ...
        def __rlshift__(self, other: Any) -> Array: ...
        def __ilshift__(self, other: Any) -> Array: ...
        def __rshift__(self, other: Any) -> Array: ...
        def __rrshift__(self, other: Any) -> Array: ...
        def __irshift__(self, other: Any) -> Array: ...
        def __neg__(self) -> Array: ...
        def __pos__(self) -> Array: ...
        def __invert__(self) -> Array: ...
        def __abs__(self) -> Array: ...
        def __lt__(self, other: Any) -> Array: ...
        def __le__(self, other: Any) -> Array: ...
        def __gt__(self, other: Any) -> Array: ...
        def __ge__(self, other: Any) -> Array: ...

    def __new__(cls, shape: Shape, dtype: DType = float, *, order: Order = "C", **options: Unpack[Options]) -> Array:
        """A new array whose items are zero; see `empty` for the options."""
        if cls is not Array or set(options) & {"buffer", "offset", "strides"}:
            raise TypeError("vmarray.Array stores its own items; use vmarray.asarray for items in memory")
        return empty(shape, dtype, order, **options)

    @classmethod
    def _of(cls, core: Core, path: str | None = None, mode: str = "r+", place: tuple[int, str] | None = None) -> Array:
        array = object.__new__(cls)
        array._core, array._path, array._mode, array._place = core, path, mode, place
        if path is not None:
            _OPEN[path, place] = array
        return array

    # Properties: shape, dtype, devices and others.

    @property
    def shape(self) -> tuple[int, ...]:
        """Number of items along each axis. If a mask selects the items (``a[a > 3]``), the devices first count them."""
        return self._core.shape

    @shape.setter
    def shape(self, shape: Any) -> None:
        # An array in Fortran order is pickled by its path, so its shape must stay that of the file.
        is_fortran = self._place is not None and self._place[1] == "F"
        core = None if is_fortran else self._core.reshaped(shape)
        if core is None:
            raise AttributeError("Incompatible shape for in-place modification; use `.reshape()`, which makes a copy")
        self._core = core

    @property
    def flags(self) -> Any:
        """NumPy's flags of the view. ``flags.writeable = False`` makes the view read-only."""
        return self._core.flags

    def setflags(self, write: Any = None, align: Any = None, uic: Any = None) -> None:
        """Makes the view read-only if ``write`` is false, like ``numpy.ndarray.setflags``."""
        if write is not None:
            self._core.flags.writeable = write
        if uic or align is False:
            raise ValueError("only the flag `write` can be set")

    @property
    def dtype(self) -> np.dtype[Any]:
        """The type of the items."""
        return self._core.dtype

    @property
    def ndim(self) -> int:
        """Number of axes."""
        return len(self.shape)

    @property
    def size(self) -> int:
        """Number of items."""
        count = 1
        for extent in self.shape:
            count *= extent
        return count

    @property
    def itemsize(self) -> int:
        """Size of an item in bytes."""
        return self.dtype.itemsize

    @property
    def nbytes(self) -> int:
        """Size of all items in bytes."""
        return self.size * self.itemsize

    @property
    def device(self) -> Device | tuple[Device, ...]:
        """The device that stores the items, or a tuple if there are several."""
        devices = self.devices
        return devices[0] if len(devices) == 1 else tuple(devices)

    def to_device(self, device: Devices, /, *, stream: Any = None) -> Array:
        """A copy on the given devices, or the array itself if it is already on them. ``stream`` has no effect."""
        devices = _listed(device)
        if devices == self.devices:
            return self
        result = empty(self.shape, self.dtype, devices=devices)
        result[...] = self
        return result

    def __array_namespace__(self, *, api_version: str | None = None) -> Any:
        from . import array_api

        if api_version not in (None, "2021.12", "2022.12", "2023.12", "2024.12"):
            raise ValueError(f"version {api_version!r} of the array API standard is not supported; use '2024.12'")
        return array_api

    @property
    def mT(self) -> Array:  # noqa: N802
        """A view with the last two axes exchanged."""
        if self.ndim < 2:
            raise ValueError("matrix transpose with ndim < 2 is undefined")
        return self.swapaxes(-1, -2)

    @property
    def T(self) -> Array:  # noqa: N802
        """A view with the axes in reverse order."""
        return self.transpose()

    @property
    def devices(self) -> list[Device]:
        """Devices that store the items of this array and of results computed from it. If the array is in a file, only
        the results are on these devices.
        """
        return self._core.devices

    @property
    def is_pending(self) -> bool:
        """True if the array is an expression that is not yet computed."""
        return self._core.is_pending

    @property
    def closed(self) -> bool:
        """True if the program has closed the array."""
        return self._core.is_closed

    def __len__(self) -> int:
        if not self.shape:
            raise TypeError("len() of unsized object")
        return self.shape[0]

    def __iter__(self) -> Iterator[Any]:
        if not self.shape:
            raise TypeError("iteration over a 0-d array")
        if self.ndim > 1:
            for number in range(len(self)):
                yield self[number]
            return
        for start in range(0, len(self), _ITERATED):
            yield from np.asarray(self[start : start + _ITERATED])

    def __contains__(self, value: object) -> bool:
        return bool((self == value).any())

    def __bool__(self) -> bool:
        return bool(self._single())

    def __int__(self) -> int:
        return int(self._single())

    def __float__(self) -> float:
        return float(self._single())

    def __complex__(self) -> complex:
        return complex(self._single())

    def __index__(self) -> int:
        if self.ndim or self.dtype.kind not in "iu":
            raise TypeError("only integer scalar arrays can be converted to a scalar index")
        return int(self._single())

    def __format__(self, form: str) -> str:
        return format(str(self) if self.ndim else self.item(), form)

    def _single(self) -> np.ndarray[Any, Any]:
        # Unless there is exactly one item, let NumPy raise its own error for zero or two items.
        return self._core.read() if self.size == 1 else np.empty(min(self.size, 2), self.dtype)

    def item(self, *index: int) -> Any:
        """The item at ``index`` as a Python number; without ``index``, the only item."""
        if index:
            key = index[0] if len(index) == 1 and isinstance(index[0], tuple) else index
            if len(key) == 1 and self.ndim != 1:
                at = operator.index(key[0])
                if not -self.size <= at < self.size:
                    raise IndexError(f"index {at} is out of bounds for size {self.size}")
                key = tuple(int(one) for one in np.unravel_index(at % self.size, self.shape))
            return self[key].item()
        if self.size != 1:
            raise ValueError("can only convert an array of size 1 to a Python scalar")
        return self._core.read().item()

    def tolist(self) -> Any:
        """All items as Python numbers, in nested lists."""
        return self._core.read().tolist()

    def __repr__(self) -> str:
        if self._core.is_closed:
            return f"<vmarray.Array closed, dtype={self.dtype}>"
        if self._core.is_pending and not self._is_cheap():
            shape = f"shape={self.shape}" if self._core.is_counted else "items not counted yet"
            devices = ", ".join(device.name for device in self.devices)
            return f"<vmarray.Array {shape}, dtype={self.dtype}, device={devices}, not computed yet>"
        values = np.array2string(self._edges(), separator=", ", prefix="Array(", threshold=self._threshold())
        shape = f", shape={self.shape}" if self.size > self._threshold() or self.size == 0 else ""
        return f"Array({values}{shape}, dtype={self.dtype})"

    def __str__(self) -> str:
        if self._core.is_closed or (self._core.is_pending and not self._is_cheap()):
            return repr(self)
        return np.array2string(self._edges(), threshold=self._threshold())

    def _repr_html_(self) -> str:
        import html

        rows = {"dtype": str(self.dtype)}
        if not (self._core.is_closed or (self._core.is_pending and not self._is_cheap())):
            rows["shape"] = str(self.shape)
            rows["bytes"] = f"{self.nbytes:,}"
            rows["devices"] = ", ".join(device.name for device in self.devices)
        cells = "".join(f"<tr><th>{name}</th><td>{html.escape(value)}</td></tr>" for name, value in rows.items())
        return f"<table>{cells}</table><pre>{html.escape(str(self))}</pre>"

    def _is_cheap(self) -> bool:
        return self._core.is_counted and self.nbytes <= _SHOWN_BYTES

    def _threshold(self) -> int:
        return 1000 if self.size <= 1000 else 0

    def _edges(self) -> np.ndarray[Any, Any]:
        """The items that NumPy prints: all items of a small array, else the items at its edges."""
        if self.size <= 1000:
            return self._core.read()
        edges = []
        for extent in self.shape:
            edges.append(np.arange(extent) if extent <= 6 else np.r_[0:4, extent - 3 : extent])
        return self[np.ix_(*edges)]

    # Access to items by keys.

    def __getitem__(self, key: Any) -> Any:
        """A view, an item, or a copy of items, as with NumPy's arrays.

        Integers, slices, ellipses, ``None`` and names of fields return views. A NumPy array or list of integers or
        bools returns the items as a NumPy array. An `Array` returns an `Array`: a mask of the same shape selects
        items when the program first needs them; an `Array` of integers takes items of an array with one axis, on the
        devices.
        """
        if type(key) in _PLAIN_KEYS:
            found = self._core.pick(key)
            if found is not None:
                return Array._of(found) if type(found) is _core.Core else found
        if isinstance(key, str) or (isinstance(key, list) and key and all(isinstance(one, str) for one in key)):
            if self.dtype.names is None:
                raise IndexError(
                    "only integers, slices (`:`), ellipsis (`...`), numpy.newaxis (`None`) and integer or boolean "
                    "arrays are valid indices"
                )
            return Array._of(self._core.basic([*map(str, key)] if isinstance(key, list) else str(key)))
        if isinstance(key, Array) and (key.dtype == np.bool_ or key.dtype.kind in "iu") and key.ndim and self.ndim:
            found = _on_host.selected(self, key)
            if found is not None:
                return _on_host.made(self._core, found)
            if key.dtype == np.bool_ and key.shape == self.shape:
                return Array._of(self._core.select(key._core))
            if key.dtype != np.bool_ and self.ndim == 1:
                return self.take(key)
        if _is_list(key) and self.ndim:
            found = _on_host.selected(self, key)
            if found is not None:
                return found
            found = self._core.gather_rows(np.ascontiguousarray(key, np.int64).ravel())
            if found is not None:
                return found if key.ndim == 1 else found.reshape(key.shape + found.shape[1:])
        has_own = isinstance(key, Array) or (isinstance(key, tuple) and any(isinstance(one, Array) for one in key))
        key = self._key(key)
        if _indexing.is_basic(key):
            # As in NumPy, copy the items if the key contains an array, even an array of one integer.
            makes_copy = any(isinstance(one, np.ndarray) for one in key)
            key, has_ellipsis = _indexing.plain(key), any(one is Ellipsis for one in key)
            view = self._core.basic(key if has_ellipsis else (*key, Ellipsis))
            if not has_ellipsis and not view.shape and len(key) == self.ndim + key.count(None):
                return view.read()[()]
            return Array._of(view.copied() if makes_copy else view)
        items = _on_host.shown(self)
        if items is None:
            starts = self._starts(key)
            found = self._core.gather(starts.ravel()).reshape(starts.shape)
        else:
            found = items[key]
        return asarray(found, devices=self.devices) if has_own else found

    def __setitem__(self, key: Any, value: Any) -> None:
        """Writes the items that a key selects, as with NumPy's arrays."""
        try:
            self._write(key, value)
            return
        except _KEY_ERRORS as error:
            if isinstance(error, Error):
                raise
            ours = error
        # Let NumPy raise its error: key and value may have several faults, and the first one that NumPy finds counts.
        self._raise_as_numpy(key, value)
        raise ours

    def _raise_as_numpy(self, key: Any, value: Any) -> None:
        """Repeats a failed write on a NumPy array of this shape, so that NumPy raises its error. Skips large arrays."""
        arrays = [one for one in (key, value) if isinstance(one, Array)]
        if self.size > _REPEATED_MAX or any(one.nbytes > _REPEATED_MAX for one in arrays):
            return
        item = np.lib.stride_tricks.as_strided(np.zeros((), self.dtype), self.shape, (0,) * self.ndim)
        parts = self._key(key)
        item[parts if isinstance(key, tuple) else parts[0]] = np.asarray(value) if isinstance(value, Array) else value

    def _write(self, key: Any, value: Any) -> None:
        if isinstance(key, str) or (isinstance(key, list) and key and all(isinstance(one, str) for one in key)):
            self[key]._assign(value)
            return
        if _has_gaps(self.dtype):
            items = self._items(np.asarray(value) if isinstance(value, Array) else value)
            for name in self.dtype.names or ():
                self[name][key] = items[name]
            return
        if isinstance(key, Array) and key.dtype == np.bool_ and key.shape == self.shape and self.ndim:
            if _is_number(value):
                self._assign_where(key, self._converted(_in_ram(value)))
                return
        if _is_list(key) and self.ndim and not isinstance(value, Array):
            value = self._items(_in_ram(value))
            values = np.ascontiguousarray(_spread(value, key.shape + self.shape[1:], _MISMATCH))
            if self._core.scatter_rows(np.ascontiguousarray(key, np.int64).ravel(), values):
                return
        key = self._key(key)
        if _indexing.is_basic(key):
            key, has_ellipsis = _indexing.plain(key), any(one is Ellipsis for one in key)
            view = Array._of(self._core.basic(key if has_ellipsis else (*key, Ellipsis)))
            if not has_ellipsis and not view.shape and len(key) == self.ndim + key.count(None) and np.ndim(value):
                # Let NumPy convert the array to a single item: NumPy raises an error, or warns.
                item = np.empty(1, self.dtype)
                item[0] = np.asarray(value) if isinstance(value, Array) else value
                value = item[0]
            view._assign(value)
            return
        if len(key) == 1 and np.ndim(value) > 1 and getattr(key[0], "dtype", None) == np.bool_:
            if np.ndim(key[0]) == self.ndim:
                text = "boolean array indexing assignment requires a 0 or 1-dimensional input"
                raise TypeError(f"{text}, input has {np.ndim(value)} dimensions")
        value = self._items(_in_ram(value))
        starts = self._starts(key)
        values = _spread(value, starts.shape, _MISMATCH)
        self._core.scatter(starts.ravel(), np.ascontiguousarray(values).ravel())

    def _assign_where(self, mask: Array, item: np.ndarray[Any, Any]) -> None:
        """Writes one value to each item for which a mask of the same shape is true."""
        if _on_host.assigned(self, item, mask):
            return
        if _ufuncs.is_computed(self.dtype):
            # Pass True: no other object uses the expression, so its values need not be stored before the change.
            self._core.assign(where(mask, item[()], Array._of(self._core))._core, True)
            return
        for block in _ufuncs.blocks(self.shape):
            chosen = np.asarray(mask[block])
            if chosen.any():
                part = np.asarray(self[block])
                part[chosen] = item
                self[block] = part

    @staticmethod
    def _key(key: Any) -> tuple[Any, ...]:
        key = key if isinstance(key, tuple) else (key,)
        return tuple(np.asarray(one) if isinstance(one, Array) else one for one in key)

    def _starts(self, key: tuple[Any, ...]) -> np.ndarray[Any, Any]:
        self._core.compute()
        return _indexing.positions(key, self.shape, self._core.strides, self._core.offset)

    def _converted(self, value: Any) -> np.ndarray[Any, Any]:
        """Converts a number to an item of this dtype."""
        item = np.empty((), self.dtype)
        item[...] = np.asarray(value) if isinstance(value, Array) else value
        return item

    def _items(self, value: Any) -> np.ndarray[Any, Any]:
        """Converts values to items by NumPy's rules of assignment: a number that the dtype cannot hold is an error."""
        if isinstance(value, np.ndarray) and value.dtype == self.dtype:
            return value
        # For a structured dtype, a tuple is a single item.
        is_structure = self.dtype.names is not None and not isinstance(value, np.ndarray)
        items = np.empty(np.array(value, self.dtype).shape if is_structure else np.shape(value), self.dtype)
        items[...] = value
        return items

    def _assign(self, value: Any) -> None:
        """Writes a value to all items: a number, a NumPy array, an `Array`, or an expression."""
        if _has_gaps(self.dtype):
            items = self._items(np.asarray(value) if isinstance(value, Array) else value)
            for name in self.dtype.names or ():
                self[name]._assign(items[name])
            return
        if isinstance(value, (Array, np.ndarray)) and 0 in self.shape:
            # Let NumPy check the cast, even if there are no items.
            np.empty(0, self.dtype)[...] = np.empty(0, value.dtype)
        if isinstance(value, Array):
            value = value._fitted(self.shape)
            if not self.shape:
                self._core.fill(self._converted(np.asarray(value)))
            elif self._is_computed_from(value):
                if not _on_host.assigned(self, value):
                    self._core.assign(value._core, False)
            else:
                for block in _ufuncs.blocks(self.shape):
                    self[block] = np.asarray(value[block])
            return
        if not self.shape:
            self._core.fill(self._converted(value))
            return
        if not isinstance(value, np.ndarray):
            value = self._items(value)
            if value.ndim > self.ndim:
                raise ValueError("setting an array element with a sequence: it has more axes than the items")
        if value.ndim == 0:
            self._core.fill(self._converted(value))
            return
        if isinstance(value, np.memmap) and value.nbytes > _MAPPED_MAX and value.shape == self.shape:
            for block in _ufuncs.blocks(self.shape, _MAPPED_MAX // value.itemsize):
                self[block] = np.asarray(value[block])
                _unmap(value)
            return
        value = _spread(value, self.shape, "could not broadcast input array from shape {} into shape {}")
        if value.dtype == self.dtype and value.flags.c_contiguous:
            self._core.write(value)
            return
        for block in _ufuncs.blocks(self.shape):
            self._core.basic((*block, Ellipsis)).write(np.ascontiguousarray(self._items(value[block])))

    def _is_computed_from(self, value: Array) -> bool:
        """True if devices can convert items of `value` to this dtype, so that an expression can write them."""
        if value.dtype == self.dtype:
            return True
        kinds = (value.dtype, self.dtype)
        return all(map(_ufuncs.is_computed, kinds)) and np.dtype(np.float16) not in kinds

    def _fitted(self, shape: tuple[Any, ...]) -> Array:
        """A view of the items, broadcast to `shape`."""
        if self.shape == shape:
            return self
        own = self
        while own.ndim > len(shape) and own.shape[0] == 1:
            own = own[0] if own.ndim > 1 else own.reshape(())
        try:
            return Array._of(own._core.broadcast(shape))
        except ValueError:
            raise ValueError(f"could not broadcast input array from shape {self.shape} into shape {shape}") from None

    # Protocols by which NumPy uses an array.

    def __array__(self, dtype: DType | None = None, copy: bool | None = None) -> np.ndarray[Any, Any]:
        if copy is False:
            raise ValueError("NumPy needs a copy of items that devices store; leave `copy` out")
        array = self._core.read()
        return array if dtype is None else array.astype(dtype, copy=False)

    def __array_ufunc__(self, ufunc: np.ufunc, method: str, *inputs: Any, **given: Any) -> Any:
        from ._functions import called

        found = _on_host.called(ufunc, method, inputs, given)
        if found is not None:
            return found
        if not all(map(_is_known, (*inputs, *given.get("out", ())))):
            return NotImplemented
        return called(ufunc, method, inputs, given)

    def __array_function__(self, function: Any, types: Any, args: tuple[Any, ...], given: dict[str, Any]) -> Any:
        from ._functions import created, dispatched

        if function in created():
            return created()[function](*args, **{"devices": self.devices, **given})
        if not all(issubclass(one, (Array, np.ndarray, np.generic)) for one in types):
            return NotImplemented
        return dispatched(function, args, given)

    def __eq__(self, other: object) -> Any:
        return self._compared(other, True)

    def __ne__(self, other: object) -> Any:
        return self._compared(other, False)

    def __pow__(self, other: Any) -> Any:
        power = self._power(other)
        return super().__pow__(other) if power is None else power(self)

    def __ipow__(self, other: Any) -> Any:
        power = self._power(other)
        return super().__ipow__(other) if power is None else power(self, out=self)

    def _power(self, exponent: object) -> Any:
        """The function that NumPy's operator ``**`` calls for some Python exponents, such as 2. None for other
        exponents. For zeroes, infinities and bools, the operator differs from ``numpy.power``."""
        if type(exponent) not in (int, float):
            return None
        power = _POWERS.get((type(exponent), exponent))
        return power if self.dtype.kind in ("biufc" if power is np.square else "fc") else None

    __hash__ = None  # type: ignore[assignment]

    def _compared(self, other: object, is_equal: bool) -> Any:
        from ._functions import compared

        return compared(self, other, is_equal) if _is_known(other) else NotImplemented

    def __dlpack__(
        self, *, stream: Any = None, max_version: Any = None, dl_device: Any = None, copy: bool | None = None
    ) -> Any:
        if copy is False and self.size:
            if any(device.backend != "host" for device in self.devices):
                raise BufferError("the items are not in RAM; leave `copy` out, or use `array.device_memory()`")
            return self.device_memory().__dlpack__(max_version=max_version, dl_device=dl_device)
        return self._core.read().__dlpack__(stream=stream, max_version=max_version, dl_device=dl_device)

    def __dlpack_device__(self) -> tuple[int, int]:
        return (1, 0)

    def device_memory(self) -> DeviceMemory:
        """Exports the items in place: other packages can read and write them in device memory without a copy.

        The method first writes modified pages to the device. The program can use the array and its views again after it
        has closed the returned object and freed all objects made from that object. The array then has the changes of
        the other package.

        The items must be contiguous in the memory of one device. An array on one device is contiguous. In an array
        on several devices, only the items within one page (``memory()["page_bytes"]`` bytes) are contiguous. The items
        of arrays in files, with checksums or on OpenCL devices cannot be exported.

        Returns
        -------
        DeviceMemory
            For use in ``with a.device_memory() as memory``. Supports DLPack and ``__cuda_array_interface__``.

        Examples
        --------
        On a GPU use ``torch.from_dlpack`` or ``cupy.from_dlpack`` in place of ``numpy.from_dlpack``.

        >>> import numpy as np, vmarray as vm
        >>> a = vm.arange(6, devices="host").reshape(2, 3)
        >>> with a[1].device_memory() as memory:
        ...     row = np.from_dlpack(memory)
        ...     row *= 10
        ...     del row
        >>> a
        Array([[ 0,  1,  2],
               [30, 40, 50]], dtype=int64)
        """
        from ._export import DeviceMemory

        return DeviceMemory(self._core.export())

    def __reduce__(self) -> Any:
        if self._path is None:
            if self.nbytes > PICKLED_MAX:
                raise TypeError(
                    f"an array of {self.nbytes} bytes that is not in a file cannot be pickled, because the pickle "
                    f"would contain all items (at most {PICKLED_MAX} bytes); put it in a file (vmarray.create, "
                    "vmarray.memmap), which is pickled by its path"
                )
            return asarray, (np.asarray(self), self.dtype)
        if not self.closed and self._mode != "r":
            self.sync()
        return _reopened, (self._path, self.dtype, self.shape, self._mode, self._place)

    def __getattr__(self, name: str) -> Any:
        if name == "__cuda_array_interface__":
            raise AttributeError(
                "the array may move its items while another package uses them; prevent this by "
                "`with array.device_memory() as memory`, or give away a copy: numpy.asarray(array)"
            )
        if name != "_core":
            advice = f"; numpy.asarray(array).{name} is of a copy in RAM" if hasattr(np.ndarray, name) else ""
            advice = f"; {_REFUSED[name]}" if name in _REFUSED else advice
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}{advice}")
        # Open the file of an unpickled array here, at the first use: an error while unpickling would block a pool of
        # processes for ever.
        core, (path, _, _, _, place) = _opened(self._opening, {}), self._opening
        self._core = core
        _OPEN[path, place] = self
        return core

    def __copy__(self) -> Array:
        return self.copy()

    def __deepcopy__(self, memo: Any) -> Array:
        return self.copy()

    # Methods that change the shape.

    def reshape(self, *shape: Shape, order: Order = "C", copy: bool | None = None) -> Array:
        """The same items in another shape: a view if possible, else a copy. ``copy`` forces or forbids a copy."""
        wanted, order = shape[0] if len(shape) == 1 else shape, _order(order)
        if order == "K":
            raise ValueError("order 'K' is not permitted for reshaping")
        if order in ("F", "A") and self._in_order(order) is not self:
            extents = wanted if isinstance(wanted, (tuple, list)) else (wanted,)
            return self.transpose().reshape(tuple(extents)[::-1], copy=copy).transpose()
        core = None if copy else self._core.reshaped(wanted)
        if core is None:
            if copy is False:
                raise ValueError("Unable to avoid creating a copy while reshaping; leave `copy` out")
            core = self._core.copied().reshaped(wanted)
        assert core is not None, "a contiguous copy can have any shape"
        return Array._of(core)

    def ravel(self, order: Order = "C") -> Array:
        """All items along one axis: a view if they are contiguous in this order, else a copy."""
        own = self._in_order(order)
        return own.reshape(-1) if own._is_contiguous() else own.flatten()

    def _in_order(self, order: Order) -> Array:
        """A view whose items, in C order, are the items of this array in another of NumPy's orders."""
        order = _order(order)
        if order == "A":
            order = "F" if self._is_fortran("A") else "C"
        if order == "K":
            steps = self._core.strides
            return self.transpose(sorted(range(self.ndim), key=lambda axis: -abs(steps[axis])))
        if order == "F":
            return self.transpose() if self.ndim > 1 else self
        return self

    def _is_fortran(self, order: str) -> bool:
        """True if a copy in an order has the order "F": for "A", if only the transposed array is contiguous."""
        return order == "F" or (order == "A" and not self._is_contiguous() and self.transpose()._is_contiguous())

    def _is_contiguous(self) -> bool:
        step = self.itemsize
        for extent, stride in zip(self.shape[::-1], self._core.strides[::-1]):
            if extent != 1 and stride != step and self.size:
                return False
            step *= extent
        return True

    def _is_in_order(self, order: str) -> bool:
        """True if the items are in an order: "K" always; "C" if contiguous; "F" if the transposed array is contiguous;
        "A" if either is."""
        if order == "K" or (order != "F" and self._is_contiguous()):
            return True
        return order != "C" and self.transpose()._is_contiguous()

    def flatten(self, order: Order = "C") -> Array:
        """A copy of all items, along one axis."""
        return Array._of(self._in_order(order)._core.copied()).reshape(-1)

    def transpose(self, *axes: Any) -> Array:
        """A view with the axes in the order ``axes``; by default in reverse order."""
        order = axes[0] if len(axes) == 1 else axes or None
        return Array._of(self._core.by_method("transpose", () if order is None else (order,)))

    def swapaxes(self, one: int, other: int) -> Array:
        """A view with two axes exchanged."""
        return Array._of(self._core.by_method("swapaxes", (one, other)))

    def squeeze(self, axis: Axes = None) -> Array:
        """A view without the axes of length 1, or only without ``axis``."""
        return Array._of(self._core.by_method("squeeze", (axis,)))

    def diagonal(self, offset: int = 0, axis1: int = 0, axis2: int = 1) -> Array:
        """A view of a diagonal of two axes, like ``numpy.diagonal``."""
        return Array._of(self._core.by_method("diagonal", (offset, axis1, axis2)))

    def view(self, dtype: DType | None = None) -> Array:
        """A view of the same bytes as items of another dtype, like ``numpy.ndarray.view``.

        Examples
        --------
        >>> import vmarray as vm
        >>> a = vm.array([1.0, 2.0])
        >>> a.view("u8")[0] = 0
        >>> a
        Array([0., 2.], dtype=float64)
        """
        if isinstance(dtype, type) and issubclass(dtype, np.ndarray):
            raise TypeError(f"a vmarray.Array cannot be viewed as {dtype.__name__}; numpy.asarray(array) makes a copy")
        dtype = self.dtype if dtype is None else np.dtype(dtype)
        if self.dtype != np.bool_ and dtype.kind in "b":
            raise TypeError(f"items of dtype {self.dtype} may be invalid as bools; use `array != 0`")
        return Array._of(self._core.by_method("view", (dtype,)))

    def copy(self, order: Order = "C") -> Array:
        """A copy of the array on the same devices, in the order "C" or "F". "K" keeps the order of an array in RAM, and
        means "C" on other devices."""
        order = _order(order)
        found = _on_host.copied(self, self.dtype, order)
        if found is not None:
            return found
        if self.ndim > 1 and self._is_fortran(order):
            return Array._of(self.transpose()._core.copied()).transpose()
        return Array._of(self._core.copied())

    def astype(
        self, dtype: Any, order: Order = "K", casting: Casting = "unsafe", subok: bool = True, copy: bool = True
    ) -> Array:
        """The items converted to another type. GPUs convert them when the program first needs them.

        Floats saturate at the limits of an integer type, and NaN becomes 0; NumPy leaves both undefined.
        """
        order = _order(order)
        # Let NumPy raise the error for an impossible conversion, and determine the length of strings.
        dtype = np.empty(0, self.dtype).astype(dtype, casting=casting).dtype
        if dtype == self.dtype:
            return self if not copy and self._is_in_order(order) else self.copy(order)
        found = _on_host.copied(self, dtype, order)
        if found is not None:
            return found
        if self.ndim > 1 and self._is_fortran(order):
            return self.transpose().astype(dtype).transpose()
        core = _ufuncs.applied("positive", [self._core], (dtype,), dtype, self.shape)
        if core is not None:
            return Array._of(core)
        return _ufuncs.by_pieces(lambda part: part.astype(dtype), [self], self.shape, (dtype,))[0]

    def compute(self) -> Array:
        """Computes a pending expression now; returns the array itself."""
        self._core.compute()
        return self

    async def compute_async(self) -> Array:
        """Computes a pending expression on another thread, while other tasks of ``asyncio`` run. Returns the array
        itself.

        Examples
        --------
        >>> import asyncio, vmarray as vm
        >>> async def main():
        ...     one, other = vm.arange(1000) * 2, vm.arange(1000) + 1
        ...     await asyncio.gather(one.compute_async(), other.compute_async())
        ...     return one.is_pending, other.is_pending
        >>> asyncio.run(main())
        (False, False)
        """
        import asyncio

        await asyncio.to_thread(self._core.compute)
        return self

    def to_numpy(self, dtype: Any = None) -> np.ndarray[Any, Any]:
        """The items as a NumPy array: ``numpy.asarray(array, dtype)``, with the name that data frames use."""
        return np.asarray(self, dtype)

    def __arrow_c_stream__(self, requested_schema: Any = None) -> Any:
        """The items for packages that read Arrow's data, such as pyarrow, polars and DuckDB; see `from_arrow`."""
        from ._arrow import exported

        return exported(self)

    def read_into(self, out: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
        """Copies the items into the NumPy array ``out``, and returns it. ``numpy.asarray`` is as fast from its second
        call on, because it reuses the memory of an earlier result: see `release_memory`.

        Parameters
        ----------
        out
            A C-contiguous, writable array of the same shape and dtype. No other thread may use it during the call.

        Examples
        --------
        >>> import numpy as np, vmarray as vm
        >>> a, out, total = vm.arange(10), np.empty(5, "i8"), 0
        >>> for start in range(0, 10, 5):
        ...     total += int(a[start : start + 5].read_into(out).sum())
        >>> total
        45
        """
        if not isinstance(out, np.ndarray) or out.dtype != self.dtype or out.shape != self.shape:
            raise ValueError(f"out must be an array of NumPy of shape {self.shape} and dtype {self.dtype}")
        if not (out.flags.c_contiguous and out.flags.writeable):
            raise ValueError("out must be C-contiguous and writable; numpy.ascontiguousarray makes such a copy")
        self._core.read_into(out)
        return out

    async def read_async(self) -> np.ndarray[Any, Any]:
        """The items as a NumPy array. Another thread copies them, while other tasks of ``asyncio`` run."""
        import asyncio

        return await asyncio.to_thread(self._core.read)

    # Reductions, sorts and searches.

    def sum(
        self,
        axis: Axes = None,
        dtype: DType | None = None,
        out: Out = None,
        keepdims: bool = False,
        initial: Any = np._NoValue,
        where: Where = True,
    ) -> Any:
        """The sum of the items, or the sums along axes. Integer sums wrap on overflow; float sums use 64 bits."""
        return _numpy.sum(self, axis, dtype, out, keepdims, initial, where)

    def prod(
        self,
        axis: Axes = None,
        dtype: DType | None = None,
        out: Out = None,
        keepdims: bool = False,
        initial: Any = np._NoValue,
        where: Where = True,
    ) -> Any:
        """The product of the items, or the products along axes. NumPy computes them, piece by piece."""
        return _numpy.prod(self, axis, dtype, out, keepdims, initial, where)

    def mean(
        self,
        axis: Axes = None,
        dtype: DType | None = None,
        out: Out = None,
        keepdims: bool = False,
        *,
        where: Where = True,
    ) -> Any:
        """The mean of the items, or the means along axes."""
        return _numpy.mean(self, axis, dtype, out, keepdims, where=where)

    def var(
        self,
        axis: Axes = None,
        dtype: DType | None = None,
        out: Out = None,
        ddof: float = 0,
        keepdims: bool = False,
        *,
        where: Where = True,
        mean: Any = np._NoValue,
    ) -> Any:
        """The variance of the items, or the variances along axes."""
        return _numpy.var(self, axis, dtype, out, ddof, keepdims, where=where, mean=mean)

    def std(
        self,
        axis: Axes = None,
        dtype: DType | None = None,
        out: Out = None,
        ddof: float = 0,
        keepdims: bool = False,
        *,
        where: Where = True,
        mean: Any = np._NoValue,
    ) -> Any:
        """The standard deviation of the items, or the standard deviations along axes."""
        return _numpy.std(self, axis, dtype, out, ddof, keepdims, where=where, mean=mean)

    def min(
        self,
        axis: Axes = None,
        out: Out = None,
        keepdims: bool = False,
        initial: Any = np._NoValue,
        where: Where = True,
    ) -> Any:
        """The minimum of the items, or the minima along axes. The minimum of items with a NaN is NaN, as in NumPy."""
        return _numpy.min(self, axis, out, keepdims, initial, where)

    def max(
        self,
        axis: Axes = None,
        out: Out = None,
        keepdims: bool = False,
        initial: Any = np._NoValue,
        where: Where = True,
    ) -> Any:
        """The maximum of the items, or the maxima along axes. The maximum of items with a NaN is NaN, as in NumPy."""
        return _numpy.max(self, axis, out, keepdims, initial, where)

    def any(self, axis: Axes = None, out: Out = None, keepdims: bool = False, *, where: Where = True) -> Any:
        """True if any item is true. The search stops soon after the first true item."""
        return _numpy.any(self, axis, out, keepdims, where=where)

    def all(self, axis: Axes = None, out: Out = None, keepdims: bool = False, *, where: Where = True) -> Any:
        """True if all items are true. The search stops soon after the first false item."""
        return _numpy.all(self, axis, out, keepdims, where=where)

    def argmin(self, axis: Axes = None, out: Out = None, *, keepdims: bool = False) -> Any:
        """The index of the first minimum, or the indices of the first minima along an axis."""
        return _numpy.argmin(self, axis, out, keepdims=keepdims)

    def argmax(self, axis: Axes = None, out: Out = None, *, keepdims: bool = False) -> Any:
        """The index of the first maximum, or the indices of the first maxima along an axis."""
        return _numpy.argmax(self, axis, out, keepdims=keepdims)

    def nonzero(self) -> tuple[np.ndarray, ...]:
        """The indices of the items that are not zero, as one array for each axis."""
        return _numpy.nonzero(self)

    def repeat(self, repeats: Values, axis: int | None = None) -> Array:
        """An array with each item repeated ``repeats`` times."""
        return _numpy.repeat(self, repeats, axis)

    def cumsum(self, axis: int | None = None, dtype: DType | None = None, out: Out = None) -> Array:
        """The cumulative sums of the items along an axis. NumPy computes them, piece by piece."""
        return _numpy.cumsum(self, axis, dtype, out)

    def cumprod(self, axis: int | None = None, dtype: DType | None = None, out: Out = None) -> Array:
        """The cumulative products of the items along an axis. NumPy computes them, piece by piece."""
        return _numpy.cumprod(self, axis, dtype, out)

    @property
    def real(self) -> Array:
        """A view of the real parts."""
        return np.real(self)

    @real.setter
    def real(self, values: Values) -> None:
        self.real[...] = values

    @property
    def imag(self) -> Array:
        """A view of the imaginary parts; zeroes, which are read-only, if the items are real."""
        return np.imag(self)

    @imag.setter
    def imag(self, values: Values) -> None:
        if self.dtype.kind != "c":
            raise TypeError("array does not have imaginary part to set")
        self.imag[...] = values

    def find(self, limit: int | None = None) -> np.ndarray[Any, Any]:
        """The indices of the first `limit` items that are not zero, in ascending order. The devices find them.

        Examples
        --------
        >>> import vmarray as vm
        >>> a = vm.arange(1000)
        >>> (a * a == 144).find()
        array([12])
        """
        most = self.size if limit is None else operator.index(limit)
        return self.astype(bool, copy=False)._core.find(most)

    def clip(self, min: Values | None = None, max: Values | None = None, out: Out = None, **given: Any) -> Array:
        """The items, limited to the range from ``min`` to ``max``."""
        return _numpy.clip(self, min, max, out, **given)

    def round(self, decimals: int = 0, out: Out = None) -> Array:
        """The items rounded to ``decimals`` decimal places. Halves are rounded to the even digit."""
        return _numpy.round(self, decimals, out)

    def __init_subclass__(cls, **given: Any) -> None:
        raise TypeError("vmarray.Array cannot have subclasses; write a class that stores an array, or functions")

    @property
    def strides(self) -> tuple[int, ...]:
        """Number of bytes from an item to the next one along each axis, in the array that stores the items."""
        return tuple(self._core.strides)

    @property
    def flat(self) -> Flat:
        """The items along one axis, in C order; see `Flat`."""
        return Flat(self)

    @flat.setter
    def flat(self, values: Values) -> None:
        Flat(self)[:] = values

    def tobytes(self, order: Order = "C") -> bytes:
        """A copy of the items as bytes."""
        return np.asarray(self).tobytes(order)  # type: ignore[arg-type]

    def tofile(self, file: Any, sep: str = "", format: str = "%s") -> None:
        """Writes the items to a file in C order: as bytes, or as text if ``sep`` is given; see `vmarray.fromfile`."""
        if isinstance(file, (str, os.PathLike)):
            with builtins.open(file, "wb") as opened:
                self.tofile(opened, sep, format)
            return
        for number, block in enumerate(_ufuncs.blocks(self.shape)):
            if sep and number:
                file.write(sep.encode())
            np.asarray(self[(*block, ...)]).tofile(file, sep, format)

    def byteswap(self, inplace: bool = False) -> Array:
        """The items with their bytes in reverse order."""
        result = _ufuncs.by_pieces(lambda part: part.byteswap(), [self], self.shape, (self.dtype,))[0]
        if inplace:
            self._assign(result)
        return self if inplace else result

    def conj(self) -> Array:
        """The complex conjugates of the items, or the array itself if the items are real."""
        if self.dtype.kind not in "biufc":
            raise TypeError("cannot conjugate non-numeric dtype")
        return _numpy.conjugate(self) if self.dtype.kind == "c" else self

    conjugate = conj

    def dot(self, b: Values, out: Out = None) -> Any:
        """The product with another array, like ``numpy.dot``."""
        return _numpy.dot(self, b, out)

    def trace(
        self, offset: int = 0, axis1: int = 0, axis2: int = 1, dtype: DType | None = None, out: Out = None
    ) -> Any:
        """The sum of the items of a diagonal, like ``numpy.trace``."""
        return _numpy.trace(self, offset, axis1, axis2, dtype, out)

    def choose(self, choices: Values | Sequence[Values], out: Out = None, mode: Mode = "raise") -> Any:
        """Items of several arrays, selected by the items of this array, like ``numpy.choose``."""
        return _numpy.choose(self, choices, out, mode)

    def compress(self, condition: Values, axis: int | None = None, out: Out = None) -> Any:
        """The parts along an axis for which a condition is true, like ``numpy.compress``."""
        return _numpy.compress(condition, self, axis, out)

    def put(self, indices: Values, values: Values, mode: Mode = "raise") -> None:
        """Writes values to the items at `indices` of the flat array, like ``numpy.put``."""
        _numpy.put(self, indices, values, mode)

    def partition(self, kth: Shape, axis: int = -1, kind: str = "introselect", order: Fields = None) -> None:
        """Sorts the items in place, which is a valid result of ``numpy.ndarray.partition`` for any ``kth``."""
        self[...] = _numpy.partition(self, kth, axis, kind, order)

    def argpartition(
        self, kth: Shape, axis: SupportsIndex | None = -1, kind: str = "introselect", order: Fields = None
    ) -> Array:
        """Indices that sort the array, which are a valid result of ``numpy.argpartition`` for any ``kth``."""
        return _numpy.argpartition(self, kth, axis, kind, order)

    def fill(self, value: Any) -> None:
        """Writes one number to all items."""
        self._assign(self._converted(value))

    def sort(self, axis: int = -1, kind: SortKind = None, order: Fields = None, *, stable: bool | None = None) -> None:
        """Sorts the items in place along an axis: on the devices if there is one axis. NaNs come last.

        The sort is stable for every ``kind``: equal items stay in their order.
        """
        from ._functions import sort_in_place

        # Let NumPy raise its errors for invalid arguments.
        np.empty((0,) * self.ndim, self.dtype).sort(axis, kind, order, stable=stable)
        sort_in_place(self, axis, order)

    def argsort(
        self,
        axis: SupportsIndex | None = -1,
        kind: SortKind = None,
        order: Fields = None,
        *,
        stable: bool | None = None,
    ) -> Array:
        """The indices that would sort the items along an axis; equal items stay in their order."""
        return _numpy.argsort(self, axis, kind, order, stable=stable)

    def searchsorted(self, v: Values, side: Side = "left", sorter: Values | None = None) -> Any:
        """The indices at which to insert values so that the items stay sorted. The items must be sorted."""
        return _numpy.searchsorted(self, v, side, sorter)

    def take(self, indices: Values, axis: int | None = None, out: Out = None, mode: Mode = "raise") -> Any:
        """A copy of the items at `indices`, made on the devices."""
        return _numpy.take(self, indices, axis, out, mode)

    # Methods that append items and manage files.

    def append(self, values: Values) -> None:
        """Adds an item or items at the end of an array of one axis, in place.

        The array must not be a view of a part of another array. The option ``max_len`` sets the greatest length. Arrays
        in files can grow without this option.
        """
        if self.ndim != 1:
            raise InvalidError(
                f"only an array of one axis can grow, not one of {self.ndim} axes; append to an array of one axis"
            )
        values = np.atleast_1d(self._items(np.asarray(values) if isinstance(values, Array) else values))
        if values.ndim != 1:
            raise ValueError(f"the new items have {values.ndim} axes; append an item, or items along one axis")
        self._core = self._core.append(np.ascontiguousarray(values))

    def flush(self) -> None:
        """Writes changed pages from the cache in RAM to the devices."""
        self._core.flush()

    def sync(self) -> None:
        """Makes all writes to an array in a file durable: a power failure does not lose them. Blocks until they are
        durable.
        """
        self._core.sync()

    def close(self) -> None:
        """Computes pending expressions on the array, frees its memory, and closes its files. The program cannot use the
        array and its views afterwards.

        The call may lose writes to a file since the last `sync`.
        """
        self._core.close()

    def __enter__(self) -> Array:
        return self

    def __exit__(self, kind: Any, error: Any, trace: Any) -> None:
        if self._path is not None and kind is None and not self.closed:
            self.sync()
        self.close()

    def memory(self) -> dict[str, Any]:
        """The memory that the array uses, in bytes, as a dict: device memory, the cache (its present and its maximum
        size), staging buffers and page tables.

        ``kept_for_results_bytes`` is the memory that the process keeps for results of all arrays: see
        `release_memory`.
        """
        return self._core.memory()


#: Arrays in files that this process has open, by their paths.
_OPEN: weakref.WeakValueDictionary[tuple[str, tuple[int, str] | None], Array] = weakref.WeakValueDictionary()
#: Path, dtype, shape, mode and place of the array in a file.
Opening = tuple[str, np.dtype[Any], tuple[int, ...], str, "tuple[int, str] | None"]
#: Most bytes of an array outside of files that a pickle contains.
PICKLED_MAX = 256 << 20


def _opened(opening: Opening, options: dict[str, Any]) -> Core:
    path, dtype, shape, mode, place = opening
    if place is None:
        return _core.open(path, dtype, shape, mode == "r", options)
    offset, order = place
    is_fortran = order == "F" and len(shape) > 1
    files = [(path, offset, math.prod(shape) * np.dtype(dtype).itemsize)]
    core = _core.over_file(files, shape[::-1] if is_fortran else shape, dtype, mode, options)
    return core.by_method("transpose", ()) if is_fortran else core


def _reopened(
    path: str, dtype: np.dtype[Any], shape: tuple[Any, ...], mode: str = "r+", place: tuple[int, str] | None = None
) -> Array:
    """Unpickles an array: the open array of this process if there is one, else an array that opens its file at its
    first use."""
    known = _OPEN.get((path, place))
    if known is not None and not known.closed and (known.dtype, known.shape, known._mode) == (dtype, shape, mode):
        return known
    array = object.__new__(Array)
    array._path, array._mode, array._place, array._opening = path, mode, place, (path, dtype, shape, mode, place)
    return array


def _unmap(values: np.memmap[Any, Any]) -> None:
    """Releases the mapped pages of a memory map. The system keeps their contents, unless they are private."""
    mapped = getattr(values, "_mmap", None)
    if mapped is not None and values.mode != "c" and hasattr(mmap, "MADV_DONTNEED"):
        mapped.madvise(mmap.MADV_DONTNEED)


def _options_like(*operands: Any) -> dict[str, Any]:
    """Options that put results on the devices of their operands."""
    for one in operands:
        if isinstance(one, Array):
            return {"devices": one.devices}
    return {}


def _result(shape: tuple[Any, ...], dtype: Any, **options: Any) -> Array:
    dtype = np.dtype(dtype)
    # As NumPy does, store strings without a length as strings of one character.
    dtype = dtype if dtype.itemsize or dtype.kind not in "SU" else np.empty(0, dtype).dtype
    return Array._of(_core.create(tuple(shape), dtype, None, options))


def empty(shape: Shape, dtype: DType = float, order: Order = "C", **options: Unpack[Options]) -> Array:
    """A new array whose items are zero. The call only allocates memory, and writes no zeroes.

    Parameters
    ----------
    shape : int or sequence of ints
        Number of items along each axis.
    dtype : data type
        Any dtype with a fixed number of bytes for each item: numbers, bool, structures, strings, dates.
    devices : str, Device or list of Device, optional
        Devices of the items. A text is a list of filters: ``"cuda"``, ``"cuda:0"``, ``"opencl:radeon"``, ``"host"``.
        By default: all discrete GPUs, else RAM.
    cache_bytes : int, optional
        Maximum RAM of the cache; 256 MiB by default.
    page_len : int, optional
        Number of items in a page, the unit of copies.
    max_len : int, optional
        Maximum number of items, for an array of one axis to which the program appends items.
    checksums : bool, optional
        True to compare items read back from devices with the checksums of the written items.
    order, like, device : optional
        NumPy's options: ``order`` is ``"C"`` or ``"F"``, ``like`` is an array on the same devices, ``device`` means
        `devices`.

    Examples
    --------
    >>> import vmarray as vm
    >>> vm.empty((2, 3), "int32", devices="host")
    Array([[0, 0, 0],
           [0, 0, 0]], dtype=int32)
    """
    shape, is_fortran = _as_tuple(shape), _order(order or "C") == "F"
    array = _result(shape[::-1] if is_fortran else shape, dtype, **_checked(options))
    return array.transpose() if is_fortran and len(shape) > 1 else array


def zeros(shape: Shape, dtype: DType = float, order: Order = "C", **options: Unpack[Options]) -> Array:
    """An array of zeroes; see `empty` for the options.

    Examples
    --------
    >>> import vmarray as vm
    >>> vm.zeros(10**7, cache_bytes=1 << 20).sum()
    np.float64(0.0)
    """
    return empty(shape, dtype, order, **options)


def ones(shape: Shape, dtype: DType = float, order: Order = "C", **options: Unpack[Options]) -> Array:
    """An array of ones; see `empty` for the options."""
    return full(shape, 1, dtype, order, **options)


def full(
    shape: Shape, fill_value: Values, dtype: DType | None = None, order: Order = "C", **options: Unpack[Options]
) -> Array:
    """An array of one value; see `empty` for the options."""
    array = empty(shape, np.asarray(fill_value).dtype if dtype is None else dtype, order, **options)
    array[...] = fill_value if isinstance(fill_value, Array) else _cast(fill_value, array.dtype)
    return array


def _cast(value: Any, dtype: np.dtype[Any]) -> np.ndarray[Any, Any]:
    """Values for `full`, cast to a dtype without a check."""
    if dtype.names is not None and not hasattr(value, "dtype"):
        return np.array(value, dtype)
    items = np.empty(np.shape(value), dtype)
    np.copyto(items, value, casting="unsafe")
    return items


def arange(*limits: Any, dtype: DType | None = None, **options: Any) -> Array:
    """Equally spaced numbers, like ``numpy.arange``; see `empty` for the options.

    Examples
    --------
    >>> import vmarray as vm
    >>> vm.arange(2, 10, 3)
    Array([2, 5, 8], dtype=int64)
    """
    if len(limits) == 4 and dtype is None:
        dtype = limits[3]
    names = [one for one in ("start", "stop", "step") if one in options]
    named = dict(zip(("start", "stop", "step"), limits)) | {one: options.pop(one) for one in names}
    options = _checked(options)
    if not named or (not limits and named.get("stop") is None) or len(limits) > 4:
        raise TypeError(f"arange() takes 1 to 3 numbers, not {len(limits)}; call arange(start, stop, step)")
    start, stop, step = named.get("start", 0), named.get("stop"), named.get("step", 1)
    start, stop, step = (0, start, step) if stop is None else (start, stop, 1 if step is None else step)
    if any(getattr(one, "dtype", np.dtype(float)).kind in "mM" for one in (start, stop, step)):
        # NumPy deprecates a step without a unit.
        return asarray(_numpy.arange(start, stop, named.get("step"), dtype=dtype), **options)
    if dtype is None:
        dtype = np.arange(*(_of_type(one, 1) for one in (start, stop, step))).dtype
    kind = np.dtype(dtype)
    if kind.kind not in "iufc":
        return asarray(_numpy.arange(start, stop, step, dtype=kind), **options)
    # Like NumPy, compute the number of items by a division. Item `i` is the first item plus `i` times the difference of
    # the first two items.
    length = _arange_length(start, stop, step)
    array = empty(length, kind, **options)
    first = np.empty(2, kind.newbyteorder("="))
    # Compute the first items with Python's numbers, so that NumPy raises an error if the dtype cannot hold an item.
    if length:
        following = start + step
        first[0] = _of_python(start)
        if length > 1:
            first[1] = _of_python(following)
    wide = np.dtype({"i": "i8", "u": "u8", "f": "f4"}.get(kind.kind, kind)) if kind.itemsize < 4 else first.dtype
    wide = np.dtype(np.uint64) if kind.kind in "iu" else wide
    with np.errstate(all="ignore"):
        begin, second = first.astype(wide)
        delta = second - begin
        for (block,) in _ufuncs.blocks(array.shape):
            places = np.arange(block.start or 0, length if block.stop is None else block.stop).astype(wide)
            part = (begin + places * delta).astype(kind)
            # Store the first two items themselves, as NumPy does: `begin + delta` may differ from the second item by
            # rounding.
            if not block.start:
                part[:2] = first[: len(part[:2])]
            array[block] = part
    return array


def _of_python(number: Any) -> Any:
    return number.item() if hasattr(number, "item") else number


def _of_type(number: Any, value: int) -> Any:
    """Converts `value` to the type of `number`."""
    return number.dtype.type(value) if hasattr(number, "dtype") else type(number)(value)


def _arange_length(start: Any, stop: Any, step: Any) -> int:
    distance = stop - start
    if isinstance(step, (int, float, np.number)) and step == 0:
        raise ZeroDivisionError("division by zero")
    count = distance / step
    if isinstance(count, (complex, np.complexfloating)):
        return max(0, min(math.ceil(count.real), math.ceil(count.imag)))
    if math.isnan(count):
        raise ValueError("arange: cannot compute length")
    if count == 0 and distance != 0:
        return int(not np.signbit(count))
    return max(0, math.ceil(count))


def _is_made_so(array: Array, options: Mapping[str, Any]) -> bool:
    """True if an array already has the devices and the other properties that the options request."""
    _checked(options)
    if not options or options == {"devices": None}:
        return True
    return set(options) == {"devices"} and _listed(options["devices"]) == array.devices


def _listed(devices: Any) -> list[Any]:
    """Devices from a filter text, a device, or a list of devices."""
    if isinstance(devices, str):
        return _core.devices(devices)
    return [*devices] if isinstance(devices, (list, tuple)) else [devices]


def asarray(
    values: Values,
    dtype: DType | None = None,
    order: Order = None,
    *,
    copy: bool | None = None,
    **options: Unpack[Options],
) -> Array:
    """Converts values to an array. Returns `values` itself if it is an `Array` of this dtype, else a copy. See `empty`
    for the options.

    Parameters
    ----------
    copy : bool, optional
        True always copies. False never copies: the new array keeps its items in `values`, a C-contiguous NumPy array.
        The array reads items from `values` on demand, and writes changes back when pages leave the cache, and in
        ``flush`` and ``close``. Do not write to the NumPy array before ``close``. The cost of the call does not depend
        on the size of the array.

    Examples
    --------
    >>> import numpy as np, vmarray as vm
    >>> own = np.arange(10)
    >>> with vm.asarray(own, copy=False) as a:
    ...     a[a > 5] = 0
    >>> own
    array([0, 1, 2, 3, 4, 5, 0, 0, 0, 0])
    """
    order, given = _order(order), _checked(options)
    if isinstance(values, Array) and not _is_made_so(values, given):
        if copy is False:
            raise ValueError("an array with other devices or options needs a copy; leave `copy` out")
        array = empty(values.shape, values.dtype if dtype is None else dtype, order, **given)
        array._assign(values)
        return array
    if isinstance(values, Array):
        if copy is False and dtype is not None and values.dtype != dtype:
            raise ValueError(
                f"items of dtype {values.dtype} need a copy to become {np.dtype(dtype)}; leave `copy` or `dtype` out"
            )
        same = values if dtype is None else values.astype(dtype, order, copy=False)
        same = same if same._is_in_order(order) else same.copy(order)
        return same.copy(order) if copy and same is values else same
    if copy is False:
        # Let NumPy raise the error if a copy is unavoidable.
        values = np.asarray(values, dtype, copy=False)
        if not values.flags.c_contiguous:
            raise ValueError(
                f"values with the strides {values.strides} are not C-contiguous, so an array needs a copy of them; "
                "leave `copy` out"
            )
        if values.size:
            return Array._of(_core.over_memory(values, not values.flags.writeable, given))
    if not isinstance(values, np.memmap) or (dtype is not None and values.dtype != dtype):
        values = np.asarray(values, dtype)
    is_fortran = order == "F" or (order == "A" and values.flags.fnc)
    found = None if isinstance(values, np.memmap) else _on_host.from_numpy(values, is_fortran, given)
    if found is not None:
        return found
    array = empty(values.shape, values.dtype, "F" if is_fortran else "C", **given)
    if values.size:
        array._assign(values)
    return array


def array(
    values: Values,
    dtype: DType | None = None,
    *,
    copy: bool | None = True,
    order: Order = "K",
    subok: bool = False,
    ndmin: int = 0,
    **options: Unpack[Options],
) -> Array:
    """A new array of values, like ``numpy.array``; see `empty` for the options, and `asarray` for `copy`."""
    if isinstance(values, (list, tuple)) and any(isinstance(one, Array) for one in values):
        values = np.array([np.asarray(one) if isinstance(one, Array) else one for one in values])
    copy = None if copy and not isinstance(values, Array) else copy
    result = asarray(values, dtype, order, copy=copy, **options)
    return result.reshape((1,) * (ndmin - result.ndim) + result.shape) if ndmin > result.ndim else result


def from_dlpack(values: Any, *, copy: bool | None = None, **options: Unpack[Options]) -> Array:
    """A copy of another package's array, by DLPack; see `empty` for the options.

    The tensor's package copies a tensor on an NVIDIA GPU within that GPU, unless the options name other devices. A
    tensor in RAM is copied once, to the devices. With ``copy=False`` the array keeps its items in the tensor in RAM, as
    in `asarray`; do not write to the tensor until the array is closed.

    Examples
    --------
    >>> import numpy as np, vmarray as vm
    >>> vm.from_dlpack(np.arange(3))
    Array([0, 1, 2], dtype=int64)
    """
    from ._export import copied_on_card, is_on_card

    if not isinstance(values, Array) and is_on_card(values):
        if copy is False:
            raise BufferError("items on a GPU cannot be used without a copy; leave `copy` out")
        return copied_on_card(values, dict(options))
    if isinstance(values, Array) and copy is False:
        return asarray(values, copy=False, **options)
    return asarray(np.from_dlpack(values), copy=copy, **options)


def create(path: str | os.PathLike[str], shape: Shape, dtype: DType = float, **options: Unpack[Options]) -> Array:
    """An array of zeroes in a new file, which `open` reads after a restart; see `empty` for the options.

    Examples
    --------
    >>> import tempfile, os, vmarray as vm
    >>> path = os.path.join(tempfile.mkdtemp(), "squares")
    >>> with vm.create(path, 1000, "int64") as a:
    ...     a[:] = vm.arange(1000) ** 2
    >>> vm.open(path)[999]
    np.int64(998001)
    """
    path, shape, dtype = _absolute(path), _as_tuple(shape), np.dtype(dtype)
    if os.path.exists(path):
        raise FileExistsError(f"{path} exists already; open it, or remove it")
    text = json.dumps({"dtype": np.lib.format.dtype_to_descr(dtype), "shape": shape})
    text = text if len(text) <= _ANNOTATION_MAX else ""
    return Array._of(_core.create(shape, dtype, (path, text), _checked(options)), path)


#: Most characters of dtype and shape in the description of a file, which is a block of 4 KiB.
_ANNOTATION_MAX = 3000


def _absolute(path: str | os.PathLike[str]) -> str:
    """The absolute path, which stays valid after the process changes its current folder."""
    return os.path.abspath(os.fspath(path))


def release_memory() -> int:
    """Frees the memory pool for NumPy results, and returns the number of freed bytes.

    The process keeps the memory of freed results in a pool for later results, because an allocation by the system takes
    longer than the copy of the items. Results are NumPy arrays of 256 KiB or more that this package has created. The
    pool has at most 1 GiB, or a sixteenth of the RAM if that is less. Each new result frees pool memory that was
    unused for a minute. If the system lacks memory, the system reclaims pool memory, except page-locked memory. If the
    program repeatedly reads 32 MiB or more by a list of indices, the memory is page-locked, so that the GPU can write
    to it directly. A NumPy array from the pool does not own its memory, so ``resize`` raises an error.

    Examples
    --------
    >>> import numpy as np, vmarray as vm
    >>> a = vm.arange(100_000, devices="host")
    >>> for start in range(0, 100_000, 50_000):   # twice the same memory
    ...     total = np.asarray(a[start : start + 50_000]).sum()
    >>> vm.release_memory() >= 400_000
    True
    """
    return _core.release_memory()


def where(condition: Values, *values: Values) -> Any:
    """Selects each item from one array if the condition is true for it, else from another, like ``numpy.where``."""
    from ._functions import where_of

    return where_of(condition, *values)


def sort(
    values: Values, axis: int | None = -1, kind: SortKind = None, order: Fields = None, *, stable: bool | None = None
) -> Array:
    """A sorted copy, like a stable ``numpy.sort``."""
    return _numpy.sort(asarray(values), axis, kind, order, stable=stable)


_OPTIONS = {"devices", "cache_bytes", "page_len", "max_len", "checksums"}


def _checked(given: Mapping[str, object]) -> dict[str, Any]:
    options: dict[str, Any] = dict(given)
    if not options.keys() <= _OPTIONS:
        _order(options.pop("order", None))
        options.pop("subok", None)
        like, device = options.pop("like", None), options.pop("device", None)
        if like is not None or device not in (None, "cpu"):
            options.setdefault("devices", _options_like(like).get("devices") if device in (None, "cpu") else device)
    unknown = set(options) - _OPTIONS
    if unknown:
        raise TypeError(f"there is no option {min(unknown)!r}; the options are {', '.join(sorted(_OPTIONS))}")
    return options
