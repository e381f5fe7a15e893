"""Operators on quantized numbers, as ONNX Runtime's quantizer and optimizer write them; numbers of 16 bits."""

import itertools

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from harness import MICROSOFT, model_of, session_of
from norm import normal

# Scales that leave no result half-way between two numbers, which kernels round by how they sum.
A_SCALE, B_SCALE, Y_SCALE = (np.array(value, np.float32) for value in (0.01171, 0.02317, 0.03511))


def add_checks(checks):
    rng = np.random.default_rng(16)
    for dtype in (np.uint8, np.int8):
        elementwise(checks, rng, dtype)
        pools(checks, rng, dtype)
    products(checks, rng)
    attention(checks, rng)
    lstm(checks, rng)
    sixteen_bits(checks, rng)


def numbers(rng, dtype, *shape):
    info = np.iinfo(dtype)
    return rng.integers(info.min, info.max + 1, shape).astype(dtype)


def weights_of(rng, dtype, *shape):
    """Numbers of a product's right side: of int8, 7 bits, since ONNX Runtime's sums of uint8 x int8 saturate at 16 bits
    on processors without VNNI (why its quantizer has `reduce_range`)."""
    return numbers(rng, dtype, *shape) // 2 if dtype == np.int8 else numbers(rng, dtype, *shape)


def zero(dtype, offset=0):
    return np.array((128 if dtype == np.uint8 else 0) + offset, dtype)


def quantized(dtype, name, scale, offset):
    return {name + "_scale": scale, name + "_zero": zero(dtype, offset)}


def elementwise(checks, rng, dtype):
    kind = np.dtype(dtype).name
    a, b = numbers(rng, dtype, 3, 4, 17), numbers(rng, dtype, 4, 1)
    left, right, result = (quantized(dtype, *item) for item in (("a", A_SCALE, 3), ("b", B_SCALE, -5), ("y", Y_SCALE, 7)))
    for op in ("QLinearAdd", "QLinearMul"):
        checks.op(f"{op} of {kind}", op, {"a": a, **left, "b": b, **right, **result})
    checks.op(f"QLinearSigmoid of {kind}", "QLinearSigmoid", {"a": a, **left, **quantized(dtype, "y", np.array(1 / 256, np.float32), 0)},
              constants=("a_scale", "a_zero", "y_scale", "y_zero"))
    checks.op(f"QLinearLeakyRelu of {kind}", "QLinearLeakyRelu", {"a": a, **left, **result}, attributes={"alpha": 0.2},
              constants=("a_scale", "a_zero", "y_scale", "y_zero"))
    # ONNX Runtime sums rounded exponentials, and is off by one in places.
    meant = (a.astype(np.float64) - float(left["a_zero"])) * float(A_SCALE)
    for opset, axis, axes in ((13, -1, (2,)), (13, 1, (1,)), (12, 1, (1, 2))):
        offset = -120 if dtype == np.uint8 else -128
        power = np.exp(meant)
        exact = np.round(power / power.sum(axes, keepdims=True) * 250) + int(zero(dtype, offset))
        inputs = {"a": a, **left, **quantized(dtype, "y", np.array(1 / 250, np.float32), offset)}
        checks.op(f"QLinearSoftmax of {kind}, opset {opset}, axis {axis}", "QLinearSoftmax", inputs,
                  attributes={"opset": opset, "axis": axis}, constants=("a_scale", "a_zero", "y_scale", "y_zero"),
                  want={"y": exact.clip(np.iinfo(dtype).min, np.iinfo(dtype).max).astype(dtype)})
    checks.op(f"QLinearConcat of {kind}", "QLinearConcat",
              {**result, "a": a, **left, "b": numbers(rng, dtype, 3, 2, 17), **right}, attributes={"axis": 1},
              constants=("y_scale", "y_zero", "a_scale", "a_zero", "b_scale", "b_zero"))
    checks.op(f"QLinearWhere of {kind}", "QLinearWhere",
              {"c": rng.random((3, 4, 17)) < 0.5, "a": a, **left, "b": b, **right, **result},
              constants=("y_scale", "y_zero", "a_scale", "a_zero", "b_scale", "b_zero"))
    # ONNX Runtime has no kernel for this.
    for axes, keep in (([1], 1), ([0, 2], 0)):
        meant = (a.astype(np.float32) - np.float32(left["a_zero"])) * A_SCALE
        mean = np.round(meant.mean(tuple(axes), keepdims=bool(keep)) / Y_SCALE) + np.float32(result["y_zero"])
        info = np.iinfo(dtype)
        checks.op(f"QLinearReduceMean of {kind}, axes {axes}", "QLinearReduceMean", {"a": a, **left, **result},
                  attributes={"axes": axes, "keepdims": keep}, want={"y": mean.clip(info.min, info.max).astype(dtype)})


