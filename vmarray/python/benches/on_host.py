"""Measures functions of arrays in RAM, compared with NumPy and numba, and writes a table of the quotients.

``cargo xtask python speed`` runs it. Each cell is the median time of this package, divided by the median time of the
faster peer, for one function, dtype and layout. Runs of the package and of its peers alternate. The peers compute with
as many threads as the package; numba joins for functions that are one loop.
"""

from __future__ import annotations

import argparse
import datetime
import functools
import math
import os
import platform
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

import vmarray as vm

try:
    import numba
except ImportError:
    numba = None

TABLE = Path(__file__).resolve().parents[1] / "SPEED.md"
DTYPES = ["f8", "f4", "i4", "u1"]
LAYOUTS = ["contiguous", "transposed", "reversed", "strided"]
#: Most seconds of a cell's runs after the first three.
SECONDS = 1.0
#: Functions that move each item once or twice through memory, and functions that compute or reorder.
STREAMS: dict[str, Callable[[Any, Any, Any], Any]] = {
    "a.copy()": lambda np, a, b: a.copy(),
    "-a": lambda np, a, b: -a,
    "abs": lambda np, a, b: np.abs(a),
    "square": lambda np, a, b: np.square(a),
    "a + b": lambda np, a, b: a + b,
    "a - b": lambda np, a, b: a - b,
    "a * b": lambda np, a, b: a * b,
    "a * 2 + b": lambda np, a, b: a * 2 + b,
    "a / b": lambda np, a, b: a / b,
    "maximum": lambda np, a, b: np.maximum(a, b),
    "a < b": lambda np, a, b: a < b,
    "a == 3": lambda np, a, b: a == 3,
    "logical_and": lambda np, a, b: np.logical_and(a, b),
    "where": lambda np, a, b: np.where(a < b, a, b),
    "clip": lambda np, a, b: np.clip(a, 2, 7),
    "astype f8": lambda np, a, b: a.astype("f8"),
    "astype f4": lambda np, a, b: a.astype("f4"),
    "sign": lambda np, a, b: np.sign(a),
    "isfinite": lambda np, a, b: np.isfinite(a),
    "sum": lambda np, a, b: a.sum(),
    "mean": lambda np, a, b: a.mean(),
    "min": lambda np, a, b: a.min(),
    "max": lambda np, a, b: a.max(),
    "ptp": lambda np, a, b: np.ptp(a),
    "any": lambda np, a, b: (a > 100).any(),
    "all": lambda np, a, b: (a < 100).all(),
    "argmin": lambda np, a, b: a.argmin(),
    "argmax": lambda np, a, b: a.argmax(),
    "count_nonzero": lambda np, a, b: np.count_nonzero(a),
    "sum axis 0": lambda np, a, b: _wide(a).sum(axis=0),
    "sum axis 1": lambda np, a, b: _wide(a).sum(axis=1),
    "max axis 0": lambda np, a, b: _wide(a).max(axis=0),
    "max axis 1": lambda np, a, b: _wide(a).max(axis=1),
    "mean axis 1": lambda np, a, b: _wide(a).mean(axis=1),
    "concatenate": lambda np, a, b: np.concatenate([a, b]),
    "roll": lambda np, a, b: np.roll(a, 7),
    "flip": lambda np, a, b: np.flip(a).copy(),
    "diff": lambda np, a, b: np.diff(a),
}
COMPUTES: dict[str, Callable[[Any, Any, Any], Any]] = {
    "sqrt": lambda np, a, b: np.sqrt(a),
    "exp": lambda np, a, b: np.exp(a),
    "log1p": lambda np, a, b: np.log1p(a),
    "sin": lambda np, a, b: np.sin(a),
    "tanh": lambda np, a, b: np.tanh(a),
    "rint": lambda np, a, b: np.rint(a),
    "a // b": lambda np, a, b: a // b,
    "var": lambda np, a, b: a.var(),
    "std axis 0": lambda np, a, b: _wide(a).std(axis=0),
    "prod": lambda np, a, b: a.prod(),
    "cumsum": lambda np, a, b: np.cumsum(a),
    "cumsum axis 1": lambda np, a, b: np.cumsum(_wide(a), axis=1),
    "nansum": lambda np, a, b: np.nansum(a),
    "vdot": lambda np, a, b: np.vdot(a, b),
    "sort": lambda np, a, b: np.sort(a, axis=None),
    "argsort": lambda np, a, b: np.argsort(a, axis=None),
    "unique counts": lambda np, a, b: np.unique(a, return_counts=True),
    "median": lambda np, a, b: np.median(a),
    "quantile": lambda np, a, b: np.quantile(a, 0.3),
    "histogram": lambda np, a, b: np.histogram(a, 100),
    "searchsorted": lambda np, a, b: np.searchsorted(np.arange(100), a),
    "nonzero": lambda np, a, b: np.flatnonzero(a > 3),
    "a[a > 3]": lambda np, a, b: a[a > 3],
}
#: The loops that numba computes for each item, and the reductions in which numba adds up the items.
LOOPS: dict[str, Callable[[Any, Any], Any]] = {
    "-a": lambda a, b: -a, "abs": lambda a, b: abs(a), "square": lambda a, b: a * a, "a + b": lambda a, b: a + b,
    "a - b": lambda a, b: a - b, "a * b": lambda a, b: a * b, "a * 2 + b": lambda a, b: a * 2 + b,
    "a / b": lambda a, b: a / b, "maximum": lambda a, b: max(a, b), "a < b": lambda a, b: a < b,
    "a == 3": lambda a, b: a == 3, "where": lambda a, b: a if a < b else b, "sqrt": lambda a, b: math.sqrt(a),
    "exp": lambda a, b: math.exp(a), "sin": lambda a, b: math.sin(a), "tanh": lambda a, b: math.tanh(a),
}  # fmt: skip
SUMS: dict[str, Callable[[Any, Any], Any]] = {
    "sum": lambda a, b: a, "mean": lambda a, b: a, "vdot": lambda a, b: a * b, "count_nonzero": lambda a, b: a != 0,
}  # fmt: skip


