"""Measures `vmarray.RowTable` next to a kernel that reads rows at their addresses (UVA), to `torch.index_select` in the
memory of the GPU, and to ``tensor[ids].cuda()``.

Run it with an installed wheel on a machine with an NVIDIA GPU, PyTorch and ``nvcc``:
``python rows.py [--gib 16] [--rows 64,256,1024,4096] [--json PATH] [--record PATH]``. Times are medians. ``--record``
writes the times in the form of docs/benchmarks/records, from which ``cargo xtask report`` makes BENCHMARKS.md.
"""

from __future__ import annotations

import argparse
import ctypes
import datetime
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch

import vmarray as vm

COUNTS = (64, 1024, 4096, 65536, 1 << 20)


def peer() -> Callable[..., int]:
    """Compiles the kernel of the peer."""
    folder = tempfile.mkdtemp()
    source, library = Path(__file__).with_name("uva_rows.cu"), f"{folder}/uva_rows.so"
    command = ["nvcc", "-O3", "-arch=native", "-shared", "-Xcompiler", "-fPIC", "-o", library, str(source)]
    subprocess.run(command, check=True)
    gather = ctypes.CDLL(library).uva_gather
    gather.argtypes = [ctypes.c_void_p] * 3 + [ctypes.c_longlong, ctypes.c_int, ctypes.c_void_p]
    return gather


def latency(work: Callable[[int], Any], calls: int) -> float:
    """The median time of a call and a wait for it, in microseconds."""
    times = []
    for call in range(calls):
        torch.cuda.synchronize()
        start = time.perf_counter()
        work(call)
        torch.cuda.synchronize()
        times.append(time.perf_counter() - start)
    return statistics.median(times) * 1e6


def device_time(work: Callable[[int], Any], calls: int) -> float:
    """The median time of a call on the GPU, in microseconds."""
    return device_times(work, calls)[0]


def device_times(work: Callable[[int], Any], calls: int) -> tuple[float, float, float]:
    """The median, the shortest and the longest time of a call on the GPU, in microseconds."""
    work(0)
    events = [torch.cuda.Event(enable_timing=True) for _ in range(calls + 1)]
    events[0].record()
    for call in range(calls):
        work(call)
        events[call + 1].record()
    torch.cuda.synchronize()
    times = [a.elapsed_time(b) * 1e3 for a, b in zip(events, events[1:])]
    return statistics.median(times), min(times), max(times)


def zipf(rows: int, count: int, generator: torch.Generator) -> torch.Tensor:
    """Ids whose frequency falls with their rank (exponent 1). Ranks are spread over the table by a permutation."""
    uniform = torch.rand(count, generator=generator, device="cuda", dtype=torch.float64)
    rank = torch.exp(uniform * np.log(rows)).long().clamp(1, rows) - 1
    return (rank * 0x9E3779B1 + 12345) % rows


