"""Row tables: equal to indexing by PyTorch, for random tables, lists and formats; on streams and in graphs."""

from __future__ import annotations

import contextlib
import doctest
import pathlib
import subprocess
import sys
import tempfile
import threading

import numpy as np
import pytest

import vmarray as vm

torch = pytest.importorskip("torch")
CARDS = [device for device in vm.devices() if device.backend == "cuda"]
pytestmark = pytest.mark.skipif(not CARDS or not torch.cuda.is_available(), reason="there is no NVIDIA GPU")

#: Options of the array, and of the table. The file is an array of a file that is open for reading.
HOMES = {
    "gpu": ({"devices": "cuda:0"}, {}),
    "short pages": ({"devices": "cuda:0", "page_len": 4096}, {}),
    "ram": ({"devices": "host"}, {}),
    "cached": ({"devices": "host"}, {"cache_bytes": 200_000}),
    "file": (None, {}),
}
WRITABLE = ["gpu", "short pages", "ram"]
FORMATS = {
    "f32": (torch.float32, "f4"),
    "f16": (torch.float16, "f2"),
    "bf16": (torch.bfloat16, "u2"),
    "e4m3": (torch.float8_e4m3fn, "u1"),
    "e5m2": (torch.float8_e5m2, "u1"),
    "i8": (torch.int8, "i1"),
}


@contextlib.contextmanager
def table_of(bits, home, **options):
    """A table of rows of `bits` at a home."""
    of_array, of_table = HOMES[home]
    if of_array is not None:
        with vm.RowTable(vm.array(bits, **of_array), **of_table, **options) as table:
            yield table
        return
    with tempfile.TemporaryDirectory() as folder:
        np.save(f"{folder}/rows.npy", bits)
        array = vm.open(f"{folder}/rows.npy", mode="r", cache_bytes=1 << 20)
        with vm.RowTable(array, **options) as table:
            yield table
        array.close()


def expected(values, ids):
    """Rows of a tensor in RAM, and zeros for ids without a row."""
    inside = (ids >= 0) & (ids < len(values))
    rows = values[ids.clamp(0, len(values) - 1)]
    rows[~inside] = 0
    return rows


@pytest.mark.parametrize("home", HOMES)
@pytest.mark.parametrize("row_bytes", [1, 2, 3, 4, 6, 8, 12, 16, 20, 44, 64, 96, 200, 256, 1000, 1024, 4096])
def test_bytes_are_copied(home, row_bytes):
    rng = np.random.default_rng(row_bytes)
    bits = rng.integers(0, 256, (701, row_bytes), dtype="u1")
    values = torch.from_numpy(bits)
    with table_of(bits, home, out_of_range="zeros") as table:
        for count, kind in [(0, torch.int64), (1, torch.int32), (33, torch.int64), (20_000, torch.int32)]:
            ids = torch.from_numpy(rng.integers(-30, 730, count)).to(kind)
            out = torch.full((count, row_bytes), 7, dtype=torch.uint8, device="cuda")
            table.gather_into(out, ids.cuda())
            assert torch.equal(out.cpu(), expected(values, ids.long()))
        shifted = torch.empty(9 * row_bytes + 1, dtype=torch.uint8, device="cuda")[1:].view(9, row_bytes)
        ids = torch.arange(9)
        table.gather_into(shifted, ids.cuda())
        assert torch.equal(shifted.cpu(), values[:9])


@pytest.mark.parametrize("home", HOMES)
@pytest.mark.parametrize("name", FORMATS)
@pytest.mark.parametrize("length", [3, 4, 64, 130])
def test_formats_are_converted(home, name, length):
    kind, dtype = FORMATS[name]
    rng = np.random.default_rng(length)
    bits = np.frombuffer(rng.bytes(256 * length * np.dtype(dtype).itemsize), dtype).reshape(256, length)
    values = torch.from_numpy(bits.copy()).view(kind)
    scales = rng.uniform(-2, 2, 256).astype("f4")
    for factors in (None, scales):
        with table_of(bits, home, format=name, scales=factors) as table:
            ids = torch.from_numpy(rng.integers(0, 256, 20_000))
            for to in (torch.float32, torch.float16, torch.bfloat16):
                out = torch.empty((20_000, length), dtype=to, device="cuda")
                table.gather_into(out, ids.cuda())
                rows = values[ids].float() if kind.itemsize == 1 else values[ids]
                if factors is not None:
                    rows = rows.float() * torch.from_numpy(scales)[ids][:, None]
                rows = rows.to(to)
                ours = out.cpu()
                assert torch.equal(ours.isnan(), rows.isnan())
                assert torch.equal(ours.nan_to_num(0.0), rows.nan_to_num(0.0)), (name, to)


