#!/usr/bin/env python3
"""Times the Python package `tokenizers` on one core, beside tokenizer_bench.

usage: tokenizer_bench.py TOKENIZER_JSON TEXT
"""
import os
import sys
import time

os.environ["RAYON_NUM_THREADS"] = "1"
os.environ["TOKENIZERS_PARALLELISM"] = "false"
from tokenizers import Tokenizer  # noqa: E402 (it reads the environment)


def speed(size, run):
    """Megabytes of text a second of the processor, the best of several runs."""
    best = float("inf")
    for _ in range(7):
        start = time.process_time()
        run()
        best = min(best, time.process_time() - start)
    return size / 1e6 / best


def main():
    tokenizer = Tokenizer.from_file(sys.argv[1])
    with open(sys.argv[2], encoding="utf-8", newline="") as file:
        text = file.read()
    size = len(text.encode())
    ids = tokenizer.encode(text, add_special_tokens=False).ids
    encode = speed(size, lambda: tokenizer.encode(text, add_special_tokens=False))
    decode = speed(size, lambda: tokenizer.decode(ids))
    print(f"{len(ids)} tokens, encode {encode:.1f} MB/s, decode {decode:.1f} MB/s")


if __name__ == "__main__":
    main()
