"""Tables of rows, for lists of ids and results that are in the memory of an NVIDIA GPU."""

from __future__ import annotations

import os
import re
import sys
from fnmatch import fnmatchcase
from glob import glob
from math import prod
from typing import TYPE_CHECKING, Any

import numpy as np

from . import _core
from ._array import Array
from ._array import array as _copied
from ._errors import ClosedError, FileError, InvalidError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ._shared import SharedRows

#: Formats of numbers by the names of data types in PyTorch, CuPy and `ml_dtypes`.
_FORMATS = {
    "float32": "f32",
    "float16": "f16",
    "bfloat16": "bf16",
    "float8_e4m3fn": "e4m3",
    "float8_e5m2": "e5m2",
    "int8": "i8",
}
#: Data types of ids.
_IDS = ("int32", "int64")
#: Element types of safetensors that NumPy lacks: their format.
_TENSORS = {"BF16": "bf16", "F8_E4M3": "e4m3", "F8_E5M2": "e5m2"}
#: Data types that calls have seen: their format and the bytes of an item.
_KNOWN: dict[Any, tuple[str, int]] = {}


def _format(dtype: Any, itemsize: int) -> tuple[str, int]:
    """The format of a data type, and its bytes. Types without a format are copied unchanged."""
    known = _KNOWN.get(dtype)
    if known is None:
        known = _KNOWN[dtype] = (_FORMATS.get(str(dtype).rpartition(".")[2], ""), itemsize)
    return known


class _Memory:
    """The memory of a tensor that supports only ``__cuda_array_interface__``."""

    def __init__(self, values: Any) -> None:
        shown = getattr(values, "__cuda_array_interface__", None)
        if shown is None:
            raise InvalidError(
                f"ids and rows of a table are tensors on a GPU, not {type(values).__name__}; "
                "for arrays in RAM use `array[ids]`"
            )
        self.dtype = np.dtype(shown["typestr"])
        self.shape = tuple(shown["shape"])
        self._address = shown["data"][0]
        #: The number of the GPU, if the package names it as CuPy does.
        self._ordinal = getattr(getattr(values, "device", None), "id", None)
        strides, extents = shown.get("strides"), self.shape[1:]
        dense = tuple(prod(extents[axis:]) * self.dtype.itemsize for axis in range(len(self.shape)))
        self._is_contiguous = strides is None or tuple(strides) == dense or prod(self.shape) <= 1

    def data_ptr(self) -> int:
        return int(self._address)

    def element_size(self) -> int:
        return self.dtype.itemsize

    def is_contiguous(self) -> bool:
        return self._is_contiguous

    def get_device(self) -> Any:
        return self._ordinal


def _memory(values: Any) -> Any:
    if hasattr(values, "data_ptr"):
        if not values.is_cuda:
            raise InvalidError("ids and rows of a table are tensors on a GPU; for tensors in RAM use `array[ids]`")
        return values
    return _Memory(values)


def _stream(values: Any, stream: Any) -> int:
    """The handle of a stream: of the given one, or of the current stream of the tensor's package."""
    if stream is None:
        torch = sys.modules.get("torch")
        if torch is not None and isinstance(values, torch.Tensor):
            return int(torch._C._cuda_getCurrentRawStream(values.device.index))
        cupy = sys.modules.get("cupy")
        return int(cupy.cuda.get_current_stream().ptr) if cupy is not None else 0
    for name in ("cuda_stream", "ptr", "handle"):
        found = getattr(stream, name, None)
        if found is not None:
            return int(found)
    return int(stream)


def _numbers(ids: Any, name: str) -> tuple[int, int, int]:
    """The address of integers on the GPU, how many they are, and the bytes of each."""
    size = ids.element_size()
    if str(ids.dtype).rpartition(".")[2] not in _IDS:
        raise InvalidError(f"{name} are int32 or int64, not {ids.dtype}")
    if not ids.is_contiguous():
        raise InvalidError(f"{name} must be contiguous; call `contiguous()` before")
    return ids.data_ptr(), prod(ids.shape), size


def _card(device: _core.Device | str | None, own: Sequence[_core.Device]) -> _core.Device:
    """The GPU of a table: the given one, or the first of the array's devices, or the first one."""
    if device is None:
        device = next((one for one in own if one.backend == "cuda"), "cuda:0")
    return _core.devices(device)[0] if isinstance(device, str) else device


