"""Measures arrays on files next to ``numpy.memmap``: random rows, sums and scans, warm and cold.

``python files.py [--mib 256] [--rows 256,4096] [--cold]`` with an installed wheel. The cache has a quarter of the
file. Runs of both alternate; a row of the output has the median milliseconds of each, and their quotient.
"""

from __future__ import annotations

import argparse
import os
import statistics
import tempfile
import time
from collections.abc import Callable
from typing import Any

import numpy as np

import vmarray as vm


def forget(path: str) -> None:
    """Drops a file from the system's page cache."""
    descriptor = os.open(path, os.O_RDONLY)
    os.fsync(descriptor)
    os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
    os.close(descriptor)


def compare(name: str, runs: int, works: list[Callable[[], Any]], prepare: Callable[[], None]) -> None:
    times: list[list[float]] = [[] for _ in works]
    for run in range(runs + 1):
        for work, own in zip(works, times):
            prepare()
            begin = time.perf_counter()
            work()
            if run:
                own.append(time.perf_counter() - begin)
    ours, theirs = (statistics.median(own) * 1e3 for own in times)
    print(f"| {name} | {ours:.2f} | {theirs:.2f} | {ours / theirs:.2f} |", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--mib", type=int, default=256)
    parser.add_argument("--rows", default="256,4096")
    parser.add_argument("--ids", type=int, default=100_000)
    parser.add_argument("--runs", type=int, default=7)
    parser.add_argument("--cold", action="store_true")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=".") as folder:
        path = os.path.join(folder, "items")
        random = np.random.default_rng(1)
        with open(path, "wb") as file:
            for _ in range(options.mib):
                file.write(random.integers(0, 1000, (1 << 20) // 8).tobytes())
        cache = (options.mib << 20) // 4
        print("| work | vmarray, ms | numpy.memmap, ms | quotient |\n|---|---|---|---|")
        for row_bytes in map(int, options.rows.split(",")):
            ids = random.integers(0, (options.mib << 20) // row_bytes, options.ids)
            for order, listed in (("random", ids), ("sorted", np.sort(ids))):
                name = f"{options.ids} rows of {row_bytes} B, {order}"
                run(name, path, row_bytes, cache, options, lambda a, listed=listed: a[listed])
        for name, work in {
            "sum of i8": lambda a: a.sum(),
            "max of i8": lambda a: a.max(),
            "count above 500": lambda a: int((a > 500).sum()),
            "scan by slices of 2 MiB": scan,
        }.items():
            run(name, path, 0, cache, options, work)


def scan(array: Any) -> None:
    for start in range(0, len(array), 1 << 18):
        np.asarray(array[start : start + (1 << 18)]).sum()


def run(name: str, path: str, row_bytes: int, cache: int, options: Any, work: Callable[[Any], Any]) -> None:
    def shaped(array: Any) -> Any:
        return array.reshape(-1, row_bytes // 8) if row_bytes else array

    with vm.memmap(path, "i8", "r", cache_bytes=cache) as own:
        if not options.cold:
            mapped = shaped(np.memmap(path, "i8", "r"))
            assert np.array_equal(work(shaped(own)), work(mapped)) if row_bytes else True
            compare(name, options.runs, [lambda: work(shaped(own)), lambda: work(mapped)], lambda: None)
            return

        def ours() -> None:
            with vm.memmap(path, "i8", "r", cache_bytes=cache) as fresh:
                work(shaped(fresh))

        compare(name, options.runs, [ours, lambda: work(shaped(np.memmap(path, "i8", "r")))], lambda: forget(path))


if __name__ == "__main__":
    main()
