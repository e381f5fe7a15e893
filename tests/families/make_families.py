# Over 500 lines: one script that makes, checks and packs.
"""Makes a small random model of each Hugging Face family, with what transformers computes of it.

    python3 tests/families/make_families.py OUT [NAME...]

OUT/NAME gets config.json and model.safetensors as save_pretrained writes them, reference.safetensors (the inputs, and the
outputs in float32 on the CPU with eager attention, of the stored weights) and reference.json (the class, and of decoders
the greedy continuation with the margin of each token to the second best). Needs torch, transformers 5.17, safetensors and,
for the rows of sentence-transformers, that package and tokenizers. Two minutes for all. tests/families/README.md says what
each row exercises and how data/families.tar.xz is packed.

A weight depends on its name and shape alone, so families share most of their bytes and the archive is small.
"""
import argparse
import contextlib
import functools
import json
import logging
import lzma
import math
import os
import shutil
import sys
import tarfile
import tempfile
import warnings
import zlib

os.environ["TRANSFORMERS_VERBOSITY"] = "error"
os.environ["HF_HUB_OFFLINE"] = "1"
warnings.filterwarnings("ignore")
logging.disable(logging.WARNING)

import sentence_transformers as st  # noqa: E402
import tokenizers  # noqa: E402
import torch  # noqa: E402
import transformers as hf  # noqa: E402
import transformers.utils.logging as hf_logging  # noqa: E402
from safetensors.torch import load_file, save_file  # noqa: E402
from sentence_transformers.base.modules import Normalize, Transformer  # noqa: E402
from sentence_transformers.sentence_transformer.modules import Pooling  # noqa: E402

import rows  # noqa: E402
from rows import ENCODER, FULL, SLIDING, TOKENS, VOCABULARY  # noqa: E402

hf_logging.disable_progress_bar()

PADDING = 3  # tokens at the end of the second row; no more, so that windows of padding hold a token that is seen
NEW_TOKENS = 24
SMALLEST_MARGIN = 0.005  # of greedy tokens


# Inputs.


def random_ids():
    generator = torch.Generator().manual_seed(1)
    return torch.randint(3, VOCABULARY - 1, (2, TOKENS), generator=generator)


def decoder_inputs(_):
    return dict(input_ids=random_ids())


def encoder_inputs(config):
    ids, mask = 3 + (random_ids() - 3) % (config.vocab_size - 3), torch.ones(2, TOKENS, dtype=torch.int64)
    ids[1, TOKENS - PADDING:] = config.pad_token_id
    mask[1, TOKENS - PADDING:] = 0
    return dict(input_ids=ids, attention_mask=mask)


def pair_inputs(config):
    types = torch.zeros(2, TOKENS, dtype=torch.int64)
    types[0, 11:] = 1
    types[1, 6:TOKENS - PADDING] = 1
    return dict(encoder_inputs(config), token_type_ids=types)


def vision_inputs(config):
    vision = getattr(config, "vision_config", config)
    generator = torch.Generator().manual_seed(2)
    return dict(pixel_values=torch.randn(2, 3, vision.image_size, vision.image_size, generator=generator))


def tower_inputs(config):
    """CLIP pools at the first end token, which stands before padding here; SigLIP reads all tokens, padding as well."""
    ids = random_ids()
    inputs = dict(vision_inputs(config))
    if config.model_type == "clip":
        mask = torch.ones_like(ids)
        ids[0, -1] = ids[1, TOKENS - PADDING - 1] = config.text_config.eos_token_id
        ids[1, TOKENS - PADDING:] = config.text_config.pad_token_id
        mask[1, TOKENS - PADDING:] = 0
        inputs["attention_mask"] = mask
    return dict(inputs, input_ids=ids)


INPUTS = dict(decoder=decoder_inputs, encoder=encoder_inputs, pairs=pair_inputs, vision=vision_inputs, towers=tower_inputs)
OUTPUTS = ("logits", "last_hidden_state", "pooler_output", "logits_per_image", "logits_per_text", "image_embeds", "text_embeds")


# Weights.


