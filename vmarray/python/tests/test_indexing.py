"""Reads and writes by keys, compared with NumPy bit for bit."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import vmarray as vm
from conftest import ALL, keys, outcome, same, seeds, shapes, values


@given(st.data(), shapes, st.sampled_from(ALL), seeds)
def test_items_are_read_as_numpys(data, shape, dtype, seed):
    own = values(shape, dtype, seed)
    array = vm.asarray(own, page_len=5, cache_bytes=1 << 12)
    key = data.draw(keys(shape))
    (ours, error), (numpys, expected) = outcome(lambda: array[key]), outcome(lambda: own[key])
    assert error == expected
    if error is None:
        assert isinstance(ours, np.generic) == isinstance(numpys, np.generic)
        same(ours, numpys)


@given(st.data(), shapes, st.sampled_from(ALL), seeds)
def test_items_are_written_as_numpys(data, shape, dtype, seed):
    own = values(shape, dtype, seed)
    array = vm.asarray(own, page_len=5, cache_bytes=1 << 12)
    key = data.draw(keys(shape))
    of, refused = outcome(lambda: own[key].shape)
    of = shape if refused else of
    kind = data.draw(st.sampled_from(["all", "one", "row", "ours", "wrong"]))
    if kind == "wrong":
        of = (*of, 9)
    value = values(() if kind == "one" else of[-1:] if kind == "row" else of, dtype, seed + 1)
    given_value = vm.asarray(value) if kind == "ours" and np.ndim(value) else value

    def write(target, what):
        target[key] = what

    (_, error), (_, expected) = outcome(lambda: write(array, given_value)), outcome(lambda: write(own, value))
    # If several arguments are invalid, NumPy reports any one of them.
    assert error == expected or ((refused or kind == "wrong") and error and expected)
    same(array, own)


@given(st.data(), shapes, st.sampled_from(ALL), seeds)
def test_views_share_their_items(data, shape, dtype, seed):
    own = values(shape, dtype, seed)
    array = vm.asarray(own)
    views = [(array, own)]
    for _ in range(data.draw(st.integers(1, 3))):
        ours, numpys = views[-1]
        kind = data.draw(st.sampled_from(["key", "transposed", "reshaped", "swapped"]))
        if kind == "key":
            key = (*data.draw(keys(numpys.shape).filter(lambda key: all(not np.ndim(one) for one in key))), Ellipsis)
            if sum(one is Ellipsis for one in key) > 1 or outcome(lambda: numpys[key])[1] is not None:  # noqa: B023
                continue
            views.append((ours[key], numpys[key]))
        elif kind == "transposed":
            views.append((ours.T, numpys.T))
        elif kind == "swapped" and numpys.ndim > 1:
            views.append((ours.swapaxes(0, -1), numpys.swapaxes(0, -1)))
        else:
            views.append((ours.reshape(-1), numpys.reshape(-1)))
    ours, numpys = views[-1]
    value = values((), dtype, seed + 2)
    ours[...] = value
    numpys[...] = value
    for ours, numpys in views:
        same(ours, numpys)


@given(st.data(), shapes, seeds)
def test_fields_are_views(data, shape, seed):
    own = np.zeros(shape, [("x", "f4"), ("y", "i8"), ("z", "u1", (3,)), ("w", "i4")])
    for name in own.dtype.names:
        own[name] = np.random.default_rng(seed).integers(0, 100, own[name].shape)
    array = vm.asarray(own)
    name = data.draw(st.sampled_from(own.dtype.names))
    same(array[name], own[name])
    array[name] = 7
    own[name] = 7
    same(array, own)
    same(array["w"] * 2 + array["y"], own["w"] * 2 + own["y"])
    same(array[["x", "w"]], own[["x", "w"]])


def test_long_rows_and_far_items_are_copied_by_each_way():
    own = np.arange(300 * 5000, dtype="i8").reshape(300, 5000)
    array = vm.asarray(own, cache_bytes=1 << 20)
    for key in [np.s_[:, 100:4000], np.s_[::7, ::3], np.s_[:, 7], np.s_[::-1, ::-1], np.s_[::150, ::2500]]:
        same(array[key], own[key])
        array[key] = own[key] + 1
        own[key] = own[key] + 1
        same(array, own)
    same(array.T[5:9], own.T[5:9])


def test_an_ellipsis_of_no_axes_keeps_arrays_apart():
    own = np.arange(24).reshape(2, 3, 4)
    same(vm.asarray(own)[:, [0, 1], ..., [2, 3]], own[:, [0, 1], ..., [2, 3]])


def test_assignments_to_itself_are_as_if_copied_before():
    own = np.arange(1000)
    array = vm.asarray(own)
    array[1:], own[1:] = array[:-1], own[:-1].copy()
    same(array, own)
    array[::-1], own[::-1] = array * 1, own.copy()
    same(array, own)
    array += array[::-1]
    own = own + own[::-1]
    same(array, own)


@pytest.mark.parametrize("masked", [np.s_[:], np.s_[2:], np.s_[::3]])
def test_masks_of_the_package_select_on_devices(masked):
    own = np.arange(-50, 50).reshape(20, 5)[masked]
    array = vm.asarray(np.arange(-50, 50).reshape(20, 5))[masked]
    same(array[array > 3], own[own > 3])
    same((array * 2 + 1)[array % 3 == 0].sum(), (own * 2 + 1)[own % 3 == 0].sum())
    assert array[array > 3].shape == own[own > 3].shape
    array[array < 0] = 0
    own[own < 0] = 0
    same(array, own)
    chosen = array[array > 10]
    array[...] = 1
    same(chosen, own[own > 10])


def test_masks_of_no_items():
    for shape, mask in (((3,), (0,)), ((3, 2), (0, 2)), ((3, 2), (3, 0)), ((3, 2), (0, 5)), ((3, 2), (0,))):
        own, mask = np.arange(np.prod(shape)).reshape(shape), np.zeros(mask, bool)
        (ours, error), (numpys, wanted) = outcome(lambda: vm.asarray(own)[mask]), outcome(lambda: own[mask])
        assert error == wanted
        if error is None:
            same(ours, numpys)


def test_lists_of_items_of_views_with_steps():
    a, n = vm.arange(1000), np.arange(1000)
    keys = np.random.default_rng(5).integers(-100, 100, (7, 9))
    for view, own in [(a[::-3], n[::-3]), (a[300:700:2], n[300:700:2]), (a[990:490:-5], n[990:490:-5])]:
        for key in (keys, keys.astype("i2"), keys[:, ::2], keys[:0]):
            assert np.array_equal(view[key], own[key])
        for key in (np.array([0, len(own)]), np.array([[-len(own) - 1]])):
            with pytest.raises(IndexError) as expected:
                own[key]
            with pytest.raises(IndexError) as found:
                view[key]
            assert str(found.value) == str(expected.value)


@pytest.mark.parametrize("dtype", ["f4", "V44", "S5", ">i4"])
def test_lists_of_rows(dtype):
    random = np.random.default_rng(5)
    own = values((50, 3, 4), np.dtype(dtype), 1) if dtype != "V44" else np.frombuffer(random.bytes(600 * 44), "V44").reshape(50, 3, 4).copy()
    array = vm.asarray(own, page_len=7)
    keys = random.integers(-20, 20, (6, 5))
    for view, numpys in [(array, own), (array[40::-2], own[40::-2]), (array[5:, 1], own[5:, 1]), (array[:, ::2], own[:, ::2])]:
        for key in (keys, keys[:0], keys[0]):
            assert np.asarray(view[key]).tobytes() == numpys[key].tobytes() and view[key].shape == numpys[key].shape
        new = numpys[keys][::-1].copy()
        view[keys], numpys[keys] = new, new
        view[keys[0]], numpys[keys[0]] = own[0, 0, 0], own[0, 0, 0]
        assert np.asarray(array).tobytes() == own.tobytes()
        for wrong, value in ((np.array([0, len(numpys)]), 0), (keys, np.zeros(7)), (np.array([len(numpys)]), np.zeros(7))):
            _, error = outcome(lambda: view.__setitem__(wrong, value))  # noqa: B023
            _, expected = outcome(lambda: numpys.__setitem__(wrong, value))  # noqa: B023
            assert error == expected or dtype != "f4"
        assert np.asarray(array).tobytes() == own.tobytes()


def test_arrays_of_numpy_are_read_into():
    a = vm.arange(60, dtype="i4").reshape(6, 10)
    out = np.zeros((3, 5), "i4")
    assert a[::2, 5:].read_into(out) is out
    assert np.array_equal(out, np.arange(60, dtype="i4").reshape(6, 10)[::2, 5:])
    assert (a[::2, 5:] * 2).read_into(out)[2, 4] == 98
    read_only = np.zeros((3, 5), "i4")
    read_only.flags.writeable = False
    for wrong in (np.zeros((3, 4), "i4"), np.zeros((3, 5), "i8"), np.zeros((5, 3), "i4").T, read_only, [[0] * 5] * 3):
        with pytest.raises(ValueError):
            a[::2, 5:].read_into(wrong)
