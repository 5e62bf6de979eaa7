"""Runs the test suites of other projects with arrays of this package, and prints the counts.

``cargo xtask python suites`` runs this program with the tested wheel installed.
"""

from __future__ import annotations

import argparse
import collections
import datetime
import importlib.metadata
import json
import os
import platform
import subprocess
import sys
import sysconfig
from pathlib import Path

import vmarray

HERE = Path(__file__).parent
DOCUMENT = HERE.parent / "SUITES.md"
SITE = Path(sysconfig.get_paths()["purelib"])
CORE = "indexing item_selection shape_base mem_overlap half nep50_promotions numeric ufunc umath"
#: For each suite, its test modules, relative to the installed packages.
SUITES = {
    "numpy": [f"numpy/_core/tests/test_{name}.py" for name in CORE.split()] + ["numpy/lib/tests/test_shape_base.py"],
    "dask": ["dask/array/tests/test_cupy_*.py"],
    "xarray": [f"xarray/tests/test_{name}.py" for name in "duck_array_wrapping cupy array_api duck_array_ops".split()],
    "array-api": [],
}
#: The folder with the array API tests: those are on no package registry.
FOLDER = "ARRAY_API_TESTS"
#: The maximum share of excluded tests, and the minimum share of the others that pass.
EXCLUDED_MAX, PASSED_MIN = 0.2, 0.9
#: Columns of the table.
COLUMNS = ("suite", "collected", "skipped", "excluded", "passed", "failed", "share passed")


def _pytest(suite, paths, folder, log, options):
    """Runs pytest for a suite in another process, and returns the outcomes."""
    outcomes = log.with_suffix(".json")
    outcomes.unlink(missing_ok=True)
    root = folder if suite == "array-api" else SITE
    settings = root / "pytest.ini" if suite == "array-api" else Path(os.devnull)
    command = [sys.executable, "-m", "pytest", "-p", "plugin", "--suite", suite, "-q", "-p", "no:cacheprovider"]
    command += ["--continue-on-collection-errors", "-c", str(settings), "--rootdir", str(root), "--tb=short"]
    command += ["--outcomes", str(outcomes), *options, *map(str, paths)]
    # Outside the folder of the installed packages, so that Python prefers `PYTHONPATH`.
    own = root if suite == "array-api" else log.parent
    folders = [str(HERE), *filter(None, [os.environ.get("PYTHONPATH")])]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(folders), "MALLOC_ARENA_MAX": "2"}
    with log.open("w") as file:
        run = subprocess.run(command, cwd=own, env=environment, stdout=file, stderr=file)
    if not outcomes.exists():
        raise SystemExit(f"pytest of the suite {suite} ended with {run.returncode}; read {log}")
    return json.loads(outcomes.read_text())


def _paths(suite):
    return [path for pattern in SUITES[suite] for path in sorted(SITE.glob(pattern))]


def _array_api(folder, logs, examples):
    """Outcomes of the array API tests. NumPy's own failures in the same run count as skipped."""
    options = ["--derandomize", "--disable-deadline", "--max-examples", str(examples), "-W", "ignore"]
    os.environ["ARRAY_API_TESTS_VERSION"] = "2024.12"
    found = []
    for module, more in (("vmarray.array_api", []), ("numpy", ["--plain"])):
        os.environ["ARRAY_API_TESTS_MODULE"] = module
        log = logs / f"suite-array-api-{module.partition('.')[0]}.log"
        found.append(_pytest("array-api", ["array_api_tests"], folder, log, options + more))
    ours, numpys = found
    for name, (outcome, _) in numpys["outcomes"].items():
        if outcome == "failed" and ours["outcomes"].get(name, ("", ""))[0] == "failed":
            ours["outcomes"][name] = ("skipped", "NumPy fails, too")
    return ours


def counted(suite, found):
    """A row of the table, and whether it meets the limits."""
    counts = collections.Counter(outcome for outcome, _ in found["outcomes"].values())
    excluded = len(found["excluded"])
    passed, failed = counts["passed"], counts["failed"]
    skipped = counts["skipped"] + counts["xfailed"]
    collected = passed + failed + skipped + excluded
    share = passed / max(1, passed + failed)
    is_met = excluded <= EXCLUDED_MAX * collected and (failed == 0 if suite == "array-api" else share >= PASSED_MIN)
    return (suite, collected, skipped, excluded, passed, failed, f"{100 * share:.1f} %"), is_met


def _table(rows):
    lines = [f"| {' | '.join(map(str, row))} |" for row in (COLUMNS, *rows)]
    return "\n".join([lines[0], "|---" * len(COLUMNS) + "|", *lines[1:]])


def _machine():
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    names = (line.partition(":")[2].strip() for line in lines if "model name" in line)
    packages = ("numpy", "dask", "xarray", "scipy", "pytest", "hypothesis")
    versions = [f"{name} {importlib.metadata.version(name)}" for name in packages]
    day, python = datetime.datetime.now(datetime.timezone.utc).date(), f"Python {platform.python_version()}"
    backends = ", ".join(sorted({device.backend for device in vmarray.devices()}))
    machine = f"{day}, {os.cpu_count()} cores of {next(names, platform.machine())}, devices: {backends}."
    return f"{machine}\n{', '.join([python, *versions[:3]])},\n{', '.join(versions[3:])}."


def record(rows):
    """Replaces the table between the marks of the document. Keeps rows of suites that did not run."""
    text = DOCUMENT.read_text()
    before, mark, rest = text.partition("<!-- present -->\n")
    old, end, after = rest.partition("<!-- end -->")
    cells = [[one.strip() for one in line.split("|")[1:-1]] for line in old.splitlines() if line.startswith("|")]
    known = {row[0]: row for row in [*cells, *rows]}
    table = _table([known[name] for name in SUITES if name in known])
    DOCUMENT.write_text(f"{before}{mark}{_machine()}\n\n{table}\n{end}{after}")


def main():
    """Runs the suites that the command line names. Returns 1 if a suite misses its limits."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("suites", nargs="*", choices=[*SUITES, []], help="default: all")
    help = "the folder of the array API tests"
    parser.add_argument("--array-api", type=Path, default=os.environ.get(FOLDER), help=help)
    parser.add_argument("--examples", type=int, default=20, help="random examples of each array API test")
    parser.add_argument("--logs", type=Path, default=Path.cwd(), help="the folder for logs")
    parser.add_argument("--record", action="store_true", help="writes the counts to SUITES.md")
    given = parser.parse_args()
    rows, are_met = [], True
    for suite in given.suites or SUITES:
        if suite == "array-api":
            if given.array_api is None or not (Path(given.array_api) / "array_api_tests").is_dir():
                print(f"array-api: skipped; name a folder with the array API tests and their submodule by {FOLDER}")
                continue
            found = _array_api(Path(given.array_api).resolve(), given.logs, given.examples)
        else:
            found = _pytest(suite, _paths(suite), None, given.logs / f"suite-{suite}.log", [])
        row, is_met = counted(suite, found)
        rows.append(row)
        for name in found["unused"]:
            print(f"{suite}: the excluded test {name} does not exist; delete it from excluded.txt")
        are_met &= is_met and not found["unused"]
    print(_table(rows))
    if given.record and rows:
        record(rows)
    return 0 if are_met else 1


if __name__ == "__main__":
    sys.exit(main())
