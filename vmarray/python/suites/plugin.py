"""A pytest plugin: runs a test suite of another project with arrays of this package.

The plugin deselects excluded tests, fails a test that converts an array to NumPy silently, and records each outcome.
"""

from __future__ import annotations

import contextlib
import json
import resource
import signal
import sys
from pathlib import Path

import pytest

import vmarray as vm

HERE = Path(__file__).parent
#: The maximum seconds of a test, and the maximum bytes that the process allocates.
SECONDS_MAX = 60
BYTES_MAX = 6 << 30
#: Functions of other projects whose callers request a conversion to NumPy.
EXPLICIT = set("to_numpy as_numpy values get to_series to_pandas to_dataframe to_index".split())


class SilentConversionError(Exception):
    """Raised if a test or a library converts an array to NumPy without a request."""


def _is_test(frame):
    return frame.f_globals.get("__name__", "").startswith(("suite_", "array_api_tests"))


class Guard:
    """Replaces ``Array.__array__`` while the body of a test runs, and records conversions to NumPy."""

    def __init__(self):
        self.convert, self.explicit, self.places = vm.Array.__array__, 0, None
        guard = self

        def __array__(self, dtype=None, copy=None):
            guard.check(sys._getframe(1))
            return guard.convert(self, dtype, copy)

        vm.Array.__array__ = __array__

    def check(self, frame):
        """Raises an error if a test runs, and neither the package nor an explicit function needs the conversion."""
        if self.places is None or self.explicit:
            return
        while frame is not None:
            module, name = frame.f_globals.get("__name__", "").partition(".")[0], frame.f_code.co_name
            if module == "vmarray":
                return
            if module != "numpy" and name != "__array__":
                break
            frame = frame.f_back
        caller = frame
        while caller is not None and not _is_test(caller):
            if caller.f_code.co_name in EXPLICIT and caller.f_back is not None and _is_test(caller.f_back):
                return
            caller = caller.f_back
        place = "unknown" if frame is None else f"{frame.f_globals.get('__name__')}:{frame.f_lineno}"
        self.places.append(place)
        raise SilentConversionError(f"silent conversion to NumPy in {place}")

    @contextlib.contextmanager
    def allowed(self):
        """Permits conversions within a ``with`` block."""
        self.explicit += 1
        try:
            yield
        finally:
            self.explicit -= 1


GUARD = Guard()


def explicit(function):
    """Returns the function with permission to convert arrays to NumPy."""

    def work(*args, **given):
        with GUARD.allowed():
            return function(*args, **given)

    work.__name__ = getattr(function, "__name__", "work")
    work.__wrapped__ = function
    return work


def excluded(suite):
    """Names of excluded tests and their classes of reason, from the committed list."""
    found, reason = {}, None
    for line in (HERE / "excluded.txt").read_text().splitlines():
        line = line.strip()
        if line.startswith("["):
            own, _, reason = line.strip("[]").partition(": ")
            reason = reason if own == suite else None
        elif line and not line.startswith("#") and reason:
            found[line] = reason
    return found


def pytest_addoption(parser):
    parser.addoption("--suite", metavar="NAME", help="the suite: numpy, dask, xarray or array-api")
    parser.addoption("--plain", action="store_true", help="runs the suite with NumPy's own arrays")
    parser.addoption("--all-tests", action="store_true", help="runs excluded tests, too")
    parser.addoption("--outcomes", metavar="FILE", help="the file for the outcomes, as JSON")


def _interrupted(signum, frame):
    raise TimeoutError(f"the test ran for more than {SECONDS_MAX} seconds")


def _name(item):
    return f"{item.path.relative_to(item.config.rootpath).as_posix()}::{item.nodeid.partition('::')[2]}"


class Outcomes:
    """Selects tests and records their outcomes."""

    def __init__(self, config):
        self.config, self.outcomes, self.reasons, self.unused = config, {}, {}, []

    @pytest.hookimpl(trylast=True)
    def pytest_collection_modifyitems(self, config, items):
        names, used, kept, left = excluded(config.getoption("--suite")), set(), [], []
        for item in items:
            name = _name(item)
            parts = [name, name.partition("[")[0]]
            while "::" in parts[-1]:
                parts.append(parts[-1].rpartition("::")[0])
            known = next((part for part in parts if part in names), None)
            if known is not None:
                used.add(known)
                self.reasons[name] = names[known]
            is_left = known is not None and not config.getoption("--all-tests")
            (left if is_left else kept).append(item)
        self.unused = sorted(set(names) - used)
        config.hook.pytest_deselected(items=left)
        items[:] = kept

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_call(self, item):
        GUARD.places = []
        signal.signal(signal.SIGALRM, _interrupted)
        signal.alarm(SECONDS_MAX)
        try:
            result = yield
            if GUARD.places:
                raise SilentConversionError(f"silent conversion to NumPy in {GUARD.places[0]}")
            return result
        finally:
            signal.alarm(0)
            GUARD.places = None

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(self, item, call):
        report = yield
        name = _name(item)
        if report.when == "call" or report.outcome != "passed":
            text = "" if call.excinfo is None else f"{call.excinfo.typename}: {call.excinfo.value}"[:300]
            outcome = report.outcome
            if hasattr(report, "wasxfail"):
                outcome = "passed" if outcome == "passed" else "xfailed"
            self.outcomes[name] = (outcome, text)
        return report

    def pytest_collectreport(self, report):
        """Counts a module or class that pytest cannot collect as one failed test."""
        if report.failed:
            self.outcomes[report.nodeid] = ("failed", str(report.longrepr)[-300:])

    def pytest_sessionfinish(self):
        path = self.config.getoption("--outcomes")
        if path:
            found = {"outcomes": self.outcomes, "excluded": self.reasons, "unused": self.unused}
            Path(path).write_text(json.dumps(found, indent=0))


def pytest_configure(config):
    resource.setrlimit(resource.RLIMIT_DATA, (BYTES_MAX, BYTES_MAX))
    config.pluginmanager.register(Outcomes(config))
    suite = config.getoption("--suite")
    if suite in ("numpy", "dask", "xarray") and not config.getoption("--plain"):
        import stand_ins

        stand_ins.install(suite, config)
