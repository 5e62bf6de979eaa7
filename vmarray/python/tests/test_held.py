"""Operations while the program holds something: exported items, iterators, buffers, or a callback of the library. Each
operation ends, with a result or an error."""

import threading

import numpy as np
import pytest

import census
import vmarray as vm

#: Seconds after which an operation counts as hanging.
HANGS_SECONDS = 120

OPERATIONS = {
    "sum": lambda a: a.sum(),
    "read": np.asarray,
    "item": lambda a: a[3],
    "view": lambda a: a[::-2].copy(),
    "write": lambda a: a.__setitem__(3, 7),
    "fill": lambda a: a.__setitem__(slice(None), 7),
    "mask": lambda a: a.__setitem__(a > 3, 7),
    "sort": lambda a: a.sort(),
    "argsort": lambda a: a.argsort(),
    "median": np.median,
    "unique": vm.unique,
    "groups": lambda a: vm.group_by(a).sum(a),
    "find": lambda a: a.find(3),
    "copy": lambda a: a.copy(),
    "expression": lambda a: np.asarray(a * 2 + a),
    "take": lambda a: a.take([1, 2]),
    "append": lambda a: a.append([1, 2]),
    "export": lambda a: a.device_memory().close(),
    "shuffle": lambda a: vm.random.default_rng(1).shuffle(a),
    "iterate": lambda a: [one for _, one in zip(range(3), a)],
    "flush": lambda a: a.flush(),
    "show": repr,
    "close": lambda a: a.close(),
}


def made():
    """An array of many more pages than its cache has."""
    return vm.asarray(np.arange(3000)[::-1], cache_bytes=1 << 13, page_len=128, max_len=4000, devices="host")


def ended(work):
    """Runs work on a thread, and asserts that it ends; returns its errors."""
    errors = []

    def run():
        try:
            work()
        except BaseException as error:
            errors.append(error)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    thread.join(HANGS_SECONDS)
    assert not thread.is_alive(), "an operation hangs"
    return errors


def in_callback(array, work):
    """Calls work while a sort of the array reports its progress."""
    calls = []
    with vm.progress(lambda done, total: calls.append(None) or (work() if len(calls) == 1 else None)):
        array.sort()
    assert calls


def in_iteration(array, work):
    for number, _ in zip(range(3), iter(array)):
        if number == 1:
            work()


def with_lent(array, work):
    with array.device_memory() as memory:
        own = np.from_dlpack(memory)
        work()
        del own


def with_buffer(array, work):
    with memoryview(np.asarray(array)):
        work()


def with_pending(array, work):
    later = array * 2
    work()
    later.compute()


HOLDERS = [in_callback, in_iteration, with_lent, with_buffer, with_pending]


@pytest.mark.parametrize("holder", HOLDERS)
@pytest.mark.parametrize("is_own", [False, True], ids=["other", "own"])
@pytest.mark.parametrize("name", OPERATIONS)
def test_each_operation_ends_while_something_is_held(holder, is_own, name):
    array, other = made(), made()
    raised = []

    def operate():
        try:
            OPERATIONS[name](array if is_own else other)
        except vm.Error as error:
            raised.append(error)

    errors = ended(lambda: holder(array, operate))
    # An array of which something is held may refuse the operation. So may any, in a callback, work by other threads.
    refused = holder is in_callback and all("would deadlock" in str(one) for one in raised)
    assert is_own or not errors and (refused or not raised), (errors, raised)
    assert all(isinstance(one, vm.Error) for one in errors), errors
    if name != "close":
        assert np.sort(np.asarray(other)).shape == other.shape
        assert not (holder is with_lent and is_own) or raised, "the items were exported"


@pytest.mark.parametrize("holder", HOLDERS)
def test_each_function_ends_while_something_is_held(holder):
    array = made()

    def operate():
        for seed, name in enumerate(census.names()):
            census.run(name, 7_000_000 + seed)

    assert not ended(lambda: holder(array, operate))
