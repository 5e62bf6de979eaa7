"""Measures the speed of the Python package on the machine's devices, compared with NumPy, torch and memory-mapped
files.

Run it with an installed wheel: ``python on_card.py [--devices cuda:0] [--gib 8] [--scan-gib 96] [--file PATH]``. Each
number is the median of several runs after an uncounted first run. If torch is not installed, its rows are missing.
``--record`` adds the figures to the records in docs/benchmarks, from which ``cargo xtask report`` makes BENCHMARKS.md.
"""

from __future__ import annotations

import argparse
import ctypes
import datetime
import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

import vmarray as vm

try:
    import torch
except ImportError:
    torch = None

RECORD = np.dtype([("bytes", "V44")])
RESULTS: dict[str, dict[str, float]] = {}
#: Rows of the record, in the form of ``cargo xtask bench``.
ROWS: list[dict[str, Any]] = []
#: Bytes of a GPU that stay free next to managed memory. A GPU with too little may stop to answer.
MANAGED_MARGIN = 4 << 30
#: The property ``CU_DEVICE_ATTRIBUTE_CONCURRENT_MANAGED_ACCESS`` of a GPU.
CONCURRENT_ACCESS = 89
ROOT = Path(__file__).resolve().parents[3]


@vm.kernel
def heat(x, rate):
    flow = x[-1, 0] + x[1, 0] + x[0, -1] + x[0, 1] - 4 * x
    return x + rate * flow


@vm.kernel
def around(x, rate):
    above = x[-1, -1] + x[-1, 0] + x[-1, 1]
    below = x[1, -1] + x[1, 0] + x[1, 1]
    return x + rate * (above + x[0, -1] + x[0, 1] + below - 8 * x)


class Median(float):
    """Median of several times, in seconds."""

    low: float
    high: float
    runs: int

    def __new__(cls, times: list[float]) -> Median:
        median = super().__new__(cls, statistics.median(times))
        median.low, median.high, median.runs = min(times), max(times), len(times)
        return median


class Managed:
    """CUDA managed memory, which the driver migrates between the first GPU and RAM."""

    def __init__(self, cuda: ctypes.CDLL, device: ctypes.c_int, nbytes: int) -> None:
        self._cuda, self._device, self._nbytes = cuda, device, nbytes
        self._pointer = ctypes.c_uint64()
        self._check(cuda.cuMemAllocManaged(ctypes.byref(self._pointer), ctypes.c_size_t(nbytes), 1))
        memory = (ctypes.c_ubyte * nbytes).from_address(self._pointer.value)
        self.array = np.frombuffer(memory, "u1")

    @classmethod
    def allocate(cls, nbytes: int) -> Managed | None:
        """Allocates managed memory; ``None`` if no GPU supports it, or if less than ``MANAGED_MARGIN`` bytes would stay
        free."""
        try:
            cuda = ctypes.CDLL("libcuda.so.1")
        except OSError:
            return None
        device, context, value = ctypes.c_int(), ctypes.c_void_p(), ctypes.c_int()
        free, total = ctypes.c_size_t(), ctypes.c_size_t()
        if cuda.cuInit(0) or cuda.cuDeviceGet(ctypes.byref(device), 0):
            return None
        cls._check(cuda.cuDeviceGetAttribute(ctypes.byref(value), CONCURRENT_ACCESS, device))
        cls._check(cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), device))
        cls._check(cuda.cuCtxSetCurrent(context))
        cls._check(cuda.cuMemGetInfo_v2(ctypes.byref(free), ctypes.byref(total)))
        if value.value == 0 or free.value < nbytes + MANAGED_MARGIN:
            return None
        return cls(cuda, device, nbytes)

    @staticmethod
    def _check(code: int) -> None:
        if code != 0:
            raise RuntimeError(f"the CUDA driver returned error {code}")

    def move_to_card(self) -> None:
        """Migrates all of the memory to the GPU."""
        size, stream = ctypes.c_size_t(self._nbytes), ctypes.c_void_p()
        self._check(self._cuda.cuMemPrefetchAsync(self._pointer, size, self._device, stream))
        self._check(self._cuda.cuCtxSynchronize())

    def seconds(self, work: Callable[[], object], runs: int = 3) -> Median:
        """Median time of `work`; before each run, all memory migrates to the GPU."""
        times = []
        for _ in range(runs):
            self.move_to_card()
            begin = time.perf_counter()
            work()
            times.append(time.perf_counter() - begin)
        return Median(times)

    def free(self) -> None:
        self._check(self._cuda.cuMemFree_v2(self._pointer))


