"""Transposed, reversed and strided arrays: copies by blocks on several threads, and work in the order of memory."""

import itertools

import numpy as np
import pytest

import vmarray as vm
from conftest import same

#: Above the size of several blocks of a copy.
SHAPE = (7, 300, 500)
VIEWS = [lambda a: a.T, lambda a: a[::-1], lambda a: a[:, ::-1, ::2], lambda a: a.transpose(1, 0, 2), lambda a: a[..., 3:4],
         lambda a: a.transpose(2, 0, 1)[::-3, :, 5:], lambda a: a[::-1, ::-1, ::-1], lambda a: a[3].T]  # fmt: skip


@pytest.fixture(scope="module", params=["u1", "i2", "f4", "f8", "c16", "S3", [("x", "i2"), ("y", "f8")]])
def pair(request):
    items = np.arange(int(np.prod(SHAPE))) % 251
    own = items.astype("u1" if request.param == "u1" else "i2").astype(request.param).reshape(SHAPE)
    return vm.asarray(own), own


@pytest.mark.parametrize("view", VIEWS)
def test_copies(pair, view):
    ours, own = map(view, pair)
    assert np.array_equal(np.asarray(ours), own) and np.array_equal(np.asarray(ours.copy()), own)
    assert ours.copy().flags.c_contiguous


@pytest.mark.parametrize("view", VIEWS)
def test_work_in_the_order_of_memory(view):
    own = np.arange(np.prod(SHAPE), dtype="i4").reshape(SHAPE) % 83
    ours, own = view(vm.asarray(own)), view(own)
    expected = np.where(own > 3, own * 2 + own, -own)
    found = np.where(ours > 3, ours * 2 + ours, -ours)
    same(found, expected)
    same(found.sum(), expected.sum())
    for axis in itertools.chain([None, (0, 1)] if own.ndim > 2 else [None], range(own.ndim)):
        for name in ("sum", "min", "max", "any", "argmax"):
            if name != "argmax" or not isinstance(axis, tuple):
                same(getattr(found, name)(axis=axis), getattr(expected, name)(axis=axis))
        for name in ("mean", "var", "std"):
            mine, numpys = (getattr(one, name)(axis=axis, keepdims=True) for one in (ours, own))
            np.testing.assert_allclose(np.asarray(mine), numpys, rtol=1e-12)
    same(ours[ours > 50], own[own > 50])


def test_pending_views_keep_the_values_of_their_time():
    a = vm.arange(100_000).reshape(200, 500)
    later = (a.T + 1) * 2
    assert later.is_pending and later.T.flags.c_contiguous and np.shares_memory(later, later)
    a[...] = 0
    same(later, (np.arange(100_000).reshape(200, 500).T + 1) * 2)
    later[0] = 7
    same(later.T[:, 0], np.full(200, 7))
    same((later.T + later.T)[1, :3], np.asarray(later.T)[1, :3] * 2)
    flipped = (a[::-1] - 1)[::-1]
    a[0, 0] = 5
    assert flipped[0, 0] == -1 and (flipped + 0)[0, 0] == -1
