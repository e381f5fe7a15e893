"""Whole files: those of ONNX Runtime's optimizer and builders, and exports that its quantizer has made smaller."""

import os
import shutil
import subprocess

import numpy as np
import onnx
from onnxruntime.quantization import CalibrationDataReader, QuantFormat, QuantType, quantize_dynamic, quantize_static
from onnxruntime.quantization.matmul_nbits_quantizer import DefaultWeightOnlyQuantConfig, MatMulNBitsQuantizer

from harness import read_safetensors, session_of

ONNX_TO_NUMPY = {"tensor(float)": np.float32, "tensor(float16)": np.float16, "tensor(int64)": np.int64,
                 "tensor(int32)": np.int32}


# After `raise`, as the architectures have them.
RECOGNIZED = {
    "optimum-encoder": "layer_norm=5,gelu=2",
    "tiny-qwen35": "layer_norm=5,attention=2",
    "tiny-random-gpt2-fp16": "layer_norm=11,attention=5,gelu_tanh=5,tanh=0",
    "tiny-random-gpt2-fp32": "layer_norm=11,attention=5,gelu_tanh=5,tanh=0",
}


# How many products of each export become one op: quantized dynamically, statically, and in blocks. ONNX Runtime takes
# dynamically those whose right factor is constant, statically all of MatMul and Gemm, and in blocks the former of MatMul.
QUANTIZED = {
    "llama-gqa-nocache-dynamo18": (15, 19, 15),
    "llama-gqa-cache-legacy17": (15, 19, 15),
    "gpt2-cache-dynamo18": (8, 13, 0),
    "bert-encoder-dynamo18": (11, 17, 12),
    "vit-vit-legacy17": (13, 17, 12),
}


def add_checks(checks):
    if os.path.isdir(os.path.join(checks.data, "onnx-contrib")):
        whole_files(checks, os.path.join(checks.data, "onnx-contrib"))
    if os.path.isdir(os.path.join(checks.data, "real-onnx")):
        built(checks, os.path.join(checks.data, "real-onnx"))
    if os.path.isdir(os.path.join(checks.data, "onnx-exports")):
        for name in QUANTIZED:
            quantized(checks, os.path.join(checks.data, "onnx-exports"), name)


def feeds_of(model, rng, sizes):
    """Random inputs; sizes gives the named dims."""
    feeds = {}
    for value in session_of(model).get_inputs():
        shape = [sizes.get(dim, dim) for dim in value.shape]
        dtype = ONNX_TO_NUMPY[value.type]
        if value.name == "attention_mask":
            feeds[value.name] = np.ones(shape, dtype)
        elif value.name == "position_ids":
            feeds[value.name] = np.broadcast_to(np.arange(shape[1]) + sizes["past_seq_len"], shape).astype(dtype)
        elif np.issubdtype(dtype, np.integer):
            feeds[value.name] = rng.integers(0, 40, shape).astype(dtype)
        else:
            feeds[value.name] = rng.standard_normal(shape).astype(dtype)
    return feeds


def against_ort(checks, model, feeds, path):
    session = session_of(model)
    expected = dict(zip([output.name for output in session.get_outputs()], session.run(None, feeds)))
    return checks.compare(path, model, feeds, expected)


def whole_files(checks, folder):
    for name in ("optimum-encoder", "tiny-qwen35", "tiny-random-gpt2-fp16", "tiny-random-gpt2-fp32"):
        model = os.path.join(folder, name + ".onnx")
        for batch, length, past in ((2, 5, 0), (2, 1, 4), (1, 3, 4)):
            sizes = {"batch": batch, "batch_size": batch, "sequence": length, "seq_len": length,
                     "past_seq_len": past, "total_seq_len": past + length}

            def run(path, model=model, sizes=sizes):
                return against_ort(checks, model, feeds_of(model, np.random.default_rng(12), sizes), path)

            checks.add(f"{name}, batch {batch}, {length} tokens after {past}", run)
    qwen = os.path.join(folder, "tiny-qwen35.onnx")
    checks.add("tiny-qwen35 generates", lambda path: checks.generates(qwen, [5, 7, 9], greedy(qwen, [5, 7, 9], 12)))
    for name, ops in RECOGNIZED.items():
        checks.add(f"{name} has {ops}", lambda path, name=name, ops=ops: checks.expect(
            os.path.join(folder, name + ".onnx"), ops))


def greedy(model, prompt, count, rows=8, width=16, seen=None):
    """The tokens that ONNX Runtime generates; the cache goes in and out. One that holds a window has so many rows."""
    session = session_of(model)
    sizes = {"batch_size": 1, "past_sequence_length": 0, "past_seq_len": 0, "past_sliding_length": rows,
             "kv_cache_dim": width}
    types = {value.name: ONNX_TO_NUMPY[value.type] for value in session.get_inputs()}
    past = {value.name: np.zeros([sizes.get(dim, dim) if dim != "batch" else 1 for dim in value.shape],
                                 types[value.name])
            for value in session.get_inputs() if value.name.startswith("past")}
    new, length, tokens = prompt, 0, []
    for _ in range(count):
        length += len(new)
        feeds = {"input_ids": np.array([new]), "attention_mask": np.ones((1, length)),
                 "position_ids": np.arange(length - len(new), length)[None]}
        feeds = {name: array.astype(types[name]) for name, array in feeds.items() if name in types}
        outputs = session.run(None, {**feeds, **past})
        by_name = dict(zip([value.name for value in session.get_outputs()], outputs))
        if seen is not None:
            seen(by_name["logits"])
        new = [int(by_name["logits"][0, -1].argmax())]
        tokens += new
        past = {name: by_name[name.replace("past_key_values", "present")] for name in past}
    return tokens