def seconds(work: Callable[[], object], runs: int = 7) -> Median:
    work()
    times = []
    for _ in range(runs):
        begin = time.perf_counter()
        work()
        times.append(time.perf_counter() - begin)
    return Median(times)


def report_row(name: str, amount: float, unit: str, row: str | None = None, **times: float) -> None:
    """Prints the times of a workload, and its rates: ``amount`` divided by the time, in ``unit``. ``row`` is the name
    in the file that ``--record`` writes; by default ``name``."""
    RESULTS[name] = times
    # Do not record variants of vmarray, such as "vmarray, results kept alive".
    entries = [entry(contender, amount, t) for contender, t in times.items() if not contender.startswith("vmarray,")]
    ROWS.append({"name": f"python/{row or name}", "unit": unit, "entries": entries})
    first = next(iter(times.values()))
    parts = (f"{contender} {1e3 * t:.3f} ms ({amount / t:.2f} {unit}, x{t / first:.2f})" for contender, t in times.items())
    print(f"{name}: " + "; ".join(parts), flush=True)


def entry(contender: str, amount: float, t: float) -> dict[str, Any]:
    """The rate of a contender (such as NumPy) for the record: ``amount`` divided by the time ``t``, in seconds."""
    low, high, runs = (t.low, t.high, t.runs) if isinstance(t, Median) else (t, t, 0)
    versions = {"numpy": np.__version__} | ({"torch": torch.__version__} if torch else {})
    found = {"version": versions[contender]} if contender in versions else {}
    names = {"vmarray": "ours", "numpy": "NumPy in RAM", "torch": "torch on the GPU", "managed": "managed memory"}
    summary = {"median": amount / t, "low": amount / high, "high": amount / low, "runs": runs}
    role = "ours" if contender == "vmarray" else "alternative"
    return {"name": names.get(contender, contender), **found, "role": role, "summary": summary}


def record(devices: str | None) -> Path:
    """Writes all results of this run to a JSON file in docs/benchmarks/records, and returns its path."""
    date = datetime.datetime.now(datetime.timezone.utc).strftime("%Y-%m-%dT%H%M%SZ")
    commit = subprocess.run(["git", "describe", "--always", "--dirty", "--abbrev=12"], cwd=ROOT, capture_output=True, text=True)
    named = ", ".join(str(device) for device in vm.devices(devices or ""))
    # Leave out `--file PATH`, because paths differ from machine to machine.
    pairs = zip(sys.argv, sys.argv[1:], strict=False)
    words = [word for before, word in pairs if word not in ("--record", "--file") and before != "--file"]
    facts = {
        "date": date,
        "commit": commit.stdout.strip(),
        "command": " ".join(["python benches/on_card.py", *words]),
        "machine": f"{named}; {os.cpu_count()} cores, Python {platform.python_version()}",
    }
    path = ROOT / "docs" / "benchmarks" / "records" / f"{date}-python.json"
    text = json.dumps({"about": list(facts.items()), "rows": ROWS}, indent=2)
    path.write_text(text + "\n", encoding="utf-8")
    return path


def importing() -> None:
    def run(code: str) -> float:
        return seconds(lambda: subprocess.run([sys.executable, "-c", code], check=True), 15)

    numpys, ours = run("import numpy"), run("import numpy, vmarray")
    RESULTS["import above numpy"] = {"vmarray": ours - numpys, "numpy": numpys}
    print(f"import: {1e3 * (ours - numpys):.1f} ms above numpy's own {1e3 * numpys:.1f} ms (150 are allowed)", flush=True)


