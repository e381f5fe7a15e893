"""MatMulNBits and GatherBlockQuantized."""

import itertools

import numpy as np
from onnx import TensorProto, helper

from norm import normal


def add_checks(checks):
    products(checks, np.random.default_rng(8))
    lookups(checks, np.random.default_rng(9))


def pack(numbers, bits):
    """Numbers of few bits in bytes along the last axis, the first in the lowest bits."""
    count = 8 // bits
    padded = np.pad(numbers, [(0, 0)] * (numbers.ndim - 1) + [(0, -numbers.shape[-1] % count)])
    groups = padded.reshape(*padded.shape[:-1], -1, count).astype(np.uint32)
    return (groups << (bits * np.arange(count, dtype=np.uint32))).sum(-1).astype(np.uint8)


def weights(rng, n, k, bits, block, dtype):
    blocks = -(-k // block)
    numbers = rng.integers(0, 1 << bits, (n, blocks, block))
    scales = ((0.5 + rng.random((n, blocks))) / (1 << bits)).astype(dtype)
    zeros = rng.integers(0, 1 << bits, (n, blocks))
    return {"b": pack(numbers, bits), "scales": scales}, {
        "none": None, "packed": pack(zeros, bits),
        "float": (zeros + rng.random((n, blocks))).astype(dtype),
    }


def products(checks, rng):
    constants = ("b", "scales", "zeros", "groups", "bias")
    for bits, (k, block), zeros, with_bias, dtype in itertools.product(
            (2, 4, 8), ((32, 16), (96, 32), (40, 16)), ("none", "packed", "float"), (False, True),
            (np.float32, np.float16)):
        n = 7
        inputs, points = weights(rng, n, k, bits, block, dtype)
        attributes = {"N": n, "K": k, "bits": bits, "block_size": block}
        a = normal(rng, 2, 3, k, dtype=dtype)
        full = {"a": a, **inputs, "zeros": points[zeros], "groups": None,
                "bias": normal(rng, n, dtype=dtype) if with_bias else None}
        name = (f"MatMulNBits of {bits} bits, K {k}, blocks of {block}, zero points {zeros}, bias {with_bias}, "
                f"{np.dtype(dtype).name}")
        # ONNX Runtime has no kernel for this.
        want = {"y": product(full, n, k, bits, block)} if bits == 8 and zeros == "float" else None
        checks.op(name, "MatMulNBits", full, attributes=attributes, constants=constants, want=want)
        if dtype == np.float32 and not with_bias:
            checks.op(name + ", packed at run time", "MatMulNBits", full, attributes=attributes, want=want)
    inputs, points = weights(rng, 5, 64, 4, 16, np.float32)
    groups = rng.integers(0, 4, 64).astype(np.int32)
    for zeros in ("none", "packed", "float"):
        full = {"a": normal(rng, 6, 64), **inputs, "zeros": points[zeros], "groups": groups}
        # ONNX Runtime's CPU kernel takes 8 for every packed zero point when there is a g_idx, against its documents.
        checks.op(f"MatMulNBits with g_idx, zero points {zeros}", "MatMulNBits", full,
                  attributes={"N": 5, "K": 64, "bits": 4, "block_size": 16}, constants=constants,
                  want={"y": product(full, 5, 64, 4, 16)} if zeros == "packed" else None)
    flat = {"a": normal(rng, 6, 64), "b": inputs["b"], "scales": inputs["scales"].reshape(-1),
            "zeros": points["packed"].reshape(-1)}
    attributes = {"N": 5, "K": 64, "bits": 4, "block_size": 16}
    checks.op("MatMulNBits, scales in one row", "MatMulNBits", flat, attributes=attributes, constants=constants)
    checks.op("MatMulNBits, accuracy_level 1", "MatMulNBits", flat, attributes={**attributes, "accuracy_level": 1},
              constants=constants)
    for extra, text, code in (({"weight_prepacked": 1}, "weight_prepacked is not supported", 3),
                              ({"bits": 3}, "3 bits are not supported; 2, 4 and 8 are", 3),
                              ({"block_size": 24}, "block_size 24 is not a power of 2", 1),
                              ({"N": 6}, "the weights are u8[5, 4, 8], not uint8 [6, 4, 8]", 1)):
        checks.refused(f"MatMulNBits {extra}", "MatMulNBits", flat, text, attributes={**attributes, **extra},
                       constants=constants, code=code)


def unpack(array, bits, size):
    count = 8 // bits
    numbers = (array[..., None] >> (bits * np.arange(count))) & ((1 << bits) - 1)
    return numbers.reshape(*array.shape[:-1], -1)[..., :size]


def product(inputs, n, k, bits, block):
    """MatMulNBits by its definition."""
    blocks = -(-k // block)
    numbers = unpack(inputs["b"], bits, block).reshape(n, blocks * block).astype(np.float64)
    zeros, scales = inputs["zeros"], inputs["scales"].astype(np.float64).reshape(n, blocks)
    if zeros is None:
        zeros = np.full((n, blocks), 1 << (bits - 1), np.float64)
    elif zeros.dtype == np.uint8:
        zeros = unpack(zeros.reshape(n, -1), bits, blocks).astype(np.float64)
    index = inputs.get("groups")
    index = np.arange(blocks * block) // block if index is None else index
    w = ((numbers - zeros.astype(np.float64)[:, index]) * scales[:, index])[:, :k]
    y = inputs["a"].astype(np.float64) @ w.T
    if inputs.get("bias") is not None:
        y = y + inputs["bias"]
    return y.astype(inputs["a"].dtype)


def lookups(checks, rng):
    rows, width, block = 9, 64, 16
    for bits, with_zeros, dtype, shape in itertools.product((2, 4, 8), (False, True), (np.float32, np.float16),
                                                            ((), (3,), (2, 3))):
        inputs = {"data": pack(rng.integers(0, 1 << bits, (rows, width)), bits),
                  "at": np.asarray(rng.integers(-rows, rows, shape)),
                  "scales": rng.random((rows, width // block)).astype(dtype),
                  "zeros": pack(rng.integers(0, 1 << bits, (rows, width // block)), bits) if with_zeros else None}
        checks.op(f"GatherBlockQuantized of {bits} bits, zero points {with_zeros}, {np.dtype(dtype).name}, {shape}",
                  "GatherBlockQuantized", inputs, attributes={"bits": bits, "block_size": block},
                  constants=("data", "scales", "zeros"))
    checks.refused("GatherBlockQuantized, scales of another size", "GatherBlockQuantized",
                   {"data": pack(rng.integers(0, 16, (rows, width)), 4), "at": rng.integers(0, rows, (3,)),
                    "scales": rng.random((rows, 1)).astype(np.float32)},
                   "has no element for each block of 16", attributes={"block_size": block},
                   constants=("data", "scales"), code=1)
    for kind, low in ((TensorProto.INT4, -8), (TensorProto.UINT4, 0)):
        for gather_axis, quantize_axis, with_zeros in itertools.product((0, 1, 2), (0, 1, 2), (False, True)):
            shape = [5, 4, 6]
            shape[quantize_axis] = 32
            scale_shape = list(shape)
            scale_shape[quantize_axis] = 2
            tensor = helper.make_tensor("data", kind, shape, rng.integers(low, low + 16, shape).ravel())
            zeros = helper.make_tensor("zeros", kind, scale_shape, rng.integers(low, low + 16, scale_shape).ravel())
            inputs = {"data": tensor, "at": rng.integers(0, 4, (2, 3)),
                      "scales": rng.random(scale_shape).astype(np.float32), "zeros": zeros if with_zeros else None}
            checks.op(f"GatherBlockQuantized of {TensorProto.DataType.Name(kind)}, axes {gather_axis} and "
                      f"{quantize_axis}, zero points {with_zeros}", "GatherBlockQuantized", inputs,
                      attributes={"gather_axis": gather_axis, "quantize_axis": quantize_axis, "block_size": 16},
                      constants=("scales", "zeros"))
    checks.refused("GatherBlockQuantized, blocks of 0", "GatherBlockQuantized", inputs,
                   "block_size 0 is not a power of 2", attributes={"block_size": 0}, constants=("scales",), code=1)
