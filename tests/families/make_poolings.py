"""Variants of small models, each with the vectors or the scores that sentence-transformers 6 or the pipeline of
transformers computes of some texts.

    python3 tests/families/make_poolings.py FAMILIES tests/families/data/poolings.json

FAMILIES is the unpacked families.tar.xz. A variant is the folder "base" with the files of a tokenizer that are "borrowed"
from sentence-mean, the "files" that differ, "weights", and what is "removed" or "moved" into a folder of its own.
"""
import json
import os
import shutil
import sys
import tempfile

import torch
from safetensors.torch import save_file
from sentence_transformers import CrossEncoder, SentenceTransformer
from transformers import pipeline

TOKENIZER = ["tokenizer.json", "tokenizer_config.json"]
MODEL = ["config.json", "model.safetensors", "sentence_bert_config.json", *TOKENIZER]
PAIRS = [
    ["where did the cat sit", "the cat sat on the mat"],
    ["what is a kernel", "a program for a device"],
    ["cat", "unbelievable words are wordpieces, in a graph compiler of the model, in the device and on the mat"],
    ["words and pieces of the text, of the model and of the kernel that did sit on the mat", "a graph compiler"],
    ["words and pieces of the text, of the model and of the kernel that did sit", "unbelievable words are wordpieces, in a graph"],
]
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


def pooling(mode, include_prompt=True):
    return {"embedding_dimension": 48, "pooling_mode": mode, "include_prompt": include_prompt}


def with_post_processor(folder, post_processor):
    with open(os.path.join(folder, "tokenizer.json")) as file:
        tokenizer = json.load(file)
    tokenizer["post_processor"] = post_processor
    return tokenizer


def special(token, type_id=0):
    return {"SpecialToken": {"id": token, "type_id": type_id}}


def sequence(name, type_id=0):
    return {"Sequence": {"id": name, "type_id": type_id}}


