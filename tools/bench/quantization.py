#!/usr/bin/env python3
"""What quantizing a model costs: each scheme of `llmc quantize` and each --kv, against the model in f32.

usage: quantization.py MODEL... --text=FILE --calibration=FILE --out=FOLDER [options]
       quantization.py --out=FOLDER [--document=FILE]      the tables of what is there
  --llmc=FILE         the command; build/llmc if not given
  --windows=N         the first windows of 512 tokens of the text; 0: all
  --samples=N         samples of 512 tokens of the calibration text; 16 if not given
  --schemes=A;B       instead of all that `llmc quantize --help` names and some with options; "" for none
  --kv=A;B            instead of f8e4m3, f8e5m2, int8, int4, f8e4m3:tensor; "" for none
  --document=FILE     puts the tables there, between the lines "<!-- quantization -->" and "<!-- end of quantization -->"

Each measurement is kept in FOLDER/MODEL.json as soon as it is made; what is there for the same windows and samples is
not made again, so that a run that was stopped goes on. Remove the file to measure anew. Tables of all files of the
folder are printed. Perplexity is of f32 with weights that were quantized; of schemes that quantize inputs of layers there
is a second row with these (--quantize-activations). Seconds are of processors. Bytes a weight are of the layers that are quantized, with scales. f8e4m3:tensor
needs scales of a checkpoint: it is measured on weights of int8. Needs nothing but Python.
"""
import hashlib
import json
import os
import re
import resource
import subprocess
import sys
import tempfile

BEGIN, END = "<!-- quantization -->", "<!-- end of quantization -->"
WITH_OPTIONS = ["nf4:double", "int4:asym", "gptq:asym", "gptq:actorder", "fp8:gptq", "nvfp4:local", "mxfp4:dynamic",
                "q_proj|k_proj|v_proj|down_proj=fp8:weight-only:gptq,*=fp8:gptq"]
KV = ["f8e4m3", "f8e5m2", "int8", "int4", "f8e4m3:tensor"]
# At most so much more perplexity is wanted of the model of 27 million parameters, in percent, by scheme and by --kv.
BARS = {"fp8": 0.2, "smoothquant": 0.5, "gptq": 3, "awq": 3, "nf4": 4, "nf4:double": 4, "mxfp4": 4, "nvfp4": 4}
KV_BARS = {"f8e4m3": 0.1, "int8": 0.1, "int4": 1.5}


class Failed(Exception):
    pass


def parse_arguments():
    options = {"llmc": "build/llmc", "windows": "0", "samples": "16", "kv": ";".join(KV)}
    models = []
    for argument in sys.argv[1:]:
        match = re.fullmatch(r"--(llmc|windows|samples|schemes|kv|text|calibration|out|document)=(.*)", argument)
        if match:
            options[match[1]] = match[2]
        elif argument.startswith("-"):
            sys.exit(__doc__)
        else:
            models.append(argument.rstrip("/"))
    if not all(name in options for name in (["text", "calibration", "out"] if models else ["out"])):
        sys.exit(__doc__)
    return models, options


def split(text):
    return [part for part in text.split(";") if part]


def schemes_of(llmc):
    """The names in the two lists of the help of `llmc quantize`."""
    help_text = subprocess.run([llmc, "quantize", "--help"], capture_output=True, text=True, check=True).stdout
    part = re.search(r"Formats:\n(.*?)Options, behind", help_text, re.S)
    names = re.findall(r"^ +(\S+)  +\S", part[1], re.M) if part else []
    if not names:
        sys.exit("quantization.py: the help of llmc quantize names no schemes")
    return names + WITH_OPTIONS


