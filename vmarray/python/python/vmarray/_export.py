"""Exports an array's items to other packages without a copy, by DLPack or by an address."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

import numpy as np

from ._core import devices
from ._errors import ClosedError

if TYPE_CHECKING:
    from . import _core
    from ._array import Array

#: Kinds of devices, as DLPack numbers them.
_CUDA, _CUDA_MANAGED = 2, 13


class DeviceMemory:
    """The items of an array in device memory for other packages, from `Array.device_memory`.

    Functions that support DLPack accept the object (``torch.from_dlpack``, ``cupy.from_dlpack``, or
    ``numpy.from_dlpack`` if the items are in RAM). So do functions that support ``__cuda_array_interface__``
    (``numba.cuda.as_cuda_array``, ``torch.as_tensor``).

    Attributes
    ----------
    address : int
        Address of the first item: a CUDA address in the memory of a GPU, or an address in RAM.
    shape, dtype : tuple of int, data type
        Shape and data type of the array.
    strides : tuple of int
        Distance from one item to the next along each axis, in bytes.
    """

    def __init__(self, exported: _core.ExportedItems) -> None:
        self._exported: _core.ExportedItems | None = exported
        # Users of an address do not report their last use. So this reference keeps the export until `self` is freed.
        self._shown: _core.ExportedItems | None = None

    def _used(self) -> _core.ExportedItems:
        if self._exported is None:
            raise ClosedError("the export has ended; use items within the `with` block, or before `close`")
        return self._exported

    @property
    def address(self) -> int:
        return self._used().address

    @property
    def shape(self) -> tuple[int, ...]:
        return self._used().shape

    @property
    def strides(self) -> tuple[int, ...]:
        return self._used().strides

    @property
    def dtype(self) -> np.dtype[Any]:
        return self._used().dtype

    def __dlpack_device__(self) -> tuple[int, int]:
        return self._used().device

    def __dlpack__(
        self,
        *,
        stream: Any = None,
        max_version: tuple[int, int] | None = None,
        dl_device: tuple[int, int] | None = None,
        copy: bool | None = None,
    ) -> Any:
        # No stream has to wait, because all of the library's work on the items ended before the export.
        exported = self._used()
        if copy or (dl_device is not None and tuple(dl_device) != exported.device):
            raise BufferError("the items are exported in place, without a copy; copy the resulting tensor")
        return exported.capsule(max_version is not None and max_version[0] >= 1)

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        exported = self._used()
        if exported.device[0] != _CUDA:
            raise AttributeError("the items are not on an NVIDIA GPU; use numpy.from_dlpack")
        self._shown = exported
        return {
            "shape": exported.shape,
            "typestr": exported.dtype.str,
            "descr": exported.dtype.descr,
            "data": (exported.address, exported.is_read_only),
            "strides": exported.strides,
            "version": 3,
        }

    def close(self) -> None:
        """Ends the export, as the end of a ``with`` block does.

        The program can use the array again after it has freed all tensors made from this object by DLPack. Objects
        made by ``__cuda_array_interface__`` refer to this object, so the program must free them and this object as
        well.
        """
        self._exported = None

    def __enter__(self) -> DeviceMemory:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        if self._exported is None:
            return "<vmarray.DeviceMemory closed>"
        kind = "card" if self.__dlpack_device__()[0] == _CUDA else "RAM"
        return f"<vmarray.DeviceMemory of shape {self.shape}, dtype {self.dtype}, in {kind} at {self.address:#x}>"


def is_on_card(values: Any) -> bool:
    """True if the items of an object that supports DLPack are in the memory of an NVIDIA GPU."""
    return values.__dlpack_device__()[0] in (_CUDA, _CUDA_MANAGED)


def copied_on_card(values: Any, options: dict[str, Any]) -> Array:
    """Copies a tensor on a GPU. The tensor's own package makes the copy, because it knows the tensor's streams and
    types.
    """
    from ._array import empty

    package = sys.modules[type(values).__module__.partition(".")[0]]
    numpys = np.dtype(str(values.dtype).rpartition(".")[2])
    if "devices" not in options:
        # Use the GPU of the tensor by default, so that the copy stays on this GPU.
        number, cards = values.__dlpack_device__()[1], [one for one in devices() if one.backend == "cuda"]
        options = {"devices": cards[number] if number < len(cards) else f"cuda:{number}", **options}
    array = empty(tuple(values.shape), numpys, **options)
    if array.size:
        with array.device_memory() as memory:
            package.from_dlpack(memory)[...] = values
    return array
