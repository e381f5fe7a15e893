#!/usr/bin/env python3
"""Writes a GGUF file with the shapes of a model, all of whose data are zeros: a sparse file.

    gguf_shapes.py FILE [LAYERS]            Qwen3-30B-A3B in the types of Q4_K_M
    gguf_shapes.py FILE [LAYERS] --type=T   Llama-3.1-8B; T: Q4_K_M, Q5_K_M, or one type for all, such as Q8_0

Kernels take as long as with other numbers, but for the choice of experts: all tokens take the same, so that a step of
several sequences reads fewer experts than bench counts as its bytes.
"""
import struct
import sys

F32, Q4_K, Q5_K, Q6_K = 0, 12, 13, 14
TYPES = {"Q4_0": 2, "Q4_1": 3, "Q5_0": 6, "Q5_1": 7, "Q8_0": 8, "Q2_K": 10, "Q3_K": 11, "Q4_K": Q4_K, "Q5_K": Q5_K,
         "Q6_K": Q6_K, "IQ4_NL": 20, "IQ4_XS": 23}
BLOCKS = {F32: (1, 4), 2: (32, 18), 3: (32, 20), 6: (32, 22), 7: (32, 24), 8: (32, 34), 10: (256, 84), 11: (256, 110),
          Q4_K: (256, 144), Q5_K: (256, 176), Q6_K: (256, 210), 20: (32, 18), 23: (256, 136)}  # elements and bytes
HIDDEN, EXPERTS, SIZE, HEADS, KV_HEADS, HEAD, VOCABULARY = 2048, 128, 768, 32, 4, 128, 151936


def uses_more_bits(i, layers):
    """As llama.cpp's use_more_bits: values and downs of half of the layers."""
    return i < layers // 8 or i >= 7 * layers // 8 or (i - layers // 8) % 3 == 2


def llama(layers, name):
    """Llama-3.1-8B."""
    hidden, middle, kv, vocabulary = 4096, 14336, 1024, 128256
    kind, wide = (TYPES[name[:-2]], Q6_K) if name.endswith("_M") else (TYPES[name], TYPES[name])
    yield "token_embd.weight", (vocabulary, hidden), kind
    yield "output.weight", (vocabulary, hidden), wide
    yield "output_norm.weight", (hidden,), F32
    for i in range(layers):
        more = wide if uses_more_bits(i, layers) else kind
        for name, shape, of in (
                ("attn_norm", (hidden,), F32), ("ffn_norm", (hidden,), F32), ("attn_q", (hidden, hidden), kind),
                ("attn_k", (kv, hidden), kind), ("attn_v", (kv, hidden), more), ("attn_output", (hidden, hidden), kind),
                ("ffn_gate", (middle, hidden), kind), ("ffn_up", (middle, hidden), kind),
                ("ffn_down", (hidden, middle), more)):
            yield f"blk.{i}.{name}.weight", shape, of


def llama_metadata(layers):
    of_arch = {
        "block_count": layers, "context_length": 131072, "embedding_length": 4096, "feed_forward_length": 14336,
        "attention.head_count": 32, "attention.head_count_kv": 8, "rope.freq_base": 5e5, "rope.dimension_count": 128,
        "attention.layer_norm_rms_epsilon": 1e-5, "vocab_size": 128256}
    return {"general.architecture": "llama", **{f"llama.{key}": value for key, value in of_arch.items()}}


def tensors(layers):
    yield "token_embd.weight", (VOCABULARY, HIDDEN), Q4_K
    yield "output.weight", (VOCABULARY, HIDDEN), Q6_K
    yield "output_norm.weight", (HIDDEN,), F32
    for i in range(layers):
        wide = Q6_K if uses_more_bits(i, layers) else Q4_K
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
    options = [argument for argument in sys.argv[2:] if argument.startswith("--type=")]
    counts = [int(argument) for argument in sys.argv[2:] if argument not in options]
    if options:
        layers = counts[0] if counts else 32
        infos, entries = list(llama(layers, options[0].removeprefix("--type="))), llama_metadata(layers)
    else:
        layers = counts[0] if counts else 48
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
