"""Writes files for the tests, and verifies files of the tests, with NumPy, zarr-python and xarray.

A request is a line of JSON, and the response is "ok" or an error. Contents are compared as bytes: each file has a
second one, `raw`, with its elements in row-major order and the machine's byte order, without an encoding.
"""

import json
import sys
import traceback
import warnings

import numpy as np
import xarray
import zarr
from zarr.codecs import BloscCodec, BytesCodec, Crc32cCodec, GzipCodec, TransposeCodec, ZstdCodec

warnings.simplefilter("ignore")


def dtype_of(descr):
    """Returns a dtype; fields are lists in JSON."""
    if isinstance(descr, str):
        return np.dtype(descr)
    return np.dtype([(name, dtype_of(of), tuple(shape)) for name, of, shape in descr])


def expected(request):
    elements = np.fromfile(request["raw"], dtype_of(request["dtype"]))
    return elements.reshape(request["shape"])


def random(request):
    """Returns an array of random bytes, and writes them to the second file."""
    dtype = dtype_of(request["dtype"])
    count = int(np.prod(request["shape"]))
    numbers = np.random.default_rng(request["seed"]).integers(0, 256, count * dtype.itemsize, np.uint8)
    elements = numbers.view(dtype).reshape(request["shape"])
    if dtype.kind in "fc":
        # Some programs do not store chunks of only NaNs, with any NaN bits.
        elements[np.isnan(elements)] = np.nan
    fill = request.get("fill")
    if fill is not None:
        elements.reshape(-1)[count // 3 : 2 * count // 3] = fill_value(request)
    elements.tofile(request["raw"])
    return elements


def same(found, wanted):
    assert found.dtype.newbyteorder("=") == wanted.dtype, f"{found.dtype} is not {wanted.dtype}"
    assert found.shape == wanted.shape, f"{found.shape} is not {wanted.shape}"
    found = np.ascontiguousarray(found, dtype=wanted.dtype)
    assert found.tobytes() == wanted.tobytes(), "the elements differ"


def fill_value(request):
    """Returns the fill value from its bytes."""
    return np.frombuffer(bytes(request["fill"]), dtype_of(request["dtype"]))[0]


def check_npy(request):
    same(np.load(request["path"]), expected(request))


def write_npy(request):
    elements = random(request)
    dtype = elements.dtype.newbyteorder(request["order"])
    layout = "F" if request["first_fastest"] else "C"
    version = (request["version"], 0) if request["version"] else None
    with open(request["path"], "wb") as file:
        np.lib.format.write_array(file, np.asarray(elements.astype(dtype), order=layout), version)


def leaves(node, elements):
    """Returns the arrays of a group, or the one array, with their fields of the elements."""
    if elements.dtype.names is None:
        yield node, elements
        return
    for name in elements.dtype.names:
        yield from leaves(f"{node}/{name}", elements[name])


def check_zarr(request):
    for node, wanted in leaves("", expected(request)):
        array = zarr.open_array(request["path"] + node, mode="r")
        same(array[...], wanted)
        if request["fill"] is not None and wanted.dtype.names is None and node == "":
            assert np.asarray(array.fill_value).tobytes() == bytes(request["fill"]), "another fill value"


def compressors(request):
    """Returns the compressor and the checksum codec, if any."""
    name, level = request["compressor"], request["level"]
    if name == "none":
        codecs = []
    elif name == "zstd":
        codecs = [ZstdCodec(level=level, checksum=level % 2 == 0)]
    elif name == "gzip":
        codecs = [GzipCodec(level=level)]
    else:
        codecs = [BloscCodec(cname=name.removeprefix("blosc "), clevel=level, shuffle=request["shuffle"])]
    return codecs + [Crc32cCodec()] * request["checksums"] or None


def create(path, elements, request):
    """Writes an array; its axes beyond the elements' own are in one chunk."""
    axes = elements.shape[len(request["shape"]) :]
    order = request["transposed"] and list(reversed(range(elements.ndim)))
    separator = request["separator"]
    fill = fill_value(request) if request["fill"] is not None else 0
    array = zarr.create_array(
        path,
        shape=elements.shape,
        dtype=elements.dtype,
        chunks=(*request["chunk"], *(max(1, axis) for axis in axes)),
        shards=request["shard"] and (*request["shard"], *(max(1, axis) for axis in axes)),
        filters=[TransposeCodec(order=order)] if order else None,
        serializer=BytesCodec(endian=request["endian"]) if elements.dtype.itemsize > 1 else "auto",
        compressors=compressors(request),
        fill_value=fill,
        chunk_key_encoding={"name": "default", "separator": separator},
        zarr_format=3,
    )
    array[...] = elements


def write_zarr(request):
    elements = random(request)
    if elements.dtype.names:
        zarr.create_group(request["path"], zarr_format=3)
    for node, part in leaves("", elements):
        create(request["path"] + node, np.ascontiguousarray(part), request)


def append_zarr(request):
    """Appends along the first axis; the second file gets all elements."""
    array = zarr.open_array(request["path"])
    elements = expected(request)
    array.append(elements[array.shape[0] :])


def check_ragged(request):
    group = zarr.open_group(request["path"], mode="r")
    same(group["offsets"][...], np.array(request["offsets"], np.uint64))
    same(group["items"][...], expected(request))


def write_ragged(request):
    items = random(request)
    offsets = np.array(request["offsets"], np.uint64)
    zarr.create_group(request["path"], zarr_format=3)
    create(request["path"] + "/items", items, request)
    create(request["path"] + "/offsets", offsets, {**request, "shape": offsets.shape, "fill": None})


def check_xarray(request):
    wanted = expected(request)
    with xarray.open_zarr(request["path"], consolidated=False, mask_and_scale=False, decode_times=False) as found:
        for name in request["fields"]:
            same(found[name].values, wanted[name])
            assert found[name].dims[0] == "dim_0", f"{found[name].dims}"


def write_xarray(request):
    elements = random(request)
    names = [f"axis{axis}" for axis in range(elements.ndim)]
    data = xarray.Dataset({"data": (names, elements)})
    encoding = {"data": {"chunks": tuple(request["chunk"]), "_FillValue": None}}
    data.to_zarr(request["path"], zarr_format=3, consolidated=False, encoding=encoding)


def main():
    for line in sys.stdin:
        request = json.loads(line)
        try:
            globals()[request["do"]](request)
            answer = "ok"
        except Exception:
            answer = traceback.format_exc()
        print(json.dumps(answer), flush=True)


main()
