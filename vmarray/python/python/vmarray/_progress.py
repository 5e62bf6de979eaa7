"""Reports the progress of long operations to the program, and lets the program cancel them."""

from __future__ import annotations

import contextlib
import contextvars
from collections.abc import Callable, Iterator
from typing import Any, Protocol

#: The progress callback of this thread or task.
CALLBACK: contextvars.ContextVar[Callable[[int, int], Any] | None] = contextvars.ContextVar("CALLBACK", default=None)


class Bar(Protocol):
    """A progress bar like ``tqdm``."""

    def reset(self, total: int) -> object: ...

    def update(self, n: int) -> object: ...


@contextlib.contextmanager
def progress(callback: Callable[[int, int], object] | Bar) -> Iterator[None]:
    """Reports the progress of all sorts in a ``with`` block: of `sort`, `argsort`, `unique`, `group_by` and others.

    Parameters
    ----------
    callback : callable or bar
        A function of two numbers: the processed bytes, and the bytes to process in all; or a bar like ``tqdm``. A byte
        that the sort moves several times counts each time. Any thread may call the function, but never two at once. The
        sort calls the function before each step of at most a few GiB, and from time to time within a step. If there are
        several sorts, each reports its own numbers. An exception of the function stops the sort, which raises it; the
        array then has all of its items, in some order. Ctrl-C also stops a sort, with or without this context.

    Examples
    --------
    >>> import vmarray as vm
    >>> a, parts = vm.array([3, 1, 2]), []
    >>> with vm.progress(lambda done, total: parts.append(done / total)):
    ...     a.sort()
    >>> parts[-1], a
    (1.0, Array([1, 2, 3], dtype=int64))
    """
    if not callable(callback):
        callback = _of_bar(callback)
    token = CALLBACK.set(callback)
    try:
        yield
    finally:
        CALLBACK.reset(token)


def _of_bar(bar: Bar) -> Callable[[int, int], None]:
    last: tuple[int, int] | None = None

    def report(done: int, total: int) -> None:
        nonlocal last
        if last is None or done < last[0] or total != last[1]:
            bar.reset(total=total)
            last = 0, total
        bar.update(done - last[0])
        last = done, total

    return report
