"""What ONNX Runtime's optimizer merges, where its CPU kernels are or by what the operator's documents say."""

import numpy as np

from norm import normal

# Attributes of FusedGemm, and the parameters of FusedConv; None where ONNX Runtime's CPU kernel has it not.
ACTIVATIONS = {
    "Relu": ({}, []),
    "Tanh": ({}, []),
    "Sigmoid": ({}, []),
    "Softplus": ({}, None),
    "Softsign": ({}, None),
    "LeakyRelu": ({"activation_alpha": 0.3}, [0.3]),
    "Elu": ({"activation_alpha": 0.7}, None),
    "Selu": ({"activation_alpha": 1.5, "activation_gamma": 1.1}, None),
    "HardSigmoid": ({"activation_alpha": 0.3, "activation_beta": 0.4}, [0.3, 0.4]),
    "ThresholdedRelu": ({"activation_alpha": 0.5}, None),
    "Clip": (None, [-0.5, 0.75]),
}


def add_checks(checks):
    rng = np.random.default_rng(17)
    activations(checks, rng)
    softmax(checks, rng)
    sums(checks, rng)
    relative_positions(checks, rng)
    x = normal(rng, 1, 8, 4, 4)
    checks.refused("blocked layouts", "ReorderInput", {"x": x}, "ORT_ENABLE_EXTENDED", domain="com.microsoft.nchwc")


def activations(checks, rng):
    for name, (attributes, parameters) in ACTIVATIONS.items():
        if attributes is not None:
            checks.op(f"FusedGemm with {name}", "FusedGemm",
                      {"a": normal(rng, 5, 6), "b": normal(rng, 7, 6), "c": normal(rng, 7)},
                      attributes={"activation": name, "transB": 1, "alpha": 0.5, **attributes}, constants=("b", "c"))
        if parameters is None:
            continue
        x, w, bias, added = normal(rng, 2, 3, 6, 5), normal(rng, 4, 3, 3, 3), normal(rng, 4), normal(rng, 2, 4, 6, 5)
        given = {"activation": name, "pads": [1, 1, 1, 1], **({"activation_params": parameters} if parameters else {})}
        # ONNX Runtime's kernel takes no residual beside some activations.
        for residual in ((None, added) if name == "Relu" else (None,)):
            checks.op(f"FusedConv with {name}, residual {residual is not None}", "FusedConv",
                      {"x": x, "w": w, "bias": bias, "z": residual}, attributes=given, constants=("w", "bias"))
    plain = {"pads": [1, 1, 1, 1], "activation": "Relu"}
    x, w, bias = normal(rng, 2, 3, 6, 5), normal(rng, 4, 3, 3, 3), normal(rng, 4)
    first = {"x": x, "w": w, "bias": bias}
    checks.op("NhwcFusedConv", "NhwcFusedConv", {**first, "x": x.transpose(0, 2, 3, 1)}, attributes=plain,
              want={"y": np.maximum(convolution(x, w, bias), 0).transpose(0, 2, 3, 1)}, constants=("w", "bias"))


def convolution(x, w, bias):
    padded = np.pad(x, ((0, 0), (0, 0), (1, 1), (1, 1)))
    windows = np.lib.stride_tricks.sliding_window_view(padded, (3, 3), axis=(2, 3))
    return np.einsum("nchwij,ocij->nohw", windows, w) + bias[:, None, None]


def softmax(checks, rng):
    """ONNX Runtime has kernels of these for GPUs only."""
    def of(x, axis):
        flat = x.reshape(int(np.prod(x.shape[:axis])), -1)
        e = np.exp(flat - flat.max(1, keepdims=True))
        return (e / e.sum(1, keepdims=True)).reshape(x.shape)

    x = normal(rng, 2, 3, 4, 5)
    for inner, bias_shape, axis in ((1, (2, 1, 1, 5), 3), (0, (1, 1, 4, 5), 3), (0, (4, 5), 2), (1, (2, 1, 4, 5), 2)):
        bias = normal(rng, *bias_shape)
        checks.op(f"BiasSoftmax, bias {bias_shape}, axis {axis}", "BiasSoftmax", {"x": x, "bias": bias},
                  attributes={"axis": axis, "is_inner_broadcast": inner}, want={"y": of(x + bias, axis)}, ways=("given",))


def erf_gelu(x):
    import math
    return 0.5 * x * (1 + np.vectorize(math.erf)(x / np.sqrt(2)))


def sums(checks, rng):
    x, bias, skip = normal(rng, 2, 3, 8), normal(rng, 8), normal(rng, 2, 3, 8)
    left, right = np.split(x + bias, 2, axis=-1)
    checks.op("BiasSplitGelu", "BiasSplitGelu", {"x": x, "bias": bias},
              want={"y": (left * erf_gelu(right)).astype(np.float32)}, ways=("given",))
    checks.op("BiasAdd", "BiasAdd", {"x": x, "bias": bias, "skip": skip}, want={"y": x + bias + skip}, ways=("given",))
    w = normal(rng, 8, 6)
    y = x @ w + bias[:6]
    gelu = 0.5 * y * (1 + np.tanh(np.sqrt(2 / np.pi) * (y + 0.044715 * y**3)))
    checks.op("GemmFastGelu", "GemmFastGelu", {"x": x, "w": w, "bias": bias[:6]}, want={"y": gelu.astype(np.float32)},
              ways=("given",))


def relative_positions(checks, rng):
    """As transformers computes the buckets of T5."""
    def bucket(distance, both, buckets, most):
        first = 0
        if both:
            buckets //= 2
            first = buckets * int(distance > 0)
            distance = abs(distance)
        else:
            distance = -min(distance, 0)
        exact = buckets // 2
        if distance < exact:
            return first + distance
        far = exact + int(np.log(np.float32(distance / exact)) / np.log(most / exact) * (buckets - exact))
        return first + min(far, buckets - 1)

    for both, length, held in ((0, 9, True), (1, 9, True), (0, 40, False), (1, 40, False)):
        table = normal(rng, 3, 16)  # [heads, buckets], which is how the operator reads its table [buckets, heads]
        at = np.array([[bucket(k - q, both, 16, 20) for k in range(length)] for q in range(length)])
        checks.op(f"RelativePositionBias of {length}, both ways {both}, sizes known {held}", "RelativePositionBias",
                  {"table": table.reshape(16, 3), "q": np.array(length, np.int64), "k": np.array(length, np.int64)},
                  attributes={"max_distance": 20, "is_bidirectional": both}, want={"y": table[:, at][None]},
                  constants=("table", "q", "k") if held else ("table",), ways=("given",))