def fill(model, seed):
    """Gives each weight random values from its name: what starts constant (norms, biases) lies around its constant, products
    keep the variance of what goes in, q and k are larger so that attention is not flat, routers so that choices are clear."""
    modules = dict(model.named_modules())
    done = set()
    for name, tensor in model.state_dict().items():
        if not tensor.is_floating_point() or tensor.data_ptr() in done:
            continue
        done.add(tensor.data_ptr())
        generator = torch.Generator().manual_seed(zlib.crc32(name.encode()) + seed)
        values = torch.randn(tensor.shape, generator=generator)
        module = modules[name.rpartition(".")[0]]
        flat = tensor.flatten()
        if "sinks" in name:
            values = values + 0.5
        elif name == "logit_scale":
            values = 2.5 + 0.2 * values
        elif bool((flat == flat[0]).all()):
            values = flat[0] + 0.2 * values
        elif isinstance(module, torch.nn.Embedding) or tensor.dim() < 2:
            values = 0.5 * values
        elif any(part in name for part in ("router.weight", "mlp.gate.weight", "moe.gate.weight", "router.layer.weight")):
            values = 3.0 * values / math.sqrt(tensor.shape[-1])
        elif any(part in name for part in ("position_embedding", "cls_token", "mask_token", "probe", "class_embedding")):
            values = 0.5 * values
        else:
            inputs = tensor.shape[0] if type(module).__name__ == "Conv1D" else math.prod(tensor.shape[1:])
            if tensor.dim() == 3 and "conv" not in name:
                inputs = tensor.shape[-1]
            attention = any(part in name for part in ("q_proj", "k_proj", "query", "key", "qkv", "c_attn", "q_b", "kv_b", "q_lin",
                                                      "k_lin", "attn.q", "attn.k"))
            values = (1.6 if attention else 1.0) * values / math.sqrt(inputs)
        tensor.copy_(values)


# Computing.


def load(family, folder, dtype=torch.float32):
    """A model of the stored weights. What transformers does not find or use is an error: it would be random."""
    model, info = getattr(hf, family.model).from_pretrained(folder, dtype=dtype, attn_implementation=family.attention,
                                                            output_loading_info=True)
    problems = {key: value for key, value in info.items() if value}
    if problems:
        raise SystemExit(f"{family.name}: {problems}")
    return model.eval()


def compute(model, inputs):
    result = model(**inputs)
    outputs = {key: result[key].float().contiguous() for key in OUTPUTS if key in result.keys() and result[key] is not None}
    for key, value in outputs.items():
        if not torch.isfinite(value).all():
            raise SystemExit(f"{key} is not finite")
    return outputs


def relative_difference(one, other):
    """The largest, in standard deviations of the tensor."""
    return max(float((value - other[key]).abs().max() / value.std()) for key, value in one.items())


@contextlib.contextmanager
def disturbed(model, amount, seed):
    """The model with weights that are wrong by `amount`, relative."""
    generator = torch.Generator().manual_seed(seed)
    kept = {name: value.clone() for name, value in model.state_dict().items() if value.is_floating_point()}
    for value in {t.data_ptr(): t for t in model.state_dict().values() if t.is_floating_point()}.values():
        value.mul_(1 + amount * torch.randn(value.shape, generator=generator))
    yield
    for name, value in model.state_dict().items():
        if name in kept:
            value.copy_(kept[name])


def is_stable(model, inputs, outputs):
    """Whether outputs move little with small errors of the weights: no router is about to choose another expert."""
    for seed in range(3):
        with disturbed(model, 3e-5, seed):
            if relative_difference(outputs, compute(model, inputs)) > 5e-3:
                return False
    return True


def greedy(model, prompt):
    """The tokens of the greatest logits, each from a run of the whole text, and their margins to the second best."""
    text, margins = prompt, []
    for _ in range(NEW_TOKENS):
        best = model(input_ids=text, use_cache=False).logits[0, -1].float().topk(2)
        text = torch.cat([text, best.indices[:1].view(1, 1)], dim=1)
        margins.append(round(float(best.values[0] - best.values[1]), 4))
    return dict(greedy_prompt=prompt[0].tolist(), greedy=text[0, prompt.shape[1]:].tolist(), greedy_margin=margins)


def write_json(folder, name, value):
    with open(os.path.join(folder, name), "w", encoding="utf-8") as file:
        json.dump(value, file, indent=2)


