"""Exceptions of the package. Each is of the class that NumPy or Python raises for the like."""


class Error(Exception):
    """What the library refuses, or what went wrong. Its text ends in what can be done about it.

    Attributes
    ----------
    kind : str
        The name of the kind of error, as in Rust's ``vmarray::ErrorKind``; empty where there is none.
    advice : str
        What can be done about it; empty where the text has it.
    """

    kind = ""
    advice = ""


class InvalidError(Error, ValueError):
    """A request that cannot be carried out on any device."""


class OutsideError(Error, IndexError):
    """An index or a range that is outside of an array."""


class OutOfMemoryError(Error, MemoryError):
    """Neither RAM nor devices have the memory that is asked for."""


class DeviceError(Error, RuntimeError):
    """A device has failed, or is lost."""


class NoDeviceError(Error, RuntimeError):
    """No device was found that was asked for."""


class FileError(Error, OSError):
    """A file is in use, of another array, or damaged."""


class ClosedError(Error, ValueError):
    """The array was closed."""


class LentError(Error, BufferError):
    """The items of the array are lent to another package, or cannot be lent at the moment."""


class KernelError(Error, SyntaxError):
    """A kernel has what kernels cannot have; the error is at its line."""


class ForkedError(Error, RuntimeError):
    """The array was made before this process was forked off."""
