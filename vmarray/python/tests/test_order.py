"""Order, distinct items, groups and histograms compared with NumPy; random numbers compared with their
distribution."""

import _thread
import signal
import threading

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import vmarray as vm
from conftest import ALL, COMPUTED, outcome, same, seeds, shapes, values

NUMBERS = [dtype for dtype in COMPUTED if dtype.kind in "iuf" and dtype != np.float16]


def row(dtype, seed, most=200):
    random = np.random.default_rng(seed)
    array = values((int(random.integers(0, most)),), dtype, seed)
    if dtype.kind == "f" and array.size:
        array[random.random(array.shape) < 0.2] = random.choice([0.0, -0.0, np.nan, np.inf])
    return array


@given(st.sampled_from(COMPUTED), shapes, seeds, st.integers(-1, 1))
def test_argsort_is_stable(dtype, shape, seed, axis):
    own = values(shape, dtype, seed)
    (ours, error), (numpys, wanted) = (
        outcome(lambda: np.argsort(vm.asarray(own), axis)),
        outcome(lambda: np.argsort(own, axis, kind="stable")),
    )
    assert error == wanted
    if error is None:
        same(ours, numpys)


@given(st.sampled_from(NUMBERS), seeds)
def test_argsort_of_rows(dtype, seed):
    own = row(dtype, seed)
    same(np.argsort(vm.asarray(own)), np.argsort(own, kind="stable"))
    same(vm.asarray(own[::-1])[::-2].argsort(), np.argsort(own[::-1][::-2], kind="stable"))
    assert np.array_equal(np.asarray(vm.take(vm.asarray(own), vm.argsort(vm.asarray(own)))), np.sort(own), equal_nan=dtype.kind == "f")