def save_references(folder, tensors, facts):
    save_file({key: value.contiguous() for key, value in tensors.items()}, os.path.join(folder, "reference.safetensors"))
    with open(os.path.join(folder, "reference.json"), "w", encoding="utf-8") as file:
        json.dump(facts, file)
        file.write("\n")


def attempt(family, folder):
    """Writes the folder; false where the seed makes a router or a greedy token undecided."""
    shutil.rmtree(folder, ignore_errors=True)
    torch.manual_seed(0)
    config = getattr(hf, family.config)(**family.values)
    model = getattr(hf, family.model)(config).eval()
    fill(model, family.seed)
    model.to(getattr(torch, family.dtype)).save_pretrained(folder)
    model = load(family, folder)
    inputs = INPUTS[family.inputs](config)
    outputs = compute(model, inputs)
    if not is_stable(model, inputs, outputs):
        return False
    facts = dict(transformers=hf.__version__, **{"class": family.model})
    if family.inputs == "decoder" and family.prompt:
        facts.update(greedy(model, inputs["input_ids"][:1, :family.prompt]))
        if min(facts["greedy_margin"]) < SMALLEST_MARGIN:
            return False
    save_references(folder, dict(inputs, **outputs), facts)
    spread = {key: (tuple(value.shape), round(float(value.std()), 3)) for key, value in outputs.items()}
    print(f"{family.name}: seed {family.seed}, {spread}, margin {min(facts.get('greedy_margin', [0])):.4f}", flush=True)
    return True


def make(family, folder):
    for family.seed in range(0, 40):
        if attempt(family, folder):
            return
    raise SystemExit(f"{family.name}: no seed of 40 decides routers and greedy tokens clearly")


# Other layouts of the same weights: a folder each that shares the reference of its model.


def without_prefix(prefix):
    return lambda tensors: {name.removeprefix(prefix): tensor for name, tensor in tensors.items()}


def old_gpt2(tensors):
    """As the first checkpoints: no prefix, and the causal masks that were stored then."""
    tensors = without_prefix("transformer.")(tensors)
    for layer in range(2):
        tensors[f"h.{layer}.attn.bias"] = torch.tril(torch.ones(1, 1, 64, 64))
    return tensors


def old_bert(tensors):
    """As the first checkpoints of BertForPreTraining: prefix, gamma and beta, the heads of its training."""
    tensors = {"bert." + name.replace("LayerNorm.weight", "LayerNorm.gamma").replace("LayerNorm.bias", "LayerNorm.beta"): tensor
               for name, tensor in tensors.items()}
    tensors["bert.embeddings.position_ids"] = torch.arange(64).view(1, 64)
    tensors["cls.predictions.bias"] = torch.ones(VOCABULARY)
    tensors["cls.seq_relationship.weight"] = torch.ones(2, 48)
    return tensors


def fused_experts(block, gate, up, down):
    """As the modules of transformers 5 hold them: one tensor of gates and ups, one of downs, under mlp."""
    def convert(tensors):
        result, parts = {}, {}
        for name, tensor in tensors.items():
            head, found, tail = name.partition(block + ".experts.")
            if found:
                expert, _, part = tail.partition(".")
                parts.setdefault(head, {}).setdefault(int(expert), {})[part] = tensor
            else:
                result[name.replace(block + ".gate", "mlp.gate")] = tensor
        for head, experts in parts.items():
            ordered = [experts[number] for number in sorted(experts)]
            result[head + "mlp.experts.gate_up_proj"] = torch.stack([torch.cat([one[gate], one[up]]) for one in ordered])
            result[head + "mlp.experts.down_proj"] = torch.stack([one[down] for one in ordered])
        return result
    return convert


def in_shards(tensors):
    return tensors


MIXTRAL_PARTS = ("block_sparse_moe", "w1.weight", "w3.weight", "w2.weight")
QWEN_PARTS = ("mlp", "gate_proj.weight", "up_proj.weight", "down_proj.weight")
LAYOUTS = [  # name, of which folder, conversion, shards
    ("gpt2-old", "gpt2", old_gpt2, 1),
    ("bloom-old", "bloom", without_prefix("transformer."), 1),
    ("bert-old", "bert", old_bert, 1),
    ("mixtral-fused", "mixtral", fused_experts(*MIXTRAL_PARTS), 1),
    ("qwen3_moe-fused", "qwen3_moe", fused_experts(*QWEN_PARTS), 1),
    ("llama-sharded", "llama", in_shards, 3),
    ("mixtral-sharded", "mixtral", in_shards, 2),
]


