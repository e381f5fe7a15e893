"""Times transformers with PyTorch on a configuration's shapes with random bf16 weights: decode and prefill, eager and
through torch.compile, one JSON object a line. Each line says what it is: eager or compiled, sampling in the step or not,
cold (right after a rest) or hot (after two seconds of the same).

usage: peers_torch.py CONFIG_FOLDER OUT.jsonl [--budget SECONDS]
"""
import argparse
import json
import os
import statistics
import time

import torch
import transformers
from transformers import AutoConfig, AutoModelForCausalLM, DynamicCache, StaticCache

CONTEXT = 128


class Peers:
    def __init__(self, options):
        self.end = time.monotonic() + options.budget
        self.out = options.out
        self.base = {"model": os.path.basename(os.path.normpath(options.config)), "engine": "transformers",
                     "torch": torch.__version__, "transformers": transformers.__version__,
                     "gpu": torch.cuda.get_device_name(), "date": time.strftime("%Y-%m-%d", time.gmtime())}
        self.config = AutoConfig.from_pretrained(options.config)
        torch.set_default_dtype(torch.bfloat16)
        with torch.device("cuda"):
            self.model = AutoModelForCausalLM.from_config(self.config).eval()

    def emit(self, **what):
        line = json.dumps({**self.base, **what})
        print(line, flush=True)
        with open(self.out, "a") as file:
            file.write(line + "\n")

    def case(self, function, needs, **what):
        if self.end - time.monotonic() < needs:
            return self.emit(**what, left_out="no time left")
        try:
            for row in function(**what):
                self.emit(**what, **row)
        except Exception as error:  # what one library cannot do is said, and the others are timed
            self.emit(**what, left_out=f"{type(error).__name__}: {error}"[:300])

    def ids(self, batch, length):
        return torch.randint(0, self.config.vocab_size, (batch, length), device="cuda")

    def decode(self, mode, batch, **_):
        compiled = mode == "torch.compile"
        steps = 100 if compiled else 24
        cache = StaticCache(config=self.config, max_cache_len=512) if compiled else DynamicCache(config=self.config)
        self.model(self.ids(batch, CONTEXT), past_key_values=cache, use_cache=True, logits_to_keep=1)
        forward = torch.compile(self.model.forward, mode="reduce-overhead", fullgraph=True) if compiled else self.model
        token, position = self.ids(batch, 1), CONTEXT
        begin = time.perf_counter()

        def run(count):
            nonlocal token, position
            for _ in range(count):
                at = torch.full((batch, 1), position, device="cuda")
                logits = forward(input_ids=token, past_key_values=cache, position_ids=at, use_cache=True).logits
                token = logits[:, -1].argmax(-1, keepdim=True)
                position += 1
            torch.cuda.synchronize()

        run(8)
        warm = time.perf_counter() - begin
        begin = time.perf_counter()
        run(steps)
        yield {"ms": (time.perf_counter() - begin) / steps * 1e3, "sampling": "greedy", "heat": "warm",
               **({"compile_s": warm, "cache": "static"} if compiled else {"cache": "dynamic"})}

    def prefill(self, mode, prompt, **_):
        compiled = mode == "torch.compile"
        forward = torch.compile(self.model.forward, dynamic=False) if compiled else self.model
        ids = self.ids(1, prompt)

        def once():
            begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
            begin.record()
            forward(input_ids=ids, use_cache=False, logits_to_keep=1)
            end.record()
            end.synchronize()
            return begin.elapsed_time(end)

        begin = time.perf_counter()
        for _ in range(2):
            once()
        warm = {"compile_s": time.perf_counter() - begin} if compiled else {}
        time.sleep(0.5)
        once()
        yield {"ms": statistics.median(once() for _ in range(5)), "sampling": "none", "heat": "cold", **warm}
        begin = time.perf_counter()
        while time.perf_counter() - begin < 2:
            once()
        yield {"ms": statistics.median(once() for _ in range(10)), "sampling": "none", "heat": "hot", **warm}

    @torch.inference_mode()
    def run(self):
        self.case(self.decode, 40, what="decode", mode="torch.compile", batch=1, context=CONTEXT)
        self.case(self.prefill, 8, what="prefill", mode="eager", prompt=2048)
        self.case(self.prefill, 30, what="prefill", mode="torch.compile", prompt=2048)
        self.case(self.decode, 6, what="decode", mode="eager", batch=1, context=CONTEXT)
        self.case(self.prefill, 8, what="prefill", mode="eager", prompt=8192)
        self.case(self.prefill, 30, what="prefill", mode="torch.compile", prompt=8192)
        self.case(self.decode, 40, what="decode", mode="torch.compile", batch=32, context=CONTEXT)


parser = argparse.ArgumentParser()
parser.add_argument("config")
parser.add_argument("out")
parser.add_argument("--budget", type=float, default=600)
Peers(parser.parse_args()).run()
