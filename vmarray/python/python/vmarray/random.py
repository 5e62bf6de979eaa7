"""Random numbers, like ``numpy.random``, computed on the result's devices. The numbers differ from NumPy's.

Examples
--------
>>> import vmarray as vm
>>> rng = vm.random.default_rng(7)
>>> a = rng.normal(10, 2, size=100_000)
>>> bool(abs(a.mean() - 10) < 0.05), bool(abs(a.std() - 2) < 0.05)
(True, True)
>>> vm.random.default_rng(7).integers(6, size=5) + 1
Array([3, 5, 4, 4, 4], dtype=int64)
"""

from __future__ import annotations

import operator
import os
from typing import Any

import numpy as np

from . import _array, _core
from ._array import Array

__all__ = ["Generator", "default_rng"]

_MASK = 2**64 - 1
#: Increment of SplitMix64's state for each number.
_STEP = 0x9E3779B97F4A7C15
#: Number of items in a piece: devices number items from 0 in each piece.
_PIECE = 1 << 27


def _mixed(state: int) -> int:
    """The random number that SplitMix64 computes from `state`."""
    bits = (state + _STEP) & _MASK
    bits = ((bits ^ (bits >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    bits = ((bits ^ (bits >> 27)) * 0x94D049BB133111EB) & _MASK
    return bits ^ (bits >> 31)


def default_rng(seed: int | None = None, **options: Any) -> Generator:
    """Creates a generator of random numbers. The same seed results in the same numbers on all devices.

    Parameters
    ----------
    seed : int, optional
        A non-negative number; by default a random number.
    devices, cache_bytes, ... :
        Options of the arrays that the generator creates; see `vmarray.empty`.
    """
    return Generator(seed, **options)


class Generator:
    """A generator of arrays of random numbers. Each number is a hash (SplitMix64) of its index in a sequence of 2^64
    numbers; the seed determines the start of the sequence. Devices can therefore compute all numbers of an array in
    parallel. Do not use the generator for cryptography.
    """

    def __init__(self, seed: int | None = None, **options: Any) -> None:
        seed = int.from_bytes(os.urandom(8), "little") if seed is None else operator.index(seed)
        if seed < 0:
            raise ValueError("expected non-negative integer")
        self._state = 0
        while seed or not self._state:
            self._state = _mixed(self._state ^ (seed & _MASK))
            seed >>= 64
        self._options = _array._checked(options)

    def _next(self, count: int = 1) -> int:
        """Reserves the next `count` numbers for the caller, and returns the state before them."""
        state = self._state
        self._state = (state + count * _STEP) & _MASK
        return state

    def _made(self, size: Any, dtype: np.dtype[Any], draws: int, make: Any) -> Any:
        """Creates an array of random numbers: `make` computes the numbers from `draws` arrays of random bits."""
        shape = () if size is None else _array._as_tuple(size)
        result = _array.empty(shape or 1, dtype, **self._options)
        flat, states = result.reshape(-1), [self._next(result.size) for _ in range(draws)]
        for start in range(0, flat.size, _PIECE):
            part = flat[start : start + _PIECE]
            bits = [_core.random(part.shape, (one + start * _STEP) & _MASK, self._options) for one in states]
            part._assign(make(*(Array._of(one) for one in bits)))
        return result[0] if size is None else result

    def random(self, size: Any = None, dtype: Any = float) -> Any:
        """Random floats in the interval [0, 1), each a multiple of 2^-53, or of 2^-24 for ``float32``.

        Examples
        --------
        >>> import vmarray as vm
        >>> a = vm.random.default_rng(1).random((1000, 1000), "float32")
        >>> bool(0 <= a.min()), bool(a.max() < 1)
        (True, True)
        """
        return self._made(size, _float(dtype), 1, lambda bits: _unit(bits, _float(dtype)))

    def uniform(self, low: float = 0.0, high: float = 1.0, size: Any = None) -> Any:
        """Random floats from ``low`` to below ``high``."""
        low, high = float(low), float(high)
        if not np.isfinite(high - low):
            raise OverflowError("high - low range exceeds valid bounds")
        return self._made(size, np.dtype(float), 1, lambda bits: _unit(bits) * (high - low) + low)

    def integers(
        self, low: int, high: int | None = None, size: Any = None, dtype: Any = np.int64, endpoint: bool = False
    ) -> Any:
        """Random integers from ``low`` to below ``high``, or to ``high`` itself if ``endpoint`` is true. Their
        probabilities are equal, with an error of at most 2^-32.

        Examples
        --------
        >>> import vmarray as vm
        >>> dice = vm.random.default_rng(3).integers(1, 6, size=60_000, endpoint=True)
        >>> bool((vm.bincount(dice)[1:] > 9_000).all())
        True
        """
        low, high = (0, low) if high is None else (low, high)
        low, last, kind = operator.index(low), operator.index(high) - (not endpoint), np.dtype(dtype)
        if kind == np.bool_:
            return self.integers(low, last, size, np.uint8, True) != 0
        limits = np.iinfo(kind)
        if low < limits.min:
            raise ValueError(f"low is out of bounds for {kind}")
        if last > limits.max:
            raise ValueError(f"high is out of bounds for {kind}")
        if last < low:
            raise ValueError("low > high" if endpoint else "low >= high")
        span = last - low + 1

        def make(bits: Array) -> Array:
            if span <= 2**32:
                # Scale the upper 32 random bits to the range from 0 to below `span`.
                numbers = (bits >> np.uint64(32)) * np.uint64(span) >> np.uint64(32)
            else:
                numbers = bits % np.uint64(span) if span <= _MASK else bits
            return (numbers + np.uint64(low & _MASK)).astype(kind)

        return self._made(size, kind, 1, make)

    def standard_normal(self, size: Any = None, dtype: Any = float) -> Any:
        """Random floats of the normal distribution with the mean 0 and the standard deviation 1, by the Box-Muller
        method.
        """
        return self._normal(0.0, 1.0, size, _float(dtype))

    def normal(self, loc: float = 0.0, scale: float = 1.0, size: Any = None) -> Any:
        """Random floats of the normal distribution with the mean ``loc`` and the standard deviation ``scale``."""
        if scale < 0:
            raise ValueError("scale < 0")
        return self._normal(float(loc), float(scale), size, np.dtype(float))

    def _normal(self, loc: float, scale: float, size: Any, kind: np.dtype[Any]) -> Any:
        def make(one: Array, other: Array) -> Any:
            # Subtract from 1, so that the argument of the logarithm is never 0.
            radius = np.sqrt(np.log(1.0 - _unit(one)) * -2.0)
            return (radius * np.cos(_unit(other) * (2 * np.pi)) * scale + loc).astype(kind)

        return self._made(size, kind, 2, make)

    def exponential(self, scale: float = 1.0, size: Any = None) -> Any:
        """Random floats of the exponential distribution with the mean ``scale``."""
        if scale < 0:
            raise ValueError("scale < 0")
        return self._made(size, np.dtype(float), 1, lambda bits: np.log(1.0 - _unit(bits)) * -float(scale))

    def shuffle(self, array: Array, axis: int = 0) -> None:
        """Shuffles the items of an array along ``axis``, in place."""
        if not isinstance(array, Array):
            raise TypeError("shuffle takes a vmarray.Array; use numpy.random for other sequences")
        seed = self._next()
        if array.ndim == 1 and axis in (0, -1) and _core.shuffle(array._core, seed):
            return
        array[...] = self._ordered(array, seed, axis)

    def permutation(self, x: Any, axis: int = 0) -> Array:
        """The integers from 0 to below ``x``, or the items of the array ``x``, in a random order.

        Examples
        --------
        >>> import vmarray as vm
        >>> p = vm.random.default_rng(5).permutation(1000)
        >>> bool((vm.sort(p) == vm.arange(1000)).all())
        True
        """
        if np.ndim(x) == 0:
            result = _array.arange(operator.index(x), **self._options)
            self.shuffle(result)
            return result
        array = _array.array(x, **(self._options or _array._options_like(x)))
        self.shuffle(array, axis)
        return array

    def _ordered(self, array: Array, seed: int, axis: int) -> Array:
        order = _array.arange(array.shape[axis], **_array._options_like(array))
        _core.shuffle(order._core, seed)
        return array.take(order, axis)

    def choice(self, a: Any, size: Any = None, replace: bool = True, p: Any = None) -> Any:
        """Random items of the array ``a``, or random integers below the number ``a``, with the probabilities ``p``, or
        with equal probabilities.

        Examples
        --------
        >>> import vmarray as vm
        >>> rng = vm.random.default_rng(11)
        >>> a = rng.choice([10, 20], 10_000, p=[0.9, 0.1])
        >>> bool(8_800 < (a == 10).sum() < 9_200), len(rng.choice(100, 30, replace=False))
        (True, 30)
        """
        count = operator.index(a) if np.ndim(a) == 0 else np.shape(a)[0]
        shape = () if size is None else _array._as_tuple(size)
        wanted = int(np.prod(shape))
        if count <= 0 and wanted:
            raise ValueError("a must be a positive integer unless no samples are taken")
        if p is not None:
            if not replace:
                raise TypeError("choice takes no probabilities without replacement")
            shares = np.cumsum(np.asarray(p, float))
            if np.shape(p) != (count,):
                raise ValueError("a and p must have same size")
            if np.min(p) < 0 or not abs(shares[-1] - 1) < 1e-8:
                raise ValueError(
                    "probabilities do not sum to 1" if np.min(p) >= 0 else "probabilities are not non-negative"
                )
            shares[-1] = 1.0
            from ._order import searchsorted

            uniform = _array.asarray(self.random(shape or 1))
            chosen = searchsorted(_array.asarray(shares, **_array._options_like(uniform)), uniform, "right")
            chosen = chosen.clip(0, count - 1)
        elif replace:
            chosen = self.integers(count, size=shape or 1)
        else:
            if wanted > count:
                raise ValueError("Cannot take a larger sample than population when replace is False")
            chosen = self.permutation(count)[: max(wanted, 1)].reshape(shape or 1)
        if np.ndim(a):
            chosen = _array.asarray(a, **(self._options or _array._options_like(a))).take(chosen, 0)
        return chosen[0] if size is None else chosen


def _float(dtype: Any) -> np.dtype[Any]:
    kind = np.dtype(dtype)
    if kind not in (np.dtype(np.float32), np.dtype(np.float64)):
        raise TypeError(f"Unsupported dtype {kind} for random")
    return kind


def _unit(bits: Array, kind: np.dtype[Any] = np.dtype(float)) -> Array:
    """Random bits as floats from 0 to below 1."""
    digits = np.finfo(kind).nmant + 1
    return (bits >> np.uint64(64 - digits)).astype(kind) * kind.type(2.0**-digits)