def test_every_half_is_converted_exactly():
    bits = np.arange(65536, dtype="u2").reshape(256, 256)
    ids = torch.arange(256)
    for name in ("f16", "bf16"):
        values = torch.from_numpy(bits).view(FORMATS[name][0])
        with vm.RowTable(vm.array(bits, devices="cuda:0"), format=name) as table:
            out = torch.empty((256, 256), dtype=torch.float32, device="cuda")
            table.gather_into(out, ids.cuda())
            assert torch.equal(out.cpu().nan_to_num(1.5), values.float().nan_to_num(1.5))


@pytest.mark.parametrize("home", WRITABLE)
def test_rows_are_written(home):
    rng = np.random.default_rng(5)
    for row_bytes in (1, 6, 44, 256):
        bits = rng.integers(0, 256, (500, row_bytes), dtype="u1")
        array = vm.array(bits, **HOMES[home][0])
        ids = torch.from_numpy(rng.permutation(500)[:300])
        values = torch.from_numpy(rng.integers(0, 256, (300, row_bytes), dtype="u1"))
        with vm.RowTable(array) as table:
            table.scatter_from(values.cuda(), ids.cuda())
        bits[ids.numpy()] = values.numpy()
        assert np.array_equal(np.asarray(array), bits)


@pytest.mark.parametrize("home", [*WRITABLE, "cached"])
@pytest.mark.parametrize("name", ["f32", "f16", "e4m3"])
def test_bags_are_summed(home, name):
    kind, dtype = FORMATS[name]
    rng = np.random.default_rng(9)
    values = torch.from_numpy(rng.standard_normal((200, 64)).astype("f4")).to(kind)
    bits = values.view({1: torch.uint8, 2: torch.int16, 4: torch.int32}[kind.itemsize]).numpy().view(dtype)
    ids = torch.from_numpy(rng.integers(0, 200, 1000))
    offsets = torch.from_numpy(np.sort(rng.integers(0, 1000, 50)))
    offsets[0] = 0
    weights = torch.from_numpy(rng.standard_normal(1000).astype("f4"))
    with table_of(bits, home, format=name) as table:
        for given in (None, weights):
            out = torch.empty(50, 64, device="cuda")
            table.gather_sum(out, ids.cuda(), offsets.cuda(), None if given is None else given.cuda())
            theirs = torch.nn.functional.embedding_bag(
                ids, values.float(), offsets, mode="sum", per_sample_weights=given
            )
            torch.testing.assert_close(out.cpu(), theirs, rtol=1e-5, atol=1e-5)
        ends = torch.cat([offsets, torch.tensor([1000])])
        again = torch.empty(50, 64, dtype=torch.bfloat16, device="cuda")
        table.gather_sum(again, ids.cuda(), ends.int().cuda(), weights.cuda())
        torch.testing.assert_close(again, out.bfloat16())


def test_ids_out_of_range_are_errors_of_a_later_call():
    with vm.RowTable(vm.array(np.arange(40, dtype="f4").reshape(10, 4), devices="cuda:0")) as table:
        out = torch.ones(3, 4, device="cuda")
        table.gather_into(out, torch.tensor([1, 10, 2], device="cuda"))
        torch.cuda.synchronize()
        assert torch.equal(out.cpu()[1], torch.zeros(4))
        with pytest.raises(IndexError, match="10"):
            table.gather_into(out, torch.tensor([1, 2, 3], device="cuda"))
        table.gather_into(out, torch.tensor([1, 2, 3], device="cuda"))
        torch.cuda.synchronize()
        table.check()
        assert out.cpu()[:, 0].tolist() == [4, 8, 12]


