"""Compiles kernels: Python functions of numbers, read from their syntax trees and computed for all items at once.

The compiler evaluates the syntax tree with expressions in place of numbers. For a condition it computes both branches
and selects one value; it unrolls loops with known limits. The result is one expression, lowered as any other.
"""

from __future__ import annotations

import ast
import functools
import importlib
import inspect
import math
import operator
import sys
import textwrap
from typing import Any

import numpy as np

from . import _array
from ._array import Array
from ._errors import KernelError
from ._shapes import pad

_BINARY = {
    ast.Add: np.add, ast.Sub: np.subtract, ast.Mult: np.multiply, ast.Div: np.true_divide,
    ast.FloorDiv: np.floor_divide, ast.Mod: np.remainder, ast.Pow: np.power, ast.BitAnd: np.bitwise_and,
    ast.BitOr: np.bitwise_or, ast.BitXor: np.bitwise_xor, ast.LShift: np.left_shift, ast.RShift: np.right_shift,
}  # fmt: skip
_OF_NUMBERS = {
    ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul, ast.Div: operator.truediv,
    ast.FloorDiv: operator.floordiv, ast.Mod: operator.mod, ast.Pow: operator.pow, ast.BitAnd: operator.and_,
    ast.BitOr: operator.or_, ast.BitXor: operator.xor, ast.LShift: operator.lshift, ast.RShift: operator.rshift,
}  # fmt: skip
_COMPARED = {
    ast.Eq: operator.eq, ast.NotEq: operator.ne, ast.Lt: operator.lt, ast.LtE: operator.le, ast.Gt: operator.gt,
    ast.GtE: operator.ge,
}  # fmt: skip
#: Functions of the module ``math`` that NumPy calls by another name.
_MATH = {
    "acos": "arccos", "acosh": "arccosh", "asin": "arcsin", "asinh": "arcsinh", "atan": "arctan", "atan2": "arctan2",
    "atanh": "arctanh", "pow": "power",
}  # fmt: skip
_STATEMENTS = (ast.Assign, ast.AugAssign, ast.AnnAssign, ast.If, ast.For, ast.Return, ast.Pass, ast.Expr)
_EXPRESSIONS = (
    ast.BinOp, ast.UnaryOp, ast.BoolOp, ast.Compare, ast.IfExp, ast.Call, ast.Name, ast.Constant, ast.Subscript,
    ast.Attribute, ast.Tuple,
)  # fmt: skip


def _is_number(value: object) -> bool:
    """True if a value is a number, which is known before the devices compute any array."""
    return isinstance(value, (bool, int, float, complex, np.generic))

#: Most items near an edge that are copied to RAM at once.
_AT_ONCE = 1 << 22


def _mirrored(places: np.ndarray[Any, Any], extent: int) -> np.ndarray[Any, Any]:
    """Indices mirrored at the edges, without repeating the edge items."""
    around = max(1, 2 * extent - 2)
    return np.minimum(places % around, around - places % around) if extent > 1 else places * 0


#: For each mode of ``numpy.pad``, the index of the item that is read at a place beyond the axis; -1 means none.
_BEYOND: dict[str, Any] = {
    "constant": lambda places, extent: np.where((places < 0) | (places >= extent), -1, places),
    "edge": lambda places, extent: np.clip(places, 0, extent - 1),
    "wrap": lambda places, extent: places % extent,
    "reflect": _mirrored,
    "symmetric": lambda places, extent: np.minimum(places % (2 * extent), 2 * extent - 1 - places % (2 * extent)),
}


class _Neighbours:
    """A parameter of a kernel that reads an array's items and their neighbours."""

    def __init__(self, own: Any, at: Any) -> None:
        self.own, self.at = own, at


