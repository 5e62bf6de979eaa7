"""Errors of the part in Rust for every kind of input: it describes shapes by arrays of NumPy that have no memory."""

import numpy as np
import pytest

import vmarray as vm


@pytest.mark.parametrize("key", [0, (0,), (np.array(0), ...), ([0], ...), (True, ...), (np.int64(1), ...), [0], ...])
def test_keys_that_make_no_view_are_refused(key):
    core = vm.arange(5)._core
    with pytest.raises(TypeError):
        core.basic(key)


def test_places_outside_are_refused():
    core = vm.arange(5)._core
    for starts in ([-1], [33], [40], [2**62]):
        with pytest.raises(IndexError):
            core.gather(np.array(starts))
        with pytest.raises(IndexError):
            core.scatter(np.array(starts), np.zeros(1, "i8"))
    for wrong in (np.zeros(4, "i8"), np.zeros(10, "i8")[::2]):
        with pytest.raises(ValueError):
            core.write(wrong)
    with pytest.raises(TypeError):
        core.by_method("copy", ())
    with pytest.raises(ValueError):
        core.reduce("nothing")
