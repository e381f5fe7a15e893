"""Makes small random models with a layer that predicts one token further (arXiv:2412.19437, section 2.2), and what they
compute, by the formulas of the papers in float64.

    python3 tests/families/make_predictor.py OUT [--pack tests/families/data/predictors.tar.gz]

OUT/NAME gets config.json, model.safetensors, and inputs and outputs of the model and of the predictor: model_inputs
(input_ids), model_outputs (logits, and hidden_states behind the last norm), predictor_inputs (these hidden states, and at
each place the next token) and predictor_outputs (logits, and hidden_states in front of its norm). Needs numpy.
"""
import argparse
import json
import os
import struct
import tarfile

import numpy as np

VOCABULARY, HIDDEN, HEADS, INNER, EXPERT_INNER, EXPERTS, TOP_K, GROUPS, TOP_GROUPS = 61, 24, 3, 40, 12, 6, 2, 3, 2
LAYERS, DENSE, BATCH, TOKENS, EPS, THETA, SCALING = 2, 1, 2, 11, 1e-5, 10000.0, 1.5
COMMON = dict(vocab_size=VOCABULARY, hidden_size=HIDDEN, intermediate_size=INNER, num_hidden_layers=LAYERS,
              num_attention_heads=HEADS, max_position_embeddings=64, rms_norm_eps=EPS, rope_theta=THETA,
              n_routed_experts=EXPERTS, n_shared_experts=1, num_experts_per_tok=TOP_K, moe_intermediate_size=EXPERT_INNER,
              n_group=GROUPS, topk_group=TOP_GROUPS, first_k_dense_replace=DENSE, routed_scaling_factor=SCALING,
              norm_topk_prob=True, num_nextn_predict_layers=1, tie_word_embeddings=False, hidden_act="silu")
LATENT = dict(q_lora_rank=14, kv_lora_rank=10, qk_nope_head_dim=6, qk_rope_head_dim=4, v_head_dim=8)
HEAD_DIM = 12
MODELS = {
    "deepseek_v3": dict(COMMON, **LATENT, architectures=["DeepseekV3ForCausalLM"], num_key_value_heads=HEADS),
    # The real checkpoints hold copies of the embedding and the head; these differ from the model's, to tell who is read.
    "deepseek_v3-own": dict(COMMON, **LATENT, architectures=["DeepseekV3ForCausalLM"], num_key_value_heads=HEADS),
    "glm4_moe": dict(COMMON, architectures=["Glm4MoeForCausalLM"], num_key_value_heads=1, head_dim=HEAD_DIM,
                     partial_rotary_factor=0.5, use_qk_norm=True),
}


class Weights(dict):
    """Random weights, made when they are first asked for."""

    def __init__(self, seed):
        super().__init__()
        self.rng = np.random.default_rng(seed)

    def matrix(self, name, *shape):
        return self.get_or_make(name, lambda: self.rng.standard_normal(shape) * shape[-1]**-0.5)

    def vector(self, name, size, around=1.0):
        return self.get_or_make(name, lambda: around + 0.3 * self.rng.standard_normal(size))

    def get_or_make(self, name, make):
        if name not in self:
            self[name] = make().astype(np.float32)
        return self[name].astype(np.float64)

    def linear(self, module, x, out):
        return x @ self.matrix(module + ".weight", out, x.shape[-1]).T

    def norm(self, module, x, eps=EPS):
        return x / np.sqrt((x * x).mean(-1, keepdims=True) + eps) * self.vector(module + ".weight", x.shape[-1])


def silu(x):
    return x / (1 + np.exp(-x))