class _Run:
    """The state of one evaluation of a kernel's syntax tree."""

    def __init__(self, kernel: Kernel, known: dict[str, Any]) -> None:
        self.kernel, self.known = kernel, known

    def fail(self, node: Any, text: str) -> Any:
        raise self.kernel.error(node, text)

    def block(self, statements: list[Any], scope: dict[str, Any]) -> Any:
        """Runs statements. Returns the value of a ``return`` statement, if one is reached."""
        for number, one in enumerate(statements):
            if isinstance(one, ast.Return):
                return (
                    self.expression(one.value, scope)
                    if one.value is not None
                    else self.fail(one, "the kernel returns no value; end it with `return`")
                )
            if isinstance(one, ast.If):
                condition = self.truth(one.test, scope)
                if _is_number(condition):
                    return self.block([*(one.body if condition else one.orelse), *statements[number + 1 :]], scope)
                if any(isinstance(inner, ast.Return) for inner in ast.walk(one)):
                    rest = statements[number + 1 :]
                    yes, no = (self.block([*way, *rest], dict(scope)) for way in (one.body, one.orelse))
                    if yes is None or no is None:
                        self.fail(one, "a kernel must return a value on each path")
                    return self.chosen(one, condition, yes, no)
                yes, no = dict(scope), dict(scope)
                self.block(one.body, yes)
                self.block(one.orelse, no)
                for name in {*yes, *no}:
                    if name in yes and name in no:
                        same = yes[name] is no[name]
                        scope[name] = yes[name] if same else self.chosen(one, condition, yes[name], no[name])
                    else:
                        scope.pop(name, None)
            elif isinstance(one, ast.For):
                self.loop(one, scope)
            else:
                self.assignment(one, scope)
        return None

    def loop(self, node: ast.For, scope: dict[str, Any]) -> None:
        call = node.iter
        if node.orelse or not isinstance(node.target, ast.Name):
            self.fail(node, "a loop has one name and no else")
        if not isinstance(call, ast.Call) or not isinstance(call.func, ast.Name) or call.func.id != "range":
            self.fail(node, "a loop goes over range(...)")
        limits = [self.expression(one, scope) for one in call.args]
        if call.keywords or not all(isinstance(one, (int, np.integer)) for one in limits):
            self.fail(node, "the limits of a loop are integers that are known before it")
        for number in range(*map(int, limits)):
            scope[node.target.id] = number
            self.block(node.body, scope)

    def assignment(self, node: Any, scope: dict[str, Any]) -> None:
        if isinstance(node, ast.Pass) or (isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)):
            return
        if isinstance(node, ast.Expr) or (isinstance(node, ast.AnnAssign) and node.value is None):
            self.fail(node, "an expression by itself does nothing")
        if isinstance(node, ast.AugAssign):
            value = self.binary(
                node, node.op, self.expression(_loaded(node.target), scope), self.expression(node.value, scope)
            )
            return self.named(node.target, value, scope)
        value = self.expression(node.value, scope)
        for target in node.targets if isinstance(node, ast.Assign) else [node.target]:
            self.named(target, value, scope)

    def named(self, target: Any, value: Any, scope: dict[str, Any]) -> None:
        if isinstance(target, ast.Tuple) and isinstance(value, tuple) and len(target.elts) == len(value):
            for one, part in zip(target.elts, value):
                self.named(one, part, scope)
        elif isinstance(target, ast.Name):
            scope[target.id] = value
        else:
            self.fail(target, "values are given to names alone; return what items are to be")

    def chosen(self, node: Any, condition: Any, yes: Any, no: Any) -> Any:
        if isinstance(yes, tuple) or isinstance(no, tuple):
            if not (isinstance(yes, tuple) and isinstance(no, tuple) and len(yes) == len(no)):
                self.fail(node, "both ways give as many values")
            return tuple(self.chosen(node, condition, *both) for both in zip(yes, no))
        return np.where(condition, self.value(node, yes), self.value(node, no))

    def value(self, node: Any, value: Any) -> Any:
        """Returns the operand for a value. For a parameter whose neighbours the kernel reads, this is the item at
        distance 0.
        """
        if isinstance(value, _Neighbours):
            return value.at(())
        if isinstance(value, tuple):
            self.fail(node, "a tuple is no number")
        return value

    def truth(self, node: Any, scope: dict[str, Any]) -> Any:
        value = self.value(node, self.expression(node, scope))
        if _is_number(value):
            return bool(value)
        return value if value.dtype == np.bool_ else value != 0

    def binary(self, node: Any, op: Any, left: Any, right: Any) -> Any:
        left, right = self.value(node, left), self.value(node, right)
        if type(op) not in _BINARY:
            self.fail(node, f"kernels have no operator {type(op).__name__}")
        try:
            if _is_number(left) and _is_number(right):
                return _OF_NUMBERS[type(op)](left, right)
            return _BINARY[type(op)](left, right)
        except (TypeError, OverflowError, ZeroDivisionError) as error:
            raise self.kernel.error(node, str(error)) from error

    def expression(self, node: Any, scope: dict[str, Any]) -> Any:
        work = getattr(self, "of_" + type(node).__name__.lower(), None)
        return work(node, scope) if work else self.fail(node, f"kernels have no {type(node).__name__}")

    def of_constant(self, node: ast.Constant, scope: dict[str, Any]) -> Any:
        return node.value if _is_number(node.value) else self.fail(node, f"{node.value!r} is no number")

    def of_name(self, node: ast.Name, scope: dict[str, Any]) -> Any:
        if node.id in scope:
            return scope[node.id]
        value = self.known.get(node.id, self)
        if value is self:
            self.fail(node, f"{node.id} has no value here on some path; assign it on each path")
        return value if _is_number(value) else self.fail(node, f"{node.id} is neither a parameter nor a number")

    def of_attribute(self, node: ast.Attribute, scope: dict[str, Any]) -> Any:
        value = self.named_outside(node)
        return value if _is_number(value) else self.fail(node, f"{ast.unparse(node)} is no number")

    def of_tuple(self, node: ast.Tuple, scope: dict[str, Any]) -> tuple[Any, ...]:
        return tuple(self.value(one, self.expression(one, scope)) for one in node.elts)

    def of_binop(self, node: ast.BinOp, scope: dict[str, Any]) -> Any:
        return self.binary(node, node.op, self.expression(node.left, scope), self.expression(node.right, scope))

    def of_unaryop(self, node: ast.UnaryOp, scope: dict[str, Any]) -> Any:
        if isinstance(node.op, ast.Not):
            value = self.truth(node.operand, scope)
            return not value if _is_number(value) else ~value
        value = self.value(node, self.expression(node.operand, scope))
        try:
            if isinstance(node.op, ast.Invert):
                return ~value
            return -value if isinstance(node.op, ast.USub) else +value
        except TypeError as error:
            raise self.kernel.error(node, str(error)) from error

    def of_boolop(self, node: ast.BoolOp, scope: dict[str, Any]) -> Any:
        is_and, result = isinstance(node.op, ast.And), None
        for one in node.values:
            value = self.truth(one, scope)
            if result is None or (_is_number(result) and result == is_and):
                result = value
            elif not _is_number(result) and not (_is_number(value) and value == is_and):
                result = (np.logical_and if is_and else np.logical_or)(result, value)
            if _is_number(result) and result != is_and:
                return result
        return result

    def of_compare(self, node: ast.Compare, scope: dict[str, Any]) -> Any:
        values = [self.value(one, self.expression(one, scope)) for one in (node.left, *node.comparators)]
        result: Any = True
        for op, left, right in zip(node.ops, values, values[1:]):
            if type(op) not in _COMPARED:
                self.fail(node, f"kernels have no operator {type(op).__name__}")
            one = _COMPARED[type(op)](left, right)
            if _is_number(result):
                result = one if result else result
            else:
                result = np.logical_and(result, one)
        return result

    def of_ifexp(self, node: ast.IfExp, scope: dict[str, Any]) -> Any:
        condition = self.truth(node.test, scope)
        if _is_number(condition):
            return self.expression(node.body if condition else node.orelse, scope)
        return self.chosen(node, condition, self.expression(node.body, scope), self.expression(node.orelse, scope))

    def of_subscript(self, node: ast.Subscript, scope: dict[str, Any]) -> Any:
        value = self.expression(node.value, scope)
        key = node.slice.elts if isinstance(node.slice, ast.Tuple) else [node.slice]
        offsets = [self.expression(one, scope) for one in key]
        if not all(isinstance(one, (int, np.integer)) and not isinstance(one, bool) for one in offsets):
            self.fail(node, "the number of a neighbour is an integer that is known beforehand")
        if isinstance(value, tuple):
            return value[offsets[0]]
        if not isinstance(value, _Neighbours):
            self.fail(node, "only items of parameters that are arrays have neighbours")
        if len(offsets) != value.own.ndim:
            self.fail(node, f"a neighbour has an integer for each of {value.own.ndim} axes")
        return value.at(tuple(map(int, offsets)))

    def named_outside(self, node: Any) -> Any:
        """The value of a name defined outside of the kernel, such as ``np.pi``."""
        if isinstance(node, ast.Name):
            return self.known.get(node.id)
        if isinstance(node, ast.Attribute):
            return getattr(self.named_outside(node.value), node.attr, None)
        return None

    def of_call(self, node: ast.Call, scope: dict[str, Any]) -> Any:
        function, name = self.named_outside(node.func), ast.unparse(node.func)
        if node.keywords:
            self.fail(node, "functions in kernels take no keywords")
        arguments = [self.expression(one, scope) for one in node.args]
        if isinstance(function, Kernel):
            return function.carried_out(arguments)
        values = [self.value(one, argument) for one, argument in zip(node.args, arguments)]
        try:
            if function in (min, max) and len(values) > 1:
                if all(map(_is_number, values)):
                    return function(values)
                return functools.reduce(np.minimum if function is min else np.maximum, values)
            if function is abs:
                return abs(*values)
            if function is round and len(values) == 1:
                return np.rint(*values)
            if function in (bool, int, float) or (isinstance(function, type) and issubclass(function, np.generic)):
                (value,) = values
                return function(value) if _is_number(value) else value.astype(function)
            if function is np.where and len(values) == 3:
                return np.where(*values)
            module = getattr(function, "__module__", None)
            if module == "math" and all(map(_is_number, values)):
                return function(*values)
            if module == "math":
                function = getattr(np, _MATH.get(function.__name__, function.__name__), None)
            if isinstance(function, np.ufunc) and function.nout == 1 and len(values) == function.nin:
                return function(*values)
        except (TypeError, ValueError) as error:
            raise self.kernel.error(node, str(error)) from error
        return self.fail(
            node, f"{name} is no function of kernels: take functions of NumPy and math for each item, or kernels"
        )


