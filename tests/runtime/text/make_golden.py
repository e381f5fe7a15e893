#!/usr/bin/env python3
"""Writes golden/*.json: what the Python package `tokenizers` (0.22 or 0.23) makes of the same tokenizers and texts.

usage: make_golden.py TOKENIZER_JSON [SHARED_DATA]

TOKENIZER_JSON is tests/data/tale-7m/tokenizer.json. With SHARED_DATA (see LLMC_SHARED_DATA in the README of the
repository) hashes.json is written too: for each text and real tokenizer one hash of the ids of every third line,
and one of what they decode to.
"""
import base64
import io
import itertools
import json
import os
import random
import sys
import tempfile

import sentencepiece
from sentencepiece import sentencepiece_model_pb2
from tokenizers import Tokenizer

HERE = os.path.dirname(os.path.abspath(__file__))
TEXTS = [
    "", " ", "a", "Hello, world!", "It's 12 o'clock; we'LL see 3½ and 1,234.50", "  two  spaces ", "line\n\n next\r\n\tend",
    "a--b--", "--", "Éé e\u0301 ﬁ İstanbul ẞß ÅÅ", "中文。字 한국", "👩‍👩‍👧 😀!", "▁a b▁", "foo_bar\u00a0x\u3000y",
    "x  ", "٣ⅣΣΑΣ", "a'b\"c", "?!...", "\u0301a", "don't", "a\u200bb\x07c\tz\u2028\ufeffq\u0903\u20dd",
    " 日本カタカナー々ハロー abПри12, ab", "ﬁﬁx ｱｱ\u3099 a\u0308\u0308 …",
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
    for name in ["Whitespace", "WhitespaceSplit", "BertPreTokenizer", "UnicodeScripts"]:
        yield {"type": name}
    yield {"type": "FixedLength", "length": 3}
    yield {"type": "CharDelimiterSplit", "delimiter": "o"}
    for scheme, cut in itertools.product(["always", "first", "never"], [False, True]):
        yield {"type": "Metaspace", "replacement": "▁", "prepend_scheme": scheme, "split": cut}
    for prefix, use_regex in itertools.product([False, True], [False, True]):
        yield {"type": "ByteLevel", "add_prefix_space": prefix, "trim_offsets": True, "use_regex": use_regex}
    yield {"type": "Sequence", "pretokenizers": [{"type": "Digits", "individual_digits": True},
                                                 split({"String": " "}, "MergedWithNext")]}


RULES = {"ﬁ": "fi", "…": "...", "Å": "A\u030a", "a\u0308": "ä", "ｱ": "ア", "\t": " ", "\u200b": "", "ab": "X", "世": "h i"}


def train_sentencepiece(sentences, **options):
    """The bytes of a model that SentencePiece trains on `sentences`, and that parsed."""
    model = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(sentence_iterator=iter(sentences), model_writer=model, minloglevel=2,
                                             num_threads=1, **options)
    proto = sentencepiece_model_pb2.ModelProto()
    proto.ParseFromString(model.getvalue())
    return model.getvalue(), proto


def rules_file(folder):
    path = os.path.join(folder, "rules.tsv")
    with open(path, "w", encoding="utf-8") as file:
        for source, target in RULES.items():
            file.write(" ".join("%X" % ord(c) for c in source) + "\t" + " ".join("%X" % ord(c) for c in target) + "\n")
    return path


def charsmap():
    """A small charsmap, as SentencePiece compiles it."""
    with tempfile.TemporaryDirectory() as folder:
        _, proto = train_sentencepiece(["abc abd"] * 9, vocab_size=8, model_type="bpe",
                                       normalization_rule_tsv=rules_file(folder))
    return base64.b64encode(proto.normalizer_spec.precompiled_charsmap).decode()


def normalizers():
    for name in ["NFC", "NFD", "NFKC", "NFKD", "Lowercase", "StripAccents", "ByteLevel", "Nmt"]:
        yield {"type": name}
    for clean, chinese, accents, lower in itertools.product([False, True], [False, True], [None, False, True],
                                                            [False, True]):
        if [clean, chinese, accents, lower].count(True) in (1, 3):
            yield {"type": "BertNormalizer", "clean_text": clean, "handle_chinese_chars": chinese,
                   "strip_accents": accents, "lowercase": lower}
    yield {"type": "Precompiled", "precompiled_charsmap": CHARSMAP}
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
    chains += [[{"type": "WordPiece", "prefix": prefix, "cleanup": cleanup}]
               for prefix, cleanup in [("##", True), ("a", False), ("", True)]]
    chains += [[{"type": "CTC", "pad_token": "b", "word_delimiter_token": "|", "cleanup": cleanup}]
               for cleanup in [True, False]]
    chains += [[{"type": "BPEDecoder", "suffix": "b"}], [mark, {"type": "BPEDecoder", "suffix": "a"}]]
    for scheme in ["always", "first", "never"]:
        chains.append([{"type": "Metaspace", "replacement": "▁", "prepend_scheme": scheme, "split": True}])
    for chain in chains:
        for stage in chain:
            if stage["type"] == "ByteLevel":
                stage.update(add_prefix_space=True, trim_offsets=True, use_regex=True)
        yield chain[0] if len(chain) == 1 else {"type": "Sequence", "decoders": chain}
    yield None


CHARSMAP = charsmap()


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


def lookup_models():
    """Models that are no BPE. Scores that tie show which of two cuts is taken."""
    scores = {"<unk>": 0, "a": -1.5, "b": -1, "c": -3, "ab": -2.5, "bc": -2.25, "abc": -3.5, "aa": -3, "z": -1, "éz": -2}
    every_byte = {"<0x%02X>" % b: -9 for b in range(256)}
    some_bytes = {token: score for token, score in every_byte.items() if token != "<0xE4>"}
    for extra, fallback in [({}, False), (every_byte, False), (every_byte, True), (some_bytes, True)]:
        vocab = [[token, score] for token, score in {**scores, **extra}.items()]
        yield document({"type": "Unigram", "unk_id": 0, "vocab": vocab, "byte_fallback": fallback})
    words = ["[UNK]", "a", "b", "c", "ab", "##b", "##c", "##bc", "##ab", "##abc", "abd", "中", "##é", "é", "x y", "##"]
    vocab = {token: i for i, token in enumerate(words)}
    for longest, prefix in [(100, "##"), (4, "##"), (100, "")]:
        yield document({"type": "WordPiece", "unk_token": "[UNK]", "continuing_subword_prefix": prefix,
                        "max_input_chars_per_word": longest, "vocab": vocab})
    yield document({"type": "WordLevel", "unk_token": "[UNK]", "vocab": vocab},
                   pre_tokenizer={"type": "WhitespaceSplit"})


def model_goldens():
    """Models with unknown tokens, byte fallback, subword prefixes and merges in both forms."""
    characters = ["<unk>", "a", "b", "c", "ab", "bc", "abc", "aa", "aaaa", "##b", "##c", "b##c", "##bc", "a##b", "abd"]
    every_byte = ["<0x%02X>" % b for b in range(256)]
    plain = {"merges": ["a b", "ab c", "b c", "a a", "aa aa"]}
    options = [plain, {"merges": [["a", "b"], ["b", "c"], ["a", "bc"]]}, {**plain, "ignore_merges": True},
               {**plain, "unk_token": "<unk>"}, {**plain, "unk_token": "<unk>", "fuse_unk": True},
               {**plain, "byte_fallback": True}, {**plain, "byte_fallback": True, "unk_token": "<unk>", "drop": True},
               {"merges": ["##b ##c", "a ##b"], "continuing_subword_prefix": "##", "unk_token": "<unk>"}]
    lookup_texts = ["ab abc zab", "é", "ababcabcab", "a b", "##", "中éb", "abx", "zzéz<unk>z", "x y", "", "😀é😀"]
    texts = ["abc", "abcabc", "aaaaaaa", "abd", "xaxxb", "é", "zéz", "abcbcbabcaab", "中a文", "xy中z"]
    specs = []
    for option in options:
        option = dict(option)
        tokens = characters + (every_byte if option.get("byte_fallback") else [])
        if option.pop("drop", False):
            tokens.remove("<0xE4>")
        doc = document({"type": "BPE", "vocab": {token: i for i, token in enumerate(tokens)}, **option})
        specs.append({"tokenizer": doc, "cases": encode_cases(doc, texts)})
    write("models.json", specs + [{"tokenizer": doc, "cases": encode_cases(doc, texts + lookup_texts)}
                                  for doc in lookup_models()])


def decoder_goldens():
    tokens = ["##a", "##", ".", "b n't", " do not", "|", "ba|", "▁a", "a", "b", "aab", " ", "▁", "Ġ", "Ġa", "ä", "½", "Ã", "©", "ðŁĺ", "Ģ", "<0x", "<0xZZ>", "é", "中", "<s>"]
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


# Blocks of characters, from the first to the last: of scripts, marks, joiners, and beside the surrogates.
BLOCKS = [(0x00, 0x24F), (0x20, 0x7E), (0x20, 0x20), (0x41, 0x7A), (0x300, 0x36F), (0x370, 0x52F), (0x620, 0x64A),
          (0x904, 0x94D), (0xE01, 0xE3A), (0x1100, 0x11FF), (0x2000, 0x206F), (0x2190, 0x23FF), (0x3041, 0x30FF),
          (0x4E00, 0x9FA5), (0xAC00, 0xD7A3), (0xD7FB, 0xD7FF), (0xE000, 0xE003), (0xFB00, 0xFDFF), (0xFE00, 0xFE0F),
          (0xFF01, 0xFFEE), (0x1F300, 0x1F64F), (0x200D, 0x200D), (0x10FFFE, 0x10FFFF), (0x0A, 0x0D)]


def random_lines(count):
    """Strings of characters of the blocks, drawn by a generator that the test has too."""
    state, lines = 1, []

    def draw(below):
        nonlocal state
        state = (state * 6364136223846793005 + 1442695040888963407) % 2**64
        return (state >> 33) % below

    for _ in range(count):
        line = ""
        for _ in range(draw(6)):
            first, last = BLOCKS[draw(len(BLOCKS))]
            line += "".join(chr(first + draw(last - first + 1)) for _ in range(1 + draw(4)))
        lines.append(line)
    return lines


def real_tokenizer(folder, name):
    """The tokenizer of a folder, and its file's text: built from vocab.json and merges.txt if that is what it holds."""
    file = os.path.join(folder, name, "tokenizer.json")
    if os.path.exists(file):
        with open(file, encoding="utf-8") as f:
            doc = json.load(f)
        vocab = doc["model"]["vocab"]
        merges = doc["model"].get("merges")
        if merges and isinstance(merges[0], str):  # the package cannot read merges of tokens that hold spaces as strings
            doc["model"]["merges"] = [[m[:i], m[i + 1:]] for m in merges for i, c in enumerate(m)
                                      if c == " " and m[:i] in vocab and m[i + 1:] in vocab]
        return load(doc)
    with open(os.path.join(HERE, "golden", "from_vocab.json"), encoding="utf-8") as f:
        doc = json.load(f)[name]
    if doc["model"]["type"] == "WordPiece":
        with open(os.path.join(folder, name, "vocab.txt"), encoding="utf-8") as f:
            doc["model"]["vocab"] = {line: i for i, line in enumerate(f.read().split("\n")) if line}
        return load(doc)
    with open(os.path.join(folder, name, "vocab.json"), encoding="utf-8") as f:
        doc["model"]["vocab"] = json.load(f)
    with open(os.path.join(folder, name, "merges.txt"), encoding="utf-8") as f:
        doc["model"]["merges"] = [line for line in f.read().split("\n") if line and not line.startswith("#version")]
    return load(doc)


def shared_goldens(shipped, shared):
    folder = os.path.join(shared, "tokenizers")
    tokenizers = {name: real_tokenizer(folder, name)
                  for name in ["bert", "gpt2", "qwen2", "phi-2", "phi-3-mini", "roberta-base", "llama2", "t5-small"]}
    tokenizers["tale-7m"] = Tokenizer.from_file(shipped)
    hashes = {}
    for text in ["books-valid.txt", "wikitext-2-test.txt", "wikitext-2-valid.txt", "random"]:
        if text == "random":
            lines = random_lines(10000)
        else:
            with open(os.path.join(shared, "text", text), encoding="utf-8", newline="") as f:
                lines = f.read().split("\n")[::3]
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
