"""Modules of the package that stand in for ``numpy`` and ``cupy`` in test modules of other projects."""

from __future__ import annotations

import ast
import functools
import importlib
import sys
import types

import numpy as np
import pytest

import vmarray as vm
from plugin import GUARD, explicit

#: Assert functions of numpy.testing that compare values.
COMPARISONS = """assert_ assert_equal assert_array_equal assert_almost_equal assert_array_almost_equal assert_allclose
    assert_array_less assert_approx_equal assert_array_max_ulp assert_array_almost_equal_nulp assert_array_compare
    assert_string_equal""".split()
#: Modules of NumPy whose names test modules import.
MODULES = ("numpy", "numpy._core", "numpy.testing", "numpy.random", "numpy.testing._private.utils")


def in_ram(value):
    """The value with copies in RAM in place of arrays."""
    if isinstance(value, vm.Array):
        return np.asarray(value)
    if type(value) in (list, tuple):
        return type(value)(map(in_ram, value))
    if type(value) is dict:
        return {name: in_ram(one) for name, one in value.items()}
    return value


def ours(value):
    """The value with arrays of the package in place of NumPy's."""
    if isinstance(value, np.ndarray):
        return vm.asarray(value)
    if type(value) in (list, tuple):
        return type(value)(map(ours, value))
    return value


def _comparing(function):
    @explicit
    def work(*args, **given):
        return function(*map(in_ram, args), **{name: in_ram(one) for name, one in given.items()})

    return functools.wraps(function)(work)


def _making(function):
    def work(*args, **given):
        with GUARD.allowed():
            return ours(function(*map(in_ram, args), **{name: in_ram(one) for name, one in given.items()}))

    return functools.wraps(function)(work)


class StandIn(types.ModuleType):
    """A module with the names of a module of NumPy: the package's objects, else NumPy's own."""

    def __init__(self, real, own=None):
        super().__init__(f"vmarray_as_{real.__name__}")
        self._real, self._own = real, own

    def __getattr__(self, name):
        real = object.__getattribute__(self, "_real")
        module = f"{real.__name__}.{name}"
        if module in STAND_INS:
            return STAND_INS[module]
        found = self._found(name)
        if is_importing and callable(found) and not isinstance(found, (type, np.ufunc, StandIn)):
            return _else_numpys(found, getattr(real, name, found))
        if not is_importing:
            setattr(self, name, found)
        return found

    def _found(self, name):
        real = getattr(self._real, name, None)
        if self._real.__name__.startswith("numpy.testing"):
            return _comparing(real) if name in COMPARISONS else getattr(self._real, name)
        if self._real is np.random:
            own = {"default_rng": Generator, "RandomState": RandomState}
            return own[name] if name in own else _random(self._real, name)
        try:
            return getattr(vm, name)
        except AttributeError:
            if hasattr(self._real, name):
                return getattr(self._real, name)
            if name.startswith("__"):
                raise
            try:
                return importlib.import_module(f"{self._real.__name__}.{name}")
            except ModuleNotFoundError:
                raise AttributeError(name) from None


def _random(module, name):
    found = getattr(module, name)
    return _making(found) if callable(found) and not isinstance(found, type) else found


class Generator:
    """A random generator of NumPy whose results are arrays of the package."""

    def __init__(self, seed=None):
        self._own = np.random.default_rng(seed)

    def __getattr__(self, name):
        if name.startswith("__"):
            raise AttributeError(name)
        return _random(self._own, name)

    @property
    def bit_generator(self):
        """The source of random bits."""
        return self._own.bit_generator


class RandomState(Generator):
    """A generator of NumPy's older interface whose results are arrays of the package."""

    def __init__(self, seed=None):
        self._own = np.random.RandomState(seed)


class XORWOW(np.random.PCG64):
    """A source of random bits with the name of CuPy's."""


STAND_INS = {}
#: True while a test module is imported.
is_importing = False


def _else_numpys(function, numpys):
    """The package's function; NumPy's for values that the package refuses, such as parameters of excluded tests."""

    def work(*args, **given):
        if not is_importing:
            return function(*args, **given)
        try:
            return function(*args, **given)
        except TypeError:
            return numpys(*args, **given)

    return work


class _Imports(ast.NodeTransformer):
    """Makes a test module import stand-ins."""

    def __init__(self, prefix):
        self.prefix = prefix

    def visit_Import(self, node):  # noqa: N802
        for alias in node.names:
            if alias.name == "numpy":
                alias.name, alias.asname = f"{self.prefix}numpy", alias.asname or "numpy"
        return node

    def visit_ImportFrom(self, node):  # noqa: N802
        if node.module in MODULES and not node.level:
            node.module = f"{self.prefix}{node.module}"
        return node

    def visit_Call(self, node):  # noqa: N802
        self.generic_visit(node)
        if ast.unparse(node.func) == "pytest.importorskip" and getattr(node.args[0], "value", "") == "numpy":
            node.args[0], node.keywords = ast.Constant(f"{self.prefix}numpy"), []
        return node


