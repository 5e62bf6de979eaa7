"""Competitors in Python for the benchmark `tables.rs`: DuckDB and Polars, if they are installed.

The benchmark starts this program for each row. The program prints a line `peer row` for each competitor that has the
row, and then an empty line. For each line `peer row` that it reads, it runs the work of this competitor once. Then it
prints the seconds until the results are in memory, the seconds of processor time, and a number to compare the results.
"""
import os
import sys
import time

THREADS, COUNT = map(int, sys.argv[1:3])
ROW = sys.argv[3]
KIND, _, OF = ROW.partition("/")
os.environ["POLARS_MAX_THREADS"] = str(THREADS)
import numpy as np

try:
    import polars as pl
except ImportError:
    pl = None
try:
    import duckdb
    import pyarrow as pa

    db = duckdb.connect()
    db.execute(f"SET threads={THREADS}; SET preserve_insertion_order=false")
except ImportError:
    db = None

works = {}


def work(peer, run, digest=float):
    works[peer] = run, digest


def mixed(numbers):
    numbers = (numbers + np.uint64(1)) * np.uint64(0x9E3779B97F4A7C15)
    numbers = (numbers ^ (numbers >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    numbers = (numbers ^ (numbers >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return numbers ^ (numbers >> np.uint64(31))


def bits(seed, at):
    return mixed(np.arange(COUNT, dtype=np.uint64) * np.uint64(4) + np.uint64(at + (seed << 40)))


def skewed(seed, at):
    high = bits(seed, at) >> np.uint64(44)
    return ((high * high * high >> np.uint64(40)) * np.uint64(1001)) >> np.uint64(20)


def unique(factor):
    last, half = np.uint64(COUNT - 1), np.uint64((COUNT.bit_length() - 1) // 2)
    keys = np.arange(COUNT, dtype=np.uint64)
    for _ in range(2):
        keys = keys * np.uint64(factor) & last
        keys ^= keys >> half
    return keys


def inputs():
    def table(seed, labels):
        return {f"d{label}": bits(seed, at) % np.uint64(1001) for at, label in enumerate(labels)}

    a, b = table(1, [0, 1, 2, 3]), table(2, [0, 4, 5, 6] if OF == "unique" else [0, 2, 5, 6])
    if OF == "skewed":
        a["d0"], a["d2"] = skewed(1, 0), skewed(1, 2)
    if OF == "unique":
        a["d0"], b["d0"] = unique(0x9E3779B1), unique(0x85EBCA6B)
    return a, b



def joins():
    a, b = inputs()
    common, names = [name for name in a if name in b], list(a) + [name for name in b if name not in a]
    arrays = lambda found: [found[name].to_numpy() for name in names]
    digest = lambda found: float(sum(int(column.sum()) * (at + 1) for at, column in enumerate(found)))
    if pl:
        left, right = pl.DataFrame(a), pl.DataFrame(b)
        for engine in ["streaming", "in-memory"]:
            run = lambda a, b, engine=engine: a.lazy().join(b.lazy(), on=common).collect(engine=engine)
            if KIND == "join":
                work(f"polars-{engine}", lambda run=run: run(left, right), lambda found: digest(arrays(found)))
            else:
                columns = lambda run=run: arrays(run(pl.DataFrame(a), pl.DataFrame(b)))
                work(f"polars-{engine}", columns, digest)
    if db:
        query = f"SELECT {', '.join(names)} FROM %s JOIN %s USING ({', '.join(common)})"
        if KIND == "join":
            for name, of in [("a", a), ("b", b)]:
                db.register("given", pa.table(of))
                db.execute(f"CREATE TABLE {name} AS SELECT * FROM given")
            run = lambda: db.sql(query % ("a", "b")).to_arrow_table()
            work("duckdb-arrow", run, lambda found: digest(arrays(found)))
            run = lambda: db.execute(f"CREATE OR REPLACE TABLE result AS {query % ('a', 'b')}")
            sums = "+".join(f"sum({name})::DOUBLE * {at + 1}" for at, name in enumerate(names))
            work("duckdb-table", run, lambda _: db.sql(f"SELECT {sums} FROM result").fetchall()[0][0])
        else:

            def columns():
                one, two = pa.table(a), pa.table(b)
                return arrays(db.sql(query % ("one", "two")).to_arrow_table())

            work("duckdb-arrow", columns, digest)


def rows():
    of = mixed(np.arange(COUNT, dtype=np.uint64))
    key = {"few": of % np.uint64(1000), "many": of >> np.uint64(44)}.get(OF, of).astype(np.uint32)
    columns = {"key": key, "value": (of >> np.uint64(20)).astype(np.uint32)}
    if pl:
        frame = pl.DataFrame(columns)
        for engine in ["streaming", "in-memory"]:
            if KIND == "group":
                query = frame.lazy().group_by("key").agg(pl.len(), pl.col("value").cast(pl.UInt64).sum())
                digest = lambda found: float((found["value"] % 1000).sum())
            elif KIND == "unique":
                query = frame.lazy().select("key").unique()
                digest = lambda found: float(found["key"].cast(pl.UInt64).sum())
            else:
                query = frame.lazy().select("key", "value") if OF == "pairs" else frame.lazy().select("key")
                query = query.sort("key")
                digest = lambda found: float(found["key"][COUNT // 3])
            work(f"polars-{engine}", lambda query=query, engine=engine: query.collect(engine=engine), digest)
    if db:
        db.register("given", pa.table(columns))
        db.execute("CREATE TABLE rows AS SELECT * FROM given")
        if KIND == "group":
            query = "SELECT key, count(*), sum(value)::UBIGINT AS value FROM rows GROUP BY key"
            digest = lambda found: float((found["value"].to_numpy() % 1000).sum())
        elif KIND == "unique":
            query = "SELECT DISTINCT key FROM rows"
            digest = lambda found: float(found["key"].to_numpy().astype(np.uint64).sum())
        else:
            query = f"SELECT {'key, value' if OF == 'pairs' else 'key'} FROM rows ORDER BY key"
            digest = lambda found: float(found["key"][COUNT // 3].as_py())
        work("duckdb-arrow", lambda query=query: db.sql(query).to_arrow_table(), digest)


if KIND in ("join", "columns"):
    joins()
elif KIND in ("group", "unique", "sort"):
    rows()
for peer in works:
    print(peer, ROW)
print(flush=True)
for line in sys.stdin:
    run, digest = works[line.split()[0]]
    start, used = time.perf_counter(), time.process_time()
    result = run()
    took, used = time.perf_counter() - start, time.process_time() - used
    print(took, used, digest(result), flush=True)
    del result