def _opened(files: Any, name: str | None, dtype: Any, shape: tuple[int, ...]) -> tuple[Array, str | None, list[Any]]:
    """An array of the rows in files, their format, and facts that identify the contents."""
    from . import _mapped

    given = [files] if isinstance(files, (str, os.PathLike)) else [*files]
    paths: list[str] = []
    for one in given:
        text = os.fspath(one)
        paths += [text] if os.path.exists(text) else sorted(glob(text), key=_natural)
    if not paths:
        raise FileNotFoundError(f"no file matches {files}")
    paths = [os.path.abspath(path) for path in paths]
    found = {path: _parts(path, name, dtype, shape) for path in paths}
    parts = [part for own in found.values() for part in own or ()]
    source = [[path, os.path.getsize(path), os.stat(path).st_mtime_ns, name] for path in paths]
    for path, own in found.items():
        if own is None:
            if len(paths) > 1:
                raise InvalidError(f"{path} cannot be one of several files of a table; open it alone")
            return _mapped.open(path, mode="r"), None, source
    if not parts:
        raise InvalidError(f"no tensor of {paths[0]} (of {len(paths)} files) has a name like {name!r}")
    path, kind, (_, *row), _ = parts[0]
    for other, its, (_, *its_row), _ in parts:
        if (its, its_row) != (kind, row):
            raise InvalidError(f"{other} has rows of {its} {its_row}, but {path} has rows of {kind} {row}")
    bits = np.dtype(f"u{_mapped._ML_BYTES[kind]}" if kind in _TENSORS else _mapped._TENSOR_TYPES.get(kind, kind))
    each = prod(row) * bits.itemsize
    sections = [(path, offset, extent * each) for path, _, (extent, *_), offset in parts if extent]
    if not sections or not each:
        raise InvalidError(f"{paths[0]} has no rows")
    extents = (sum(part[2][0] for part in parts), *row)
    core = _core.over_file(sections, extents, bits, "r", {})
    return Array._of(core, None, "r"), _TENSORS.get(kind, _FORMATS.get(bits.name)), source