def whole_arrays(devices: str | None, gib: float) -> None:
    """Measures operations on arrays of ``gib`` GiB, compared with NumPy in RAM and torch on the GPU."""
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
    report_row("c = a * 2 + b, f4", 12 * count / 1e9, "GB/s", **add, numpy=scale * seconds(lambda: np.add(np.multiply(x, 2, out=z), y, out=z), 3))
    report_row(
        "a.sum(), f4", 4 * count / 1e9, "GB/s", row="sum", vmarray=seconds(lambda: a.sum()),
        **with_torch(lambda: tx.sum(dtype=torch.float64).item()), numpy=scale * seconds(lambda: x.sum(), 3),
        **managed_sum(x, scale),
    )
    report_row(
        "(a * 2 + b)[a > 0.5].sum(), f4", 8 * count / 1e9, "GB/s",
        vmarray=seconds(lambda: (a * 2 + b)[a > 0.5].sum()),
        **with_torch(lambda: (tx * 2 + ty)[tx > 0.5].sum().item()),
        numpy=scale * seconds(lambda: (x * 2 + y)[x > 0.5].sum(), 3),
    )
    report_row(
        "a.max(), f4", 4 * count / 1e9, "GB/s", vmarray=seconds(lambda: a.max()),
        **with_torch(lambda: tx.max().item()), numpy=scale * seconds(lambda: x.max(), 3),
    )
    report_row(
        "(a > 0.999).find(), f4", 4 * count / 1e9, "GB/s", vmarray=seconds(lambda: (a > 0.999).find()),
        **with_torch(lambda: (tx > 0.999).nonzero().cpu()), numpy=scale * seconds(lambda: np.flatnonzero(x > 0.999), 3),
    )
    report_row(
        "histogram of 256 bins, f4", 4 * count / 1e9, "GB/s", vmarray=seconds(lambda: vm.histogram(a, 256, (0, 1))),
        **with_torch(lambda: torch.histc(tx, 256, 0, 1).cpu()), numpy=scale * seconds(lambda: np.histogram(x, 256, (0, 1)), 1),
    )
    columns = 1 << 12
    m = a[: count // columns * columns].reshape(-1, columns)
    tm = tx[: count // columns * columns].view(-1, columns) if card else None
    few_rows = x[: few // columns * columns].reshape(-1, columns)
    for axis in (0, 1):
        report_row(
            f"max(axis={axis}) of rows of {columns}, f4", 4 * m.size / 1e9, "GB/s",
            vmarray=seconds(lambda: m.max(axis=axis).compute()), **with_torch(lambda: tm.amax(axis)),
            numpy=scale * seconds(lambda: few_rows.max(axis=axis), 1),
        )
        report_row(
            f"argmax(axis={axis}) of rows of {columns}, f4", 4 * m.size / 1e9, "GB/s",
            vmarray=seconds(lambda: m.argmax(axis=axis).compute()), **with_torch(lambda: tm.argmax(axis)),
            numpy=scale * seconds(lambda: few_rows.argmax(axis=axis), 1),
        )
    report_row(
        "median, f4", 4 * count / 1e9, "GB/s", vmarray=seconds(lambda: np.median(a), 3),
        **with_torch(lambda: tx.median().item()), numpy=scale * seconds(lambda: np.median(x), 1),
    )
    report_row(
        f"cumsum(axis=1) of rows of {columns}, f4", 8 * m.size / 1e9, "GB/s",
        vmarray=seconds(lambda: np.cumsum(m, 1), 3), **with_torch(lambda: tm.cumsum(1)),
        numpy=scale * seconds(lambda: np.cumsum(few_rows, 1), 1),
    )
    image = a[: 1 << 28].reshape(-1, 1 << 14)

    def torchs_heat() -> None:
        middle = timage[1:-1, 1:-1]
        beside = timage[:-2, 1:-1] + timage[2:, 1:-1] + timage[1:-1, :-2] + timage[1:-1, 2:]
        middle + 0.1 * (beside - 4 * middle)

    def torchs_around() -> None:
        middle = timage[1:-1, 1:-1]
        rows = [timage[start : start - 2 or None] for start in (0, 1, 2)]
        beside = sum(row[:, start : start - 2 or None] for row in rows for start in (0, 1, 2))
        middle + 0.1 * (beside - 9 * middle)

    timage = tx[: 1 << 28].view(-1, 1 << 14) if card else None
    report_row(
        "a kernel of five neighbours, f4, rows of 2^14", 8 * image.size / 1e9, "GB/s",
        vmarray=seconds(lambda: heat(image, 0.1, boundary="edge"), 3), **with_torch(torchs_heat),
    )
    report_row(
        "a kernel of nine neighbours, f4, rows of 2^14", 8 * image.size / 1e9, "GB/s",
        vmarray=seconds(lambda: around(image, 0.1, boundary="edge"), 3), **with_torch(torchs_around),
    )
    wide = a[: count >> 24 << 24].reshape(-1, 1 << 24)
    report_row(
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
        report_row(f"{name} of {few / 1e6:.0f} M, u4", few / 1e9, "G/s", vmarray=seconds(work, 3), **theirs.get(name, {}))
    rng = vm.random.default_rng(4, **options)
    report_row("random normals, f8", few / 1e9, "G/s", vmarray=seconds(lambda: rng.normal(size=few), 3))


def managed_sum(x: np.ndarray, scale: float) -> dict[str, float]:
    """Measures NumPy's sum of a copy of ``x`` in managed memory, which is on the GPU before each run."""
    if (memory := Managed.allocate(x.nbytes)) is None:
        return {}
    copy = memory.array.view(x.dtype)
    copy[...] = x
    time = scale * memory.seconds(lambda: copy.sum())
    memory.free()
    return {"managed": time}


def listed(devices: str | None, gib: float, path: str) -> None:
    """Measures ``a[idx]`` for 10^6 random indices of elements of 44 bytes, and a memory map of a new file ``path``."""
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
    in_ram = np.fromfile(path, RECORD)
    times["numpy"] = seconds(lambda: in_ram[indices], 3)
    if (memory := Managed.allocate(in_ram.nbytes)) is not None:
        copy = memory.array.view(RECORD)
        copy[...] = in_ram
        times["managed"] = memory.seconds(lambda: copy[indices], 1)
        memory.free()
    if torch is not None:
        of = torch.from_numpy(in_ram.view("u1").reshape(-1, 44))
        wanted = torch.from_numpy(indices)
        times["torch.index_select in RAM"] = seconds(lambda: torch.index_select(of, 0, wanted))
    report_row(f"10^6 of {count / 1e6:.0f} M elements of 44 bytes", 1.0, "M/s", row="rows", **times)
    print(f"  cold memmap is {times['memmap cold'] / times['vmarray']:.0f} times slower (1000 wanted),", end=" ")
    print(f"warm {times['memmap warm'] / times['vmarray']:.1f} times (10 wanted)", flush=True)


def scan(devices: str | None, gib: float) -> None:
    """Measures reads of an array of ``gib`` GiB, possibly larger than RAM, in chunks of 256 MiB."""
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
    report_row(f"scan of {gib:.0f} GiB by chunks to RAM", 8 * count / 1e9, "GB/s", **times)
    report_row(f"sum of {gib:.0f} GiB on the devices", 8 * count / 1e9, "GB/s", vmarray=seconds(lambda: a.sum(), 3))


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
    arguments.add_argument("--record", action="store_true", help="add the figures to docs/benchmarks/records")
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
    if given.record:
        print(record(given.devices))


if __name__ == "__main__":
    main()