@pytest.mark.parametrize("home", [*WRITABLE, "cached"])
def test_calls_are_captured_in_graphs(home):
    bits = np.arange(4000 * 16, dtype="i4").reshape(4000, 16)
    with table_of(bits, home) as table:
        ids = torch.zeros(20_000, dtype=torch.int64, device="cuda")
        out = torch.empty(20_000, 16, dtype=torch.int32, device="cuda")
        stream = torch.cuda.Stream()
        with torch.cuda.stream(stream):
            table.gather_into(out, ids)
        stream.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, stream=stream):
            table.gather_into(out, ids)
            doubled = out * 2
        for seed in range(3):
            chosen = torch.from_numpy(np.random.default_rng(seed).integers(0, 4000, 20_000))
            ids.copy_(chosen)
            graph.replay()
            torch.cuda.synchronize()
            assert torch.equal(doubled.cpu(), torch.from_numpy(bits)[chosen] * 2)
        del graph


@pytest.mark.parametrize("home", ["ram", "cached", "file"])
def test_work_is_ordered_with_the_stream(home):
    bits = np.arange(100_000 * 64, dtype="i4").reshape(100_000, 64)
    with table_of(bits, home) as table:
        streams = [torch.cuda.Stream() for _ in range(4)]
        sums = []
        for number in range(40):
            with torch.cuda.stream(streams[number % 4]):
                ids = (torch.arange(20_000, device="cuda") * (number + 1)) % 100_000
                out = torch.empty(20_000, 64, dtype=torch.int32, device="cuda")
                table.gather_into(out, ids)
                sums.append((out[:, 0].long() - ids * 64).abs().sum())
        torch.cuda.synchronize()
        assert all(int(own) == 0 for own in sums)


def test_wrong_arguments_are_refused():
    array = vm.array(np.zeros((10, 4), "f4"), devices="cuda:0")
    with vm.RowTable(array) as table:
        ids, out = torch.zeros(3, dtype=torch.int64, device="cuda"), torch.zeros(3, 4, device="cuda")
        for wrong in (
            lambda: table.gather_into(out[:, :2], ids),
            lambda: table.gather_into(out[:2], ids),
            lambda: table.gather_into(out, ids.float()),
            lambda: table.gather_into(out, ids.cpu()),
            lambda: table.gather_into(out.double(), ids),
            lambda: table.gather_into(out.t().contiguous().t(), ids),
            lambda: table.scatter_from(out.half(), ids),
            lambda: table.gather_into(np.zeros((3, 4), "f4"), ids),
        ):
            with pytest.raises(vm.Error):
                wrong()
        with pytest.raises(vm.ExportError):
            np.asarray(array)
    assert array[0].tolist() == [0, 0, 0, 0]
    with pytest.raises(vm.ClosedError):
        table.gather_into(out, ids)
    with pytest.raises(vm.Error):
        vm.RowTable(array[::2])
    with pytest.raises(vm.Error):
        vm.RowTable(array, scales=[1.0])


def test_hot_rows_are_cached():
    bits = np.arange(100_000 * 32, dtype="i4").reshape(100_000, 32)
    rng = np.random.default_rng(1)
    with vm.RowTable(vm.array(bits, devices="host"), device="cuda:0", cache_bytes=1_000_000) as table:
        out = torch.empty(20_000, 32, dtype=torch.int32, device="cuda")
        for _ in range(50):
            ids = torch.from_numpy(np.where(rng.random(20_000) < 0.9, rng.integers(0, 3000, 20_000),
                                            rng.integers(0, 100_000, 20_000)))
            table.gather_into(out, ids.cuda())
            assert torch.equal(out.cpu(), torch.from_numpy(bits)[ids])
        stats = table.cache_stats()
        assert stats["reads"] == 1_000_000
        assert stats["hit_rate"] > 0.8
        assert stats["bytes_from_cache"] == stats["hits"] * 128
        with pytest.raises(vm.Error):
            table.scatter_from(out, ids.cuda())


def test_a_shortened_file_is_an_error(tmp_path):
    np.save(tmp_path / "rows.npy", np.ones((1000, 1024), "f4"))
    array = vm.open(tmp_path / "rows.npy", mode="r", cache_bytes=1 << 20)
    with vm.RowTable(array) as table:
        with open(tmp_path / "rows.npy", "r+b") as file:
            file.truncate(100_000)
        out = torch.ones(2, 1024, device="cuda")
        table.gather_into(out, torch.tensor([0, 999], device="cuda"))
        torch.cuda.synchronize()
        with pytest.raises(vm.Error):
            table.check()