# Configurations as transformers 4 wrote them, in most published folders: NAME-v4 of the same weights.


def flat_rope(config):
    """One rotation: its base and, if it is scaled, its scaling at the top."""
    values = dict(config.pop("rope_parameters"))
    result = dict(rope_theta=values.pop("rope_theta"))
    if "partial_rotary_factor" in values:
        result["partial_rotary_factor"] = values.pop("partial_rotary_factor")
    scaled = values["rope_type"] != "default"
    if scaled:
        values.pop("original_max_position_embeddings" if "original_max_position_embeddings" in config else "", None)
    return dict(config, **result, rope_scaling=values if scaled else None)


def typed_rope(config):
    """As Phi-3 folders: `type` in place of `rope_type`."""
    config = flat_rope(config)
    config["rope_scaling"]["type"] = config["rope_scaling"].pop("rope_type")
    return config


def pattern(config, length):
    del config["layer_types"]
    config.pop("_sliding_window_pattern", None)
    return dict(config, sliding_window_pattern=length)


def without(config, *names):
    return {key: value for key, value in config.items() if key not in names}


def gemma3_config(config):
    both = config.pop("rope_parameters")
    full = dict(both[FULL])
    return dict(pattern(config, 3), rope_local_base_freq=both[SLIDING]["rope_theta"], rope_theta=full.pop("rope_theta"),
                rope_scaling=full)


def gemma3n_config(config):
    both = config.pop("rope_parameters")
    return dict(config, rope_local_base_freq=both[SLIDING]["rope_theta"], rope_theta=both[FULL]["rope_theta"], rope_scaling=None)


def olmo3_config(config):
    full = dict(config.pop("rope_parameters")[FULL])
    return dict(config, rope_theta=full.pop("rope_theta"), rope_scaling=full)


def neox_config(config):
    values = config.pop("rope_parameters")
    return dict(config, rotary_pct=values["partial_rotary_factor"], rotary_emb_base=values["rope_theta"])


def modernbert_config(config):
    both = config.pop("rope_parameters")
    return dict(without(config, "layer_types"), global_rope_theta=both[FULL]["rope_theta"],
                local_rope_theta=both[SLIDING]["rope_theta"])


CONFIGS = {
    "llama": flat_rope,
    "llama-yarn": flat_rope,
    "qwen2": lambda config: without(flat_rope(config), "layer_types"),
    "gemma2": lambda config: without(flat_rope(config), "layer_types"),
    "gemma3_text": gemma3_config,
    "cohere2": lambda config: pattern(flat_rope(config), 2),
    "exaone4": lambda config: pattern(flat_rope(config), 3),
    "gemma3n_text": gemma3n_config,
    "llama4_text": lambda config: without(flat_rope(config), "layer_types", "moe_layers"),
    "olmo3": olmo3_config,
    "smollm3": lambda config: without(flat_rope(config), "layer_types"),
    "stablelm": flat_rope,
    "phi": flat_rope,
    "glm4": flat_rope,
    "nemotron": flat_rope,
    "phi3-longrope-short": typed_rope,
    "phi3-longrope-long": typed_rope,
    "phi4": flat_rope,
    "gpt_neox": neox_config,
    "gpt_oss": flat_rope,
    "deepseek_v3": flat_rope,
    "glm4_moe": flat_rope,
    "modernbert": modernbert_config,
}


def change_config(out, origin, convert):
    folder = os.path.join(out, origin + "-v4")
    shutil.rmtree(folder, ignore_errors=True)
    shutil.copytree(os.path.join(out, origin), folder)
    with open(os.path.join(folder, "config.json"), encoding="utf-8") as file:
        config = convert(json.load(file))
    config["torch_dtype"] = config.pop("dtype")
    config["transformers_version"] = "4.57.0"
    write_json(folder, "config.json", config)
    with open(os.path.join(folder, "reference.json"), encoding="utf-8") as file:
        check_layout(folder, json.load(file)["class"])


