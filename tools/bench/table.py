#!/usr/bin/env python3
"""Prints the tables of docs/performance.md from one folder of results, as tools/bench/session.sh writes it. With DOCUMENT,
puts them there, between the lines "<!-- tables -->" and "<!-- end of tables -->". All numbers but those of
published.json, and the marks and floors of marks.json, come from the folder, which names one commit; what it lacks is said.

usage: table.py FOLDER [DOCUMENT]
"""
import json
import os
import sys

MODELS = ["llama-3.2-1b", "qwen3-0.6b", "llama-3.1-8b", "qwen3-8b", "llama-3.1-70b"]
PEER_MODELS = ["llama-3.1-8b", "llama-3.2-1b"]
BEGIN, END = "<!-- tables -->", "<!-- end of tables -->"
HERE = os.path.dirname(os.path.abspath(__file__))


class Results:
    def __init__(self, folder):
        self.folder = folder
        self.commit = self.text("commit").strip()
        if not self.commit or len(self.commit.split()) != 1:
            sys.exit(f"table.py: {folder}/commit must name the one commit that all results are of")
        names = [name[:-5] for name in sorted(os.listdir(folder)) if name.endswith(".json")]
        reports = self.reports = {name: self.read(name + ".json") for name in names}
        order = [name for name in MODELS if name in reports] + [name for name in names if name not in MODELS]
        self.models = {name: reports[name] for name in order
                       if isinstance(reports[name], dict) and "decode" in reports[name] and not name.startswith("profile-")}
        self.profiles = {name[8:]: reports[name] for name in names if name.startswith("profile-")}
        self.real_load = reports.get("real_load")
        if not self.models:
            sys.exit(f"table.py: {folder} holds no report of llmc bench")

    def text(self, name):
        try:
            with open(os.path.join(self.folder, name)) as file:
                return file.read()
        except FileNotFoundError:
            return ""

    def read(self, name):
        return json.loads(self.text(name))

    def lines(self, name):
        rows = []
        for line in self.text(name).splitlines():
            if line.startswith("{"):
                rows.append(json.loads(line))
        return rows

    def torch(self, model):
        return self.lines(f"torch-{model}.jsonl")

    def vllm(self, model):
        return [row for row in self.lines("vllm.jsonl")
                if row.get("model") == model and row.get("quant") == "bf16" and row.get("variant") == "default"]


def number(value, digits=2, scale=1):
    return "" if value is None else f"{value * scale:,.{digits}f}"


def percent(value):
    return "" if value is None else f"{100 * value:.0f} %"


def state(row):
    """Clock and power: two cells."""
    return [number(row.get("sm_mhz"), 0), number(row.get("watts"), 0)]


def table(head, rows):
    if not rows:
        return []
    lines = ["| " + " | ".join(head) + " |", "|" + "---|" * len(head)]
    return lines + ["| " + " | ".join(str(cell) for cell in row) + " |" for row in rows] + [""]


def measured(results, section):
    for model, report in results.models.items():
        for row in report.get(section, []):
            if "left_out" not in row:
                yield model, row


def head_lines(results):
    reports = list(results.models.values()) + list(results.profiles.values())

    def span(key):
        values = sorted({report[key] for report in reports if key in report})
        return " to ".join(dict.fromkeys([values[0], values[-1]])) if values else "unknown"

    return [f"{span('gpu')}, driver {span('driver')}, {span('date')}, commit {results.commit}. bf16 throughout. A decode step is "
            "the median of 10 to 50 right after each other; cold: after half a second of rest, the medians of five; hot: after one "
            "or two seconds of the same.", ""]


def at_path(row, path):
    for key in path.split("."):
        row = row.get(key, {}) if isinstance(row, dict) else {}
    return row if row != {} else None


def marked_row(results, mark):
    """What a row of marks.json is about, or {}."""
    if "lines" in mark:
        return find(results.lines(mark["lines"]), **mark["where"])
    section = results.reports.get(mark["model"], {}).get(mark["section"], [])
    return find(section if isinstance(section, list) else [section], **mark["where"])


