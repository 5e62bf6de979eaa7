"""The table of intended differences from NumPy, which the guide prints."""

import dataclasses
from collections.abc import Callable
from typing import Any

import numpy as np

import census
import vmarray as vm


@dataclasses.dataclass
class Difference:
    """One row: functions, by their names in the census, and their difference from NumPy."""

    #: Names without the part before the point; empty for all.
    functions: str
    numpys: str
    ours: str
    #: True if the row explains the difference in a case.
    explains: Callable[[Any, str], bool]
    #: An example: the differing results of the package and of NumPy.
    example: Callable[[], tuple[Any, Any]]

    def holds(self, name: str, case: Any, why: str) -> bool:
        """True if the row explains the difference in a case."""
        own = name.split(".")[1]
        return (not self.functions or own in self.functions.replace("`", "").replace(",", "").split()) and self.explains(case, why)


def _written(work: Callable[[Any], Any], array: Any) -> Any:
    work(array)
    return np.asarray(array).tolist()


def _refused(work: Callable[[], Any]) -> str:
    try:
        work()
    except (TypeError, ValueError, OverflowError, vm.Error) as error:
        return type(error).__name__
    return "no error"


_OWN = np.array([3, 1, 2])


#: Ends of texts about floats in another order.
_APART = (": NaNs", "units in the last place")


def _has_both_zeroes(array: Any) -> bool:
    zeroes = array[array == 0] if array.dtype.kind == "f" else array[:0]
    return len(set(np.signbit(zeroes).tolist())) == 2


def _have_both_zeroes(case: Any) -> bool:
    """True if the operands together have zeroes of both signs."""
    operands = (np.asarray(getattr(one, "items", one)) for one in (case.main, *case.args))
    zeroes = (one[one == 0] for one in operands if one.dtype.kind == "f")
    return len({sign for signs in map(np.signbit, zeroes) for sign in signs.tolist()}) == 2


def _signs_of_unique_zeroes(rows: Any) -> list[bool]:
    found = (np.asarray(np.unique_inverse(one).values) for one in rows)
    return [bool(np.signbit(values[values == 0]).any()) for values in found]


def _twice(work: Callable[[Any], Any], own: Any) -> tuple[Any, Any]:
    return work(vm.asarray(own)), work(own.copy())


def _all_broadcast(a: Any) -> str:
    return _refused(lambda: np.broadcast_arrays(a, np.zeros((2, 3)))[0].__setitem__(0, 1))


def _partly(array: Any) -> Any:
    try:
        array[:] = [7, -1, 2]
    except OverflowError:
        pass
    return np.asarray(array).tolist()


def _is_on_cpu(array: Any) -> bool:
    try:
        return array.to_device("cpu") is array
    except vm.Error:
        return False


def _is_cast_to_integers(case: Any, why: str) -> bool:
    if not (why.endswith(": values") or "the operand after the call" in why):
        return False
    out = case.keywords.get("out")
    dtypes = [getattr(getattr(one, "items", one), "dtype", None) for one in (out if isinstance(out, tuple) else (out,))]
    is_cast = any(one is not None and one.kind in "iu" for one in dtypes)
    dtype = case.keywords.get("dtype")
    is_cast |= case.keywords.get("casting") == "unsafe" and dtype is not None and np.dtype(dtype).kind in "iu"
    return is_cast or (case.name in _CASTS and any(map(_is_outside, (case.main, *case.args))))


_CASTS = ("ndarray.astype", "numpy.astype", "key.write", "numpy.copyto", "numpy.full_like")


def _is_outside(value: Any) -> bool:
    """True if some floats are the value of no integer of any width."""
    value = getattr(value, "items", value)
    if isinstance(value, (str, bytes, tuple, type)) or value is None:
        return False
    items = np.asarray(value)
    if items.dtype.kind not in "fc":
        return False
    items = items.real.astype("f8")
    return bool((~np.isfinite(items) | (items < 0) | (items > 127)).any())


