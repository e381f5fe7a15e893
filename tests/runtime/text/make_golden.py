#!/usr/bin/env python3
"""Writes golden/*.json: what the Python package `tokenizers` (0.22) makes of the same tokenizers and texts.

usage: make_golden.py TOKENIZER_JSON [SHARED_DATA]

TOKENIZER_JSON is tests/data/tale-7m/tokenizer.json. With SHARED_DATA (see LLMC_SHARED_DATA in the README of the
repository) hashes.json is written too: for each text and real tokenizer one hash of the ids of all lines, and one of
what they decode to.
"""
import itertools
import json
import os
import random
import sys

from tokenizers import Tokenizer

HERE = os.path.dirname(os.path.abspath(__file__))
TEXTS = [
    "", " ", "a", "Hello, world!", "It's 12 o'clock; we'LL see 3½ and 1,234.50", "  two  spaces ", "line\n\n next\r\n\tend",
    "a--b--", "--", "Éé e\u0301 ﬁ İstanbul ẞß ÅÅ", "中文。字 한국", "👩‍👩‍👧 😀!", "▁a b▁", "foo_bar\u00a0x\u3000y",
    "x  ", "٣ⅣΣΑΣ", "a'b\"c", "?!...", "\u0301a", "don't",
]
SPECIAL_TEXTS = ["<|im_start|>user\nHi<|im_end|>", "a<|begin_of_text|><|pad|>", "<|im_start", "<|im_end|>  <|im_end|>"]


def split(pattern, behavior, invert=False):
    return {"type": "Split", "pattern": pattern, "behavior": behavior, "invert": invert}


def pre_tokenizers():
    behaviors = ["Removed", "Isolated", "Contiguous", "MergedWithPrevious", "MergedWithNext"]
    for behavior, invert in itertools.product(behaviors, [False, True]):
        yield split({"String": "-"}, behavior, invert)
        yield split({"Regex": r"\s+|\d"}, behavior, invert)
    yield split({"Regex": ""}, "Isolated")
    for behavior in behaviors:
        yield {"type": "Punctuation", "behavior": behavior}
    for individual in [False, True]:
        yield {"type": "Digits", "individual_digits": individual}
    for name in ["Whitespace", "WhitespaceSplit", "BertPreTokenizer"]:
        yield {"type": name}
    yield {"type": "CharDelimiterSplit", "delimiter": "o"}
    for scheme, cut in itertools.product(["always", "first", "never"], [False, True]):
        yield {"type": "Metaspace", "replacement": "▁", "prepend_scheme": scheme, "split": cut}
    for prefix, use_regex in itertools.product([False, True], [False, True]):
        yield {"type": "ByteLevel", "add_prefix_space": prefix, "trim_offsets": True, "use_regex": use_regex}
    yield {"type": "Sequence", "pretokenizers": [{"type": "Digits", "individual_digits": True},
                                                 split({"String": " "}, "MergedWithNext")]}


def normalizers():
    for name in ["NFC", "NFD", "NFKC", "NFKD", "Lowercase", "StripAccents", "ByteLevel"]:
        yield {"type": name}
    for left, right in itertools.product([False, True], [False, True]):
        yield {"type": "Strip", "strip_left": left, "strip_right": right}
    yield {"type": "Prepend", "prepend": "▁"}
    yield {"type": "Replace", "pattern": {"Regex": "l+"}, "content": "$0"}
    yield {"type": "Sequence", "normalizers": [{"type": "Prepend", "prepend": "▁"},
                                               {"type": "Replace", "pattern": {"String": " "}, "content": "▁"}]}


def added_tokens():
    flags = ["single_word", "lstrip", "rstrip", "normalized", "special"]
    for on in [[], ["single_word"], ["lstrip"], ["rstrip"], ["lstrip", "rstrip"], ["normalized"], ["special"]]:
        tokens = [{"content": content, **{flag: flag in on for flag in flags}} for content in ["tag", "tagtag", "<x>"]]
        for normalizer in [None, {"type": "Lowercase"}, {"type": "Prepend", "prepend": "▁"}]:
            yield tokens, normalizer