class Model:
    """The measurements of one model, kept in a file."""

    def __init__(self, folder, options):
        self.folder, self.options = folder, options
        self.name = os.path.basename(folder)
        self.windows, self.samples = int(options["windows"]), int(options["samples"])
        self.file = os.path.join(options["out"], self.name + ".json")
        self.rows = []
        if os.path.exists(self.file):
            with open(self.file) as file:
                self.rows = json.load(file)["rows"]

    def find(self, scheme, kv, inputs=False):
        return next((row for row in self.rows if (row["scheme"], row["kv"], "inputs" in row) == (scheme, kv, inputs)
                     and (row["asked_windows"], row["samples"]) == (self.windows, self.samples)), None)

    def add(self, row):
        row.update(asked_windows=self.windows, samples=self.samples)
        self.rows.append(row)
        self.write()
        print(f"{self.name} {row['scheme']} {row['kv']}: {row['perplexity']:.4f} {percent(row['change'])}", file=sys.stderr)

    def write(self):
        with open(self.file + ".new", "w") as file:
            json.dump({"model": self.name, "rows": self.rows}, file, indent=1)
            file.write("\n")
        os.replace(self.file + ".new", self.file)

    def llmc(self, *arguments):
        run = subprocess.run([self.options["llmc"], *arguments, "--json"], capture_output=True, text=True)
        try:
            report = json.loads(run.stdout)
        except ValueError:
            report = {"error": {"message": run.stderr.strip()}}
        if run.returncode != 0:
            raise Failed(report.get("error", {}).get("message") or f"exit code {run.returncode}")
        return report

    def measure(self, folder, *extra, dtype="f32"):
        report = self.llmc("perplexity", folder, "--dtype=" + dtype, "--base", self.folder, "--base-dtype=f32", "--text",
                           self.options["text"], f"--max-windows={self.windows}", *extra)
        base = report["base"]
        return {"perplexity": report["perplexity"], "base_perplexity": base["perplexity"], "windows": report["windows"],
                "change": report["perplexity"] / base["perplexity"] - 1, "mean_kl": base["mean_kl"],
                "agreement": base["agreement"]}

    def quantize(self, scheme, output, *extra):
        """The seconds of processors that it takes; with a calibration text only where the scheme asks for one."""
        calibration = ["--calibration", self.options["calibration"], f"--samples={self.samples}"]
        for more in ([], calibration):
            begin = processor_seconds()
            try:
                self.llmc("quantize", self.folder, "-o", output, "--scheme=" + scheme, *more, *extra)
                return processor_seconds() - begin
            except Failed as error:
                if more or "calibration text" not in str(error):
                    raise
        return None

    def bytes_a_weight(self, folder):
        groups = self.llmc("check", folder)["quantized"]
        weights = sum(group["weights"] for group in groups)
        return sum(group["bits"] / 8 * group["weights"] for group in groups) / weights

    def is_done(self, scheme):
        row = self.find(scheme, "none")
        has_inputs = row.get("has_inputs", scheme != "bf16") if row else True
        return row is not None and (not has_inputs or self.find(scheme, "none", inputs=True) is not None)

    def measure_scheme(self, scheme):
        with tempfile.TemporaryDirectory() as parent:
            output = os.path.join(parent, "model")
            seconds = self.quantize(scheme, output)
            row = self.find(scheme, "none")
            if row is None:
                row = {"scheme": scheme, "kv": "none", "seconds": seconds, "bytes": self.bytes_a_weight(output),
                       "digest": digest_of(output)}
                same = next((r for r in self.rows if r.get("digest") == row["digest"]
                             and r["asked_windows"] == self.windows), None)
                keys = ("perplexity", "base_perplexity", "windows", "change", "mean_kl", "agreement")
                row.update({key: same[key] for key in keys} if same else self.measure(output))
                self.add(row)
            row.update(has_inputs=quantizes_inputs(output), seconds=seconds)
            self.write()
            if row["has_inputs"] and not self.find(scheme, "none", inputs=True):
                self.add({"scheme": scheme, "kv": "none", "inputs": True, "bytes": row["bytes"],
                          **self.measure(output, "--quantize-activations")})

    def measure_kv(self, kv):
        row = {"scheme": "none", "kv": kv}
        report = self.llmc("fit", self.folder, "--gpu-memory=16GiB", *([] if kv.endswith(":tensor") else ["--kv=" + kv]))
        row["bytes_a_token"] = report["kv_bytes_per_token"]
        if not kv.endswith(":tensor"):
            row.update(self.measure(self.folder, "--kv=" + kv))
        else:
            with tempfile.TemporaryDirectory() as parent:
                output = os.path.join(parent, "model")
                self.quantize("int8", output, "--kv=fp8")
                row["bytes_a_token"] = self.llmc("fit", output, "--gpu-memory=16GiB", "--kv=" + kv)["kv_bytes_per_token"]
                row.update(self.measure(output, "--kv=" + kv))
        self.add(row)

    def measure_all(self):
        if not self.find("bf16", "none"):
            self.add({"scheme": "bf16", "kv": "none", "bytes": 2, **self.measure(self.folder, dtype="bf16")})
        schemes = split(self.options["schemes"]) if "schemes" in self.options else schemes_of(self.options["llmc"])
        for kind, names in (("scheme", schemes), ("kv", split(self.options["kv"]))):
            for name in names:
                if self.is_done(name) if kind == "scheme" else self.find("none", name):
                    continue
                try:
                    self.measure_scheme(name) if kind == "scheme" else self.measure_kv(name)
                except Failed as error:
                    print(f"{self.name} {name}: left out: {error}", file=sys.stderr)


