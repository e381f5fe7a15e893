"""Mixtures of experts, with plain and with quantized weights."""

import itertools

import numpy as np

from norm import normal
from quant import pack, unpack

TOKENS, EXPERTS, HIDDEN, INNER = 6, 4, 32, 16


def add_checks(checks):
    plain(checks, np.random.default_rng(10))
    quantized(checks, np.random.default_rng(11))


def sigmoid(x):
    return 1 / (1 + np.exp(-x))


ACTIVATIONS = {
    "relu": lambda x: np.maximum(x, 0),
    "gelu": lambda x: x / 2 * (1 + np.tanh(np.sqrt(2 / np.pi) * (x + 0.044715 * x**3))),
    "silu": lambda x: x * sigmoid(x),
    "identity": lambda x: x,
}


def mixture(x, router, up, down, gate, attributes, mixing=None):
    """MoE by its definition; a layer is (weights [experts, out, in], bias [experts, out] or None)."""
    rows = x.reshape(-1, x.shape[-1]).astype(np.float64)
    scores = np.exp(router.astype(np.float64) - router.max(-1, keepdims=True))
    scores /= scores.sum(-1, keepdims=True)
    chosen = np.argsort(-router, -1, kind="stable")[:, :attributes.get("k", 1)]
    weights = np.take_along_axis(scores if mixing is None else mixing.astype(np.float64), chosen, -1)
    if attributes.get("normalize_routing_weights"):
        weights = weights / weights.sum(-1, keepdims=True)

    def through(layer, expert, row):
        return row @ layer[0][expert].T.astype(np.float64) + (0 if layer[1] is None else layer[1][expert])

    kind, fusion = attributes.get("activation_type", "relu"), attributes.get("swiglu_fusion", 0)
    y = np.zeros_like(rows)
    for token, slot in np.ndindex(*chosen.shape):
        expert, row = chosen[token, slot], rows[token]
        h = through(up, expert, row)
        if kind == "swiglu":
            other = through(gate, expert, row) if fusion == 0 else h[1::2] if fusion == 1 else h[len(h) // 2:]
            h = h if fusion == 0 else h[::2] if fusion == 1 else h[:len(h) // 2]
            limit = attributes.get("swiglu_limit", np.inf)
            h, other = np.minimum(h, limit), np.clip(other, -limit, limit)
            h = h * sigmoid(attributes.get("activation_alpha", 1.0) * h) * (other + attributes.get("activation_beta", 0))
        else:
            h = ACTIVATIONS[kind](h)
            if gate is not None:
                h = h * through(gate, expert, row)
        y[token] += weights[token, slot] * through(down, expert, h)
    return y.reshape(x.shape).astype(x.dtype)


def plain(checks, rng):
    def check(name, attributes, gated=False, biased=True, dtype=np.float32, shape=(TOKENS, HIDDEN), only_by_hand=False):
        wide = 2 * INNER if attributes.get("swiglu_fusion") else INNER

        def layer(out, inner):
            return (normal(rng, EXPERTS, out, inner, dtype=dtype, scale=0.3),
                    normal(rng, EXPERTS, out, dtype=dtype) if biased else None)

        up, down, gate = layer(wide, HIDDEN), layer(HIDDEN, INNER), layer(INNER, HIDDEN) if gated else None
        inputs = {"x": normal(rng, *shape, dtype=dtype), "router": normal(rng, TOKENS, EXPERTS, dtype=dtype, scale=2),
                  "w1": up[0], "b1": up[1], "w2": down[0], "b2": down[1]}
        inputs.update({"w3": gate[0], "b3": gate[1]} if gated else {})
        # ONNX Runtime has gates, and halves side by side, on GPUs only.
        want = {"y": mixture(inputs["x"], inputs["router"], up, down, gate, attributes)} if only_by_hand else None
        checks.op(f"MoE {name} {attributes}", "MoE", inputs, attributes=attributes, want=want)

    for kind, k, normalize in itertools.product(ACTIVATIONS, (1, 2), (0, 1)):
        attributes = {"activation_type": kind, "k": k, "normalize_routing_weights": normalize}
        check("of one layer up", attributes)
        check("gated", attributes, gated=True, only_by_hand=True)
    swiglu = {"activation_type": "swiglu", "k": 2, "activation_alpha": 1.702, "activation_beta": 1.0}
    for limit in ({}, {"swiglu_limit": 0.7}):
        check("swiglu", {**swiglu, **limit, "swiglu_fusion": 1, "normalize_routing_weights": 1})
        check("swiglu", {**swiglu, **limit, "swiglu_fusion": 2}, only_by_hand=True)
        check("swiglu", {**swiglu, **limit, "swiglu_fusion": 0}, gated=True, only_by_hand=True)
    check("default alpha and beta", {"activation_type": "swiglu", "swiglu_fusion": 1})
    check("without biases", {"k": 2}, biased=False)
    # In f16 ONNX Runtime's CPU kernel normalizes the weights whatever the attribute says.
    check("f16", {"k": 2, "normalize_routing_weights": 1}, dtype=np.float16)
    check("rank 3", {"k": 3, "activation_type": "silu"}, shape=(2, TOKENS // 2, HIDDEN))
    inputs = {"x": normal(rng, 6, 8), "router": normal(rng, 6, 4), "w1": normal(rng, 4, 16, 8), "b1": None,
              "w2": normal(rng, 4, 8, 16)}
    for extra, text, code in (({"use_sparse_mixer": 1}, "use_sparse_mixer is not supported", 3),
                              ({"activation_type": "tanh"}, 'activation_type "tanh" is not supported', 3),
                              ({"k": 5}, "k = 5 of 4 experts", 1)):
        checks.refused(f"MoE {extra}", "MoE", inputs, text, attributes=extra, code=code)
    # One row more in FC3 and one less in FC1 would give as many rows together.
    uneven = {**inputs, "w1": normal(rng, 4, 15, 8), "b2": None, "w3": normal(rng, 4, 17, 8)}
    checks.refused("MoE of uneven layers", "MoE", uneven, "fc3_experts_weights f32[4, 17, 8] differ", code=1)


def quantized(checks, rng):
    constants = ("w1", "s1", "w2", "s2", "w3", "s3", "z1", "z2", "z3")

    def layer(out, inner, bits, block, with_zeros, dtype):
        """Inputs of a layer, and what they stand for."""
        numbers = rng.integers(0, 1 << bits, (EXPERTS, out, inner))
        groups = inner // block if block else 1
        scales = ((0.5 + rng.random((EXPERTS, out, groups))) / (1 << bits)).astype(dtype)
        zeros = np.full((EXPERTS, out, groups), 1 << (bits - 1))
        if with_zeros:
            zeros = rng.integers(0, 1 << bits, zeros.shape)
        width = inner // groups
        values = (numbers - zeros.repeat(width, 2)) * scales.repeat(width, 2).astype(np.float64)
        if not block:
            scales, zeros = scales[..., 0], zeros[..., 0]
        assert (unpack(pack(numbers, bits), bits, inner) == numbers).all()
        return pack(numbers, bits), scales, pack(zeros, bits) if with_zeros else None, values

    def check(bits, block, with_zeros, gated=False, mixing=False, ort=True, dtype=np.float32, **extra):
        attributes = {"k": 2, "normalize_routing_weights": 1, "expert_weight_bits": bits, "activation_type": "silu",
                      **({"block_size": block} if block else {}), **extra}
        wide = 2 * INNER if attributes.get("swiglu_fusion") else INNER
        form = (bits, block, with_zeros, dtype)
        up, down = layer(wide, HIDDEN, *form), layer(HIDDEN, INNER, *form)
        gate = layer(INNER, HIDDEN, *form) if gated else (None,) * 4
        biases = normal(rng, EXPERTS, wide, dtype=dtype), normal(rng, EXPERTS, HIDDEN, dtype=dtype)
        inputs = {"x": normal(rng, TOKENS, HIDDEN, dtype=dtype),
                  "router": normal(rng, TOKENS, EXPERTS, scale=2, dtype=dtype),
                  "w1": up[0], "s1": up[1], "b1": biases[0], "w2": down[0], "s2": down[1], "b2": biases[1],
                  "w3": gate[0], "s3": gate[1], "b3": None, "z1": up[2], "z2": down[2], "z3": gate[2],
                  "mixing": rng.random((TOKENS, EXPERTS)).astype(np.float32) if mixing else None}
        want = None
        if not ort:
            want = {"y": mixture(inputs["x"], inputs["router"], (up[3], biases[0]), (down[3], biases[1]),
                                 (gate[3], None) if gated else None, attributes, inputs["mixing"])}
        checks.op(f"QMoE of {bits} bits, blocks of {block}, zero points {with_zeros}, gated {gated}, "
                  f"router_weights {mixing} {extra}", "QMoE", inputs, attributes=attributes, constants=constants,
                  want=want)

    swiglu = {"activation_type": "swiglu", "swiglu_fusion": 1, "activation_alpha": 1.702, "activation_beta": 1.0,
              "swiglu_limit": 7.0}
    for bits, block, with_zeros in itertools.product((2, 4, 8), (0, 16), (False, True)):
        # With blocks of 8 bits ONNX Runtime rounds the activations to 8 bits.
        in_ort = not (bits == 8 and block)
        check(bits, block, with_zeros, ort=in_ort)
        check(bits, block, with_zeros, ort=in_ort, **swiglu)
        check(bits, block, with_zeros, gated=True, ort=False)
    check(4, 16, False, mixing=True)
    check(4, 16, False, mixing=True, normalize_routing_weights=0)
    check(4, 0, False, weights_prepacked=0)
    check(8, 16, True, ort=False, fc2_expert_weight_bits=8)
    check(4, 16, True, dtype=np.float16, weights_prepacked=0)
    inputs = {"x": normal(rng, 6, 8), "router": normal(rng, 6, 4), "w1": np.zeros((4, 16, 4), np.uint8),
              "s1": normal(rng, 4, 16), "b1": None, "w2": np.zeros((4, 8, 8), np.uint8), "s2": normal(rng, 4, 8)}
    for extra, text in (({"weights_prepacked": 1}, "weights_prepacked is not supported"),
                        ({"quant_type": "fp4"}, 'quant_type "fp4" is not supported')):
        checks.refused(f"QMoE {extra}", "QMoE", inputs, text, attributes=extra, constants=constants)
    # Whether a GPU's layout is meant cannot be told.
    short = {k: v.astype(np.float16) if v is not None and v.dtype == np.float32 else v for k, v in inputs.items()}
    checks.refused("QMoE in f16", "QMoE", short, "weights_prepacked = -1", constants=constants)