def change_layout(out, name, origin, convert, shards):
    folder = os.path.join(out, name)
    shutil.rmtree(folder, ignore_errors=True)
    shutil.copytree(os.path.join(out, origin), folder, ignore=shutil.ignore_patterns("model.safetensors"))
    tensors = {key: value.contiguous() for key, value in convert(load_file(os.path.join(out, origin, "model.safetensors"))).items()}
    with open(os.path.join(folder, "reference.json"), encoding="utf-8") as file:
        model_class = json.load(file)["class"]
    if shards == 1:
        save_file(tensors, os.path.join(folder, "model.safetensors"), metadata=dict(format="pt"))
    else:
        names = sorted(tensors)
        index = dict(metadata=dict(total_size=sum(t.numel() * t.element_size() for t in tensors.values())), weight_map={})
        for shard in range(shards):
            file_name = f"model-{shard + 1:05}-of-{shards:05}.safetensors"
            members = names[shard::shards]  # neighbours lie in different files
            save_file({key: tensors[key] for key in members}, os.path.join(folder, file_name), metadata=dict(format="pt"))
            index["weight_map"].update({key: file_name for key in members})
        with open(os.path.join(folder, "model.safetensors.index.json"), "w", encoding="utf-8") as file:
            json.dump(index, file, indent=1)
    check_layout(folder, model_class)


def check_layout(folder, model_class):
    """That transformers computes the reference from the layout as well."""
    reference = load_file(os.path.join(folder, "reference.safetensors"))
    inputs = {key: value for key, value in reference.items() if key not in OUTPUTS}
    model = getattr(hf, model_class).from_pretrained(folder, dtype=torch.float32, attn_implementation="eager").eval()
    error = relative_difference({key: value for key, value in reference.items() if key in OUTPUTS}, compute(model, inputs))
    if error > 1e-5:
        raise SystemExit(f"{folder}: {error} beside the reference")
    print(f"{os.path.basename(folder)}: error {error:.1e}", flush=True)


# Folders of sentence-transformers.

TEXTS = ["the cat sat on the mat", "A graph compiler, in C++20!", "unbelievable words are wordpieces", "kernel", ""]
PAIRS = [["where did the cat sit", "the cat sat on the mat"], ["what is a kernel", "a program for a device"], ["cat", "cat"]]
WORDS = ("the a an of in on and to is are was what where who did sit sat cat mat dog graph compiler program kernel device word "
         "words piece pieces model weight text sentence un ##believ ##able ##piece ##pieces ##s ##ing ##ed ##er ##ly").split()


def write_tokenizer(folder):
    """WordPiece, lower case, of some words and all printable letters; returns it and its size."""
    letters = [chr(code) for code in range(33, 127) if not chr(code).isupper()]
    vocabulary = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"] + WORDS + letters + ["##" + letter for letter in letters
                                                                                   if letter.isalnum()]
    vocabulary = {word: number for number, word in enumerate(dict.fromkeys(vocabulary))}
    tokenizer = tokenizers.BertWordPieceTokenizer(vocab=vocabulary, lowercase=True)
    fast = hf.PreTrainedTokenizerFast(tokenizer_object=tokenizer._tokenizer, model_max_length=32, unk_token="[UNK]",
                                      pad_token="[PAD]", cls_token="[CLS]", sep_token="[SEP]", mask_token="[MASK]")
    fast.model_input_names = ["input_ids", "token_type_ids", "attention_mask"]
    fast.save_pretrained(folder)
    return fast, len(vocabulary)


def write_bert(folder, model_class, **values):
    _, size = write_tokenizer(folder)
    model = model_class(hf.BertConfig(**dict(ENCODER, vocab_size=size, **values))).eval()
    fill(model, 0)
    model.save_pretrained(folder)


def sentence_reference(folder, encoder, texts, key, values, facts):
    """What goes into the model for the texts together, padded, and what the package gives for each."""
    encoded = encoder.tokenizer(texts, padding=True, truncation=True, max_length=32, return_tensors="pt")
    save_references(folder, dict({name: value.long() for name, value in encoded.items()}, **{key: values}), facts)
    print(f"{os.path.basename(folder)}: {tuple(values.shape)}, {values.flatten()[:3].tolist()}", flush=True)


