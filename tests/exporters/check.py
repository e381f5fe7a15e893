"""Exports small random models of many architectures by both of PyTorch's ONNX exporters and checks what llmc makes of them.

    python3 tests/exporters/check.py --llmc build/llmc [NAME...]

Of each: the outputs are PyTorch's, `raise` leaves as many ops of each kind as the architecture has and none of what they
were written in, and decoders get a paged cache, with which they give the same logits. Needs torch, transformers,
onnxscript and safetensors; two minutes for all.
"""
import argparse
import inspect
import logging
import os
import subprocess
import sys
import tempfile
import warnings

os.environ["TRANSFORMERS_VERBOSITY"] = "error"
warnings.filterwarnings("ignore")
logging.disable(logging.WARNING)

import torch  # noqa: E402
import transformers as hf  # noqa: E402
from safetensors.torch import save_file  # noqa: E402

SIZES = dict(vocab_size=96, hidden_size=64, num_hidden_layers=2, num_attention_heads=4, intermediate_size=128,
             max_position_embeddings=64)
GQA = dict(SIZES, num_key_value_heads=2)
GPT = dict(vocab_size=96, n_embd=64, n_layer=2, n_head=4, n_positions=64)
VISION = dict(hidden_size=64, num_hidden_layers=2, num_attention_heads=4, image_size=32, patch_size=8)
PRIMITIVES = ("softmax", "is_nan", "sigmoid", "erf", "tanh", "pow", "sqrt", "reciprocal", "rsqrt", "reduce_mean", "neg")


class Case:
    """`ops`: counts after raise, primitives not named are 0. `paged`: whether it is paginated, by exporter."""

    def __init__(self, make, ops, paged=None, without=(), inputs="tokens"):
        self.make, self.ops, self.paged, self.without, self.inputs = make, ops, paged, without, inputs


def lm(name, config, ops, paged=("dynamo", "legacy"), without=(), config_class=None):
    make = lambda: getattr(hf, name + "ForCausalLM")(getattr(hf, config_class or name + "Config")(**config))  # noqa: E731
    return Case(make, ops, paged, without)


def encoder(name, config, ops, without=(), inputs="tokens"):
    make = lambda: getattr(hf, name + "Model")(getattr(hf, name + "Config")(**config))  # noqa: E731
    return Case(make, ops, None, without, inputs)


