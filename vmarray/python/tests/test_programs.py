"""Random programs compared with NumPy: views, functions, keywords and writes, on all kinds of operands."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

import vmarray as vm
from census import _is_same, _values_differ, has_advice, outcome_of
from conftest import FEW, divide, seeds, values
from vmarray import _on_host, _products

DTYPES = [np.dtype(name) for name in "? i1 i2 i8 u1 u2 u4 u8 f2 f4 f8 c8 c16 >i4 >u2 >f4 >f8 >c8 M8[s] m8[s] >m8[s] S3 U2".split()]
TWO = "add subtract multiply true_divide maximum minimum equal not_equal less less_equal logical_and bitwise_and bitwise_xor".split()
TWO += "floor_divide remainder left_shift fmax copysign".split()
ONE = "negative absolute sqrt square logical_not invert isnan sign rint conjugate signbit isfinite trunc".split()
OVER = "sum prod max min any all argmax mean var cumsum count_nonzero".split()
WHOLE = "sort argsort unique flip transpose ravel round nan_to_num clip roll diff concatenate repeat where take isclose".split()
PRODUCTS = {
    "matmul": lambda np, a, b: a @ b.T, "dot": lambda np, a, b: np.dot(a.T, b), "inner": lambda np, a, b: np.inner(a, b),
    "vdot": lambda np, a, b: np.vdot(a, b), "tensordot": lambda np, a, b: np.tensordot(a, b, (-1, -1)),
    "einsum": lambda np, a, b: np.einsum("...i,...i->...", a, b), "outer": lambda np, a, b: np.outer(a[:2], b[:3]),
    "trace": lambda np, a, b: np.trace(a), "diagonal": lambda np, a, b: np.einsum("ii->i", a),
}  # fmt: skip
STEPS = "view view two two two one over whole product product write write mask in_place astype where_out copy reshape list".split()
KEYS = [np.s_[1:], np.s_[::2], np.s_[::-1], np.s_[..., :1], np.s_[..., None], np.s_[..., 0], np.s_[:, ::2], np.s_[[1, 0]], np.s_[0]]


class _Case:
    """The attributes of a case that the census compares."""

    name = "numpy.sum"

    def __init__(self, main):
        self.main, self.args, self.keywords = main, [main], {}


def _equal(ours, numpys, step):
    """Compares two results; returns True if no bit differs by rounding."""
    mine = np.asarray(ours)
    assert mine.dtype == np.asarray(numpys).dtype, (step, mine.dtype, np.asarray(numpys).dtype)
    assert mine.shape == np.shape(numpys), (step, mine.shape, np.shape(numpys))
    with np.errstate(all="ignore"):
        why = _values_differ(_Case(np.asarray(numpys)), mine, np.asarray(numpys))
    assert not why, (step, mine, numpys, why)
    return _is_same(mine, np.asarray(numpys))


def _whole(name, draw, array, other):
    axis = draw(st.sampled_from([None, 0, -1]))
    number = draw(st.integers(-2, 3))
    return {
        "sort": lambda: np.sort(array, axis=-1, kind="stable"),
        "argsort": lambda: np.argsort(array, axis=-1, kind="stable"),
        "unique": lambda: np.unique(array),
        "flip": lambda: np.flip(array, axis),
        "transpose": lambda: np.transpose(array),
        "ravel": lambda: np.ravel(array),
        "round": lambda: np.round(array, max(0, number)),
        "nan_to_num": lambda: np.nan_to_num(array),
        "clip": lambda: np.clip(array, number, 5),
        "roll": lambda: np.roll(array, number, axis),
        "diff": lambda: np.diff(array, axis=-1),
        "concatenate": lambda: np.concatenate([array, other], axis=None),
        "repeat": lambda: np.repeat(array, 2, axis),
        "where": lambda: np.where(array == array, array, other),
        "take": lambda: np.take(array, [0, -1], axis=0),
        "isclose": lambda: np.isclose(array, other),
    }[name]


@given(st.data(), st.sampled_from(DTYPES), seeds)
def test_programs_of_any_operands(data, dtype, seed):
    draw = data.draw
    _on_host.ITEMS_MAX = draw(st.sampled_from([0, FEW]))
    divide(draw(st.booleans()))
    # The package multiplies, or NumPy on copies.
    _products.PRODUCT_BYTES = draw(st.sampled_from([-1, 1 << 20]))
    own = _small(values((4, 6), dtype, seed), seed)
    options = {"devices": "host"} if _on_host.ITEMS_MAX else {"page_len": 3}
    pairs = [(vm.asarray(own, **options), own.copy())]
    for number in range(draw(st.integers(3, 12))):
        (ours, numpys), (more, others) = (draw(st.sampled_from(pairs)) for _ in range(2))
        step = draw(st.sampled_from(STEPS))
        form = draw(st.sampled_from(["pair", "numpy", "number", "list", "fresh"]))
        if form == "fresh":
            others = _small(values(numpys.shape, draw(st.sampled_from(DTYPES)), seed + number), seed)
            more = vm.asarray(others)
        elif form == "numpy":
            more = others = others.copy()
        elif form == "number":
            more = others = draw(st.sampled_from([0, 1, 3, -1, 2.5, True, 300, 1j]))
        elif form == "list":
            more = others = np.zeros(numpys.shape, int).tolist()
        if step in ("write", "where_out") and numpys.dtype.kind in "iu" and np.asarray(others).dtype.kind in "fc":
            # An intended difference: floats that no integer equals.
            continue
        work, shown = _step(draw, step)
        before = numpys.copy()
        (theirs, error), (mine, mistake) = outcome_of(lambda: work(numpys, others)), outcome_of(lambda: work(ours, more))  # noqa: B023
        what = (number, shown, dtype, numpys.dtype, getattr(others, "dtype", others))
        if mistake is not None and error is None:
            assert isinstance(mistake, TypeError) and has_advice(mistake), (what, mistake)
            if not np.array_equal(before, numpys, equal_nan=dtype.kind in "fc"):
                return
            continue
        assert (error is None) == (mistake is None), (what, error, mine)
        if error is not None:
            # NumPy may have written some items before it refused one.
            if step in ("write", "mask", "in_place", "where_out"):
                return
            continue
        # A later step could widen a rounding that differs, so it takes no such array.
        if theirs is None:
            if not _equal(ours, numpys, what):
                return
        elif isinstance(theirs, np.ndarray) and isinstance(mine, vm.Array) and theirs.size <= 500 and theirs.ndim <= 4:
            if _equal(mine, theirs, what):
                pairs.append((mine, theirs))
        else:
            _equal(mine, theirs, what)
    for ours, numpys in pairs:
        _equal(ours, numpys, "at the end")


def _small(items, seed):
    """Numbers whose sums and products are exact, for the most part."""
    if items.dtype.kind in "fc":
        small = np.random.default_rng(seed).integers(-3, 5, items.shape).astype(items.dtype)
        items = np.where(np.random.default_rng(seed + 1).random(items.shape) < 0.9, small, items * 0).astype(items.dtype)
    return items


def _step(draw, step):
    """Draws a step: a function of an array and another operand, and the tuple that describes it."""
    if step == "view":
        key = draw(st.sampled_from(KEYS))
        return (lambda a, b: a[key]), (step, key)
    if step == "two":
        name = draw(st.sampled_from(TWO))
        given = {"dtype": draw(st.sampled_from(["f8", "i8", "c16"]))} if draw(st.integers(0, 5)) == 0 else {}
        swapped = draw(st.booleans())
        function = getattr(np, name)
        return (lambda a, b: function(b, a, **given) if swapped else function(a, b, **given)), (step, name, given, swapped)
    if step == "one":
        function = getattr(np, draw(st.sampled_from(ONE)))
        return (lambda a, b: function(a)), (step, function)
    if step == "over":
        name = draw(st.sampled_from(OVER))
        given = {"axis": draw(st.sampled_from([None, 0, -1]))}
        if name != "cumsum" and draw(st.booleans()):
            given["keepdims"] = True
        if name in ("sum", "max", "any") and draw(st.integers(0, 3)) == 0:
            given |= {"initial": 0} if name != "any" else {}
            given["where"] = True
        return (lambda a, b: getattr(np, name)(a, **given)), (step, name, given)
    if step == "whole":
        name = draw(st.sampled_from(WHOLE))
        drawn = [draw(st.sampled_from([None, 0, -1])), draw(st.integers(-2, 3))]
        return (lambda a, b: _whole(name, lambda _, left=iter(drawn): next(left), a, b)()), (step, name, drawn)
    if step == "product":
        name = draw(st.sampled_from([*PRODUCTS]))
        return (lambda a, b: PRODUCTS[name](np, a, b)), (step, name)
    if step == "write":
        key = draw(st.sampled_from([Ellipsis, np.s_[1:], np.s_[::2], np.s_[[0, -1]], np.s_[0], np.s_[..., -1]]))
        return (lambda a, b: a.__setitem__(key, b)), (step, key)
    if step == "mask":
        return (lambda a, b: a.__setitem__(a == a.reshape(-1)[0], b if not np.ndim(b) else 1)), (step,)
    if step == "in_place":
        name = draw(st.sampled_from(["add", "multiply", "subtract", "bitwise_or", "maximum"]))
        return (lambda a, b: getattr(np, name)(a, b, out=a) is None or None), (step, name)
    if step == "astype":
        to = draw(st.sampled_from(DTYPES))
        return (lambda a, b: a.astype(to) if a.dtype.kind not in "fc" or to.kind in "fcb" else a.copy()), (step, to)
    if step == "where_out":
        return (lambda a, b: np.add(a, b, out=a, where=a == a) is None or None), (step,)
    if step == "reshape":
        order = draw(st.sampled_from(["C", "F"]))
        return (lambda a, b: a.reshape((-1, 2), order=order)), (step, order)
    if step == "list":
        return (lambda a, b: a + [1] * (a.shape[-1] if a.ndim else 1)), (step,)
    return (lambda a, b: a.copy()), (step,)