def marks(results):
    with open(os.path.join(HERE, "marks.json")) as file:
        wanted = json.load(file)
    rows = []
    for mark in wanted:
        row, scale = marked_row(results, mark), mark.get("scale", 1)
        value = at_path(row, mark["value"])
        if value is None:
            continue
        value *= scale
        digits = 0 if value >= 1000 else 1 if value >= 100 else 2 if value >= 10 else 3
        spread = at_path(row, mark["value"] + "_spread")
        more_is_better = mark["unit"] != "ms"
        short = (mark["mark"] - value if more_is_better else value - mark["mark"]) / mark["mark"]
        wanted_of_vllm = mark.get("vllm", {})
        peer = find(results.vllm(mark.get("model")), **{key: x for key, x in wanted_of_vllm.items() if key != "value"})
        rows.append([mark["work"], mark["unit"], f"{mark['mark']:,}", number(value, digits),
                     " to ".join(number(x, digits, scale) for x in spread) if spread else "",
                     "reached" if short <= 0 else f"{100 * short:.1f} % " + ("less" if more_is_better else "more"),
                     f"{mark['floor']:,}" if "floor" in mark else "",
                     number(peer.get(wanted_of_vllm.get("value")), digits) if wanted_of_vllm else ""])
    if not rows:
        return []
    of_vllm = (f" vLLM, {vllm_source(results)}: between tokens of `generate()`, prompts in a row, and the faster of two full batches."
               if results.lines("vllm.jsonl") else "")
    return ["### The marks that this project set itself", "",
            "Between tokens: the engine with its host's work and greedy sampling, all requests of 128 tokens answered with 128 at "
            "once, the median step of the run of median seconds, after one that does not count; beside it the least and the "
            "greatest of the runs. A step: without sampling. First tokens: through the engine, one request. Encoders: on the GPU, "
            "inputs there, one run right after the other." + of_vllm, "",
            *table(["work", "unit", "mark", "llmc", "runs", "", "floor", f"vLLM {vllm_versions(results)['vllm']}".strip()], rows)]


def loads_of_requests(results):
    rows = []
    for model, row in measured(results, "requests"):
        rows.append([model, row["requests"], f"{row['prompt']}, {row['answer']}", row["runs"], number(row["seconds"]),
                     number(row["tokens_per_s"], 0), number(row["full"]["median_ms"], 3), number(row["prompts"]["seconds"])])
    if not rows:
        return []
    return ["### Requests at once", "",
            "Random tokens, greedy, without the prefix cache; the run of median seconds. Tokens a second are of answers.", "",
            *table(["model", "requests", "tokens of each, and of its answer", "runs", "s", "tokens/s", "ms, a step while all generate",
                    "s until all have a first token"], rows)]


def roofs(results):
    rows = []
    for model, report in results.models.items():
        hot_read, hot_matrix = report.get("hot_read", {}), report.get("hot_matrix", {})
        rows.append([model, number(report["read_gb_per_s"], 0), number(hot_read.get("gb_per_s"), 0), *state(hot_read),
                     number(report["matrix_tflops"], 0), number(hot_matrix.get("tflops"), 0), *state(hot_matrix)])
    return ["### What the GPU can do", "",
            "Measured before each model: reading 4 GiB and multiplying 8192 x 8192 matrices in bf16, the fastest of 20 cold "
            "runs, and the rate that is held once the clocks have settled.", "",
            *table(["before", "GB/s, cold", "hot", "SM MHz", "W", "TFLOP/s, cold", "hot", "SM MHz", "W"], rows)]


def decode(results):
    rows = [[model, row["batch"], row["context"], number(row["median_us"], 3, 1e-3), number(row.get("greedy_us"), 3, 1e-3),
             number(row.get("drawn_us"), 3, 1e-3), number(row["floor_us"], 3, 1e-3), percent(row["of_floor"]),
             number(row["tokens_per_s"], 0) if "greedy_us" in row else "", *state(row)] for model, row in measured(results, "decode")]
    left_out = [f"* {model}, batch {row['batch']}, context {row['context']}: {row['left_out']}"
                for model, report in results.models.items() for row in report["decode"] if "left_out" in row]
    return ["### Decode", "",
            "Milliseconds a step: the model alone; with its inputs read from the host's message and the likeliest tokens chosen "
            "on the device (greedy); and with tokens drawn at temperature 0.8 and top_p 0.95. The floor is the time to read "
            "weights and KV cache at the cold bandwidth, its share that of the step without sampling; tokens a second are of "
            "the greedy step.", "",
            *table(["model", "batch", "context", "without sampling", "with greedy", "with a draw", "floor", "of it", "tokens/s",
                    "SM MHz", "W"], rows),
            *(["Left out:", "", *left_out, ""] if left_out else [])]


