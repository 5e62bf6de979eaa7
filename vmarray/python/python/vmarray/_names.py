"""A table of all names in NumPy's main namespace: for each name, the code in this package that computes it."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from . import _array, _creation, _dispatch, _functions
from ._array import Array
from ._flat import Flat

#: For each way to compute a function or to get an object, the names of NumPy.
NAMES: dict[str, str] = {
    # Functions that devices compute for numbers. NumPy computes other items, or results along some axes, piece by
    # piece.
    "devices": """all allclose amax amin any argmax argmin argsort around array_equal average clip concat concatenate
        count_nonzero cumprod cumsum diff flatnonzero isclose isin max mean median min nan_to_num nanmean nanprod nanstd
        nansum nanvar nonzero percentile prod ptp quantile round searchsorted sort std sum take unique unique_counts
        unique_inverse unique_values var where bincount histogram""",
    # Functions that move items. The package copies them, or NumPy computes them piece by piece.
    "pieces": "append argpartition column_stack copy copyto dstack hstack nanmax nanmin pad partition repeat roll stack tile vstack",
    # Functions that return views, or facts about shapes and dtypes.
    "views": """array_split atleast_1d atleast_2d atleast_3d broadcast_arrays broadcast_to diag diagonal dsplit expand_dims flip
        fliplr flipud hsplit imag iscomplexobj isfortran isrealobj ix_ matrix_transpose may_share_memory moveaxis ndim permute_dims ravel real real_if_close
        reshape rollaxis rot90 shape shares_memory size split squeeze swapaxes transpose trim_zeros unstack vsplit""",
    # Functions that create arrays of the package, and its classes with the names of NumPy's.
    "package": """arange array asanyarray asarray asarray_chkfinite ascontiguousarray empty empty_like eye flatiter
        asfortranarray memmap from_dlpack fromfile fromfunction full full_like identity indices linspace load meshgrid ndarray ndenumerate ones
        ones_like random require save tri vectorize zeros zeros_like""",
    # Functions that NumPy computes on copies in RAM. For larger arrays the package computes the functions in _large,
    # and products of arrays of 1 MiB or more.
    "copy": """angle apply_along_axis apply_over_axes argwhere array2string array_equiv array_repr array_str astype block
        busday_count busday_offset c_ choose common_type compress convolve corrcoef correlate cov cross cumulative_prod
        cumulative_sum datetime_as_string delete diag_indices_from diagflat digitize dot ediff1d einsum einsum_path
        extract fill_diagonal fix gradient histogram2d histogram_bin_edges histogramdd i0 inner insert interp intersect1d
        is_busday iscomplex isneginf isposinf isreal kron lexsort min_scalar_type mgrid nanargmax nanargmin
        nancumprod nancumsum nanmedian nanpercentile nanquantile ogrid outer packbits piecewise place poly polyadd
        polyder polydiv polyfit polyint polymul polysub polyval put put_along_axis putmask r_ ravel_multi_index
        resize roots savetxt savez savez_compressed select setdiff1d setxor1d sinc sort_complex
        take_along_axis tensordot trace trapezoid tril tril_indices_from triu triu_indices_from union1d
        unique_all unpackbits unravel_index unwrap vander vdot
        bartlett blackman diag_indices frombuffer fromiter fromregex fromstring genfromtxt geomspace hamming hanning
        kaiser loadtxt logspace mask_indices tril_indices triu_indices""",
    # NumPy's ufuncs. On arrays, devices compute numbers, and NumPy computes other items piece by piece.
    "ufuncs": """abs absolute acos acosh add arccos arccosh arcsin arcsinh arctan arctan2 arctanh asin asinh atan atan2
        atanh bitwise_and bitwise_count bitwise_invert bitwise_left_shift bitwise_not bitwise_or bitwise_right_shift
        bitwise_xor cbrt ceil conj conjugate copysign cos cosh deg2rad degrees divide divmod equal exp exp2 expm1 fabs
        float_power floor floor_divide fmax fmin fmod frexp gcd greater greater_equal heaviside hypot invert isfinite
        isinf isnan isnat lcm ldexp left_shift less less_equal log log10 log1p log2 logaddexp logaddexp2 logical_and
        logical_not logical_or logical_xor maximum minimum mod modf multiply negative nextafter not_equal positive pow
        power rad2deg radians reciprocal remainder right_shift rint sign signbit sin sinh spacing sqrt square subtract
        tan tanh true_divide trunc matmul matvec vecdot vecmat""",
    # NumPy's own objects without items: dtypes, constants, settings, modules, and functions of dtypes and shapes.
    "numpy": """False_ True_ ScalarType e euler_gamma index_exp inf little_endian nan newaxis pi s_ sctypeDict typecodes
        bool bool_ byte bytes_ cdouble character clongdouble complex128 complex192 complex256 complex64 complexfloating
        csingle datetime64 double flexible float128 float16 float32 float64 float96 floating generic half inexact int16
        int32 int64 int8 int_ intc integer intp long longdouble longlong number object_ record short signedinteger
        single str_ timedelta64 ubyte uint uint16 uint32 uint64 uint8 uintc uintp ulong ulonglong unsignedinteger ushort
        void busdaycalendar dtype errstate finfo iinfo ndindex poly1d ufunc base_repr binary_repr broadcast_shapes
        can_cast datetime_data format_float_positional format_float_scientific get_include get_printoptions getbufsize
        geterr geterrcall info isdtype isscalar issubdtype iterable mintypecode printoptions promote_types result_type
        row_stack set_printoptions setbufsize seterr seterrcall show_config show_runtime test typename char core
        ctypeslib dtypes emath exceptions f2py fft lib linalg ma polynomial rec strings testing typing
        matlib in1d trapz""",
    "refused": "asmatrix bmat broadcast frompyfunc matrix nditer nested_iters recarray",
}
#: Advice for names that are refused.
ADVICE: dict[str, str] = dict.fromkeys(
    ("asmatrix", "bmat", "matrix"), "arrays of two axes have the operator @; numpy.matrix is of a copy in RAM"
)
ADVICE |= dict.fromkeys(("nditer", "nested_iters"), "iterate over the array, its flat, or numpy.ndindex(array.shape)")
ADVICE["broadcast"] = "use numpy.broadcast_shapes or broadcast_arrays"
ADVICE["frompyfunc"] = "its results are Python objects; use vmarray.vectorize, or a vmarray.kernel"
ADVICE["recarray"] = "use an array with a structured dtype, array['name'] in place of array.name"
#: Objects that make arrays by keys.
GRIDS = ("c_", "mgrid", "ogrid", "r_")
#: Parameters that are several arrays, or no array.
_NOT_ARRAYS = {"arrays", "tup", "array_list", "condlist", "keys"}


def way(name: str) -> str:
    """The key of the table `NAMES` that lists a name of NumPy, such as ``"devices"``.

    Examples
    --------
    >>> from vmarray import _names
    >>> _names.way("sum"), _names.way("float32")
    ('devices', 'numpy')
    """
    return _ways()[name]


@functools.cache
def _ways() -> dict[str, str]:
    return {name: own for own, names in NAMES.items() for name in names.split()}


@functools.cache
def known() -> list[str]:
    """All names that the package offers: its own, and the names in the table that the installed NumPy also has."""
    return [
        name for name, own in _ways().items() if own in ("package", "refused") or name in np.__dict__ or _is_there(name)
    ]


def _is_there(name: str) -> bool:
    return name in dir(np) and hasattr(np, name)


def named(name: str) -> Any:
    """The object for a name of NumPy. Raises an AttributeError if the table or the installed NumPy has none."""
    own = _ways().get(name)
    if own is None or (own not in ("package", "refused") and not hasattr(np, name)):
        raise AttributeError(f"module 'vmarray' has no attribute {name!r}")
    if own in ("ufuncs", "numpy"):
        return getattr(np, name)
    if own == "refused":
        return _refusing(name)
    if own == "package":
        return _PACKAGE.get(name) or getattr(_creation, name, None) or getattr(_array, name)
    if name in GRIDS:
        return Grid(getattr(np, name))
    return public(getattr(np, name))


def _refusing(name: str) -> Callable[..., Any]:
    def work(*args: Any, **given: Any) -> Any:
        raise TypeError(f"vmarray has no {name}; {ADVICE[name]}")

    work.__name__ = work.__qualname__ = name
    work.__doc__ = f"Raises a TypeError; {ADVICE[name]}."
    return work


def public(function: Any) -> Any:
    """Returns the package's version of a NumPy function: takes arrays and lists, and returns arrays of the package."""

    @functools.wraps(function)
    def work(*args: Any, **given: Any) -> Any:
        if not _dispatch.arrays_in([args, given]):
            if not args or not _takes_array(function):
                return _dispatch.wrapped(function(*args, **given), {}, [])
            args = (_array.asarray(args[0]), *args[1:])
        return _functions.dispatched(function, args, given)

    work.__module__ = "vmarray"
    known_as = _functions._KNOWN.get(function) if _functions.is_known(function) else None
    doc = f"Like ``numpy.{function.__name__}``, for arrays of the package and of NumPy, and lists."
    work.__doc__ = (known_as[0].__doc__ if known_as is not None else None) or doc
    return work