def processor_seconds():
    """Of the programs that this one has run: unlike the time on the clock, hardly changed by what else runs."""
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime


def quantizes_inputs(folder):
    with open(os.path.join(folder, "config.json")) as file:
        groups = json.load(file)["quantization_config"].get("config_groups", {})
    return any(group.get("input_activations") for group in groups.values())


def digest_of(folder):
    """Of all weights: what is equal need not be measured twice."""
    digest = hashlib.sha256()
    for name in sorted(os.listdir(folder)):
        if name.endswith(".safetensors"):
            with open(os.path.join(folder, name), "rb") as file:
                digest.update(file.read())
    return digest.hexdigest()


def percent(value):
    return f"{100 * value:+.3f} %"


def bar_text(row, bars, name):
    if name not in bars:
        return ""
    return f"{bars[name]:g} %, {'met' if 100 * row['change'] <= bars[name] else 'missed'}"


def row_text(row, name, size, bar, *more):
    return "| " + " | ".join([name, size, f"{row['perplexity']:.4f}", percent(row["change"]), f"{row['mean_kl']:.6f}",
                              f"{100 * row['agreement']:.2f} %", *more, bar]) + " |"


def tables_of(report):
    """One table for each number of windows: schemes, then caches."""
    lines = []
    has_bars = "27m" in report["model"]
    for windows, samples in sorted({(row["windows"], row["samples"]) for row in report["rows"]}, reverse=True):
        rows = [row for row in report["rows"] if (row["windows"], row["samples"]) == (windows, samples)]
        names = [row["scheme"] for row in rows]
        rows.sort(key=lambda row: (row["kv"] != "none", row["scheme"] != "bf16", names.index(row["scheme"])))
        lines += [f"{report['model']}, {windows} windows; in f32 the perplexity is {rows[0]['base_perplexity']:.4f}:", ""]
        lines += ["| scheme or --kv | bytes a weight, or a token | perplexity | more | KL, nats | same token | processor "
                  "| bar |", "|---|---|---|---|---|---|---|---|"]
        for row in rows:
            is_kv = row["kv"] != "none"
            name = f"--kv={row['kv']}" if is_kv else row["scheme"].replace("|", "\\|")
            inputs = " with inputs" if "inputs" in row else ""
            size = f"{row['bytes_a_token']:,}" if is_kv else f"{row['bytes']:.3f}"
            bar = bar_text(row, KV_BARS, row["kv"]) if is_kv else bar_text(row, BARS, row["scheme"])
            seconds = row.get("seconds")
            lines.append(row_text(row, f"`{name}`{inputs}", size, bar if has_bars else "", f"{seconds:.1f} s" if seconds else ""))
        lines.append("")
    return lines


def main():
    models, options = parse_arguments()
    os.makedirs(options["out"], exist_ok=True)
    for folder in models:
        try:
            Model(folder, options).measure_all()
        except Failed as error:
            sys.exit(f"quantization.py: {folder}: {error}")
    lines = []
    for name in sorted(os.listdir(options["out"])):
        if name.endswith(".json"):
            with open(os.path.join(options["out"], name)) as file:
                lines += tables_of(json.load(file))
    text = "\n".join(lines).rstrip()
    if "document" not in options:
        print(text)
        return
    with open(options["document"]) as file:
        document = file.read()
    if BEGIN not in document or END not in document:
        sys.exit(f"quantization.py: {options['document']} has no lines {BEGIN} and {END}")
    head, tail = document.split(BEGIN, 1)[0], document.split(END, 1)[1]
    with open(options["document"], "w") as file:
        file.write(f"{head}{BEGIN}\n{text}\n{END}{tail}")


if __name__ == "__main__":
    main()