def _loaded(target: Any) -> Any:
    return ast.copy_location(ast.Name(target.id, ast.Load()), target) if isinstance(target, ast.Name) else target


class _Module:
    """The name of a module that a kernel uses, in a pickle."""

    def __init__(self, name: str) -> None:
        self.name = name


def _travelled(state: dict[str, Any]) -> Kernel:
    """Unpickles a kernel."""
    kernel = object.__new__(Kernel)
    vars(kernel).update(state)
    kernel._known = {
        name: importlib.import_module(one.name) if isinstance(one, _Module) else one
        for name, one in state["_known"].items()
    }
    return kernel


class Kernel:
    """A function of items that devices compute for all items of arrays; see `kernel`."""

    def __init__(self, function: Any) -> None:
        functools.update_wrapper(self, function)
        lines, self._first = inspect.getsourcelines(function)
        self._lines, self._file = lines, inspect.getsourcefile(function) or "?"
        (self._tree,) = ast.parse(textwrap.dedent("".join(lines))).body
        self._function = function
        self._indent = len(lines[0]) - len(lines[0].lstrip())
        given = self._tree.args
        if given.vararg or given.kwarg or given.kwonlyargs or given.posonlyargs:
            raise self.error(self._tree, "kernels take only plain parameters, without `*args`, `**kwargs`, `*` and `/`")
        self._check(self._tree.body)
        self._signature = inspect.signature(function)
        #: The names outside of the function that it uses; only after it has travelled to this process.
        self._known: dict[str, Any] | None = None

    def __reduce__(self) -> Any:
        """Pickles the name of a kernel in a module, and a kernel in a function or in a script with its source."""
        found: Any = sys.modules.get(self.__module__) if self.__module__ != "__main__" else None
        for name in self.__qualname__.split("."):
            found = getattr(found, name, None)
        if found is self:
            return self.__qualname__
        names = {one.id for one in ast.walk(self._tree) if isinstance(one, ast.Name)}
        known = {name: _Module(one.__name__) if inspect.ismodule(one) else one for name, one in self._outside().items()}
        state = {name: value for name, value in vars(self).items() if name not in ("_function", "__wrapped__")}
        return _travelled, (state | {"_known": {name: one for name, one in known.items() if name in names}},)

    def _outside(self) -> dict[str, Any]:
        if self._known is not None:
            return self._known
        outside = inspect.getclosurevars(self._function)
        return {**outside.builtins, **outside.globals, **outside.nonlocals}

    def error(self, node: Any, text: str) -> KernelError:
        """Creates an error that shows the line of the syntax node `node` in the kernel's source."""
        number = node.lineno - 1
        line = self._lines[number] if number < len(self._lines) else ""
        place = (self._file, self._first + number, node.col_offset + self._indent + 1, line)
        return KernelError(text, place)

    def _check(self, statements: list[Any]) -> None:
        """Raises an error for any syntax that kernels do not support, even in code that never runs."""
        for one in statements:
            if not isinstance(one, _STATEMENTS):
                raise self.error(
                    one, f"kernels have no {type(one).__name__}: assign, return, branch by if, loop over range"
                )
            for child in ast.iter_child_nodes(one):
                if isinstance(child, ast.stmt):
                    self._check([child])
                elif isinstance(one, ast.AnnAssign) and child is one.annotation:
                    continue
                elif isinstance(child, ast.expr) and not (
                    isinstance(one, ast.Expr) and isinstance(child, ast.Constant)
                ):
                    for inner in ast.walk(child):
                        if isinstance(inner, ast.expr) and not isinstance(inner, _EXPRESSIONS):
                            raise self.error(inner, f"kernels have no {type(inner).__name__}")

    def carried_out(self, arguments: list[Any]) -> Any:
        names = [one.arg for one in self._tree.args.args]
        known = self._outside()
        try:
            bound = self._signature.bind(*arguments)
        except TypeError as error:
            raise TypeError(f"{self.__name__}() {error}") from None
        bound.apply_defaults()
        scope = {name: bound.arguments[name] for name in names}
        result = _Run(self, known).block(self._tree.body, scope)
        if result is None:
            raise self.error(self._tree, "the kernel returns no value; end it with `return`")
        return result

    def __call__(self, *arguments: Any, boundary: str = "constant", fill: Any = 0) -> Any:
        arrays = [_array.asarray(one, **_array._options_like(*arguments)) if np.ndim(one) else one for one in arguments]
        arrays = [one.item() if isinstance(one, (Array, np.ndarray)) and not one.ndim else one for one in arrays]
        shape = np.broadcast_shapes(*(one.shape for one in arrays if isinstance(one, Array)))
        # First run the kernel with placeholders, to find the neighbours that the kernel reads.
        asked: set[tuple[Any, ...]] = {(0,) * len(shape)}

        def sample(array: Array) -> _Neighbours:
            one = np.ones(1, array.dtype)

            def at(offsets: tuple[Any, ...]) -> np.ndarray[Any, Any]:
                asked.add(offsets or (0,) * len(shape))
                return one

            return _Neighbours(array, at)

        with np.errstate(all="ignore"):
            result = self.carried_out([sample(one) if isinstance(one, Array) else one for one in arrays])
        if not any(isinstance(one, Array) for one in arrays):
            return result
        if len(asked) == 1:
            return self._each_alone(arrays, shape)
        borders = [(max(0, -min(axis)), max(0, max(axis))) for axis in zip(*asked)]
        return self._run_neighbours(arrays, shape, borders, (boundary, fill))

    def _each_alone(self, arrays: list[Any], shape: tuple[int, ...]) -> Any:
        """Runs a kernel that reads no neighbours, or whose arrays have no items."""
        result = self.carried_out(
            [_Neighbours(one, lambda _, one=one: one) if isinstance(one, Array) else one for one in arrays]
        )
        return _each(result, lambda one: _spread_out(one, shape, arrays))

    def _run_neighbours(
        self, arrays: list[Any], shape: tuple[int, ...], borders: list[tuple[int, int]], beyond: tuple[str, Any]
    ) -> Any:
        """Runs a kernel that reads neighbours: from shifted sections of the arrays for inner items, and from padded
        copies for items near an edge."""
        if beyond[0] not in _BEYOND:
            raise TypeError(f"kernels do not support the boundary {beyond[0]!r}; use one of {', '.join(_BEYOND)}")
        if 0 in shape:
            return self._each_alone(arrays, shape)
        arrays = [one._fitted(shape) if isinstance(one, Array) else one for one in arrays]
        every = [range(extent) for extent in shape]
        inner = [range(before, extent - after) for extent, (before, after) in zip(shape, borders)]
        edges = [
            [*inner[:axis], edge, *every[axis + 1 :]]
            for axis, within in enumerate(inner)
            for edge in (range(within.start), range(within.stop, shape[axis]))
            if edge
        ]
        most = max(_AT_ONCE, math.prod(shape) // 8)
        if not all(inner) or any(math.prod(_wide(box, borders)) > most for box in edges):
            return _each(self._at_the_edge(arrays, shape, every, borders, beyond), Array.copy)
        results = self._at_a_distance(arrays, shape, borders)
        for box in edges:
            parts = self._at_the_edge(arrays, shape, box, borders, beyond)
            place = tuple(slice(one.start, one.stop) for one in box)
            for whole, part in zip(*((one if isinstance(one, tuple) else (one,)) for one in (results, parts))):
                whole[place] = part
        return results

    def _at_a_distance(self, arrays: list[Any], shape: tuple[int, ...], borders: list[tuple[int, int]]) -> Any:
        """Runs the kernel; neighbours come from sections of the flat arrays, shifted by a number of items. Results near
        the edges are wrong; the caller replaces these results."""
        strides = [math.prod(shape[number + 1 :]) for number in range(len(shape))]
        first, last = (sum(map(operator.mul, one, strides)) for one in zip(*borders))
        count = math.prod(shape) - first - last

        def sections(array: Array) -> _Neighbours:
            flat = array.reshape(-1)

            def at(offsets: tuple[Any, ...]) -> Array:
                start = first + sum(map(operator.mul, offsets, strides))
                return flat[start : start + count]

            return _Neighbours(array, at)

        def whole(one: Any) -> Array:
            one = _spread_out(one, (count,), arrays)
            result = _array._result((math.prod(shape),), one.dtype, **_array._options_like(*arrays))
            result[first : first + count] = one
            return result.reshape(shape)

        return _each(self.carried_out([sections(one) if isinstance(one, Array) else one for one in arrays]), whole)

    def _at_the_edge(
        self,
        arrays: list[Any],
        shape: tuple[int, ...],
        box: list[range],
        borders: list[tuple[int, int]],
        beyond: tuple[str, Any],
    ) -> Any:
        """Computes the results in `box`, near an edge, from copies padded by the widths `borders`, as `beyond` says.
        Returns views of larger arrays."""
        mode, fill = beyond
        wide = _wide(box, borders)
        # If every item of a large array is near an edge, pad the array on the devices instead of in RAM.
        is_whole = math.prod(wide) > _AT_ONCE and all(map(operator.eq, map(len, box), shape))
        places = [] if is_whole else [
            _BEYOND[mode](np.arange(of.start - before, of.stop + after), extent)
            for extent, of, (before, after) in zip(shape, box, borders)
        ]

        def copied(array: Array) -> Array:
            if is_whole:
                return pad(array, borders, mode, **({"constant_values": fill} if mode == "constant" else {}))
            starts = [np.min(axis, initial=extent, where=axis >= 0) for axis, extent in zip(places, shape)]
            ends = [max(axis.max(), start) + 1 for axis, start in zip(places, starts)]
            if math.prod(map(operator.sub, ends, starts)) <= 4 * math.prod(wide):
                # One box has the items: copy it at once.
                items = np.asarray(array[tuple(map(slice, starts, ends))])
                for number, axis in enumerate(places):
                    items = items.take(np.maximum(axis - starts[number], 0), number)
            else:
                items = np.asarray(array[np.ix_(*(np.maximum(axis, 0) for axis in places))])
            for number, axis in enumerate(places):
                items[(*[slice(None)] * number, axis < 0)] = np.asarray(fill)[()]
            return _array.asarray(items, **_array._options_like(array))

        results = self._at_a_distance([copied(one) if isinstance(one, Array) else one for one in arrays], wide, borders)
        inner = tuple(slice(before, before + len(of)) for of, (before, _) in zip(box, borders))
        return _each(results, lambda one: one[inner])


def _wide(box: list[range], borders: list[tuple[int, int]]) -> tuple[int, ...]:
    """The number of items along each axis of a box with its borders."""
    return tuple(len(of) + sum(border) for of, border in zip(box, borders))


def _each(result: Any, work: Any) -> Any:
    return tuple(map(work, result)) if isinstance(result, tuple) else work(result)


def _spread_out(value: Any, shape: tuple[Any, ...], arrays: list[Any]) -> Array:
    """Broadcasts a kernel's result to the shape of the arrays."""
    if isinstance(value, _Neighbours):
        value = value.at(())
    if isinstance(value, Array):
        return value if value.shape == shape else np.broadcast_to(value, shape)
    return _array.full(shape, value, **_array._options_like(*arrays))


def kernel(function: Any) -> Kernel:
    """Converts a function of numbers to a function of arrays, which devices compute for all items.

    The decorator translates the source of the function. The function may use assignments to names, ``if``, ``for`` over
    ``range`` of known integers, ``return`` of a value or several; arithmetic, comparisons, ``and``, ``or``, ``not``;
    functions of NumPy and ``math`` for one item, ``abs``, ``min``, ``max``, ``int``, ``float``, ``bool``; other
    kernels; numbers from outside. Anything else is a `KernelError` at its line.

    If an argument is an array, its parameter means one item of the array. With integers in brackets, one for each axis,
    ``x[-1, 0]`` means the item at this distance: the item above. Types follow NumPy's rules. Both branches of an
    ``if`` are computed.

    Call the result with arrays, which are broadcast, or with numbers. ``boundary`` gives the values beyond the edges: a
    mode of ``numpy.pad`` that repeats items, or ``"constant"``, with the value ``fill``.

    Examples
    --------
    >>> import vmarray as vm
    >>> @vm.kernel
    ... def smooth(x, limit):
    ...     middle = (x[-1] + x[0] + x[1]) / 3
    ...     return middle if abs(x - middle) < limit else x
    >>> smooth(vm.array([1.0, 2, 3, 40, 5]), 5.0, boundary="edge")
    Array([ 1.33333333,  2.        ,  3.        , 40.        ,  5.        ], dtype=float64)
    """
    return Kernel(function)
