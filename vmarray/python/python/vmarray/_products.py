"""NumPy's products of arrays, such as ``matmul``, ``tensordot`` and ``einsum``. They are composed of products of stacks
of matrices, which the Rust module computes tile by tile, and of other functions of arrays."""

from __future__ import annotations

import math
import operator
from collections.abc import Callable
from typing import Any

import numpy as np

from . import _array, _core, _dispatch, _ufuncs
from ._array import Array, _options_like
from ._dispatch import NotOnDevices
from ._functions import _raised_by_numpy, _types, _written, summed

#: Most items of a matrix that NumPy multiplies, if a stack has many of them.
_SMALL_MATRIX = 1 << 12
#: NumPy multiplies copies in RAM of arrays of at most this many bytes in all: it starts faster.
PRODUCT_BYTES = 1 << 20
#: The kinds of dtypes that have products.
_NUMBERS = "biufc"


def _own(value: Any, *others: Any) -> Array:
    return _array.asarray(value, **_options_like(value, *others))


def _kind(*arrays: Any) -> np.dtype[Any]:
    """The dtype of a product, in native byte order."""
    if any(one.dtype.kind not in _NUMBERS for one in arrays):
        raise NotOnDevices
    return np.result_type(*(one.dtype for one in arrays)).newbyteorder("=")


def _conjugate(array: Array) -> Array:
    return array.conj() if array.dtype.kind == "c" else array


