"""The class of arrays, and what makes them."""

from __future__ import annotations

import operator
import os
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any

import numpy as np

from . import _core, _indexing, _ufuncs
from ._errors import InvalidError

if TYPE_CHECKING:
    from ._core import Core, Device
    from ._lend import DeviceMemory

#: NumPy, whose functions give arrays of this package for such: its stubs do not know.
_numpy: Any = np
#: How many bytes of an expression that was not computed yet are computed to be shown.
_SHOWN_BYTES = 16 << 20
#: How many items an iterator reads at once.
_ITERATED = 1 << 16


def _as_tuple(shape: Any) -> tuple[Any, ...]:
    if isinstance(shape, Iterable):
        shape = tuple(operator.index(one) for one in shape)
    else:
        shape = (operator.index(shape),)
    if any(one < 0 for one in shape):
        raise ValueError("negative dimensions are not allowed")
    return shape


def _is_number(value: Any) -> bool:
    return not isinstance(value, Array) and np.ndim(value) == 0


def _is_known(value: object) -> bool:
    """Whether it is for this class to say what comes of an operation with a value."""
    return isinstance(value, (Array, np.ndarray, np.generic)) or not hasattr(value, "__array_ufunc__")


def _is_list(key: Any) -> bool:
    """Whether a key is an array of integers of NumPy's."""
    return type(key) is np.ndarray and key.ndim > 0 and key.dtype.kind == "i"


#: What is said of values that do not fit a list.
_MISMATCH = "shape mismatch: value array of shape {} could not be broadcast to indexing result of shape {}"


def _spread(value: Any, shape: tuple[Any, ...], message: str) -> np.ndarray[Any, Any]:
    """A value for each item of a shape, which the message is given where that cannot be."""
    value = np.asarray(value)
    while value.ndim > len(shape) and value.shape[0] == 1:
        value = value[0]
    try:
        return np.broadcast_to(value, shape)
    except ValueError:
        raise ValueError(message.format(value.shape, shape)) from None