LLAMA = dict(attention=2, rotary_embedding=4, rms_norm=5, silu=2)
CASES = {
    # Rotation of halves.
    "mistral": lm("Mistral", dict(GQA, sliding_window=8), LLAMA),
    "granite": lm("Granite", GQA, LLAMA),
    "smollm3": lm("SmolLM3", dict(GQA, pad_token_id=0), LLAMA),
    "olmo2": lm("Olmo2", GQA, dict(LLAMA, rms_norm=9)),
    "gemma": lm("Gemma", dict(GQA, head_dim=16), dict(attention=2, rotary_embedding=4, rms_norm=5, gelu_tanh=2)),
    "gemma3": lm("Gemma3", dict(GQA, head_dim=16, sliding_window=8),
                 dict(attention=2, rotary_embedding=4, rms_norm=13, gelu_tanh=2), config_class="Gemma3TextConfig"),
    "starcoder2": lm("Starcoder2", dict(GQA, sliding_window=8),
                     dict(attention=2, rotary_embedding=4, layer_norm=5, gelu_tanh=2)),
    # Of a part of each head.
    "stablelm": lm("StableLm", GQA, dict(attention=2, rotary_embedding=4, layer_norm=5, silu=2)),
    "phi": lm("Phi", SIZES, dict(attention=2, rotary_embedding=4, layer_norm=3, gelu_tanh=2)),
    "gptneox": lm("GPTNeoX", SIZES, dict(attention=2, rotary_embedding=4, layer_norm=5, gelu=2)),
    # Of pairs. The older exporter writes cohere's wrongly.
    "cohere": lm("Cohere", dict(GQA, pad_token_id=0, bos_token_id=1, eos_token_id=2),
                 dict(attention=2, rotary_embedding=4, layer_norm=3, silu=2), ("dynamo",), ("legacy",)),
    "glm": lm("Glm", dict(GQA, head_dim=16, pad_token_id=0, eos_token_id=[2]),
              dict(attention=2, rotary_embedding=4, rms_norm=5, silu_mul=2), ("dynamo",), ("legacy",)),
    "gptj": lm("GPTJ", dict(GPT, rotary_dim=8), dict(attention=2, rotary_embedding=4, layer_norm=3, gelu_tanh=2), ()),
    "codegen": lm("CodeGen", dict(GPT, n_ctx=64, rotary_dim=8),
                  dict(attention=2, rotary_embedding=4, layer_norm=3, gelu_tanh=2), ("legacy",)),
    # One head of keys and values.
    "falcon": lm("Falcon", dict(vocab_size=96, hidden_size=64, num_hidden_layers=2, num_attention_heads=4, alibi=False),
                 dict(attention=2, rotary_embedding=4, layer_norm=3, gelu=2), ("legacy",)),
    "bigcode": lm("GPTBigCode", GPT, dict(attention=2, layer_norm=5, gelu_tanh=2)),
    # Learned positions, and biases of distance, for which there is no paged attention.
    "opt": lm("OPT", dict(vocab_size=96, hidden_size=64, num_hidden_layers=2, num_attention_heads=4, ffn_dim=128,
                          max_position_embeddings=64, word_embed_proj_dim=64), dict(attention=2, layer_norm=5)),
    "bloom": lm("Bloom", dict(vocab_size=96, hidden_size=64, n_layer=2, n_head=4),
                dict(attention=2, layer_norm=6, gelu_tanh=2), ()),
    "mpt": lm("Mpt", dict(vocab_size=96, d_model=64, n_layers=2, n_heads=4, max_seq_len=64),
              dict(attention=2, layer_norm=5, gelu=2), ()),
    # Masks are parts of tables, every other one with a window.
    "gptneo": lm("GPTNeo", dict(vocab_size=96, hidden_size=64, num_layers=2, num_heads=4, max_position_embeddings=64,
                                attention_types=[[["global", "local"], 1]], window_size=8),
                 dict(attention=2, layer_norm=5, gelu_tanh=2), ()),
    # Encoders.
    "distilbert": encoder("DistilBert", dict(vocab_size=96, dim=64, n_layers=2, n_heads=4, hidden_dim=128,
                                             max_position_embeddings=64), dict(attention=2, layer_norm=5, gelu=2)),
    "roberta": encoder("Roberta", SIZES, dict(attention=2, layer_norm=5, gelu=2)),
    "albert": encoder("Albert", dict(SIZES, embedding_size=32), dict(attention=2, layer_norm=5, gelu_tanh=2)),
    "electra": encoder("Electra", dict(SIZES, embedding_size=32), dict(attention=2, layer_norm=5, gelu=2)),
    "mpnet": encoder("MPNet", SIZES, dict(attention=2, layer_norm=5, gelu=2, neg=1)),
    "deberta": encoder("DebertaV2", dict(SIZES, relative_attention=True, position_buckets=16, type_vocab_size=0,
                                         pos_att_type=["p2c", "c2p"]),
                       dict(attention=2, layer_norm=5, gelu=2, neg=1)),
    "modernbert": encoder("ModernBert", dict(SIZES, pad_token_id=0, local_attention=8, global_attn_every_n_layers=2),
                          dict(attention=2, rotary_embedding=4, layer_norm=5, gelu=2)),
    "t5": Case(lambda: hf.T5EncoderModel(hf.T5Config(vocab_size=96, d_model=64, d_kv=16, d_ff=128, num_layers=2,
                                                     num_heads=4)), dict(attention=2, rms_norm=5), None, ("dynamo",)),
    # Images and sound. The older exporter resizes dinov2's positions.
    "clip": encoder("CLIPVision", dict(VISION, intermediate_size=128), dict(attention=2, layer_norm=5, sigmoid=2),
                    inputs="image"),
    "siglip": encoder("SiglipVision", dict(VISION, intermediate_size=128), dict(attention=2, layer_norm=5, gelu_tanh=2),
                      inputs="image"),
    "dinov2": encoder("Dinov2", VISION, dict(attention=2, layer_norm=5, gelu=2), inputs="image"),
    "wav2vec2": encoder("Wav2Vec2", dict(vocab_size=32, hidden_size=64, num_hidden_layers=2, num_attention_heads=4,
                                         intermediate_size=128, conv_dim=(32, 32), conv_stride=(5, 2),
                                         conv_kernel=(10, 3), num_feat_extract_layers=2, num_conv_pos_embeddings=16,
                                         num_conv_pos_embedding_groups=4),
                        dict(attention=2, layer_norm=7, gelu=5), ("dynamo",), "sound"),
}


