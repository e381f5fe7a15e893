"""RotaryEmbedding, MultiHeadAttention and Attention."""

import itertools

import numpy as np

from norm import normal


def add_checks(checks):
    rotary(checks, np.random.default_rng(3))
    multi_head(checks, np.random.default_rng(4))
    packed(checks, np.random.default_rng(5))
    merged(checks, np.random.default_rng(6))


def angles(rng, positions, half, dtype=np.float32):
    at = rng.standard_normal((positions, half)) * 3
    return np.cos(at).astype(dtype), np.sin(at).astype(dtype)


def rotary(checks, rng):
    for dtype, interleaved in itertools.product((np.float32, np.float16), (0, 1)):
        kind = f"RotaryEmbedding {np.dtype(dtype).name}, interleaved {interleaved}"
        for places in (np.array([3]), rng.integers(0, 12, (2, 5))):
            cos, sin = angles(rng, 12, 8, dtype)
            where = {"places": places.astype(np.int64), "cos": cos, "sin": sin}
            at = f"position_ids {places.shape}"
            checks.op(f"{kind}, {at}, rank 4", "RotaryEmbedding", {"x": normal(rng, 2, 3, 5, 16, dtype=dtype), **where},
                      attributes={"interleaved": interleaved})
            checks.op(f"{kind}, {at}, rank 3", "RotaryEmbedding", {"x": normal(rng, 2, 5, 48, dtype=dtype), **where},
                      attributes={"interleaved": interleaved}, ways=("given",))
            part = {"interleaved": interleaved, "num_heads": 2, "rotary_embedding_dim": 16}
            checks.op(f"{kind}, {at}, rank 3, a part of the head", "RotaryEmbedding",
                      {"x": normal(rng, 2, 5, 48, dtype=dtype), **where}, attributes=part)
    inputs = {"x": normal(rng, 2, 3, 5, 16), "places": np.array([0]), **dict(zip(("cos", "sin"), angles(rng, 9, 8)))}
    checks.refused("RotaryEmbedding, scale", "RotaryEmbedding", inputs, "scale is not supported",
                   attributes={"scale": 2.0})
    checks.refused("RotaryEmbedding, packed batches", "RotaryEmbedding", inputs, "is_packed_batching is not supported",
                   attributes={"is_packed_batching": 1})


def masks(rng, batch, length, keys):
    """Masks of padding, by kind. Every query sees a key."""
    ends = rng.integers(1, keys + 1, batch).astype(np.int32)
    raw = (np.arange(keys) < ends[:, None]).astype(np.int32)
    rows = rng.integers(0, 2, (batch, length, keys)).astype(np.int32)
    rows[:, :, 0] = 1
    return {"none": None, "ends": ends, "keys": raw, "rows": rows}


def multi_head(checks, rng):
    batch, length, heads, width = 2, 4, 3, 8
    cases = itertools.product(("none", "ends", "keys", "rows"), (False, True), (0, 3), (0, 1), (False, True))
    for mask, with_bias, past, causal, with_scores in cases:
        keys = past + length
        if mask == "ends" and past:
            continue  # ONNX Runtime counts from the past there
        inputs = {
            "q": normal(rng, batch, length, heads * width), "k": normal(rng, batch, length, heads * width),
            "v": normal(rng, batch, length, heads * width),
            "bias": normal(rng, 3 * heads * width) if with_bias else None,
            "mask": masks(rng, batch, length, keys)[mask],
            "scores": normal(rng, 1, heads, length, keys) if with_scores else None,
            "pk": normal(rng, batch, heads, past, width) if past else None,
            "pv": normal(rng, batch, heads, past, width) if past else None,
        }
        checks.op(f"MultiHeadAttention, mask {mask}, bias {with_bias}, past {past}, causal {causal}, "
                  f"attention_bias {with_scores}", "MultiHeadAttention", inputs, ("y", "present_k", "present_v"),
                  {"num_heads": heads, "unidirectional": causal})
    for extra, name in (({"scale": 0.3}, "scale"), ({"mask_filter_value": -1.5}, "filter"),
                        ({"mask_filter_value": float(np.finfo(np.float32).min)}, "lowest filter")):
        inputs = {"q": normal(rng, 2, 4, 24), "k": normal(rng, 2, 6, 24), "v": normal(rng, 2, 6, 36), "bias": None,
                  "mask": masks(rng, 2, 4, 6)["keys"]}
        checks.op(f"MultiHeadAttention across, {name}", "MultiHeadAttention", inputs,
                  attributes={"num_heads": 3, **extra})
    inputs = {"q": normal(rng, 2, 4, 24), "k": normal(rng, 2, 6, 24), "v": normal(rng, 2, 6, 24)}
    checks.refused("MultiHeadAttention across, causal", "MultiHeadAttention", inputs,
                   "unidirectional with 4 queries for 6 new keys is not supported",
                   attributes={"num_heads": 3, "unidirectional": 1})
    inputs = {"q": normal(rng, 2, 4, 24), "k": normal(rng, 2, 3, 6, 8), "v": normal(rng, 2, 3, 6, 8)}
    checks.op("MultiHeadAttention with a cache as keys", "MultiHeadAttention", inputs, attributes={"num_heads": 3})
    checks.op("MultiHeadAttention with a cache as keys and a bias", "MultiHeadAttention",
              {**inputs, "bias": normal(rng, 72)}, attributes={"num_heads": 3})
    half = {name: normal(rng, 2, 5, 16, dtype=np.float16) for name in ("q", "k", "v")}
    checks.op("MultiHeadAttention f16", "MultiHeadAttention",
              {**half, "bias": None, "mask": masks(rng, 2, 5, 5)["keys"]}, attributes={"num_heads": 2})
    # The key lengths, then offsets that they make.
    lens = np.array([3, 2, 0, 4, 8, 0, 3, 5], np.int32)
    inputs = {name: normal(rng, 2, 4, 16) for name in ("q", "k", "v")}
    checks.op("MultiHeadAttention, lengths and offsets", "MultiHeadAttention", {**inputs, "bias": None, "mask": lens},
              attributes={"num_heads": 2}, ways=("given",))
    for new, before, mask, causal in itertools.product((1, 4), (0, 3, 5), (False, True), (0, 1)):
        inputs = {name: normal(rng, 2, new, 16) for name in ("q", "k", "v")}
        seen = np.ones((2, before + new), np.int32)
        seen[1, :before] = 0
        inputs.update({"bias": None, "mask": seen if mask else None,
                       "scores": normal(rng, 1, 2, new, before + new) if mask else None,
                       "pk": normal(rng, 2, 2, 9, 8), "pv": normal(rng, 2, 2, 9, 8),
                       "before": np.array([before], np.int32)})
        filled = {name: lambda cache, end=before + new: cache[:, :, :end] for name in ("present_k", "present_v")}
        checks.op(f"MultiHeadAttention, {new} tokens after {before} in a buffer, mask {mask}, causal {causal}",
                  "MultiHeadAttention", inputs, ("y", "present_k", "present_v"),
                  {"num_heads": 2, "unidirectional": causal}, valid=filled)


