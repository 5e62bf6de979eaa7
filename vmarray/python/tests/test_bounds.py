"""Memory of a process that works on files larger than the cache: at most the cache, 64 MiB and the result.

``VMARRAY_BOUNDS_MIB=4096 VMARRAY_BOUNDS_CACHE_MIB=64`` runs the test with files of 4 GiB.
"""

import os
import subprocess
import sys
import threading

import numpy as np
import pytest

import vmarray as vm

MIB = 1 << 20
FILE = int(os.environ.get("VMARRAY_BOUNDS_MIB", "160")) * MIB
CACHE = int(os.environ.get("VMARRAY_BOUNDS_CACHE_MIB", "16")) * MIB
MORE, MAPPED = 64 * MIB, 256 * MIB


def _memory():
    """Anonymous and shared memory of this process, and its mapped pages of files, in bytes."""
    with open("/proc/self/status") as file:
        lines = dict(line.split(":", 1) for line in file)
    anonymous, shared, mapped = (int(lines[name].split()[0]) << 10 for name in ("RssAnon", "RssShmem", "RssFile"))
    return anonymous + shared, mapped


class _Watch:
    """Compares the memory of a process during work with the memory before it."""

    def __init__(self, name, result=0):
        self.name, self.result = name, result

    def __enter__(self):
        vm.release_memory()
        self.before = self.most = _memory()
        self.ended = threading.Event()
        self.thread = threading.Thread(target=self.run)
        self.thread.start()

    def run(self):
        while not self.ended.wait(0.002):
            self.most = tuple(map(max, self.most, _memory()))

    def __exit__(self, kind, *_):
        self.ended.set()
        self.thread.join()
        own, mapped = (after - before for after, before in zip(self.most, self.before))
        print(f"{self.name}: {own >> 20} MiB, mapped {mapped >> 20} MiB", flush=True)
        if kind is None:
            assert own <= CACHE + MORE + self.result, f"{self.name} took {own >> 20} MiB"
            assert mapped <= MAPPED, f"{self.name} mapped {mapped >> 20} MiB"


def _work(folder):
    path, options = os.path.join(folder, "a"), {"cache_bytes": CACHE}
    with open(path, "wb") as file:
        for number in range(FILE // (8 * MIB)):
            file.write(np.random.default_rng(number).integers(0, 1000, MIB).tobytes())
    a = vm.memmap(path, "i8", "r", **options)
    b = vm.memmap(path + "b", "i8", "w+", shape=a.shape, **options)
    places = np.random.default_rng(1).integers(0, len(a), 100_000)
    with _Watch("a[:] = b"):
        b[:] = a
    with _Watch("a[:] = b + 1"):
        b[:] = a + 1
    with _Watch("a[:] = numpy.memmap"):
        b[:] = np.memmap(path, "i8", "r")
    with _Watch("asarray(numpy.memmap)", FILE):
        vm.asarray(np.memmap(path, "i8", "r"), **options)
    with _Watch("save"):
        vm.save(path + ".npy", a)
    with _Watch("load", FILE):
        vm.load(path + ".npy", **options)
    with _Watch("reductions"):
        assert a.sum() == b.sum() and a.max() == 999 and a.std() > 0
    with _Watch("lists", 2 * places.nbytes):
        assert np.array_equal(a[places], b[places])
    with _Watch("rows", 64 * places.nbytes):
        a.reshape(-1, 64)[places[: len(places) // 2] % (len(a) // 64)]
    with _Watch("scatter", places.nbytes):
        b[places] = 7
    with _Watch("counts"):
        assert int((a > 499).sum()) > 0
    with _Watch("slices"):
        for start in range(0, len(a), 1 << 18):
            np.asarray(a[start : start + (1 << 18)])
    with _Watch("sort"):
        b[:] = a
        b.sort()
    half, part = a[: len(a) // 2], a[: len(a) // 8]
    with _Watch("argsort"):
        order = vm.argsort(half)
    assert order.nbytes > CACHE and not np.diff(half[np.asarray(order[-1000:])]).any()
    with _Watch("unique"):
        assert np.array_equal(vm.unique(half), np.arange(1000))
    with _Watch("groups"):
        groups = vm.group_by(part)
        assert part.nbytes > CACHE and int(groups.counts.sum()) == len(part)
        assert int(groups.sum(b[: len(part)]).sum()) == int(b[: len(part)].sum())
    try:
        import zarr  # noqa: F401
    except ImportError:
        return
    with _Watch("to_zarr"):
        vm.to_zarr(a, path + ".zarr", chunks=(1 << 17,))
    with _Watch("a Zarr store in place"), vm.open_zarr(path + ".zarr", home=True, mode="r", **options) as stored:
        stored.sum()


@pytest.mark.skipif(not os.path.exists("/proc/self/status"), reason="there are no counts of memory")
def test_memory_stays_within_its_bounds(tmp_path):
    # Another process, whose memory other tests have not used.
    code = "import sys; sys.path[:0] = sys.argv[2:]; import test_bounds; test_bounds._work(sys.argv[1])"
    arguments = [sys.executable, "-c", code, str(tmp_path), os.path.dirname(__file__)]
    done = subprocess.run(arguments, capture_output=True, text=True, timeout=3600)
    assert done.returncode == 0, done.stdout + done.stderr