def _stacked(a: Array, b: Array, kind: np.dtype[Any]) -> Array:
    """Multiplies two stacks of matrices, whose inner extents are equal."""
    if kind == np.bool_:
        # Compute bools as floats: the sum is zero only if all products are.
        return _stacked(a.astype("f4"), b.astype("f4"), np.dtype("f4")) != 0
    if kind.char in "gG":
        raise NotOnDevices
    stack = np.broadcast_shapes(a.shape[:-2], b.shape[:-2])
    rows, depth, columns = a.shape[-2], a.shape[-1], b.shape[-1]
    result = _array._result((*stack, rows, columns), kind, **_options_like(a, b))
    if not result.size or not depth:
        return result
    count, largest = math.prod(stack), max(rows * depth, depth * columns, rows * columns)
    if rows == columns == count == 1 and kind.kind in "iuf" and kind.itemsize > 2:
        result[...] = summed(a.reshape(-1).astype(kind, copy=False) * b.reshape(-1), None, kind)
        return result
    wide = [np.broadcast_to(one.astype(kind, copy=False), (*stack, *one.shape[-2:])) for one in (a, b)]
    if count > 1 and largest <= _SMALL_MATRIX:
        for key in _ufuncs.blocks(stack, max(1, _ufuncs.PIECE // largest)):
            result[key] = np.matmul(*(np.asarray(one[key]) for one in wide))
        return result
    if not _core.multiply(wide[0]._core, wide[1]._core, result._core):
        copies = [one.copy() for one in wide]
        if not _core.multiply(copies[0]._core, copies[1]._core, result._core):
            raise NotOnDevices
    return result


def _scalar(result: Array) -> Any:
    """Converts a result without axes to a NumPy scalar."""
    return result if result.ndim else np.asarray(result)[()]


# Ufuncs that work on whole vectors or matrices (core axes).


def _matmul(a: Array, b: Array, kind: np.dtype[Any]) -> Any:
    if not a.ndim or not b.ndim:
        raise ValueError("matmul: input operand does not have enough dimensions (has 0, and requires at least 1)")
    one, other = a if a.ndim > 1 else a.reshape(1, -1), b if b.ndim > 1 else b.reshape(-1, 1)
    if one.shape[-1] != other.shape[-2]:
        raise ValueError(
            "matmul: input operand 1 has a mismatch in its core dimension 0, with gufunc signature "
            f"(n?,k),(k,m?)->(n?,m?) (size {other.shape[-2]} is different from {one.shape[-1]})"
        )
    result = _stacked(one, other, kind)
    if a.ndim == 1:
        result = result.reshape(*result.shape[:-2], result.shape[-1])
    return result.reshape(result.shape[:-1]) if b.ndim == 1 else result


def _with_vector(name: str, matrix: int | None) -> Callable[..., Any]:
    """Returns the implementation of ``vecdot``, ``matvec`` or ``vecmat``; `matrix` is the index of the matrix
    operand, or None if both operands are vectors."""

    def work(a: Array, b: Array, kind: np.dtype[Any]) -> Any:
        if min(a.ndim - (matrix == 0), b.ndim - (matrix == 1)) < 1:
            raise ValueError(f"{name}: an input operand does not have enough dimensions")
        if a.shape[-1] != b.shape[-1 if matrix != 1 else -2]:
            raise ValueError(f"{name}: the operands have a mismatch in a core dimension: {a.shape}, {b.shape}")
        one = a if matrix == 0 else _conjugate(a)[..., None, :]
        other = b if matrix == 1 else b[..., None]
        result = _stacked(one, other, kind)
        result = result.reshape((*result.shape[:-2], result.shape[-1 if matrix == 1 else -2]))
        return result.reshape(result.shape[:-1]) if matrix is None else result

    return work


#: The functions with core axes, each with the number of core axes of its operands and of its result.
UFUNCS: dict[np.ufunc, tuple[Callable[..., Any], tuple[int, ...]]] = {np.matmul: (_matmul, (2, 2, 2))}
for _name, _matrix, _core_axes in (("vecdot", None, (1, 1, 0)), ("matvec", 0, (2, 1, 1)), ("vecmat", 1, (1, 2, 1))):
    if hasattr(np, _name):
        UFUNCS[getattr(np, _name)] = (_with_vector(_name, _matrix), _core_axes)


def applied(
    ufunc: np.ufunc,
    a: Any,
    b: Any,
    out: Any = None,
    *,
    dtype: Any = None,
    casting: str = "same_kind",
    axes: Any = None,
    axis: Any = None,
    keepdims: bool = False,
    order: str = "K",
    subok: bool = True,
) -> Any:
    """Computes ``matmul`` or another ufunc that works on whole vectors or matrices (core axes)."""
    if order not in ("K", "C", "A"):
        raise NotOnDevices
    work, core_axes = UFUNCS[ufunc]
    kind = _types(ufunc, (a, b), None if dtype is None else np.dtype(dtype), casting)[-1].newbyteorder("=")
    if kind.kind not in _NUMBERS:
        raise NotOnDevices
    a, b = _own(a, b), _own(b, a)
    if axis is not None or keepdims:
        if core_axes != (1, 1, 0):
            raise TypeError(f"{ufunc.__name__}: axis and keepdims cannot be used with more than one core dimension")
        axes = [(axis,), (axis,)] if axis is not None else None
    if axes is not None:
        axes = [one if isinstance(one, (tuple, list)) else (operator.index(one),) for one in axes]
        a, b = (
            np.moveaxis(one, own, range(-len(own), 0)) if len(own) == count else _wrong_axes()
            for one, own, count in zip((a, b), axes, core_axes)
        )
    result = work(a, b, kind)
    if keepdims:
        result = np.expand_dims(result, -1 if axis is None else axis)
    elif axes is not None and core_axes[2] and len(axes) > 2:
        if len(axes[2]) != core_axes[2]:
            _wrong_axes()
        result = np.moveaxis(result, range(-core_axes[2], 0), axes[2])
    out = out[0] if isinstance(out, tuple) else out
    if out is None:
        return _scalar(result)
    if np.shape(out) != result.shape:
        raise ValueError(f"non-broadcastable output operand with shape {np.shape(out)} doesn't match {result.shape}")
    if not np.can_cast(result.dtype, out.dtype, casting):
        _raised_by_numpy(np.positive, (result,), None, casting, (out,))
    return _written(out, result, True, casting, ufunc, True)


def _wrong_axes() -> Any:
    raise np.exceptions.AxisError("`axes` must have a tuple for each operand, with an axis for each core dimension")


# Product functions of NumPy that are no ufuncs.


def _both(a: Any, b: Any) -> tuple[Array, Array, np.dtype[Any]]:
    one, other = _own(a, b), _own(b, a)
    return one, other, _kind(one, other)


def _scaled(a: Array, b: Array, kind: np.dtype[Any]) -> Any:
    return np.multiply(a, b, dtype=kind) if a.ndim + b.ndim else np.multiply(np.asarray(a), np.asarray(b))[()]


def dot(a: Any, b: Any) -> Any:
    """Like ``numpy.dot``.

    Examples
    --------
    >>> import numpy as np, vmarray as vm
    >>> np.dot(vm.arange(3), vm.arange(3))
    np.int64(5)
    """
    one, other, kind = _both(a, b)
    if not one.ndim or not other.ndim:
        return _scaled(one, other, kind)
    along = max(0, other.ndim - 2)
    if one.shape[-1] != other.shape[along]:
        raise ValueError(f"shapes {one.shape} and {other.shape} not aligned: {one.shape[-1]} != {other.shape[along]}")
    return _contracted(one, other, [one.ndim - 1], [along], kind)


def inner(a: Any, b: Any) -> Any:
    """Like ``numpy.inner``.

    Examples
    --------
    >>> import numpy as np, vmarray as vm
    >>> np.inner(vm.arange(4).reshape(2, 2), [1, 2])
    Array([2, 8], dtype=int64)
    """
    one, other, kind = _both(a, b)
    if not one.ndim or not other.ndim:
        return _scaled(one, other, kind)
    if one.shape[-1] != other.shape[-1]:
        raise ValueError(f"shapes {one.shape} and {other.shape} not aligned: {one.shape[-1]} != {other.shape[-1]}")
    return _contracted(one, other, [one.ndim - 1], [other.ndim - 1], kind)


def vdot(a: Any, b: Any) -> Any:
    """Like ``numpy.vdot``.

    Examples
    --------
    >>> import numpy as np, vmarray as vm
    >>> np.vdot(vm.array([1j, 2]), vm.array([1j, 2]))
    np.complex128(5+0j)
    """
    one, other, kind = _both(a, b)
    if one.size != other.size:
        raise ValueError(f"cannot reshape array of size {other.size} into shape ({one.size},)")
    return _contracted(_conjugate(one.reshape(-1)), other.reshape(-1), [0], [0], kind)


def tensordot(a: Any, b: Any, axes: Any = 2) -> Any:
    """Like ``numpy.tensordot``.

    Examples
    --------
    >>> import numpy as np, vmarray as vm
    >>> np.tensordot(vm.arange(6).reshape(2, 3), vm.arange(3), axes=1)
    Array([ 5, 14], dtype=int64)
    """
    one, other, kind = _both(a, b)
    try:
        of_a, of_b = axes
    except TypeError:
        count = operator.index(axes)
        of_a, of_b = list(range(-count, 0)), list(range(count))
    of_a, of_b = ([*own] if isinstance(own, (tuple, list)) else [own] for own in (of_a, of_b))
    if len(of_a) != len(of_b):
        raise ValueError("shape-mismatch for sum")
    # As in NumPy, a missing axis is an IndexError only if all earlier pairs have equal extents.
    if any(one.shape[x] != other.shape[y] for x, y in zip(of_a, of_b)):
        raise ValueError("shape-mismatch for sum")
    of_a, of_b = [axis % one.ndim for axis in of_a], [axis % other.ndim for axis in of_b]
    if len(set(of_a)) < len(of_a) or len(set(of_b)) < len(of_b):
        raise ValueError("repeated axis in transpose")
    return _contracted(one, other, of_a, of_b, kind, False)


def _contracted(
    a: Array, b: Array, of_a: list[int], of_b: list[int], kind: np.dtype[Any], is_number: bool = True
) -> Any:
    """Sums products along the pairs of axes `of_a` and `of_b`. In the result, other axes of `a` come first."""
    rows = [axis for axis in range(a.ndim) if axis not in of_a]
    columns = [axis for axis in range(b.ndim) if axis not in of_b]
    shape = [a.shape[axis] for axis in rows] + [b.shape[axis] for axis in columns]
    depth = math.prod(a.shape[axis] for axis in of_a)
    one = a.transpose(rows + of_a).reshape(math.prod(shape[: len(rows)]), depth)
    other = b.transpose(of_b + columns).reshape(depth, math.prod(shape[len(rows) :]))
    result = _stacked(one, other, kind).reshape(shape)
    return _scalar(result) if is_number else result


def outer(a: Any, b: Any) -> Array:
    """Like ``numpy.outer``.

    Examples
    --------
    >>> import numpy as np, vmarray as vm
    >>> np.outer(vm.arange(2), [1, 2])
    Array([[0, 0],
           [1, 2]], dtype=int64)
    """
    if type(a) in (bool, int, float, complex) or type(b) in (bool, int, float, complex):
        # Let NumPy handle a Python number, which takes the dtype of the other operand.
        raise NotOnDevices
    return np.multiply(_own(a, b).reshape(-1, 1), _own(b, a).reshape(-1))


def kron(a: Any, b: Any) -> Array:
    """Like ``numpy.kron``.

    Examples
    --------
    >>> import numpy as np, vmarray as vm
    >>> np.kron(vm.arange(2), [1, 1])
    Array([0, 0, 1, 1], dtype=int64)
    """
    if type(a) in (bool, int, float, complex) or type(b) in (bool, int, float, complex):
        raise NotOnDevices
    one, other, kind = _both(a, b)
    if not one.ndim or not other.ndim:
        return _scaled(one, other, kind)
    count = max(one.ndim, other.ndim)
    shapes = [(1,) * (count - array.ndim) + array.shape for array in (one, other)]
    wide = [
        array.reshape([extent for pair in pairs for extent in pair])
        for array, pairs in (
            (one, [(extent, 1) for extent in shapes[0]]),
            (other, [(1, extent) for extent in shapes[1]]),
        )
    ]
    return np.multiply(*wide).reshape([x * y for x, y in zip(*shapes)])


def norm(x: Any, ord: Any = None, axis: Any = None, keepdims: bool = False) -> Any:
    """Like ``numpy.linalg.norm``, except matrix norms that need singular values.

    Examples
    --------
    >>> import numpy as np, vmarray as vm
    >>> np.linalg.norm(vm.array([3.0, 4.0]))
    np.float64(5.0)
    """
    array = _own(x)
    if array.dtype.kind not in _NUMBERS or not array.dtype.isnative:
        raise NotOnDevices
    array = array if array.dtype.kind in "fc" else array.astype(float)
    if axis is None and (ord is None or (ord in ("f", "fro") and array.ndim == 2) or (ord == 2 and array.ndim == 1)):
        total = np.sqrt(_squares(array.reshape(-1), None))
        return total.reshape((1,) * array.ndim) if keepdims else total
    axes = tuple(range(array.ndim)) if axis is None else axis if isinstance(axis, tuple) else (operator.index(axis),)
    axes = np.lib.array_utils.normalize_axis_tuple(axes, array.ndim)
    if len(axes) == 1:
        return _vector_norm(array, ord, axes[0], keepdims)
    if len(axes) != 2:
        raise ValueError("Improper number of dimensions to norm.")
    if ord in (None, "fro", "f"):
        return np.sqrt(_squares(array, axes, keepdims))
    if ord in (2, -2, "nuc"):
        raise NotOnDevices
    if ord not in (1, -1, np.inf, -np.inf):
        raise ValueError("Invalid norm order for matrices.")
    along, other = axes if abs(ord) == 1 else axes[::-1]
    sums = np.abs(array).sum(axis=along, keepdims=True)
    result = (np.max if ord > 0 else np.min)(sums, axis=other, keepdims=True)
    return result if keepdims else np.squeeze(result, axis=tuple(axes))[()]


def _squares(array: Array, axes: Any, keepdims: bool = False) -> Any:
    squares = np.square(array.real) + np.square(array.imag) if array.dtype.kind == "c" else np.square(array)
    return np.sum(squares, axis=axes, keepdims=keepdims)


def _vector_norm(array: Array, order: Any, axis: int, keepdims: bool) -> Any:
    if order is None or order == 2:
        return np.sqrt(_squares(array, axis, keepdims))
    if isinstance(order, str):
        raise ValueError(f"Invalid norm order '{order}' for vectors")
    if order in (np.inf, -np.inf):
        return (np.max if order > 0 else np.min)(np.abs(array), axis=axis, keepdims=keepdims)
    if order == 0:
        return np.sum((array != 0).astype(array.real.dtype), axis=axis, keepdims=keepdims)
    if order == 1:
        return np.sum(np.abs(array), axis=axis, keepdims=keepdims)
    return np.sum(np.abs(array) ** order, axis=axis, keepdims=keepdims) ** (1 / order)


# Einstein summation.


def einsum(
    *operands: Any,
    dtype: Any = None,
    order: str = "K",
    casting: str = "safe",
    optimize: Any = False,
) -> Any:
    """Like ``numpy.einsum``; contracts operands pair by pair, in the order of ``numpy.einsum_path``.

    Examples
    --------
    >>> import numpy as np, vmarray as vm
    >>> np.einsum("ij,kj->ik", vm.arange(4).reshape(2, 2), vm.ones((3, 2), int))
    Array([[1, 1, 1],
           [5, 5, 5]], dtype=int64)
    """
    if order not in ("K", "C", "A"):
        raise NotOnDevices
    terms, gives, arrays = _labels(operands)
    arrays = [_own(one, *arrays) for one in arrays]
    kind = _kind(*arrays) if dtype is None else np.dtype(dtype)
    if kind.kind not in _NUMBERS or not kind.isnative:
        raise NotOnDevices
    if not all(np.can_cast(one.dtype, kind, casting) for one in arrays):
        raise TypeError(f"Iterator operand required a cast by the rule {casting!r} to {kind}")
    extents = _extents(terms, arrays)
    if any(label not in extents for label in gives) or len(set(gives)) < len(gives):
        raise ValueError("einstein sum subscripts string has an output label that no operand has, or has twice")
    parts = [_single(array, term, kind, extents) for array, term in zip(arrays, terms)]
    if len(parts) == 1:
        return _given(*_reduced(*parts[0], set(gives), kind), gives)
    for pair in _path(terms, gives, arrays, optimize):
        chosen = [parts.pop(place) for place in sorted(pair, reverse=True)][::-1]
        kept = set(gives).union(*(labels for _, labels in parts))
        result = chosen[0]
        for number, other in enumerate(chosen[1:], 2):
            rest = kept.union(*(labels for _, labels in chosen[number:]))
            result = _pair(result, other, rest, kind, extents)
        parts.append(result)
    return _given(*_reduced(*parts[0], set(gives), kind), gives)


def _viewed(operands: tuple[Any, ...]) -> Array | None:
    """The view that ``einsum`` returns for one array if no axis is summed; None otherwise."""
    terms, gives, arrays = _labels(operands)
    if len(arrays) != 1 or set(gives) != set(terms[0]) or len(set(gives)) < len(gives):
        return None
    array, labels = _single(arrays[0], terms[0], arrays[0].dtype, _extents(terms, arrays))
    view = array.transpose([labels.index(label) for label in gives])
    # Unlike a diagonal of NumPy's, the view is writable.
    view.flags.writeable = arrays[0].flags.writeable
    return view


def _labels(operands: tuple[Any, ...]) -> tuple[list[list[Any]], list[Any], list[Any]]:
    """The labels of the axes of each operand and of the result. The label of an axis under an ellipsis is a pair with
    the axis number, counted from the last axis."""
    if not operands:
        raise ValueError("must specify the einstein sum subscripts string and at least one operand")
    if isinstance(operands[0], str):
        text, arrays = operands[0].replace(" ", ""), list(operands[1:])
        left, arrow, right = text.partition("->")
        terms = [_split(one) for one in left.split(",")]
        gives = _split(right) if arrow else None
    else:
        count = len(operands) // 2
        arrays = [operands[2 * number] for number in range(count)]
        terms = [[*operands[2 * number + 1]] for number in range(count)]
        gives = [*operands[-1]] if len(operands) % 2 else None
    if len(terms) != len(arrays) or not arrays:
        raise ValueError("the einstein sum subscripts string has another number of terms than there are operands")
    most = 0
    for number, (term, array) in enumerate(zip(terms, arrays)):
        hidden = np.ndim(array) - sum(label is not Ellipsis for label in term)
        if hidden < 0 or (hidden and Ellipsis not in term):
            raise ValueError(f"einstein sum subscripts string has the wrong number of labels for operand {number}")
        terms[number] = _spelled(term, hidden)
        most = max(most, hidden if Ellipsis in term else 0)
    every = [label for term in terms for label in term if not isinstance(label, tuple)]
    if gives is None:
        gives = [Ellipsis, *sorted(label for label in set(every) if every.count(label) == 1)]
    elif most and Ellipsis not in gives:
        raise ValueError("the output has no ellipsis, but ellipses of operands cover axes")
    return terms, _spelled(gives, most), arrays


def _split(text: str) -> list[Any]:
    before, dots, after = text.partition("...")
    labels = [*before, Ellipsis, *after] if dots else [*before]
    if any(not (label is Ellipsis or (label.isascii() and label.isalpha())) for label in labels):
        raise ValueError(f"invalid subscript in {text!r} in einstein sum subscripts string, subscripts must be letters")
    return labels


def _spelled(term: list[Any], hidden: int) -> list[Any]:
    if term.count(Ellipsis) > 1:
        raise ValueError("einstein sum subscripts string contains several ellipses in one term")
    pairs = [("...", number) for number in range(hidden, 0, -1)]
    return [own for label in term for own in (pairs if label is Ellipsis else [label])]


def _extents(terms: list[list[Any]], arrays: list[Array]) -> dict[Any, int]:
    extents: dict[Any, int] = {}
    for term, array in zip(terms, arrays):
        for label, extent in zip(term, array.shape):
            known = extents.setdefault(label, extent)
            if known == 1:
                extents[label] = extent
            elif extent not in (1, known):
                raise ValueError(f"operand has a mismatch in the extent of label {label!r}: {extent} and {known}")
    return extents


def _path(terms: list[list[Any]], gives: list[Any], arrays: list[Array], optimize: Any) -> list[tuple[int, ...]]:
    """The pairs of operands to contract, in order."""
    if isinstance(optimize, (list, tuple)) and optimize and optimize[0] == "einsum_path":
        return [*optimize[1:]]
    names: dict[Any, int] = {}
    interleaved: list[Any] = []
    for term, array in zip(terms, arrays):
        interleaved.append(np.broadcast_to(np.zeros(()), array.shape))
        interleaved.append([names.setdefault(label, len(names)) for label in term])
    if len(names) > 52:
        return [(0, 1)] * (len(arrays) - 1)
    interleaved.append([names[label] for label in gives])
    return np.einsum_path(*interleaved, optimize=optimize or "greedy")[0][1:]


def _single(array: Array, labels: list[Any], kind: np.dtype[Any], extents: dict[Any, int]) -> tuple[Array, list[Any]]:
    """Simplifies an operand, so that each label has one axis with the full extent of the label."""
    labels = [*labels]
    while len(set(labels)) < len(labels):
        label = next(one for one in labels if labels.count(one) > 1)
        first = labels.index(label)
        second = labels.index(label, first + 1)
        if array.shape[first] != array.shape[second]:
            axis = first if array.shape[first] == 1 else second
            array = array[(*(slice(None),) * axis, 0)]
            del labels[axis]
            continue
        array = array.diagonal(0, first, second)
        labels = [one for axis, one in enumerate(labels) if axis not in (first, second)] + [label]
    array = array.astype(kind, copy=False)
    shape = tuple(extents[label] for label in labels)
    return array if array.shape == shape else np.broadcast_to(array, shape), labels


def _reduced(array: Array, labels: list[Any], kept: set[Any], kind: np.dtype[Any]) -> tuple[Array, list[Any]]:
    """Adds up the items along the axes whose labels are not in `kept`."""
    axes = tuple(axis for axis, label in enumerate(labels) if label not in kept)
    if not axes:
        return array, labels
    total = np.any(array, axis=axes) if kind == np.bool_ else summed(array, axes, kind)
    return _own(total, array), [label for label in labels if label in kept]


def _pair(
    one: tuple[Array, list[Any]], other: tuple[Array, list[Any]], kept: set[Any], kind: np.dtype[Any], extents: Any
) -> tuple[Array, list[Any]]:
    """Contracts two operands: sums their products along the labels that are not in `kept`."""
    a, of_a = _reduced(*one, kept | set(other[1]), kind)
    b, of_b = _reduced(*other, kept | set(of_a), kind)
    stack = [label for label in of_a if label in of_b and label in kept]
    along = [label for label in of_a if label in of_b and label not in kept]
    rows, columns = ([label for label in labels if label not in stack + along] for labels in (of_a, of_b))
    shape = {name: [extents[label] for label in labels] for name, labels in (("s", stack), ("r", rows), ("c", columns))}
    a = a.transpose([of_a.index(label) for label in stack + rows + along])
    b = b.transpose([of_b.index(label) for label in stack + along + columns])
    if not along:
        a = a.reshape(*shape["s"], *shape["r"], *(1,) * len(columns))
        b = b.reshape(*shape["s"], *(1,) * len(rows), *shape["c"])
        return _own(np.multiply(a, b), a), stack + rows + columns
    depth = math.prod(extents[label] for label in along)
    a = a.reshape(*shape["s"], math.prod(shape["r"]), depth)
    b = b.reshape(*shape["s"], depth, math.prod(shape["c"]))
    return _stacked(a, b, kind).reshape(*shape["s"], *shape["r"], *shape["c"]), stack + rows + columns


def _given(array: Array, labels: list[Any], gives: list[Any]) -> Any:
    return _scalar(array.transpose([labels.index(label) for label in gives]) if labels != gives else array)


#: The package's own functions, by NumPy's.
FUNCTIONS: dict[Any, Any] = {
    np.dot: dot, np.inner: inner, np.vdot: vdot, np.tensordot: tensordot, np.outer: outer, np.kron: kron,
    np.einsum: einsum,
}  # fmt: skip
#: Functions of ``numpy.linalg`` that are the package's own, or are functions with core axes.
LINALG: dict[Any, Any] = {np.linalg.norm: norm}
for _name in ("matmul", "tensordot", "vecdot"):
    if hasattr(np.linalg, _name):
        LINALG[getattr(np.linalg, _name)] = getattr(np, _name)


def is_ours(arrays: list[Array]) -> bool:
    """True if the package should multiply the arrays, instead of NumPy on copies in RAM."""
    return sum(one.nbytes for one in arrays) > min(_dispatch.RAM_BYTES_MAX, PRODUCT_BYTES)


def called(function: Any, args: tuple[Any, ...], given: dict[str, Any]) -> Any:
    """Calls a product function: the package's own for large arrays, NumPy's on copies of small arrays."""
    work = FUNCTIONS.get(function) or LINALG[function]
    if work is not norm and function in LINALG:
        return work(*args, **({"axis": -1, **given} if function.__name__ == "vecdot" else given))
    places, named = _dispatch._bound(function, args, given)
    if work is einsum and not named and len(_dispatch.arrays_in(places)) == 1:
        view = _viewed(places)
        if view is not None:
            return view
    if named.get("out", 0) is None:
        del named["out"]
    if is_ours(_dispatch.arrays_in([places, named])):
        kept = {name: one for name, one in named.items() if name != "out"}
        try:
            return _dispatch.given_to(named.get("out"), work(*places, **kept))
        except NotOnDevices:
            pass
    return _dispatch.on_copies(function, places, named)


def called_ufunc(ufunc: np.ufunc, inputs: tuple[Any, ...], given: dict[str, Any]) -> Any:
    """Calls a ufunc on vectors or matrices: the package's own for large arrays, NumPy's on copies of small arrays."""
    if ufunc in UFUNCS and is_ours(_dispatch.arrays_in([inputs, given])):
        try:
            return applied(ufunc, *inputs, **given)
        except NotOnDevices:
            pass
    return _dispatch.on_copies(ufunc, inputs, given)
