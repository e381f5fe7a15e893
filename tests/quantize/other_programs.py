"""Reads what `llmc quantize` writes with the packages whose formats it writes, and compares the weights with --decoded.

    other_programs.py --llmc=BINARY --model=FOLDER [--packages=FOLDER] [--install] [--only=TEXT]

With --install pip puts the packages into FOLDER first, gigabytes with PyTorch; ctest runs this where
LLMC_TEST_OTHER_PROGRAMS is set. Exits with 77, which ctest takes for skipped, where they are not there.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile

SKIPPED = 77
PACKAGES = ["torch==2.15.0", "compressed-tensors==0.14.0.1", "transformers==4.57.6", "bitsandbytes==0.50.2",
            "accelerate", "safetensors", "numpy"]
CALIBRATED = {"gptq", "int8:channel:dynamic:smooth", "fp8-static", "nvfp4:local"}
SCHEMES = ["int4:g128", "int4:g64:asym", "int8", "int8:asym", "w8a8", "fp8", "fp8-static", "fp8-block",
           "fp8:weight-only", "nvfp4", "nvfp4:local", "mxfp4", "mxfp4:dynamic", "gptq", "int8:channel:dynamic:smooth",
           "q_proj|k_proj=fp8,down_proj=int8,*=int4:g128", "nf4", "nf4:double", "llm.int8"]
INPUTS = {"nvfp4:local", "mxfp4:dynamic"}  # whose inputs are quantized by the package, too, and compared
# Relative to the largest weight. nvfp4 is stored with the reciprocal of its outer scale, and bitsandbytes multiplies by
# amax and divides by 127, where scales of llmc are amax / 127: not the same bit for bit.
TOLERANCE = {"nvfp4": 2e-7, "nvfp4:local": 2e-7, "llm.int8": 2e-7}


def read_file(path):
    from safetensors.torch import load_file
    return load_file(path)


def read_folder(folder):
    tensors = {}
    for name in sorted(os.listdir(folder)):
        if name.endswith(".safetensors"):
            tensors.update(read_file(os.path.join(folder, name)))
    return tensors


def config_of(folder):
    with open(os.path.join(folder, "config.json")) as file:
        return json.load(file)["quantization_config"]


def parts_of(tensors, module):
    return {name[len(module) + 1:]: tensor for name, tensor in tensors.items() if name.startswith(module + ".")}


def group_of(config, module):
    from compressed_tensors.quantization import QuantizationScheme
    for group in config["config_groups"].values():
        targets = group["targets"]
        if targets == ["Linear"] or module in targets:
            return QuantizationScheme(**group)
    return None


def by_mxfp4(parts):
    """The OCP definition: the package does not decompress it."""
    import torch
    values = torch.tensor([0, .5, 1, 1.5, 2, 3, 4, 6, -0., -.5, -1, -1.5, -2, -3, -4, -6])
    packed = parts["weight_packed"].long()
    codes = torch.stack((packed & 15, packed >> 4), -1).reshape(packed.shape[0], -1)
    scale = torch.exp2(parts["weight_scale"].float() - 127)
    return values[codes] * scale.repeat_interleave(32, 1)


def by_compressed_tensors(config, module, parts):
    from compressed_tensors.compressors import BaseCompressor
    group = group_of(config, module)
    if group.format == "mxfp4-pack-quantized":
        return by_mxfp4(parts)
    data = {name: tensor.float() if name == "weight_scale" else tensor for name, tensor in parts.items()}
    if group.format == "nvfp4-pack-quantized":
        from compressed_tensors.compressors.quantized_compressors.fp4_quantized import unpack_fp4_from_uint8
        from compressed_tensors.quantization.lifecycle.forward import dequantize
        import torch
        rows, columns = parts["weight_packed"].shape
        numbers = unpack_fp4_from_uint8(parts["weight_packed"], rows, 2 * columns, dtype=torch.float32)
        return dequantize(x_q=numbers, scale=data["weight_scale"], global_scale=parts["weight_global_scale"],
                          dtype=torch.float32)
    compressor = BaseCompressor.load_from_registry(group.format)
    return compressor.decompress_weight(compressed_data=data, quantization_args=group.weights)


def by_bitsandbytes(config, module, parts):
    import torch
    from bitsandbytes import functional
    if config["load_in_8bit"]:
        return functional.int8_vectorwise_dequant(parts["weight"], parts["SCB"])
    prefix = "weight."
    state = functional.QuantState.from_dict(
        {name[len(prefix):]: tensor for name, tensor in parts.items() if name.startswith(prefix)}, device="cpu")
    state.dtype = torch.float32
    return functional.dequantize_4bit(parts["weight"], state)


def modules_of(tensors):
    suffixes = (".weight_packed", ".weight_scale", ".SCB", ".weight.absmax")
    return sorted({name[:-len(suffix)] for name in tensors for suffix in suffixes if name.endswith(suffix)})


def check(arguments, scheme, folder):
    import torch
    command = [arguments.llmc, "quantize", arguments.model, f"--scheme={scheme}"]
    if scheme in CALIBRATED:
        text = os.path.join(folder, "text.txt")
        with open(text, "w") as file:
            file.write("It was a bright cold day in April, and the clocks were striking thirteen. " * 40)
        command += [f"--calibration={text}", "--samples=2", "--sample-tokens=64"]
    codes, decoded = os.path.join(folder, "codes"), os.path.join(folder, "decoded")
    subprocess.run([*command, "-o", codes], check=True, capture_output=True)
    subprocess.run([*command, "-o", decoded, "--decoded=f32"], check=True, capture_output=True)
    ours, theirs, config = read_folder(decoded), read_folder(codes), config_of(codes)
    by = by_bitsandbytes if config["quant_method"] == "bitsandbytes" else by_compressed_tensors
    modules = modules_of(theirs)
    assert modules, "nothing is quantized"
    for module in modules:
        expected = by(config, module, parts_of(theirs, module)).float()
        actual = ours[module + ".weight"]
        assert actual.shape == expected.shape, f"{module}: {actual.shape}, not {expected.shape}"
        worst = ((actual - expected).abs().max() / expected.abs().max()).item()
        assert worst <= TOLERANCE.get(scheme, 0), f"{module}: differs by {worst}"
    for name, tensor in ours.items():
        if name in theirs and not any(name == module + ".weight" for module in modules):
            assert torch.equal(tensor, theirs[name].float()), f"{name} has changed"
    loaded = load(codes, theirs) if config["quant_method"] == "compressed-tensors" else ""
    if scheme in INPUTS:
        loaded += compare_inputs(arguments, codes, decoded, config, theirs)
    print(f"{scheme}: {len(modules)} modules as {config.get('format', config['quant_method'])}{loaded}")


def compare_inputs(arguments, codes, decoded, config, tensors):
    """Logits with inputs quantized by compressed-tensors, of weights as llmc decodes them, against those of llmc."""
    import torch
    from compressed_tensors.quantization import QuantizationStatus
    from compressed_tensors.quantization.lifecycle.forward import forward_quantize
    from safetensors.torch import save_file
    from transformers import AutoModelForCausalLM
    model = AutoModelForCausalLM.from_pretrained(decoded, dtype=torch.float32)
    for name in modules_of(tensors):
        module, inputs = model.get_submodule(name), group_of(config, name).input_activations
        module.quantization_status = QuantizationStatus.FROZEN
        module.input_global_scale = tensors.get(name + ".input_global_scale")
        module.register_forward_pre_hook(
            lambda module, x, inputs=inputs: (forward_quantize(module, x[0], "input", inputs), *x[1:]))
    ids = torch.randint(0, model.config.vocab_size, (1, 64), generator=torch.Generator().manual_seed(1))
    with torch.no_grad():
        expected = model(ids).logits[0]
    given, taken = codes + ".ids.safetensors", codes + ".logits.safetensors"
    save_file({"input_ids": ids}, given)
    subprocess.run([arguments.llmc, "run", codes, "--dtype=f32", "--quantize-activations", f"--inputs={given}",
                    f"--outputs={taken}"], check=True, capture_output=True)
    logits = read_file(taken)["logits"].reshape(expected.shape)
    rows = (logits - expected).abs().amax(-1)
    # Sums in another order move a number over the middle between two codes now and then: see docs/quantized.md.
    same = (rows <= 1e-2).float().mean().item()
    assert same >= 0.9, f"inputs as the package quantizes them: {same:.0%} of rows are the same"
    return f", inputs: {same:.0%} of rows within 1e-2, the most is {rows.max().item():.3f}"


def load(folder, tensors):
    """As transformers would load it: each linear layer finds its tensors, and none is left."""
    import torch
    from transformers import AutoModelForCausalLM
    if config_of(folder)["format"] == "mxfp4-pack-quantized":
        return ", not loaded: transformers cannot"
    # With mixed-precision transformers 4.57 keeps no compressed weights, whoever wrote the folder.
    options = {}
    if config_of(folder)["format"] == "mixed-precision":
        from transformers import CompressedTensorsConfig
        options["quantization_config"] = CompressedTensorsConfig(run_compressed=False)
    model, info = AutoModelForCausalLM.from_pretrained(folder, output_loading_info=True, dtype="auto", **options)
    wrong = [name for kind in ("missing_keys", "unexpected_keys", "mismatched_keys") for name in info[kind]]
    assert not wrong, f"transformers: {wrong[:5]}"
    with torch.no_grad():
        logits = model(torch.tensor([[5, 17, 42, 99]])).logits
    assert torch.isfinite(logits).all(), "transformers: logits are not finite"
    return ", loaded by transformers"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--llmc", required=True)
    parser.add_argument("--model", required=True)
    parser.add_argument("--packages", default="")
    parser.add_argument("--install", action="store_true")
    parser.add_argument("--only", default="")
    arguments = parser.parse_args()
    if arguments.install:
        result = subprocess.run([sys.executable, "-m", "pip", "install", "--quiet", "--target", arguments.packages,
                                 "--upgrade", *PACKAGES])
        if result.returncode != 0:
            print("skipped: pip cannot install the packages")
            return SKIPPED
    if arguments.packages:
        sys.path.insert(0, arguments.packages)
    try:
        import bitsandbytes  # noqa: F401
        import compressed_tensors  # noqa: F401
        import transformers  # noqa: F401
    except ImportError as error:
        print(f"skipped: {error}")
        return SKIPPED
    os.environ.setdefault("TORCHDYNAMO_DISABLE", "1")  # nothing here is worth compiling
    failures = 0
    for scheme in SCHEMES:
        if arguments.only and arguments.only != scheme:
            continue
        with tempfile.TemporaryDirectory() as folder:
            try:
                check(arguments, scheme, folder)
            except Exception as error:  # pylint: disable=broad-except
                failures += 1
                detail = error.stderr.decode() if isinstance(error, subprocess.CalledProcessError) else error
                print(f"FAILED {scheme}: {detail}")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
