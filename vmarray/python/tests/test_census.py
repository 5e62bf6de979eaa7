"""Census: each function and array method of the package that NumPy has too, compared with NumPy.

Each run takes a sample by the seed of the day; `--census N` runs N cases of each function. The file of `--census-log`
keeps the finished cases with their differences, and later runs skip them.
"""

import inspect
import os

import numpy as np
import pytest

import census
import vmarray as vm
from differences import DIFFERENCES, rows

#: Number of cases of each function in a sample, and of attempts to find them.
SAMPLE, TRIED = 20, 240


def _done(log):
    """The functions in a log, each with the first seed and the number of cases."""
    if not log or not os.path.exists(log):
        return set()
    with open(log) as lines:
        return {tuple(line.split()[1:4]) for line in lines if line.startswith("done ")}


@pytest.mark.parametrize("name", census.names())
def test_a_function_compared_with_numpy(name, request):
    whole, log, seed = (request.config.getoption(f"--census{one}") for one in ("", "-log", "-seed"))
    key = (name, str(seed), str(whole))
    if key in _done(log):
        pytest.skip("the log has it")
    wrong, computed = [], 0
    for number in range(whole or TRIED):
        case, why, is_computed = census.run(name, seed * 1_000_000 + number)
        computed += is_computed
        if why and not any(row.holds(name, case, why) for row in DIFFERENCES):
            wrong.append(why)
        if not whole and computed >= SAMPLE:
            break
    if log:
        with open(log, "a") as file:
            file.writelines(f"differs {why}\n" for why in wrong)
            if not wrong:
                file.write(f"done {' '.join(key)} {computed} computed by both, numpy {np.__version__}\n")
    assert not wrong, "\n".join(wrong[:5])
    # NumPy, or the package with advice, may reject at most half of the cases.
    assert computed >= (SAMPLE if not whole else whole // 8), f"{computed} cases were computed by both"


@pytest.mark.parametrize("row", DIFFERENCES, ids=lambda row: f"{row.functions} {row.ours}")
def test_each_row_of_the_table_is_a_difference(row):
    ours, numpys = row.example()
    assert ours != numpys


def test_the_guide_has_the_table():
    with open(os.path.join(os.path.dirname(__file__), "..", "GUIDE.md")) as guide:
        lines = guide.read().split("\n")
    first = lines.index("| functions | NumPy | here |") + 2
    assert lines[first : first + len(rows())] == rows() and not lines[first + len(rows())].startswith("|")


def test_linear_algebra_and_transforms_of_small_arrays(monkeypatch):
    tried = 0
    for module in (np.linalg, np.fft):
        for name in dir(module):
            function = getattr(module, name)
            if not hasattr(function, "_implementation"):
                continue
            required = [one for one in inspect.signature(function).parameters.values() if one.default is one.empty]
            numbers = [np.array([[2.0, 1.0], [1.0, 3.0]]) for _ in required]
            try:
                expected = function(*numbers)
            except (TypeError, ValueError):
                continue
            found = function(*map(vm.asarray, numbers))
            for own, other in zip(_listed(found), _listed(expected), strict=True):
                assert np.allclose(np.asarray(own), other), name
                assert isinstance(own, vm.Array) or not isinstance(other, np.ndarray), name
            tried += 1
    assert tried > 35


def _listed(values):
    return values if isinstance(values, (tuple, list)) else [values]