@pytest.mark.parametrize("home", HOMES)
def test_a_range_of_rows_is_a_table(home, tmp_path):
    bits = np.arange(3000 * 24, dtype="i4").reshape(3000, 24)
    of_array, of_table = HOMES[home]
    if of_array is None:
        np.save(tmp_path / "rows.npy", bits)
        array = vm.open(tmp_path / "rows.npy", mode="r", cache_bytes=1 << 20)
    else:
        array = vm.array(bits, **of_array)
    part = array.reshape(-1)[5 * 8 : 5 * 8 + 2990 * 24].reshape(2990, 24)
    for view, shown in [(array[7:2000], bits[7:2000]), (part, bits.reshape(-1)[40 : 40 + 2990 * 24].reshape(2990, 24))]:
        with vm.RowTable(view, out_of_range="zeros", **of_table) as table:
            ids = torch.randint(-9, len(shown) + 9, (20_000,))
            out = torch.empty(20_000, 24, dtype=torch.from_numpy(shown[:1]).dtype, device="cuda")
            table.gather_into(out, ids.cuda())
            assert torch.equal(out.cpu(), expected(torch.from_numpy(shown), ids))
    if home in WRITABLE:
        with vm.RowTable(array[100:200]) as table:
            table.scatter_from(out[:100] * 0 + 7, torch.arange(100, device="cuda"))
        assert np.asarray(array[99:201])[[0, -1]].tolist() == bits[[99, 200]].tolist()
        assert (np.asarray(array[100:200]) == 7).all()


def test_memory_of_other_packages_is_a_table():
    values = torch.randn(1000, 24)
    ids = torch.randint(1000, (20_000,))
    out = torch.empty(20_000, 24, device="cuda")
    for rows, home in [(values.numpy(), "ram"), (values.cuda(), "gpu"), (values.numpy()[3:], "ram")]:
        with vm.RowTable(rows, out_of_range="zeros") as table:
            assert table.home == home
            table.gather_into(out, ids.cuda())
            assert torch.equal(out.cpu(), expected(values[1000 - len(rows):], ids))
            with pytest.raises(vm.Error):
                table.scatter_from(out, ids.cuda())
    for wrong in (values.numpy()[:, :3], values.cuda()[:, ::2], values, values.numpy()[:0]):
        with pytest.raises(vm.Error):
            vm.RowTable(wrong)


def test_ids_of_other_types_and_other_gpus_are_refused():
    with vm.RowTable(vm.array(np.zeros((10, 4), "f4"), devices="cuda:0")) as table:
        out = torch.zeros(3, 4, device="cuda")
        for kind in (torch.uint32, torch.uint64, torch.int16, torch.float64):
            with pytest.raises(vm.InvalidError, match="int32 or int64"):
                table.gather_into(out, torch.zeros(3, dtype=kind, device="cuda"))
        if torch.cuda.device_count() > 1:
            ids = torch.zeros(3, dtype=torch.int64, device="cuda:1")
            for arguments in [(out, ids), (out.to("cuda:1"), ids.to("cuda:0"))]:
                with pytest.raises(vm.InvalidError, match="cuda:1"):
                    table.gather_into(*arguments)


def test_files_are_read_ahead_and_not_captured():
    bits = np.arange(4000 * 64, dtype="i4").reshape(4000, 64)
    ids = torch.arange(4000, device="cuda")
    out = torch.empty(4000, 64, dtype=torch.int32, device="cuda")
    with table_of(bits, "file", out_of_range="zeros") as table:
        for listed in (ids, ids.int() - 5, [], [3, -1, 10**9], np.arange(9), ids.cpu()):
            table.prefetch(listed)
        table.gather_into(out, ids)
        assert torch.equal(out.cpu(), torch.from_numpy(bits))
        with pytest.raises(vm.InvalidError):
            table.prefetch([0.5])
        stream, graph = torch.cuda.Stream(), torch.cuda.CUDAGraph()
        table.gather_into(out, ids, stream)
        stream.synchronize()
        with pytest.raises(vm.Error, match="graph"), torch.cuda.graph(graph, stream=stream):
            table.gather_into(out, ids)
        del graph
    torch.cuda.synchronize()