def filled(rows: int, row_bytes: int, devices: str) -> tuple[Any, int]:
    """A table whose words are their numbers, and its address."""
    array = vm.empty((rows, row_bytes // 8), "i8", devices=devices, cache_bytes=64 << 20)
    step = (256 << 20) // row_bytes
    for first in range(0, rows, step):
        end = min(first + step, rows)
        words = np.arange(first * (row_bytes // 8), end * (row_bytes // 8))
        array[first:end] = words.reshape(end - first, -1)
    with array.device_memory() as memory:
        address = memory.address
    return array, address


def measure(home: str, row_bytes: int, gib: int, gather: Callable[..., int], repeats: int) -> list[dict[str, Any]]:
    rows = (gib << 30) // row_bytes
    array, address = filled(rows, row_bytes, "cuda:0" if home == "gpu" else "host")
    found = []
    peers = None
    if home == "gpu":
        peers = (
            torch.zeros(rows, row_bytes // 8, dtype=torch.int64, device="cuda"),
            torch.zeros(rows, row_bytes // 8, dtype=torch.int64),
        )
    generator = torch.Generator("cuda").manual_seed(1)
    cache_bytes = array.nbytes // 10 if home == "cached" else 0
    with vm.RowTable(array, device="cuda:0", out_of_range="zeros", cache_bytes=cache_bytes) as table:
        stream = torch.cuda.current_stream().cuda_stream
        for kind in ("uniform", "zipf"):
            for count in COUNTS:
                if kind == "uniform":
                    lists = [
                        torch.randint(rows, (count,), generator=generator, device="cuda") for _ in range(repeats)
                    ]
                else:
                    lists = [zipf(rows, count, generator) for _ in range(repeats)]
                out = torch.empty(count, row_bytes // 8, dtype=torch.int64, device="cuda")

                def ours(call: int) -> None:
                    table.gather_into(out, lists[call % repeats])

                def theirs(call: int) -> None:
                    ids = lists[call % repeats]
                    code = gather(out.data_ptr(), address, ids.data_ptr(), count, row_bytes // 16, stream)
                    assert code == 0

                ours(0)
                torch.cuda.synchronize()
                expected = lists[0][:, None] * (row_bytes // 8) + torch.arange(row_bytes // 8, device="cuda")
                assert torch.equal(out, expected), (home, row_bytes, kind, count)
                if home == "cached":
                    for _ in range(10):
                        fresh = zipf(rows, count, generator) if kind == "zipf" else lists[0]
                        table.gather_into(out, fresh)
                row: dict[str, Any] = {"home": home, "bytes": row_bytes, "ids": kind, "count": count}
                row["ours times"], row["uva times"] = device_times(ours, 20), device_times(theirs, 20)
                row["ours"], row["uva"] = row["ours times"][0], row["uva times"][0]
                if peers is not None:
                    on_card, in_ram = peers
                    row["torch in VRAM"] = device_time(
                        lambda call: torch.index_select(on_card, 0, lists[call % repeats]), 20
                    )
                    on_host = [own.cpu() for own in lists]
                    row["tensor[ids].cuda()"] = latency(lambda call: in_ram[on_host[call % repeats]].cuda(), 5)
                if count <= 4096:
                    row["ours call"], row["uva call"] = latency(ours, 200), latency(theirs, 200)
                row["M rows/s"] = count / row["ours"]
                row["of uva"] = row["uva"] / row["ours"]
                if home == "cached":
                    row["hit rate"] = table.cache_stats()["hit_rate"]
                found.append(row)
                print(json.dumps({key: round(v, 2) if isinstance(v, float) else v for key, v in row.items()}), flush=True)
    return found


def record(results: list[dict[str, Any]], path: Path) -> None:
    """Writes results in the form of ``cargo xtask bench``."""

    def entry(name: str, role: str, times: tuple[float, float, float]) -> dict[str, Any]:
        summary = dict(zip(("median", "low", "high"), times)) | {"runs": 20}
        return {"name": name, "role": role, "summary": summary}

    rows = [
        {
            "name": f"row-table/{row['home']} {row['bytes']}B {row['ids']} {row['count']}",
            "unit": "us",
            "entries": [
                entry("ours", "ours", row["ours times"]),
                entry("kernel at addresses", "alternative", row["uva times"]),
            ],
        }
        for row in results
    ]
    date = datetime.datetime.now(datetime.timezone.utc).strftime("%Y-%m-%dT%H%M%SZ")
    versions = f"CUDA {torch.version.cuda}, PyTorch {torch.__version__}"
    machine = f"One {torch.cuda.get_device_name()}, {os.cpu_count()} cores, {versions}"
    pairs = zip(sys.argv, sys.argv[1:], strict=False)
    words = [word for before, word in pairs if not {before, word} & {"--record", "--json"}]
    facts = [["date", date], ["machine", machine], ["command", " ".join(["python benches/rows.py", *words])]]
    path.write_text(json.dumps({"about": facts, "rows": rows}, indent=2) + "\n")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--gib", type=int, default=16)
    parser.add_argument("--rows", default="64,256,1024,4096")
    parser.add_argument("--homes", default="gpu,ram,cached")
    parser.add_argument("--kinds", default="uniform,zipf")
    parser.add_argument("--json")
    parser.add_argument("--record")
    options = parser.parse_args()
    gather, results = peer(), []
    for home in options.homes.split(","):
        for row_bytes in map(int, options.rows.split(",")):
            results += measure(home, row_bytes, options.gib, gather, 8)
    if options.json:
        Path(options.json).write_text(json.dumps(results, indent=1))
    if options.record:
        record(results, Path(options.record))


if __name__ == "__main__":
    main()
