"""Tests arrays in a cluster of ``dask.distributed`` on one machine: one worker process for each GPU.

Each worker creates its chunks on its GPU; if a worker is killed, another one creates them again. The program compares
sums, an expression, and halos that travel between GPUs with known results. Then it kills a worker during a computation.
It needs an installed wheel, ``dask[array]`` and ``distributed``:

    python dask_on_cards.py [--gib 16] [--chunk-mib 512] [--devices host --workers 2]
"""

from __future__ import annotations

import argparse
import logging
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any

import dask
import dask.array as da
import distributed
import numpy as np

import vmarray as vm
import vmarray.dask

#: Period of the array's numbers. They are whole, so that sums in any order are equal.
PERIOD = 1009


def made(devices: str | None, block_info: Any = None) -> vm.Array:
    """Creates the chunk that dask describes in `block_info`, on `devices` or on the default devices of the worker."""
    place = block_info[None]
    (start, end), (_, columns) = place["array-location"]
    options = {"devices": devices} if devices else {}
    return (vm.arange(start * columns, end * columns, **options) % PERIOD).astype("f4").reshape(end - start, columns)


def spread(part: vm.Array) -> vm.Array:
    """Adds the two neighbours along the first axis to each item, and drops the edge rows that other workers sent."""
    assert isinstance(part, vm.Array), type(part)
    return part[:-2] + part[1:-1] + part[2:]


def cards() -> int:
    """Number of GPUs. Another process counts the GPUs, because the count opens them, and this process needs none."""
    code = "import vmarray; print(len(vmarray.devices('cuda')))"
    return int(subprocess.check_output([sys.executable, "-c", code]))


def identities(devices: str | None) -> list[str]:
    return [f"{device.name} ({device.identity})" for device in vm.devices(devices or "")]


def timed(name: str, gigabytes: float, work: Callable[[], Any]) -> Any:
    begin = time.perf_counter()
    result = work()
    seconds = time.perf_counter() - begin
    print(f"{name}: {seconds:.3f} s, {gigabytes / seconds:.2f} GB/s", flush=True)
    return result


def cluster_of(workers: int, devices: str | None) -> distributed.SpecCluster:
    """A cluster of worker processes, each of which sees only its own GPU."""
    visible = [one for one in os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",") if one] or [*map(str, range(workers))]
    spec = {
        number: {
            "cls": distributed.Nanny,
            "options": {
                "nthreads": 2,
                "env": {} if devices else {"CUDA_VISIBLE_DEVICES": visible[number % len(visible)]},
                # Set no limit for RAM: chunks are in GPU memory, so the worker must not write them to disk.
                "memory_limit": 0,
                "silence_logs": logging.ERROR,
            },
        }
        for number in range(workers)
    }
    scheduler = {"cls": distributed.Scheduler, "options": {"dashboard_address": None, "host": "127.0.0.1"}}
    return distributed.SpecCluster(workers=spec, scheduler=scheduler, silence_logs=logging.ERROR)


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("--devices", help="as the option of arrays, for each worker; by default each has a card")
    arguments.add_argument("--workers", type=int, help="how many there are; by default one a card")
    arguments.add_argument("--gib", type=float, default=8.0, help="GiB of the array, in all")
    arguments.add_argument("--chunk-mib", type=float, default=256.0, help="MiB of each chunk")
    given = arguments.parse_args()
    workers = given.workers or (cards() if given.devices is None else 0)
    if workers < 2:
        sys.exit("two workers at least are needed: two cards, or --devices host --workers 2")
    columns = 1 << 14
    rows = max(1, int(given.chunk_mib * 2**20 / 4 / columns))
    count = max(workers, int(given.gib * 2**30 / 4 / columns / rows))
    shape, gigabytes = (rows * count, columns), 4 * rows * count * columns / 1e9
    whole, rest = divmod(shape[0] * shape[1], PERIOD)
    total = whole * (PERIOD * (PERIOD - 1) // 2) + rest * (rest - 1) // 2
    settings = {"distributed.scheduler.allowed-failures": 10, "distributed.comm.timeouts.connect": "120s"}
    with dask.config.set(settings), cluster_of(workers, given.devices) as cluster, distributed.Client(cluster) as client:
        client.wait_for_workers(workers, timeout=300)
        known = client.run(identities, given.devices)
        print(f"{gigabytes:.1f} GB of float32 in {count} chunks on {workers} workers:", *known.values(), flush=True)
        assert given.devices or len({tuple(one) for one in known.values()}) == workers, "workers share a card"
        meta = vm.empty((0, 0), "f4", devices="host")
        x = da.map_blocks(made, given.devices, chunks=((rows,) * count, (columns,)), dtype="f4", meta=meta)

        def held() -> da.Array:
            of = x.persist()
            distributed.wait(of)
            return of

        # This first time includes the opening of the GPU by each worker.
        own = timed("made", gigabytes, held)
        assert int(timed("sum", gigabytes, lambda: own.sum(dtype="f8").compute())) == total
        expected = 2 * total + shape[0] * shape[1]
        assert int(timed("sum of an expression", gigabytes, lambda: (own * 2 + 1).sum(dtype="f8").compute())) == expected
        halo = own.map_overlap(spread, depth={0: 1, 1: 0}, boundary="periodic", trim=False, dtype="f4", meta=meta)
        assert int(timed("halo of one row, and its sum", gigabytes, lambda: halo.sum(dtype="f8").compute())) == 3 * total
        first = np.asarray(halo[:2, :5].compute())
        numbers = np.arange(shape[0] * shape[1] - columns, shape[0] * shape[1]) % PERIOD
        above, row, below = numbers[:5], np.arange(5) % PERIOD, np.arange(columns, columns + 5) % PERIOD
        assert (first[0] == above + row + below).all(), first

        victim = next(iter(client.run(os.getpid).values()))

        def killed() -> float:
            later = client.compute(halo.sum(dtype="f8"))
            while not any(client.processing().values()) and not later.done():
                time.sleep(0.001)
            os.kill(victim, signal.SIGKILL)
            return later.result(timeout=600)

        assert int(timed("the same, while a worker is killed", gigabytes, killed)) == 3 * total
        client.wait_for_workers(workers, timeout=300)
        assert victim not in client.run(os.getpid).values()
        assert int(timed("sum, by its successor as well", gigabytes, lambda: x.sum(dtype="f8").compute())) == total
    print("all is right")


if __name__ == "__main__":
    main()
