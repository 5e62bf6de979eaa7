"""Arrays in RAM, and arrays of few items: NumPy computes, and RAM holds the items until a device needs them."""

import os
import threading

import numpy as np
import pytest

import vmarray as vm
from conftest import FEW, divide, same
from vmarray import _on_host


@pytest.fixture(autouse=True)
def _numpy_computes(_devices_compute):
    _on_host.ITEMS_MAX = FEW


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


def test_operands_in_ram_are_computed_at_once_and_others_only_if_they_are_few():
    assert not (vm.ones(FEW + 1, devices="host") + 1).is_pending
    devices = vm.devices("opencl") or pytest.skip("there is no device but RAM")
    large = vm.ones(FEW + 1, devices=devices[0])
    assert (large + 1).is_pending and not (large[1:] + 1).is_pending
    assert (vm.ones((FEW, 1), devices=devices[0]) + vm.ones(2)).is_pending


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
        _on_host.ITEMS_MAX = 0
        (a * 2).compute()
        _on_host.ITEMS_MAX = FEW


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


LAYOUTS = {
    "contiguous": lambda own: own,
    "transposed": lambda own: own.T,
    "reversed": lambda own: own[::-1, ::-1],
    "strided": lambda own: own[::2, 1::3],
    "column": lambda own: own[:, 3],
    "repeated": lambda own: own[:, :1],
}
FUNCTIONS = {
    "add": lambda np, a: a + a, "number": lambda np, a: 3 - a, "row": lambda np, a: a * a[0], "compare": lambda np, a: a < a[0],
    "where": lambda np, a: np.where(a > 3, a, -a), "clip": lambda np, a: np.clip(a, 2, 9), "out": lambda np, a: np.add(a, 1, out=a.copy()),
    "sum": lambda np, a: a.sum(), "axis": lambda np, a: a.sum(axis=0), "last": lambda np, a: a.max(axis=-1), "any": lambda np, a: (a > 5).any(),
    "keep": lambda np, a: a.min(axis=0, keepdims=True), "prod": lambda np, a: np.prod(a, axis=0), "cumsum": lambda np, a: np.cumsum(a),
    "cumsum axis": lambda np, a: np.cumsum(a, axis=0), "argmin": lambda np, a: np.argmin(a), "argmax": lambda np, a: np.argmax(a),
    "count": lambda np, a: np.count_nonzero(a), "concatenate": lambda np, a: np.concatenate([a, a]), "roll": lambda np, a: np.roll(a, 3),
    "copy": lambda np, a: a.copy(), "astype": lambda np, a: a.astype("f4"), "fortran": lambda np, a: a.copy("F"), "sort": lambda np, a: np.sort(a),
    "nonzero": lambda np, a: np.nonzero(a > 5), "flat": lambda np, a: np.flatnonzero(a), "select": lambda np, a: a[a > 3],
    "vdot": lambda np, a: np.vdot(a, a), "histogram": lambda np, a: np.histogram(a, 7), "diff": lambda np, a: np.diff(a, axis=0),
    "search": lambda np, a: np.searchsorted(a.reshape(-1)[:0], a), "unique": lambda np, a: np.unique(a, return_counts=True),
    "median": lambda np, a: np.median(a), "take": lambda np, a: np.take(a, [0, -1, 2], axis=0), "var": lambda np, a: a.astype("f8").var() > 0,
    "argsort": lambda np, a: np.argsort(a, axis=0, kind="stable"), "ptp": lambda np, a: np.ptp(a, axis=0), "divmod": lambda np, a: np.divmod(a, 4),
}  # fmt: skip


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("dtype", ["i4", "f8", "u1", ">i8", "c16", "?"])
def test_results_of_parts_are_numpys(layout, dtype):
    divide(True)
    items = np.random.default_rng(3).integers(0, 12, (23, 31))
    own = LAYOUTS[layout](items.astype(dtype))
    ours = LAYOUTS[layout](vm.asarray(items.astype(dtype), devices="host"))
    for name, work in FUNCTIONS.items():
        try:
            expected = work(np, own)
        except (TypeError, ValueError) as error:
            with pytest.raises(type(error)):
                work(vm, ours)
            continue
        found = work(vm, ours)
        for one, other in zip(found, expected) if isinstance(expected, tuple) else [(found, expected)]:
            assert not getattr(one, "is_pending", False), name
            same(one, other)


def test_results_keep_the_order_of_the_operands():
    divide(True)
    a = vm.zeros((20, 30), devices="host").T
    assert [(a + 1)._core.strides, (a > 0)._core.strides, np.sqrt(a)._core.strides] == [(8, 240), (1, 30), (8, 240)]
    assert a.copy()._core.strides == (160, 8)


