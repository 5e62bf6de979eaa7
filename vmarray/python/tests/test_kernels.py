"""Kernels compared with the same functions run by Python for each item, and functions that are no kernels."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import vmarray as vm
from conftest import same, seeds

WEIGHT = 3


@vm.kernel
def blended(x, y, share):
    """Two items as one."""
    return x * share + y * (1 - share)


@vm.kernel
def steps(x, y, limit):
    total, count = 0, 0
    for i in range(1, 4):
        if x > y * i:
            total += x - y
            count = count + 1
        elif x == y or not x < limit:
            total -= i
        else:
            total = total * 2 + WEIGHT
    if total > 100:
        return 100, count
    if total < -100:
        total = -100
    return total, count


@vm.kernel
def functions(x):
    y = np.sqrt(abs(x)) + math.atan2(x, 2.0) if 0 <= x < 50 and x != 7 else min(x, -1.5, math.pi)
    return max(y, -10.0) + float(int(x)) + blended(x, y, 0.25)


@vm.kernel
def cross(x, w):
    return (x[-1, 0] + x[1, 0] + x[0, -1] + x[0, 1]) * w - 4 * x


@vm.kernel
def box(x):
    total = 0.0
    for i in range(-1, 2):
        for j in range(-2, 3):
            total += x[i, j]
    return total / 15


@vm.kernel
def corner(x):
    return x[-2, 0] + x[0, 1] - x[-1, -1], 1, x


@given(seeds)
def test_items_are_as_of_python(seed):
    random = np.random.default_rng(seed)
    x, y = random.integers(-9, 10, (3, 7)), random.integers(-9, 10, 7)
    totals, counts = steps(vm.asarray(x), y, 5)
    expected = np.array([[steps.__wrapped__(int(a), int(b), 5) for a, b in zip(row, y)] for row in x])
    assert np.array_equal(np.asarray(totals), expected[..., 0]) and np.array_equal(np.asarray(counts), expected[..., 1])
    own = random.uniform(-60, 60, 50)
    own[:5] = [0, 7, 50, -1.5, 49.999]
    ours = np.asarray(functions(vm.asarray(own)))
    assert np.allclose(ours, [functions.__wrapped__(float(one)) for one in own], 1e-13)


@given(seeds, st.sampled_from(["constant", "edge", "reflect", "symmetric", "wrap"]))
def test_neighbours(seed, mode):
    random = np.random.default_rng(seed)
    own = random.integers(-99, 99, random.integers(3, 9, 2)).astype("f8")
    given_fill = {"constant_values": 2} if mode == "constant" else {}
    wide = np.pad(own, 1, mode, **given_fill)
    expected = (wide[:-2, 1:-1] + wide[2:, 1:-1] + wide[1:-1, :-2] + wide[1:-1, 2:]) * 0.5 - 4 * own
    same(cross(vm.asarray(own), 0.5, boundary=mode, fill=2), expected)
    rows = np.ones((own.shape[0], 1)) * 0.5
    same(cross(vm.asarray(own), vm.asarray(rows), boundary=mode, fill=2), expected)
    wide = np.pad(own, ((1, 1), (2, 2)), mode)
    expected = sum(wide[i : i + own.shape[0], j : j + own.shape[1]] for i in range(3) for j in range(5)) / 15
    assert np.allclose(np.asarray(box(vm.asarray(own), boundary=mode)), expected)


@pytest.mark.parametrize("at_once", [1, 1 << 22])
@pytest.mark.parametrize("mode", ["constant", "edge", "reflect", "symmetric", "wrap"])
def test_neighbours_in_thin_arrays(monkeypatch, mode, at_once):
    monkeypatch.setattr("vmarray._kernel._AT_ONCE", at_once)
    given_fill = {"constant_values": -1} if mode == "constant" else {}
    for shape in [(1, 1), (2, 9), (9, 2), (5, 7)]:
        own = np.arange(shape[0] * shape[1], dtype="u1").reshape(shape)
        wide = np.pad(own, ((2, 0), (1, 1)), mode, **given_fill)
        expected = wide[:-2, 1:-1] + wide[2:, 2:] - wide[1:-1, :-2]
        sums, one, itself = corner(vm.asarray(own), boundary=mode, fill=-1)
        same(sums, expected)
        same(itself, own)
        assert one.shape == shape and np.all(np.asarray(one) == 1)


def test_neighbours_of_nothing_and_of_unknown_boundaries():
    assert corner(vm.zeros((0, 5)))[0].shape == (0, 5)
    with pytest.raises(TypeError, match="boundary 'mean'"):
        corner(vm.ones((4, 4)), boundary="mean")


def test_a_kernel_is_lazy_and_uses_the_items_of_its_call():
    a = vm.arange(10)

    @vm.kernel
    def twice(x):
        return x * 2

    later = twice(a)
    assert later.is_pending
    a[:] = 0
    same(later, np.arange(10) * 2)
    assert twice(4) == 8 and float(blended(1.0, 3.0, 0.5)) == 2.0


def line_of(error):
    return error.value.text.strip(), error.value.lineno


def test_code_outside_the_subset_is_an_error_at_its_line():
    with pytest.raises(vm.KernelError, match="kernels have no While") as error:

        @vm.kernel
        def one(x):
            y = x
            while y > 1:
                y = y / 2
            return y

    assert line_of(error)[0] == "while y > 1:" and error.value.filename == __file__
    with pytest.raises(vm.KernelError, match="kernels have no ListComp") as error:

        @vm.kernel
        def two(x):
            return [x for _ in range(3)]

    assert line_of(error)[0] == "return [x for _ in range(3)]"

    @vm.kernel
    def three(x):
        if x > 1:
            y = 2
        return y

    @vm.kernel
    def four(x):
        return print(x)

    @vm.kernel
    def five(x, n):
        for i in range(n):
            x += i
        return x

    @vm.kernel
    def six(x):
        x[0] = 1
        return x

    @vm.kernel
    def seven(x):
        return x[1, 1]

    @vm.kernel
    def eight(x):
        y = x + "a"
        return y

    @vm.kernel
    def nine(x):
        if x > 0:
            return x

    a = vm.arange(5)
    for work, text, line in (
        (lambda: three(a), "no value here on some path", "return y"),
        (lambda: four(a), "print is no function of kernels", "return print(x)"),
        (lambda: five(a, a), "integers that are known before it", "for i in range(n):"),
        (lambda: six(a), "given to names alone", "x[0] = 1"),
        (lambda: seven(a), "an integer for each of 1 axes", "return x[1, 1]"),
        (lambda: eight(a), "is no number", 'y = x + "a"'),
        (lambda: nine(a), "on each path", "if x > 0:"),
    ):
        with pytest.raises(vm.KernelError, match=text) as error:
            work()
        assert line_of(error)[0] == line
    same(five(a, 3), np.arange(5) + 3)
    with pytest.raises(TypeError, match="missing a required argument"):
        five(a)


def _used(kernel, values):
    return np.asarray(kernel(vm.asarray(values))).tolist()


@vm.kernel
def _doubled(x):
    return 2 * x


def test_kernels_travel(tmp_path):
    import math
    import multiprocessing
    import pickle

    factor = 3

    @vm.kernel
    def inner(x):
        return x + math.floor(1.5)

    @vm.kernel
    def outer(x, more=10):
        if x > 1:
            return inner(x) * factor + more
        return np.sqrt(x) + abs(-1.0)

    values = np.array([0.0, 1, 2, 5])
    assert pickle.loads(pickle.dumps(_doubled)) is _doubled
    again = pickle.loads(pickle.dumps(pickle.loads(pickle.dumps(outer))))
    assert again.__name__ == "outer" and np.array_equal(again(vm.asarray(values)), outer(vm.asarray(values)))
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        for kernel in (outer, _doubled):
            assert pool.apply_async(_used, (kernel, values)).get(60) == _used(kernel, values)
    with pytest.raises(TypeError, match="outer"):
        again()
