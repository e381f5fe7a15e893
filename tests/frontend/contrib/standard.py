"""Operators of the default domain that become tables and steps: transforms, sampling of images, recurrent layers."""

import itertools

import numpy as np

from norm import normal


def add_checks(checks):
    transforms(checks, np.random.default_rng(13))
    images(checks, np.random.default_rng(14))
    recurrent(checks, np.random.default_rng(15))


def one(value, dtype=np.int64):
    return np.array(value, dtype)


def transforms(checks, rng):
    for parts, length, inverse, axis in itertools.product((1, 2), (None, 6, 11), (0, 1), (1, -2)):
        x = normal(rng, 2, 8, 3, parts)
        inputs = {"x": x, "length": None if length is None else one(length), "axis": one(axis)}
        checks.op(f"DFT of {parts} parts, length {length}, inverse {inverse}, axis {axis}", "DFT", inputs,
                  attributes={"inverse": inverse}, constants=("length", "axis"), domain="", opset=20)
        checks.op(f"DFT-17 of {parts} parts, length {length}, inverse {inverse}, axis {axis}", "DFT",
                  {"x": x, "length": inputs["length"]}, attributes={"inverse": inverse, "axis": axis}, domain="",
                  opset=17, constants=("length",))
    for length in (None, 6, 11):
        checks.op(f"DFT, one side, length {length}", "DFT",
                  {"x": normal(rng, 2, 8, 3, 1), "length": None if length is None else one(length)},
                  attributes={"onesided": 1}, constants=("length",), domain="", opset=17)
    for step, onesided, held in itertools.product((3, 8), (0, 1), (("step", "length", "window"), ())):
        window = np.hanning(8).astype(np.float32)
        inputs = {"x": normal(rng, 2, 40, 1), "step": one(step), "window": window, "length": one(8)}
        checks.op(f"STFT by {step}, one side {onesided}, constants {held}", "STFT", inputs,
                  attributes={"onesided": onesided}, constants=held, domain="", opset=17)
    for op, periodic, size in itertools.product(("HannWindow", "HammingWindow", "BlackmanWindow"), (0, 1), (5, 16)):
        checks.op(f"{op} of {size}, periodic {periodic}", op, {"size": one(size)}, attributes={"periodic": periodic},
                  domain="", opset=17)
    # ONNX Runtime computes the bins in f32; these are not at the edge of one.
    names = ("bins", "length", "rate", "low", "high")
    for numbers in ((8, 64, 8000, 20, 3900), (20, 256, 16000, 0, 8000)):
        inputs = {name: one(v, np.int64 if i < 3 else np.float32) for i, (name, v) in enumerate(zip(names, numbers))}
        checks.op(f"MelWeightMatrix {numbers}", "MelWeightMatrix", inputs, domain="", opset=17)


def images(checks, rng):
    modes, paddings = ("linear", "nearest", "cubic"), ("zeros", "border", "reflection")
    for mode, padding, corners in itertools.product(modes, paddings, (0, 1)):
        for spatial in ((5, 4), (3, 5, 4)):
            if mode == "cubic" and len(spatial) == 3:
                continue
            grid = (rng.random((2, 3, 6) + ((2,) if len(spatial) == 3 else ()) + (len(spatial),)) * 4 - 2)
            inputs = {"x": normal(rng, 2, 3, *spatial), "grid": grid.astype(np.float32)}
            checks.op(f"GridSample {mode} {padding} {corners} {spatial}", "GridSample", inputs, domain="", opset=20,
                      attributes={"mode": mode, "padding_mode": padding, "align_corners": corners})
    for corners, size in itertools.product((0, 1), ((2, 3, 4, 5), (2, 3, 2, 4, 5))):
        axes = len(size) - 2
        inputs = {"theta": normal(rng, 2, axes, axes + 1), "size": np.array(size)}
        checks.op(f"AffineGrid {size} {corners}", "AffineGrid", inputs, attributes={"align_corners": corners},
                  constants=("size",), domain="", opset=20)
    for shape in ((4, 7), (9, 3), (5, 6), (8, 12)):
        checks.op(f"CenterCropPad to {shape}", "CenterCropPad", {"x": normal(rng, 5, 6), "shape": np.array(shape)},
                  domain="", opset=18)
    for strides, dilations, pads in itertools.product(([1, 1], [2, 1]), ([1, 1], [1, 2]), ([0] * 4, [1, 0, 1, 2])):
        image, block = (6, 7), (2, 3)
        count = [(image[i] + pads[i] + pads[i + 2] - dilations[i] * (block[i] - 1) - 1) // strides[i] + 1
                 for i in range(2)]
        inputs = {"x": normal(rng, 2, 12, count[0] * count[1]), "image": np.array(image), "block": np.array(block)}
        checks.op(f"Col2Im {strides} {dilations} {pads}", "Col2Im", inputs, domain="", opset=18,
                  attributes={"strides": strides, "dilations": dilations, "pads": pads}, constants=("image", "block"))


def recurrent(checks, rng):
    steps, batch, size, hidden = 5, 3, 4, 6

    def check(op, gates, direction="forward", biased=True, lens=None, states=False, peepholes=False, opset=14, **extra):
        count = 2 if direction == "bidirectional" else 1
        inputs = {"x": normal(rng, steps, batch, size), "w": normal(rng, count, gates * hidden, size),
                  "r": normal(rng, count, gates * hidden, hidden),
                  "b": normal(rng, count, 2 * gates * hidden) if biased else None,
                  "lens": None if lens is None else np.array(lens, np.int32),
                  "h": normal(rng, count, batch, hidden) if states else None}
        outputs = ["y", "y_h"]
        if op == "LSTM":
            inputs["c"] = normal(rng, count, batch, hidden) if states else None
            inputs["p"] = normal(rng, count, 3 * hidden) if peepholes else None
            outputs.append("y_c")
        attributes = {"hidden_size": hidden, "direction": direction, **extra}
        checks.op(f"{op} biased {biased}, lens {lens}, states {states}, peepholes {peepholes} {attributes}", op, inputs,
                  outputs, attributes=attributes, constants=("w", "r", "b", "p"), domain="", opset=opset,
                  ways=("given",))

    for (op, gates), direction in itertools.product((("LSTM", 4), ("GRU", 3), ("RNN", 1)),
                                                    ("forward", "reverse", "bidirectional")):
        check(op, gates, direction)
        check(op, gates, direction, biased=False, states=True)
        check(op, gates, direction, lens=[5, 2, 3], states=True)
    check("LSTM", 4, peepholes=True, states=True)
    for op, gates in (("LSTM", 4), ("GRU", 3), ("RNN", 1)):
        check(op, gates, clip=0.5)
    check("LSTM", 4, input_forget=1)
    check("GRU", 3, linear_before_reset=1)
    check("GRU", 3, "bidirectional", linear_before_reset=1, biased=False)
    for name in ("Relu", "Softsign", "Softplus", "Sigmoid"):
        check("RNN", 1, activations=[name])
    check("RNN", 1, activations=["HardSigmoid"], activation_alpha=[0.3], activation_beta=[0.4])
    check("RNN", 1, activations=["LeakyRelu"], activation_alpha=[0.1])
    check("RNN", 1, activations=["Elu"], activation_alpha=[0.7])
    check("LSTM", 4, activations=["HardSigmoid", "Tanh", "Relu"], activation_alpha=[0.25], activation_beta=[0.5])
