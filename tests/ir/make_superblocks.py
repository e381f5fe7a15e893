#!/usr/bin/env python3
"""Prints what superblocks_test.cc expects of each format: a hash of what the gguf package decodes random blocks to.

  python3 tests/ir/make_superblocks.py

Needs gguf. Blocks are the bytes of a linear congruential generator, which the test runs, too; numbers in f16 have bit
14 cleared, so that they are finite.
"""
import gguf
import numpy

BLOCKS = 64
# name in superblocks.cc: type of gguf, where numbers in f16 lie
FORMATS = {
    "q4_0": ("Q4_0", [0]), "q4_1": ("Q4_1", [0, 2]), "q5_0": ("Q5_0", [0]), "q5_1": ("Q5_1", [0, 2]),
    "q8_0": ("Q8_0", [0]), "q2_k": ("Q2_K", [80, 82]), "q3_k": ("Q3_K", [108]), "q4_k": ("Q4_K", [0, 2]),
    "q5_k": ("Q5_K", [0, 2]), "q6_k": ("Q6_K", [208]), "iq4_nl": ("IQ4_NL", [0]), "iq4_xs": ("IQ4_XS", [0]),
    "mxfp4_gguf": ("MXFP4", []),
}


def random_bytes(count):
    state, out = 1, bytearray()
    for _ in range(count):
        state = (state * 6364136223846793005 + 1442695040888963407) % 2**64
        out.append(state >> 56)
    return numpy.frombuffer(bytes(out), dtype=numpy.uint8).copy()


def fnv(data):
    value = 0xcbf29ce484222325
    for byte in data:
        value = (value ^ byte) * 0x100000001b3 % 2**64
    return value


for name, (of_gguf, halves) in FORMATS.items():
    kind = gguf.GGMLQuantizationType[of_gguf]
    elements, size = gguf.GGML_QUANT_SIZES[kind]
    blocks = random_bytes(BLOCKS * size).reshape(BLOCKS, size)
    for at in halves:
        blocks[:, at + 1] &= 0xbf
    numbers = gguf.quants.dequantize(blocks.reshape(1, -1), kind)
    print(f'    {{"{name}", {elements}, {size}, 0x{fnv(numbers.astype("<f4").tobytes()):016x}}},')
