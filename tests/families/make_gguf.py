#!/usr/bin/env python3
"""Makes small random models as GGUF files, with what transformers computes of them, and tokenizers of both kinds.

  python3 tests/families/make_gguf.py OUT [--pack FILE.tar.gz] [NAME...]

Needs accelerate, gguf, sentencepiece, tokenizers, torch and transformers 5.17. For every NAME: NAME.gguf, NAME.inputs.safetensors
(input_ids), NAME.outputs.safetensors (logits, in float32, of the weights as the file holds them). Tokenizers: NAME.gguf
with a tiny model, and NAME.json: texts with the ids that the package of the tokenizer gives.
"""
import argparse
import json
import math
import pathlib
import tarfile

import gguf
import numpy
import torch
import transformers
from safetensors.torch import save_file

COMMON = dict(vocab_size=96, hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=4,
              num_key_value_heads=2, max_position_embeddings=64, bos_token_id=1, eos_token_id=2, pad_token_id=0)
LLAMA3 = dict(rope_type="llama3", rope_theta=10000.0, factor=8.0, high_freq_factor=4.0, low_freq_factor=1.0,
              original_max_position_embeddings=32)
YARN = dict(rope_type="yarn", rope_theta=10000.0, factor=4.0, original_max_position_embeddings=16, beta_fast=8.0, beta_slow=2.0,
            attention_factor=1.3)
# Factors of short and of long sequences, as llama.cpp's converter writes them of Phi-3; the texts are long.
LONG = dict(rope_type="longrope", rope_theta=10000.0, short_factor=[1.0, 1.1, 1.3, 1.7], long_factor=[1.5, 2.25, 3.0, 5.5],
            original_max_position_embeddings=16)
