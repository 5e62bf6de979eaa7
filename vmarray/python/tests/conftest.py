"""Fixtures of all tests: random arrays and keys, and a comparison bit for bit."""

import datetime
import os

import hypothesis
import numpy as np
import pytest
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from vmarray import _on_host, _parallel, _products

#: The most items of operands that NumPy computes, unless a test lets devices compute them all.
FEW = _on_host.ITEMS_MAX
EXAMPLES = int(os.environ.get("VMARRAY_PYTHON_EXAMPLES", "60"))
hypothesis.settings.register_profile(
    "vmarray",
    max_examples=EXAMPLES,
    deadline=None,
    derandomize=True,
    suppress_health_check=list(hypothesis.HealthCheck),
    database=None,
)
hypothesis.settings.load_profile("vmarray")


@pytest.fixture(autouse=True)
def _devices_compute():
    """Devices compute arrays of any size; a test sets `FEW` if NumPy is to compute arrays of few items."""
    _on_host.ITEMS_MAX = 0
    _products.PRODUCT_BYTES = 1 << 20
    divide(False)


def divide(is_small):
    """NumPy computes arrays of a few items in parts on all cores, if `is_small`, or only arrays of many items."""
    _parallel.PART, _parallel.ITEMS_MIN, _parallel.BYTES_MIN = (16, 8, 0) if is_small else (1 << 18, 1 << 18, 6 << 20)


def pytest_addoption(parser):
    parser.addoption(
        "--programs",
        type=int,
        metavar="N",
        help="runs what has random examples alone, with so many in all",
    )
    parser.addoption(
        "--census", type=int, default=0, metavar="N", help="runs the census alone, with so many cases of each function"
    )
    parser.addoption("--census-log", metavar="FILE", help="keeps what the census has done there, and goes on after that")
    parser.addoption(
        "--part", metavar="I/N", help="runs every Nth test from number I on, so that N processes share the tests"
    )
    day = int(os.environ.get("VMARRAY_CENSUS_SEED") or datetime.date.today().toordinal())
    parser.addoption(
        "--census-seed", type=int, default=day, metavar="SEED", help="what the cases of the census are drawn by: the day"
    )


def pytest_terminal_summary(terminalreporter):
    seed = terminalreporter.config.getoption("--census-seed")
    terminalreporter.write_line(f"cases of the census: --census-seed {seed}, with NumPy {np.__version__}")


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config, items):
    part, _, parts = (config.getoption("--part") or "0/1").partition("/")
    if config.getoption("--census"):
        _keep([item for item in items if item.originalname == "test_a_function_compared_with_numpy"], config, items)
    elif programs := config.getoption("--programs"):
        _keep([item for item in items if getattr(item.obj, "is_hypothesis_test", False)], config, items)
        for item in items:
            share = hypothesis.settings(max_examples=-(-programs // (len(items) * int(parts))), derandomize=int(parts) == 1)
            # Each part runs a share of the examples of all tests, by its own seed.
            share(item.obj if int(parts) == 1 else hypothesis.seed(int(part))(item.obj))
        return
    _keep(items[int(part) :: int(parts)], config, items)


def _keep(wanted, config, items):
    """Deselects other tests."""
    config.hook.pytest_deselected(items=[item for item in items if item not in wanted])
    items[:] = wanted


RECORD = np.dtype([("x", "f4"), ("y", "i8"), ("z", "u1", (3,))])
COMPUTED = [np.dtype(name) for name in "? i1 i2 i4 i8 u1 u2 u4 u8 f2 f4 f8".split()]
ALL = [*COMPUTED, np.dtype("c8"), np.dtype("c16"), np.dtype(">i4"), np.dtype("M8[s]"), np.dtype("S5"), RECORD]


def values(shape, dtype, seed):
    """An array of any bits, with small numbers among them, no NaN but the usual one."""
    random = np.random.default_rng(seed)
    if dtype.kind == "S":
        return np.asarray(random.integers(1, 1000, shape)).astype(dtype)
    if dtype.kind == "b":
        return np.asarray(random.integers(0, 2, shape)).astype(bool)
    count = int(np.prod(shape))
    array = np.frombuffer(random.bytes(count * dtype.itemsize), dtype).reshape(shape).copy()
    if dtype.kind in "iuf":
        small = np.asarray(random.integers(0, 5, shape)).astype(dtype)
        array = np.where(random.random(shape) < 0.5, small, array)
        if dtype.kind == "f":
            array[np.isnan(array)] = np.nan
    if dtype.kind == "c":
        array = np.nan_to_num(array)
    return np.asarray(array)


def same(ours, numpys):
    """True if two results are equal in type, shape and every bit."""
    ours = np.asarray(ours)
    numpys = np.asarray(numpys)
    assert ours.dtype == numpys.dtype, (ours.dtype, numpys.dtype)
    assert ours.shape == numpys.shape, (ours.shape, numpys.shape)
    if ours.dtype.kind == "f":
        assert np.array_equal(ours, numpys, equal_nan=True), (ours, numpys)
        holds = ~np.isnan(numpys)
        assert np.array_equal(np.signbit(ours)[holds], np.signbit(numpys)[holds]), (ours, numpys)
    else:
        assert ours.tobytes() == numpys.tobytes(), (ours, numpys)


def outcome(work):
    """The result, or the class of NumPy's error."""
    try:
        return work(), None
    except (IndexError, TypeError, ValueError, OverflowError, ZeroDivisionError) as error:
        kinds = (IndexError, TypeError, OverflowError, ZeroDivisionError, ValueError)
        return None, next(kind for kind in kinds if isinstance(error, kind))


shapes = hnp.array_shapes(min_dims=0, max_dims=4, min_side=0, max_side=7)
seeds = st.integers(0, 2**32 - 1)


@st.composite
def keys(draw, shape):
    """A key for a shape, now and then one that does not fit."""
    if draw(st.booleans()):
        key = draw(hnp.basic_indices(shape, allow_newaxis=True, allow_ellipsis=True))
        return key if isinstance(key, tuple) else (key,)
    parts = []
    for extent in shape[: draw(st.integers(0, len(shape)))]:
        kind = draw(st.sampled_from(["slice", "integer", "integers", "bools", "new", "wrong"]))
        if kind == "slice":
            parts.append(draw(st.slices(extent)))
        elif kind == "integer" and extent:
            parts.append(draw(st.integers(-extent, extent - 1)))
        elif kind == "integers" and extent:
            of = draw(st.sampled_from([(3,), (2, 3), (1,), (0,), ()]))
            parts.append(draw(hnp.arrays(np.int64, of, elements=st.integers(-extent, extent - 1))))
        elif kind == "bools":
            parts.append(draw(hnp.arrays(bool, extent)))
        elif kind == "new":
            parts.extend([None, slice(None)])
        elif kind == "wrong" and draw(st.integers(0, 9)) == 0:
            parts.append(draw(st.sampled_from([extent, -extent - 1, 1.5, [extent + 3], np.ones(extent + 1, bool)])))
        else:
            parts.append(slice(None))
    if draw(st.booleans()) and len(parts) < len(shape):
        parts.append(Ellipsis)
        if draw(st.booleans()) and shape[-1]:
            parts.append(draw(hnp.arrays(np.int64, (3,), elements=st.integers(0, shape[-1] - 1))))
    return tuple(parts)
