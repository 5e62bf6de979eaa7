"""Cases compared with NumPy: public functions and methods of the package, with arguments by the names of their
parameters. A case is one call of NumPy's function and the same call of the package's."""

import inspect
import operator
import warnings
import zlib

import numpy as np

import vmarray as vm
from conftest import divide
from vmarray import _dispatch, _functions, _large, _on_host, _products, _ufuncs

#: The most items of operands that NumPy computes.
FEW = _on_host.ITEMS_MAX
#: All dtypes that arrays have.
DTYPES = [np.dtype(name) for name in "? i1 i2 i4 i8 u1 u2 u4 u8 f2 f4 f8 c8 c16 S3 U2 M8[s] m8[s] M8[D]".split()]
DTYPES += [np.dtype(name) for name in ">i2 >i4 >u8 >f2 >f4 >f8 >c16 >U2 >M8[s] >m8[s]".split()]
DTYPES += [np.dtype([("x", "f4"), ("y", "i8")]), np.dtype([("x", ">i2"), ("y", "S2")])]
#: Dtypes of numbers, which are drawn more often.
NUMBERS = [one for one in DTYPES if one.kind in "biuf"]
SHAPES = [(), (0,), (1,), (5,), (7,), (3, 4), (2, 3), (1, 3), (2, 0), (2, 3, 2), (1, 1), (64,)]
ERRORS = (TypeError, ValueError, IndexError, OverflowError, ZeroDivisionError, NotImplementedError, AttributeError)
ERRORS += (RuntimeError, AssertionError, MemoryError)
#: The classes that an error has if NumPy's has them.
CLASSES = (TypeError, ValueError, IndexError, OverflowError, ZeroDivisionError)

_INTEGERS = [one for one in DTYPES if one.kind in "iub"]
_DATES = [one for one in DTYPES if one.kind in "mM"]
#: The dtypes that most cases of a function have, which takes few.
POOLS = dict.fromkeys(
    "bitwise_and bitwise_or bitwise_xor bitwise_not bitwise_invert bitwise_count invert bitwise_left_shift lshift or_ "
    "bitwise_right_shift left_shift right_shift gcd lcm bincount and_ xor rshift ilshift irshift iand ior ixor".split(),
    _INTEGERS,
)
POOLS |= dict.fromkeys("isnat datetime_as_string".split(), _DATES) | {"is_busday": [np.dtype("M8[D]")]}
POOLS |= dict.fromkeys(["packbits", "unpackbits"], [np.dtype("u1"), np.dtype("?")])
POOLS |= dict.fromkeys(
    "ldexp heaviside nextafter spacing frexp modf logaddexp logaddexp2 hypot arctan2 histogram float_power".split(), NUMBERS
)


class Case:
    """One call: the arguments of NumPy's, and from these the package's."""

    def __init__(self, name, seed):
        self.name, self.seed = name, seed
        self.random = np.random.default_rng([seed, zlib.crc32(name.encode())])
        self.main, self.is_wide = None, False

    def one_of(self, values):
        return values[int(self.random.integers(len(values)))]

    def chance(self, share):
        return self.random.random() < share

    def dtype(self):
        pool = POOLS.get(self.name.split(".")[1])
        if pool is not None and self.chance(0.8):
            return self.one_of(pool)
        return self.one_of(NUMBERS if self.chance(0.55) else DTYPES)

    def values(self, shape, dtype):
        """Items of a dtype: small numbers, now and then extremes, infinities, NaNs and zeroes with a sign."""
        count = int(np.prod(shape))
        small = self.random.integers(-4 if dtype.kind not in "uSU" else 0, 9, count)
        if dtype.kind == "V":
            items = np.zeros(count, dtype)
            for field in dtype.names:
                items[field] = self.values((count,), dtype[field])
            return items.reshape(shape)
        if dtype.kind == "b":
            return (small > 2).reshape(shape)
        if dtype.kind in "fc":
            items = small * self.one_of([1.0, 0.25, 1.1])
            if dtype.kind == "c":
                items = items + 1j * self.random.integers(-3, 4, count)
            if self.chance(0.2):
                # Of all sizes.
                items = items * 10.0 ** self.random.uniform(*((-4, 3) if dtype.itemsize == 2 else (-30, 30)), count)
            if self.chance(0.3):
                rare = np.array([np.nan, np.inf, -np.inf, -0.0, 0.0, 1e4, -1e-4])
                items = np.where(self.random.random(count) < 0.3, self.random.choice(rare, count), items)
            return items.astype(dtype).reshape(shape)
        if dtype.kind in "iu" and self.chance(0.3) and self.name != "numpy.bincount":
            limits = np.iinfo(dtype)
            ends = np.array([limits.min, limits.max, limits.max - 1], dtype)
            return np.where(self.random.random(count) < 0.3, self.random.choice(ends, count), small.astype(dtype)).astype(dtype).reshape(shape)
        if dtype.kind in "mM" and self.chance(0.2):
            items = small.astype(dtype)
            items[self.random.random(count) < 0.3] = "NaT"
            return items.reshape(shape)
        return small.astype(dtype).reshape(shape)

    def array(self, shape=None, dtype=None):
        """An array of NumPy, whose items lie side by side, or in steps, or in another order."""
        shape = self.one_of(SHAPES) if shape is None else shape
        dtype = self.dtype() if dtype is None else dtype
        way = self.one_of(["plain"] * 4 + ["strided", "reversed", "transposed", "field"])
        if not shape or way == "plain":
            return self.values(shape, dtype)
        if way == "strided":
            return self.values((*shape[:-1], 2 * shape[-1] + 1), dtype)[..., 1::2]
        if way == "reversed":
            return self.values(shape, dtype)[::-1]
        if way == "field":
            whole = np.zeros(shape, [("a", "i2"), ("b", dtype)])
            whole["b"] = self.values(shape, dtype)
            return whole["b"]
        return self.values(shape[::-1], dtype).T

    def like(self, of, share_same=0.5):
        """Another operand for an array: of a shape that is broadcast with it, and often of its dtype."""
        shape = tuple(extent if self.chance(0.8) else 1 for extent in of.shape)
        shape = shape[int(self.random.integers(len(shape) + 1)) :] if self.chance(0.25) else shape
        dtype = of.dtype if self.chance(share_same) else self.dtype()
        items = self.array(shape, dtype)
        form = self.one_of(["ours", "ours", "numpys", "list", "number"])
        if form == "list" and dtype.kind in "biufc":
            return items.tolist()
        if form == "number" and dtype.kind in "biufc":
            number = self.values((), dtype)[()]
            return number.item() if self.chance(0.7) else number
        return Theirs(items) if form == "numpys" else items


class Theirs:
    """An array of NumPy that stays one in the call of the package's."""

    def __init__(self, items):
        self.items = items


