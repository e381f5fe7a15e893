#!/usr/bin/env python3
"""Times the Python package `tokenizers` on one core, beside tokenizer_bench.

usage: tokenizer_bench.py FOLDER TEXT

The folder has tokenizer.json, or vocab.txt (BERT), or vocab.json and merges.txt (GPT-2).
"""
import os
import sys
import time

os.environ["RAYON_NUM_THREADS"] = "1"
os.environ["TOKENIZERS_PARALLELISM"] = "false"
from tokenizers import BertWordPieceTokenizer, ByteLevelBPETokenizer, Tokenizer  # noqa: E402 (they read the environment)


def load(folder):
    def path(name):
        return os.path.join(folder, name)
    if os.path.exists(path("tokenizer.json")):
        tokenizer = Tokenizer.from_file(path("tokenizer.json"))
    elif os.path.exists(path("vocab.txt")):
        tokenizer = BertWordPieceTokenizer(path("vocab.txt"))._tokenizer
    else:
        tokenizer = ByteLevelBPETokenizer(path("vocab.json"), path("merges.txt"))._tokenizer
    tokenizer.encode_special_tokens = True  # special tokens that the text spells out are text
    return tokenizer


def speed(size, run):
    """Megabytes of text a second of the processor, the best of several runs."""
    best = float("inf")
    for _ in range(7):
        start = time.process_time()
        run()
        best = min(best, time.process_time() - start)
    return size / 1e6 / best


def main():
    tokenizer = load(sys.argv[1])
    with open(sys.argv[2], encoding="utf-8", newline="") as file:
        text = file.read()
    size = len(text.encode())
    ids = tokenizer.encode(text, add_special_tokens=False).ids
    encode = speed(size, lambda: tokenizer.encode(text, add_special_tokens=False))
    decode = speed(size, lambda: tokenizer.decode(ids))
    print(f"{len(ids)} tokens, encode {encode:.1f} MB/s, decode {decode:.1f} MB/s")


if __name__ == "__main__":
    main()