# The scale of Gemma's queries is not in a file: it is the width of a head.
GEMMA = COMMON | dict(head_dim=16, query_pre_attn_scalar=16)
MOE = COMMON | dict(num_experts=5, num_experts_per_tok=2, moe_intermediate_size=24, decoder_sparse_step=1)
# name: architecture in GGUF, configuration class, its arguments, type of the weights
MODELS = {
    "llama-f32": ("llama", "Llama", COMMON | dict(attention_bias=False), "F32"),
    "llama-f16": ("llama", "Llama", COMMON | dict(tie_word_embeddings=True, head_dim=12), "F16"),
    "llama3-bf16": ("llama", "Llama", COMMON | dict(rope_parameters=LLAMA3), "BF16"),
    "llama-yarn-f32": ("llama", "Llama", COMMON | dict(rope_parameters=YARN), "F32"),
    "mixtral-f16": ("llama", "Mixtral", COMMON | dict(num_local_experts=5, num_experts_per_tok=2, sliding_window=None), "F16"),
    "phi3-long-f16": ("phi3", "Phi3", COMMON | dict(rope_parameters=LONG, original_max_position_embeddings=16,
                                                    sliding_window=None), "F16"),
    "mistral-f16": ("llama", "Mistral", COMMON | dict(sliding_window=7), "F16"),
    "qwen2-f16": ("qwen2", "Qwen2", COMMON, "F16"),
    "qwen3-bf16": ("qwen3", "Qwen3", COMMON | dict(head_dim=16), "BF16"),
    "gemma-f16": ("gemma", "Gemma", COMMON | dict(head_dim=16), "F16"),
    "gemma2-f32": ("gemma2", "Gemma2", GEMMA | dict(sliding_window=7, attn_logit_softcapping=3.0,
                                                    final_logit_softcapping=5.0), "F32"),
    "gemma3-bf16": ("gemma3", "Gemma3Text", GEMMA | dict(sliding_window=7, rope_parameters=dict(
        full_attention=dict(rope_type="linear", factor=8.0, rope_theta=50000.0),
        sliding_attention=dict(rope_type="default", rope_theta=10000.0))), "BF16"),
    "phi3-f16": ("phi3", "Phi3", COMMON | dict(sliding_window=7), "F16"),
    "gpt2-f32": ("gpt2", "GPT2", dict(vocab_size=96, n_embd=32, n_head=4, n_layer=2, n_positions=64, n_inner=48), "F32"),
    "starcoder2-f16": ("starcoder2", "Starcoder2", COMMON | dict(sliding_window=None), "F16"),
    "falcon-7b-f16": ("falcon", "Falcon", COMMON | dict(multi_query=True, ffn_hidden_size=48), "F16"),
    "falcon-40b-f16": ("falcon", "Falcon", COMMON | dict(new_decoder_architecture=True, num_kv_heads=2,
                                                         ffn_hidden_size=48), "F16"),
    "qwen2moe-f32": ("qwen2moe", "Qwen2Moe", MOE | dict(shared_expert_intermediate_size=40, norm_topk_prob=False), "F32"),
    "qwen3moe-f32": ("qwen3moe", "Qwen3Moe", MOE | dict(head_dim=8, norm_topk_prob=True), "F32"),
}
TYPES = {"F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16}
TEXTS = ["Once upon a time there was a king.", "  two  spaces", "line\nline\n\n  end ", "1234 + 56.7", "naïve café, 日本語 🙂",
         "it's I'LL we've", "", "</s> <s> <|endoftext|>", "a" * 40]


def make_model(kind, arguments, dtype):
    torch.manual_seed(7)
    config = getattr(transformers, kind + "Config")(**arguments)
    config._attn_implementation = "eager"
    model = transformers.AutoModelForCausalLM.from_config(config).float().eval()
    with torch.no_grad():
        for name, tensor in model.named_parameters():
            # Norms lie around 1, but for Gemma's, to which 1 is added.
            is_norm = tensor.ndim == 1 and name.endswith("weight")
            around = 1.0 if is_norm and "Gemma" not in kind else 0.0
            wide = 0.3 if tensor.ndim == 1 else 0.25
            tensor.copy_(around + wide * torch.randn_like(tensor))
            if tensor.ndim > 1:
                tensor.copy_(tensor.to(TYPES[dtype]).float())
    return model


def permuted(weight, heads):
    """Rows of each head, with the elements of a pair as neighbours."""
    return weight.reshape(heads, 2, weight.shape[0] // heads // 2, *weight.shape[1:]).swapaxes(1, 2).reshape(weight.shape)


def sorted_rows(weight, config):
    """Falcon's groups of queries, key and value: all queries, all keys, all values."""
    heads, size = config.num_attention_heads, config.hidden_size // config.num_attention_heads
    kv = config.num_kv_heads if config.new_decoder_architecture else 1
    groups = weight.reshape(kv, heads // kv + 2, size, *weight.shape[1:])
    parts = [groups[:, :-2], groups[:, [-2]], groups[:, [-1]]]
    return numpy.concatenate([p.reshape(-1, *weight.shape[1:]) for p in parts])


def tensors_of(arch, model):
    """Names and contents as llama.cpp's converter writes them."""
    config = model.config
    names = gguf.get_tensor_name_map(next(a for a, n in gguf.MODEL_ARCH_NAMES.items() if n == arch), 2)
    tied = getattr(config, "tie_word_embeddings", False)
    for name, tensor in model.state_dict().items():
        data = tensor.numpy()
        if name == "lm_head.weight" and tied or name.endswith((".attn.bias", ".masked_bias", "inv_freq")):
            continue
        if arch == "llama" and name.endswith(("q_proj.weight", "k_proj.weight")):
            data = permuted(data, config.num_attention_heads if "q_proj" in name else config.num_key_value_heads)
        if arch.startswith("gemma") and "norm" in name:
            data = data + numpy.float32(1)
        if arch == "gpt2" and data.ndim == 2 and "transformer.h" in name:
            data = data.T
        if arch == "falcon" and "query_key_value" in name:
            data = sorted_rows(data, config)
        if name.endswith("experts.gate_up_proj"):
            block, half = name.split(".")[2], data.shape[1] // 2
            yield f"blk.{block}.ffn_gate_exps.weight", data[:, :half]
            yield f"blk.{block}.ffn_up_exps.weight", data[:, half:]
            continue
        if name.endswith("experts.down_proj"):
            yield f"blk.{name.split('.')[2]}.ffn_down_exps.weight", data
            continue
        if name.endswith("shared_expert_gate.weight"):
            data = data[0]
        found = names.get_name(name, try_suffixes=(".weight", ".bias"))
        assert found, name
        yield found, data


def add_metadata(writer, arch, config):
    get = lambda *keys: next((getattr(config, k) for k in keys if getattr(config, k, None) is not None), None)
    heads, hidden = get("num_attention_heads"), get("hidden_size")
    writer.add_vocab_size(config.vocab_size)
    writer.add_block_count(get("num_hidden_layers"))
    writer.add_context_length(get("max_position_embeddings") or 64)
    writer.add_embedding_length(hidden)
    writer.add_feed_forward_length(get("intermediate_size", "n_inner", "ffn_hidden_size"))
    writer.add_head_count(heads)
    if arch == "falcon":
        writer.add_head_count_kv(config.num_kv_heads if config.new_decoder_architecture else 1)
    elif arch != "gpt2":
        writer.add_head_count_kv(config.num_key_value_heads)
    if get("rms_norm_eps"):
        writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    else:
        writer.add_layer_norm_eps(get("layer_norm_epsilon", "norm_epsilon"))
    if get("head_dim") and arch not in ("gpt2", "falcon"):
        writer.add_key_length(config.head_dim)
        writer.add_value_length(config.head_dim)
        writer.add_rope_dimension_count(config.head_dim)
    if arch in ("phi3", "gemma2", "gemma3") or config.model_type == "mistral":
        writer.add_sliding_window(config.sliding_window or 0)
    if arch == "gemma2":
        writer.add_attn_logit_softcapping(config.attn_logit_softcapping)
        writer.add_final_logit_softcapping(config.final_logit_softcapping)
    rope = get("rope_parameters") or {}
    rope = rope.get("full_attention", rope)
    if rope:
        writer.add_rope_freq_base(rope["rope_theta"])
    if rope.get("rope_type") == "linear":
        writer.add_rope_scaling_type(gguf.RopeScalingType.LINEAR)
        writer.add_rope_scaling_factor(rope["factor"])
    if rope.get("rope_type") == "yarn":
        writer.add_rope_scaling_type(gguf.RopeScalingType.YARN)
        writer.add_rope_scaling_factor(rope["factor"])
        writer.add_rope_scaling_orig_ctx_len(rope["original_max_position_embeddings"])
        writer.add_rope_scaling_yarn_attn_factor(rope["attention_factor"])
        writer.add_rope_scaling_yarn_beta_fast(rope["beta_fast"])
        writer.add_rope_scaling_yarn_beta_slow(rope["beta_slow"])
    if rope.get("rope_type") == "longrope":
        original = rope["original_max_position_embeddings"]
        scale = config.max_position_embeddings / original
        writer.add_rope_scaling_orig_ctx_len(original)
        writer.add_rope_scaling_attn_factors(math.sqrt(1 + math.log(scale) / math.log(original)))
        for length in ("short", "long"):
            writer.add_tensor(f"rope_factors_{length}.weight", numpy.array(rope[length + "_factor"], numpy.float32))
    if config.model_type == "mixtral":
        writer.add_expert_count(config.num_local_experts)
        writer.add_expert_used_count(config.num_experts_per_tok)
    if arch.endswith("moe"):
        writer.add_expert_count(config.num_experts)
        writer.add_expert_used_count(config.num_experts_per_tok)
        writer.add_expert_feed_forward_length(config.moe_intermediate_size)
        if arch == "qwen2moe":
            writer.add_expert_shared_feed_forward_length(config.shared_expert_intermediate_size)


def llama3_factors(config):
    """rope_freqs: what Llama 3.1's scaling divides each frequency by."""
    rope = config.rope_parameters
    half = config.head_dim // 2
    plain = 1.0 / rope["rope_theta"] ** (torch.arange(half, dtype=torch.float32) * 2 / config.head_dim)
    scaled, _ = transformers.modeling_rope_utils.ROPE_INIT_FUNCTIONS["llama3"](config, "cpu")
    return (plain / scaled).numpy()


def write(path, arch, model, dtype, tokenizer=None):
    writer = gguf.GGUFWriter(path, arch)
    add_metadata(writer, arch, model.config)
    if tokenizer:
        tokenizer(writer)
    if getattr(model.config, "rope_parameters", None) and model.config.rope_parameters.get("rope_type") == "llama3":
        writer.add_tensor("rope_freqs.weight", llama3_factors(model.config))
    kind = getattr(gguf.GGMLQuantizationType, dtype)
    for name, data in tensors_of(arch, model):
        data = numpy.ascontiguousarray(data, dtype=numpy.float32)
        if data.ndim > 1 and dtype != "F32":
            writer.add_tensor(name, gguf.quants.quantize(data, kind), raw_dtype=kind)
        else:
            writer.add_tensor(name, data)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def check_with_transformers(path, ids, logits):
    """Whether transformers reads the same model from the file; its reader is not this script's. It leaves out rope_freqs,
    the window of "llama" and, of some families, key_length."""
    try:
        other = transformers.AutoModelForCausalLM.from_pretrained(path.parent, gguf_file=path.name, dtype=torch.float32,
                                                                  attn_implementation="eager").eval()
        with torch.no_grad():
            return f"transformers reads it, differing by {(other(ids).logits - logits).abs().max():.2g}"
    except Exception as error:
        return f"not read by transformers: {str(error).splitlines()[0][:90]}"


def make(out, name):
    arch, kind, arguments, dtype = MODELS[name]
    model = make_model(kind, arguments, dtype)
    write(out / f"{name}.gguf", arch, model, dtype)
    ids = torch.randint(3, 96, (2, 20), generator=torch.Generator().manual_seed(3))
    with torch.no_grad():
        logits = model(ids).logits.float()
    save_file({"input_ids": ids}, out / f"{name}.inputs.safetensors")
    save_file({"logits": logits.contiguous()}, out / f"{name}.outputs.safetensors")
    print(name, check_with_transformers(out / f"{name}.gguf", ids, logits), f"largest {logits.abs().max():.3g}")


# ---- tokenizers -----------------------------------------------------------------------------------------------------
def byte_level(out, text, name, pre, pattern, normalizer):
    from tokenizers import AddedToken, Regex, Tokenizer, models, normalizers, pre_tokenizers, trainers
    tok = Tokenizer(models.BPE())
    if normalizer:
        tok.normalizer = normalizers.NFC()
    plain = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=pattern is None)
    tok.pre_tokenizer = plain if pattern is None else pre_tokenizers.Sequence(
        [pre_tokenizers.Split(Regex(pattern), "isolated"), plain])
    tok.train_from_iterator([text], trainers.BpeTrainer(vocab_size=480, initial_alphabet=plain.alphabet(),
                                                        special_tokens=["<|endoftext|>"]))
    state = json.loads(tok.to_str())["model"]
    tokens = sorted(state["vocab"], key=state["vocab"].get)

    def add(writer):
        writer.add_tokenizer_model("gpt2")
        writer.add_tokenizer_pre(pre)
        writer.add_token_list(tokens)
        writer.add_token_types([3 if t == "<|endoftext|>" else 1 for t in tokens])
        writer.add_token_merges([" ".join(m) for m in state["merges"]])
        writer.add_eos_token_id(0)
        writer.add_bos_token_id(0)
        writer.add_add_bos_token(False)

    tiny(out, name, len(tokens), add)
    tok.encode_special_tokens = True
    ids = [tok.encode(t, add_special_tokens=False).ids for t in TEXTS]
    (out / f"{name}.json").write_text(json.dumps([{"text": t, "ids": i} for t, i in zip(TEXTS, ids)]))


def sentence_piece(out, text, name):
    import sentencepiece
    prefix = out / "piece"
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(text.splitlines()), model_prefix=str(prefix), model_type="bpe", vocab_size=480,
        byte_fallback=True, normalization_rule_name="identity", remove_extra_whitespaces=False, split_digits=True,
        character_coverage=1.0, add_dummy_prefix=True, allow_whitespace_only_pieces=True, num_threads=1, minloglevel=2)
    sp = sentencepiece.SentencePieceProcessor(model_file=f"{prefix}.model")
    for left in (f"{prefix}.model", f"{prefix}.vocab"):
        pathlib.Path(left).unlink()
    size = sp.get_piece_size()
    kind = lambda i: 2 if sp.is_unknown(i) else 3 if sp.is_control(i) else 6 if sp.is_byte(i) else 1

    def add(writer):
        writer.add_tokenizer_model("llama")
        writer.add_tokenizer_pre("default")
        writer.add_token_list([sp.id_to_piece(i) for i in range(size)])
        writer.add_token_scores([sp.get_score(i) for i in range(size)])
        writer.add_token_types([kind(i) for i in range(size)])
        writer.add_bos_token_id(1)
        writer.add_eos_token_id(2)
        writer.add_unk_token_id(0)

    tiny(out, name, size, add)
    ids = [[1] + sp.encode(t) for t in TEXTS]
    (out / f"{name}.json").write_text(json.dumps([{"text": t, "ids": i} for t, i in zip(TEXTS, ids)]))


def tiny(out, name, vocab, add):
    model = make_model("Llama", COMMON | dict(vocab_size=vocab, hidden_size=8, intermediate_size=8, num_hidden_layers=1,
                                              num_attention_heads=2, num_key_value_heads=1), "F16")
    write(out / f"{name}.gguf", "llama", model, "F16", add)


QWEN2 = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+")


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("out", type=pathlib.Path)
    parser.add_argument("names", nargs="*")
    parser.add_argument("--pack", type=pathlib.Path)
    args = parser.parse_args()
    args.out.mkdir(parents=True, exist_ok=True)
    for name in args.names or MODELS:
        make(args.out, name)
    if not args.names:
        text = (pathlib.Path(__file__).parents[2] / "README.md").read_text()
        byte_level(args.out, text, "tokenizer-gpt2", "gpt-2", None, False)
        byte_level(args.out, text, "tokenizer-qwen2", "qwen2", QWEN2, True)
        sentence_piece(args.out, text, "tokenizer-llama")
    if args.pack:
        with tarfile.open(args.pack, "w:gz", compresslevel=9) as tar:
            for path in sorted(args.out.iterdir()):
                info = tar.gettarinfo(path, path.name)
                info.mtime, info.uid, info.gid, info.uname, info.gname, info.mode = 0, 0, 0, "", "", 0o644
                with path.open("rb") as file:
                    tar.addfile(info, file)


if __name__ == "__main__":
    main()