def numpys(value):
    """An argument of NumPy's call, which no other call sees."""
    if isinstance(value, Theirs):
        return numpys(value.items)
    if isinstance(value, np.ndarray):
        return based(value)
    if type(value) in (list, tuple):
        return type(value)(map(numpys, value))
    return value


def based(array):
    """A copy that lies in memory as an array does."""
    base = array
    while isinstance(base.base, np.ndarray):
        base = base.base
    if not array.size or base is array or array.dtype.hasobject:
        return array.copy()
    whole = base.copy()
    offset = array.__array_interface__["data"][0] - base.__array_interface__["data"][0]
    return np.ndarray(array.shape, array.dtype, whole.reshape(-1).view(np.uint8).data, offset, array.strides)


def ours(value):
    """The same argument of the package's call, which lies as NumPy's does."""
    if isinstance(value, Theirs):
        return numpys(value.items)
    if isinstance(value, np.ndarray):
        return placed(value)
    if type(value) in (list, tuple):
        return type(value)(map(ours, value))
    return value


def placed(array):
    """An array of the package with the steps of one of NumPy."""
    if array.ndim and array.size:
        reverse = tuple(slice(None, None, -1) if stride < 0 else slice(None) for stride in array.strides)
        straight = array[reverse]
        if straight.ndim > 1 and straight.flags.f_contiguous and not straight.flags.c_contiguous:
            return vm.asarray(np.ascontiguousarray(straight.T)).T[reverse]
        if straight.strides[-1] == array.itemsize + 2:
            whole = np.zeros(array.shape, [("a", "i2"), ("b", array.dtype)])
            if straight.strides == whole["b"].strides:
                whole["b"] = straight
                return vm.asarray(whole)["b"][reverse]
        if straight.strides[-1] == 2 * array.itemsize:
            whole = np.zeros((*array.shape[:-1], 2 * array.shape[-1] + 1), array.dtype)
            whole[..., 1::2] = straight
            return vm.asarray(whole)[..., 1::2][reverse]
        return vm.asarray(np.ascontiguousarray(straight))[reverse]
    return vm.asarray(array)


# Arguments by parameter name.


def _axis(case, of):
    ndim = max(1, getattr(of, "ndim", 1))
    ways = [None, 0, -1, int(case.random.integers(-ndim, ndim))]
    if case.name.split(".")[-1] in _AXES:
        ways += [tuple(range(ndim)), (0, -1)[: min(2, ndim)], ()]
    return case.one_of(ways) if case.chance(0.95) else 5


_AXES = set("sum prod mean var std min max any all ptp nansum nanmin nanmax squeeze flip count_nonzero median".split())
_AXES |= set("quantile percentile expand_dims average nanmean nanstd nanvar nanprod roll amin amax".split())


def _mask(case, of):
    shape = getattr(of, "shape", ())
    return np.array(case.random.random(shape if case.chance(0.7) else shape[-1:]) < 0.6)


def _number(*values):
    return lambda case, of: case.one_of(values)


KEYWORDS = {
    "axis": _axis,
    "dtype": lambda case, of: case.one_of(["f8", "f4", "i8", "i2", "u1", "c16", "?", ">f8", "f2"]) if case.chance(0.9) else of.dtype,
    "keepdims": _number(True, False),
    "initial": _number(0, 1, 3, 2.5, -1),
    "where": _mask,
    "ddof": _number(0, 1, 2, 0.5),
    "correction": _number(1, 0),
    "casting": _number("same_kind", "safe", "unsafe", "no", "equiv"),
    "order": _number("C", "K", "A", "F"),
    "kind": _number("stable", "quicksort", "heapsort", "mergesort", None),
    "stable": _number(True, False, None),
    "side": _number("left", "right"),
    "decimals": _number(0, 1, -1, 2),
    "n": _number(0, 1, 2),
    "k": _number(0, 1, 2, 3, -1),
    "rtol": _number(1e-5, 0.1, 0),
    "atol": _number(1e-8, 0.5, 0),
    "equal_nan": _number(True, False),
    "invert": _number(True, False),
    "assume_unique": _number(False),
    "copy": _number(True, False),
    "nan": _number(0.0, 7, 1.5),
    "posinf": _number(None, 9),
    "neginf": _number(None, -9),
    "minlength": _number(0, 3, 20),
    "density": _number(True, False),
    "method": _number("linear", "lower", "higher", "midpoint", "nearest", "hazen"),
    "return_index": _number(True, False),
    "return_inverse": _number(True, False),
    "return_counts": _number(True, False),
    "sorted": _number(True),
    "returned": _number(True, False),
    "subok": _number(True, False),
    "offset": _number(0, 1, -1),
    "axis1": _number(0, 1),
    "axis2": _number(1, 0),
    "bins": lambda case, of: case.one_of([5, 10, [0, 1, 2, 5], np.array([0.0, 2.5, 9])]),
    "range": _number((0, 5), (-2, 8), None),
    "shape": _number((2, 3), (4,), ()),
    "overwrite_input": _number(True, False),
    "mode": lambda case, of: case.one_of(_MODES.get(case.name.split(".")[-1], ["raise"])),
    "weights": lambda case, of: case.like(of) if case.chance(0.5) else case.array(of.shape, np.dtype("f8")),
    "min": lambda case, of: case.like(of),
    "max": lambda case, of: case.like(of),
    "a_min": lambda case, of: case.like(of),
    "a_max": lambda case, of: case.like(of),
    "prepend": _number(0, 1.5),
    "append": _number(0, 2),
    "sorter": lambda case, of: np.argsort(of, kind="stable") if of.ndim == 1 else None,
    "axes": lambda case, of: tuple(case.random.permutation(of.ndim).tolist()),
    "fill_value": _number(3, 0, 2.5, -1),
    "weak": _number(None),
}
_MODES = {"take": ["raise", "wrap", "clip"], "pad": ["constant", "edge", "reflect", "symmetric", "wrap", "empty", "maximum"]}
#: Parameters of which a case has none: `like=` is for functions without arrays, `out` is apart.
_LEFT_OUT = {"like", "device", "interpolation", "mean", "args", "kwargs", "signature", "extobj"}


def _list_of(case, of):
    if case.chance(0.1):
        return [of, case.one_of([0, 2.5, [1, 2], True])]
    return [of, *(case.array(of.shape, of.dtype if case.chance(0.5) else None) for _ in range(int(case.random.integers(0, 3))))]


def _indices(case, of):
    axis = case.given.get("axis")
    is_along = axis is not None and -of.ndim <= axis < of.ndim
    extent = max(1, of.shape[axis] if is_along else of.size)
    shape = case.one_of([(), (3,), (2, 2), (0,)])
    items = case.random.integers(-extent, extent, shape)
    return case.one_of([items, items.tolist(), Theirs(items), items % extent])