@given(st.sampled_from(ALL), seeds)
def test_unique(dtype, seed):
    if dtype.names is not None:
        return
    own = row(dtype, seed)
    for ours, numpys in zip(np.unique(vm.asarray(own), True, True, True), np.unique(own, True, True, True)):
        if dtype.kind == "f" and ours.dtype == dtype:  # NumPy keeps the sign of the first zero.
            ours, numpys = np.asarray(ours) + 0.0, numpys + 0.0
        same(ours, numpys)
    deep = own[: own.size // 2 * 2].reshape(2, -1)
    same(np.unique(vm.asarray(deep), return_inverse=True)[1], np.unique(deep, return_inverse=True)[1])


@given(st.sampled_from(COMPUTED), st.sampled_from(COMPUTED), seeds, st.sampled_from(["left", "right"]))
def test_searchsorted(one, other, seed, side):
    among, wanted = np.sort(row(one, seed)), row(other, seed + 1)
    same(np.searchsorted(vm.asarray(among), vm.asarray(wanted), side), np.searchsorted(among, wanted, side))
    same(np.searchsorted(vm.asarray(among), wanted.reshape(1, -1), side), np.searchsorted(among, wanted.reshape(1, -1), side))
    assert vm.searchsorted(vm.asarray(among), 3, side) == np.searchsorted(among, 3, side)


@given(st.data(), shapes, st.sampled_from(ALL), seeds)
def test_take(data, shape, dtype, seed):
    own = values(shape, dtype, seed)
    axis = data.draw(st.sampled_from([None, 0, -1, 1]))
    extent = own.size if axis is None else own.shape[axis] if -own.ndim <= axis < own.ndim else 3
    most = max(extent, 1) + data.draw(st.sampled_from([0, 0, 0, 1]))
    indices = np.random.default_rng(seed).integers(-most, most, data.draw(st.sampled_from([(), (5,), (2, 3), (0,)])))
    for given_indices in (indices, vm.asarray(indices)):
        for mode in ("raise", "wrap", "clip"):
            if not own.size and indices.size and (own.ndim > 1 or mode == "wrap"):
                continue  # The empty axes decide if NumPy checks the indices; NumPy 2.1 never ends.
            (ours, error), (numpys, wanted) = (
                outcome(lambda: np.take(vm.asarray(own), given_indices, axis, mode=mode)),
                outcome(lambda: np.take(own, indices, axis, mode=mode)),
            )
            assert error == wanted, (mode, indices)
            if error is None:
                same(ours, numpys)


def test_indices_of_ours_give_ours():
    a = vm.arange(1000) * 3
    found = a[vm.array([[1, -1], [500, 0]])]
    assert isinstance(found, vm.Array)
    same(found, (np.arange(1000) * 3)[[[1, -1], [500, 0]]])
    with pytest.raises(IndexError, match="index 1000 is out of bounds for axis 0 with size 1000"):
        a[vm.array([1000])]


@given(st.sampled_from(NUMBERS), st.sampled_from(NUMBERS), seeds)
def test_groups(of_keys, of_values, seed):
    keys = row(of_keys, seed)
    with np.errstate(all="ignore"):
        beside = values(keys.shape, of_values, seed + 1)
        groups = vm.group_by(vm.asarray(keys))
        different, inverse, counts = np.unique(keys, return_inverse=True, return_counts=True)
        assert np.array_equal(np.asarray(groups.keys), different, equal_nan=of_keys.kind == "f")
        same(groups.counts, counts)
        assert np.array_equal(np.sort(np.asarray(groups.order)), np.arange(len(keys)))
        for name, ufunc in (("min", np.minimum), ("max", np.maximum)):
            expected = np.array([ufunc.reduce(beside[inverse == n]) for n in range(len(different))], of_values)
            ours = np.asarray(getattr(groups, name)(beside))
            assert ours.dtype == of_values and np.array_equal(ours, expected, equal_nan=of_values.kind == "f")
        if of_values.kind != "f":
            expected = [beside[inverse == n].sum() for n in range(len(different))]
            same(groups.sum(vm.asarray(beside)), np.array(expected, "u8" if of_values.kind == "u" else "i8"))


@given(st.sampled_from(NUMBERS), seeds, st.integers(1, 5000), st.booleans(), st.booleans())
def test_histogram(dtype, seed, bins, has_range, is_density):
    random = np.random.default_rng(seed)
    if dtype.kind == "f":
        own = (random.normal(size=500) * 10.0 ** random.integers(-5, 5)).astype(dtype)
        own[random.random(500) < 0.3] = np.round(own[random.random(500) < 0.3].mean(), 1)
    else:
        own = random.integers(-50 if dtype.kind == "i" else 0, 100, 500).astype(dtype)
    limits = (-2.5, 60) if has_range else None
    for ours, numpys in zip(
        np.histogram(vm.asarray(own), bins, limits, is_density), np.histogram(own, bins, limits, is_density)
    ):
        same(ours, numpys)


def test_histogram_of_other_kinds():
    own = np.random.default_rng(1).normal(size=1000)
    for given_bins in ([-1.0, 0, 0.5, 9], np.array([0, 1, 2])):
        for ours, numpys in zip(np.histogram(vm.asarray(own), given_bins), np.histogram(own, given_bins)):
            same(ours, numpys)
    weights = own**2
    for ours, numpys in zip(
        np.histogram(vm.asarray(own), 7, weights=vm.asarray(weights)), np.histogram(own, 7, weights=weights)
    ):
        same(ours, numpys)
    for array in (np.array([]), np.array([3.0]), np.array([1.0, np.nan])):
        (ours, error), (numpys, wanted) = (
            outcome(lambda: np.histogram(vm.asarray(array))),
            outcome(lambda: np.histogram(array)),
        )
        assert error == wanted
        if error is None:
            same(ours[0], numpys[0])
            same(ours[1], numpys[1])
    for ours, numpys in zip(np.histogram(vm.asarray(own * np.nan), 3, (0, 1)), np.histogram(own * np.nan, 3, (0, 1))):
        same(ours, numpys)


def test_bincount():
    for most in (10, 4096, 10_000):
        own = np.random.default_rng(most).integers(0, most, 3000)
        same(np.bincount(vm.asarray(own)), np.bincount(own))
        same(np.bincount(vm.asarray(own.astype("u2")), minlength=20_000), np.bincount(own, minlength=20_000))
        same(np.bincount(vm.asarray(own), own / 2), np.bincount(own, own / 2))
    same(np.bincount(vm.zeros(0, int)), np.bincount(np.zeros(0, int)))
    with pytest.raises(ValueError, match="no negative"):
        vm.bincount(vm.array([1, -1]))


@given(st.sampled_from(NUMBERS), seeds, st.integers(0, 64), st.sampled_from(["linear", "lower", "higher", "midpoint"]))
def test_quantiles(dtype, seed, share, method):
    own, share = row(dtype, seed), share / 64
    own = own[np.isfinite(own) & (abs(own.astype(float)) < 1e15)] if dtype.kind == "f" else own // 4
    if not own.size:
        return
    # Devices compute, not NumPy, if the program asks for progress.
    with vm.progress(lambda done, total: None):
        ours = np.quantile(vm.asarray(own), share, method=method)
    numpys = np.quantile(own, share, method=method)
    if own.dtype.kind == "f" or own.itemsize < 8 or method in ("lower", "higher"):
        # Without the sign of a zero.
        same(ours + numpys.dtype.type(0), numpys + numpys.dtype.type(0))
    else:
        assert ours.dtype == numpys.dtype
        assert abs(float(ours) - float(numpys)) <= 4 * np.ptp(own.astype(float)) * own.size * np.finfo(float).eps
    several = np.quantile(vm.asarray(own), [[0.0, 1.0], [0.5, share]])
    assert several.shape == (2, 2) and several[0, 0] == own.min() and several[0, 1] == own.max()
    same(np.median(vm.asarray(own)), np.median(own))
    count = min(5, own.size)
    same(vm.top_k(vm.asarray(own), 5) + own.dtype.type(0), np.sort(own)[::-1][:count] + own.dtype.type(0))


def test_order_along_axes():
    own = np.random.default_rng(3).integers(0, 50, (7, 8, 9))
    ours = vm.asarray(own)
    same(np.median(ours, axis=1), np.median(own, axis=1))
    same(np.quantile(ours, 0.3, axis=0, keepdims=True), np.quantile(own, 0.3, axis=0, keepdims=True))
    same(np.percentile(ours, [10, 50]), np.percentile(own, [10, 50]))
    same(np.argsort(ours, axis=None), np.argsort(own, axis=None, kind="stable"))
    parted = np.asarray(np.partition(ours, 3, axis=2))
    assert (parted[:, :, :3] <= parted[:, :, 3:4]).all() and (parted[:, :, 4:] >= parted[:, :, 3:4]).all()
    with pytest.raises(ValueError, match="out of bounds"):
        np.partition(ours, 9, axis=2)


def test_nan_comes_last():
    own = np.array([2.0, np.nan, -np.nan, 1.0, -0.0, 0.0])
    assert np.isnan(np.median(vm.asarray(own))) and np.isnan(np.quantile(vm.asarray(own), 0.5))
    assert np.isnan(vm.top_k(vm.asarray(own), 3)).tolist() == [True, True, False]
    assert vm.searchsorted(vm.sort(vm.asarray(own)), np.nan) == 4


def test_random_numbers_are_reproducible_and_even():
    one, other = vm.random.default_rng(12), vm.random.default_rng(12, devices="host", page_len=777)
    for make in (
        lambda rng: rng.random(10_000),
        lambda rng: rng.random((100, 100), "f4"),
        lambda rng: rng.normal(3, 2, 10_000),
        lambda rng: rng.integers(-5, 1000, (50, 20), "i2"),
        lambda rng: rng.permutation(1000),
        lambda rng: rng.choice(50, 20, replace=False),
        lambda rng: rng.exponential(2, 1000),
        lambda rng: rng.uniform(-1, 1, 1000),
    ):
        a, b = make(one), make(other)
        same(a, b)
        again, _ = make(one), make(other)
        assert not np.array_equal(np.asarray(again), np.asarray(a))
    rng = vm.random.default_rng(5)
    a = np.asarray(rng.random(100_000))
    assert abs(a.mean() - 0.5) < 0.01 and abs(a.var() - 1 / 12) < 0.01 and a.min() >= 0 and a.max() < 1
    assert abs(np.corrcoef(a[1:], a[:-1])[0, 1]) < 0.02
    a = np.asarray(rng.standard_normal(100_000, "f4"))
    assert a.dtype == np.float32 and abs(a.mean()) < 0.02 and abs(a.std() - 1) < 0.02
    assert abs((abs(a) < 1).mean() - 0.6827) < 0.01
    a = np.asarray(rng.exponential(3, 100_000))
    assert abs(a.mean() - 3) < 0.1 and a.min() >= 0
    for low, high, kind in ((0, 10, "i8"), (-(2**63), 2**63 - 1, "i8"), (0, 2**64 - 1, "u8"), (-100, 127, "i1"), (0, 1, "?")):
        a = rng.integers(low, high, 20_000, kind, endpoint=True)
        assert a.dtype == np.dtype(kind) and low <= int(a.min()) and int(a.max()) <= high
        assert abs(np.asarray(a, float).mean() - (low + high) / 2) < (high - low) * 0.02
    assert float(rng.random()) != float(rng.random()) and 0 <= int(rng.integers(5)) < 5


def test_pieces_of_random_numbers_are_one_row(monkeypatch):
    whole = np.asarray(vm.random.default_rng(9).normal(size=1000))
    monkeypatch.setattr(vm.random, "_PIECE", 77)
    same(vm.random.default_rng(9).normal(size=1000), whole)


@given(shapes, st.sampled_from(ALL), seeds)
def test_shuffles_have_the_same_items(shape, dtype, seed):
    if not shape:
        return
    own = values(shape, dtype, seed)
    ours = vm.random.default_rng(seed).permutation(vm.asarray(own))
    assert sorted(one.tobytes() for one in np.asarray(ours)) == sorted(one.tobytes() for one in own)
    picked = vm.random.default_rng(seed).choice(vm.arange(100), 50, replace=False)
    assert len(np.unique(np.asarray(picked))) == 50


def test_random_errors():
    rng = vm.random.default_rng(1)
    for work, kind in (
        (lambda: vm.random.default_rng(-1), ValueError),
        (lambda: rng.integers(5, 5, 3), ValueError),
        (lambda: rng.integers(0, 300, 3, "u1"), ValueError),
        (lambda: rng.choice(3, 5, replace=False), ValueError),
        (lambda: rng.choice(2, 5, p=[0.5, 0.6]), ValueError),
        (lambda: rng.random(5, "i4"), TypeError),
        (lambda: rng.normal(0, -1, 3), ValueError),
        (lambda: vm.random.default_rng(1, colour="red"), TypeError),
    ):
        with pytest.raises(kind):
            work()


class Bar:
    """The methods of a bar of ``tqdm`` that the package uses."""

    def __init__(self):
        self.starts, self.n, self.total = 0, 0, None

    def reset(self, total):
        self.starts, self.n, self.total = self.starts + 1, 0, total

    def update(self, more):
        self.n += more


def test_sorts_report_their_progress():
    own = np.random.default_rng(1).integers(0, 1000, 50_000)
    array, parts = vm.asarray(own), []
    with vm.progress(lambda done, total: parts.append((done, total))):
        order = vm.argsort(array)
        count = len(parts)
        vm.sort(array)
    vm.sort(array)
    same(order, np.argsort(own, kind="stable"))
    assert 0 < count < len(parts) and parts[count - 1][0] == parts[count - 1][1] > 0 and parts[-1][0] == parts[-1][1]
    bar = Bar()
    with vm.progress(bar):
        vm.sort(array)
        vm.sort(array)
    assert bar.starts >= 1 and bar.n == bar.total > 0


def test_sorts_are_stopped_by_the_progress_callback():
    own = np.random.default_rng(1).permutation(50_000)
    array = vm.asarray(own)

    def stop(done, total):
        raise LookupError("enough")

    with vm.progress(stop):
        for work in (array.sort, lambda: vm.argsort(array), lambda: vm.unique(array), lambda: vm.group_by(array)):
            with pytest.raises(LookupError, match="enough"):
                work()
    assert (np.asarray(array) != np.arange(50_000)).any()
    same(np.sort(np.asarray(array)), np.sort(own))
    array.sort()
    same(array, np.arange(50_000))


def test_sorts_are_stopped_by_signals():
    own = np.random.default_rng(1).permutation(100_000)
    array, is_handled = vm.asarray(own), threading.Event()

    def handler(number, frame):
        is_handled.set()
        raise KeyboardInterrupt

    def interrupt(done, total):
        # The thread that called the sort handles the signal, while another thread sorts.
        assert threading.current_thread() is not threading.main_thread()
        _thread.interrupt_main()
        assert is_handled.wait(60)

    before = signal.signal(signal.SIGINT, handler)
    try:
        with pytest.raises(KeyboardInterrupt), vm.progress(interrupt):
            array.sort()
    finally:
        signal.signal(signal.SIGINT, before)
    same(np.sort(np.asarray(array)), np.sort(own))


@pytest.mark.parametrize("small_bytes", [0, 1 << 16])
def test_few_items_are_sorted_alike_by_devices_and_numpy(monkeypatch, small_bytes):
    from vmarray import _dispatch

    monkeypatch.setattr(_dispatch, "SMALL_BYTES", small_bytes)
    for own in (np.array([3, 1, 3, 2, 1, 0] * 9, "i4"), np.array([-0.0, 5, np.nan, -0.0, -np.inf, 2] * 9, "f4")):
        array, numbers = vm.asarray(own), own[own == own]
        same(np.sort(array), np.sort(own, kind="stable"))
        same(np.argsort(array), np.argsort(own, kind="stable"))
        same(vm.unique(array), np.unique(own))
        same(np.take(array, [5, -1, 0]), np.take(own, [5, -1, 0]))
        same(np.median(vm.asarray(numbers)), np.median(numbers))
        same(np.quantile(vm.asarray(numbers), [0, 0.3, 1]), np.quantile(numbers, [0, 0.3, 1]))
        found = vm.searchsorted(vm.asarray(np.sort(numbers)), vm.asarray(numbers))
        same(found, np.searchsorted(np.sort(numbers), numbers))
        array.sort()
        same(array, np.sort(own, kind="stable"))


def test_few_items_are_sorted_without_kernels(monkeypatch):
    from vmarray import _core

    for name in ("sort", "argsort", "unique", "nth", "take"):
        monkeypatch.setattr(_core, name, None)
    array = vm.asarray(np.random.default_rng(1).random(1000))
    assert np.sort(array).shape == vm.argsort(array).shape == vm.unique(array).shape == (1000,)
    assert np.median(array) == np.median(np.asarray(array)) and vm.take(array, [1, 2]).shape == (2,)
