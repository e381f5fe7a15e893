#!/usr/bin/env python3
"""How fast models of real shapes run when their weights are quantized: decode steps and prompts of each scheme of
`llmc quantize`, beside the time that the bytes of a step take.

usage: quantized_steps.py CONFIG... --out=FOLDER [options]      needs a GPU
       quantized_steps.py --out=FOLDER [--document=FILE]        the tables of what is there
  CONFIG              a folder with the config.json of a model in 16 bits, such as configs/llama-3.1-8b
  --llmc=FILE         the command; build/llmc if not given
  --small=FOLDER      a small model, which is quantized to learn what a scheme writes into config.json; tests/data/tale-7m
                      if not given
  --schemes=A;B       instead of int4, fp8, w8a8, fp8-block, nvfp4, mxfp4 and nf4
  --batch=N,N         sequences of a decode step; 1,8,32,128 if not given
  --context=N         tokens of each of them; 128 if not given
  --prompt=N          tokens of a prompt; 2048 if not given
  --document=FILE     puts the tables there, between the lines "<!-- quantized steps -->" and "<!-- end of quantized steps -->"

Weights are random. Of schemes that quantize the inputs of layers there is a second row with these
(--quantize-activations). Each measurement is kept as FOLDER/MODEL.SCHEME[.inputs].json, the report of `llmc bench`, as
soon as it is made; what is there is not made again, so that a run that was stopped goes on. Needs nothing but Python.
"""
import glob
import json
import os
import re
import subprocess
import sys
import tempfile

BEGIN, END = "<!-- quantized steps -->", "<!-- end of quantized steps -->"
OPTIONS = {"llmc": "build/llmc", "small": "tests/data/tale-7m", "schemes": "int4;fp8;w8a8;fp8-block;nvfp4;mxfp4;nf4",
           "batch": "1,8,32,128", "context": "128", "prompt": "2048"}


def parse_arguments():
    options, configs = dict(OPTIONS), []
    for argument in sys.argv[1:]:
        match = re.fullmatch(r"--(llmc|small|schemes|batch|context|prompt|out|document)=(.*)", argument)
        if match:
            options[match[1]] = match[2]
        elif argument.startswith("-"):
            sys.exit(__doc__)
        else:
            configs.append(argument.rstrip("/"))
    if "out" not in options:
        sys.exit(__doc__)
    return configs, options


def read_json(path):
    with open(path) as file:
        return json.load(file)


def quantization_of(scheme, options, folder):
    """What `llmc quantize` writes into config.json."""
    output = os.path.join(folder, "small")
    subprocess.run([options["llmc"], "quantize", options["small"], "-o", output, "--scheme=" + scheme], check=True,
                   stdout=subprocess.DEVNULL)
    return read_json(os.path.join(output, "config.json"))["quantization_config"]


def quantizes_inputs(quantization):
    return any(group.get("input_activations") for group in quantization.get("config_groups", {}).values())


def without_routers(quantization):
    """Routers of experts, mlp.gate or mlp.router, stay as they are, as `llmc quantize` leaves them."""
    if "ignore" in quantization:
        return {**quantization, "ignore": quantization["ignore"] + ["re:.*mlp.(gate|router)$"]}
    key = "llm_int8_skip_modules"
    return {**quantization, key: quantization[key] + ["gate", "router"]}


def measure(config, quantization, inputs, options, report, folder):
    """Makes the file `report`, unless the model does not run: then says so and why."""
    values = read_json(os.path.join(config, "config.json"))
    if quantization:
        has_experts = any(key.startswith("n") and key.endswith("experts") for key in values)
        values["quantization_config"] = without_routers(quantization) if has_experts else quantization
    with open(os.path.join(folder, "config.json"), "w") as file:
        json.dump(values, file)
    new = report + ".new"
    run = subprocess.run([options["llmc"], "bench", folder, "--random-weights", "--dtype=bf16", "--sustain=0.3",
                          "--batch=" + options["batch"], "--context=" + options["context"],
                          "--prompt=" + options["prompt"], "--output=" + new,
                          *(["--quantize-activations"] if inputs else [])], stdout=subprocess.DEVNULL)
    if run.returncode == 0:
        os.replace(new, report)
    else:
        print(f"{os.path.basename(report)}: left out: exit code {run.returncode}", file=sys.stderr)


def measure_all(configs, options):
    os.makedirs(options["out"], exist_ok=True)
    for scheme in ["bf16"] + [scheme for scheme in options["schemes"].split(";") if scheme]:
        with tempfile.TemporaryDirectory() as folder:
            quantization = None if scheme == "bf16" else quantization_of(scheme, options, folder)
            for config in configs:
                for inputs in [False, True] if quantization and quantizes_inputs(quantization) else [False]:
                    name = f"{os.path.basename(config)}.{scheme.replace(':', '-')}{'.inputs' if inputs else ''}.json"
                    report = os.path.join(options["out"], name)
                    if not os.path.exists(report):
                        measure(config, quantization, inputs, options, report, folder)


def step_text(step):
    """Milliseconds, and the share of them that the bytes take."""
    if "left_out" in step:
        return step["left_out"]
    return f"{step['median_us'] / 1000:.2f} ({100 * step['of_floor']:.0f} %)"


def tables_of(folder):
    models = {}
    for path in sorted(glob.glob(os.path.join(folder, "*.json"))):
        name = re.fullmatch(r"(.+?)\.([^.]+)(\.inputs)?\.json", os.path.basename(path))
        if name:
            models.setdefault(name[1], []).append((name[2], bool(name[3]), read_json(path)))
    lines = []
    for model, rows in models.items():
        report = rows[0][2]
        batches = sorted({(step["batch"], step["context"]) for _, _, r in rows for step in r["decode"]})
        prompts = sorted({step["prompt"] for _, _, r in rows for step in r["prefill"]})
        lines += [f"{model}, {report['gpu']} ({report['read_gb_per_s']:,.0f} GB/s), driver {report['driver']}, "
                  f"{report['date']}:", ""]
        titles = ["scheme", "GB"] + [f"{b} x {c}" for b, c in batches] + [f"prompt of {p:,}" for p in prompts]
        lines += ["| " + " | ".join(titles) + " |", "|" + "---|" * len(titles)]
        # Dense weights first, then the order of steps.
        for scheme, inputs, r in sorted(rows, key=lambda row: (row[0] != "bf16", row[2]["decode"][0].get("median_us", 0))):
            steps = {(step["batch"], step["context"]): step_text(step) for step in r["decode"]}
            cold = {step["prompt"]: f"{step['median_ms']:.1f}" for step in r["prefill"]}
            cells = [f"`{scheme}`{' with inputs' if inputs else ''}", f"{r['weights'] / 1e9:.2f}"]
            cells += [steps.get(key, "") for key in batches] + [cold.get(key, "") for key in prompts]
            lines.append("| " + " | ".join(cells) + " |")
        lines.append("")
    return lines


def put_into(document, lines):
    with open(document) as file:
        text = file.read()
    if text.count(BEGIN) != 1 or text.count(END) != 1:
        sys.exit(f"quantized_steps.py: {document} must have one line '{BEGIN}' and one '{END}'")
    before, after = text.split(BEGIN)[0], text.split(END)[1]
    with open(document, "w") as file:
        file.write(before + BEGIN + "\n" + "\n".join(lines).strip() + "\n" + END + after)


def main():
    configs, options = parse_arguments()
    if configs:
        measure_all(configs, options)
    lines = tables_of(options["out"])
    if "document" in options:
        put_into(options["document"], lines)
    else:
        print("\n".join(lines))


if __name__ == "__main__":
    main()