TAG_TEXTS = ["tag", "a tag b", "tagtagtag", " <x>  <x> ", "ataga", "TAG tag\ttag!", "<x>tag <x", "é tag é", "tag_tag▁tag"]


def decoders():
    mark = {"type": "Replace", "pattern": {"String": "▁"}, "content": " "}
    strip = {"type": "Strip", "content": " ", "start": 1, "stop": 0}
    chains = [[{"type": "ByteLevel"}], [{"type": "ByteFallback"}], [{"type": "Fuse"}], [mark], [strip],
              [{"type": "Strip", "content": "a", "start": 1, "stop": 1}],
              [mark, {"type": "ByteFallback"}, {"type": "Fuse"}, strip],
              [{"type": "Fuse"}, {"type": "Replace", "pattern": {"String": "aab"}, "content": "▁"}],
              [{"type": "Fuse"}, {"type": "Replace", "pattern": {"Regex": "a+b"}, "content": "."}],
              [{"type": "Fuse"}, {"type": "Strip", "content": "a", "start": 2, "stop": 3}],
              [{"type": "ByteLevel"}, {"type": "Strip", "content": " ", "start": 1, "stop": 0}]]
    for scheme in ["always", "first", "never"]:
        chains.append([{"type": "Metaspace", "replacement": "▁", "prepend_scheme": scheme, "split": True}])
    for chain in chains:
        for stage in chain:
            if stage["type"] == "ByteLevel":
                stage.update(add_prefix_space=True, trim_offsets=True, use_regex=True)
        yield chain[0] if len(chain) == 1 else {"type": "Sequence", "decoders": chain}
    yield None


def document(model, **steps):
    keys = ["normalizer", "pre_tokenizer", "post_processor", "decoder"]
    return {"version": "1.0", "truncation": None, "padding": None, "added_tokens": steps.get("added_tokens", []),
            **{key: steps.get(key) for key in keys}, "model": model}


def load(doc):
    return Tokenizer.from_str(json.dumps(doc))


def boundary_vocab(texts):
    """Every character that a step can make of `texts`; with the end-of-word suffix the ids show where words end."""
    chars = {"▁", "$"}
    for step in normalizers():
        tokenizer = load(document({"type": "BPE", "vocab": {}, "merges": []}, normalizer=step))
        for text in texts:
            chars.update(tokenizer.normalizer.normalize_str(text))
    for step in pre_tokenizers():
        tokenizer = load(document({"type": "BPE", "vocab": {}, "merges": []}, pre_tokenizer=step))
        for text in texts:
            for piece, _ in tokenizer.pre_tokenizer.pre_tokenize_str(text):
                chars.update(piece)
    chars.update("".join(texts))
    return {token: i for i, token in enumerate(c + end for c in sorted(chars) for end in ["", "|"])}


def encode_cases(doc, texts):
    tokenizer = load(doc)
    return [{"text": text, "ids": tokenizer.encode(text).ids} for text in texts]


def add_plain_ids(tokenizer, cases):
    """Adds the ids of the same texts when special tokens in them are text like any other."""
    tokenizer.encode_special_tokens = True
    for case in cases:
        case["ids_plain"] = tokenizer.encode(case["text"], add_special_tokens=False).ids
    return cases


def write(name, value):
    with open(os.path.join(HERE, "golden", name), "w", encoding="utf-8") as file:
        json.dump(value, file, ensure_ascii=True, separators=(",", ":"))
        file.write("\n")


