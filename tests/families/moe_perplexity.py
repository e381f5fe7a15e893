"""Prints what the first windows of a text cost a Qwen3-MoE model, by its definition in float64: the numbers of
tests/tools/perplexity_test.cc. It is the perplexity of the folder's reference.json (of all windows), but of few.

    python3 tests/families/moe_perplexity.py FOLDER TEXT [WINDOWS]

Needs numpy and tokenizers; weights must be bf16, in shards.
"""
import glob
import json
import struct
import sys

import numpy as np
from tokenizers import Tokenizer

WINDOW = 512


class Model:

    def __init__(self, folder):
        with open(folder + "/config.json") as file:
            self.config = json.load(file)
        self.weights = {}
        for path in glob.glob(folder + "/model-*.safetensors"):
            with open(path, "rb") as file:
                data = file.read()
            start = 8 + struct.unpack("<Q", data[:8])[0]
            for name, tensor in json.loads(data[8:start]).items():
                if name == "__metadata__":
                    continue
                begin, end = tensor["data_offsets"]
                bits = np.frombuffer(data[start + begin:start + end], np.uint16).astype(np.uint32) << 16
                self.weights[name] = bits.view(np.float32).astype(np.float64).reshape(tensor["shape"])

    def linear(self, module, x):
        return x @ self.weights[module + ".weight"].T

    def norm(self, module, x):
        return x / np.sqrt((x * x).mean(-1, keepdims=True) + self.config["rms_norm_eps"]) * self.weights[module + ".weight"]

    def rotated(self, x):
        size = x.shape[-1]
        theta = self.config["rope_parameters"]["rope_theta"]
        angles = np.arange(x.shape[0])[:, None] * theta**(-np.arange(0, size, 2) / size)
        cos, sin = np.cos(angles)[:, None], np.sin(angles)[:, None]
        a, b = x[..., :size // 2], x[..., size // 2:]
        return np.concatenate([a * cos - b * sin, b * cos + a * sin], -1)

    def attention(self, m, x):
        q, k, v = (self.linear(f"{m}.{part}_proj", x).reshape(len(x), -1, self.config["head_dim"]) for part in "qkv")
        q, k = self.rotated(self.norm(m + ".q_norm", q)), self.rotated(self.norm(m + ".k_norm", k))
        k, v = (part.repeat(q.shape[1] // k.shape[1], 1) for part in (k, v))
        scores = np.einsum("qhd,khd->hqk", q, k) / np.sqrt(q.shape[-1])
        scores = softmax(np.where(np.tril(np.ones(scores.shape[1:], bool)), scores, -np.inf))
        return self.linear(m + ".o_proj", np.einsum("hqk,khd->qhd", scores, v).reshape(len(x), -1))

    def experts(self, m, x):
        scores = softmax(self.linear(m + ".gate", x))
        chosen = np.argsort(-scores, -1)[:, :self.config["num_experts_per_tok"]]
        shares = np.take_along_axis(scores, chosen, -1)
        shares /= shares.sum(-1, keepdims=True)
        y = np.zeros_like(x)
        for expert in range(scores.shape[1]):
            rows, slots = np.nonzero(chosen == expert)
            e = f"{m}.experts.{expert}"
            gate, up = self.linear(e + ".gate_proj", x[rows]), self.linear(e + ".up_proj", x[rows])
            y[rows] += shares[rows, slots, None] * self.linear(e + ".down_proj", gate / (1 + np.exp(-gate)) * up)
        return y

    def logits(self, ids):
        x = self.weights["model.embed_tokens.weight"][ids]
        for i in range(self.config["num_hidden_layers"]):
            m = f"model.layers.{i}"
            x = x + self.attention(m + ".self_attn", self.norm(m + ".input_layernorm", x))
            x = x + self.experts(m + ".mlp", self.norm(m + ".post_attention_layernorm", x))
        return self.linear("model.embed_tokens", self.norm("model.norm", x))


def softmax(x):
    x = np.exp(x - x.max(-1, keepdims=True))
    return x / x.sum(-1, keepdims=True)


def main():
    folder, text, windows = sys.argv[1], sys.argv[2], int(sys.argv[3]) if len(sys.argv) > 3 else 4
    model = Model(folder)
    with open(text, encoding="utf-8") as file:
        ids = np.array(Tokenizer.from_file(folder + "/tokenizer.json").encode(file.read(), add_special_tokens=False).ids)
    losses = []
    for window in ids[:windows * WINDOW].reshape(windows, WINDOW):
        odds = softmax(model.logits(window)[:-1])
        losses.append(-np.log(odds[np.arange(WINDOW - 1), window[1:]]))
    print(f"{windows} windows: {np.exp(np.mean(losses)):.7f}")


if __name__ == "__main__":
    main()
