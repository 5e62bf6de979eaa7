"""Programs that type checkers must accept in their strictest mode; no test runs them."""

from typing import Any

import numpy as np
from numpy.typing import NDArray
from typing_extensions import assert_type

import vmarray as vm


def arrays(path: str) -> vm.Array:
    a = vm.zeros((10, 20), "f4", devices=vm.devices("host"), cache_bytes=1 << 20)
    a[::2, 3] = 7
    a += vm.arange(20)
    assert_type(a.shape, tuple[int, ...])
    assert_type(a.dtype, np.dtype[Any])
    assert_type(a.find(3), np.ndarray[Any, Any])
    assert_type(a.T.reshape(-1).astype(np.int64), vm.Array)
    total: float = float((a * 2 + 1).sum())
    with vm.create(path, 1000, [("x", "f8")]) as table:
        table["x"] = vm.arange(1000) * total
    vm.save(path + ".npy", vm.sort(a.ravel()))
    return vm.load(path + ".npy")


def kernels(a: vm.Array) -> vm.Array:
    @vm.kernel
    def spread(x: Any, rate: Any) -> Any:
        return x + rate * (x[-1] + x[1] - 2 * x)

    result: vm.Array = spread(a, 0.1, boundary="edge")
    return result


def order(keys: vm.Array, values: vm.Array) -> Any:
    groups = vm.group_by(keys)
    assert_type(groups.keys, vm.Array)
    return groups.mean(values)


def sets_and_rows() -> dict[int, NDArray[np.uint64]]:
    rows = vm.Ragged([[1, 2], [3]], np.int32)
    assert_type(rows[0], vm.Array)
    assert_type(rows[1:], vm.Ragged)
    rows.extend(np.arange(n) for n in range(3))
    ends: list[int] = [int(row.sum()) for row in rows]
    one = vm.IndexSet({0: ends})
    for piece in one.combine_pieces(one, 10):
        assert_type(piece, vm.IndexSet)
    return one.unique().to_columns()


def lending(a: vm.Array) -> int:
    with a.device_memory() as memory:
        numbers: Any = np.from_dlpack(memory)
        numbers += 1
        return memory.address


def errors(a: vm.Array) -> str:
    try:
        a[0]
    except vm.OutsideError as error:
        return error.advice
    except (vm.ClosedError, vm.ExportError) as error:
        return error.kind
    return ""


def homes(path: str, own: NDArray[np.float64]) -> int:
    with vm.open_zarr(path, home=True, mode="r") as stored, vm.asarray(own, copy=False) as mine:
        mine[np.arange(3)] = stored[np.arange(3)]
    with vm.progress(lambda done, total: None):
        vm.sort(vm.from_dlpack(own, copy=False)).flush()
    return vm.release_memory()