def _parts(path: str, name: str | None, dtype: Any, shape: tuple[int, ...]) -> list[tuple[str, str, Any, int]] | None:
    """The tensors of rows in a file: path, type, shape and offset. None for a file without contiguous items."""
    from . import _mapped

    if path.endswith((".safetensors", ".safetensors.index.json")):
        tensors = _mapped.SafeTensors(path)._tensors
        chosen = sorted((one for one in tensors if name is None or fnmatchcase(one, name)), key=_natural)
        if name is None and len(chosen) > 1:
            shown = ", ".join(chosen[:20])
            raise InvalidError(f"{path} has several tensors; pass a name, or a pattern of names: {shown}")
        return [_axis_of_rows(*tensors[one]) for one in chosen]
    if name is not None:
        raise InvalidError(f"{path} is no safetensors file, so its array has no name; leave `name` out")
    start = b""
    if os.path.isfile(path):
        with open(path, "rb") as file:
            start = file.read(8)
    if start.startswith(b"\x93NUMPY"):
        kind, extents, offset, order = _mapped._npy_header(path)
        if order == "F" and len(extents) > 1:
            raise InvalidError(f"{path} has its items in Fortran's order, so its rows are not contiguous; convert it")
        return [_axis_of_rows(path, kind.str, extents, offset)]
    if start == b"vmarray\x1a" or os.path.isdir(path):
        return None
    if dtype is None:
        raise InvalidError(f"the kind of {path} is not known; pass the `dtype` of its items and the `shape` of a row")
    each, size = prod(shape) * np.dtype(dtype).itemsize, os.path.getsize(path)
    if not each or size % each:
        raise FileError(f"{path} has {size} bytes, which is no multiple of the {each} bytes of a row")
    return [(path, np.dtype(dtype).str, (size // each, *shape), 0)]


def _axis_of_rows(path: str, kind: str, shape: tuple[int, ...], offset: int) -> tuple[str, str, Any, int]:
    if not shape:
        raise InvalidError(f"{path} has a number, and no axis of rows")
    return path, kind, shape, offset


def _natural(text: str) -> list[Any]:
    """A key that sorts texts by the numbers in them."""
    return [(1, int(part), "") if part.isdigit() else (0, 0, part) for part in re.split(r"(\d+)", text)]


class RowTable:
    """The rows of an array, for lists of ids and results that are in the memory of an NVIDIA GPU.

    Each call enqueues its work on a stream, and returns at once: it waits for nothing, and copies neither ids nor
    rows through RAM. Work of the stream before and after the call is ordered with it. After the first calls, whose
    lists are not shorter, calls allocate nothing, and can be captured in a CUDA graph (`torch.cuda.graph`), unless the
    rows are in files.

    While the table is open, the program cannot use the array in other ways.

    Parameters
    ----------
    array : Array, numpy.ndarray or tensor on the GPU
        The rows, along the first axis, one after the other in memory: a whole array, or a range of its rows. An array
        is on GPUs, in a file, or in RAM (``devices="host"``): the table page-locks RAM, and kernels read it over the
        bus. A table over a NumPy array or a tensor is read-only, and uses its memory in place.
    device : Device or str, optional
        The GPU of ids and results. By default the GPU of the array, or the first one.
    format : str, optional
        The numbers of the array, if its dtype does not say it: ``"bf16"``, ``"e4m3"``, ``"e5m2"``, ``"i8"``, ``"f16"``
        or ``"f32"``. Rows are converted to the dtype of results: float32, float16 or bfloat16. Without a format,
        results have items of the same length.
    scales : sequence of float, optional
        A factor for each row.
    out_of_range : {"error", "zeros"}
        An id that is not the number of a row (a negative one, too) gives a row of zeros. With ``"error"`` a later call,
        or `check`, also raises IndexError.
    cache_bytes : int, optional
        Memory of the GPU for rows of a table in RAM: kernels keep the rows there that they read most often. Such a
        table is read-only.

    Examples
    --------
    >>> import torch, vmarray as vm                                                         # doctest: +SKIP
    >>> table = vm.RowTable(vm.open("rows.npy").to_device("cuda:0"))                        # doctest: +SKIP
    >>> ids = torch.tensor([3, 1, 3], device="cuda")                                        # doctest: +SKIP
    >>> out = torch.empty(3, 64, dtype=torch.bfloat16, device="cuda")                       # doctest: +SKIP
    >>> table.gather_into(out, ids)                                                         # doctest: +SKIP
    """

    def __init__(
        self,
        array: Array | np.ndarray[Any, Any] | Any,
        *,
        device: _core.Device | str | None = None,
        format: str | None = None,
        scales: Sequence[float] | None = None,
        out_of_range: str = "error",
        cache_bytes: int = 0,
    ) -> None:
        if out_of_range not in ("error", "zeros"):
            raise InvalidError(f"out_of_range is 'error' or 'zeros', not {out_of_range!r}")
        given = array if isinstance(array, (Array, np.ndarray)) else _memory(array)
        if device is None and not isinstance(given, (Array, np.ndarray)) and given.get_device() is not None:
            device = f"cuda:{given.get_device()}"
        card = _card(device, given.devices if isinstance(given, Array) else ())
        self._ordinal = card.ordinal
        if format is None:
            format = _FORMATS.get(str(given.dtype).rpartition(".")[2], "")
        listed = [] if scales is None else [float(scale) for scale in scales]
        options = (format, out_of_range == "zeros", cache_bytes)
        self._shared: SharedRows | None = None
        self._shape, self._format = tuple(given.shape), format
        if isinstance(given, Array):
            self._itemsize = given.dtype.itemsize
            self._rows: _core.Rows | None = given._core.rows(card, options, listed)
            return
        is_in_ram = isinstance(given, np.ndarray)
        if isinstance(given, np.ndarray):
            address, size, is_contiguous = given.ctypes.data, given.dtype.itemsize, given.flags.c_contiguous
        else:
            address, size, is_contiguous = given.data_ptr(), given.element_size(), given.is_contiguous()
        if not is_contiguous or not self._shape or not prod(self._shape):
            raise InvalidError("the rows of a table follow one another in memory; copy them first")
        self._itemsize = size
        place = (address, is_in_ram, self._shape[0], prod(self._shape[1:]) * size, size)
        if not is_in_ram:
            self._expect_here(given, "the rows")
        self._rows = _core.Rows.over(array, place, card, options, listed)

    @classmethod
    def open(
        cls,
        files: str | os.PathLike[str] | Sequence[str | os.PathLike[str]],
        name: str | None = None,
        *,
        device: _core.Device | str | None = None,
        home: str = "files",
        shared: str | None = None,
        dtype: Any = None,
        shape: tuple[int, ...] = (),
        format: str | None = None,
        **options: Any,
    ) -> RowTable:
        """Opens the rows in files as one read-only table, without a conversion.

        Parameters
        ----------
        files : path or sequence of paths
            Files of safetensors, an index of them, ``.npy`` or raw files; or one file of `create` or Zarr array. A text
            may be a pattern such as ``"model-*.safetensors"``. The table has the rows of all files: numbers in file
            names determine the order.
        name : str, optional
            For safetensors: the tensor, or a pattern such as ``"ngrams.*.weight"`` for several tensors. All have rows
            of one shape and type. Necessary if a file has several tensors.
        home : {"files", "ram", "gpu"}
            "files" to leave the rows in the files, where threads read them; "ram" or "gpu" to copy them.
        shared : str, optional
            With ``home="ram"`` or ``"gpu"``: a name by which all processes of this user on this host open one copy. The
            first process copies the rows, the others wait for it. The copy in RAM exists while a process has the table
            open. The copy on a GPU belongs to the first process, whose `close` waits for the other tables; if that
            process is killed, calls in other processes raise `DeviceError`.
        dtype, shape : optional
            For raw files: the type of the items, and the shape of a row.
        device, format, **options
            As for `RowTable`.

        Examples
        --------
        >>> table = vm.RowTable.open("model-*.safetensors", "ngrams.*.weight", home="ram")  # doctest: +SKIP
        """
        if home not in ("files", "ram", "gpu") or (shared is not None and home == "files"):
            raise InvalidError(f"home is 'files', 'ram' or 'gpu', and not 'files' for a shared table; not {home!r}")
        rows, found, source = _opened(files, name, dtype, shape)
        format = found if format is None else format
        card = _card(device, ())
        if shared is not None:
            from ._shared import SharedRows

            own = SharedRows(shared, rows, source, card if home == "gpu" else None)
            try:
                table = cls(own.rows, device=card, format=format, **options)
            except BaseException:
                own.close()
                raise
            table._shared = own
            return table
        if home != "files":
            rows = _copied(rows, devices="host" if home == "ram" else card)
        return cls(rows, device=card, format=format, **options)

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of the array."""
        return self._shape

    @property
    def home(self) -> str:
        """The place of the rows: ``"gpu"``, ``"ram"``, or ``"storage"`` (files: threads of the host read the rows)."""
        return self._open().home

    def _open(self) -> _core.Rows:
        if self._rows is None:
            raise ClosedError("the table is closed; use it before `close`, or within its `with` block")
        if self._shared is not None:
            self._shared.check()
        return self._rows

    def _expect_here(self, values: Any, name: str) -> None:
        """Raises an error for a tensor on another GPU than the table's."""
        ordinal = values.get_device()
        if ordinal is not None and ordinal != self._ordinal:
            raise InvalidError(f"{name} are on cuda:{ordinal}, but the table is for cuda:{self._ordinal}")

    def _numbers(self, ids: Any, name: str) -> tuple[int, int, int]:
        self._expect_here(ids, name)
        return _numbers(ids, name)

    def _values(self, values: Any, count: tuple[int, ...]) -> tuple[int, str, int]:
        """The address, the format and the item size of rows on the GPU, whose shape must be `count` rows."""
        self._expect_here(values, "rows")
        if tuple(values.shape) != count + self._shape[1:]:
            raise InvalidError(f"rows of shape {count + self._shape[1:]} are needed, not {tuple(values.shape)}")
        if not values.is_contiguous():
            raise InvalidError("rows must be contiguous; call `contiguous()` before")
        name, size = _format(values.dtype, values.element_size())
        if not self._format and size == self._itemsize:
            name = ""
        return values.data_ptr(), name, size

    def gather_into(self, out: Any, ids: Any, stream: Any = None) -> None:
        """Reads rows: ``out[i] = array[ids[i]]``, converted to the dtype of `out`.

        Parameters
        ----------
        out : tensor on the GPU
            Contiguous, of the shape of `ids` and then of a row.
        ids : tensor on the GPU
            int32 or int64, of any shape, contiguous.
        stream : stream or int, optional
            The stream of the work: an object of PyTorch, CuPy or Numba, or the address of a ``CUstream``. By default
            the current stream of the tensor's package. As for other kernels, keep the tensors until the work is done;
            tensors of PyTorch that another stream allocated need ``record_stream``.

        Raises
        ------
        IndexError
            For an id out of range in the list of an earlier call, with ``out_of_range="error"``.
        """
        ids, out = _memory(ids), _memory(out)
        self._open().gather(
            self._values(out, tuple(ids.shape)), self._numbers(ids, "ids"), _stream(ids, stream)
        )

    def scatter_from(self, values: Any, ids: Any, stream: Any = None) -> None:
        """Writes rows: ``array[ids[i]] = values[i]``. If an id occurs twice, its row gets one of the two values, or a
        mixture of both.

        Parameters
        ----------
        values : tensor on the GPU
            Contiguous, of the dtype of the array.
        ids, stream
            As for `gather_into`.
        """
        ids, values = _memory(ids), _memory(values)
        self._open().scatter(
            self._values(values, tuple(ids.shape)), self._numbers(ids, "ids"), _stream(ids, stream)
        )

    def gather_sum(
        self,
        out: Any,
        ids: Any,
        offsets: Any,
        weights: Any = None,
        stream: Any = None,
    ) -> None:
        """Adds up rows, as ``torch.nn.EmbeddingBag`` with the mode ``"sum"``: ``out[b]`` is the sum of the rows of the
        ids from ``offsets[b]`` up to the next offset.

        Parameters
        ----------
        out : tensor on the GPU
            float32, float16 or bfloat16. One row for each offset, or one row less: then the last offset is the end of
            the last bag. Sums are float32.
        ids, offsets : tensor on the GPU
            int32 or int64, of one axis. The offsets ascend.
        weights : tensor on the GPU, optional
            A factor of float32 for each id.
        stream
            As for `gather_into`.
        """
        ids, offsets, out = _memory(ids), _memory(offsets), _memory(out)
        pointer = None
        if weights is not None:
            weights = _memory(weights)
            if _format(weights.dtype, 4)[0] != "f32" or tuple(weights.shape) != tuple(ids.shape):
                raise InvalidError("weights are float32, one for each id")
            self._expect_here(weights, "weights")
            pointer = weights.data_ptr()
        count = int(out.shape[0]) if len(out.shape) else 0
        if int(offsets.shape[0]) - count not in (0, 1):
            raise InvalidError(f"{count} sums need {count} offsets, or one more; there are {offsets.shape[0]}")
        bags = (self._numbers(offsets, "offsets"), count, pointer)
        self._open().sum(self._values(out, (count,)), self._numbers(ids, "ids"), bags, _stream(ids, stream))

    def prefetch(self, ids: Any, stream: Any = None) -> None:
        """Starts to bring rows closer that later calls read, and returns at once.

        A thread reads rows of files, so the system caches them in RAM. For a table with `cache_bytes`, the GPU admits
        rows to the cache as if it read them. Other tables ignore the call.

        Parameters
        ----------
        ids : tensor on the GPU or list of int
            As for `gather_into`; or a NumPy array, a tensor in RAM or a list, if the rows are in files.
        stream
            As for `gather_into`.
        """
        is_on_card = getattr(ids, "is_cuda", None)
        if is_on_card or (is_on_card is None and hasattr(ids, "__cuda_array_interface__")):
            ids = _memory(ids)
            self._open().prefetch(self._numbers(ids, "ids"), _stream(ids, stream), [])
            return
        listed = np.asarray(ids)
        if listed.size and listed.dtype.kind not in "iu":
            raise InvalidError(f"ids are integers, not {listed.dtype}")
        self._open().prefetch(None, 0, listed[(listed >= 0) & (listed < self._shape[0])].astype("u8").tolist())

    def cache_stats(self) -> dict[str, int | float]:
        """Numbers of the cache: ``reads`` of rows, ``hits``, ``hit_rate``, ``bytes_from_cache``, ``bytes_from_home``,
        and ``cached_rows``, the rows for which it has room. Does not wait for kernels.
        """
        reads, hits, cached_rows = self._open().cache_stats()
        row_bytes = prod(self._shape[1:]) * self._itemsize
        return {
            "reads": reads,
            "hits": hits,
            "hit_rate": hits / max(reads, 1),
            "bytes_from_cache": hits * row_bytes,
            "bytes_from_home": (reads - hits) * row_bytes,
            "cached_rows": cached_rows,
        }

    def check(self) -> None:
        """Raises IndexError if a kernel has read an id out of range. Does not wait: synchronise the stream before."""
        self._open().check()

    def close(self) -> None:
        """Waits for the GPU, and ends the table: the program can use the array again. Graphs that were captured with
        calls of the table must not run any more.
        """
        self._rows = None
        if self._shared is not None:
            shared, self._shared = self._shared, None
            shared.close()

    def __enter__(self) -> RowTable:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        place = "closed" if self._rows is None else f"in {self._rows.home}"
        return f"<vmarray.RowTable of shape {self._shape}, format {self._format or 'bytes'}, {place}>"