def test_prefetch_warms_the_cache():
    bits = np.arange(10_000 * 32, dtype="i4").reshape(10_000, 32)
    with vm.RowTable(vm.array(bits, devices="host"), device="cuda:0", cache_bytes=1_000_000) as table:
        ids = torch.arange(2000, device="cuda")
        for _ in range(4):
            table.prefetch(ids)
        torch.cuda.synchronize()
        before = table.cache_stats()
        out = torch.empty(2000, 32, dtype=torch.int32, device="cuda")
        table.gather_into(out, ids)
        assert torch.equal(out.cpu(), torch.from_numpy(bits[:2000]))
        after = table.cache_stats()
        # Without the calls before it, the gather would have no hits. Rows of one set compete for admission.
        assert before["reads"] == 8000
        assert after["hits"] - before["hits"] > 100


SHARE = """
import sys, torch, vmarray as vm
from vmarray import _shared
_shared._BASE = sys.argv[1]
table = vm.RowTable.open(sys.argv[1] + "/rows.npy", device="cuda:0", home=sys.argv[2], shared="numbers")
ids, out = torch.arange(999, -1, -1, device="cuda"), torch.empty(1000, 64, dtype=torch.int64, device="cuda")
for line in sys.stdin:
    try:
        table.gather_into(out, ids)
        torch.cuda.synchronize()
        print(table.home, int(out[0, 0]), int(out.sum()), flush=True)
    except vm.DeviceError as error:
        print("lost" if "has ended" in str(error) else error, flush=True)
table.close()
"""


@pytest.fixture
def memory_folder():
    """A folder of files in RAM: the system lets a driver page-lock pages of these, and not of files on a drive."""
    with tempfile.TemporaryDirectory(dir="/dev/shm") as folder:
        yield pathlib.Path(folder)


@pytest.mark.parametrize("home", ["ram", "gpu"])
def test_processes_share_rows(home, memory_folder):
    tmp_path = memory_folder
    np.save(tmp_path / "rows.npy", np.arange(64_000).reshape(1000, 64))
    command = [sys.executable, "-c", SHARE, str(tmp_path), home]
    started = []

    def start():
        process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        started.append(process)
        return process

    def ask(process):
        process.stdin.write("\n")
        process.stdin.flush()
        return process.stdout.readline().split()

    right = [home, "63936", str(63_999 * 32_000)]
    try:
        first = start()
        assert ask(first) == right
        others = [start(), start()]
        assert [ask(other) for other in others] == [right, right]
        others[0].kill()
        others[0].wait()
        assert ask(others[1]) == right and ask(first) == right
        first.kill()
        first.wait()
        assert ask(others[1]) == (right if home == "ram" else ["lost"])
        if home == "gpu":
            others[1].communicate()
        again = start()
        assert ask(again) == right
        again.communicate()
        assert again.returncode == 0
    finally:
        for process in started:
            with process:
                process.kill()


def test_an_owner_waits_for_other_processes(memory_folder):
    tmp_path = memory_folder
    np.save(tmp_path / "rows.npy", np.arange(64_000).reshape(1000, 64))
    command = [sys.executable, "-c", SHARE, str(tmp_path), "gpu"]
    first, second = (subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) for _ in range(2))
    with first, second:
        for process in (first, second):
            process.stdin.write("\n")
            process.stdin.flush()
            assert process.stdout.readline().startswith("gpu")
        # One of the two is the owner, and ends after the other one.
        for process in (first, second):
            process.stdin.close()
        assert (first.wait(60), second.wait(60)) == (0, 0)


def test_threads_run_while_a_table_waits_for_the_gpu():
    table = vm.RowTable(vm.array(np.zeros((10, 4), "f4"), devices="cuda:0"))
    out, ids = torch.zeros(3, 4, device="cuda"), torch.zeros(3, dtype=torch.int64, device="cuda")
    table.gather_into(out, ids)
    torch.cuda.synchronize()
    count, is_done = 0, threading.Event()

    def work():
        nonlocal count
        while not is_done.is_set():
            count += 1

    torch.cuda._sleep(2_000_000_000)
    thread = threading.Thread(target=work)
    thread.start()
    while not count:
        pass
    before = count
    del table
    after = count
    is_done.set()
    thread.join()
    assert after > before + 1000


def test_the_guide_and_the_example():
    folder = pathlib.Path(__file__).parent.parent
    result = doctest.testfile(str(folder / "ROWS.md"), module_relative=False)
    assert (result.failed, result.attempted > 10) == (0, True)
    for home in ("files", "ram", "gpu"):
        example = [sys.executable, str(folder / "examples" / "ngram_rows.py"), "--steps", "100", "--home", home]
        subprocess.run(example, check=True)
