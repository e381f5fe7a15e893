"""GroupQueryAttention, in every phase that a cache goes through."""

import itertools

import numpy as np
import onnx
import onnxruntime
from onnx import TensorProto

from attention import angles
from harness import MICROSOFT, model_of, session_of
from norm import normal

# What a step sees: new tokens, tokens in all of each sequence, and the length of the past (None: no past).
PHASES = {
    "prompt": (5, [5, 5], None),
    "padded prompt": (5, [5, 3], None),
    "prompt into an empty past": (5, [5, 5], 0),
    "padded prompt into a buffer": (5, [5, 3], 12),
    "decode": (1, [7, 7], 6),
    "decode of ragged sequences": (1, [7, 4], 6),
    "decode in a buffer": (1, [7, 4], 12),
    "decode at the end of a buffer": (1, [12, 12], 12),
    "chunk": (3, [8], 5),
    "chunk in a buffer": (3, [8], 12),
}


def step(rng, phase, heads, kv_heads, width, packed, dtype=np.float32):
    length, totals, past = PHASES[phase]
    batch = len(totals)
    q, k, v = (normal(rng, batch, length, n * width, dtype=dtype) for n in (heads, kv_heads, kv_heads))
    inputs = {"q": np.concatenate([q, k, v], 2), "k": None, "v": None} if packed else {"q": q, "k": k, "v": v}
    cache = [None if past is None else normal(rng, batch, kv_heads, past, width, dtype=dtype) for _ in range(2)]
    return {**inputs, "pk": cache[0], "pv": cache[1], "lens": np.array(totals, np.int32) - 1,
            "total": np.array([max(totals)], np.int32)}


def meaningful(phase):
    """The parts of the outputs that are not padding."""
    length, totals, past = PHASES[phase]
    prompt = max(totals) == length

    def tokens(y):
        return np.concatenate([y[b, :min(length, total) if prompt else length] for b, total in enumerate(totals)])

    def places(cache):
        return np.concatenate([cache[b, :, :total] for b, total in enumerate(totals)], 1)

    return {"y": tokens, "present_k": places, "present_v": places}


