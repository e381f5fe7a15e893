"""Variants of the folder sentence-mean, each with the vectors that sentence-transformers 6 computes of some texts.

    python3 tests/families/make_poolings.py FAMILIES tests/families/data/poolings.json

FAMILIES is the unpacked families.tar.xz. A variant says which files differ from those of sentence-mean.
"""
import json
import os
import shutil
import sys
import tempfile

import torch
from safetensors.torch import save_file
from sentence_transformers import SentenceTransformer

TEXTS = ["The cat SAT on the mat", "unbelievable words are wordpieces, in a graph compiler", "Kernel"]
OLD = "sentence_transformers.models."
POOLING = "sentence_transformers.sentence_transformer.modules.pooling.Pooling"
BASE = "sentence_transformers.base.modules."


def modules(*rest):
    types = [BASE + "transformer.Transformer", *rest]
    return [
        {"idx": i, "name": str(i), "path": f"{i}_{t.rsplit('.', 1)[1]}" if i else "", "type": t}
        for i, t in enumerate(types)
    ]


def pooling(mode):
    return {"embedding_dimension": 48, "pooling_mode": mode, "include_prompt": True}


def dense(inner, outer, bias, activation):
    config = {"in_features": inner, "out_features": outer, "bias": bias, "activation_function": activation}
    generator = torch.Generator().manual_seed(inner + outer)
    weights = {"linear.weight": torch.randn(outer, inner, generator=generator) / inner**0.5}
    if bias:
        weights["linear.bias"] = torch.randn(outer, generator=generator)
    # Few digits, so that they are the same numbers in the file.
    return config, {name: (w * 1000).round() / 1000 for name, w in weights.items()}


def variants(folder):
    tanh, tanh_weights = dense(96, 5, True, "torch.nn.modules.activation.Tanh")
    plain, plain_weights = dense(48, 4, False, "torch.nn.modules.linear.Identity")
    tokenizer = json.load(open(os.path.join(folder, "tokenizer.json")))
    tokenizer["normalizer"]["lowercase"] = False
    yield {
        "name": "three modes",
        "files": {
            "modules.json": modules(POOLING),
            "1_Pooling/config.json": pooling(["weightedmean", "lasttoken", "cls"]),
        },
    }
    yield {
        "name": "older form",
        "files": {
            "modules.json": modules(OLD + "Pooling", OLD + "Dense", OLD + "Normalize"),
            "1_Pooling/config.json": {
                "word_embedding_dimension": 48,
                "pooling_mode_cls_token": False,
                "pooling_mode_mean_tokens": False,
                "pooling_mode_mean_sqrt_len_tokens": True,
                "pooling_mode_max_tokens": True,
            },
            "2_Dense/config.json": tanh,
        },
        "weights": {"2_Dense/model.safetensors": tanh_weights},
    }
    yield {
        "name": "dense alone",
        "files": {"modules.json": modules(POOLING, BASE + "dense.Dense"), "2_Dense/config.json": plain},
        "weights": {"2_Dense/model.safetensors": plain_weights},
    }
    yield {
        "name": "lower case",
        "files": {"tokenizer.json": tokenizer, "sentence_bert_config.json": {"do_lower_case": True}},
    }
    yield {
        "name": "cased",
        "files": {"tokenizer.json": tokenizer, "sentence_bert_config.json": {"do_lower_case": False}},
    }
    yield {
        "name": "default prompt",
        "files": {
            "config_sentence_transformers.json": {
                "prompts": {"query": "what is ", "document": "a "},
                "default_prompt_name": "query",
            }
        },
    }
    yield {"name": "short", "files": {"sentence_bert_config.json": {"max_seq_length": 6}}}
    yield {
        "name": "chosen",
        "files": {"modules.json": modules(POOLING, BASE + "normalize.Normalize"), "1_Pooling/config.json": pooling("max")},
        "removed": ["modules.json", "1_Pooling/config.json"],
        "arguments": ["--pool=max", "--normalize"],
    }


def compute(folder, variant):
    with tempfile.TemporaryDirectory() as copy:
        shutil.copytree(folder, copy, dirs_exist_ok=True)
        for path, contents in variant["files"].items():
            os.makedirs(os.path.dirname(os.path.join(copy, path)), exist_ok=True)
            with open(os.path.join(copy, path), "w") as file:
                json.dump(contents, file)
        for path, weights in variant.get("weights", {}).items():
            save_file(weights, os.path.join(copy, path))
        vectors = SentenceTransformer(copy, device="cpu").encode(TEXTS)
    for path in variant.get("removed", []):
        del variant["files"][path]
    for weights in variant.get("weights", {}).values():
        for name, weight in weights.items():
            numbers = [round(x, 3) for x in weight.flatten().tolist()]
            weights[name] = {"shape": list(weight.shape), "values": numbers}
    variant["embeddings"] = [[float(f"{x:.8g}") for x in row.tolist()] for row in vectors]
    return variant


def main():
    folder = os.path.join(sys.argv[1], "sentence-mean")
    result = {"texts": TEXTS, "variants": [compute(folder, v) for v in variants(folder)]}
    with open(sys.argv[2], "w") as file:
        json.dump(result, file, separators=(",", ":"))
        file.write("\n")


if __name__ == "__main__":
    main()
