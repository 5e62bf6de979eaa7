"""Rows that all processes of a user on a host share by a name: in RAM, or on a GPU."""

from __future__ import annotations

import contextlib
import ctypes
import hashlib
import json
import mmap
import os
import stat
import sys
import weakref
from typing import TYPE_CHECKING, Any

import numpy as np

from ._array import Array
from ._array import array as _copied
from ._errors import DeviceError, FileError, InvalidError, OutOfMemoryError

if TYPE_CHECKING:
    from . import _core

#: Bytes before the rows: a JSON text, which a process writes after all rows, and zeros.
_HEAD = 4096
#: The folder for files in RAM. A driver cannot page-lock mapped pages of files on a drive.
_BASE = "/dev/shm"


class SharedRows:
    """One copy of rows. Each process that uses it holds a shared lock of its file, and the process that fills it an
    exclusive lock. The system releases the locks of a killed process.

    Rows in RAM are the bytes of the file, which each process maps. The last process that closes them removes the file.
    Rows on a GPU belong to the process that has copied them, which also holds an exclusive lock of a second file;
    other processes open them by a CUDA IPC handle in the first file.
    """

    def __init__(self, name: str, source: Array, files: list[Any], card: _core.Device | None) -> None:
        if not name or name != os.path.basename(name) or name.startswith(".") or name.endswith(".owner"):
            raise InvalidError(f"a shared table has a name like 'ngrams', not {name!r}")
        digest = hashlib.sha256(json.dumps(files).encode()).hexdigest()
        self._facts: dict[str, Any] = {"shape": [*source.shape], "dtype": source.dtype.str, "files": digest}
        self._facts["card"] = None if card is None else card.identity
        self._name, self._is_owner = name, False
        self._memory: Any = None
        #: Descriptors of the folder, the file, and the owner's file.
        self._open = [_folder(), -1, -1]
        #: Closes them, also when Python ends.
        self._end = weakref.finalize(self, _end, self._open, name)
        try:
            while not self._take(source, card):
                pass
        except BaseException:
            self.close()
            raise

    def _take(self, source: Array, card: _core.Device | None) -> bool:
        """Opens the rows, or copies them. Returns False if another process has changed the file meanwhile."""
        import fcntl

        folder, file = self._open[0], _opened(self._open[0], self._name)
        self._open[1] = file
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            is_alone = True
        except BlockingIOError:
            # A process that copies the rows holds the exclusive lock.
            fcntl.flock(file, fcntl.LOCK_SH)
            is_alone = False
        known = self._header(file)
        if _is_current(file, folder, self._name) and (is_alone or known is not None):
            if is_alone and (card is not None or known is None or known["facts"] != self._facts):
                known = self._fill(source, card)
            assert known is not None
            if known["facts"] != self._facts:
                raise FileError(f"the shared table {self._name!r} has other rows; close it, or choose another name")
            fcntl.flock(file, fcntl.LOCK_SH)
            # Between the two locks, another process may have removed the file.
            if _is_current(file, folder, self._name):
                self._attach(known, card)
                return True
        self._is_owner, self._memory = False, None
        for number in (1, 2):
            if self._open[number] >= 0:
                os.close(self._open[number])
                self._open[number] = -1
        return False

    @staticmethod
    def _header(file: int) -> dict[str, Any] | None:
        """The facts about complete rows."""
        try:
            head = json.loads(os.pread(file, _HEAD, 0).rstrip(b"\0").decode())
            return head if isinstance(head, dict) and "facts" in head else None
        except ValueError:
            return None

    def _fill(self, source: Array, card: _core.Device | None) -> dict[str, Any]:
        """Copies the rows, and then writes the header."""
        import fcntl

        file = self._open[1]
        os.ftruncate(file, 0)
        head: dict[str, Any] = {"facts": self._facts, "process": os.getpid()}
        if card is None:
            try:
                os.posix_fallocate(file, 0, _HEAD + source.nbytes)
            except OSError as error:
                raise OutOfMemoryError(
                    f"{_BASE} has no room for {source.nbytes} bytes of the table {self._name!r}: {error.strerror}; "
                    "remove files there, or enlarge it"
                ) from error
            from ._files import _in_parallel, _pieces

            rows = _mapped(file, self._facts)

            def work(block: tuple[Any, ...]) -> int:
                rows[block] = np.asarray(source[block])
                return 0

            _in_parallel(work, _pieces(source), source.nbytes, None)
        else:
            self._is_owner, self._open[2] = True, _opened(self._open[0], self._name + ".owner")
            fcntl.flock(self._open[2], fcntl.LOCK_EX | fcntl.LOCK_NB)
            self._memory = _copied(source, devices=card).device_memory()
            head["handle"], head["offset"] = _exported(self._memory)
        os.pwrite(file, json.dumps(head).encode().ljust(_HEAD, b"\0"), 0)
        return head

    def _attach(self, known: dict[str, Any], card: _core.Device | None) -> None:
        if card is None:
            self._memory = _mapped(self._open[1], self._facts)
        elif not self._is_owner:
            if known["process"] == os.getpid():
                raise InvalidError(f"this process has the shared table {self._name!r} open; use that table")
            self._open[2] = _opened(self._open[0], self._name + ".owner")
            self.check()
            self._memory = _Imported(known, self._facts, card.ordinal)

    @property
    def rows(self) -> Any:
        """The rows: a NumPy array, or an object with ``__cuda_array_interface__``."""
        return self._memory

    def check(self) -> None:
        """Raises an error if the process has ended that owns the rows on a GPU."""
        if self._open[2] < 0 or self._is_owner:
            return
        import fcntl

        try:
            fcntl.flock(self._open[2], fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return
        fcntl.flock(self._open[2], fcntl.LOCK_UN)
        raise DeviceError(
            f"the process that had copied the shared table {self._name!r} to the GPU has ended; close the table in all "
            "processes, and open it again"
        )

    def close(self) -> None:
        """Ends the use of the rows. The owner of rows on a GPU waits until no other process uses them."""
        import fcntl

        if self._is_owner and self._open[1] >= 0 and self._end.alive:
            fcntl.flock(self._open[1], fcntl.LOCK_EX)
        self._memory = None
        self._end()


def _end(descriptors: list[int], name: str) -> None:
    """Closes the files of shared rows, and removes them after the last use."""
    import fcntl

    folder, file, owner = descriptors
    if file >= 0:
        with contextlib.suppress(OSError):
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if _is_current(file, folder, name):
                os.unlink(name, dir_fd=folder)
    for one in (owner, file, folder):
        if one >= 0:
            os.close(one)


def _folder() -> int:
    """Opens the folder of shared tables, which only this user can use."""
    if sys.platform != "linux":
        raise InvalidError("processes share tables on Linux only; leave `shared` out")
    path = os.path.join(_BASE, f"vmarray-rows-{os.geteuid()}")
    with contextlib.suppress(FileExistsError):
        os.mkdir(path, 0o700)
    folder = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    _expect_own(folder, path)
    return folder


def _opened(folder: int, name: str) -> int:
    file = os.open(name, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o600, dir_fd=folder)
    _expect_own(file, name)
    return file


def _expect_own(file: int, name: str) -> None:
    status = os.fstat(file)
    if status.st_uid != os.geteuid() or status.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        os.close(file)
        raise FileError(f"{name} belongs to another user, or other users can write to it; remove it")


def _is_current(file: int, folder: int, name: str) -> bool:
    """True if the name still stands for the open file."""
    try:
        return os.stat(name, dir_fd=folder, follow_symlinks=False).st_ino == os.fstat(file).st_ino
    except FileNotFoundError:
        return False


def _mapped(file: int, facts: dict[str, Any]) -> np.ndarray[Any, Any]:
    """The rows in a file, in memory that all processes share. The driver page-locks only writable memory."""
    dtype, shape = np.dtype(facts["dtype"]), tuple(facts["shape"])
    memory = mmap.mmap(file, _HEAD + int(np.prod(shape)) * dtype.itemsize)
    return np.ndarray(shape, dtype, memory, _HEAD)


class _Handle(ctypes.Structure):
    """A ``CUipcMemHandle``."""

    _fields_ = [("bytes", ctypes.c_ubyte * 64)]


def _driver(ordinal: Any, work: Any) -> None:
    """Calls functions of the CUDA driver in the primary context of a GPU, which this process uses already."""
    cuda, context = ctypes.CDLL("libcuda.so.1"), ctypes.c_void_p()

    def call(name: str, *arguments: Any) -> None:
        code = getattr(cuda, name)(*arguments)
        if code:
            raise DeviceError(f"{name} of the CUDA driver failed with code {code}; see CUresult in its documentation")

    call("cuDevicePrimaryCtxRetain", ctypes.byref(context), ordinal)
    try:
        call("cuCtxPushCurrent_v2", context)
        try:
            work(call)
        finally:
            call("cuCtxPopCurrent_v2", ctypes.byref(context))
    finally:
        call("cuDevicePrimaryCtxRelease_v2", ordinal)


def _exported(memory: Any) -> tuple[str, int]:
    """The handle of memory on a GPU for other processes, and the offset of the memory in the driver's allocation."""
    base, size, handle = ctypes.c_uint64(), ctypes.c_size_t(), _Handle()

    def work(call: Any) -> None:
        call("cuMemGetAddressRange_v2", ctypes.byref(base), ctypes.byref(size), ctypes.c_uint64(memory.address))
        call("cuIpcGetMemHandle", ctypes.byref(handle), base)

    _driver(memory.__dlpack_device__()[1], work)
    return bytes(handle.bytes).hex(), memory.address - base.value


class _Imported:
    """Rows on a GPU that another process has copied there."""

    def __init__(self, known: dict[str, Any], facts: dict[str, Any], ordinal: Any) -> None:
        handle, base = _Handle.from_buffer_copy(bytes.fromhex(known["handle"])), ctypes.c_uint64()
        _driver(ordinal, lambda call: call("cuIpcOpenMemHandle_v2", ctypes.byref(base), handle, ctypes.c_uint(1)))
        self.__cuda_array_interface__ = {
            "shape": tuple(facts["shape"]), "typestr": facts["dtype"], "data": (base.value + known["offset"], True),
            "strides": None, "version": 3,
        }  # fmt: skip
        weakref.finalize(self, _driver, ordinal, lambda call: call("cuIpcCloseMemHandle", base)).atexit = False
