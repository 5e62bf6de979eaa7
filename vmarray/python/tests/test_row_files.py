"""Files of row tables, and rows that processes share; without a GPU."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys

import numpy as np
import pytest

import vmarray as vm
from vmarray import _rows, _shared

SHARE = """
import sys
import vmarray as vm
from vmarray import _rows, _shared
_shared._BASE = sys.argv[1]
rows, _, source = _rows._opened(sys.argv[2], None, None, ())
own = _shared.SharedRows("numbers", rows, source, None)
print("open", int(own.rows.sum()), flush=True)
sys.stdin.readline()
own.close()
"""


def write_tensors(path, **tensors):
    """Writes a file of safetensors; a value is a type and an array of its bits."""
    header, data = {}, b""
    for name, (kind, bits) in tensors.items():
        end = len(data) + bits.nbytes
        header[name] = {"dtype": kind, "shape": bits.shape, "data_offsets": [len(data), end]}
        data += bits.tobytes()
    text = json.dumps(header).encode()
    path.write_bytes(len(text).to_bytes(8, "little") + text + data)


def test_shards_are_one_table(tmp_path):
    rng = np.random.default_rng(1)
    bits = rng.integers(0, 1 << 16, (60, 5), dtype="u2")
    for number, part in zip((1, 2, 10), (bits[:7], bits[7:9], bits[9:])):
        other = ("F32", np.zeros(number, "f4"))
        write_tensors(tmp_path / f"shard-{number}.safetensors", **{f"table.{number}.weight": ("BF16", part), "bias": other})
    write_tensors(tmp_path / "shard-11.safetensors", other=("F32", np.zeros(3, "f4")))
    array, format, source = _rows._opened(f"{tmp_path}/shard-*.safetensors", "table.*.weight", None, ())
    assert format == "bf16" and len(source) == 4
    assert np.array_equal(np.asarray(array), bits)
    rows = np.array([59, 8, 7, 6, 0])
    assert np.array_equal(array[rows], bits[rows])
    array.close()
    for wrong in [
        {"files": f"{tmp_path}/shard-*.safetensors"},
        {"files": f"{tmp_path}/shard-*.safetensors", "name": "missing"},
        {"files": f"{tmp_path}/shard-*.safetensors", "name": "*"},
        {"files": f"{tmp_path}/shard-1.safetensors", "name": "bias", "home": "disk"},
        {"files": f"{tmp_path}/shard-1.safetensors", "name": "bias", "shared": "rows"},
    ]:
        with pytest.raises(vm.Error):
            vm.RowTable.open(**wrong)
    with pytest.raises(FileNotFoundError):
        vm.RowTable.open(f"{tmp_path}/none-*.safetensors")
    with open(tmp_path / "shard-10.safetensors", "r+b") as file:
        file.truncate(os.path.getsize(tmp_path / "shard-10.safetensors") - 1)
    with pytest.raises(vm.FileError, match="shard-10"):
        _rows._opened(f"{tmp_path}/shard-*.safetensors", "table.*.weight", None, ())


def test_other_files_are_tables(tmp_path):
    values = np.arange(60, dtype="f4").reshape(12, 5)
    np.save(tmp_path / "a.npy", values[:4])
    np.save(tmp_path / "b.npy", values[4:])
    array, format, _ = _rows._opened([tmp_path / "a.npy", tmp_path / "b.npy"], None, None, ())
    assert format == "f32" and np.array_equal(np.asarray(array), values)
    with open(tmp_path / "b.npy", "r+b") as file:
        file.truncate(200)
    with pytest.raises(vm.FileError, match="b.npy: another"):
        np.asarray(array)
    array.close()
    values.tofile(tmp_path / "raw.bin")
    array, _, _ = _rows._opened(tmp_path / "raw.bin", None, "f4", (5,))
    assert np.array_equal(np.asarray(array), values)
    with vm.create(tmp_path / "store", (12, 5), "f4") as store:
        store[:] = values
    array, _, _ = _rows._opened(tmp_path / "store", None, None, ())
    assert np.array_equal(np.asarray(array), values)
    array.close()
    np.save(tmp_path / "fortran.npy", np.asfortranarray(values))
    for files, dtype, shape in [
        ("raw.bin", None, ()), ("raw.bin", "f4", (7,)), ("fortran.npy", None, ()), (("a.npy", "store"), None, ()),
    ]:  # fmt: skip
        paths = [tmp_path / one for one in ([files] if isinstance(files, str) else files)]
        with pytest.raises(vm.Error):
            _rows._opened(paths, None, dtype, shape)


@pytest.fixture
def sharing(tmp_path, monkeypatch):
    """Starts processes that share the rows 0 to 99 999, and returns a function that starts one."""
    if sys.platform != "linux":
        pytest.skip("processes share tables on Linux only")
    monkeypatch.setattr(_shared, "_BASE", str(tmp_path))
    np.save(tmp_path / "rows.npy", np.arange(100_000).reshape(1000, 100))
    started = []

    def start():
        command = [sys.executable, "-c", SHARE, str(tmp_path), str(tmp_path / "rows.npy")]
        process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        started.append(process)
        return process

    yield start
    for process in started:
        with process:
            process.kill()


def file_of(tmp_path):
    return tmp_path / f"vmarray-rows-{os.geteuid()}" / "numbers"


def test_processes_share_one_copy(tmp_path, sharing):
    processes = [sharing() for _ in range(3)]
    for process in processes:
        assert process.stdout.readline() == "open 4999950000\n"
    inode, mode = file_of(tmp_path).stat().st_ino, file_of(tmp_path).stat().st_mode & 0o777
    assert mode == 0o600 and file_of(tmp_path).parent.stat().st_mode & 0o777 == 0o700
    # A killed process takes nothing with it.
    processes[0].send_signal(signal.SIGKILL)
    processes[0].wait()
    processes.append(sharing())
    assert processes[3].stdout.readline() == "open 4999950000\n"
    assert file_of(tmp_path).stat().st_ino == inode
    for process in processes[1:]:
        process.communicate("close\n")
        assert process.returncode == 0
    assert not file_of(tmp_path).exists()


def test_rows_that_a_killed_process_has_not_copied_are_copied_again(tmp_path, sharing):
    file_of(tmp_path).parent.mkdir(mode=0o700)
    file_of(tmp_path).write_bytes(bytes(5000))
    assert sharing().stdout.readline() == "open 4999950000\n"


def test_other_rows_and_other_users_are_refused(tmp_path, sharing):
    assert sharing().stdout.readline() == "open 4999950000\n"
    np.save(tmp_path / "others.npy", np.zeros((3, 4)))
    rows, _, source = _rows._opened(tmp_path / "others.npy", None, None, ())
    with pytest.raises(vm.FileError, match="other rows"):
        _shared.SharedRows("numbers", rows, source, None)
    with pytest.raises(vm.InvalidError):
        _shared.SharedRows("../numbers", rows, source, None)
    file_of(tmp_path).chmod(0o622)
    with pytest.raises(vm.FileError, match="other users"):
        _shared.SharedRows("numbers", rows, source, None)
    file_of(tmp_path).parent.chmod(0o777)
    with pytest.raises(vm.FileError, match="other users"):
        _shared.SharedRows("others", rows, source, None)