def pools(checks, rng, dtype):
    kind = np.dtype(dtype).name
    parameters = {**quantized(dtype, "a", A_SCALE, 3), **quantized(dtype, "y", B_SCALE, -5)}
    for last in (0, 1):
        x = numbers(rng, dtype, 2, 7, 6, 5)
        checks.op(f"QLinearGlobalAveragePool of {kind}, channels last {last}", "QLinearGlobalAveragePool",
                  {"x": x, **parameters}, attributes={"channels_last": last}, constants=tuple(parameters))
        for pads, included in (([0, 0, 0, 0], 0), ([1, 0, 1, 1], 0), ([1, 0, 1, 1], 1)):
            checks.op(f"QLinearAveragePool of {kind}, channels last {last}, pads {pads}, included {included}",
                      "QLinearAveragePool", {"x": x, **parameters},
                      attributes={"channels_last": last, "kernel_shape": [3, 2], "strides": [2, 1], "pads": pads,
                                  "count_include_pad": included}, constants=tuple(parameters))
        weights = weights_of(rng, np.int8, 4, 7 if last == 0 else 5, 3, 3)
        full = {"x": x, "x_scale": A_SCALE, "x_zero": zero(dtype, 3), "w": weights,
                "w_scale": np.linspace(0.01, 0.02, 4).astype(np.float32), "w_zero": np.zeros(4, np.int8),
                "y_scale": np.array(1.917, np.float32), "y_zero": zero(dtype, 1), "bias": numbers(rng, np.int8, 4).astype(np.int32)}
        constants = tuple(name for name in full if name != "x")
        checks.op(f"QLinearConv of {kind}, channels last {last}", "QLinearConv", full, constants=constants,
                  attributes={"channels_last": last, "pads": [1, 1, 1, 1], "strides": [2, 1]})


def products(checks, rng):
    for trans_a, trans_b, quantize, by_column in itertools.product((0, 1), (0, 1), (False, True), (False, True)):
        a = numbers(rng, np.uint8, *((6, 5) if trans_a else (5, 6)))
        b = weights_of(rng, np.int8, *((7, 6) if trans_b else (6, 7)))
        scales = np.linspace(0.011, 0.029, 7).astype(np.float32) if by_column else B_SCALE
        inputs = {"a": a, "a_scale": A_SCALE, "a_zero": zero(np.uint8, 3), "b": b, "b_scale": scales,
                  "b_zero": np.zeros(7, np.int8) if by_column else zero(np.int8),
                  "c": rng.integers(-900, 900, 7).astype(np.int32)}
        if quantize:
            inputs.update({"y_scale": np.array(0.317, np.float32), "y_zero": zero(np.uint8, 1)})
        checks.op(f"QGemm, transposed {trans_a} {trans_b}, quantized {quantize}, by column {by_column}", "QGemm", inputs,
                  attributes={"transA": trans_a, "transB": trans_b}, constants=tuple(inputs)[1:])
    for kind, by_column, biased in itertools.product((np.uint8, np.int8), (False, True), (False, True)):
        b = weights_of(rng, kind, 6, 7)
        scales = np.linspace(0.011, 0.029, 7).astype(np.float32) if by_column else B_SCALE
        zeros = numbers(rng, kind, 7) if by_column else zero(kind, 2)
        bias = normal(rng, 7) if biased else None
        held = ("b", "b_scale", "b_zero", "bias")
        name = f"{np.dtype(kind).name}, by column {by_column}, bias {biased}"
        checks.op(f"MatMulIntegerToFloat of {name}", "MatMulIntegerToFloat",
                  {"a": numbers(rng, np.uint8, 2, 5, 6), "b": b, "a_scale": A_SCALE, "b_scale": scales,
                   "a_zero": zero(np.uint8, 9), "b_zero": zeros, "bias": bias}, constants=held)
        checks.op(f"DynamicQuantizeMatMul of {name}", "DynamicQuantizeMatMul",
                  {"a": normal(rng, 2, 5, 6), "b": b, "b_scale": scales, "b_zero": zeros, "bias": bias}, constants=held)


def attention(checks, rng):
    for masked, past in itertools.product((False, True), (False, True)):
        inputs = {"x": numbers(rng, np.uint8, 2, 3, 8), "w": weights_of(rng, np.int8, 8, 24), "bias": normal(rng, 24),
                  "x_scale": np.array(0.011, np.float32), "w_scale": np.array(0.013, np.float32),
                  "mask": np.array([3, 2], np.int32) if masked else None, "x_zero": zero(np.uint8, 3),
                  "w_zero": zero(np.int8), "past": normal(rng, 2, 2, 2, 4, 4) if past else None}
        if masked and past:
            continue
        checks.op(f"QAttention, mask {masked}, past {past}", "QAttention", inputs,
                  outputs=("y", "present") if past else ("y",), attributes={"num_heads": 2, "unidirectional": int(past)},
                  constants=("w", "bias", "x_scale", "w_scale", "x_zero", "w_zero"))


