"""Times encoders of transformers with PyTorch on random bf16 weights, eager and through torch.compile, and prints a table;
with --llmc, also what llmc takes for the same shapes.

A time is that on the GPU from before a run to after it, with nothing else in the stream: the median of the runs, which
come after warm-up and compilation. llmc's is the second line that `llmc run --repeat` prints, which is measured alike.

usage: encoders_torch.py CONFIG_FOLDER... [--batch 1,8,32] [--length 128,512] [--runs 50] [--llmc build/llmc]
                         [--mode eager,max-autotune,reduce-overhead] [--output OUT.jsonl] [--budget SECONDS]
"""
import argparse
import json
import os
import statistics
import subprocess
import time

MODES = {"eager": None, "max-autotune": "max-autotune-no-cudagraphs", "reduce-overhead": "reduce-overhead"}


def numbers(text):
    return [int(part) for part in text.split(",")]


def parse():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("configs", nargs="+", help="folders with config.json, of BERT or ViT")
    parser.add_argument("--batch", type=numbers, default=[1, 8, 32])
    parser.add_argument("--length", type=numbers, default=[128, 512], help="tokens; of no meaning for images")
    parser.add_argument("--runs", type=int, default=50)
    parser.add_argument("--mode", type=lambda text: text.split(","), default=list(MODES), help=", ".join(MODES))
    parser.add_argument("--llmc", help="the llmc command, to be timed too")
    parser.add_argument("--no-torch", action="store_true", help="llmc alone")
    parser.add_argument("--output", help="file to which each result is appended as a JSON line")
    parser.add_argument("--budget", type=float, default=600, help="seconds, after which cases are left out")
    options = parser.parse_args()
    unknown = set(options.mode) - set(MODES)
    if unknown:
        parser.error(f"--mode: {', '.join(sorted(unknown))}: is none of {', '.join(MODES)}")
    if options.no_torch and not options.llmc:
        parser.error("--no-torch needs --llmc")
    return options


class Encoders:
    def __init__(self, options):
        self.options = options
        self.end = time.monotonic() + options.budget
        self.rows = {}  # by shape: milliseconds by column

    def emit(self, shape, column, **what):
        model, batch, length = shape
        line = {"model": model, "batch": batch, **({"length": length} if length else {}), "engine": column, **what}
        if self.options.output:
            with open(self.options.output, "a") as file:
                file.write(json.dumps(line) + "\n")
        cell = f"{what['ms']:.3f}" if "ms" in what else "-"
        self.rows.setdefault(shape, {})[column] = cell
        print(f"{model} batch {batch}{f' length {length}' if length else ''} {column}: "
              f"{what.get('left_out') or cell + ' ms'}", flush=True)

    def case(self, function, shape, column):
        if time.monotonic() > self.end:
            return self.emit(shape, column, left_out="no time left")
        try:
            self.emit(shape, column, **function())
        except Exception as error:  # what one cannot do is said, and the others are timed
            self.emit(shape, column, left_out=f"{type(error).__name__}: {error}"[:300])

    def shapes(self, folder):
        with open(os.path.join(folder, "config.json")) as file:
            self.config = json.load(file)
        is_image = "image_size" in self.config
        name = os.path.basename(os.path.normpath(folder))
        return [(name, batch, length) for length in ([None] if is_image else self.options.length)
                for batch in self.options.batch]

    def inputs(self, batch, length):
        import torch
        if length is None:
            size = self.config["image_size"]
            return {"pixel_values": torch.randn(batch, self.config["num_channels"], size, size, device="cuda",
                                                dtype=torch.bfloat16)}
        ids = torch.randint(0, self.config["vocab_size"], (batch, length), device="cuda")
        return {"input_ids": ids, "attention_mask": torch.ones_like(ids), "token_type_ids": torch.zeros_like(ids)}

    def time_torch(self, folder, mode, batch, length):
        import torch
        from transformers import AutoConfig, AutoModel
        torch._dynamo.reset()
        torch.manual_seed(0)
        model = AutoModel.from_config(AutoConfig.from_pretrained(folder)).to("cuda", torch.bfloat16).eval()
        forward = model if MODES[mode] is None else torch.compile(model, mode=MODES[mode], dynamic=False)
        inputs = self.inputs(batch, length)

        def once():
            begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
            torch.cuda.synchronize()
            begin.record()
            forward(**inputs)
            end.record()
            end.synchronize()
            return begin.elapsed_time(end)

        with torch.inference_mode():
            begin = time.perf_counter()
            for _ in range(5):
                once()
            warm = time.perf_counter() - begin
            times = [once() for _ in range(self.options.runs)]
        return {"ms": statistics.median(times), "min_ms": min(times), "warm_s": warm, "torch": torch.__version__,
                "gpu": torch.cuda.get_device_name()}

    def time_llmc(self, folder, batch, length):
        command = [self.options.llmc, "run", folder, "--random-weights", "--random", "--dim", f"B={batch}", "--repeat",
                   str(self.options.runs + 5), "--device=cuda", "--dtype=bf16", "--json"]
        if length:
            command += ["--dim", f"L={length}"]
        done = subprocess.run(command, capture_output=True, text=True)
        if done.returncode != 0:
            raise RuntimeError(done.stderr.strip() or done.stdout.strip())
        seconds = json.loads(done.stdout)["time"]
        return {"ms": seconds["gpu_median_s"] * 1e3, "min_ms": seconds["gpu_min_s"] * 1e3,
                "with_copies_ms": seconds["median_s"] * 1e3}

    def table(self):
        columns = (["llmc"] if self.options.llmc else []) + ([] if self.options.no_torch else self.options.mode)
        print("\n| model | batch | length | " + " | ".join(f"{column}, ms" for column in columns) + " |")
        print("|---|" + "---|" * (len(columns) + 2))
        for (model, batch, length), cells in self.rows.items():
            print(f"| {model} | {batch} | {length or '-'} | " + " | ".join(cells.get(c, "-") for c in columns) + " |")

    def run(self):
        for folder in self.options.configs:
            for shape in self.shapes(folder):
                _, batch, length = shape
                if self.options.llmc:
                    self.case(lambda: self.time_llmc(folder, batch, length), shape, "llmc")
                for mode in [] if self.options.no_torch else self.options.mode:
                    self.case(lambda: self.time_torch(folder, mode, batch, length), shape, mode)
        self.table()


if __name__ == "__main__":
    Encoders(parse()).run()