def packed(checks, rng):
    """Packed projections, which ONNX Runtime has on GPUs only: they mean the same as separate ones."""
    q, k, v = (normal(rng, 2, 4, 3, 8) for _ in range(3))
    bias = normal(rng, 72)
    flat = {name: x.reshape(2, 4, 24) for name, x in (("q", q), ("k", k), ("v", v))}
    for given in (None, bias):
        what = "with" if given is not None else "without"
        checks.op(f"MultiHeadAttention, packed q k v {what} bias", "MultiHeadAttention",
                  {"q": np.stack([q, k, v], 3), "k": None, "v": None, "bias": given}, attributes={"num_heads": 3},
                  ort={**flat, "bias": given})
        checks.op(f"MultiHeadAttention, packed k v {what} bias", "MultiHeadAttention",
                  {"q": flat["q"], "k": np.stack([k, v], 3), "v": None, "bias": given}, attributes={"num_heads": 3},
                  ort={**flat, "bias": given})


def merged(checks, rng):
    batch, length, heads, width, hidden = 2, 4, 2, 8, 12
    cases = itertools.product(("none", "ends", "starts", "keys", "rows", "stand-in"), (0, 3), (0, 1), (False, True))
    for mask, past, causal, with_scores in cases:
        keys = past + length
        if past and (mask in ("ends", "starts") or with_scores):
            continue  # not in ONNX Runtime
        chosen = {**masks(rng, batch, length, keys), "starts": np.array([3, 4, 1, 0], np.int32),
                  "stand-in": np.zeros((batch, 1), np.int32)}[mask]
        inputs = {
            "x": normal(rng, batch, length, hidden), "w": normal(rng, hidden, 3 * heads * width, scale=0.5),
            "b": normal(rng, 3 * heads * width), "mask": chosen,
            "past": normal(rng, 2, batch, heads, past, width) if past else None,
            "scores": normal(rng, 1, heads, length, keys) if with_scores else None,
        }
        ways = ("given",) if mask in ("starts", "stand-in") else ("given", "dynamic")
        checks.op(f"Attention, mask {mask}, past {past}, causal {causal}, attention_bias {with_scores}", "Attention",
                  inputs, ("y", "present"), {"num_heads": heads, "unidirectional": causal}, constants=("w", "b"),
                  ways=ways)
    inputs = {"x": normal(rng, 2, 4, 12), "w": normal(rng, 12, 16 + 16 + 24), "b": normal(rng, 56)}
    checks.op("Attention with wider values", "Attention", inputs,
              attributes={"num_heads": 2, "qkv_hidden_sizes": [16, 16, 24], "scale": 0.2})
    half = {name: x.astype(np.float16) for name, x in inputs.items()}
    checks.op("Attention f16", "Attention", half, attributes={"num_heads": 2, "qkv_hidden_sizes": [16, 16, 24]})
    inputs = {"x": normal(rng, 2, 4, 12), "w": normal(rng, 12, 48), "b": normal(rng, 48)}
    for attributes, text in (({"do_rotary": 1}, "do_rotary is not supported"),
                             ({"past_present_share_buffer": 1}, "a past in a shared buffer is not supported")):
        checks.refused(f"Attention {attributes}", "Attention", inputs, text,
                       attributes={"num_heads": 2, **attributes})
    # Without a bias ONNX Runtime crashes; a bias of zeros is the same.
    checks.op("Attention without a bias", "Attention", {**inputs, "b": None}, attributes={"num_heads": 2},
              ort={**inputs, "b": np.zeros(48, np.float32)})
    checks.refused("Attention, a mask of rank 4", "Attention", {**inputs, "mask": np.ones((2, 1, 8, 8), np.int32)},
                   "a mask of rank 4 is not supported", attributes={"num_heads": 2})
