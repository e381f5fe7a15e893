"""Normalizations, alone and of sums."""

import numpy as np


def normal(rng, *shape, dtype=np.float32, scale=1.0):
    return (rng.standard_normal(shape) * scale).astype(dtype)


def add_checks(checks):
    rng = np.random.default_rng(1)
    for dtype in (np.float32, np.float16):
        kind = np.dtype(dtype).name
        for domain in ("", "com.microsoft"):
            for axis, scale_shape in ((-1, (16,)), (2, (16,)), (1, (5, 16))):
                inputs = {"x": normal(rng, 2, 5, 16, dtype=dtype), "scale": normal(rng, *scale_shape, dtype=dtype)}
                # ONNX Runtime has it in the default domain only.
                want = None if domain == "" else {"y": rms_norm(inputs["x"], inputs["scale"], axis, 1e-5)}
                checks.op(f"SimplifiedLayerNormalization {kind} {domain} axis {axis}", "SimplifiedLayerNormalization",
                          inputs, attributes={"axis": axis}, domain=domain, want=want)
        x, skip, bias = (normal(rng, 2, 5, 16, dtype=dtype) for _ in range(3))
        gamma, beta, bias = (normal(rng, 16, dtype=dtype) for _ in range(3))
        skips = {"same": skip, "batch of 1": skip[:1], "no batch": skip[0]}
        for what, chosen in skips.items():
            for with_bias in (False, True):
                for outputs in (("y",), ("y", "", "", "sum")):
                    for op in ("SkipSimplifiedLayerNormalization", "SkipLayerNormalization"):
                        inputs = {"x": x, "skip": chosen, "gamma": gamma}
                        if op == "SkipLayerNormalization":
                            inputs["beta"] = beta
                        inputs["bias"] = bias if with_bias else None
                        checks.op(f"{op} {kind}, skip {what}, bias {with_bias}, {len(outputs)} outputs", op, inputs,
                                  outputs, {"epsilon": 1e-5})
        inputs = {"x": x[0], "skip": skip[0], "gamma": gamma}
        checks.op(f"SkipSimplifiedLayerNormalization {kind} rank 2", "SkipSimplifiedLayerNormalization", inputs)
        checks.op(f"SkipLayerNormalization {kind} rank 2, no beta", "SkipLayerNormalization", inputs)
    x64 = normal(rng, 3, 8, dtype=np.float64)
    checks.op("SimplifiedLayerNormalization f64", "SimplifiedLayerNormalization",
              {"x": x64, "scale": normal(rng, 8, dtype=np.float64)}, attributes={"epsilon": 1e-3}, domain="")
    checks.op("SimplifiedLayerNormalization, both outputs", "SimplifiedLayerNormalization",
              {"x": x[0].astype(np.float32), "scale": gamma.astype(np.float32)}, ("y", "inverse"), domain="")
    checks.refused("SkipLayerNormalization with a mean", "SkipLayerNormalization",
                   {"x": x, "skip": x, "gamma": gamma}, "output 1 is not supported", ("y", "mean"))
    checks.refused("SkipLayerNormalization, gamma too long", "SkipLayerNormalization",
                   {"x": x, "skip": x, "gamma": np.zeros(17, x.dtype)}, "not a vector of 16 numbers", code=1)
    embeddings(checks, rng)
    groups(checks, rng)


# ONNX Runtime has kernels for GPUs only.
def group_norm(x, gamma, beta, count, eps, activation, last):
    wide = np.moveaxis(x, -1, 1) if last else x
    parts = wide.astype(np.float64).reshape(x.shape[0], count, -1)
    parts = (parts - parts.mean(2, keepdims=True)) / np.sqrt(parts.var(2, keepdims=True) + eps)
    y = parts.reshape(wide.shape) * gamma[:, None, None] + beta[:, None, None]
    if activation:
        y = y / (1 + np.exp(-y))
    return (np.moveaxis(y, 1, -1) if last else y).astype(x.dtype)


def groups(checks, rng):
    gamma, beta = normal(rng, 8), normal(rng, 8)
    for dtype in (np.float32, np.float16):
        for last, activation in ((True, 0), (True, 1), (False, 1)):
            shape = (2, 3, 5, 8) if last else (2, 8, 3, 5)
            x, bias = normal(rng, *shape, dtype=dtype), normal(rng, 8, dtype=dtype)
            attributes = {"groups": 4, "activation": activation, "channels_last": int(last), "epsilon": 1e-3}
            name = f"{np.dtype(dtype).name}, activation {activation}, channels last {last}"
            checks.op(f"GroupNorm {name}", "GroupNorm", {"x": x, "gamma": gamma, "beta": beta}, attributes=attributes,
                      want={"y": group_norm(x, gamma, beta, 4, 1e-3, activation, last)})
            along = (1, 1, 1, 8) if last else (1, 8, 1, 1)
            vector = (2, 1, 1, 8) if last else (2, 8, 1, 1)
            skips = {"whole": normal(rng, *shape, dtype=dtype), "of rank 2": normal(rng, 2, 8, dtype=dtype),
                     "by channel": normal(rng, *vector, dtype=dtype)}
            for what, skip in skips.items():
                for biased in (False, True):
                    sum = x + (skip.reshape(vector) if skip.ndim == 2 else skip)
                    sum = sum + bias.reshape(along) if biased else sum
                    inputs = {"x": x, "gamma": gamma, "beta": beta, "skip": skip, "bias": bias if biased else None}
                    checks.op(f"SkipGroupNorm {name}, skip {what}, bias {biased}", "SkipGroupNorm", inputs,
                              ("y", "sum"), attributes,
                              want={"y": group_norm(sum, gamma, beta, 4, 1e-3, activation, last), "sum": sum})
    checks.refused("GroupNorm, groups that do not divide", "GroupNorm", {"x": x, "gamma": gamma, "beta": beta},
                   "groups is 3, of 8 channels", attributes={"groups": 3, "activation": 0, "channels_last": 0}, code=1)


def rms_norm(x, scale, axis, eps):
    wide = x.astype(np.float64)
    axes = tuple(range(axis % x.ndim, x.ndim))
    return (wide / np.sqrt((wide * wide).mean(axes, keepdims=True) + eps) * scale).astype(x.dtype)


def embeddings(checks, rng):
    for dtype in (np.float32, np.float16):
        words, positions, segments = (normal(rng, n, 16, dtype=dtype) for n in (20, 9, 2))
        gamma, beta = (normal(rng, 16, dtype=dtype) for _ in range(2))
        ids = rng.integers(0, 20, (2, 6), dtype=np.int32)
        kinds = rng.integers(0, 2, (2, 6), dtype=np.int32)
        mask = np.array([[1, 1, 1, 1, 0, 0], [1, 1, 1, 1, 1, 1]], np.int32)
        places = rng.integers(0, 9, (2, 6), dtype=np.int32)
        for with_segments in (False, True):
            for mask_input in (None, mask):
                for position_ids in (None, places, places[:1]):
                    inputs = {"ids": ids, "kinds": kinds if with_segments else None, "words": words,
                              "positions": positions, "segments": segments if with_segments else None, "gamma": gamma,
                              "beta": beta, "mask": mask_input, "places": position_ids}
                    shape = None if position_ids is None else position_ids.shape
                    checks.op(f"EmbedLayerNormalization {np.dtype(dtype).name}, segments {with_segments}, "
                              f"mask {mask_input is not None}, position_ids {shape}", "EmbedLayerNormalization", inputs,
                              ("y", "counts", "sum"), {"epsilon": 1e-5})