#: Further arguments of functions that need them.
REQUIRED = {
    "b": lambda case, of: case.like(of),
    "x2": lambda case, of: case.like(of),
    "v": lambda case, of: case.like(of, 0.8),
    "a1": lambda case, of: case.like(of),
    "a2": lambda case, of: case.like(of, 0.9),
    "values": lambda case, of: case.like(of, 0.8),
    "test_elements": lambda case, of: case.like(of, 0.8),
    "indices": _indices,
    "indices_or_sections": lambda case, of: case.one_of([1, 2, 3, [1, 2], [0, 5]]),
    "repeats": lambda case, of: case.one_of([0, 1, 2, 3, -1, [1, 2]]),
    "reps": lambda case, of: case.one_of([0, 1, 2, (2, 1), (1, 2, 2)]),
    "shift": lambda case, of: case.one_of([0, 1, -1, 9, (1, 2)]),
    "pad_width": lambda case, of: case.one_of([0, 1, (1, 2), 2, -1]),
    "newshape": lambda case, of: case.one_of([-1, (of.size,), of.shape[::-1], (1, *of.shape), (5, 5)]),
    "shape": lambda case, of: case.one_of([(2, *of.shape), of.shape, (of.size,), -1]),
    "source": lambda case, of: case.one_of([0, -1, (0, 1)]),
    "destination": lambda case, of: case.one_of([-1, 0, (1, 0)]),
    "axis1": lambda case, of: case.one_of([0, -1, 1]),
    "axis2": lambda case, of: case.one_of([0, 1, -1]),
    "axis": _axis,
    "kth": lambda case, of: case.one_of([0, -1, 1, 9]),
    "q": lambda case, of: case.one_of([0.5, 0, 1, 0.3, [0.1, 0.9]]) if "quantile" in case.name else case.one_of([50, 0, 100, 33.3, [10, 90]]),
    "fill_value": lambda case, of: case.one_of([3, 0, 2.5, -1]),
    "device": lambda case, of: "cpu",
    "dtype": KEYWORDS["dtype"],
    "src": lambda case, of: case.like(of),
    "x": lambda case, of: case.like(of),
    "y": lambda case, of: case.like(of),
    "to": lambda case, of: case.dtype(),
    "as": lambda case, of: case.one_of([one for one in DTYPES if one.itemsize == of.itemsize]) if case.chance(0.6) else case.dtype(),
    "min": lambda case, of: case.like(of),
    "max": lambda case, of: case.like(of),
}
#: Names of parameters that are the first array, or a list of arrays.
_LISTS = {"arrays", "tup", "array_list"}


def _few(case, of, ndim, share=0.9):
    """An array of few axes, of numbers mostly."""
    return case.array(case.one_of([(5,), (7,), (1,)] if ndim == 1 else [(3, 4), (2, 3), (1, 3)]), case.one_of(NUMBERS) if case.chance(share) else of.dtype)


def _case(*makers, **possible):
    """A function that draws a case: positional arguments by names of `_DRAWN`, and keywords, drawn now and then."""

    def draw(case, of):
        args = []
        for one in makers:
            args.append(_DRAWN[one](case, of) if isinstance(one, str) else one(case, of))
            if one in ("line", "table"):
                of = case.main = args[-1]
        given = {name: case.one_of(values) if isinstance(values, list) else KEYWORDS[name](case, of) for name, values in possible.items() if case.chance(0.3)}
        return args, given

    return draw


def _multiplied(case, *shapes):
    """Two operands of a product, mostly of the same dtype."""
    case.main = case.array(shapes[0], case.one_of(_PRODUCT_DTYPES))
    return [case.main, case.array(shapes[1], case.main.dtype if case.chance(0.6) else case.one_of(_PRODUCT_DTYPES))]


def _labelled(case):
    """Labels for ``einsum``, and operands of these labels."""
    text = case.one_of(["ij->i", "ij,jk", "ij,jk->ki", "ii", "ij->ji", "ij,j->i", "i,i", "...j,j->...", "ij,ij->ij", "ij,kj", "ij,jk,k", "i...->...i"])
    extents = {"i": 3, "j": 2, "k": 4, "...": 2}
    terms = text.split("->")[0].replace("...", ".").split(",")
    shapes = [tuple(extents["..." if label == "." else label] for label in term) for term in terms]
    case.main = case.array(shapes[0], case.one_of(_PRODUCT_DTYPES))
    return [text, case.main, *(case.array(shape, case.main.dtype if case.chance(0.7) else case.one_of(_PRODUCT_DTYPES)) for shape in shapes[1:])]


_PRODUCT_DTYPES = [one for one in DTYPES if one.kind in "biufc"]


def _same_shape(case, of):
    return case.array(of.shape, of.dtype if case.chance(0.7) else None)


def _sorted_floats(case, of):
    return np.sort(case.random.integers(0, 9, 4)).astype(case.one_of(["f8", "i8", "f4"]))


def _grid_key(case, of):
    return case.one_of([(of, 3), (of, of), (3, of)]) if of.ndim == 1 else (slice(0, 3), slice(0, 5, 2j))


def _along(case, of):
    axis = int(case.random.integers(0, max(1, of.ndim)))
    shape = tuple(2 if number == axis else extent for number, extent in enumerate(of.shape))
    extent = of.shape[axis] if of.ndim else 1
    return axis, case.random.integers(-extent, max(1, extent), shape)


def _take_along(case, of):
    axis, places = _along(case, of)
    return [of, places, axis] if case.chance(0.8) or not of.ndim else [of, places.ravel(), None], {}


def _put_along(case, of):
    axis, places = _along(case, of)
    return [of, places, case.like(of) if not of.ndim else case.one_of([0, 1, 3]), axis], {}


