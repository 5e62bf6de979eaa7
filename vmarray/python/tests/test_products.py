"""Products compared with NumPy: by the package's own code, and by NumPy on copies."""

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import vmarray as vm
from conftest import FEW
from vmarray import _dispatch, _on_host, _products

DTYPES = "? i1 u2 i4 i8 f2 f4 f8 c8 c16 >f8 >i4".split()
SHAPES = [(), (3,), (4,), (0,), (3, 4), (4, 3), (0, 3), (3, 0), (2, 3, 4), (1, 4, 2), (5, 1, 3, 4), (1, 1)]


@pytest.fixture
def own(monkeypatch):
    """Lets the package compute products of any size itself."""
    monkeypatch.setattr(_dispatch, "RAM_BYTES_MAX", -1)


def items(shape, dtype, seed=0):
    """Small whole numbers, whose products have no rounding errors."""
    random, kind = np.random.default_rng(seed), np.dtype(dtype).kind
    found = random.integers(0 if kind == "u" else -3, 4, shape).astype("c16" if kind == "c" else "i8")
    if kind == "c":
        found = found + 1j * random.integers(-3, 4, shape)
    return np.asarray(found > 1 if kind == "b" else found).astype(dtype)


def compare(function, *args, **given):
    """Calls a function with NumPy's arrays and with the package's, and compares results or errors."""
    outcomes = []
    for convert in (lambda one: one, lambda one: vm.asarray(one) if isinstance(one, np.ndarray) else one):
        try:
            outcomes.append(function(*map(convert, args), **given))
        except (TypeError, ValueError, IndexError) as error:
            outcomes.append(error)
    numpys, ours = outcomes
    if isinstance(numpys, Exception):
        assert isinstance(ours, type(numpys)), (args, given, numpys, ours)
        return
    assert not isinstance(ours, Exception), (args, given, ours)
    assert isinstance(ours, vm.Array) == isinstance(numpys, np.ndarray)
    assert np.asarray(ours).dtype == numpys.dtype and np.shape(ours) == numpys.shape, (args, given)
    assert np.array_equal(np.asarray(ours), numpys, equal_nan=True), (args, given)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", "matmul dot inner vdot outer kron tensordot vecdot matvec vecmat".split())
def test_products_of_all_shapes(own, name, dtype):
    function = getattr(np, name, None)
    if function is None:
        pytest.skip("the installed NumPy has no such function")
    for one, other in itertools.product(SHAPES, SHAPES):
        compare(function, items(one, dtype), items(other, dtype, 1))


@given(st.data(), st.sampled_from(DTYPES), st.sampled_from(DTYPES), st.integers(0, 99))
def test_products_of_views(data, one, other, seed):
    m, k, n = (data.draw(st.integers(1, 9)) for _ in range(3))
    a, b = items((2, m, k), one, seed), items((2, k, n), other, seed + 1)
    ours = [vm.asarray(a, page_len=5), vm.asarray(b, page_len=5)]
    for number in range(2):
        way = data.draw(st.sampled_from(["plain", "transposed", "reversed", "steps", "broadcast"]))
        view = {
            "plain": lambda x: x,
            "transposed": lambda x: x.swapaxes(1, 2).copy().swapaxes(1, 2),
            "reversed": lambda x: x[:, ::-1, ::-1],
            "steps": lambda x: np.repeat(x, 2, 2)[..., ::2],
            "broadcast": lambda x: np.broadcast_to(x[:1], x.shape),
        }[way]
        a, b, ours[number] = (view(a), b, view(ours[0])) if number == 0 else (a, view(b), view(ours[1]))
    limit, _dispatch.RAM_BYTES_MAX = _dispatch.RAM_BYTES_MAX, -1
    try:
        found = [np.asarray(ours[0] @ ours[1]), np.asarray(np.einsum("aij,ajk->ik", *ours))]
    finally:
        _dispatch.RAM_BYTES_MAX = limit
    for mine, numpys in zip(found, [a @ b, np.einsum("aij,ajk->ik", a, b)]):
        assert mine.dtype == numpys.dtype and np.array_equal(mine, numpys)