def boundary_goldens():
    vocab = boundary_vocab(TEXTS + TAG_TEXTS)
    model = {"type": "BPE", "vocab": vocab, "merges": [], "end_of_word_suffix": "|"}
    steps = [{"pre_tokenizer": step} for step in pre_tokenizers()] + [{"normalizer": step} for step in normalizers()]
    specs = [{**spec, "cases": encode_cases(document(model, **spec), TEXTS)} for spec in steps]
    for tokens, normalizer in added_tokens():
        for i, token in enumerate(tokens):
            token["id"] = len(vocab) + i
        for pre_tokenizer in [None, {"type": "Metaspace", "replacement": "▁", "prepend_scheme": "first", "split": True}]:
            spec = {"normalizer": normalizer, "pre_tokenizer": pre_tokenizer, "added_tokens": tokens}
            doc = document(model, **spec)
            specs.append({**spec, "cases": add_plain_ids(load(doc), encode_cases(doc, TAG_TEXTS))})
    write("steps.json", {"vocab": vocab, "specs": specs})


def model_goldens():
    """Models with unknown tokens, byte fallback, subword prefixes and merges in both forms."""
    characters = ["<unk>", "a", "b", "c", "ab", "bc", "abc", "aa", "aaaa", "##b", "##c", "b##c", "##bc", "a##b", "abd"]
    every_byte = ["<0x%02X>" % b for b in range(256)]
    plain = {"merges": ["a b", "ab c", "b c", "a a", "aa aa"]}
    options = [plain, {"merges": [["a", "b"], ["b", "c"], ["a", "bc"]]}, {**plain, "ignore_merges": True},
               {**plain, "unk_token": "<unk>"}, {**plain, "unk_token": "<unk>", "fuse_unk": True},
               {**plain, "byte_fallback": True}, {**plain, "byte_fallback": True, "unk_token": "<unk>", "drop": True},
               {"merges": ["##b ##c", "a ##b"], "continuing_subword_prefix": "##", "unk_token": "<unk>"}]
    texts = ["abc", "abcabc", "aaaaaaa", "abd", "xaxxb", "é", "zéz", "abcbcbabcaab", "中a文", "xy中z"]
    specs = []
    for option in options:
        option = dict(option)
        tokens = characters + (every_byte if option.get("byte_fallback") else [])
        if option.pop("drop", False):
            tokens.remove("<0xE4>")
        doc = document({"type": "BPE", "vocab": {token: i for i, token in enumerate(tokens)}, **option})
        specs.append({"tokenizer": doc, "cases": encode_cases(doc, texts)})
    write("models.json", specs)


def decoder_goldens():
    tokens = ["▁a", "a", "b", "aab", " ", "▁", "Ġ", "Ġa", "ä", "½", "Ã", "©", "ðŁĺ", "Ģ", "<0x", "<0xZZ>", "é", "中", "<s>"]
    tokens += ["<0x%02X>" % b for b in [0x41, 0xE4, 0xB8, 0xAD, 0xF0, 0x9F, 0x98, 0x80, 0xFF]]
    vocab = {token: i for i, token in enumerate(tokens)}
    added = [{"id": vocab["<s>"], "content": "<s>", "single_word": False, "lstrip": False, "rstrip": False,
              "normalized": False, "special": True}]
    specs = []
    for decoder in decoders():
        tokenizer = load(document({"type": "BPE", "vocab": vocab, "merges": []}, decoder=decoder, added_tokens=added))
        source = random.Random(7)
        lists = [[source.randrange(len(tokens) + 1) for _ in range(source.randrange(1, 12))] for _ in range(60)]
        specs.append({"decoder": decoder, "cases": [
            {"ids": ids, "text": tokenizer.decode(ids, skip_special_tokens=True),
             "text_with_special": tokenizer.decode(ids, skip_special_tokens=False)}
            for ids in lists if "Strip" not in json.dumps(decoder) or strip_is_defined(decoder, ids, tokens)]})
    write("decoders.json", {"vocab": vocab, "added_tokens": added, "specs": specs})


