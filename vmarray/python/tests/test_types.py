"""Type checks of the package, and of a program that uses it."""

import importlib.util
import os

import pytest


def test_types(tmp_path):
    if not all(map(importlib.util.find_spec, ("mypy", "zarr", "distributed"))):
        pytest.skip("mypy is not there, or what the package works with")
    from mypy import api

    folder = os.path.dirname(__file__)
    given = ["--config-file", os.path.join(folder, "..", "pyproject.toml"), "--cache-dir", str(tmp_path)]
    for what in (["-p", "vmarray"], [os.path.join(folder, "typed_usage.py")]):
        output, errors, code = api.run([*given, *what])
        assert code == 0, output + errors
