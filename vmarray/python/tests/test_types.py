"""Type checks of the package, and of a program that uses it."""

import importlib.util
import os
import shutil
import subprocess
import sys

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


def test_types_by_pyright(tmp_path):
    if importlib.util.find_spec("pyright") is None:
        pytest.skip("pyright is not there; it installs itself from npm")
    shutil.copy(os.path.join(os.path.dirname(__file__), "typed_usage.py"), tmp_path)
    (tmp_path / "pyrightconfig.json").write_text('{"typeCheckingMode": "strict"}')
    command = [sys.executable, "-m", "pyright", "--pythonpath", sys.executable, "--project", str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