def test_results_share_no_items_with_operands():
    a = vm.arange(900.0, devices="host").reshape(30, 30)
    for work in (np.positive, np.ravel, np.diagonal, np.squeeze, np.nan_to_num, np.atleast_3d, np.trim_zeros, np.real_if_close):
        before, result = np.asarray(a), work(a if work is not np.trim_zeros else a[0])
        if not np.shares_memory(a, result):
            result[...] = -1
            same(a, before)


@pytest.mark.parametrize("length", [3, 12, 20, 44, 48])
def test_items_of_any_length_move_to_a_device_and_back(length):
    items = np.frombuffer(np.random.default_rng(length).bytes(length * 30_000), np.dtype((np.void, length)))
    a = vm.asarray(items, devices="host")
    a.device_memory().close()
    assert np.asarray(a).tobytes() == items.tobytes()
    paged = vm.empty(len(items), items.dtype, devices="host", page_len=1000)
    paged[...] = a
    a[...] = paged[::-1]
    assert np.asarray(a).tobytes() == items[::-1].tobytes()


def test_results_that_are_operands_are_copies():
    a, edges = vm.arange(10.0, devices="host"), vm.asarray([0.0, 5.0, 9.0], devices="host")
    found = np.histogram(a, edges)[1]
    found[0] = -1
    assert edges[0] == 0


@pytest.mark.parametrize("is_small", [False, True])
def test_writes_in_place(is_small):
    divide(is_small)
    own = np.arange(600.0).reshape(20, 30)
    a = vm.asarray(own, devices="host")
    for one in (a, own):
        one += 1
        one[1:] += one[:-1]
        one[:, ::2] = one[:, 1::2] * 2
        one[one > 100] = -1
        one[3:7] = np.float32(2.5)
        one[::-1] = one
        np.multiply(one, 2, out=one[:], where=one > 0)
        np.cumsum(one[0], out=one[0])
    same(a, own)


def test_memory_of_results_returns_to_the_pool():
    a = vm.zeros(1 << 20, devices="host")
    del a
    vm.release_memory()
    a = vm.ones(1 << 20, devices="host") + 1
    assert not vm.asarray(1).memory()["kept_for_results_bytes"] >= a.nbytes * 2
    del a
    assert vm.asarray(1).memory()["kept_for_results_bytes"] >= 8 << 20
    assert vm.release_memory() >= 8 << 20


def test_errors_of_parts_reach_the_caller():
    divide(True)
    a = vm.zeros((40, 40), devices="host")
    with np.errstate(divide="raise"), pytest.raises(FloatingPointError):
        1 / a
    with pytest.warns(RuntimeWarning, match="divide by zero"):
        assert np.isinf(1 / a).all()


def test_threads_write_while_others_need_a_device():
    a = vm.zeros(5000, "i8", devices="host")

    def write(number):
        part = a[number * 1000 : (number + 1) * 1000]
        for _ in range(200):
            part += 1

    threads = [threading.Thread(target=write, args=[number]) for number in range(5)]
    for thread in threads:
        thread.start()
    for _ in range(30):
        a.device_memory().close() if not any(thread.is_alive() for thread in threads) else vm.argsort(a[:10])
    for thread in threads:
        thread.join()
    assert (a == 200).all()


@pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork")
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_a_forked_process_computes_in_parts():
    divide(True)
    own = np.arange(1000.0)
    assert (vm.asarray(own, devices="host") + 1).sum() == (own + 1).sum()
    from vmarray import _parallel

    child = os.fork()
    if child == 0:
        os._exit(0 if _parallel.computed(np.add, "__call__", (own, 1), {})[-1] == 1000 else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


TIMES = np.arange(64).astype("M8[D]")


@pytest.mark.parametrize("work", [
    lambda np, a: np.cumsum(np.where(a == 40, np.inf, a).astype(">f8")), lambda np, a: np.cumsum(np.full(64, -0.0)),
    lambda np, a: np.asarray(TIMES).max(), lambda np, a: np.asarray(TIMES - TIMES[3]).sum(), lambda np, a: np.nanmax(a, initial=99.0),
    lambda np, a: np.nanmin(np.asarray(np.where(a > 3, a, np.nan))), lambda np, a: np.nanmax(np.asarray(TIMES)),
    lambda np, a: a.clip(3, list(range(64))), lambda np, a: np.where(a > 3, a, list(range(64))), lambda np, a: np.add(a, [1] * 64),
])  # fmt: skip
def test_parts_of_times_of_lists_and_of_infinities_are_numpys(work):
    divide(True)
    same(work(vm, vm.arange(64.0)), work(np, np.arange(64.0)))


def test_choices_have_numpys_dtype():
    _on_host.ITEMS_MAX = 0
    own, index = np.array([[4, 8]], "u4"), np.array([[0, 1]])
    for choices in ([3, own], [own, 3], [own, own.astype("i8")], [own, np.float32(1)]):
        same(vm.choose(vm.asarray(index), [vm.asarray(one) if np.ndim(one) else one for one in choices]), np.choose(index, choices))