def _wide(a: Any) -> Any:
    """An array of one axis as rows of 2500 items."""
    return a if a.ndim == 2 else a.reshape(-1, 2500)


def _laid(items: Any, layout: str, put: Callable[[Any], Any]) -> Any:
    """An array made by `put`, with the items in a layout."""
    if layout == "transposed":
        return put(items.reshape(-1, 2500)).T
    if layout == "strided":
        return put(np.repeat(items, 2))[::2]
    return put(items)[::-1] if layout == "reversed" else put(items)


@functools.cache
def _by_numba(name: str, kind: str) -> Any:
    """Numba's function for a row, with all threads; None if numba has none."""
    if numba is None or name not in LOOPS | SUMS:
        return None
    if name in LOOPS:
        row = STREAMS.get(name) or COMPUTES[name]
        gives = row(np, np.ones(1, kind), np.ones(1, kind)).dtype
        if gives == np.float16:
            return None
        of, to = numba.from_dtype(np.dtype(kind)), numba.from_dtype(gives)
        return numba.vectorize([to(of, of)], target="parallel")(LOOPS[name])
    item = numba.njit(inline="always", fastmath=True)(SUMS[name])
    zero = np.zeros(1, kind).sum()

    @numba.njit(parallel=True, fastmath=True)
    def added(a: Any, b: Any) -> Any:
        total = zero
        for i in numba.prange(a.shape[0]):
            for j in range(a.shape[1]):
                total += item(a[i, j], b[i, j])
        return total

    return lambda a, b: added(_wide(a), _wide(b))


def _seconds(work: Callable[[], Any]) -> float:
    begin = time.perf_counter()
    work()
    return time.perf_counter() - begin


