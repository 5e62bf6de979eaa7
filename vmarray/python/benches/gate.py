"""Measures calls of the package. ``cargo xtask gate`` starts one process for each of two builds, and runs them in turn.

The first argument, if any, names the devices. ``xtask/src/turns.rs`` describes the lines that the program reads and
prints.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable

import numpy as np

import vmarray as vm

LEN = 1 << 22
OPTIONS = {"devices": sys.argv[1]} if len(sys.argv) > 1 else {}


def serve(name: str, work: Callable[[], object]) -> None:
    """Prints the name of a benchmark row, then measures `work` once for each line ``go`` from ``cargo xtask gate``."""
    print(f"turn: row python/{name}", flush=True)
    while sys.stdin.readline() == "go\n":
        begin = time.perf_counter()
        work()
        print(f"turn: time {time.perf_counter() - begin:e}", flush=True)


def items(array: vm.Array, indices: list[int]) -> None:
    for index in indices:
        array[index]


random = np.random.default_rng(1)
values = random.random(LEN, dtype="f4")
a, b = vm.array(values, **OPTIONS), vm.array(values[::-1].copy(), **OPTIONS)
indices = random.integers(0, LEN, 100_000)
picked, few = values[indices], indices[:2000].tolist()

serve("item", lambda: items(a, few))
serve("slice", lambda: np.asarray(a[: LEN // 2]))
serve("set-slice", lambda: a.__setitem__(slice(LEN // 2), values[: LEN // 2]))
serve("list", lambda: a[indices])
serve("set-list", lambda: a.__setitem__(indices, picked))
serve("sum", lambda: float(a.sum()))
serve("expression", lambda: float((a * 2 + b).sum()))
serve("mask", lambda: float(a[a > 0.5].sum()))
serve("sort", lambda: np.sort(a)[0])
