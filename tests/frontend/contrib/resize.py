"""Resize over the combinations of its attributes."""

import itertools

import numpy as np

from norm import normal

COORDINATES = ("half_pixel", "pytorch_half_pixel", "asymmetric", "align_corners", "half_pixel_symmetric")
ROUNDING = ("round_prefer_floor", "round_prefer_ceil", "floor", "ceil")


def add_checks(checks):
    rng = np.random.default_rng(12)

    def check(name, shape, attributes, scales=None, sizes=None, opset=19, axes=None, region=None, constants=True,
              dtype=np.float32):
        inputs = {"x": normal(rng, *shape, dtype=dtype) if dtype == np.float32 else
                  rng.integers(0, 100, shape).astype(dtype),
                  "roi": None if region is None else np.array(region, np.float32),
                  "scales": None if scales is None else np.array(scales, np.float32),
                  "sizes": None if sizes is None else np.array(sizes, np.int64)}
        if opset < 11:
            inputs = {"x": inputs["x"], "scales": inputs["scales"]}
        attributes = {**attributes, **({"axes": axes} if axes else {})}
        held = ("roi", "scales", "sizes") if constants else ()
        checks.op(f"Resize-{opset} {name} {shape} {scales or sizes} {attributes}", "Resize", inputs,
                  attributes=attributes, constants=held, domain="", opset=opset)

    shape = (1, 2, 5, 7)
    # Of align_corners and half_pixel_symmetric, ONNX Runtime takes the rounded size, ONNX the product with the scale:
    # the same only where that is whole.
    whole = {"up": [1, 1, 2, 3], "by sizes": None}
    for coordinates, (name, scales) in itertools.product(COORDINATES, whole.items()):
        sizes = [1, 2, 8, 4] if scales is None else None
        for rounding in ROUNDING:
            check(name, shape, {"coordinate_transformation_mode": coordinates, "nearest_mode": rounding}, scales, sizes)
        for mode in ({"mode": "linear"}, {"mode": "cubic"}, {"mode": "cubic", "cubic_coeff_a": -0.5},
                     {"mode": "cubic", "exclude_outside": 1}):
            check(name, shape, {"coordinate_transformation_mode": coordinates, **mode}, scales, sizes)
    for coordinates, mode in itertools.product(COORDINATES[:3], ("nearest", "linear", "cubic")):
        for scales in ([1, 1, 0.6, 0.5], [1, 1, 1.7, 0.8]):
            check("by fractions", shape, {"coordinate_transformation_mode": coordinates, "mode": mode}, scales)
            check("given by the run", shape, {"coordinate_transformation_mode": coordinates, "mode": mode}, scales,
                  constants=False)
    for mode, scales in itertools.product(("linear", "cubic"), ([1, 1, 0.6, 0.5], [1, 1, 2, 0.4])):
        check("without gaps", shape, {"mode": mode, "antialias": 1, "exclude_outside": 1}, scales)
    for policy in ("not_larger", "not_smaller"):
        check(policy, shape, {"keep_aspect_ratio_policy": policy, "mode": "linear"}, sizes=[10, 10], axes=[2, 3])
    check("of axes in another order", shape, {"mode": "linear"}, sizes=[3, 9], axes=[3, 2])
    for region in ([0, 0, 0.2, 0.1, 1, 1, 0.9, 0.8], [0, 0, -0.2, 0.1, 1, 1, 0.9, 1.3]):
        check("of a region", shape, {"coordinate_transformation_mode": "tf_crop_and_resize", "mode": "linear",
                                     "extrapolation_value": 2.5}, sizes=[1, 2, 4, 6], region=region)
    for dtype in (np.uint8, np.int8, np.int32):
        check(f"of {np.dtype(dtype)}", shape, {}, [1, 1, 2, 0.7], dtype=dtype)
    for mode, scales in itertools.product(("nearest", "linear"), ([1, 1, 2, 3], [1, 1, 0.6, 0.5])):
        check("old", shape, {"mode": mode}, scales, opset=10)
    check("to one row", shape, {"mode": "linear", "coordinate_transformation_mode": "pytorch_half_pixel"},
          sizes=[1, 2, 1, 3])
    x = {"x": normal(rng, *shape)}
    checks.refused("Resize of integers in mode linear", "Resize",
                   {"x": x["x"].astype(np.int32), "roi": None, "scales": np.array([1, 1, 2, 2], np.float32)},
                   'mode "linear" of integers is not supported', attributes={"mode": "linear"}, constants=("scales",),
                   domain="")
    checks.refused("Resize without a size", "Resize", x, "has neither scales nor sizes", domain="", code=1)
    checks.refused("Resize by -1", "Resize", {**x, "roi": None, "scales": np.array([1, 1, -1, 1], np.float32)},
                   "a scale is -1", constants=("scales",), domain="", code=1)
