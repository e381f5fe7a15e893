#!/usr/bin/env python3
"""Writes a GGUF file with the shapes of Qwen3-30B-A3B in the types of Q4_K_M, all of whose data are zeros: a sparse file.

    gguf_shapes.py FILE [LAYERS]

Kernels take as long as with other numbers, but for the choice of experts: all tokens take the same, so that a step of
several sequences reads fewer experts than bench counts as its bytes.
"""
import struct
import sys

F32, Q4_K, Q6_K = 0, 12, 14
BLOCKS = {F32: (1, 4), Q4_K: (256, 144), Q6_K: (256, 210)}  # elements and bytes
HIDDEN, EXPERTS, SIZE, HEADS, KV_HEADS, HEAD, VOCABULARY = 2048, 128, 768, 32, 4, 128, 151936


def tensors(layers):
    yield "token_embd.weight", (VOCABULARY, HIDDEN), Q4_K
    yield "output.weight", (VOCABULARY, HIDDEN), Q6_K
    yield "output_norm.weight", (HIDDEN,), F32
    for i in range(layers):
        # As llama.cpp's use_more_bits: values and downs of half of the layers.
        more = i < layers // 8 or i >= 7 * layers // 8 or (i - layers // 8) % 3 == 2
        wide = Q6_K if more else Q4_K
        for name, shape, kind in (
                ("attn_norm", (HIDDEN,), F32), ("ffn_norm", (HIDDEN,), F32), ("attn_q_norm", (HEAD,), F32),
                ("attn_k_norm", (HEAD,), F32), ("attn_q", (HEADS * HEAD, HIDDEN), Q4_K),
                ("attn_k", (KV_HEADS * HEAD, HIDDEN), Q4_K), ("attn_v", (KV_HEADS * HEAD, HIDDEN), wide),
                ("attn_output", (HIDDEN, HEADS * HEAD), Q4_K), ("ffn_gate_inp", (EXPERTS, HIDDEN), F32),
                ("ffn_gate_exps", (EXPERTS, SIZE, HIDDEN), Q4_K), ("ffn_up_exps", (EXPERTS, SIZE, HIDDEN), Q4_K),
                ("ffn_down_exps", (EXPERTS, HIDDEN, SIZE), wide)):
            yield f"blk.{i}.{name}.weight", shape, kind


def metadata(layers):
    of_arch = {
        "block_count": layers, "context_length": 40960, "embedding_length": HIDDEN, "feed_forward_length": 6144,
        "attention.head_count": HEADS, "attention.head_count_kv": KV_HEADS, "attention.key_length": HEAD,
        "attention.value_length": HEAD, "expert_count": EXPERTS, "expert_used_count": 8,
        "expert_feed_forward_length": SIZE, "rope.freq_base": 1e6, "attention.layer_norm_rms_epsilon": 1e-6}
    return {"general.architecture": "qwen3moe", **{f"qwen3moe.{key}": value for key, value in of_arch.items()}}


def text(value):
    return struct.pack("<Q", len(value)) + value.encode()


def main():
    layers = int(sys.argv[2]) if len(sys.argv) > 2 else 48
    infos, entries = list(tensors(layers)), metadata(layers)
    out = b"GGUF" + struct.pack("<IQQ", 3, len(infos), len(entries))
    for key, value in entries.items():
        out += text(key)
        if isinstance(value, str):
            out += struct.pack("<I", 8) + text(value)
        else:
            out += struct.pack("<If", 6, value) if isinstance(value, float) else struct.pack("<II", 4, value)
    at = 0
    for name, shape, kind in infos:
        out += text(name) + struct.pack("<I", len(shape)) + b"".join(struct.pack("<Q", n) for n in reversed(shape))
        out += struct.pack("<IQ", kind, at)
        elements = 1
        for n in shape:
            elements *= n
        block, size = BLOCKS[kind]
        at += (elements // block * size + 31) // 32 * 32
    out += b"\0" * (-len(out) % 32)
    with open(sys.argv[1], "wb") as file:
        file.write(out)
        file.truncate(len(out) + at)


if __name__ == "__main__":
    main()
