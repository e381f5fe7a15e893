"""Times scaled_dot_product_attention of PyTorch with each kind of mask, as whole_attention.cu times llmc's, one
JSON object a line."""
import json

import torch
import torch.nn.functional as F


def milliseconds(launch, runs=20):
    for _ in range(3):
        launch()
    begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    begin.record()
    for _ in range(runs):
        launch()
    end.record()
    end.synchronize()
    return begin.elapsed_time(end) / runs


for dim in (64, 128):
    for batch, length in ((8, 512), (4, 2048), (1, 8192)):
        q, k, v = (torch.randn(batch, 32, length, dim, device="cuda", dtype=torch.bfloat16) for _ in range(3))
        visible = torch.rand(1, 1, length, length, device="cuda") > 0.1
        added = torch.randn(1, 1, length, length, device="cuda", dtype=torch.bfloat16)
        masks = {
            "none": {},
            "causal": {"is_causal": True},
            "of booleans": {"attn_mask": visible},
            "added": {"attn_mask": added},
        }
        for name, mask in masks.items():
            ms = milliseconds(lambda: F.scaled_dot_product_attention(q, k, v, **mask))
            operations = 4 * batch * 32 * length**2 * dim * (0.5 if name == "causal" else 1)
            row = {"mask": name, "head": dim, "batch": batch, "length": length, "ms": ms, "tflops": operations / ms * 1e-9}
            print(json.dumps({"torch": torch.__version__, **row}), flush=True)
