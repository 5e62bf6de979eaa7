"""The namespace of the array API standard: its own functions. Developers run the standard's suite by hand."""

import numpy as np
import pytest

import vmarray as vm
from conftest import same

xp = vm.arange(1).__array_namespace__()


def test_the_namespace():
    a = xp.asarray([[3, 1], [2, 2]])
    assert a.__array_namespace__() is xp and a.__array_namespace__(api_version="2024.12") is xp
    with pytest.raises(ValueError):
        a.__array_namespace__(api_version="1999.01")
    with pytest.raises(AttributeError):
        xp.random  # noqa: B018
    same(xp.linalg.inv(xp.asarray([[2.0, 0], [0, 4]])), [[0.5, 0], [0, 0.25]])
    assert xp.fft.fftfreq(4, dtype=xp.float32).dtype == xp.float32
    same(xp.sort(a, axis=1, descending=True), [[3, 1], [2, 2]])
    same(xp.argsort(xp.asarray([1, 3, 1, 3]), descending=True), [1, 3, 0, 2])
    same(xp.cumulative_sum(xp.asarray([1, 2]), include_initial=True), [0, 1, 3])
    same(xp.matrix_transpose(a), np.asarray(a).T)
    same(xp.tril(a), np.tril(np.asarray(a)))
    same(xp.triu(a, k=1), np.triu(np.asarray(a), 1))
    for ours, numpys in zip(xp.meshgrid(xp.arange(3), xp.arange(2)), np.meshgrid(np.arange(3), np.arange(2))):
        same(ours, numpys)
    same(xp.take_along_axis(a, xp.asarray([[1], [0]]), axis=1), [[1], [2]])
    same(xp.diff(xp.asarray([1, 4]), prepend=xp.asarray([0]), append=xp.asarray([9])), [1, 3, 5])
    same(xp.unstack(a)[1], [2, 2])
    found = xp.unique_all(xp.asarray([5, 4, 5]))
    same(found.values, [4, 5])
    same(found.inverse_indices, [1, 0, 1])
    assert xp.result_type(a, xp.float32) == np.result_type(np.int64, np.float32) and xp.can_cast(a, xp.float64)
    assert xp.__array_namespace_info__().dtypes(kind="bool") == {"bool": np.dtype(bool)}


def test_devices_and_unsupported_members():
    (device,) = vm.devices("host")
    a = vm.arange(5, devices=device)
    assert a.device == device and a.to_device(device) is a and a.to_device("host") is a
    assert not hasattr(a, "__cuda_array_interface__")
    with pytest.raises(AttributeError, match="give away a copy"):
        a.__cuda_array_interface__  # noqa: B018
    a.__dlpack__(copy=False)
    assert xp.from_dlpack(a, copy=False) is a
    same(np.from_dlpack(a), np.arange(5))