def strip_is_defined(decoder, ids, tokens):
    """The package panics on a token that is shorter than what its Strip decoder may cut."""
    if decoder["type"] == "Sequence":
        return len([i for i in ids if i < len(tokens)]) > 7
    return all(len(tokens[i]) > decoder["start"] + decoder["stop"] for i in ids if i < len(tokens))


def shipped_goldens(path):
    tokenizer = Tokenizer.from_file(path)
    cases = []
    for text in TEXTS + SPECIAL_TEXTS:
        ids = tokenizer.encode(text, add_special_tokens=False).ids
        cases.append({"text": text, "ids": ids, "ids_with_special": tokenizer.encode(text).ids,
                      "decoded": tokenizer.decode(ids, skip_special_tokens=True)})
    write("shipped.json", add_plain_ids(tokenizer, cases))


FNV_START = 0xCBF29CE484222325


def fnv(data, value=FNV_START):
    for byte in data:
        value = (value ^ byte) * 0x100000001B3 % 2**64
    return value


def line_hashes(tokenizer, lines):
    """Hashes of the ids of all lines, and of what those decode to."""
    ids_hash, text_hash = FNV_START, FNV_START
    all_ids = [e.ids for e in tokenizer.encode_batch(lines, add_special_tokens=True)]
    for ids, text in zip(all_ids, tokenizer.decode_batch(all_ids, skip_special_tokens=True)):
        ids_hash = fnv(b"".join(number.to_bytes(4, "little") for number in ids + [0xFFFFFFFF]), ids_hash)
        text_hash = fnv(text.encode() + b"\n", text_hash)
    return {"ids": "%016x" % ids_hash, "text": "%016x" % text_hash}


def real_tokenizer(folder, name):
    """The tokenizer of a folder, and its file's text: built from vocab.json and merges.txt if that is what it holds."""
    file = os.path.join(folder, name, "tokenizer.json")
    if os.path.exists(file):
        with open(file, encoding="utf-8") as f:
            doc = json.load(f)
        vocab = doc["model"]["vocab"]
        merges = doc["model"]["merges"]
        if isinstance(merges[0], str):  # the package cannot read merges of tokens that hold spaces as strings
            doc["model"]["merges"] = [[m[:i], m[i + 1:]] for m in merges for i, c in enumerate(m)
                                      if c == " " and m[:i] in vocab and m[i + 1:] in vocab]
        return load(doc)
    with open(os.path.join(HERE, "golden", "from_vocab.json"), encoding="utf-8") as f:
        doc = json.load(f)[name]
    with open(os.path.join(folder, name, "vocab.json"), encoding="utf-8") as f:
        doc["model"]["vocab"] = json.load(f)
    with open(os.path.join(folder, name, "merges.txt"), encoding="utf-8") as f:
        doc["model"]["merges"] = [line for line in f.read().split("\n") if line and not line.startswith("#version")]
    return load(doc)


def shared_goldens(shipped, shared):
    folder = os.path.join(shared, "tokenizers")
    tokenizers = {name: real_tokenizer(folder, name)
                  for name in ["gpt2", "qwen2", "phi-2", "phi-3-mini", "roberta-base", "llama2"]}
    tokenizers["tale-7m"] = Tokenizer.from_file(shipped)
    hashes = {}
    for text in ["books-valid.txt", "wikitext-2-test.txt", "wikitext-2-valid.txt"]:
        with open(os.path.join(shared, "text", text), encoding="utf-8", newline="") as f:
            lines = f.read().split("\n")
        hashes[text] = {}
        for name, tokenizer in tokenizers.items():
            tokenizer.no_truncation()
            tokenizer.no_padding()
            hashes[text][name] = line_hashes(tokenizer, lines)
    write("hashes.json", hashes)


def main():
    shipped_goldens(sys.argv[1])
    boundary_goldens()
    model_goldens()
    decoder_goldens()
    if len(sys.argv) > 2:
        shared_goldens(sys.argv[1], sys.argv[2])


if __name__ == "__main__":
    main()