_DRAWN = {
    "of": lambda case, of: of,
    "like": lambda case, of: case.like(of),
    "same": _same_shape,
    "line": lambda case, of: _few(case, of, 1),
    "table": lambda case, of: _few(case, of, 2),
    "other": lambda case, of: _few(case, of, 1),
    "mask": lambda case, of: Theirs(_mask(case, of)) if case.chance(0.5) else _mask(case, of),
    "whole mask": lambda case, of: np.array(case.random.random(of.shape) < 0.5),
    "line mask": lambda case, of: np.array(case.random.random(case.one_of([of.shape[0] if of.ndim else 1, 2])) < 0.5),
    "place": lambda case, of: case.one_of([0, 1, -1, 9, slice(1, 3), slice(None, None, 2), [0, 1], [0, 0, -1], []]),
    "places": lambda case, of: case.one_of([0, -1, [0, 1], [[0, 1]], 99, Theirs(np.array([1, 0, 0]))]),
    "list": lambda case, of: _list_of(case, of),
    "number": lambda case, of: case.one_of([0, 1, 2.5, 3]),
    "bins": lambda case, of: case.one_of([[0, 1, 4, 6], [6.5, 2, 0], np.array([0.0, 2.0, 5.0]), [3, 1, 5]]),
    "grid": _sorted_floats,
    "shape": lambda case, of: case.one_of([(2, 3), 7, (0,), (3, 2, 2), 1]),
    "masks": lambda case, of: [np.array(case.random.random(of.shape) < 0.4) for _ in range(2)],
    "choices": lambda case, of: [_same_shape(case, of) if case.chance(0.7) else 3 for _ in range(2)],
    "small": lambda case, of: case.random.integers(0, 2, of.shape),
    "few": lambda case, of: case.one_of([0, 1, 2]),
    "axis": lambda case, of: int(case.random.integers(-max(1, of.ndim), max(1, of.ndim))),
    "dtype": lambda case, of: np.dtype(KEYWORDS["dtype"](case, of)),
}
_ANY = {"axis": None, "dtype": None}
#: Cases of functions that NumPy computes on copies, or the package for larger arrays.
CASES = {
    "angle": _case("of", deg=[True, False]),
    "apply_along_axis": _case(lambda case, of: case.one_of([np.sum, np.sort, np.max]), "axis", "of"),
    "apply_over_axes": _case(lambda case, of: case.one_of([np.sum, np.max]), "of", lambda case, of: case.one_of([0, [0], (0, -1)])),
    "array_equiv": _case("of", "like"),
    "astype": _case("of", "dtype", copy=[True, False]),
    "block": lambda case, of: ([case.one_of([[of, of], [[of], [of]], [of], of, [[of, of], [of, of]]])], {}),
    "choose": _case("small", "choices", mode=["raise", "wrap", "clip"]),
    "compress": _case("line mask", "of", axis=None),
    "convolve": _case("line", "other", mode=["full", "same", "valid"]),
    "correlate": _case("line", "other", mode=["full", "same", "valid"]),
    "cov": _case("table", ddof=[0, 1, None], bias=[True, False], rowvar=[True, False]),
    "corrcoef": _case("table", rowvar=[True, False]),
    "cross": lambda case, of: ([_few(case, of, 2)[:, :3], _few(case, of, 2)[:1, :3]], {}),
    "cumulative_sum": _case("of", axis=None, dtype=None, include_initial=[True, False]),
    "cumulative_prod": _case("of", axis=None, dtype=None, include_initial=[True, False]),
    "delete": _case("of", "place", axis=None),
    "diag": _case("of", k=None),
    "diagflat": _case("of", k=None),
    "digitize": _case("of", "bins", right=[True, False]),
    "dot": _case("table", lambda case, of: case.one_of([2, case.array((of.shape[1], 2), of.dtype), case.array((of.shape[1],), of.dtype)])),
    "ediff1d": _case("of", to_end=[[1], 2], to_begin=[[1, 2], 0]),
    "einsum": lambda case, of: (_labelled(case), {}),
    "extract": _case("whole mask", "of"),
    "fill_diagonal": _case("table", lambda case, of: case.one_of([1, [1, 2], 3]), wrap=[True, False]),
    "gradient": _case("of", edge_order=[1, 2], axis=None),
    "histogram2d": _case("line", lambda case, of: case.array(of.shape, of.dtype), bins=[3, [0, 2, 5]], density=[True]),
    "histogramdd": _case("table", bins=[3]),
    "histogram_bin_edges": _case("of", bins=None, range=None),
    "inner": _case("table", lambda case, of: case.one_of([2, case.array(of.shape, of.dtype), case.array((of.shape[1],), of.dtype)])),
    "insert": _case("of", "place", lambda case, of: case.one_of([0, 1, [3], [1, 2]]), axis=None),
    "interp": _case("of", "grid", lambda case, of: case.random.integers(0, 9, 4).astype("f8"), left=[0, 1.5], right=[0, 2.5], period=[3.0]),
    "intersect1d": _case("of", "like", return_indices=[True, False]),
    "ix_": _case("line", "other"),
    "kron": _case("of", "like"),
    "lexsort": lambda case, of: ([[of, _same_shape(case, of)]], _drawn(case, of, ["axis"], 0.2)),
    "nancumprod": _case("of", axis=None, dtype=None),
    "nancumsum": _case("of", axis=None, dtype=None),
    "nanmedian": _case("of", axis=None, keepdims=None),
    "nanpercentile": _case("of", lambda case, of: REQUIRED["q"](case, of), axis=None, keepdims=None),
    "nanquantile": _case("of", lambda case, of: REQUIRED["q"](case, of), axis=None, keepdims=None),
    "outer": _case("of", "like"),
    "piecewise": _case("of", lambda case, of: [np.array(case.random.random(of.shape) < 0.5)], lambda case, of: case.one_of([[1, 2], [np.negative, 0]])),
    "place": _case("of", "whole mask", lambda case, of: case.one_of([[1, 2, 3], [0], 4])),
    "put": _case("of", "places", lambda case, of: case.one_of([0, [1, 2], 3]), mode=["raise", "wrap", "clip"]),
    "put_along_axis": _put_along,
    "putmask": _case("of", "whole mask", lambda case, of: case.one_of([[1, 2, 3], 0, case.array(of.shape, of.dtype)])),
    "polyval": _case("line", "other"),
    "resize": _case("of", "shape"),
    "select": _case("masks", "choices", default=[0, 1]),
    "setdiff1d": _case("of", "like"),
    "setxor1d": _case("of", "like"),
    "take_along_axis": _take_along,
    "tensordot": _case("table", lambda case, of: case.array(of.shape[::-1], of.dtype), axes=[1, 0, 2, ([0], [1]), ([0, 1], [1, 0]), (0, 0)]),
    "matmul": lambda case, of: (_multiplied(case, case.one_of([(3,), (2, 3), (2, 2, 3)]), case.one_of([(3,), (3, 2), (2, 3, 4), (4, 2)])), {}),
    "matvec": lambda case, of: (_multiplied(case, case.one_of([(2, 3), (2, 2, 3)]), case.one_of([(3,), (2, 3), (4,)])), {}),
    "vecdot": lambda case, of: (_multiplied(case, case.one_of([(3,), (2, 3)]), case.one_of([(3,), (2, 3), (4,)])), {}),
    "vecmat": lambda case, of: (_multiplied(case, case.one_of([(3,), (2, 3)]), case.one_of([(3, 2), (2, 3, 4), (4, 2)])), {}),
    "trace": _case("of", offset=None, dtype=None),
    "trapezoid": _case("of", dx=[1.0, 0.5], axis=None),
    "tril": _case("of", k=None),
    "triu": _case("of", k=None),
    "union1d": _case("of", "like"),
    "unravel_index": _case("small", lambda case, of: (3, 4)),
    "vander": _case("line", "few"),
    "vdot": _case("line", lambda case, of: case.array(of.shape, of.dtype)),
} | dict.fromkeys("argwhere fix i0 iscomplex isneginf isposinf isreal nanargmax nanargmin real_if_close sinc sort_complex unique_all trim_zeros".split(), _case("of"))
CASES |= dict.fromkeys("common_type min_scalar_type packbits unpackbits is_busday datetime_as_string".split(), _case("of"))
CASES |= dict.fromkeys("poly roots polyder polyint".split(), _case("line")) | dict.fromkeys("tril_indices_from triu_indices_from".split(), _case("table", k=None))
CASES |= dict.fromkeys("polyadd polysub polymul polydiv".split(), _case("line", "other"))
CASES["diag_indices_from"] = lambda case, of: ([case.array((3, 3), of.dtype)], {})
CASES["dsplit"] = lambda case, of: ([case.array((2, 2, 4), of.dtype), case.one_of([1, 2, 4, 3, [1, 2]])], {})
CASES |= {"nanargmax": _case("of", axis=None), "nanargmin": _case("of", axis=None), "unwrap": _case("of", axis=None)}
#: Methods without cases: their results are bytes of the process, or files.
_NO_CASES = {"tofile", "tobytes"}


