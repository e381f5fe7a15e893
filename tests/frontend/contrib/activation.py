"""GELU and its kin, and FusedMatMul."""

import itertools

import numpy as np

from norm import normal


def add_checks(checks):
    rng = np.random.default_rng(2)
    for dtype in (np.float32, np.float16):
        kind = np.dtype(dtype).name
        x, bias = normal(rng, 3, 4, 8, dtype=dtype, scale=2), normal(rng, 8, dtype=dtype)
        checks.op(f"Gelu {kind}", "Gelu", {"x": x})
        checks.op(f"BiasGelu {kind}", "BiasGelu", {"x": x, "bias": bias})
        checks.op(f"FastGelu {kind}", "FastGelu", {"x": x})
        checks.op(f"FastGelu {kind} with a bias", "FastGelu", {"x": x, "bias": bias})
        for alpha in (None, 1.0, 0.5, -2.0):
            checks.op(f"QuickGelu {kind} alpha {alpha}", "QuickGelu", {"x": x},
                      attributes={} if alpha is None else {"alpha": alpha})
    products(checks, rng)


def products(checks, rng):
    for trans_a, trans_b, alpha in itertools.product((0, 1), (0, 1), (1.0, 0.25)):
        attributes = {"transA": trans_a, "transB": trans_b, "alpha": alpha}
        for batch_a, batch_b in (((), ()), ((2,), (2,)), ((2, 3), (1, 3)), ((4,), ())):
            a = normal(rng, *batch_a, *((6, 5) if trans_a else (5, 6)))
            b = normal(rng, *batch_b, *((7, 6) if trans_b else (6, 7)))
            checks.op(f"FusedMatMul {attributes} {a.shape} {b.shape}", "FusedMatMul", {"a": a, "b": b},
                      attributes=attributes)
    for flags in itertools.product((0, 1), repeat=4):
        batch_a, batch_b, trans_a, trans_b = flags
        rows, columns = ((6, 5) if trans_a else (5, 6)), ((7, 6) if trans_b else (6, 7))
        # Axis 0 holds the first axis of the matrix when the batch comes behind it.
        a = normal(rng, *((rows[0], 2, 3, rows[1]) if batch_a else (2, 3, *rows)))
        b = normal(rng, *((columns[0], 2, 3, columns[1]) if batch_b else (2, 3, *columns)))
        attributes = {"transBatchA": batch_a, "transBatchB": batch_b, "transA": trans_a, "transB": trans_b}
        checks.op(f"FusedMatMul {attributes}", "FusedMatMul", {"a": a, "b": b}, attributes=attributes)
    for trans in (0, 1):
        vector = normal(rng, 6)
        checks.op(f"FusedMatMul vector times matrix, transA {trans}", "FusedMatMul",
                  {"a": vector, "b": normal(rng, 6, 4)}, attributes={"transA": trans})
        checks.op(f"FusedMatMul matrix times vector, transB {trans}", "FusedMatMul",
                  {"a": normal(rng, 4, 6), "b": vector}, attributes={"transB": trans})
    half = normal(rng, 4, 6, dtype=np.float16)
    checks.op("FusedMatMul f16", "FusedMatMul", {"a": half, "b": half}, attributes={"transB": 1, "alpha": 0.5})
    checks.refused("FusedMatMul with an unknown attribute", "FusedMatMul", {"a": half, "b": half},
                   'attribute "activation" is not supported', attributes={"transB": 1, "activation": "Relu"})
