"""Tables of rows, for lists of ids and results that are in the memory of an NVIDIA GPU."""

from __future__ import annotations

import sys
from math import prod
from typing import TYPE_CHECKING, Any

from ._core import devices
from ._errors import ClosedError, InvalidError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from . import _core
    from ._array import Array

#: Formats of numbers by the names of data types in PyTorch, CuPy and `ml_dtypes`.
_FORMATS = {
    "float32": "f32",
    "float16": "f16",
    "bfloat16": "bf16",
    "float8_e4m3fn": "e4m3",
    "float8_e5m2": "e5m2",
    "int8": "i8",
}
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
        import numpy as np

        shown = getattr(values, "__cuda_array_interface__", None)
        if shown is None:
            raise InvalidError(
                f"ids and rows of a table are tensors on a GPU, not {type(values).__name__}; "
                "for arrays in RAM use `array[ids]`"
            )
        self.dtype = np.dtype(shown["typestr"])
        self.shape = tuple(shown["shape"])
        self._address = shown["data"][0]
        self._is_contiguous = shown.get("strides") is None or prod(self.shape) <= 1

    def data_ptr(self) -> int:
        return int(self._address)

    def element_size(self) -> int:
        return self.dtype.itemsize

    def is_contiguous(self) -> bool:
        return self._is_contiguous


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
    if size not in (4, 8) or str(ids.dtype).rpartition(".")[2] not in ("int32", "int64", "uint64", "uint32"):
        raise InvalidError(f"{name} are int32 or int64, not {ids.dtype}")
    if not ids.is_contiguous():
        raise InvalidError(f"{name} must be contiguous; call `contiguous()` before")
    return ids.data_ptr(), prod(ids.shape), size


class RowTable:
    """The rows of an array, for lists of ids and results that are in the memory of an NVIDIA GPU.

    Each call enqueues its work on a stream, and returns at once: it waits for nothing, and copies neither ids nor
    rows through RAM. Work of the stream before and after the call is ordered with it. After the first calls, whose
    lists are not shorter, calls allocate nothing, and can be captured in a CUDA graph (`torch.cuda.graph`).

    While the table is open, the program cannot use the array in other ways.

    Parameters
    ----------
    array : Array
        The rows, along the first axis. On GPUs, or in RAM (``devices="host"``): the table page-locks RAM, and kernels
        read it over the bus.
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
    >>> table = vm.RowTable(vm.open("rows.npy").to("cuda:0"))                               # doctest: +SKIP
    >>> ids = torch.tensor([3, 1, 3], device="cuda")                                        # doctest: +SKIP
    >>> out = torch.empty(3, 64, dtype=torch.bfloat16, device="cuda")                       # doctest: +SKIP
    >>> table.gather_into(out, ids)                                                         # doctest: +SKIP
    """

    def __init__(
        self,
        array: Array,
        *,
        device: _core.Device | str | None = None,
        format: str | None = None,
        scales: Sequence[float] | None = None,
        out_of_range: str = "error",
        cache_bytes: int = 0,
    ) -> None:
        if out_of_range not in ("error", "zeros"):
            raise InvalidError(f"out_of_range is 'error' or 'zeros', not {out_of_range!r}")
        if device is None:
            device = next((own for own in array.devices if own.backend == "cuda"), "cuda:0")
        card = devices(device)[0] if isinstance(device, str) else device
        if format is None:
            format = _FORMATS.get(array.dtype.name, "")
        listed = [] if scales is None else [float(scale) for scale in scales]
        self._rows: _core.Rows | None = array._core.rows(card, (format, out_of_range == "zeros", cache_bytes), listed)
        self._shape, self._format, self._itemsize = array.shape, format, array.dtype.itemsize

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
        return self._rows

    def _values(self, values: Any, count: tuple[int, ...]) -> tuple[int, str, int]:
        """The address, the format and the item size of rows on the GPU, whose shape must be `count` rows."""
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
            self._values(out, tuple(ids.shape)), _numbers(ids, "ids"), _stream(ids, stream)
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
            self._values(values, tuple(ids.shape)), _numbers(ids, "ids"), _stream(ids, stream)
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
            pointer = weights.data_ptr()
        count = int(out.shape[0]) if len(out.shape) else 0
        if int(offsets.shape[0]) - count not in (0, 1):
            raise InvalidError(f"{count} sums need {count} offsets, or one more; there are {offsets.shape[0]}")
        bags = (_numbers(offsets, "offsets"), count, pointer)
        self._open().sum(self._values(out, (count,)), _numbers(ids, "ids"), bags, _stream(ids, stream))

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

    def __enter__(self) -> RowTable:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        place = "closed" if self._rows is None else f"in {self._rows.home}"
        return f"<vmarray.RowTable of shape {self._shape}, format {self._format or 'bytes'}, {place}>"