def _methods():
    names = [name for name in dir(np.ndarray) if not name.startswith("_") and hasattr(vm.Array, name) and name not in _NO_CASES]
    return [f"ndarray.{name}" for name in names if callable(getattr(np.ndarray, name)) or name in _ATTRIBUTES]


_ATTRIBUTES = set("shape dtype ndim size itemsize nbytes T mT real imag".split())
OPERATORS = "add sub mul truediv floordiv mod pow and_ or_ xor lshift rshift eq ne lt le gt ge neg pos abs invert divmod"
OPERATORS = [f"operator.{name}" for name in OPERATORS.split()]
OPERATORS += [f"operator.i{name}" for name in "add sub mul truediv floordiv mod pow and or xor lshift rshift".split()]
_IN_PLACE = {one for one in OPERATORS if one.startswith("operator.i") and one != "operator.invert"}
#: Reading and writing by keys.
KEYS = ["key.read", "key.write"]


def names():
    """All that is compared, from NumPy's own lists."""
    _functions.dispatched(np.shape, (vm.zeros(1),), {})
    known = set(_functions._KNOWN)
    found = []
    for name in sorted(dir(np)):
        function = getattr(np, name)
        if name.startswith("_") or name in ("float_", "long"):
            continue
        if isinstance(function, np.ufunc):
            if function.signature is None or name in CASES:
                found.append(f"numpy.{name}")
                if function.signature is None and function.nin == 2 and function.nout == 1 and function.reduce and function in _ufuncs.ASSOCIATIVE:
                    found.append(f"numpy.{name}.reduce")
        elif callable(function) and getattr(function, "__hash__", None) and (function in known or name in CASES):
            found.append(f"numpy.{name}")
    return found + _methods() + OPERATORS + KEYS


def made(name, seed):
    """A case: the function, positional arguments and keywords, and the case they were drawn by."""
    case = Case(name, seed)
    case.given = {}
    of = case.main = case.array()
    group, _, rest = name.partition(".")
    if rest == "searchsorted":
        # The array to search must be sorted: in an unsorted array any index is a correct answer.
        of = case.main = np.sort(of, axis=-1) if of.ndim else of
    if group == "operator":
        function = getattr(operator, {"idivmod": "divmod"}.get(rest, rest)) if rest != "divmod" else divmod
        count = 1 if rest in ("neg", "pos", "abs", "invert") else 2
        args = [of] if count == 1 else [of, case.like(of)]
        if count == 2 and not rest.startswith("i") and case.chance(0.3):
            args.reverse()
            if not isinstance(args[0], (np.ndarray, Theirs)) and not isinstance(args[1], np.ndarray):
                args.reverse()
        return case, function, args, {}
    if group == "key":
        return case, *_keyed(case, rest, of)
    if group == "ndarray":
        if rest in _ATTRIBUTES:
            return case, operator.attrgetter(rest), [of], {}
        args, given = _method_arguments(case, rest, of)
        of = case.main
        if rest == "choose" and of.dtype.kind in "iu":
            # NumPy wraps an index by as many additions as it takes.
            of = np.clip(of, 0 if of.dtype.kind == "u" else -99, 99)
        return case, lambda array, *more, **named: getattr(array, rest)(*more, **named), [of, *args], given
    if rest.endswith(".reduce"):
        function = getattr(np, rest[: -len(".reduce")]).reduce
        return case, function, [of], _drawn(case, of, ["axis", "dtype", "keepdims", "initial", "where"], 0.3)
    function = getattr(np, rest)
    if isinstance(function, np.ufunc) and rest not in CASES:
        args = [of] if function.nin == 1 else [of, case.like(of)]
        if function.nin == 2 and case.chance(0.3):
            args.reverse()
        return case, function, args, _drawn(case, of, ["dtype", "casting"], 0.15)
    return case, function, *_arguments(case, function, rest, of)


def _drawn(case, of, possible, share):
    return {name: KEYWORDS[name](case, of) for name in possible if case.chance(share)}


def _keyed(case, rest, of):
    ways = []
    # Arrays in a key are NumPy's or the package's.
    kind = case.one_of([Theirs, lambda items: items])
    for extent in of.shape[: int(case.random.integers(0, of.ndim + 1))]:
        way = case.one_of(["slice", "step", "integer", "integers", "bools", "list", "new", "reverse"])
        at = int(case.random.integers(-extent, extent)) if extent else 0
        some = case.random.integers(-extent, extent, 2) if extent else np.zeros(0, int)
        ways.append({
            "slice": slice(1, None),
            "step": slice(None, None, 2),
            "reverse": slice(None, None, -1),
            "integer": at,
            "integers": kind(some.astype(case.one_of(["i8", "i4", "u1" if extent and (some >= 0).all() else "i8"]))),
            "bools": kind(case.random.random(extent) < 0.5),
            "list": some.tolist(),
            "new": None,
        }[way])
    if case.chance(0.2):
        ways.append(Ellipsis)
    key = tuple(ways) if len(ways) != 1 or case.chance(0.5) else ways[0]
    if case.chance(0.15):
        key = np.asarray(case.random.random(of.shape) < 0.5)
    if of.dtype.names and case.chance(0.3):
        key = case.one_of(["x", ["x"], ["y", "x"]])
    if rest == "read":
        return operator.getitem, [of, key], {}
    return _write, [of, key, case.like(of, 0.6) if case.chance(0.5) else case.one_of([300, -1, 1.5, np.nan, "7", True, 2**70])], {}


def _write(array, key, value):
    array[key] = value