def windows(checks, rng):
    """Caches of a window's size: the rows that are held after T tokens, and what attends to them."""
    def resident(total, rows, window):
        step = rows - window + 1
        return total if total <= rows else total - step * -(-(total - rows) // step)

    steps = ((5, [5, 5]), (20, [20]), (1, [4, 4]), (1, [9, 9]), (1, [30, 12]), (3, [11]), (15, [40]))
    for (rows, window), (length, totals), rotary in itertools.product(((8, 8), (12, 8), (9, 4)), steps, (0, 1)):
        batch = len(totals)
        packed = normal(rng, batch, length, (4 + 2 + 2) * 16)
        cos, sin = angles(rng, 48, 8)
        inputs = {"q": packed, "k": None, "v": None, "pk": normal(rng, batch, 2, rows, 16),
                  "pv": normal(rng, batch, 2, rows, 16), "lens": np.array(totals, np.int32) - 1,
                  "total": np.array([max(totals)], np.int32)}
        if rotary:
            inputs.update({"cos": cos, "sin": sin})

        def tokens(y, length=length, totals=totals):
            return np.concatenate([y[b, :min(length, total)] for b, total in enumerate(totals)])

        def held(cache, totals=totals, rows=rows, window=window):
            return np.concatenate([cache[b, :, :resident(total, rows, window)] for b, total in enumerate(totals)], 1)

        checks.op(f"GroupQueryAttention, {rows} rows for a window of {window}, {length} tokens of {totals}, rotary {rotary}",
                  "GroupQueryAttention", inputs, ("y", "present_k", "present_v"),
                  {"num_heads": 4, "kv_num_heads": 2, "local_window_size": window, "sliding_window_cache": 1,
                   "do_rotary": rotary}, valid={"y": tokens, "present_k": held, "present_v": held})
    checks.refused("GroupQueryAttention, a cache shorter than its window", "GroupQueryAttention", inputs,
                   "fewer rows than local_window_size", ("y", "present_k", "present_v"),
                   {"num_heads": 4, "kv_num_heads": 2, "local_window_size": 10, "sliding_window_cache": 1}, code=1)


def add_checks(checks):
    rng = np.random.default_rng(7)
    windows(checks, np.random.default_rng(18))
    outputs = ("y", "present_k", "present_v")

    def check(name, inputs, phase, **attributes):
        checks.op(f"GroupQueryAttention, {phase}, {name}", "GroupQueryAttention", inputs, outputs,
                  attributes, valid=meaningful(phase))

    for phase in PHASES:
        for (heads, kv_heads), packed in itertools.product(((4, 2), (3, 3), (4, 1)), (False, True)):
            inputs = step(rng, phase, heads, kv_heads, 8, packed)
            check(f"{heads} heads over {kv_heads}, packed {packed}", inputs, phase, num_heads=heads,
                  kv_num_heads=kv_heads)
        sizes = {"num_heads": 4, "kv_num_heads": 2}
        for packed, interleaved, half in itertools.product((False, True), (0, 1), (8, 16)):
            cos, sin = angles(rng, 20, half)
            inputs = {**step(rng, phase, 4, 2, 32, packed), "cos": cos, "sin": sin}
            check(f"packed {packed}, rotary of {2 * half}, interleaved {interleaved}", inputs, phase, **sizes,
                  do_rotary=1, rotary_interleaved=interleaved)
        plain = step(rng, phase, 4, 2, 8, False)
        length, totals, past = PHASES[phase]
        for window in (1, 3, 100):
            check(f"window {window}", plain, phase, **sizes, local_window_size=window)
        check("softcap", plain, phase, **sizes, softcap=0.7)
        check("scale", plain, phase, **sizes, scale=0.9)
        check("smooth softmax", plain, phase, **sizes, smooth_softmax=1)
        check("not causal", plain, phase, **sizes, causal=0)
        absent = {"cos": None, "sin": None, "places": None}
        bias = normal(rng, 1, 4, length, max(totals))
        sink = normal(rng, 4)
        check("attention_bias", {**plain, **absent, "bias": bias}, phase, **sizes)
        check("sinks", {**plain, **absent, "bias": None, "sink": sink}, phase, **sizes)
        check("sinks, bias, window and softcap", {**plain, **absent, "bias": bias, "sink": sink}, phase, **sizes,
              local_window_size=3, softcap=1.5)
        half = step(rng, phase, 4, 2, 8, False, np.float16)
        check("f16", half, phase, **sizes)
        check("f16, sinks and window", {**half, **absent, "bias": None, "sink": sink.astype(np.float16)}, phase,
              **sizes, local_window_size=2)
    positions(checks, rng, check)
    declared(checks, rng)
    shared_buffer(checks, rng)
    normalized(checks, rng)
    refusals(checks, rng)


def positions(checks, rng, check):
    cos, sin = angles(rng, 30, 8)
    sizes = {"num_heads": 4, "kv_num_heads": 2, "do_rotary": 1}
    for phase in ("prompt", "decode", "chunk"):
        inputs = step(rng, phase, 4, 2, 16, False)
        batch, length = inputs["q"].shape[:2]
        places = rng.integers(0, 30, (batch, length)).astype(np.int64)
        check("position_ids", {**inputs, "cos": cos, "sin": sin, "places": places}, phase, **sizes)


def declared(checks, rng):
    """Presents whose lengths the model declares: then nothing has a size that a run must find out."""
    attributes = {"num_heads": 4, "kv_num_heads": 2}
    for phase, (_, _, past) in PHASES.items():
        if past is None:
            continue
        # A buffer if it is as long before the step as after it.
        present = "past" if "buffer" in phase else "total"
        shapes = {"pk": "past", "pv": "past", "present_k": present, "present_v": present}
        types = {name: (TensorProto.FLOAT, ["batch", 2, length, 8]) for name, length in shapes.items()}
        inputs = step(rng, phase, 4, 2, 8, False)
        checks.op(f"GroupQueryAttention, {phase}, declared", "GroupQueryAttention", inputs,
                  ("y", "present_k", "present_v"), attributes, valid=meaningful(phase), declared=types)
        # Such a program has a form for GPUs.

        def compiled(path, inputs=inputs, types=types):
            model = model_of("GroupQueryAttention", inputs, ["y", "present_k", "present_v"], attributes, (), True,
                             MICROSOFT, 21, types)
            onnx.save(model, path + ".onnx")
            return checks.expect(path + ".onnx", "expand_to=0,slice_by=0,attention=1")

        checks.add(f"GroupQueryAttention, {phase}, declared, has known sizes", compiled)


def shared_buffer(checks, rng):
    """One buffer for past and present, as generators use it: what is not written stays."""
    outputs = ("y", "present_k", "present_v")
    attributes = {"num_heads": 4, "kv_num_heads": 2}

    def expected(inputs):
        model = model_of("GroupQueryAttention", inputs, outputs, attributes, (), False, MICROSOFT, 21)
        session = session_of(model.SerializeToString())
        values = {name: onnxruntime.OrtValue.ortvalue_from_numpy(array.copy()) for name, array in inputs.items()}
        binding = session.io_binding()
        for name, value in values.items():
            binding.bind_ortvalue_input(name, value)
        binding.bind_output("y")
        binding.bind_ortvalue_output("present_k", values["pk"])
        binding.bind_ortvalue_output("present_v", values["pv"])
        session.run_with_iobinding(binding)
        return {"y": binding.get_outputs()[0].numpy().copy(), "present_k": values["pk"].numpy().copy(),
                "present_v": values["pv"].numpy().copy()}

    for phase in ("padded prompt into a buffer", "decode in a buffer", "chunk in a buffer"):
        inputs = step(rng, phase, 4, 2, 8, False)
        checks.op(f"GroupQueryAttention, {phase}, shared", "GroupQueryAttention", inputs, outputs, attributes,
                  want=expected(inputs), valid={"y": meaningful(phase)["y"]})


def normalized(checks, rng):
    """Norms of queries and keys, which ONNX Runtime has on GPUs only, are those of its own operator before."""
    phase = "decode of ragged sequences"
    inputs = step(rng, phase, 4, 2, 16, False)
    cos, sin = angles(rng, 20, 8)
    weights = {"qn": normal(rng, 16), "kn": normal(rng, 16)}

    def normed(x, weight):
        heads = x.reshape(*x.shape[:2], -1, 16).astype(np.float64)
        y = heads / np.sqrt((heads * heads).mean(-1, keepdims=True) + 1e-3) * weight
        return y.astype(np.float32).reshape(x.shape)

    rotary = {"cos": cos, "sin": sin}
    separate = {**inputs, "q": normed(inputs["q"], weights["qn"]), "k": normed(inputs["k"], weights["kn"]), **rotary}
    attributes = {"num_heads": 4, "kv_num_heads": 2, "do_rotary": 1}
    session = session_of(model_of("GroupQueryAttention", separate, ["y", "present_k", "present_v"], attributes, (),
                                  False, MICROSOFT, 21).SerializeToString())
    want = session.run(None, {k: v for k, v in separate.items() if v is not None})
    absent = {"places": None, "bias": None, "sink": None, "ks": None, "vs": None}
    checks.op("GroupQueryAttention, norms of heads", "GroupQueryAttention",
              {**inputs, **rotary, **absent, **weights}, ("y", "present_k", "present_v"),
              {**attributes, "qk_norm_epsilon": 1e-3}, want=dict(zip(("y", "present_k", "present_v"), want)),
              valid=meaningful(phase))


def refusals(checks, rng):
    inputs = step(rng, "decode", 4, 2, 8, False)
    for attributes, text in (
        ({"k_quant_type": "PER_TENSOR"}, 'k_quant_type "PER_TENSOR" (a quantized cache) is not supported'),
        ({"kv_cache_bit_width": 8}, "a quantized cache is not supported"),
        ({"qk_output": 1}, "qk_output is not supported"),
    ):
        checks.refused(f"GroupQueryAttention {attributes}", "GroupQueryAttention", inputs, text,
                       ("y", "present_k", "present_v"), {"num_heads": 4, "kv_num_heads": 2, **attributes})
    checks.refused("GroupQueryAttention, window of 0", "GroupQueryAttention", inputs,
                   "local_window_size must be positive", ("y", "present_k", "present_v"),
                   {"num_heads": 4, "kv_num_heads": 2, "local_window_size": 0}, code=1)
    checks.refused("GroupQueryAttention, a cache of no window", "GroupQueryAttention", inputs,
                   "sliding_window_cache needs a local_window_size", ("y", "present_k", "present_v"),
                   {"num_heads": 4, "kv_num_heads": 2, "sliding_window_cache": 1}, code=1)
    checks.refused("GroupQueryAttention, odd heads", "GroupQueryAttention", inputs,
                   "num_heads must be a multiple of kv_num_heads", ("y", "present_k", "present_v"),
                   {"num_heads": 4, "kv_num_heads": 3}, code=1)
