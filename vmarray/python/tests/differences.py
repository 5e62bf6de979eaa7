"""The table of intended differences from NumPy, which the guide prints."""

import dataclasses
from collections.abc import Callable
from typing import Any

import numpy as np

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
    except (TypeError, ValueError, vm.Error) as error:
        return type(error).__name__
    return "no error"


_OWN = np.array([3, 1, 2])


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
    return is_cast or case.name in ("ndarray.astype", "key.write", "numpy.copyto", "numpy.full_like")


DIFFERENCES = [
    Difference(
        "`argsort`, `sort`, `argpartition`, `partition`",
        "an order of equal items, or beside the place `kth`, by `kind`",
        "equal items stay in their order, and a partition is a sort",
        lambda case, why: why.endswith(": values") or "are sorted" in why,
        lambda: _twice(lambda a: np.argpartition(a, 0).tolist(), np.array([3, 3, 4, -3, 5, 4, -1])),
    ),
    Difference(
        "`unique_values`, `unique`",
        "`unique_values`, and `unique` with `sorted=False`, in any order",
        "ascending",
        lambda case, why: why.endswith(": values"),
        lambda: _twice(lambda a: np.unique_values(a).tolist(), np.array([-4, 8, -2, 7, 6, 5, -1, 5, -1, 7, 4, -4], "i1")),
    ),
    Difference(
        "`median`, `quantile`, `percentile`",
        "`overwrite_input=True` leaves the operand in any order",
        "as it was",
        lambda case, why: bool(case.keywords.get("overwrite_input")) and "the operand after" in why,
        lambda: (
            _written(lambda a: np.median(a, overwrite_input=True), vm.asarray([5, 6, 6, 3])),
            _written(lambda a: np.median(a, overwrite_input=True), np.array([5, 6, 6, 3])),
        ),
    ),
    Difference(
        "`quantile`, `percentile`",
        "NaN at an infinite item, for some `q`",
        "the item",
        lambda case, why: bool(np.isinf(case.main.astype("c16")).any()) if case.main.dtype.kind in "fc" else False,
        lambda: tuple(str(one) for one in _twice(lambda a: np.quantile(a, 0.5), np.array([np.inf, np.inf, 1]))),
    ),
    Difference(
        "`broadcast_arrays`",
        "results that show an item several times are written to, with a warning",
        "they are read only",
        lambda case, why: "a write to the result" in why,
        lambda: (_all_broadcast(vm.zeros(3)), "no error"),
    ),
    Difference(
        "`real`, `imag`",
        "views of complex items",
        "copies",
        lambda case, why: case.main.dtype.kind == "c" and "after a write to the result" in why,
        lambda: (
            _written(lambda a: a.real.__setitem__(0, 9), vm.asarray([1j])),
            _written(lambda a: a.real.__setitem__(0, 9), np.array([1j])),
        ),
    ),
    Difference(
        "`write`",
        "items before one that is refused are written: `a[:] = [7, -1, 2]` of `uint8`",
        "none is",
        lambda case, why: False,
        lambda: (_partly(vm.zeros(3, "u1")), _partly(np.zeros(3, "u1"))),
    ),
    Difference(
        "`full`",
        "a tuple for a structure is a list of values",
        "an item",
        lambda case, why: False,
        lambda: (vm.full(2, (1, 2), "i2, i2").tolist(), np.full(2, (1, 2), "i2, i2").tolist()),
    ),
    Difference(
        "`to_device`",
        "`'cpu'`, where the array lies already",
        "a device of the package",
        lambda case, why: "a write to the result" in why,
        lambda: _twice(_is_on_cpu, np.arange(3)),
    ),
    Difference(
        "",
        "floats that are no integer's value, and NaN, become any integer: by `astype`, writes, and unsafe `out=`",
        "the nearest one, and 0",
        _is_cast_to_integers,
        lambda: (int(vm.asarray([300.0]).astype("i1")[0]), int(np.array([300.0]).astype("i1")[0])),
    ),
]


def rows() -> list[str]:
    """The table as the guide has it."""
    return [f"| {one.functions or 'all'} | {one.numpys} | {one.ours} |" for one in DIFFERENCES]
