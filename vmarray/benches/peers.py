"""Python competitors for the benchmark `peers.rs`: NumPy, Polars, numba and OpenCV, if they are installed.

The benchmark starts this program. It prints a line `peer row` for each competitor and row that it supports, then an
empty line. For each line `peer row` that it then reads, it does that work once and prints three numbers: seconds of
wall time, seconds of processor time, and the result, for a comparison.
"""
import os
import sys
import time

THREADS = sys.argv[1]
for name in ("NUMBA_NUM_THREADS", "POLARS_MAX_THREADS", "OMP_NUM_THREADS"):
    os.environ[name] = THREADS
import numpy as np

COUNT, SIDE, RADIUS = int(sys.argv[2]), int(sys.argv[3]), 8
hashed = np.arange(COUNT, dtype=np.uint32) * np.uint32(2654435761)
hashed ^= hashed >> np.uint32(15)
words, floats = hashed, (hashed >> np.uint32(8)).astype(np.float32) * np.float32(2.0**-24)
del hashed
image = floats[: SIDE * SIDE].reshape(SIDE, SIDE)
LEAST, SHARE, FROM, TO, BINS = np.uint32(1 << 31), np.float32(0.01), np.float32(0.25), np.float32(0.5), np.float32(256)
works = {}


def work(peer, row):
    return lambda function: works.setdefault((peer, row), function)


work("numpy", "u32/count")(lambda: np.count_nonzero(words >= LEAST))
work("numpy", "u32/sum")(lambda: words.sum(dtype=np.uint64))
work("numpy", "u32/min_max")(lambda: int(words.min()) + int(words.max()))
work("numpy", "f32/find-1%")(lambda: checked(np.flatnonzero(floats < SHARE)))
work("numpy", "f32/find-half")(lambda: checked(np.flatnonzero(floats < TO)))
work("numpy", "f32/two-terms")(lambda: np.count_nonzero((floats >= FROM) & (floats < TO)))
work("numpy", "f32/sum")(lambda: floats.sum())
work("numpy", "f32/min_max")(lambda: floats.min() + floats.max())


def checked(indices):
    return len(indices) + int(indices[-1])


try:
    import polars as pl
except ImportError:
    pass
else:
    frame = pl.DataFrame({"u": words, "f": floats})
    u, f = pl.col("u"), pl.col("f")

    def select(*what):
        return lambda: sum(frame.select(*what).row(0))

    work("polars", "u32/count")(select((u >= int(LEAST)).sum()))
    work("polars", "u32/sum")(select(u.cast(pl.UInt64).sum()))
    work("polars", "u32/min_max")(select(u.min().alias("a").cast(pl.UInt64), u.max().alias("b").cast(pl.UInt64)))
    work("polars", "f32/find-1%")(lambda: checked(frame.select((f < 0.01).arg_true())["f"]))
    work("polars", "f32/find-half")(lambda: checked(frame.select((f < 0.5).arg_true())["f"]))
    work("polars", "f32/two-terms")(select(((f >= 0.25) & (f < 0.5)).sum()))
    work("polars", "f32/sum")(select(f.sum()))
    work("polars", "f32/min_max")(select(f.min().alias("a"), f.max().alias("b")))

try:
    import numba
except ImportError:
    pass
else:
    fast = numba.njit(parallel=True, fastmath={"reassoc", "nsz"})

    @fast
    def count(of, least):
        total = 0
        for i in numba.prange(len(of)):
            total += of[i] >= least
        return total

    @fast
    def two_terms(of, least, end):
        total = 0
        for i in numba.prange(len(of)):
            total += (of[i] >= least) & (of[i] < end)
        return total

    @fast
    def total(of, zero):
        sum = zero
        for i in numba.prange(len(of)):
            sum += of[i]
        return sum

    @fast
    def min_max(of):
        least, greatest = of[0], of[0]
        for i in numba.prange(len(of)):
            least = min(least, of[i])
            greatest = max(greatest, of[i])
        return least, greatest

    @fast
    def histogram(of, parts):
        bins = np.zeros((parts, 256), np.uint64)
        for part in numba.prange(parts):
            own = np.zeros(256, np.uint64)
            for i in range(part * len(of) // parts, (part + 1) * len(of) // parts):
                own[int(of[i] * BINS)] += np.uint64(1)
            bins[part] = own
        return bins.sum(axis=0)

    work("numba", "u32/count")(lambda: count(words, LEAST))
    work("numba", "u32/sum")(lambda: total(words, np.uint64(0)))
    work("numba", "u32/min_max")(lambda: sum(map(int, min_max(words))))
    work("numba", "f32/histogram-256")(lambda: histogram(floats, int(THREADS))[7])
    work("numba", "f32/two-terms")(lambda: two_terms(floats, FROM, TO))
    work("numba", "f32/sum")(lambda: total(floats, 0.0))
    work("numba", "f32/min_max")(lambda: sum(min_max(floats)))

try:
    import cv2
except ImportError:
    pass
else:
    cv2.setNumThreads(int(THREADS))
    sigma = RADIUS / 2.5
    blurred = np.empty_like(image)
    size = (2 * RADIUS + 1,) * 2

    @lambda run: work("opencv", "f32/blur")(run)
    def blur():
        cv2.GaussianBlur(image, size, sigma, dst=blurred, borderType=cv2.BORDER_REFLECT)
        return blurred[5, 5]

    @lambda run: work("opencv", "f32/histogram-256")(run)
    def opencv_histogram():
        return cv2.calcHist([floats.reshape(-1, 1 << 12)], [0], None, [256], [0, 1]).ravel()[7]


for peer, row in works:
    print(peer, row)
print(flush=True)
for line in sys.stdin:
    run = works[tuple(line.split())]
    start, used = time.perf_counter(), time.process_time()
    result = run()
    print(time.perf_counter() - start, time.process_time() - used, float(result), flush=True)