def make_published(folder, pooling):
    """The files about modules as versions before 6 of the package wrote them, which is what is published."""
    with open(os.path.join(folder, "modules.json"), encoding="utf-8") as file:
        modules = json.load(file)
    for module in modules:
        module["type"] = "sentence_transformers.models." + module["type"].rpartition(".")[2]
    write_json(folder, "modules.json", modules)
    modes = dict(cls="cls_token", mean="mean_tokens", max="max_tokens", mean_sqrt_len="mean_sqrt_len_tokens")
    write_json(os.path.join(folder, "1_Pooling"), "config.json",
               dict(word_embedding_dimension=48, **{"pooling_mode_" + key: mode == pooling for mode, key in modes.items()}))
    write_json(folder, "sentence_bert_config.json", dict(max_seq_length=32, do_lower_case=False))


def make_sentences(folder, pooling, normalize, published):
    shutil.rmtree(folder, ignore_errors=True)
    with tempfile.TemporaryDirectory() as base:
        write_bert(base, hf.BertModel)
        modules = [Transformer(base, max_seq_length=32), Pooling(48, pooling_mode=pooling)]
        if normalize:
            modules.append(Normalize())
        st.SentenceTransformer(modules=modules, device="cpu").save(folder, create_model_card=False)
    if published:
        make_published(folder, pooling)
    encoder = st.SentenceTransformer(folder, device="cpu")
    values = encoder.encode(TEXTS, convert_to_tensor=True, batch_size=len(TEXTS)).cpu().float()
    sentence_reference(folder, encoder, TEXTS, "embeddings", values, dict(texts=TEXTS, pooling=pooling, normalize=normalize))


def make_cross_encoder(folder):
    shutil.rmtree(folder, ignore_errors=True)
    with tempfile.TemporaryDirectory() as base:
        write_bert(base, hf.BertForSequenceClassification, num_labels=1)
        st.CrossEncoder(base, device="cpu", max_length=32).save_pretrained(folder, create_model_card=False)
    encoder = st.CrossEncoder(folder, device="cpu")
    scores = encoder.predict(PAIRS, convert_to_tensor=True).cpu().float()
    raw = encoder.predict(PAIRS, convert_to_tensor=True, activation_fn=torch.nn.Identity()).cpu().float()
    sentence_reference(folder, encoder, PAIRS, "scores", scores, dict(pairs=PAIRS, logits=raw.tolist()))


SENTENCES = {
    "sentence-mean": functools.partial(make_sentences, pooling="mean", normalize=True, published=False),
    "sentence-cls": functools.partial(make_sentences, pooling="cls", normalize=False, published=True),
    "cross-encoder": make_cross_encoder,
}


def pack(folder, archive):
    """The same bytes for the same files; one stream, so that folders share the bytes of their weights."""
    def plain(member):
        member.uid = member.gid = member.mtime = 0
        member.uname = member.gname = ""
        member.mode = 0o755 if member.isdir() else 0o644
        return member
    with tarfile.open(archive, "w:xz", preset=9 | lzma.PRESET_EXTREME) as file:
        for name in sorted(os.listdir(folder)):
            file.add(os.path.join(folder, name), name, filter=plain)
    print(f"{archive}: {os.path.getsize(archive)} bytes")


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("out")
    parser.add_argument("names", nargs="*")
    parser.add_argument("--pack", metavar="FILE", help="makes nothing, but packs OUT into FILE")
    arguments = parser.parse_args()
    if arguments.pack:
        pack(arguments.out, arguments.pack)
        return
    work = {family.name: functools.partial(make, family, os.path.join(arguments.out, family.name)) for family in rows.ALL}
    work.update({layout[0]: functools.partial(change_layout, arguments.out, *layout) for layout in LAYOUTS})
    work.update({name + "-v4": functools.partial(change_config, arguments.out, name, convert) for name, convert in CONFIGS.items()})
    work.update({name: functools.partial(maker, os.path.join(arguments.out, name)) for name, maker in SENTENCES.items()})
    unknown = sorted(set(arguments.names) - set(work))
    if unknown:
        sys.exit(f"no such names: {unknown}")
    failed = []
    for name in arguments.names or work:
        try:
            with torch.no_grad():
                work[name]()
        except (Exception, SystemExit) as error:  # noqa: BLE001
            failed.append(name)
            print(f"{name}: FAILED {type(error).__name__}: {str(error)[:600]}", flush=True)
    sys.exit(f"failed: {failed}" if failed else 0)


main()
