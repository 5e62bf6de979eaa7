"""Arrays of few items: NumPy computes, and RAM holds the items until a device needs them."""

import threading

import numpy as np
import pytest

import vmarray as vm
from conftest import FEW, same
from vmarray import _few


@pytest.fixture(autouse=True)
def _numpy_computes(_devices_compute):
    _few.ITEMS_MAX = FEW


OWN = np.arange(24.0).reshape(4, 6)


@pytest.mark.parametrize("work", [
    lambda np, a: a + 1, lambda np, a: 2.5 * a[1:3, ::-2] - a[0, :3], lambda np, a: np.divmod(a, 4), lambda np, a: a.T @ a,
    lambda np, a: a.sum(), lambda np, a: a.mean(0), lambda np, a: np.sort(a[:, ::-1]), lambda np, a: a[a > 5],
    lambda np, a: np.where(a > 3, a, 0), lambda np, a: np.concatenate([a, a]), lambda np, a: a.astype("f4"), lambda np, a: a[2],
    lambda np, a: a[1, -1], lambda np, a: a[..., 0], lambda np, a: a[None, 1:2], lambda np, a: a.reshape(6, 4), lambda np, a: -a[0, 0],
    lambda np, a: np.clip(a, 2, 9), lambda np, a: a.argmax(axis=1), lambda np, a: np.einsum("ij,ij->j", a, a), lambda np, a: a == a.T.T,
    lambda np, a: np.sum(a, 0, None, np.zeros(6)), lambda np, a: np.outer(a, a).shape, lambda np, a: np.add.outer(a[0], a[1]),
    lambda np, a: np.cumsum(a, out=np.zeros(24)), lambda np, a: np.matvec(a, a[0]), lambda np, a: np.nonzero(a > 20),
])  # fmt: skip
def test_results_are_numpys(work):
    ours, own = work(vm, vm.asarray(OWN)), work(np, OWN)
    for one, other in zip(ours, own, strict=True) if isinstance(own, tuple) else [(ours, own)]:
        assert type(one) is type(other) or isinstance(one, (vm.Array, np.ndarray)), (type(one), type(other))
        same(one, other)
        assert not getattr(one, "is_pending", False)


def test_operands_above_the_limit_are_left_to_devices():
    large = vm.ones(FEW + 1)
    assert (large + 1).is_pending and not (large[1:] + 1).is_pending
    assert (vm.ones((FEW, 1)) + vm.ones(2)).is_pending


@pytest.mark.parametrize("key", [6, -7, (0, 0, 0), (0, 9), ("a",), slice("a", None), 1.5, (1, -7)])
def test_keys_that_fit_nothing_are_errors(key):
    with pytest.raises(Exception) as mistake:
        OWN[key]
        raise mistake
    with pytest.raises(mistake.type):
        vm.asarray(OWN)[key]


def test_views_share_items_before_and_after_a_device_needs_them():
    a, own = vm.asarray(OWN), OWN.copy()
    for number in range(2):
        for one in (a, own):
            row, column = one[1], one[:, 2]
            row += 10
            column[...] = number
            one[one > 15] = -1.0
            one[2:, ::3] *= 2
        same(a, own)
        same(a[1], own[1])
        # Sort on devices, which moves the items there.
        _few.ITEMS_MAX = 0
        (a * 2).compute()
        _few.ITEMS_MAX = FEW


def test_an_output_gets_the_result():
    a, out, own = vm.asarray(OWN), vm.zeros((4, 6), "f4"), np.zeros((4, 6), "f4")
    assert np.add(a, 1, out=out) is out
    same(out, np.add(OWN, 1, out=own))
    target = np.zeros((4, 6))
    assert np.add(a, 1, target) is target and (target == OWN + 1).all()
    with pytest.raises(TypeError, match="cast"):
        np.add(a, 1, out=vm.zeros((4, 6), int))
    out.flags.writeable = False
    with pytest.raises(ValueError, match="read-only"):
        out += 1


def test_large_results_of_few_items_are_left_to_the_package():
    column = vm.arange(FEW).reshape(-1, 1)
    assert np.matmul(column, column.T).shape == (FEW, FEW) and np.tile(column, (1, 2)).shape == (FEW, 2)


def test_threads_that_move_the_items_to_a_device():
    a, totals = vm.arange(1000), []

    def work():
        for _ in range(20):
            totals.append(int(a[10:20].sum()))
            a.memory()

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert totals == [145] * 80


def test_closed_arrays_and_devices():
    a = vm.zeros(5, devices="host")
    assert (a + 1).devices == a[1:].devices == a.devices and a.memory()["page_bytes"] > 0
    a.close()
    with pytest.raises(vm.ClosedError):
        a[0]
    with pytest.raises(vm.ClosedError):
        a + 1