def prefill(results):
    rows = []
    for model, row in measured(results, "prefill"):
        hot = row.get("hot", {})
        rows.append([model, row["prompt"], number(row["median_ms"]), number(row["tflops"], 0), percent(row["of_matrix_rate"]),
                     number(hot.get("median_ms")), number(hot.get("tflops"), 0), percent(hot.get("of_matrix_rate")), *state(hot)])
    return ["### Prefill", "",
            "One prompt, without sampling. Shares are of the cold and of the hot rate of matrix products; clock and power are "
            "those of the hot runs.", "",
            *table(["model", "prompt", "ms, cold", "TFLOP/s", "of cold", "ms, hot", "TFLOP/s", "of hot", "SM MHz", "W"], rows)]


def engine(results):
    rows = [[model, row["prompt"], number(row["first_token_ms"]), number(row["token_us"], 3, 1e-3)]
            for model, row in measured(results, "engine")]
    return ["### Through the engine", "",
            "One request on a loaded model, with the host's work, greedy sampling and events; prompts come between decoding, so "
            "that the GPU is less hot than in rows of hot prefill.", "",
            *table(["model", "prompt", "ms to the first token", "ms for each after it"], rows)]


def loads(results):
    rows = [[model, number(report.get("compile_s")), number(report.get("tuning", {}).get("seconds")), number(report["load_s"])]
            for model, report in results.models.items() if "compile_s" in report]
    lines = ["### Compiling and loading", "",
             "Of a configuration without weights (none are read to compile, and to load draws random numbers on the GPU):", "",
             *table(["model", "s to compile", "of them to choose cuBLASLt's algorithms", "s to load, weights drawn"], rows)]
    real = results.real_load
    if real is None:
        return lines + ["Loads of weights from files: not measured in this run.", ""]
    size = f"{real['checkpoint_bytes'] * 1e-9:.1f} GB"
    lines += [f"Of a checkpoint of {real['model']}'s shapes, {size} of random bf16 weights in safetensors, with "
              f"{real['cores']} cores. To compile reads all weights from the page cache; the plan holds them or refers to the "
              "checkpoint. A load is a process from its start to the first token after a prompt of 128.", "",
              *table(["weights", "s to compile", "GB of the plan"],
                     [[row["weights"], number(row["seconds"], 1), number(row["plan_bytes"], 1, 1e-9)] for row in real["compile"]])]
    rows = []
    for row in real["load"]:
        place = row["from"]
        if place == "disk" and not row["is_from_disk"]:
            place = f"page cache dropped by {row['how']}, but {row['disk_bytes'] * 1e-9:.1f} GB came from a disk"
        rows.append([row["weights"], place, number(row["load_s"]), number(row["seconds_to_first_token"]),
                     number(real["checkpoint_bytes"] * 1e-9 / row["load_s"], 1)])
    return lines + table(["weights", "from", "s to load", "s to the first token", "GB/s of the load"], rows)


def find(rows, **wanted):
    for row in rows:
        if "left_out" not in row and all(row.get(key) == value for key, value in wanted.items()):
            return row
    return {}


def own(results, model, section, **wanted):
    return find(results.models.get(model, {}).get(section, []), **wanted)


def published(what, model):
    with open(os.path.join(HERE, "published.json")) as file:
        return [row for row in json.load(file) if row["what"] == what and row["model"] == model]