class SuiteModule(pytest.Module):
    """A test module of another project, in which stand-ins replace NumPy."""

    prefix = "vmarray_as_"

    def _getobj(self):
        name = f"suite_{self.path.parent.parent.name}_{self.path.stem}"
        if name not in sys.modules:
            sys.modules[name] = self._made(name)
        return sys.modules[name]

    def _made(self, name):
        tree = ast.fix_missing_locations(_Imports(self.prefix).visit(ast.parse(self.path.read_bytes())))
        module = types.ModuleType(name)
        module.__file__ = str(self.path)
        refuse = vm.Array.__init_subclass__
        # Permit subclasses of tests that are excluded; the subclasses cannot be called.
        vm.Array.__init_subclass__ = classmethod(lambda cls, **given: None)
        try:
            exec(compile(tree, str(self.path), "exec"), module.__dict__)
        finally:
            vm.Array.__init_subclass__ = refuse
        return module


class Collection:
    """Makes pytest collect test modules with stand-ins."""

    def __init__(self, prefixes):
        self.prefixes = prefixes

    def pytest_pycollect_makemodule(self, module_path, parent):
        prefix = self.prefixes.get(module_path.name, self.prefixes["*"])
        made = SuiteModule.from_parent(parent, path=module_path)
        made.prefix = prefix
        return made

    @pytest.hookimpl(wrapper=True)
    def pytest_collection(self):
        global is_importing
        is_importing = True
        try:
            return (yield)
        finally:
            is_importing = False


def _cupy():
    """A module with the names of CuPy, made of this package."""
    module, random = types.ModuleType("cupy"), types.ModuleType("cupy.random")
    module.__getattr__ = lambda name: getattr(vm, name)
    module.__version__, module.asnumpy, module.random = "13.0", explicit(np.asarray), random
    for one in (Generator, RandomState, XORWOW):
        one.__module__ = "cupy.random"
        setattr(random, one.__name__, one)
    random.default_rng = Generator
    random.__getattr__ = lambda name: _random(np.random, name)
    return {"cupy": module, "cupy.random": random}


def _explicit_numpy():
    """NumPy, with permission to convert arrays by ``asarray`` and ``array``."""
    module = types.ModuleType("explicit_numpy")
    module.__getattr__ = lambda name: getattr(np, name)
    for name in ("asarray", "array", "asanyarray", "allclose", "testing"):
        setattr(module, name, explicit(getattr(np, name)) if name != "testing" else _explicit_testing())
    return module


def _explicit_testing():
    module = types.ModuleType("explicit_numpy.testing")
    found = functools.partial(getattr, np.testing)
    module.__getattr__ = lambda name: _comparing(found(name)) if name in COMPARISONS else found(name)
    return module


def _allow_asserts(module, names):
    for name in names:
        setattr(module, name, explicit(getattr(module, name)))


def install(suite, config):
    """Registers the stand-ins for a suite."""
    for name in MODULES:
        STAND_INS[name] = sys.modules[f"vmarray_as_{name}"] = StandIn(importlib.import_module(name))
    sys.modules["explicit_numpy"] = _explicit_numpy()
    for name in MODULES[1:]:
        sys.modules[f"explicit_{name}"] = importlib.import_module(name)
    sys.modules["explicit_numpy.testing"] = _explicit_testing()
    prefixes = {"*": "vmarray_as_"}
    if suite in ("dask", "xarray"):
        sys.modules |= _cupy()
        vm.Array.get = explicit(np.asarray)
        prefixes = {"*": "explicit_", "test_duck_array_ops.py": "vmarray_as_"}
        import dask.utils

        # Dask asks by the class's name; replace the function before modules of Dask import it.
        dask.utils.is_cupy_type = lambda value: isinstance(value, vm.Array)
        import dask.array.utils

        import vmarray.dask  # noqa: F401

        _allow_asserts(dask.array.utils, ["assert_eq"])
    if suite == "xarray":
        from vmarray import array_api

        strict = types.ModuleType("array_api_strict._array_object")
        strict.Array = vm.Array
        sys.modules |= {"array_api_strict": array_api, "array_api_strict._array_object": strict}
        import xarray.testing
        import xarray.tests

        _allow_asserts(xarray.testing, ["assert_equal", "assert_identical", "assert_allclose"])
        _allow_asserts(xarray.tests, ["assert_array_equal", "assert_equal", "assert_identical", "assert_allclose"])
    config.pluginmanager.register(Collection(prefixes))
