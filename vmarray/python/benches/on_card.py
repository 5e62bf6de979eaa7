"""Measures the package's promises on the devices of the machine, compared with NumPy, torch and memory-mapped files.

Run it with an installed wheel: ``python on_card.py [--devices cuda:0] [--gib 8] [--scan-gib 96] [--file PATH]``.
Numbers are medians, each of several runs, after one that is not counted. torch is left out where it is not installed.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable

import numpy as np

import vmarray as vm

try:
    import torch
except ImportError:
    torch = None

RECORD = np.dtype([("bytes", "V44")])
RESULTS: dict[str, dict[str, float]] = {}


@vm.kernel
def heat(x, rate):
    flow = x[-1, 0] + x[1, 0] + x[0, -1] + x[0, 1] - 4 * x
    return x + rate * flow


def seconds(work: Callable[[], object], runs: int = 7) -> float:
    work()
    times = []
    for _ in range(runs):
        begin = time.perf_counter()
        work()
        times.append(time.perf_counter() - begin)
    return statistics.median(times)


def told(name: str, amount: float, unit: str, **times: float) -> None:
    """Prints the times of one piece of work, and the resulting rates."""
    RESULTS[name] = times
    first = next(iter(times.values()))
    parts = (f"{who} {1e3 * t:.3f} ms ({amount / t:.2f} {unit}, x{t / first:.2f})" for who, t in times.items())
    print(f"{name}: " + "; ".join(parts), flush=True)


def importing() -> None:
    def run(code: str) -> float:
        return seconds(lambda: subprocess.run([sys.executable, "-c", code], check=True), 15)

    numpys, ours = run("import numpy"), run("import numpy, vmarray")
    RESULTS["import above numpy"] = {"vmarray": ours - numpys, "numpy": numpys}
    print(f"import: {1e3 * (ours - numpys):.1f} ms above numpy's own {1e3 * numpys:.1f} ms (150 are allowed)", flush=True)


def whole_arrays(devices: str | None, gib: float) -> None:
    """Operations on whole arrays: of NumPy in RAM, of torch on the card."""
    count = int(gib * 2**30 / 4)
    options = {"devices": devices} if devices else {}
    a, b = (vm.random.default_rng(seed, **options).random(count, "f4") for seed in (1, 2))
    c = vm.zeros(count, "f4", **options)
    few = min(count, 2**28)
    x, y = (np.asarray(one[:few]) for one in (a, b))
    z = np.empty_like(x)
    card = torch is not None and torch.cuda.is_available()
    if card:
        tx, ty = (torch.rand(count, device="cuda") for _ in range(2))
        tz = torch.empty_like(tx)

    def ours_add() -> None:
        c[...] = a * 2 + b

    def theirs_add() -> None:
        torch.add(ty, tx, alpha=2, out=tz)
        torch.cuda.synchronize()

    def with_torch(work: Callable[[], object]) -> dict[str, float]:
        def run() -> None:
            work()
            torch.cuda.synchronize()

        return {"torch": seconds(run)} if card else {}

    scale = count / few
    add = {"vmarray": seconds(ours_add)} | ({"torch": seconds(theirs_add)} if card else {})
    told("c = a * 2 + b, f4", 12 * count / 1e9, "GB/s", **add, numpy=scale * seconds(lambda: np.add(np.multiply(x, 2, out=z), y, out=z), 3))
    told(
        "a.sum(), f4", 4 * count / 1e9, "GB/s", vmarray=seconds(lambda: a.sum()),
        **with_torch(lambda: tx.sum(dtype=torch.float64).item()), numpy=scale * seconds(lambda: x.sum(), 3),
    )
    told(
        "(a * 2 + b)[a > 0.5].sum(), f4", 8 * count / 1e9, "GB/s",
        vmarray=seconds(lambda: (a * 2 + b)[a > 0.5].sum()),
        **with_torch(lambda: (tx * 2 + ty)[tx > 0.5].sum().item()),
        numpy=scale * seconds(lambda: (x * 2 + y)[x > 0.5].sum(), 3),
    )
    told(
        "a.max(), f4", 4 * count / 1e9, "GB/s", vmarray=seconds(lambda: a.max()),
        **with_torch(lambda: tx.max().item()), numpy=scale * seconds(lambda: x.max(), 3),
    )
    told(
        "(a > 0.999).find(), f4", 4 * count / 1e9, "GB/s", vmarray=seconds(lambda: (a > 0.999).find()),
        **with_torch(lambda: (tx > 0.999).nonzero().cpu()), numpy=scale * seconds(lambda: np.flatnonzero(x > 0.999), 3),
    )
    told(
        "histogram of 256 bins, f4", 4 * count / 1e9, "GB/s", vmarray=seconds(lambda: vm.histogram(a, 256, (0, 1))),
        **with_torch(lambda: torch.histc(tx, 256, 0, 1).cpu()), numpy=scale * seconds(lambda: np.histogram(x, 256, (0, 1)), 1),
    )
    columns = 1 << 12
    m = a[: count // columns * columns].reshape(-1, columns)
    tm = tx[: count // columns * columns].view(-1, columns) if card else None
    few_rows = x[: few // columns * columns].reshape(-1, columns)
    for axis in (0, 1):
        told(
            f"max(axis={axis}) of rows of {columns}, f4", 4 * m.size / 1e9, "GB/s",
            vmarray=seconds(lambda: m.max(axis=axis).compute()), **with_torch(lambda: tm.amax(axis)),
            numpy=scale * seconds(lambda: few_rows.max(axis=axis), 1),
        )
    told(
        f"cumsum(axis=1) of rows of {columns}, f4", 8 * m.size / 1e9, "GB/s",
        vmarray=seconds(lambda: np.cumsum(m, 1), 3), **with_torch(lambda: tm.cumsum(1)),
        numpy=scale * seconds(lambda: np.cumsum(few_rows, 1), 1),
    )
    image = a[: 1 << 28].reshape(-1, 1 << 14)

    def torchs_heat() -> None:
        middle = timage[1:-1, 1:-1]
        beside = timage[:-2, 1:-1] + timage[2:, 1:-1] + timage[1:-1, :-2] + timage[1:-1, 2:]
        middle + 0.1 * (beside - 4 * middle)

    timage = tx[: 1 << 28].view(-1, 1 << 14) if card else None
    told(
        "a kernel of five neighbours, f4, rows of 2^14", 8 * image.size / 1e9, "GB/s",
        vmarray=seconds(lambda: heat(image, 0.1, boundary="edge"), 3), **with_torch(torchs_heat),
    )
    wide = a[: count >> 24 << 24].reshape(-1, 1 << 24)
    told(
        "cumprod(axis=0) of rows of 2^24, f4", 8 * wide.size / 1e9, "GB/s", vmarray=seconds(lambda: np.cumprod(wide, 0), 3),
        **with_torch(lambda: tx[: wide.size].view(-1, 1 << 24).cumprod(0)),
    )
    if card:
        del tx, ty, tz, tm, timage
        torch.cuda.empty_cache()
    few = min(count, 2**28)
    u = vm.random.default_rng(3, **options).integers(0, 2**32, few, "u4")
    theirs = {}
    if card:
        tu = torch.randint(-(2**31), 2**31, (few,), dtype=torch.int32, device="cuda")
        theirs = {
            "sort": with_torch(lambda: torch.sort(tu)),
            "argsort": with_torch(lambda: torch.argsort(tu, stable=True)),
            "unique": with_torch(lambda: torch.unique(tu)),
        }
        del tu
        torch.cuda.empty_cache()
    for name, work in (("sort", lambda: vm.sort(u)), ("argsort", lambda: vm.argsort(u).compute()), ("unique", lambda: vm.unique(u))):
        told(f"{name} of {few / 1e6:.0f} M, u4", few / 1e9, "G/s", vmarray=seconds(work, 3), **theirs.get(name, {}))
    rng = vm.random.default_rng(4, **options)
    told("random normals, f8", few / 1e9, "G/s", vmarray=seconds(lambda: rng.normal(size=few), 3))


def listed(devices: str | None, gib: float, path: str) -> None:
    """``a[idx]`` of 10^6 elements of 44 bytes at random places."""
    count = int(gib * 2**30 / 44)
    options = {"devices": devices} if devices else {}
    a = vm.zeros(count, RECORD, cache_bytes=256 << 20, **options)
    indices = np.random.default_rng(1).integers(0, count, 10**6)
    step = 1 << 22
    with open(path, "wb") as file:
        for start in range(0, count, step):
            part = np.zeros(min(step, count - start), RECORD)
            part.view("u4").reshape(-1, 11)[:, 0] = np.arange(start, start + len(part), dtype="u4")
            a[start : start + len(part)] = part
            part.tofile(file)
        file.flush()
        os.fsync(file.fileno())
    mapped = np.memmap(path, RECORD, mode="r")
    assert (a[indices[:1000]] == mapped[indices[:1000]]).all()

    def cold() -> float:
        fd = os.open(path, os.O_RDONLY)
        os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
        os.close(fd)
        own = np.memmap(path, RECORD, mode="r")
        begin = time.perf_counter()
        own[indices]
        return time.perf_counter() - begin

    del mapped
    times = {"vmarray": seconds(lambda: a[indices])}
    on_devices = vm.asarray(indices.astype("u8"), **options)
    kept: list[np.ndarray] = []
    times["vmarray, results kept alive"] = seconds(lambda: kept.append(a[indices]))
    kept.clear()
    times["vmarray, indices and result on the device"] = seconds(lambda: a.take(on_devices).compute())
    times["memmap cold"] = cold()
    mapped = np.memmap(path, RECORD, mode="r")
    mapped[indices]
    times["memmap warm"] = seconds(lambda: mapped[indices], 3)
    if torch is not None:
        of = torch.from_numpy(np.fromfile(path, "u1").reshape(-1, 44))
        wanted = torch.from_numpy(indices)
        times["torch.index_select in RAM"] = seconds(lambda: torch.index_select(of, 0, wanted))
    told(f"10^6 of {count / 1e6:.0f} M elements of 44 bytes", 1.0, "M/s", **times)
    print(f"  cold memmap is {times['memmap cold'] / times['vmarray']:.0f} times slower (1000 wanted),", end=" ")
    print(f"warm {times['memmap warm'] / times['vmarray']:.1f} times (10 wanted)", flush=True)


def scan(devices: str | None, gib: float) -> None:
    """An array that may be larger than RAM, read by chunks of 256 MiB."""
    count = int(gib * 2**30 / 8)
    a = vm.zeros(count, "i8", cache_bytes=1 << 30, **({"devices": devices} if devices else {}))
    a[...] = 1
    chunk = (256 << 20) // 8

    def run() -> None:
        total = 0
        for start in range(0, count, chunk):
            total += int(np.asarray(a[start : start + chunk])[0])
        assert total == -(-count // chunk)

    out = np.empty(chunk, "i8")

    def again() -> None:
        total = 0
        for start in range(0, count, chunk):
            part = a[start : start + chunk]
            total += int(part.read_into(out[: len(part)])[0])
        assert total == -(-count // chunk)

    times = {"vmarray": seconds(again, 3), "to new arrays": seconds(run, 3)}
    told(f"scan of {gib:.0f} GiB by chunks to RAM", 8 * count / 1e9, "GB/s", **times)
    told(f"sum of {gib:.0f} GiB on the devices", 8 * count / 1e9, "GB/s", vmarray=seconds(lambda: a.sum(), 3))


def overheads(devices: str | None) -> None:
    a = vm.arange(1000, **({"devices": devices} if devices else {}))
    times = {"a[5]": seconds(lambda: a[5], 1000), "a + 1, made": seconds(lambda: a + 1, 1000)}
    times["(a + 1).compute()"] = seconds(lambda: (a + 1).compute(), 200)
    times["a.sum()"] = seconds(lambda: a.sum(), 200)
    RESULTS["overheads"] = times
    print("overheads: " + ", ".join(f"{name} {1e6 * t:.1f} us" for name, t in times.items()), flush=True)


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("--devices", help="as the option of arrays; all cards by default")
    arguments.add_argument("--gib", type=float, default=4.0, help="GiB of each array that is computed with")
    arguments.add_argument("--scan-gib", type=float, default=32.0, help="GiB that are scanned")
    arguments.add_argument("--file", default=os.path.join(tempfile.gettempdir(), "on_card.bin"), help="a file to map")
    arguments.add_argument("--only", action="append", help="importing, whole_arrays, listed, scan or overheads")
    given = arguments.parse_args()
    print(f"{platform.node()}, {os.cpu_count()} cores, Python {platform.python_version()}, NumPy {np.__version__},", end=" ")
    print(f"torch {torch.__version__ if torch else 'none'}, vmarray {vm.__version__} on", vm.devices(given.devices or ""))
    wanted = given.only or ["importing", "overheads", "whole_arrays", "listed", "scan"]
    if "importing" in wanted:
        importing()
    if "overheads" in wanted:
        overheads(given.devices)
    if "whole_arrays" in wanted:
        whole_arrays(given.devices, given.gib)
    if "listed" in wanted:
        try:
            listed(given.devices, given.gib, given.file)
        finally:
            if os.path.exists(given.file):
                os.remove(given.file)
    if "scan" in wanted:
        scan(given.devices, given.scan_gib)
    print(json.dumps(RESULTS))


if __name__ == "__main__":
    main()