def decode_peers(results, model):
    own_row = own(results, model, "decode", batch=1, context=128)
    rows = []
    for batch in (1, 8, 32):
        row = own(results, model, "decode", batch=batch, context=128)
        if row:
            rows.append(["llmc, the step", "none", batch, 128, number(row["median_us"], 3, 1e-3), "this run"])
            if "greedy_us" in row:
                rows.append(["**llmc, the step**", "greedy", batch, 128, number(row["greedy_us"], 3, 1e-3), "this run"])
    row = own(results, model, "engine", prompt=512)
    if row:
        rows.append(["**llmc, the engine**", "greedy", 1, "512 to 577", number(row["token_us"], 3, 1e-3), "this run"])
    for row in results.vllm(model):
        if row.get("case") == "decode" and "itl_ms" in row:
            rows.append([f"vLLM {vllm_versions(results)['vllm']}, the engine", "greedy", row["batch"], f"{row['context']} to {row['context'] + row['new']}",
                         number(row["itl_ms"], 3), vllm_source(results)])
    for row in results.torch(model):
        if row.get("what") == "decode" and "ms" in row:
            rows.append([f"transformers {row['transformers']}, {row['mode']}, {row['cache']} cache", row["sampling"], row["batch"],
                         row["context"], number(row["ms"], 3), f"this run, torch {row['torch']}"])
    for row in published("decode", model):
        rows.append([row["system"], row["sampling"], row["batch"], row["length"], number(row["ms"], 3), row["source"]])
    if own_row:
        rows.append(["floor", "none", 1, 128, number(own_row["floor_us"], 3, 1e-3), "weights and cache at the cold bandwidth"])
    return [f"{model}, decode, ms a step:", "", *table(["", "sampling", "batch", "context", "ms", "from"], rows)]


def vllm_versions(results):
    return next((row for row in results.lines("vllm.jsonl") if row.get("case") == "versions"), {"vllm": "", "gpu": "unknown"})


def vllm_source(results):
    versions = vllm_versions(results)
    gpu = ", driver ".join(versions["gpu"].split(", ")[:2])
    return f"a run of its own on {gpu}, torch {versions.get('torch', 'unknown')}"


def prefill_peers(results, model):
    rows = []
    for prompt in (2048, 8192):
        row = own(results, model, "prefill", prompt=prompt)
        if row:
            rows.append(["llmc, the step", "none", "cold", prompt, number(row["median_ms"]), "this run"])
            if "hot" in row:
                rows.append(["llmc, the step", "none", "hot", prompt, number(row["hot"]["median_ms"]), "this run"])
        row = own(results, model, "engine", prompt=prompt)
        if row:
            rows.append(["**llmc, the engine**", "greedy", "between decoding", prompt, number(row["first_token_ms"]), "this run"])
        for row in results.vllm(model):
            if row.get("case") == "prefill" and row.get("length") == prompt and "ttft_ms" in row:
                rows.append([f"vLLM {vllm_versions(results)['vllm']}, the engine", "greedy", "prompts in a row", prompt, number(row["ttft_ms"]),
                             vllm_source(results)])
        for row in results.torch(model):
            if row.get("what") == "prefill" and row.get("prompt") == prompt and "ms" in row:
                rows.append([f"transformers {row['transformers']}, {row['mode']}", row["sampling"], row["heat"], prompt, number(row["ms"]),
                             f"this run, torch {row['torch']}"])
    for row in published("prefill", model):
        rows.append([row["system"], row["sampling"], "not said", row["length"].split()[-1], number(row["ms"]), row["source"]])
    return [f"{model}, one prompt, ms:", "", *table(["", "sampling", "heat", "prompt", "ms", "from"], rows)]


def peers(results):
    lines = ["### Beside other programs", "",
             "On the same kind of GPU with the same shapes, in bf16 if nothing else is said. Who samples in a step is beside who "
             "does so. Rows that were not measured in this run say where they are from.", ""]
    for model in PEER_MODELS:
        lines += decode_peers(results, model) + prefill_peers(results, model)
    compiles = [f"{model} {row['what']} {row.get('prompt') or 'of batch ' + str(row.get('batch'))}: {row['compile_s']:.0f} s"
                for model in PEER_MODELS for row in results.torch(model) if row.get("heat") != "hot" and "compile_s" in row]
    missing = [f"{model} {row['what']}, {row['mode']}, {row.get('prompt') or 'batch ' + str(row.get('batch'))}: {row['left_out']}"
               for model in PEER_MODELS for row in results.torch(model) if "left_out" in row]
    if compiles:
        lines += ["torch.compile took, first runs included: " + "; ".join(compiles) + ".", ""]
    if missing:
        lines += ["Left out of the peers: " + "; ".join(missing) + ".", ""]
    return lines


