"""Module functions with NumPy's names, for arrays, lists and numbers."""

from __future__ import annotations

import functools
from typing import Any

import numpy as np

from . import _array, _functions, _order


def _public(function: Any, implementation: Any, count: int = 1) -> Any:
    """A function of NumPy's, whose first arguments become arrays of the package."""

    @functools.wraps(implementation)
    def work(*args: Any, **given: Any) -> Any:
        if not any(isinstance(one, _array.Array) for one in args):
            args = (*(_array.asarray(one) for one in args[:count]), *args[count:])
        return _functions.dispatched(function, args, given)

    return work


argsort = _public(np.argsort, _order.argsort)
bincount = _public(np.bincount, _order.bincount)
histogram = _public(np.histogram, _order.histogram)
median = _public(np.median, _order.median)
percentile = _public(np.percentile, _order.percentile)
quantile = _public(np.quantile, _order.quantile)
searchsorted = _public(np.searchsorted, _order.searchsorted)
take = _public(np.take, _order.take)
unique = _public(np.unique, _order.unique)
where = _public(np.where, _functions.where_of)
