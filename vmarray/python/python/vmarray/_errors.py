"""Exception classes of the package. Each also derives from the class that NumPy or Python raises for such an error."""

import re
from typing import Any

#: Names of the library's that Python has by others, in its texts.
_NAMES = {
    "`Builder::max_len`": "`max_len=`",
    "`Builder::create`": "`vmarray.create`",
    "host RAM (`HostDevice`)": 'RAM (`devices="host"`)',
    "a file (`FileDevice`) as a device": "put it in a file (`vmarray.create`)",
    "share by `Placement::Capacity`, or ask for a little less": "ask for a little less",
    "`Discovery::report` lists all, with the reasons": "`vmarray.devices()` lists the devices found by default",
    "`Discovery::select`": "`devices=`",
    "`RaggedBuilder::capacity`": "`max_len=`",
    "`HostDevice`": '`devices="host"`',
    "`FileDevice`": "`vmarray.create`",
    "`open_with`": "`vmarray.open`",
}
#: Paths of Rust, whose last name the package's options have as well.
_PATH = re.compile(r"\b(?:[A-Za-z_]\w*::)+(\w+)")


def in_python(text: str) -> str:
    """Replaces Rust names in an error message of the library by the Python names."""
    for rust, own in _NAMES.items():
        text = text.replace(rust, own)
    return _PATH.sub(r"\1", text)


class Error(Exception):
    """Base class of the package's errors. The text ends with advice on how to avoid the error.

    Attributes
    ----------
    kind : str
        The name of the kind of error, as in Rust's ``vmarray::ErrorKind``; empty if the error is not the library's.
    advice : str
        Advice for the user; empty if the text contains it.
    """

    kind = ""
    advice = ""

    def __init__(self, *args: Any) -> None:
        super().__init__(*(in_python(one) if isinstance(one, str) else one for one in args))

    def __setattr__(self, name: str, value: Any) -> None:
        super().__setattr__(name, in_python(value) if name == "advice" else value)


class InvalidError(Error, ValueError):
    """An invalid or unsupported request."""


class OutsideError(Error, IndexError):
    """An index or a range that is outside of an array."""


class OutOfMemoryError(Error, MemoryError):
    """RAM or devices have less memory than the request needs."""

    def __new__(cls, *args: Any) -> "OutOfMemoryError":
        # `MemoryError.__new__` rejects classes with another base, so Dask's workers could not send the error.
        return Exception.__new__(cls, *args)


class DeviceError(Error, RuntimeError):
    """A device has failed, or is lost."""


class NoDeviceError(Error, RuntimeError):
    """No requested device exists."""


class FileError(Error, OSError):
    """A file is in use, belongs to another array, or is damaged."""


class ClosedError(Error, ValueError):
    """The operation failed because the program has closed the array."""


class ExportError(Error, BufferError):
    """The items of the array are exported to another package, or cannot be exported now."""


class KernelError(Error, SyntaxError):
    """A kernel contains unsupported code. The error names the line."""


class ForkedError(Error, RuntimeError):
    """The array belongs to the parent process, which created it before the fork."""