def built(checks, folder):
    """Decoders of onnxruntime-genai's model builder are paginated, and generate what ONNX Runtime does, over the window
    that some of their layers see."""
    for name in sorted(os.listdir(folder)):
        model = os.path.join(folder, name, "model.onnx")
        if not name.startswith("ga") or not name.endswith("fp32"):
            continue
        if name == "ga_qwen3.fp32":  # its norms of heads keep it from that
            continue
        checks.add(f"{name} is paginated, and scores 20 tokens", lambda path, model=model: scored(checks, model, path))
        for prompt in ([5, 7, 9], [3, 1, 4, 1, 5, 9, 2, 6, 5, 3, 5, 8, 9, 7]):
            checks.add(f"{name} generates after {len(prompt)} tokens", lambda path, model=model, prompt=prompt:
                       checks.generates(model, prompt, greedy(model, prompt, 24)))


def scored(checks, model, path):
    plan = path + ".out.plan"
    command = [checks.llmc, "compile", model, "--paginate", "--target=host", "-o", plan]
    result = subprocess.run(command, capture_output=True, text=True, timeout=120)
    if result.returncode != 0:
        return result.stderr or f"exit code {result.returncode}"
    ids = np.random.default_rng(19).integers(0, 99, (1, 20))
    logits = []
    greedy(model, ids[0].tolist(), 1, seen=logits.append)
    wrong = checks.compare(path, plan, {"input_ids": ids}, {"logits": logits[0]})
    os.remove(plan)
    return wrong


class Inputs(CalibrationDataReader):
    def __init__(self, feeds):
        self.feeds = iter([feeds])

    def get_next(self):
        return next(self.feeds, None)


def quantized(checks, folder, name):
    source = os.path.join(folder, name, "model.onnx")
    feeds = read_safetensors(os.path.join(folder, name, "inputs.safetensors"))

    def given():
        names = [value.name for value in session_of(source).get_inputs()]
        return {key: feeds[key] for key in names}

    def copied(path):  # The quantizer writes beside what it reads.
        return shutil.copy(source, path + "-source.onnx")

    def dynamic(path, kind):
        # ONNX Runtime's sums of uint8 x int8 saturate at 16 bits on processors without VNNI, unless weights have 7 bits.
        quantize_dynamic(copied(path), path + ".onnx", weight_type=kind, reduce_range=kind == QuantType.QInt8)

    def static(path, per_channel):
        quantize_static(copied(path), path + ".onnx", Inputs(given()), quant_format=QuantFormat.QDQ,
                        op_types_to_quantize=["MatMul", "Gemm"], per_channel=per_channel)

    def operators(path):
        quantize_static(copied(path), path + ".onnx", Inputs(given()), quant_format=QuantFormat.QOperator,
                        op_types_to_quantize=["MatMul"])

    def blocks(path, bits, symmetric):
        quantizer = MatMulNBitsQuantizer(onnx.load(source), bits=bits, block_size=32, is_symmetric=symmetric)
        quantizer.process()
        quantizer.model.save_model_to_file(path + ".onnx")

    def table(path, symmetric):  # that of embeddings, too
        config = DefaultWeightOnlyQuantConfig(block_size=32, is_symmetric=symmetric, op_types_to_quantize=("MatMul", "Gather"),
                                              quant_axes=(("MatMul", 0), ("Gather", 1)))
        quantizer = MatMulNBitsQuantizer(onnx.load(source), block_size=32, is_symmetric=symmetric, algo_config=config)
        quantizer.process()
        quantizer.model.save_model_to_file(path + ".onnx")

    dynamic_count, static_count, block_count = QUANTIZED[name]
    ways = {
        "dynamic, int8": (dynamic_count, lambda path: dynamic(path, QuantType.QInt8)),
        "dynamic, uint8": (dynamic_count, lambda path: dynamic(path, QuantType.QUInt8)),
        "static QDQ": (static_count, lambda path: static(path, False)),
        "static QDQ per channel": (static_count, lambda path: static(path, True)),
        "4-bit blocks, symmetric": (block_count, lambda path: blocks(path, 4, True)),
        "4-bit blocks with zero points": (block_count, lambda path: blocks(path, 4, False)),
        "8-bit blocks with zero points": (block_count, lambda path: blocks(path, 8, False)),
    }
    if name.startswith("llama"):  # the others have a Gemm, which becomes an operator of ONNX Runtime's own
        ways["static operators"] = (static_count + 1, operators)  # that of positions, too
        if name.endswith("dynamo18"):  # the quantizer makes a model of an older opset one that no opset allows
            ways["4-bit blocks of embeddings, symmetric"] = (block_count, lambda path: table(path, True))
            ways["4-bit blocks of embeddings with zero points"] = (block_count, lambda path: table(path, False))
    for what, (count, make) in ways.items():
        def run(path, count=count, make=make):
            make(path)
            wrong = against_ort(checks, path + ".onnx", given(), path)
            return wrong or checks.recognizes(path + ".onnx", "quantized product", count)

        checks.add(f"{name}, {what}", run)
