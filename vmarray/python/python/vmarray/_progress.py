"""How far work has come that takes long, and how it is stopped."""

from __future__ import annotations

import contextlib
import contextvars
from collections.abc import Callable, Iterator
from typing import Any

#: Who is told of work that this thread, or this task, has done.
CALLBACK: contextvars.ContextVar[Callable[[int, int], Any] | None] = contextvars.ContextVar("CALLBACK", default=None)


@contextlib.contextmanager
def progress(told: Any) -> Iterator[None]:
    """Within its block, sorts tell how far they have come: those of `sort`, `argsort`, `unique`, `group_by`, ...

    Parameters
    ----------
    told : callable or bar
        A function of how many bytes are done and how many there are to do, each as often as it is moved; or a bar as of
        ``tqdm``. It is called before each step, of a few GiB or less, and now and then within one, by any thread, one
        at a time; of several sorts each is told by itself. An exception that it raises stops the sort, and is raised
        there: all items are in the array then, in some order. So does Ctrl-C, with or without this.

    Examples
    --------
    >>> import vmarray as vm
    >>> a, parts = vm.array([3, 1, 2]), []
    >>> with vm.progress(lambda done, total: parts.append(done / total)):
    ...     a.sort()
    >>> parts[-1], a
    (1.0, Array([1, 2, 3], dtype=int64))
    """
    if not callable(told):
        told = _of_bar(told)
    token = CALLBACK.set(told)
    try:
        yield
    finally:
        CALLBACK.reset(token)


def _of_bar(bar: Any) -> Callable[[int, int], None]:
    last: tuple[int, int] | None = None

    def told(done: int, total: int) -> None:
        nonlocal last
        if last is None or done < last[0] or total != last[1]:
            bar.reset(total=total)
            last = 0, total
        bar.update(done - last[0])
        last = done, total

    return told