# As of Qwen3-Embedding: nothing before a text, an end token behind it.
ENDED = {
    "type": "Sequence",
    "processors": [
        {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": False, "use_regex": False},
        {
            "type": "TemplateProcessing",
            "single": [sequence("A"), special("[SEP]")],
            "pair": [sequence("A"), special("[SEP]"), sequence("B"), special("[SEP]")],
            "special_tokens": {"[SEP]": {"id": "[SEP]", "ids": [3], "tokens": ["[SEP]"]}},
        },
    ],
}
ROBERTA = {"type": "RobertaProcessing", "sep": ["[SEP]", 3], "cls": ["[CLS]", 2], "trim_offsets": True, "add_prefix_space": True}


def decoder(folder, base, mode, *rest, **files):
    """A decoder as a model of vectors; its config.json stays, so that the head is named."""
    return {
        "base": base,
        "borrowed": TOKENIZER,
        "files": {
            "modules.json": modules(POOLING, *rest),
            "1_Pooling/config.json": pooling(mode),
            "tokenizer.json": with_post_processor(folder, ENDED),
            **files,
        },
    }


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
        "weights": {"2_Dense/model.safetensors": dict(plain_weights)},
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
    prompts = {"config_sentence_transformers.json": {"prompts": {"query": "what is ", "empty": ""}}}
    for mode in ["mean", ["cls", "lasttoken", "weightedmean"]]:
        yield {
            "name": f"without the prompt, {mode}",
            "files": {"1_Pooling/config.json": pooling(mode, False), **prompts},
            "prompt_name": "query",
        }
    yield {"name": "an empty prompt", "files": {"1_Pooling/config.json": pooling("mean", False), **prompts}, "prompt_name": "empty"}
    inside = modules(POOLING, BASE + "normalize.Normalize")
    inside[0].update(type=OLD + "Transformer", path="0_Transformer")
    yield {"name": "a folder of its own", "files": {"modules.json": inside, "sentence_bert_config.json": {"max_seq_length": 7}},
           "moved": {"0_Transformer": MODEL}}
    queries = {"prompts": {"query": "what is ", "document": ""}, "default_prompt_name": None, "similarity_fn_name": "dot"}
    yield {
        "name": "qwen3",
        "prompt_name": "query",
        **decoder(folder, "qwen3", "lasttoken", BASE + "normalize.Normalize", **{"config_sentence_transformers.json": queries}),
    }
    yield {"name": "mistral", **decoder(folder, "mistral", "mean")}
    yield {"name": "gpt2", **decoder(folder, "gpt2", "weightedmean")}
    yield {"name": "qwen3_moe", **decoder(folder, "qwen3_moe", "lasttoken")}
    with open(os.path.join(folder, "../gemma3_text/config.json")) as file:
        both_ways = dict(json.load(file), architectures=["Gemma3TextModel"], use_bidirectional_attention=True)
    yield {
        "name": "gemma3, both ways",
        **decoder(folder, "gemma3_text", "mean", BASE + "dense.Dense", BASE + "normalize.Normalize",
                  **{"config.json": both_ways, "2_Dense/config.json": plain}),
        "weights": {"2_Dense/model.safetensors": dict(plain_weights)},
    }
    for similarity in ["dot", "euclidean", "manhattan"]:
        yield {"name": similarity, "files": {"modules.json": modules(POOLING),
                                             "config_sentence_transformers.json": {"similarity_fn_name": similarity}}}
    yield {"name": "short", "files": {"sentence_bert_config.json": {"max_seq_length": 6}}}
    yield {
        "name": "chosen",
        "files": {"modules.json": modules(POOLING, BASE + "normalize.Normalize"), "1_Pooling/config.json": pooling("max")},
        "removed": ["modules.json", "1_Pooling/config.json"],
        "arguments": ["--pool=max", "--normalize"],
    }


def rankers(folder):
    """Models that score pairs, or texts."""
    ranks = {"model_type": "CrossEncoder"}
    yield {"name": "one label", "base": "cross-encoder", "pairs": PAIRS}
    yield {
        "name": "no activation",
        "base": "cross-encoder",
        "files": {"config_sentence_transformers.json": {**ranks, "activation_fn": "torch.nn.modules.linear.Identity"}},
        "pairs": PAIRS,
    }
    with open(os.path.join(folder, "../cross-encoder/config.json")) as file:
        older = dict(json.load(file), sbert_ce_default_activation_function="torch.nn.modules.linear.Identity")
    published = {"base": "cross-encoder", "removed": ["modules.json", "config_sentence_transformers.json", "sentence_bert_config.json"]}
    yield {"name": "older form", "files": {"config.json": older}, "pairs": PAIRS, **published}
    with open(os.path.join(folder, "tokenizer_config.json")) as file:
        tokenizer = json.load(file)
    names = ["input_ids", "token_type_ids", "attention_mask"]
    for name, changes in {"token types": dict(model_input_names=names), "a class with token types": dict(tokenizer_class="BertTokenizer")}.items():
        yield {"name": name, "base": "cross-encoder", "pairs": PAIRS, "files": {"tokenizer_config.json": dict(tokenizer, **changes)}}
    yield {"name": "a prompt", "base": "cross-encoder", "pairs": PAIRS, "prompt_name": "query",
           "files": {"config_sentence_transformers.json": {**ranks, "prompts": {"query": "what is "}}}}
    yield {"name": "short", "base": "cross-encoder", "pairs": PAIRS, "files": {
        "sentence_bert_config.json": {
            "max_seq_length": 12,
            "transformer_task": "sequence-classification",
            "modality_config": {"text": {"method": "forward", "method_output_name": "logits"}},
            "module_output_name": "scores",
        }}}
    with open(os.path.join(folder, "../bert-classification/config.json")) as file:
        bert = json.load(file)
    bert["id2label"] = {"0": "contradiction", "1": "entailment", "2": "neutral"}
    bert["label2id"] = {name: int(number) for number, name in bert["id2label"].items()}
    three = {"base": "bert-classification", "borrowed": TOKENIZER, "files": {"config.json": bert}}
    yield {"name": "three labels", "pairs": PAIRS, **three}
    yield {"name": "softmax", "pairs": PAIRS, "softmax": True, "arguments": ["--activation=softmax"], **three}
    yield {"name": "texts", "texts": TEXTS, **three}
    apart = {"config.json": dict(bert, problem_type="multi_label_classification")}
    yield {"name": "labels apart", "texts": TEXTS, **dict(three, files=apart)}
    yield {"name": "regression", "texts": TEXTS, **dict(three, files={"config.json": dict(bert, problem_type="regression")})}
    roberta = {"tokenizer.json": with_post_processor(folder, ROBERTA)}
    yield {"name": "roberta", "base": "roberta-classification", "borrowed": TOKENIZER, "files": roberta, "pairs": PAIRS}


def lay_out(families, variant, copy):
    shutil.copytree(os.path.join(families, variant.setdefault("base", "sentence-mean")), copy, dirs_exist_ok=True)
    for name in variant.get("borrowed", []):
        shutil.copy(os.path.join(families, "sentence-mean", name), copy)
    if "texts" in variant or "pairs" in variant:
        for name in variant.get("removed", []):
            os.remove(os.path.join(copy, name))
    for path, contents in variant.get("files", {}).items():
        os.makedirs(os.path.dirname(os.path.join(copy, path)), exist_ok=True)
        with open(os.path.join(copy, path), "w") as file:
            json.dump(contents, file)
    for path, weights in variant.get("weights", {}).items():
        save_file(weights, os.path.join(copy, path))
    for place, names in variant.get("moved", {}).items():
        os.mkdir(os.path.join(copy, place))
        for name in names:
            shutil.move(os.path.join(copy, name), os.path.join(copy, place))


def rounded(rows):
    return [[float(f"{x:.8g}") for x in row] for row in rows.tolist()]


FLOATS = {"dtype": torch.float32}


def compute(families, variant):
    with tempfile.TemporaryDirectory() as copy:
        lay_out(families, variant, copy)
        model = SentenceTransformer(copy, device="cpu", model_kwargs=FLOATS)
        vectors = model.encode(TEXTS, prompt_name=variant.get("prompt_name"), convert_to_tensor=True)
        variant["similarity"] = model.similarity_fn_name
        variant["scores"] = rounded(model.similarity(vectors, vectors))
    for path in variant.get("removed", []):
        del variant["files"][path]
    for weights in variant.get("weights", {}).values():
        for name, weight in weights.items():
            numbers = [round(x, 3) for x in weight.flatten().tolist()]
            weights[name] = {"shape": list(weight.shape), "values": numbers}
    variant["embeddings"] = rounded(vectors)
    print(variant["name"], tuple(vectors.shape), flush=True)
    return variant


def score(families, variant):
    with tempfile.TemporaryDirectory() as copy:
        lay_out(families, variant, copy)
        if "texts" in variant:
            classify = pipeline("text-classification", copy, device="cpu", top_k=None, **FLOATS)
            ids = classify.model.config.label2id
            rows = [sorted(row, key=lambda item: ids[item["label"]]) for row in classify(variant["texts"])]
            scores = torch.tensor([[item["score"] for item in row] for row in rows], dtype=torch.float64)
        else:
            model = CrossEncoder(copy, device="cpu", model_kwargs=FLOATS)
            scores = model.predict(variant["pairs"], prompt_name=variant.get("prompt_name"), convert_to_tensor=True,
                                   apply_softmax=variant.pop("softmax", False))
    variant["scores"] = rounded(scores if scores.dim() == 2 else scores[:, None])
    print(variant["name"], variant["scores"][0], flush=True)
    return variant


def main():
    folder = os.path.join(sys.argv[1], "sentence-mean")
    result = {"texts": TEXTS, "variants": [compute(sys.argv[1], v) for v in variants(folder)]}
    result["rankers"] = [score(sys.argv[1], v) for v in rankers(folder)]
    with open(sys.argv[2], "w") as file:
        json.dump(result, file, separators=(",", ":"))
        file.write("\n")


if __name__ == "__main__":
    main()
