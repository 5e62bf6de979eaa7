"""Arrays larger than RAM with the interface of NumPy arrays. All GPUs of the machine store their items in GPU memory.

Examples
--------
>>> import vmarray as vm
>>> a = vm.zeros(1_000_000, "int64")
>>> a[:] = vm.arange(1_000_000) ** 2
>>> a[999], (a == 998_001).find()
(np.int64(998001), array([999]))
"""

import os
import sys
from typing import Any

from . import _core, _names, _ufuncs, random
from ._array import Array, arange, array, asarray, create, empty, from_dlpack, full, ones, release_memory, zeros
from ._arrow import from_arrow, from_dataframe
from ._core import Device, __version__, devices
from ._errors import (
    ClosedError,
    DeviceError,
    Error,
    ExportError,
    FileError,
    ForkedError,
    InvalidError,
    KernelError,
    NoDeviceError,
    OutOfMemoryError,
    OutsideError,
)
from ._export import DeviceMemory
from ._files import load, open_zarr, save, to_zarr
from ._kernel import kernel
from ._mapped import SafeTensors, memmap, open
from ._order import Groups, group_by, top_k
from ._progress import progress
from ._ragged import Ragged
from ._rows import RowTable
from ._sets import IndexSet

__all__ = [
    "Array",
    "ClosedError",
    "Device",
    "DeviceError",
    "DeviceMemory",
    "Error",
    "FileError",
    "ForkedError",
    "Groups",
    "IndexSet",
    "InvalidError",
    "KernelError",
    "ExportError",
    "NoDeviceError",
    "OutOfMemoryError",
    "OutsideError",
    "Ragged",
    "RowTable",
    "SafeTensors",
    "__version__",
    "arange",
    "argsort",
    "array",
    "asarray",
    "bincount",
    "create",
    "devices",
    "empty",
    "from_arrow",
    "from_dataframe",
    "from_dlpack",
    "full",
    "group_by",
    "histogram",
    "kernel",
    "load",
    "median",
    "memmap",
    "ones",
    "open",
    "open_zarr",
    "percentile",
    "progress",
    "quantile",
    "random",
    "release_memory",
    "save",
    "searchsorted",
    "sort",
    "take",
    "to_zarr",
    "top_k",
    "unique",
    "where",
    "zeros",
]


def __getattr__(name: str) -> Any:
    """Looks up any other name of NumPy's main namespace in the table of `_names`."""
    found = globals()[name] = _names.named(name)
    return found


def __dir__() -> list[str]:
    return sorted({*globals(), *_names.known()})


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_parent=_core.forked, after_in_child=_core.started)
    os.register_at_fork(after_in_child=_ufuncs.forget_threads)

if "distributed" in sys.modules:
    # Import `dask` now in a worker of Dask: the worker may receive arrays before it calls a function of `dask`.
    from . import dask  # noqa: F401
