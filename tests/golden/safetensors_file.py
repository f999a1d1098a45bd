"""Writes a safetensors file: 8 bytes of header length, a JSON header, then the tensors' bytes."""

import json
import struct

import numpy as np

DTYPES = {"float64": "F64", "float32": "F32", "int32": "I32"}


def write(path, tensors):
    """Writes name -> array (float64, float32 or int32), widest element first, then by name."""
    arrays = {name: np.asarray(value) for name, value in tensors.items()}
    header, end = {}, 0
    order = sorted(arrays, key=lambda name: (-arrays[name].itemsize, name))
    for name in order:
        array = arrays[name]
        begin, end = end, end + array.nbytes
        header[name] = {
            "dtype": DTYPES[array.dtype.name],
            "shape": list(array.shape),
            "data_offsets": [begin, end],
        }
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)  # the tensors' bytes begin at a multiple of 8
    with open(path, "wb") as file:
        file.write(struct.pack("<Q", len(text)))
        file.write(text)
        for name in order:
            file.write(arrays[name].astype(arrays[name].dtype.newbyteorder("<")).tobytes())
    print(f"{path.name}: {len(order)} tensors, {8 + len(text) + end} bytes")