def lstm(checks, rng):
    """What the weights stand for gives in ONNX Runtime's LSTM, from which its own kernel, which rounds X and h to 8 bits,
    is near."""
    size, hidden, steps, batch = 6, 5, 4, 2
    for kind, by_column, direction in itertools.product((np.uint8, np.int8), (False, True), ("forward", "bidirectional")):
        count = 2 if direction == "bidirectional" else 1
        held, meant = {}, {}
        for name, rows in (("w", size), ("r", hidden)):
            held[name] = weights_of(rng, kind, count, rows, 4 * hidden)
            scales = rng.uniform(0.004, 0.008, (count, 4 * hidden) if by_column else (count,)).astype(np.float32)
            zeros = np.full(scales.shape, zero(kind, 3 if kind == np.uint8 and not by_column else 0), kind)
            held[name + "_scale"], held[name + "_zero"] = scales, zeros
            wide = scales.reshape(count, 1, -1), zeros.astype(np.float32).reshape(count, 1, -1)
            meant[name] = ((held[name].astype(np.float32) - wide[1]) * wide[0]).transpose(0, 2, 1)
        x, bias = normal(rng, steps, batch, size), normal(rng, count, 8 * hidden, scale=0.1)
        h, c = (normal(rng, count, batch, hidden, scale=0.5) for _ in range(2))
        lengths = np.array([4, 3], np.int32)
        rest = {"bias": bias, "lengths": lengths, "h": h, "c": c}
        attributes = {"hidden_size": hidden, "direction": direction}
        outputs = ("y", "y_h", "y_c")
        plain = model_of("LSTM", {"x": x, "w": meant["w"], "r": meant["r"], **rest}, outputs, attributes, (), False, "", 21)
        want = session_of(plain.SerializeToString()).run(None, {"x": x, "w": meant["w"], "r": meant["r"], **rest})
        inputs = {"x": x, "w": held["w"], "r": held["r"], **rest, "peepholes": None, "w_scale": held["w_scale"],
                  "w_zero": held["w_zero"], "r_scale": held["r_scale"], "r_zero": held["r_zero"]}
        name = f"DynamicQuantizeLSTM of {np.dtype(kind).name}, by column {by_column}, {direction}"
        checks.op(name, "DynamicQuantizeLSTM", inputs, outputs, attributes, tuple(held), want=dict(zip(outputs, want)))

        def near(path, inputs=inputs, attributes=attributes, held=held, want=want):
            own = model_of("DynamicQuantizeLSTM", inputs, outputs, attributes, tuple(held), False, MICROSOFT, 21)
            fed = {k: v for k, v in inputs.items() if isinstance(v, np.ndarray) and k not in held}
            farthest = max(np.abs(a - b).max() for a, b in zip(session_of(own.SerializeToString()).run(None, fed), want))
            return "" if farthest < 0.02 else f"ONNX Runtime's own kernel is {farthest} away"

        checks.add(name + ", beside ONNX Runtime's kernel", near)


def sixteen_bits(checks, rng):
    """x -> numbers of 16 bits, moved -> what they stand for, beside such weights."""
    for dtype, domain, axis in itertools.product((np.uint16, np.int16), ("", MICROSOFT), (None, 1)):
        count = 1 if axis is None else 4
        zeros = (rng.integers(20000, 40000, count) - (0 if dtype == np.uint16 else 30000)).astype(dtype)
        scales = np.linspace(1e-4, 2e-4, count).astype(np.float32)
        if axis is None:
            zeros, scales = zeros[0], scales[0]
        weights = numbers(rng, dtype, 3, 4, 5)
        attributes = {} if axis is None else {"axis": axis}
        nodes = [
            helper.make_node("QuantizeLinear", ["x", "scale", "zero"], ["q"], domain=domain, **attributes),
            helper.make_node("Reshape", ["q", "shape"], ["moved"]),
            helper.make_node("DequantizeLinear", ["moved", "scale", "zero"], ["d"], domain=domain, **attributes),
            helper.make_node("DequantizeLinear", ["w", "scale", "zero"], ["dw"], domain=domain, **attributes),
            helper.make_node("Mul", ["d", "dw"], ["y"]),
        ]
        constants = {"scale": np.asarray(scales), "zero": np.asarray(zeros), "w": weights,
                     "shape": np.array([3, 4, 5], np.int64)}
        graph = helper.make_graph(
            nodes, "sixteen", [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", 4, 5])],
            [helper.make_tensor_value_info("y", TensorProto.FLOAT, [3, 4, 5])],
            [numpy_helper.from_array(array, name) for name, array in constants.items()])
        model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21), helper.make_opsetid(MICROSOFT, 1)],
                                  ir_version=10)
        x = normal(rng, 3, 4, 5, scale=3)  # some of it saturates

        def run(path, model=model, x=x):
            expected = {"y": session_of(model.SerializeToString()).run(None, {"x": x})[0]}
            onnx.save(model, path + ".onnx")
            return checks.compare(path, path + ".onnx", {"x": x}, expected)

        checks.add(f"numbers of {np.dtype(dtype).name}, domain {domain or 'default'}, axis {axis}", run)
    checks.refused("uint16 in another operator", "Add", {"a": np.ones(3, np.uint16), "b": np.ones(3, np.uint16)},
                   "element type UINT16 is supported between QuantizeLinear and DequantizeLinear only",
                   constants=("a", "b"), domain="")