#: Parameters of methods, whose signatures NumPy does not always know.
_METHODS = {
    "astype": ("dtype", ["order", "casting", "copy"]),
    "reshape": ("newshape", ["order"]),
    "repeat": ("repeats", ["axis"]),
    "searchsorted": ("v", ["side", "sorter"]),
    "swapaxes": ("axis1 axis2", []),
    "take": ("indices", ["axis", "mode"]),
    "clip": ("", ["min", "max"]),
    "copy": ("", ["order"]),
    "view": ("as", []),
    "fill": ("fill_value", []),
    "flatten": ("", ["order"]),
    "ravel": ("", ["order"]),
    "cumsum": ("", ["axis", "dtype"]),
    "cumprod": ("", ["axis", "dtype"]),
    "diagonal": ("", ["offset", "axis1", "axis2"]),
    "item": ("", []),
    "tolist": ("", []),
    "to_device": ("device", []),
    "nonzero": ("", []),
    "round": ("", ["decimals"]),
    "sort": ("", ["axis", "kind"]),
    "argsort": ("", ["axis", "kind"]),
    "squeeze": ("", ["axis"]),
    "transpose": ("", []),
    "sum": ("", ["axis", "dtype", "keepdims", "initial", "where"]),
    "prod": ("", ["axis", "dtype", "keepdims", "initial", "where"]),
    "min": ("", ["axis", "keepdims", "initial", "where"]),
    "max": ("", ["axis", "keepdims", "initial", "where"]),
    "mean": ("", ["axis", "dtype", "keepdims", "where"]),
    "var": ("", ["axis", "dtype", "keepdims", "ddof", "where"]),
    "std": ("", ["axis", "dtype", "keepdims", "ddof", "where"]),
    "any": ("", ["axis", "keepdims", "where"]),
    "all": ("", ["axis", "keepdims", "where"]),
    "argmin": ("", ["axis", "keepdims"]),
    "argmax": ("", ["axis", "keepdims"]),
    "argpartition": ("kth", ["axis"]),
    "byteswap": ("", []),
    "conj": ("", []),
    "conjugate": ("", []),
    "partition": ("kth", []),
    "setflags": ("", []),
}


def _method_arguments(case, name, of):
    if name in CASES and name not in _METHODS:
        args, case.given = CASES[name](case, of)
        # The array is the first argument, or follows a condition.
        return (args[:1] if name == "compress" else args[1:]), case.given
    required, possible = _METHODS[name]
    case.given = _drawn(case, of, possible, 0.3)
    if name == "sort" and case.given.get("axis", 0) is None:
        del case.given["axis"]
    return [REQUIRED[one](case, of) for one in required.split()], case.given


def _arguments(case, function, name, of):
    if name in CASES:
        args, case.given = CASES[name](case, of)
        return args, case.given
    args, given = [], {}
    parameters = inspect.signature(function).parameters
    possible = [
        one.name
        for one in parameters.values()
        if one.default is not one.empty and one.name not in _LEFT_OUT | {"out"} and one.name in KEYWORDS
    ]
    if name == "where":
        return [_mask(case, of) if case.chance(0.5) else case.array(of.shape), of, case.like(of)] if case.chance(0.8) else [of], {}
    case.given = given = _drawn(case, of, possible, 0.25)
    if name == "clip":
        given = {one: value for one, value in given.items() if one in (("min", "max") if case.chance(0.5) else ("a_min", "a_max"))}
    if name == "average" and "weights" in given and case.chance(0.7):
        given["weights"] = case.array(of.shape, np.dtype("f8"))
    is_first = True
    for one in parameters.values():
        if one.kind is one.VAR_POSITIONAL:
            args += [of, *(case.like(of) for _ in range(int(case.random.integers(0, 2))))]
        elif one.default is one.empty and one.kind is not one.VAR_KEYWORD:
            if is_first:
                args.append(_list_of(case, of) if one.name in _LISTS or name in ("concatenate",) else of)
            else:
                args.append(REQUIRED[one.name](case, of))
            is_first = False
    if name == "copyto":
        given.pop("subok", None)
    if name == "reshape":
        args, given = [of, REQUIRED["newshape"](case, of)], {one: given[one] for one in given if one in ("order", "copy")}
    return args, given


# Comparison.

#: Functions whose results are equal bit for bit.
EXACT = set("add subtract multiply divide true_divide sqrt negative positive absolute abs square reciprocal maximum".split())
EXACT |= set("minimum fmax fmin floor ceil trunc rint sign copysign sub mul truediv neg pos".split())
EXACT |= set("iadd isub imul itruediv".split())
#: Functions that multiply complex numbers: NumPy rounds each product, or only their sum, by how the items lie.
PRODUCTS = {"multiply", "square", "mul", "imul"}
#: Functions that add up: floats within the bounds that the documentation names.
SUMS = set("sum prod mean var std nansum nanprod nanmean nanvar nanstd cumsum cumprod average".split())
SUMS |= {"add.reduce", "multiply.reduce"}
#: Functions that add up products, in any order.
SUMS_OF_PRODUCTS = set("matmul matvec vecdot vecmat dot vdot inner tensordot einsum".split())


def outcome_of(work):
    """The result of a call, or its error."""
    with warnings.catch_warnings(), np.errstate(all="ignore"):
        warnings.simplefilter("ignore")
        try:
            return work(), None
        except ERRORS as error:
            return None, error


def has_advice(error):
    """True if the text of an error contains advice."""
    return isinstance(error, (TypeError, ValueError)) and ("numpy.asarray(array)" in str(error) or "; " in str(error) or "leave `" in str(error))