def rotated(x, dims, interleaved):
    """x[B, S, heads, D]: the first `dims` of each head by their position."""
    angles = np.arange(x.shape[1])[:, None] * THETA**(-np.arange(0, dims, 2) / dims)
    cos, sin = np.cos(angles)[:, None], np.sin(angles)[:, None]
    y = x.copy()
    a, b = (np.s_[..., 0:dims:2], np.s_[..., 1:dims:2]) if interleaved else (np.s_[..., :dims // 2],
                                                                            np.s_[..., dims // 2:dims])
    y[a], y[b] = x[a] * cos - x[b] * sin, x[b] * cos + x[a] * sin
    return y


def attention(q, k, v):
    scores = np.einsum("bqhd,bkhd->bhqk", q, k) / np.sqrt(q.shape[-1])
    scores = np.where(np.tril(np.ones(scores.shape[-2:], bool)), scores, -np.inf)
    scores = np.exp(scores - scores.max(-1, keepdims=True))
    return np.einsum("bhqk,bkhd->bqhd", scores / scores.sum(-1, keepdims=True), v)


def latent_attention(w, m, x, config):
    """Not absorbed: keys and values of each head are made from the latent vector."""
    nope, rope, value = config["qk_nope_head_dim"], config["qk_rope_head_dim"], config["v_head_dim"]
    rank = config["kv_lora_rank"]
    shape = x.shape[:2] + (HEADS, -1)
    q = w.norm(m + ".q_a_layernorm", w.linear(m + ".q_a_proj", x, config["q_lora_rank"]), 1e-6)
    q = w.linear(m + ".q_b_proj", q, HEADS * (nope + rope)).reshape(shape)
    both = w.linear(m + ".kv_a_proj_with_mqa", x, rank + rope)
    latent = w.norm(m + ".kv_a_layernorm", both[..., :rank], 1e-6)
    kv = w.linear(m + ".kv_b_proj", latent, HEADS * (nope + value)).reshape(shape)
    key = rotated(both[..., None, rank:], rope, True).repeat(HEADS, 2)
    q = np.concatenate([q[..., :nope], rotated(q[..., nope:], rope, True)], -1)
    out = attention(q, np.concatenate([kv[..., :nope], key], -1), kv[..., nope:])
    return w.linear(m + ".o_proj", out.reshape(x.shape[:2] + (-1,)), HIDDEN)


def grouped_attention(w, m, x, config):
    shape, kv_heads = x.shape[:2] + (-1, HEAD_DIM), config["num_key_value_heads"]
    q = w.linear(m + ".q_proj", x, HEADS * HEAD_DIM).reshape(shape)
    k = w.linear(m + ".k_proj", x, kv_heads * HEAD_DIM).reshape(shape)
    v = w.linear(m + ".v_proj", x, kv_heads * HEAD_DIM).reshape(shape)
    q, k = w.norm(m + ".q_norm", q), w.norm(m + ".k_norm", k)
    dims = int(HEAD_DIM * config["partial_rotary_factor"])
    q, k = rotated(q, dims, False), rotated(k, dims, False)
    out = attention(q, k.repeat(HEADS // kv_heads, 2), v.repeat(HEADS // kv_heads, 2))
    return w.linear(m + ".o_proj", out.reshape(x.shape[:2] + (-1,)), HIDDEN)


def mlp(w, m, x, size):
    gate, up = w.linear(m + ".gate_proj", x, size), w.linear(m + ".up_proj", x, size)
    return w.linear(m + ".down_proj", silu(gate) * up, x.shape[-1])


def experts(w, m, x):
    scores = 1 / (1 + np.exp(-w.linear(m + ".gate", x, EXPERTS)))
    choice = scores + w.vector(m + ".gate.e_score_correction_bias", EXPERTS, 0.0)
    groups = choice.reshape(-1, GROUPS, EXPERTS // GROUPS)
    best = np.argsort(-np.sort(groups, -1)[..., -2:].sum(-1), -1)[:, :TOP_GROUPS]
    allowed = np.zeros(groups.shape, bool)
    np.put_along_axis(allowed, best[:, :, None].repeat(EXPERTS // GROUPS, 2), True, 1)
    chosen = np.argsort(-np.where(allowed.reshape(-1, EXPERTS), choice.reshape(-1, EXPERTS), -np.inf), -1)[:, :TOP_K]
    shares = np.take_along_axis(scores.reshape(-1, EXPERTS), chosen, -1)
    shares = shares / shares.sum(-1, keepdims=True) * SCALING
    rows = x.reshape(-1, HIDDEN)
    all_experts = np.stack([mlp(w, f"{m}.experts.{e}", rows, EXPERT_INNER) for e in range(EXPERTS)])
    y = sum(shares[:, j, None] * all_experts[chosen[:, j], np.arange(len(rows))] for j in range(TOP_K))
    return y.reshape(x.shape) + mlp(w, m + ".shared_experts", x, EXPERT_INNER)


def layer(w, index, x, config):
    m = f"model.layers.{index}"
    attend = latent_attention if "kv_lora_rank" in config else grouped_attention
    x = x + attend(w, m + ".self_attn", w.norm(m + ".input_layernorm", x), config)
    h = w.norm(m + ".post_attention_layernorm", x)
    return x + (mlp(w, m + ".mlp", h, INNER) if index < DENSE else experts(w, m + ".mlp", h))


def model(w, ids, config):
    x = w.matrix("model.embed_tokens.weight", VOCABULARY, HIDDEN)[ids]
    for index in range(LAYERS):
        x = layer(w, index, x, config)
    hidden = w.norm("model.norm", x)
    return w.linear("lm_head", hidden, VOCABULARY), hidden


def predictor(w, ids, hidden, config, own):
    m = f"model.layers.{LAYERS}"
    table = w.matrix(m + ".embed_tokens.weight" if own else "model.embed_tokens.weight", VOCABULARY, HIDDEN)
    both = np.concatenate([w.norm(m + ".enorm", table[ids]), w.norm(m + ".hnorm", hidden)], -1)
    h = layer(w, LAYERS, w.linear(m + ".eh_proj", both, HIDDEN), config)
    return w.linear(m + ".shared_head.head" if own else "lm_head", w.norm(m + ".shared_head.norm", h), VOCABULARY), h


def save(path, tensors):
    header, data = {}, b""
    for name, tensor in tensors.items():
        tensor = np.ascontiguousarray(tensor, np.int64 if tensor.dtype.kind == "i" else np.float32)
        header[name] = dict(dtype="I64" if tensor.dtype.kind == "i" else "F32", shape=tensor.shape,
                            data_offsets=[len(data), len(data) + tensor.nbytes])
        data += tensor.tobytes()
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    with open(path, "wb") as file:
        file.write(struct.pack("<Q", len(text)) + text + data)


def make(folder, config, own, seed):
    os.makedirs(folder, exist_ok=True)
    w = Weights(seed)
    ids = w.rng.integers(0, VOCABULARY, (BATCH, TOKENS + 1))
    logits, hidden = model(w, ids[:, :-1], config)
    hidden = hidden.astype(np.float32)
    next_logits, next_hidden = predictor(w, ids[:, 1:], hidden.astype(np.float64), config, own)
    with open(os.path.join(folder, "config.json"), "w") as file:
        json.dump(config, file, indent=1)
    for name, tensors in {"model": w,
                          "model_inputs": dict(input_ids=ids[:, :-1]),
                          "model_outputs": dict(logits=logits, hidden_states=hidden),
                          "predictor_inputs": dict(input_ids=ids[:, 1:], hidden_states=hidden),
                          "predictor_outputs": dict(logits=next_logits, hidden_states=next_hidden)}.items():
        save(os.path.join(folder, name + ".safetensors"), tensors)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out")
    parser.add_argument("--pack")
    arguments = parser.parse_args()
    for seed, (name, config) in enumerate(MODELS.items()):
        make(os.path.join(arguments.out, name), config, name.endswith("-own"), seed)
    if arguments.pack:
        with tarfile.open(arguments.pack, "w:gz") as archive:
            for name in MODELS:
                archive.add(os.path.join(arguments.out, name), name)


if __name__ == "__main__":
    main()