def profiles(results):
    reports = {**{name: report for name, report in results.models.items()}, **results.profiles}
    lines = ["### Where the time goes", "",
             "Each kernel of a step alone, in graphs of their own, and what is left of the step: gaps, or less than nothing where "
             "kernels overlap. Rows add up to the step.", ""]
    found = False
    for model in MODELS:
        entry = next((row for row in reports.get(model, {}).get("decode", []) if row.get("profile") and row["batch"] == 1), None)
        if entry is None:
            continue
        found = True
        step = entry.get("profile_step_us", entry["median_us"])
        rest = step - sum(row["us"] for row in entry["profile"])
        if all("count" in row for row in entry["profile"]):  # of a report that does not say it
            entry["profile"].append({"kernel": "gaps between kernels" if rest >= 0 else "overlap of kernels", "us": rest})
        lines += [f"{model}, batch 1, context {entry['context']}: {step:.1f} us", "",
                  *table(["kernel", "launches", "us", "of the step", "of its roof, cold"],
                         [[f"`{row['kernel']}`" if "count" in row else row["kernel"], row.get("count", ""), number(row["us"], 1),
                           f"{100 * row['us'] / step:.1f} %", percent(row.get("of_roof"))] for row in entry["profile"]])]
    return lines if found else []


def attention(results):
    torch_rows = results.lines("whole_attention_torch.jsonl")
    rows, ratios = [], []
    for row in results.lines("whole_attention.jsonl"):
        if row["form"] != "wgmma":
            continue
        peer = find(torch_rows, mask=row["mask"], head=row["head"], batch=row["batch"], length=row["length"])
        if peer:
            ratios.append(row["ms"] / peer["ms"])
        rows.append([row["head"], f"{row['batch']}, {row['length']}", row["mask"], number(row["ms"], 3), number(row["tflops"], 0),
                     number(peer.get("ms"), 3), number(peer.get("tflops"), 0)])
    if not rows:
        return []
    lines = ["### Attention over whole tensors", "",
             "What encoders and ONNX graphs with a cache as tensors use (`kernels/attention/whole_attention.cuh`): 32 heads in bf16 beside "
             "`scaled_dot_product_attention` of PyTorch, each the mean of 20 launches after three; q, k and v are random, each for "
             "itself. Masks are one matrix [length, length] for all heads.", "",
             *table(["heads of", "batch, length", "mask", "llmc, ms", "TFLOP/s", "PyTorch, ms", "TFLOP/s"], rows)]
    if ratios:
        lines += [f"llmc takes {min(ratios):.2f} to {max(ratios):.2f} times as long as PyTorch.", ""]
    return lines


def all_tables(folder):
    results = Results(folder)
    lines = []
    for part in (head_lines, marks, roofs, decode, prefill, engine, loads_of_requests, loads, peers, profiles, attention):
        lines += part(results)
    return "\n".join(lines).rstrip() + "\n"


def main():
    if len(sys.argv) not in (2, 3):
        sys.exit(__doc__)
    text = all_tables(sys.argv[1])
    if len(sys.argv) == 2:
        print(text, end="")
        return
    with open(sys.argv[2]) as file:
        document = file.read()
    if document.count(BEGIN) != 1 or document.count(END) != 1 or document.index(BEGIN) > document.index(END):
        sys.exit(f"table.py: {sys.argv[2]} must have one line {BEGIN} and one {END} after it")
    before, rest = document.split(BEGIN)
    with open(sys.argv[2], "w") as file:
        file.write(f"{before}{BEGIN}\n\n{text}\n{END}{rest.split(END)[1]}")


main()