def test_keywords_of_products(own):
    a, b = items((5, 3, 4), "f8"), items((5, 4, 2), "f8", 1)
    for given_axes in ([(0, 2), (1, 2), (0, 1)], [(1, 2), (1, 2), (2, 0)], [(1, 2), (1, 2), (0,)]):
        compare(np.matmul, a.transpose(1, 0, 2) if given_axes[0][0] == 0 else a, b, axes=given_axes)
    compare(np.matmul, a, b, dtype="f4")
    compare(np.matmul, items((2, 3), "i8"), items((3, 2), "i8"), dtype="i1")
    compare(np.matmul, items((2, 3), "i8"), items((3, 2), "i8"), dtype="i1", casting="unsafe")
    compare(np.vecdot, a, a, axis=1) if hasattr(np, "vecdot") else None
    for axes in (([0, 2], [0, 1]), ([0], [0]), (2, 1), ([0], [0, 1]), ([7], [0]), 0, 1, 3):
        compare(np.tensordot, a, b, axes=axes)
    out = vm.zeros((5, 3, 2))
    assert np.matmul(vm.asarray(a), vm.asarray(b), out=out) is out and np.array_equal(np.asarray(out), a @ b)
    assert np.matmul(vm.asarray(a), b, out=(out[::-1],)).shape == (5, 3, 2)
    assert np.array_equal(np.asarray(out)[::-1], a @ b)
    with pytest.raises(ValueError):
        np.matmul(vm.asarray(a), vm.asarray(b), out=vm.zeros((3, 2)))
    square = vm.asarray(items((3, 3), "i8"))
    expected = np.asarray(square) @ np.asarray(square)
    square @= square
    assert np.array_equal(np.asarray(square), expected)
    assert vm.asarray(items((3,), "i8")).dot([1, 2, 3]) == items((3,), "i8").dot([1, 2, 3])


@pytest.mark.parametrize(
    "labels",
    """ij,jk ij,jk->ki ij,jk,ka->ia ii ii->i ij->ji ij->j ij-> ...ij,jk->...ik ij,ij->ij ij,kl->ijkl ...j,...j i...->... ij,jk->iz
    ij,jk->ii ij,ik bij,bkj->bik i,i i,j ,i i1 ij,jk,ki i..j,j""".split(),
)
def test_sums_by_labels(own, labels):
    extents = {"i": 3, "j": 4, "k": 5, "l": 2, "b": 2, "a": 3}
    for dtype in ("i4", "f8", "c16", "?"):
        operands = [
            items(tuple(extents.get(one, 2) for one in term.replace("...", ".")), dtype, number)
            for number, term in enumerate(labels.split("->")[0].split(","))
        ]
        compare(np.einsum, labels, *operands)
    compare(np.einsum, "ij,j->i", items((3, 4), "i4"), items((1,), "i4"))
    a, b = items((3, 4), "f4"), items((4, 5), "f4")
    compare(np.einsum, a, [0, 1], b, [1, 2], [2, 0])
    compare(np.einsum, a, [Ellipsis, 1], b, [1, 2])
    compare(np.einsum, "ij,jk,kl", a, b, items((5, 2), "f4"), optimize=["einsum_path", (0, 1), (0, 1)])
    compare(np.einsum, "ij,jk", a, b, dtype="f8")


def test_norms(own):
    for dtype in ("i4", "f4", "f8", "c16"):
        a = items((3, 4), dtype)
        for order, axis, keepdims in itertools.product((None, 1, -1, np.inf, -np.inf, 3, 0, "fro"), (None, 0, (0, 1), (1, 0)), (False, True)):
            try:
                expected = np.linalg.norm(a, order, axis, keepdims)
            except ValueError:
                with pytest.raises(ValueError):
                    np.linalg.norm(vm.asarray(a), order, axis, keepdims)
                continue
            found = np.linalg.norm(vm.asarray(a), order, axis, keepdims)
            assert np.asarray(found).dtype == expected.dtype and np.shape(found) == expected.shape
            np.testing.assert_allclose(np.asarray(found), expected, rtol=1e-5)
    with pytest.raises(TypeError, match="numpy.asarray"):
        np.linalg.norm(vm.ones((3, 3)), 2)


def test_products_larger_than_a_tile(monkeypatch):
    monkeypatch.setattr(_products, "PRODUCT_BYTES", 0)
    random = np.random.default_rng(1)
    a, b = random.standard_normal((300, 700)), random.standard_normal((700, 200))
    for dtype in ("f4", "f8", "c16"):
        one, other = a.astype(dtype), b.astype(dtype)
        ours = vm.asarray(one, page_len=1000, cache_bytes=1 << 16) @ vm.asarray(other)
        np.testing.assert_allclose(np.asarray(ours), one @ other, rtol=1e-3 if dtype == "f4" else 1e-9, atol=1e-3)
    a[3, 4], b[7, 9] = np.inf, np.nan
    ours = np.asarray(vm.asarray(a) @ vm.asarray(b))
    assert np.array_equal(np.isfinite(ours), np.isfinite(a @ b))


def test_stacks_of_many_small_matrices(own):
    a, b = items((500, 3, 4), "i8"), items((4, 2), "i8")
    compare(np.matmul, a, b)


def test_a_closed_operand_is_an_error(own):
    a = vm.ones((4, 4))
    a.close()
    with pytest.raises(vm.ClosedError):
        vm.ones((4, 4)) @ a


def test_einsum_of_one_array_is_a_writable_view():
    for limit in (0, FEW):
        _on_host.ITEMS_MAX = limit
        a = vm.arange(9).reshape(3, 3)
        np.einsum("ii->i", a)[...] = -1
        np.einsum("ij->ji", a)[0] = 7
        assert a.tolist() == [[7, 1, 2], [7, -1, 5], [7, 7, -1]]