def _takes_array(function: Any) -> bool:
    """True if the package computes the function, and its first parameter is one array."""
    if not _functions.is_known(function):
        return False
    signature = _dispatch._signature(function)
    first = next(iter(signature.parameters.values())) if signature is not None else None
    return first is not None and first.kind is not first.VAR_POSITIONAL and first.name not in _NOT_ARRAYS


class Grid:
    """An object like ``numpy.r_``, ``numpy.c_``, ``numpy.mgrid`` or ``numpy.ogrid``, which makes arrays by keys."""

    def __init__(self, own: Any) -> None:
        self._own = own

    def __getitem__(self, key: Any) -> Any:
        return _dispatch.on_copies(self._own.__getitem__, (key,), {})


class Vectorize(np.vectorize):
    """Like ``numpy.vectorize``, for arrays of the package: the function gets items of copies in RAM."""

    def __call__(self, *args: Any, **given: Any) -> Any:
        return _dispatch.on_copies(super().__call__, args, given)


def ndenumerate(array: Any) -> Iterator[tuple[tuple[int, ...], Any]]:
    """The indices and the items of an array, like ``numpy.ndenumerate``."""
    array = _array.asarray(array)
    return zip(np.ndindex(*array.shape), array.flat)


_PACKAGE: dict[str, Any] = {"flatiter": Flat, "ndarray": Array, "ndenumerate": ndenumerate, "vectorize": Vectorize}
for _name in ("empty_like", "zeros_like", "ones_like", "full_like"):
    _PACKAGE[_name] = public(getattr(np, _name))