def run(name, seed):
    """Runs a case; returns the difference as a text, or None, and True if both computed a result."""
    case, function, args, given = made(name, seed)
    # NumPy searches arrays of few bytes, devices search others; half of the cases are searched by devices.
    _dispatch.SMALL_BYTES = (seed % 2) << 16
    # A quarter of the cases is computed as arrays in RAM are, half of them in parts.
    _on_host.ITEMS_MAX = FEW if seed % 4 == 2 else 0
    divide(seed % 8 == 2)
    # Half of the cases of functions on copies are computed by the package, if it has them.
    own = getattr(np, name.split(".")[1], None)
    _dispatch.RAM_BYTES_MAX = -1 if seed % 2 and (own in _large.FUNCTIONS or own in _products.UFUNCS) else 256 << 20
    theirs_args, theirs_given = numpys(args), {one: numpys(value) for one, value in given.items()}
    ours_args, ours_given = ours(args), {one: ours(value) for one, value in given.items()}
    theirs, error = outcome_of(lambda: function(*theirs_args, **theirs_given))
    results = theirs if isinstance(theirs, tuple) else (theirs,)
    # Devices store no objects.
    has_objects = any(isinstance(one, np.ndarray) and one.dtype.hasobject for one in results)
    if error is None and case.chance(0.15) and _takes_out(name, function) and not has_objects:
        # Write the result to an existing array, sometimes of another dtype or with a mask.
        out = given["out"] = _out(case, theirs)
        # NumPy itself crashes on a comparison with a mask and an integer of Python that the dtype cannot hold.
        if isinstance(function, np.ufunc) and case.chance(0.5) and not any(type(one) is int for one in args):
            given["where"] = _mask(case, out[0] if isinstance(out, tuple) else out)
        theirs_args, theirs_given = numpys(args), {one: numpys(value) for one, value in given.items()}
        ours_args, ours_given = ours(args), {one: ours(value) for one, value in given.items()}
        theirs, error = outcome_of(lambda: function(*theirs_args, **theirs_given))
    mine, mistake = outcome_of(lambda: function(*ours_args, **ours_given))
    shown = f"{name} seed {seed}: {_shown(args)} {_shown(given)}"
    case.function, case.args, case.keywords = function, args, given
    if mistake is not None:
        if has_advice(mistake) and (error is not None or isinstance(mistake, TypeError)):
            return case, None, False
        if error is not None:
            is_same = all(isinstance(mistake, kind) for kind in CLASSES if isinstance(error, kind))
            why = f"{shown}: {type(mistake).__name__}: {mistake}, NumPy raises {type(error).__name__}: {error}"
            return case, None if is_same else why, False
        return case, f"{shown}: {type(mistake).__name__}: {mistake}, NumPy gives {_shown(theirs)}", False
    if error is not None:
        return case, f"{shown}: NumPy raises {type(error).__name__}: {error}, here is {_shown(mine)}", False
    for why in (
        _differ(case, mine, theirs),
        _sources_differ(case, ours_args, theirs_args, "that is written to" if name in _IN_PLACE else "after the call"),
        _sources_differ(case, *([_listed(one.get("out"))] for one in (ours_given, theirs_given)), "that is written to"),
    ):
        if why and not (why.endswith(UNITS) and _is_near_wide(case, mine)):
            return case, f"{shown}: {why}", True
    why = _aliasing_differs(case, mine, theirs, ours_args, theirs_args)
    return case, why and f"{shown}: {why}", True


def _takes_out(name, function):
    if isinstance(function, np.ufunc) or name.endswith(".reduce"):
        return True
    if name.startswith("ndarray."):
        return name.split(".")[1] in _OUT
    return name.startswith("numpy.") and "out" in inspect.signature(function).parameters


_OUT = set("sum prod mean var std min max any all argmin argmax round clip cumsum cumprod take".split())


def _out(case, result):
    if isinstance(result, tuple):
        return tuple(_out(case, one) for one in result)
    dtype = np.asarray(result).dtype
    dtype = dtype if case.chance(0.7) else case.one_of([np.dtype("f8"), np.dtype("i8"), np.dtype("f4"), dtype.newbyteorder()])
    items = case.values(np.shape(result), dtype)
    return items if case.chance(0.7) else Theirs(items)


def _shown(value):
    if isinstance(value, Theirs):
        return f"theirs({_shown(value.items)})"
    if isinstance(value, vm.Array):
        value = np.asarray(value)
    if isinstance(value, np.ndarray):
        return f"array({value.tolist()}, {value.dtype.str if value.dtype.names is None else value.dtype})"
    if isinstance(value, dict):
        return "{" + ", ".join(f"{key}: {_shown(one)}" for key, one in value.items()) + "}"
    if type(value) in (list, tuple):
        return "[" + ", ".join(map(_shown, value)) + "]"
    return repr(value)


def _differ(case, mine, theirs):
    if isinstance(theirs, (tuple, list)):
        if not isinstance(mine, (tuple, list)) or len(mine) != len(theirs):
            return f"{_shown(mine)} and NumPy's {_shown(theirs)}"
        return next((why for why in map(lambda a, b: _differ(case, a, b), mine, theirs) if why), None)
    if not isinstance(theirs, (np.ndarray, np.generic)):
        if isinstance(mine, (vm.Array, np.ndarray)):
            return f"{_shown(mine)} and NumPy's {theirs!r}"
        is_same = mine == theirs or (mine != mine and theirs != theirs)
        return None if is_same else f"{mine!r} and NumPy's {theirs!r}"
    if isinstance(theirs, (bytes, str)) and isinstance(theirs, np.generic):
        # NumPy's string dtypes are as long as their text, so convert the dtype.
        mine = np.asarray(mine).astype(theirs.dtype)
    mine, theirs = np.asarray(mine), np.asarray(theirs)
    if mine.dtype != theirs.dtype and not case.is_wide:
        return f"dtype {mine.dtype} and NumPy's {theirs.dtype}"
    if mine.shape != theirs.shape:
        return f"shape {mine.shape} and NumPy's {theirs.shape}"
    if case.name == "numpy.empty_like" or case.keywords.get("mode") == "empty":
        # The case permits any values.
        return None
    why = _values_differ(case, mine, theirs)
    return why and f"{_shown(mine)} and NumPy's {_shown(theirs)}: {why}"


def _values_differ(case, mine, theirs):
    if mine.dtype.names is not None:
        return next((why for why in (_values_differ(case, mine[one], theirs[one]) for one in mine.dtype.names) if why), None)
    if mine.dtype.kind not in "fc":
        return None if mine.tobytes() == theirs.tobytes() else "values"
    if case.name.split(".")[-1] in SUMS_OF_PRODUCTS:
        return _products_differ(case, mine, theirs)
    if mine.dtype.kind == "c":
        if case.name.split(".")[-1] in PRODUCTS and _are_near(case, mine, theirs):
            return None
        return _values_differ(case, mine.real, theirs.real) or _values_differ(case, mine.imag, theirs.imag)
    mine, theirs = mine.astype("f8"), theirs.astype("f8")
    if not np.array_equal(np.isnan(mine), np.isnan(theirs)):
        return "NaNs"
    name = case.name.removeprefix("numpy.").removeprefix("ndarray.").removeprefix("operator.")
    if name not in SUMS and not case.is_wide and not np.array_equal(np.signbit(mine) & (mine == 0), np.signbit(theirs) & (theirs == 0)):
        return "signs of zeroes"
    holds = ~np.isnan(theirs) & (mine != theirs)
    if not holds.any():
        return None
    limits = np.finfo(result_kind(case))
    with np.errstate(all="ignore"):
        size = np.maximum(np.abs(theirs[holds]), float(limits.smallest_normal))
        apart = np.abs(mine[holds] - theirs[holds]) / (float(limits.eps) * np.exp2(np.floor(np.log2(size))))
    most = 2.0
    if name in SUMS:
        scale = max(1.0, float(np.nanmax(np.abs(np.where(np.isfinite(theirs), theirs, 0)), initial=1)))
        size = float(np.max(np.abs(np.nan_to_num(np.asarray(case.main, "c16"), posinf=0, neginf=0)), initial=1)) if case.main.dtype.kind in "biufc" else 1
        bound = 8 * float(np.finfo(result_kind(case)).eps) * max(scale, size**2 if name in ("var", "std", "nanvar", "nanstd") else size * case.main.size, 1)
        # Sums of few bits overflow, sums of 64 bits do not.
        overflows = np.isinf(theirs[holds]) & np.isfinite(mine[holds]) & (limits.bits < 64)
        return None if (overflows | (np.abs(mine[holds] - theirs[holds]) <= bound)).all() else "sums"
    if name in EXACT and not (case.main.dtype.kind == "c" and name in ("abs", "absolute")):
        most = 0.0
    return None if (apart <= most).all() else f"{apart.max()} {UNITS}"