class Wrapper(torch.nn.Module):
    """The first output alone, without a cache."""

    def __init__(self, model):
        super().__init__()
        self.model = model
        has_cache = "use_cache" in inspect.signature(model.forward).parameters
        self.options = dict(return_dict=False, **({"use_cache": False} if has_cache else {}))

    def forward(self, first, mask=None):
        if mask is None:
            return self.model(first, **self.options)[0]
        return self.model(input_ids=first, attention_mask=mask, **self.options)[0]


def inputs_of(case):
    if case.inputs == "image":
        return {"x": torch.randn(2, 3, 32, 32)}, {"x": {0: "B"}}
    if case.inputs == "sound":
        return {"x": torch.randn(2, 800)}, {"x": {0: "B"}}
    tokens = {"input_ids": torch.randint(3, 90, (2, 11)), "attention_mask": torch.ones(2, 11, dtype=torch.long)}
    return tokens, {name: {0: "B", 1: "S"} for name in tokens}


def export(model, inputs, axes, exporter, path):
    arguments, names = tuple(inputs.values()), list(inputs)
    if exporter == "dynamo":
        shapes = tuple({axis: torch.export.Dim.AUTO for axis in axes[name]} for name in names)
        torch.onnx.export(model, arguments, path, input_names=names, output_names=["logits"], dynamic_shapes=shapes,
                          dynamo=True, opset_version=18, verbose=False, external_data=False)
    else:
        torch.onnx.export(model, arguments, path, input_names=names, output_names=["logits"],
                          dynamic_axes={**axes, "logits": {0: "B"}}, dynamo=False, opset_version=17)


def run(*command):
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    return "" if done.returncode == 0 else (done.stdout + done.stderr).strip().splitlines()[-1][:300]


def check(llmc, case, exporter, folder):
    torch.manual_seed(0)
    model = Wrapper(case.make().eval().float())
    for parameter in model.parameters():
        if parameter.dim() == 1:
            parameter.data += 0.1 * torch.randn_like(parameter)
    inputs, axes = inputs_of(case)
    with torch.no_grad():
        expected = model(*inputs.values())
    path, plan = folder + "/model.onnx", folder + "/plan.bin"
    export(model, inputs, axes, exporter, path)
    save_file({name: tensor.contiguous() for name, tensor in inputs.items()}, folder + "/in.safetensors")
    save_file({"logits": expected.contiguous()}, folder + "/out.safetensors")
    compare = ["--inputs", folder + "/in.safetensors", "--compare", folder + "/out.safetensors"]
    counts = {**{op: 0 for op in PRIMITIVES}, **case.ops}
    wrong = [
        run(llmc, "run", path, *compare),
        run(llmc, "opt", path, "--stop-after=raise", "-o", "/dev/null",
            "--expect=" + ",".join(f"{op}={count}" for op, count in counts.items())),
    ]
    if case.paged is not None:
        refused = run(llmc, "compile", path, "--paginate", "-o", plan)
        if exporter in case.paged:
            wrong.append(refused or run(llmc, "run", plan, *compare))
        elif not refused:
            wrong.append("has a paged cache, which the table does not know")
    return [line for line in wrong if line]


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--llmc", default="build/llmc")
    parser.add_argument("names", nargs="*", metavar="NAME")
    options = parser.parse_args()
    failed = passed = 0
    for name in options.names or CASES:
        for exporter in ("dynamo", "legacy"):
            if exporter in CASES[name].without:
                continue
            with tempfile.TemporaryDirectory() as folder:
                wrong = check(options.llmc, CASES[name], exporter, folder)
            print(name, exporter, "ok" if not wrong else "FAILED: " + "; ".join(wrong), flush=True)
            failed, passed = failed + bool(wrong), passed + (not wrong)
    print(f"{passed} passed, {failed} failed")
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()