def _computed(result: Any) -> Any:
    """Computes a pending result, as NumPy's functions do at once."""
    for one in result if isinstance(result, tuple) else (result,):
        if isinstance(one, vm.Array):
            one.compute()


def measured(name: str, kind: str, layout: str, count: int, runs: int) -> tuple[float, str, float]:
    """The quotient of a cell, the faster peer, and the peer's seconds."""
    row = STREAMS.get(name) or COMPUTES[name]
    random = np.random.default_rng(1)
    items = [random.integers(1, 9, count).astype(kind) for _ in range(2)]
    if kind[0] == "f":
        items = [one + random.random(count, dtype=kind) for one in items]
    a, b = (_laid(one, layout, np.array) for one in items)
    mine = [_laid(one, layout, functools.partial(vm.asarray, devices="host")) for one in items]
    works = {"vmarray": lambda: _computed(row(vm, *mine)), "NumPy": lambda: row(np, a, b)}
    compiled = _by_numba(name, kind)
    if compiled is not None:
        works["numba"] = lambda: compiled(a, b)
    times: dict[str, list[float]] = {one: [] for one in works}
    for work in works.values():
        work()
    begin = time.perf_counter()
    while len(times["vmarray"]) < 3 or (time.perf_counter() - begin < SECONDS and len(times["vmarray"]) < runs):
        for one, work in works.items():
            times[one].append(_seconds(work))
    medians = {one: statistics.median(found) for one, found in times.items()}
    ours = medians.pop("vmarray")
    peer = min(medians, key=lambda one: medians[one])
    return ours / medians[peer], peer, medians[peer]


def _row(name: str, cells: dict[tuple[str, str], tuple[float, str, float]]) -> str:
    """A line of the table: for each layout, the quotients of all dtypes."""
    peers = sorted({peer for _, peer, _ in cells.values()})
    milliseconds = cells[LAYOUTS[0], DTYPES[0]][2] * 1e3
    columns = [" ".join(f"{cells[layout, kind][0]:.2f}" for kind in DTYPES) for layout in LAYOUTS]
    return f"| `{name}` | {', '.join(peers)} | {milliseconds:.1f} | {' | '.join(columns)} |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", help="the rows; all by default")
    parser.add_argument("--items", type=int, default=10_000_000, help="items of an array, a multiple of 2500")
    parser.add_argument("--runs", type=int, default=7, help="most runs of a cell")
    parser.add_argument("--record", action="store_true", help="write the table to SPEED.md")
    given = parser.parse_args()
    threads = len(os.sched_getaffinity(0))
    if numba is not None:
        numba.set_num_threads(threads)
    lines, worst, load = [], [], os.getloadavg()[0]
    for name in given.names or [*STREAMS, *COMPUTES]:
        cells = {}
        for layout in LAYOUTS:
            for kind in DTYPES:
                cells[layout, kind] = measured(name, kind, layout, given.items, given.runs)
                worst.append((cells[layout, kind][0], name, layout, kind))
        lines.append(_row(name, cells))
        print(lines[-1], flush=True)
    over = [one for one in worst if one[0] > 1.3]
    print(f"{len(over)} of {len(worst)} cells are above 1.3; the greatest:")
    for quotient, *cell in sorted(over, reverse=True)[:20]:
        print(f"  {quotient:.2f} {' '.join(cell)}")
    if given.record:
        text = TABLE.read_text()
        head, tail = text[: text.index("<!-- table -->")], text[text.index("<!-- end -->") :]
        versions = f"numba {numba.__version__}" if numba is not None else "no numba"
        when = f"{datetime.date.today()}, {threads} cores, {given.items:,} items, {platform.python_version()}"
        head += f"<!-- table -->\n{when}, NumPy {np.__version__}, {versions}; load at the start {load:.1f}.\n\n"
        head += f"| function | faster peer | ms | {' | '.join(LAYOUTS)} |\n|---|---|---|---|---|---|---|\n"
        TABLE.write_text(head + "\n".join(lines) + "\n" + tail)


if __name__ == "__main__":
    main()