class Array(np.lib.mixins.NDArrayOperatorsMixin):
    """An array of any shape and dtype, whose items lie on devices and are cached in RAM.

    It is indexed, computed with and reduced as arrays of NumPy are. What is computed from arrays is computed when
    it is needed, on the devices, and is as if it had been computed where it is written. Views share memory.

    Arrays are made by `zeros`, `ones`, `full`, `empty`, `arange`, `asarray`, `array`, `create` and `open`.

    Examples
    --------
    >>> import vmarray as vm
    >>> a = vm.arange(10)
    >>> a[::2] = 0
    >>> ((a * 2 + 1)[a > 3]).sum()
    np.int64(45)
    """

    __slots__ = ("__weakref__", "_core", "_path")
    _core: Core
    _path: str | None
    __array_priority__ = 100.0

    def __init__(self) -> None:
        raise TypeError("arrays are made by vmarray.zeros, asarray, create, open and others")

    @classmethod
    def _of(cls, core: Core, path: str | None = None) -> Array:
        array = object.__new__(cls)
        array._core, array._path = core, path
        return array

    # What it is.

    @property
    def shape(self) -> tuple[int, ...]:
        """How many items there are along each axis. Of a selection they are counted."""
        return self._core.shape

    @property
    def dtype(self) -> np.dtype[Any]:
        """The type of the items."""
        return self._core.dtype

    @property
    def ndim(self) -> int:
        """How many axes there are."""
        return len(self.shape)

    @property
    def size(self) -> int:
        """How many items there are."""
        count = 1
        for extent in self.shape:
            count *= extent
        return count

    @property
    def itemsize(self) -> int:
        """How many bytes an item has."""
        return self.dtype.itemsize

    @property
    def nbytes(self) -> int:
        """How many bytes all items have."""
        return self.size * self.itemsize

    @property
    def device(self) -> Device | tuple[Device, ...]:
        """The device that it lies on, or several."""
        devices = self.devices
        return devices[0] if len(devices) == 1 else tuple(devices)

    def to_device(self, device: Any, /, *, stream: Any = None) -> Array:
        """A copy on other devices; itself, if they are the same."""
        devices = device if isinstance(device, (list, tuple)) else [device]
        if isinstance(device, str):
            devices = _core.devices(device)
        if [*devices] == self.devices:
            return self
        result = empty(self.shape, self.dtype, devices=list(devices))
        result[...] = self
        return result

    def __array_namespace__(self, *, api_version: str | None = None) -> Any:
        from . import array_api

        if api_version not in (None, "2021.12", "2022.12", "2023.12", "2024.12"):
            raise ValueError(f"there is no version {api_version!r} of the array API standard here")
        return array_api

    @property
    def mT(self) -> Array:  # noqa: N802
        """A view with the last two axes exchanged."""
        if self.ndim < 2:
            raise ValueError("matrix transpose with ndim < 2 is undefined")
        return self.swapaxes(-1, -2)

    @property
    def T(self) -> Array:  # noqa: N802
        """A view with the axes in the opposite order."""
        return self.transpose()

    @property
    def devices(self) -> list[Device]:
        """The devices that what is computed from it lies on; it as well, unless it is in a file."""
        return self._core.devices

    @property
    def is_pending(self) -> bool:
        """Whether it is an expression that was not computed yet."""
        return self._core.is_pending

    @property
    def closed(self) -> bool:
        """Whether it was closed."""
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

    def _single(self) -> np.ndarray[Any, Any]:
        # What is not one item NumPy refuses in its own words.
        return self._core.read() if self.size == 1 else np.empty(min(self.size, 2), self.dtype)

    def item(self, *index: int) -> Any:
        """An item as a number of Python."""
        if index:
            key = index[0] if len(index) == 1 and isinstance(index[0], tuple) else index
            if len(key) == 1 and self.ndim != 1:
                key = tuple(int(one) for one in np.unravel_index(key[0], self.shape))
            return self[key].item()
        if self.size != 1:
            raise ValueError("can only convert an array of size 1 to a Python scalar")
        return self._core.read().item()

    def tolist(self) -> Any:
        """All items as numbers of Python, in lists of lists."""
        return self._core.read().tolist()

    def __repr__(self) -> str:
        if self._core.is_closed:
            return f"<vmarray.Array closed, dtype={self.dtype}>"
        if self._core.is_pending and not self._is_cheap():
            return f"<vmarray.Array dtype={self.dtype}, not computed yet>"
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
        """All items of a small array; of a large one those at the edges, which NumPy shows."""
        if self.size <= 1000:
            return self._core.read()
        edges = []
        for extent in self.shape:
            edges.append(np.arange(extent) if extent <= 6 else np.r_[0:4, extent - 3 : extent])
        return self[np.ix_(*edges)]

    # Items.

    def __getitem__(self, key: Any) -> Any:
        """A view, an item, or a copy of items, as of NumPy's arrays.

        Integers, slices, ellipses, ``None`` and names of fields make views. Arrays of integers or bools give the
        items as an array of NumPy. Keys that are an `Array` give an `Array`: a mask of the same shape selects
        items when they are needed, integers for an array of one axis take them on the devices.
        """
        if isinstance(key, str) or (isinstance(key, list) and key and all(isinstance(one, str) for one in key)):
            if self.dtype.names is None:
                raise IndexError(
                    "only integers, slices (`:`), ellipsis (`...`), numpy.newaxis (`None`) and integer or boolean "
                    "arrays are valid indices"
                )
            return Array._of(self._core.basic([*map(str, key)] if isinstance(key, list) else str(key)))
        if isinstance(key, Array) and key.dtype == np.bool_ and key.shape == self.shape and self.ndim:
            return Array._of(self._core.select(key._core))
        if isinstance(key, Array) and key.dtype.kind in "iu" and key.ndim and self.ndim == 1:
            return self.take(key)
        if _is_list(key) and self.ndim:
            found = self._core.gather_rows(np.ascontiguousarray(key, np.int64).ravel())
            if found is not None:
                return found if key.ndim == 1 else found.reshape(key.shape + found.shape[1:])
        key = self._key(key)
        if _indexing.is_basic(key):
            # Of an array of one integer NumPy makes a copy.
            makes_copy = any(isinstance(one, np.ndarray) for one in key)
            key, has_ellipsis = _indexing.plain(key), any(one is Ellipsis for one in key)
            view = self._core.basic(key if has_ellipsis else (*key, Ellipsis))
            if not has_ellipsis and not view.shape and len(key) == self.ndim + key.count(None):
                return view.read()[()]
            return Array._of(view.copied() if makes_copy else view)
        starts = self._starts(key)
        return self._core.gather(starts.ravel()).reshape(starts.shape)

    def __setitem__(self, key: Any, value: Any) -> None:
        """Writes to items, as to those of NumPy's arrays."""
        if isinstance(key, str):
            self[key]._assign(value)
            return
        if isinstance(key, Array) and key.dtype == np.bool_ and key.shape == self.shape and _is_number(value):
            value = self._converted(value)
            # Nobody else has the expression, which need not be kept from the change.
            self._core.assign(where(key, value[()], Array._of(self._core))._core, True)
            return
        if self.dtype.names is not None and isinstance(value, tuple):
            value = self._converted(value)
        if _is_list(key) and self.ndim and not isinstance(value, Array):
            values = np.ascontiguousarray(_spread(value, key.shape + self.shape[1:], _MISMATCH), self.dtype)
            if self._core.scatter_rows(np.ascontiguousarray(key, np.int64).ravel(), values):
                return
        key = self._key(key)
        if _indexing.is_basic(key):
            key, has_ellipsis = _indexing.plain(key), any(one is Ellipsis for one in key)
            Array._of(self._core.basic(key if has_ellipsis else (*key, Ellipsis)))._assign(value)
            return
        starts = self._starts(key)
        values = _spread(value, starts.shape, _MISMATCH)
        self._core.scatter(starts.ravel(), np.ascontiguousarray(values, self.dtype).ravel())

    @staticmethod
    def _key(key: Any) -> tuple[Any, ...]:
        key = key if isinstance(key, tuple) else (key,)
        return tuple(np.asarray(one) if isinstance(one, Array) else one for one in key)

    def _starts(self, key: tuple[Any, ...]) -> np.ndarray[Any, Any]:
        self._core.compute()
        return _indexing.positions(key, self.shape, self._core.strides, self._core.offset)

    def _converted(self, value: Any) -> np.ndarray[Any, Any]:
        """One number as an item."""
        item = np.empty((), self.dtype)
        item[...] = value
        return item

    def _assign(self, value: Any) -> None:
        """Writes to all items: a number, an array of NumPy or of this package, or an expression."""
        if isinstance(value, Array):
            value = value._fitted(self.shape)
            if not self.shape:
                self._core.fill(self._converted(np.asarray(value)))
            elif self._is_computed_from(value):
                self._core.assign(value._core, False)
            else:
                for block in _ufuncs.blocks(self.shape):
                    self[block] = np.asarray(value[block])
            return
        if np.ndim(value) == 0 or not self.shape:
            self._core.fill(self._converted(value))
            return
        value = _spread(value, self.shape, "could not broadcast input array from shape {} into shape {}")
        if value.dtype == self.dtype and value.flags.c_contiguous:
            self._core.write(value)
            return
        for block in _ufuncs.blocks(self.shape):
            self._core.basic((*block, Ellipsis)).write(np.ascontiguousarray(value[block], self.dtype))

    def _is_computed_from(self, value: Array) -> bool:
        """Whether devices can convert the items of another array to these."""
        if value.dtype == self.dtype:
            return True
        kinds = {value.dtype.kind, self.dtype.kind}
        is_native = value.dtype.isnative and self.dtype.isnative
        return is_native and kinds <= set("biuf") and np.dtype(np.float16) not in (value.dtype, self.dtype)

    def _fitted(self, shape: tuple[Any, ...]) -> Array:
        """A view that is broadcast to a shape."""
        if self.shape == shape:
            return self
        own = self
        while own.ndim > len(shape) and own.shape[0] == 1:
            own = own[0] if own.ndim > 1 else own.reshape(())
        try:
            return Array._of(own._core.broadcast(shape))
        except ValueError:
            raise ValueError(f"could not broadcast input array from shape {self.shape} into shape {shape}") from None

    # What NumPy asks for.

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray[Any, Any]:
        if copy is False:
            raise ValueError("the items are on devices: an array of NumPy is a copy of them; leave `copy` out")
        array = self._core.read()
        return array if dtype is None else array.astype(dtype, copy=False)

    def __array_ufunc__(self, ufunc: np.ufunc, method: str, *inputs: Any, **given: Any) -> Any:
        from ._functions import called

        if not all(map(_is_known, (*inputs, *given.get("out", ())))):
            return NotImplemented
        return called(ufunc, method, inputs, given)

    def __array_function__(self, function: Any, types: Any, args: tuple[Any, ...], given: dict[str, Any]) -> Any:
        from ._functions import FUNCTIONS

        if not all(issubclass(one, (Array, np.ndarray, np.generic)) for one in types):
            return NotImplemented
        if function not in FUNCTIONS:
            from . import _order, _shapes

            FUNCTIONS.update(_order.FUNCTIONS | _shapes.FUNCTIONS)
        if function not in FUNCTIONS:
            name = f"{function.__module__}.{function.__name__}"
            raise TypeError(
                f"{name} is not there for vmarray.Array; where there is room, {name} of numpy.asarray(array) "
                "works on a copy in RAM"
            )
        return FUNCTIONS[function](*args, **given)

    def __dlpack__(
        self, *, stream: Any = None, max_version: Any = None, dl_device: Any = None, copy: bool | None = None
    ) -> Any:
        if copy is False:
            raise BufferError("what is given away is a copy in RAM; `array.device_memory()` lends the items")
        return self._core.read().__dlpack__(stream=stream, max_version=max_version, dl_device=dl_device)

    def __dlpack_device__(self) -> tuple[int, int]:
        return (1, 0)

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        raise AttributeError(
            "items may change and move while they are shown; lend them for as long as that takes: "
            "`with array.device_memory() as memory`, or give away a copy: numpy.asarray(array)"
        )

    def device_memory(self) -> DeviceMemory:
        """Lends the items to other packages, which read and write them where they lie, without a copy.

        What is cached of them is written to the device first. The array, its other views included, cannot be used
        until what this gives is closed and all that was made of it is gone; then it has what was written.

        All items have to lie in one piece of memory: those of an array on one device do, of one on several those of
        a page, which has ``memory()["page_bytes"]`` bytes. Arrays in files have no such memory, nor have those with
        checksums, nor what OpenCL has.

        Returns
        -------
        DeviceMemory
            To be used as ``with a.device_memory() as memory``. It knows DLPack and ``__cuda_array_interface__``.

        Examples
        --------
        On a card ``torch.from_dlpack`` or ``cupy.from_dlpack`` take the place of ``numpy.from_dlpack``.

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
        from ._lend import DeviceMemory

        return DeviceMemory(self._core.lend())

    def __reduce__(self) -> Any:
        if self._path is None:
            raise TypeError(
                "only an array that is a file can be pickled, by its name; make it by vmarray.create, or pickle "
                "numpy.asarray(array)"
            )
        self.sync()
        return _reopened, (self._path, self.dtype, self.shape)

    def __copy__(self) -> Array:
        return self.copy()

    def __deepcopy__(self, memo: Any) -> Array:
        return self.copy()

    # Shapes.

    def reshape(self, *shape: Any) -> Array:
        """The same items in another shape: a view where that is possible, else a copy."""
        shape = shape[0] if len(shape) == 1 else shape
        core = self._core.reshaped(shape) or self._core.copied().reshaped(shape)
        assert core is not None, "a copy lies as any shape wants it"
        return Array._of(core)

    def ravel(self) -> Array:
        """All items along one axis: a view where that is possible."""
        return self.reshape(-1)

    def flatten(self) -> Array:
        """A copy of all items, along one axis."""
        return Array._of(self._core.copied()).reshape(-1)

    def transpose(self, *axes: Any) -> Array:
        """A view with the axes in another order."""
        order = axes[0] if len(axes) == 1 else axes or None
        return Array._of(self._core.by_method("transpose", () if order is None else (order,)))

    def swapaxes(self, one: int, other: int) -> Array:
        """A view with two axes exchanged."""
        return Array._of(self._core.by_method("swapaxes", (one, other)))

    def squeeze(self, axis: Any = None) -> Array:
        """A view without axes of one item."""
        return Array._of(self._core.by_method("squeeze", (axis,)))

    def diagonal(self, offset: int = 0, axis1: int = 0, axis2: int = 1) -> Array:
        """A view of the items of a diagonal."""
        return Array._of(self._core.by_method("diagonal", (offset, axis1, axis2)))

    def copy(self) -> Array:
        """A copy, on the same devices."""
        return Array._of(self._core.copied())

    def astype(self, dtype: Any, copy: bool = True) -> Array:
        """The items as another type, computed when they are needed.

        Floats that no integer equals are saturated, and NaN becomes 0; NumPy leaves that undefined.
        """
        dtype = np.dtype(dtype)
        if dtype == self.dtype:
            return self.copy() if copy else self
        # What cannot be converted is an error of NumPy's.
        np.empty(0, self.dtype).astype(dtype)
        core = _ufuncs.applied("positive", [self._core], (dtype,), dtype, self.shape)
        if core is not None:
            return Array._of(core)
        return _ufuncs.by_pieces(lambda part: part.astype(dtype), [self], self.shape, (dtype,))[0]

    def compute(self) -> Array:
        """Computes it now, if it was not computed yet; returns itself."""
        self._core.compute()
        return self

    async def compute_async(self) -> Array:
        """Computes it on a thread, while other tasks of ``asyncio`` go on; returns itself.

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

    def read_into(self, out: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
        """Copies the items into an array of NumPy, and returns it.

        For memory of the program's own. What ``numpy.asarray`` makes is as fast from the second time on, as it lies
        where a result that has died lay: see `release_memory`.

        Parameters
        ----------
        out
            A C-contiguous, writable array of the same shape and dtype. Nobody may use it meanwhile.

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
            raise ValueError("out must be C-contiguous and writable: numpy.ascontiguousarray makes a copy that is")
        self._core.read_into(out)
        return out

    async def read_async(self) -> np.ndarray[Any, Any]:
        """The items as an array of NumPy, copied by a thread, while other tasks of ``asyncio`` go on."""
        import asyncio

        return await asyncio.to_thread(self._core.read)

    # Reductions, and order.

    def sum(self, axis: Any = None, dtype: Any = None, out: Any = None, keepdims: bool = False) -> Any:
        """The sum of the items, or the sums along axes. Integers wrap; floats are added in 64 bits."""
        from ._functions import summed

        return summed(self, axis, dtype, out, keepdims)

    def prod(self, axis: Any = None, dtype: Any = None, out: Any = None, keepdims: bool = False) -> Any:
        """The product of the items, or the products along axes: by NumPy, a piece at a time."""
        from ._functions import reduced

        return reduced(np.multiply, self, axis, dtype, out, keepdims)

    def mean(self, axis: Any = None, dtype: Any = None, out: Any = None, keepdims: bool = False) -> Any:
        """The mean of the items, or the means along axes."""
        from ._functions import mean

        return mean(self, axis, dtype, out, keepdims)

    def var(self, axis: Any = None, dtype: Any = None, out: Any = None, ddof: Any = 0, keepdims: bool = False) -> Any:
        """The variance of the items, or the variances along axes."""
        from ._functions import variance

        return variance(self, axis, dtype, out, ddof, keepdims)

    def std(self, axis: Any = None, dtype: Any = None, out: Any = None, ddof: Any = 0, keepdims: bool = False) -> Any:
        """The standard deviation of the items, or those along axes."""
        from ._functions import variance

        return np.sqrt(variance(self, axis, dtype, out, ddof, keepdims))

    def min(self, axis: Any = None, out: Any = None, keepdims: bool = False) -> Any:
        """The least item, or those along axes. A NaN is the least, as in NumPy."""
        from ._functions import extreme

        return extreme(np.minimum, self, axis, out, keepdims)

    def max(self, axis: Any = None, out: Any = None, keepdims: bool = False) -> Any:
        """The greatest item, or those along axes. A NaN is the greatest, as in NumPy."""
        from ._functions import extreme

        return extreme(np.maximum, self, axis, out, keepdims)

    def any(self, axis: Any = None, out: Any = None, keepdims: bool = False) -> Any:
        """Whether any item is true. Stops soon after one is found."""
        from ._functions import truth

        return truth(np.logical_or, self, axis, out, keepdims)

    def all(self, axis: Any = None, out: Any = None, keepdims: bool = False) -> Any:
        """Whether all items are true. Stops soon after one is found that is not."""
        from ._functions import truth

        return truth(np.logical_and, self, axis, out, keepdims)

    def argmin(self, axis: Any = None, out: Any = None, keepdims: bool = False) -> Any:
        """The number of the first least item, or their indices along an axis."""
        from ._functions import argument

        return argument("min", self, axis, out, keepdims)

    def argmax(self, axis: Any = None, out: Any = None, keepdims: bool = False) -> Any:
        """The number of the first greatest item, or their indices along an axis."""
        from ._functions import argument

        return argument("max", self, axis, out, keepdims)

    def nonzero(self) -> tuple[np.ndarray, ...]:
        """The indices of items that are not zero, an array for each axis."""
        if not self.ndim:
            raise ValueError("Calling nonzero on 0d arrays is not allowed.")
        return np.unravel_index(self.find(), self.shape)

    def repeat(self, repeats: Any, axis: int | None = None) -> Array:
        """Each item several times."""
        return _numpy.repeat(self, repeats, axis)

    def cumsum(self, axis: int | None = None, dtype: Any = None) -> Array:
        """Sums of the items up to each, along an axis: by NumPy, a piece at a time."""
        return _numpy.cumsum(self, axis, dtype)

    def cumprod(self, axis: int | None = None, dtype: Any = None) -> Array:
        """Products of the items up to each, along an axis: by NumPy, a piece at a time."""
        return _numpy.cumprod(self, axis, dtype)

    @property
    def real(self) -> Array:
        """The real parts, as a copy unless the items are real."""
        return np.real(self)

    @property
    def imag(self) -> Array:
        """The imaginary parts, as a copy."""
        return np.imag(self)

    def find(self, limit: int | None = None) -> np.ndarray[Any, Any]:
        """The numbers of the first items, in order, that are not zero: found on the devices.

        Examples
        --------
        >>> import vmarray as vm
        >>> a = vm.arange(1000)
        >>> (a * a == 144).find()
        array([12])
        """
        most = self.size if limit is None else operator.index(limit)
        return self.astype(bool, copy=False)._core.find(most)

    def clip(self, min: Any = None, max: Any = None) -> Array:
        """The items, those outside of a range as its ends."""
        from ._functions import clip

        return clip(self, min, max)

    def round(self, decimals: int = 0) -> Array:
        """The items rounded to whole numbers; of two, to the even one."""
        if decimals:
            return _ufuncs.by_pieces(lambda part: np.round(part, decimals), [self], self.shape, (self.dtype,))[0]
        return _numpy.rint(self) if self.dtype.kind == "f" else self.copy()

    def sort(self, axis: int = -1) -> None:
        """Sorts the items in place along an axis: those of one axis on the devices. NaNs come last."""
        from ._functions import sort_in_place

        sort_in_place(self, axis)

    def argsort(self, axis: Any = -1) -> Array:
        """The indices that would sort the items along an axis; equal ones stay in their order."""
        return _numpy.argsort(self, axis)

    def searchsorted(self, values: Any, side: str = "left", sorter: Any = None) -> Any:
        """Where values belong among the items, which are sorted."""
        from ._order import searchsorted

        return searchsorted(self, values, side, sorter)

    def take(self, indices: Any, axis: int | None = None, mode: str = "raise") -> Any:
        """The items at indices, on the devices."""
        from ._order import take

        return take(self, indices, axis, mode=mode)

    # Growth and files.

    def append(self, values: Any) -> None:
        """Adds an item or items at the end of an array of one axis, in place.

        It has to show all of its elements, as `zeros` and `open` give it. For how many items there is to be room
        the option ``max_len`` says; arrays in files grow without it.
        """
        if self.ndim != 1:
            raise InvalidError(f"an array of {self.ndim} axes cannot grow; append to one of one axis")
        values = np.atleast_1d(np.asarray(values)).astype(self.dtype, copy=False)
        if values.ndim != 1:
            raise ValueError("items along one axis are appended")
        self._core = self._core.append(np.ascontiguousarray(values))

    def flush(self) -> None:
        """Brings what is newer in the cache to the devices."""
        self._core.flush()

    def sync(self) -> None:
        """Has all that was written to an array in a file stay, though the power fails. Blocks until it does."""
        self._core.sync()

    def close(self) -> None:
        """Gives memory and files back. The array and its views cannot be used any more.

        What is still to be computed from it is computed before. What was written to a file and not followed by
        `sync` may be lost.
        """
        self._core.close()

    def __enter__(self) -> Array:
        return self

    def __exit__(self, kind: Any, error: Any, trace: Any) -> None:
        if self._path is not None and kind is None and not self.closed:
            self.sync()
        self.close()

    def memory(self) -> dict[str, Any]:
        """What the array takes: bytes on devices, of the cache and its most, of staging and of tables.

        ``kept_for_results_bytes`` is what the process keeps for results of all arrays: see `release_memory`.
        """
        return self._core.memory()


def _reopened(path: str, dtype: np.dtype[Any], shape: tuple[Any, ...]) -> Array:
    return open(path, dtype=dtype, shape=shape)


def _beside(*operands: Any) -> dict[str, Any]:
    """Options by which results lie where their operands do."""
    for one in operands:
        if isinstance(one, Array):
            return {"devices": one.devices}
    return {}


def _result(shape: tuple[Any, ...], dtype: Any, **options: Any) -> Array:
    return Array._of(_core.create(tuple(shape), np.dtype(dtype), None, options))


def empty(shape: Any, dtype: Any = float, **options: Any) -> Array:
    """An array that is to be written to; of zeroes, which cost nothing.

    Parameters
    ----------
    shape : int or sequence of ints
        How many items there are along each axis.
    dtype : data type
        Any dtype of items of a fixed number of bytes: numbers, bool, structures, strings, dates.
    devices : str, Device or list of Device, optional
        Where the items lie. A text is a list of wishes: ``"cuda"``, ``"cuda:0"``, ``"opencl:radeon"``,
        ``"host"``. By default: all discrete GPUs, else RAM.
    cache_bytes : int, optional
        How much RAM the cache may take; 256 MiB by default.
    page_len : int, optional
        How many items are copied at once.
    max_len : int, optional
        For how many items there is to be room, of an array that grows.
    checksums : bool, optional
        Whether what is read back from devices is compared with checksums of what was written.

    Examples
    --------
    >>> import vmarray as vm
    >>> vm.empty((2, 3), "int32", devices="host")
    Array([[0, 0, 0],
           [0, 0, 0]], dtype=int32)
    """
    return _result(_as_tuple(shape), dtype, **_checked(options))


def zeros(shape: Any, dtype: Any = float, **options: Any) -> Array:
    """An array of zeroes; see `empty` for the options.

    Examples
    --------
    >>> import vmarray as vm
    >>> vm.zeros(10**7, cache_bytes=1 << 20).sum()
    np.float64(0.0)
    """
    return empty(shape, dtype, **options)


def ones(shape: Any, dtype: Any = float, **options: Any) -> Array:
    """An array of ones; see `empty` for the options."""
    return full(shape, 1, dtype, **options)


def full(shape: Any, value: Any, dtype: Any = None, **options: Any) -> Array:
    """An array of one value; see `empty` for the options."""
    array = empty(shape, np.asarray(value).dtype if dtype is None else dtype, **options)
    array[...] = value
    return array


def arange(*limits: Any, dtype: Any = None, **options: Any) -> Array:
    """Numbers that follow one another, as of ``numpy.arange``; see `empty` for the options.

    Examples
    --------
    >>> import vmarray as vm
    >>> vm.arange(2, 10, 3)
    Array([2, 5, 8], dtype=int64)
    """
    if not 1 <= len(limits) <= 3:
        raise TypeError("arange() takes a stop, a start and a stop, or those and a step")
    start, stop = (0, limits[0]) if len(limits) == 1 else limits[:2]
    step = limits[2] if len(limits) == 3 else 1
    if step == 0:
        raise ZeroDivisionError("division by zero")
    kind = np.arange(start, start, step).dtype if dtype is None else np.dtype(dtype)
    length = -(-(stop - start) // step)
    array = empty(max(0, int(length)), kind, **options)
    for (block,) in _ufuncs.blocks(array.shape):
        part = np.arange(block.start, block.stop) if block.start is not None else np.arange(len(array))
        array[block] = start + part * step
    return array


def asarray(values: Any, dtype: Any = None, *, copy: bool | None = None, **options: Any) -> Array:
    """Values as an array: itself if they are one of the dtype, else a copy; see `empty` for the options.

    Parameters
    ----------
    copy : bool, optional
        True for a copy in any case. False for none: an array of NumPy, C-contiguous, is the home of the new array
        then, which reads of it what is asked for, and writes what has changed to it when that leaves the cache, by
        ``flush`` and ``close``. Do not write to it meanwhile. That costs nothing, whatever there is of it.

    Examples
    --------
    >>> import numpy as np, vmarray as vm
    >>> own = np.arange(10)
    >>> with vm.asarray(own, copy=False) as a:
    ...     a[a > 5] = 0
    >>> own
    array([0, 1, 2, 3, 4, 5, 0, 0, 0, 0])
    """
    if isinstance(values, Array):
        if copy is False and dtype is not None and values.dtype != dtype:
            raise ValueError(f"items of dtype {values.dtype} are none of {np.dtype(dtype)} without a copy")
        same = values if dtype is None else values.astype(dtype, copy=False)
        return same.copy() if copy and same is values else same
    if copy is False:
        # What cannot be had without a copy is an error of NumPy's.
        values = np.asarray(values, dtype, copy=False)
        if not values.flags.c_contiguous:
            raise ValueError("items that do not lie side by side are no home of an array; leave `copy` out")
        if values.size:
            return Array._of(_core.over_memory(values, not values.flags.writeable, _checked(options)))
    values = np.asarray(values, dtype)
    array = empty(values.shape, values.dtype, **options)
    if values.size:
        array._assign(values)
    return array


def array(values: Any, dtype: Any = None, **options: Any) -> Array:
    """A new array of values; see `empty` for the options."""
    return asarray(np.asarray(values) if isinstance(values, Array) else values, dtype, **options)


def from_dlpack(values: Any, *, copy: bool | None = None, **options: Any) -> Array:
    """A copy of what another package shows by DLPack; see `empty` for the options.

    Of a tensor on an NVIDIA card it lies on that card, unless the options say otherwise, and was copied there, by
    the package of the tensor; that of one in RAM is copied once, to where it is to lie. With ``copy=False`` a tensor in
    RAM is the home of the array, as of `asarray`; until that is closed nobody else may write to it.

    Examples
    --------
    >>> import numpy as np, vmarray as vm
    >>> vm.from_dlpack(np.arange(3))
    Array([0, 1, 2], dtype=int64)
    """
    from ._lend import copied_on_card, is_on_card

    if not isinstance(values, Array) and is_on_card(values):
        if copy is False:
            raise BufferError("items on a card are copied to an array; leave `copy` out")
        return copied_on_card(values, options)
    return asarray(np.from_dlpack(values), copy=copy, **options)


def create(path: str | os.PathLike[str], shape: Any, dtype: Any = float, **options: Any) -> Array:
    """An array of zeroes in a new file, there again when the program has ended; see `empty` for the options.

    Examples
    --------
    >>> import tempfile, os, vmarray as vm
    >>> path = os.path.join(tempfile.mkdtemp(), "squares")
    >>> with vm.create(path, 1000, "int64") as a:
    ...     a[:] = vm.arange(1000) ** 2
    >>> vm.open(path, "int64")[999]
    np.int64(998001)
    """
    path = os.fspath(path)
    if os.path.exists(path):
        raise FileExistsError(f"{path} is there already; open it, or remove it")
    return Array._of(_core.create(_as_tuple(shape), np.dtype(dtype), path, _checked(options)), path)


def open(
    path: str | os.PathLike[str], dtype: Any = float, shape: Any = None, mode: str = "r+", **options: Any
) -> Array:
    """Opens the array of a file; see `empty` for the options.

    Parameters
    ----------
    path : path
        The file.
    dtype : data type
        That which it was made with.
    shape : int or sequence of ints, optional
        The shape; one axis by default.
    mode : {"r+", "r"}
        Whether it is written to as well, or only read.
    """
    path = os.fspath(path)
    if not os.path.exists(path):
        raise FileNotFoundError(f"there is no file {path}; make one by vmarray.create")
    if mode not in ("r", "r+"):
        raise ValueError(f"mode is 'r' or 'r+', not {mode!r}")
    shape = None if shape is None else _as_tuple(shape)
    return Array._of(_core.open(path, np.dtype(dtype), shape, mode == "r", _checked(options)), path)


def release_memory() -> int:
    """Gives memory back to the system that is kept for results; returns how many bytes that were.

    Arrays of NumPy of 256 KiB and more that this package makes, as of ``numpy.asarray(a)`` and ``a[indices]``, lie in
    memory that is kept when they die, since the system takes longer to find new memory than the items take to be
    copied. At most 1 GiB is kept, or a sixteenth of the RAM if that is less; what nobody has used for a minute goes
    with the next result. When memory is short, the system takes what is kept; of what lists of items on a card come to
    again and again, 32 MiB or more, it does not, which is page-locked, so that the card writes it. Such arrays have a
    ``base``, which owns the memory, so ``resize`` is refused.

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


def where(condition: Any, *values: Any) -> Any:
    """Items of one array where a condition holds, else of another one: as ``numpy.where``."""
    from ._functions import where_of

    return where_of(condition, *values)


def sort(values: Array, axis: int = -1) -> Array:
    """A sorted copy: as ``numpy.sort``."""
    copy = values.copy()
    copy.sort(axis)
    return copy


_OPTIONS = {"devices", "cache_bytes", "page_len", "max_len", "checksums"}


def _checked(options: dict[str, Any]) -> dict[str, Any]:
    unknown = set(options) - _OPTIONS
    if unknown:
        raise TypeError(f"there is no option {min(unknown)!r}; there are {', '.join(sorted(_OPTIONS))}")
    return options
