"""NumPy's universal functions (ufuncs) on arrays. Devices compute the ones that they support; NumPy computes the rest,
piece by piece.
"""

from __future__ import annotations

import collections
import concurrent.futures
import contextvars
import functools
import os
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from . import _core

#: Number of items that NumPy processes at once.
PIECE = 1 << 20
#: Functions whose reductions of pieces make up the reduction of all.
ASSOCIATIVE: tuple[Any, ...] = (np.add, np.multiply, np.minimum, np.maximum, np.fmin, np.fmax, np.logical_or)
ASSOCIATIVE += (np.logical_and, np.logical_xor, np.bitwise_or, np.bitwise_and, np.bitwise_xor, np.gcd, np.lcm)
#: The most threads that compute pieces at once.
CORES = min(len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1, 16)


@functools.lru_cache(maxsize=4096)
def resolved(
    ufunc: np.ufunc, kinds: tuple[Any, ...], dtype: np.dtype[Any] | None, casting: Any = "same_kind"
) -> tuple[Any, ...]:
    """The dtypes of a ufunc's operands and results by NumPy's promotion rules, in native byte order."""
    if casting != "same_kind" or dtype is not None:
        # Let NumPy raise its own error for a forbidden cast first; the call below crashes for some Python numbers.
        options = {} if dtype is None else {"dtype": dtype}
        probes = (np.empty(0, one) if isinstance(one, np.dtype) else one(1) for one in kinds)
        ufunc(*probes, casting=casting, **options)
        casting = "unsafe"
    wanted = kinds + (None,) * ufunc.nout
    if dtype is None:
        return ufunc.resolve_dtypes(wanted, casting=casting)
    signature = (None,) * ufunc.nin + (dtype.newbyteorder("="),) * ufunc.nout
    return ufunc.resolve_dtypes(wanted, signature=signature, casting=casting)


def kind(operand: object) -> object:
    """An operand's type for NumPy's promotion rules: the type of a Python number, else a dtype."""
    if type(operand) in (int, float, complex):
        return type(operand)
    dtype = getattr(operand, "dtype", None)
    return dtype if isinstance(dtype, np.dtype) else np.asarray(operand).dtype


def is_computed(dtype: np.dtype[Any]) -> bool:
    """True if devices compute with the dtype: bool, or integers and floats of at most 64 bits, in the machine's byte
    order.
    """
    return dtype.kind in "biuf" and dtype.itemsize <= 8 and dtype.isnative


def blocks(shape: tuple[Any, ...], most: int = PIECE) -> Iterator[tuple[Any, ...]]:
    """Divides a shape into parts of at most `most` items, in order. Each part is an index key."""
    if 0 in shape:
        return
    size = 1
    split = len(shape)
    # Keep the last axes whole while a block of them has at most `most` items.
    while split > 0 and size * shape[split - 1] <= most:
        split -= 1
        size *= shape[split]
    rest = (slice(None),) * (len(shape) - split)
    if split == 0:
        yield rest
        return
    step = max(1, most // size)
    for outer in np.ndindex(shape[: split - 1]):
        at = tuple(slice(one, one + 1) for one in outer)
        for start in range(0, shape[split - 1], step):
            yield (*at, slice(start, min(start + step, shape[split - 1])), *rest)


@functools.cache
def _threads() -> concurrent.futures.ThreadPoolExecutor:
    return concurrent.futures.ThreadPoolExecutor(CORES - 1, "vmarray")


def forget_threads() -> None:
    """Makes a forked process start threads of its own: the threads of its parent do not exist there."""
    _threads.cache_clear()


def in_threads(work: Callable[[Any], Any], keys: list[Any]) -> list[Any]:
    """The results of a function for each key, in order, computed on all cores. NumPy releases Python's lock while it
    computes."""
    if len(keys) < 2 or CORES < 2:
        return [work(key) for key in keys]
    results: list[Any] = [None] * len(keys)
    numbers = collections.deque(range(len(keys)))
    # A thread may keep its last task for a while, but not the arrays of `work`.
    job = [work]

    def share() -> None:
        while True:
            try:
                number = numbers.popleft()
            except IndexError:
                return
            try:
                results[number] = job[0](keys[number])
            except BaseException:
                # The other threads end after their present keys.
                numbers.clear()
                raise

    # Each thread has the settings of this one, such as NumPy's `errstate`.
    others = [_threads().submit(contextvars.copy_context().run, share) for _ in range(min(CORES, len(keys)) - 1)]
    try:
        share()
    finally:
        # A thread that is still busy elsewhere finds no key.
        for other in others:
            if not other.cancel():
                other.exception()
        job.clear()
    for other in others:
        if not other.cancelled():
            other.result()
    return results


def _in_ram(number: Any) -> Any:
    return np.asarray(number) if hasattr(number, "_core") else number


def _few(operand: Any) -> Any:
    """An empty array of the operand's dtype, or the operand itself if it has no axes."""
    return np.empty(0, operand.dtype) if np.ndim(operand) else operand


def by_pieces(
    function: Callable[..., Any], inputs: list[Any], shape: tuple[Any, ...], dtypes: tuple[Any, ...]
) -> tuple[Any, ...]:
    """Calls an element-wise NumPy function piece by piece, and returns the results as new arrays of `dtypes`."""
    from . import _array

    options = _array._options_like(*inputs)
    results = tuple(_array._result(shape, dtype, **options) for dtype in dtypes)
    wide = [np.broadcast_to(one, shape) if np.ndim(one) else _in_ram(one) for one in inputs]
    if 0 in shape:
        # First call NumPy without items, so that it raises its errors even for an empty result.
        function(*map(_few, wide))

    def work(block: Any) -> None:
        parts = [one if np.ndim(one) == 0 else np.asarray(one[block]) for one in wide]
        given = function(*parts)
        for result, part in zip(results, given if isinstance(given, tuple) else (given,)):
            result[block] = part

    in_threads(work, [*blocks(shape, PIECE // 4)])
    return results


def applied(
    name: str, operands: list[Any], dtypes: tuple[Any, ...], gives: np.dtype[Any], shape: tuple[Any, ...]
) -> _core.Core | None:
    """Computes an operation on the devices, and returns its result, or None if the devices do not support the
    operation. Operands are ``Core`` objects or numbers.
    """
    ready: list[Any] = []
    for operand, dtype in zip(operands, dtypes):
        if isinstance(operand, _core.Core):
            ready.append(operand)
        else:
            ready.append(np.asarray(operand, dtype))
    return _core.apply(name, ready, list(dtypes), gives, shape)