def _products_differ(case, mine, theirs):
    """Compares sums of products within the bound of any order of additions. If items are not finite, or sums may
    overflow, real results must be equal if no partial sum is so."""
    operands = [np.asarray(one, "c16") for one in _arrays(case.args)]
    with np.errstate(all="ignore"):
        sizes = [float(np.max(np.abs(one), initial=0)) for one in operands]
        bound = 8 * float(np.prod(sizes)) * max(one.size for one in operands)
        mine, theirs = mine.astype("c16"), theirs.astype("c16")
        limits = np.finfo(result_kind(case))
        if not bound < float(limits.max):
            if not all(np.isfinite(size) for size in sizes) and mine.dtype.kind == "f" and all(one.dtype.kind != "c" for one in _arrays(case.args)):
                return None if np.array_equal(np.isfinite(mine), np.isfinite(theirs)) else "finite items"
            return None
        return None if (np.abs(mine - theirs) <= bound * float(limits.eps) + float(limits.smallest_normal)).all() else "sums of products"


def _are_near(case, mine, theirs):
    """True if complex numbers are at most two units of their absolute values apart, and infinities and NaNs equal."""
    mine, theirs = mine.astype("c16"), theirs.astype("c16")
    finite = np.isfinite(theirs)
    if not np.array_equal(mine[~finite], theirs[~finite], equal_nan=True):
        return False
    with np.errstate(all="ignore"):
        bound = 2 * float(np.finfo(result_kind(case)).eps) * np.abs(theirs[finite])
        return bool((np.abs(mine[finite] - theirs[finite]) <= bound).all())


#: The end of the text about floats that are too far apart.
UNITS = "units in the last place"


def _is_near_wide(case, mine):
    """True if a result of floats of few bits is near NumPy's for operands of 64 bits, which is the measure: errors of
    NumPy's own functions of 32 bits are up to 4 units in the last place."""
    kinds = [one.dtype for one in _arrays(case.args) if one.dtype.kind in "fc"]
    # A number of Python is rounded to the precision of the arrays.
    args = [kinds[0].type(one) if kinds and type(one) in (float, complex) else one for one in case.args]
    given = {one: value if one == "where" else "f8" if one == "dtype" else _wide(value) for one, value in case.keywords.items()}
    theirs, error = outcome_of(lambda: case.function(*map(_wide, args), **given))
    case.is_wide = True
    is_near = error is None and _differ(case, mine, theirs) is None
    case.is_wide = False
    return is_near


def _wide(value):
    """The same values, floats and integers of few bits as floats of 64 bits."""
    if isinstance(value, Theirs):
        return _wide(value.items)
    if isinstance(value, (np.ndarray, np.generic)):
        is_narrow = value.dtype.kind in "fc" or (value.dtype.kind in "biu" and value.dtype.itemsize < 4)
        return value.astype("c16" if value.dtype.kind == "c" else "f8") if is_narrow else value.copy()
    return type(value)(map(_wide, value)) if type(value) in (list, tuple) else value


def result_kind(case):
    """The least precise float that a result is rounded to on the way."""
    operands = {name: one for name, one in case.keywords.items() if name != "where"}
    kinds = [one.dtype for one in _arrays((case.args, operands))]
    asked = case.keywords.get("dtype")
    if asked is not None:
        kinds.append(np.dtype(asked))
    floats = [np.finfo(one.newbyteorder("=")).dtype for one in kinds if one.kind in "fc"]
    # NumPy's functions convert short integers and bools to short floats.
    floats += [np.dtype(f"f{2 * one.itemsize}") for one in kinds if one.kind in "biu" and one.itemsize < 4]
    return min(floats, key=lambda one: one.itemsize, default=np.dtype("f8"))


def _arrays(values):
    if isinstance(values, Theirs):
        return [values.items]
    if isinstance(values, np.ndarray):
        return [values]
    if isinstance(values, dict):
        values = list(values.values())
    return [one for value in values for one in _arrays(value)] if isinstance(values, (list, tuple)) else []


def _is_same(mine, theirs):
    """True if items are equal bit for bit, except that a NaN equals any NaN."""
    if mine.dtype.kind in "fc" and mine.dtype == theirs.dtype:
        return mine.shape == theirs.shape and bool(((mine == theirs) | (np.isnan(mine) & np.isnan(theirs))).all())
    return mine.tobytes() == theirs.tobytes()


def _listed(out):
    return list(out) if isinstance(out, tuple) else out


def _sources_differ(case, ours_args, theirs_args, when):
    for mine, theirs in zip(ours_args, theirs_args):
        if isinstance(theirs, np.ndarray) and when == "that is written to":
            if why := _values_differ(case, np.asarray(mine), theirs):
                return f"the array {when} is {_shown(mine)}, NumPy's {_shown(theirs)}: {why}"
        elif isinstance(theirs, np.ndarray) and not _is_same(np.asarray(mine), theirs):
            return f"the operand {when} is {_shown(mine)}, NumPy's {_shown(theirs)}"
        if type(theirs) is list and theirs and isinstance(theirs[0], np.ndarray):
            if why := _sources_differ(case, mine, theirs, when):
                return why
    return None


def _aliasing_differs(case, mine, theirs, ours_args, theirs_args):
    if isinstance(theirs, (tuple, list)) and isinstance(mine, (tuple, list)):
        for own, other in zip(mine, theirs):
            if why := _aliasing_differs(case, own, other, ours_args, theirs_args):
                return why
        return None
    if not isinstance(theirs, np.ndarray) or not theirs.size or not isinstance(mine, (vm.Array, np.ndarray)):
        return None
    if theirs.dtype != mine.dtype:
        return None
    value = np.zeros((), theirs.dtype) if np.ravel(theirs)[:1].tobytes().strip(b"\0") else np.ones((), theirs.dtype if theirs.dtype.names is None else "i1").astype(theirs.dtype)
    (_, error), (_, mistake) = outcome_of(lambda: theirs.__setitem__(Ellipsis, value)), outcome_of(lambda: mine.__setitem__(Ellipsis, value))
    if (error is None) != (mistake is None):
        return f"a write to the result: {mistake!r}, NumPy's: {error!r}"
    return _sources_differ(case, ours_args, theirs_args, "after a write to the result")