def _overflows(case: Any) -> bool:
    """True if a sum of the items, or of their squares, may exceed the float that NumPy adds in."""
    limits = np.finfo(census.result_kind(case))
    if limits.bits == 64 or case.main.dtype.kind not in "biufc":
        return False
    items = np.abs(case.main.astype("c16"))
    items = items[np.isfinite(items)]
    has_squares = case.name.endswith(("var", "std", "average"))
    return float(np.sum(items**2 if has_squares else items)) > float(limits.max)


def _is_wider_than_its_dtype(case: Any) -> bool:
    """True if the greatest and the least integer are further apart than their dtype can hold."""
    items = case.main
    return items.dtype.kind in "iu" and bool(items.size) and int(items.max()) - int(items.min()) > np.iinfo(items.dtype).max


def _least_tenth(array: Any) -> float:
    # Devices compute, not NumPy, if the program asks for progress.
    with vm.progress(lambda done, total: None):
        return float(np.quantile(array, 0.1))


def _is_rounded_alike(case: Any) -> bool:
    """True if several integers are the same float."""
    items = case.main
    return items.dtype.kind in "iu" and len(np.unique(items.astype("f8"))) < len(np.unique(items))


DIFFERENCES = [
    Difference(
        "`argsort`, `sort`, `argpartition`, `partition`",
        "the order of equal items, and of items on each side of `kth`, depends on `kind`",
        "equal items stay in their order; `partition` sorts all items",
        lambda case, why: why.endswith((": values", "signs of zeroes") + _APART * ("partition" in case.name))
        or (case.name == "ndarray.partition" and "the operand after the call" in why),
        lambda: _twice(lambda a: np.argpartition(a, 0).tolist(), np.array([3, 3, 4, -3, 5, 4, -1])),
    ),
    Difference(
        "`unique_values`, `unique`",
        "`unique_values`, and `unique` with `sorted=False`, return any order",
        "ascending order",
        lambda case, why: why.endswith(": values") or (why.endswith("signs of zeroes") and _has_both_zeroes(case.main)),
        lambda: _twice(lambda a: np.unique_values(a).tolist(), np.array([-4, 8, -2, 7, 6, 5, -1, 5, -1, 7, 4, -4], "i1")),
    ),
    Difference(
        "`unique`, `unique_counts`, `unique_inverse`, `union1d`, `intersect1d`, `setdiff1d`, `setxor1d`",
        "for `0.0` and `-0.0`, either one, depending on dtype, position and processor",
        "the first one",
        lambda case, why: why.endswith("signs of zeroes") and _have_both_zeroes(case),
        lambda: _twice(_signs_of_unique_zeroes, np.random.default_rng(7).choice([0.0, -0.0, 1, -1, 2], (50, 64))),
    ),
    Difference(
        "`median`, `quantile`, `percentile`",
        "`overwrite_input=True` leaves the operand in any order",
        "it is unchanged",
        lambda case, why: bool(case.keywords.get("overwrite_input")) and "the operand after" in why,
        lambda: (
            _written(lambda a: np.median(a, overwrite_input=True), vm.asarray([5, 6, 6, 3])),
            _written(lambda a: np.median(a, overwrite_input=True), np.array([5, 6, 6, 3])),
        ),
    ),
    Difference(
        "`broadcast_arrays`",
        "results that repeat an item are writable, with a warning",
        "they are read-only",
        lambda case, why: "a write to the result" in why,
        lambda: (_all_broadcast(vm.zeros(3)), "no error"),
    ),
    Difference(
        "`logical_and`, `logical_or`, `logical_xor`",
        "an integer of Python above `2**63 - 1` raises an error",
        "the result is a bool",
        lambda case, why: "NumPy raises OverflowError" in why and any(type(one) is int and one >= 2**63 for one in case.args),
        lambda: (
            np.logical_or(vm.ones(1, "u8"), 2**64 - 1).tolist(),
            _refused(lambda: np.logical_or(np.ones(1, "u8"), 2**64 - 1)),
        ),
    ),
    Difference(
        "`maximum`, `minimum`, `fmax`, `fmin`, `clip`",
        "for `0.0` and `-0.0`, either operand, depending on dtype, function and processor",
        "the second operand",
        lambda case, why: why.endswith("signs of zeroes"),
        lambda: tuple(
            str(np.asarray(np.maximum(one, np.float16(0.0))))
            for one in (vm.asarray(np.full(1, -0.0, "f2")), np.full(1, -0.0, "f2"))
        ),
    ),
    Difference(
        "`min`, `max`, `amin`, `amax`, `nanmin`, `nanmax`",
        "for `0.0` and `-0.0`, either one, depending on dtype, position and processor",
        "the first one; along an axis, either one",
        lambda case, why: why.endswith("signs of zeroes") and _has_both_zeroes(case.main),
        lambda: _twice(lambda a: [str(one.max()) for one in (a[:2], a[1:])], np.array([0.0, -0.0, 0.0])),
    ),
    Difference(
        "`sum`, `add`, `mean`, `average`, `var`, `std`, `nansum`, `nanmean`, `nanvar`, `nanstd`",
        "if a partial sum overflows `float16` or `float32`, the result is infinite or NaN",
        "partial sums over all items have 64 bits",
        lambda case, why: why.endswith((": NaNs", ": sums")) and _overflows(case),
        lambda: _twice(lambda a: str(np.sum(a)), np.array([3e38, 3e38, -3e38], "f4")),
    ),
    Difference(
        "`quantile`, `percentile`",
        "the difference of two integers overflows if their dtype cannot hold it",
        "it does not overflow, in arrays above 64 KiB",
        lambda case, why: why.endswith((": values", census.UNITS)) and _is_wider_than_its_dtype(case),
        lambda: _twice(_least_tenth, np.array([-(2**31), 1, 5, 5, 6, 7], "i4")),
    ),
    Difference(
        "`isin`",
        "of 64-bit integers that convert to the same float, all but the last count as found among any floats",
        "they count as found only if this float is there",
        lambda case, why: why.endswith(": values") and _is_rounded_alike(case),
        lambda: (
            np.isin(vm.asarray(np.array([2**64 - 1, 2**64 - 2], "u8")), np.ones(64)).tolist(),
            np.isin(np.array([2**64 - 1, 2**64 - 2], "u8"), np.ones(64)).tolist(),
        ),
    ),
    Difference(
        "`write`",
        "items before an invalid item are written: `a[:] = [7, -1, 2]` of `uint8`",
        "no item is written",
        lambda case, why: False,
        lambda: (_partly(vm.zeros(3, "u1")), _partly(np.zeros(3, "u1"))),
    ),
    Difference(
        "`full`",
        "for a structured dtype, a tuple is a list of values",
        "the tuple is one item",
        lambda case, why: False,
        lambda: (vm.full(2, (1, 2), "i2, i2").tolist(), np.full(2, (1, 2), "i2, i2").tolist()),
    ),
    Difference(
        "`to_device`",
        "accepts `'cpu'`, which stores the array already",
        "accepts a device of the package",
        lambda case, why: "a write to the result" in why,
        lambda: _twice(_is_on_cpu, np.arange(3)),
    ),
    Difference(
        "",
        "floats out of the integer's range, and NaN, become any integer: in `astype`, writes, and unsafe `out=`",
        "they become the nearest integer, and 0",
        _is_cast_to_integers,
        lambda: (int(vm.asarray([300.0]).astype("i1")[0]), int(np.array([300.0]).astype("i1")[0])),
    ),
]


def rows() -> list[str]:
    """The table as the guide has it."""
    return [f"| {one.functions or 'all'} | {one.numpys} | {one.ours} |" for one in DIFFERENCES]
