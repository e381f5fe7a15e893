#!/usr/bin/env python3
"""Writes golden/formats.json: tokenizers of every format but tokenizer.json, and what their own packages make of texts.

usage: make_format_golden.py

Needs the packages sentencepiece, tiktoken, mistral-common, tokenizers and transformers 4. The tokenizers are tiny and made here.
"""
import base64
import collections
import json
import os
import random
import tempfile

import regex
import sentencepiece
import tiktoken
import transformers
from mistral_common.tokens.tokenizers.tekken import Tekkenizer
from tiktoken_ext import openai_public

import make_golden

TEXTS = make_golden.TEXTS + make_golden.random_lines(25) + [
    "<sep>a <sep> b", "the<sep>then ab abab", "  the  theme ", "x\u2581y", "</s> <s> <unk> <0x41>", "ﬁ…\tab Åb",
    "hello\n\n  there  \n ", "I'LL we'Ve '\u017fo", "    ", "a\r\n/b//\n", "2024 12345 1²³", "\u200d\u0301 ǅabC ʰAʰ",
]
SENTENCES = ["the man said that there is another way to the other side of the river", "then she read the old letter",
             "an able hand abates the abbey bell", "In 1897 he had 12 horses; they weren't his.", "ÅÄ and ﬁ are here, é too",
             "where is the thread that they threw", "hello there, hello again — the end"] * 5


def sentencepiece_case(name, decode_seed, **options):
    with tempfile.TemporaryDirectory() as folder:
        if options.pop("rules", False):
            options["normalization_rule_tsv"] = make_golden.rules_file(folder)
        else:
            options["normalization_rule_name"] = "identity"
        model, _ = make_golden.train_sentencepiece(SENTENCES, hard_vocab_limit=False, **options)
    processor = sentencepiece.SentencePieceProcessor(model_proto=model)
    source = random.Random(decode_seed)
    lists = [[source.randrange(processor.vocab_size()) for _ in range(source.randrange(1, 12))] for _ in range(30)]
    return {"name": name, "files": {"tokenizer.model": base64.b64encode(model).decode()},
            "cases": [{"text": text, "ids": processor.encode(text)} for text in TEXTS],
            "decoded": [{"ids": ids, "text": processor.decode(ids)} for ids in lists]}


def sentencepiece_cases():
    symbols = {"user_defined_symbols": ["<sep>", "the", "ab"], "control_symbols": ["<c>"]}
    yield sentencepiece_case("bpe with bytes and symbols", 1, model_type="bpe", vocab_size=400, byte_fallback=True, **symbols)
    yield sentencepiece_case("bpe with rules", 2, model_type="bpe", vocab_size=110, rules=True, character_coverage=0.99)
    yield sentencepiece_case("bpe as it is", 3, model_type="bpe", vocab_size=110, remove_extra_whitespaces=False)
    yield sentencepiece_case("bpe with spaces behind", 4, model_type="bpe", vocab_size=110, treat_whitespace_as_suffix=True)
    yield sentencepiece_case("char", 9, model_type="char", vocab_size=60, user_defined_symbols=["the"])
    yield sentencepiece_case("unigram with bytes and symbols", 5, vocab_size=400, byte_fallback=True, **symbols)
    yield sentencepiece_case("unigram with rules", 6, vocab_size=110, rules=True, character_coverage=0.99)
    yield sentencepiece_case("unigram without a prefix", 7, vocab_size=110, add_dummy_prefix=False)
    yield sentencepiece_case("unigram as it is", 8, vocab_size=110, add_dummy_prefix=False, remove_extra_whitespaces=False)


def transformers_case(name, tokenizer_class, class_name, **options):
    """SentencePiece's model as a class of transformers 4 reads it, without tokenizer.json."""
    with tempfile.TemporaryDirectory() as folder:
        model, _ = make_golden.train_sentencepiece(SENTENCES, normalization_rule_name="identity", vocab_size=110,
                                                    hard_vocab_limit=False, **options)
        path = os.path.join(folder, "tokenizer.model")
        with open(path, "wb") as file:
            file.write(model)
        tokenizer = tokenizer_class(path)
    config = json.dumps({"tokenizer_class": class_name}).encode()
    texts = [text for text in TEXTS if "<" not in text and "[" not in text]
    return {"name": name, "files": {"tokenizer.model": base64.b64encode(model).decode(),
                                    "tokenizer_config.json": base64.b64encode(config).decode()},
            "cases": [{"text": text, "ids": tokenizer.encode(text, add_special_tokens=False),
                       "ids_with_special": tokenizer.encode(text)} for text in texts], "decoded": []}


def transformers_cases():
    yield transformers_case("XLM-R", transformers.XLMRobertaTokenizer, "XLMRobertaTokenizer")
    yield transformers_case("DeBERTa-v2", transformers.DebertaV2Tokenizer, "DebertaV2Tokenizer", pad_id=0, bos_id=1, eos_id=2,
                            unk_id=3, pad_piece="[PAD]", bos_piece="[CLS]", eos_piece="[SEP]", unk_piece="[UNK]")


def train_ranks(count):
    """Byte strings by rank: the 256 bytes, then `count` of the most frequent neighbours, one at a time."""
    words = [[bytes([b]) for b in word.encode()] for text in SENTENCES for word in regex.findall(r" ?\p{L}+|\S+|\s+", text)]
    ranks = [bytes([b]) for b in range(256)]
    while len(ranks) < 256 + count:
        pairs = collections.Counter(pair for word in words for pair in zip(word, word[1:]))
        (left, right), _ = min(pairs.items(), key=lambda item: (-item[1], item[0]))
        if left + right not in ranks:
            ranks.append(left + right)
        for word in words:
            for i in range(len(word) - 2, -1, -1):
                if i + 1 < len(word) and (word[i], word[i + 1]) == (left, right):
                    word[i:i + 2] = [left + right]
    return ranks


def published_pattern(name):
    """The pattern of an encoding of the package tiktoken, without its ranks."""
    openai_public.load_tiktoken_bpe = openai_public.data_gym_to_mergeable_bpe_ranks = lambda *args, **kwargs: {}
    return getattr(openai_public, name)()["pat_str"]


def ranks_text(ranks):
    return "".join("%s %d\n" % (base64.b64encode(token).decode(), rank) for rank, token in enumerate(ranks))


def byte_cases(decode):
    """Lists of ids below 300, with what they decode to."""
    source = random.Random(11)
    lists = [[source.randrange(300) for _ in range(source.randrange(1, 9))] for _ in range(40)]
    return [{"ids": ids, "text": decode(ids)} for ids in lists]


def tiktoken_cases():
    for name in ["gpt2", "r50k_base", "p50k_base", "cl100k_base", "o200k_base"]:
        pattern = published_pattern(name)
        ranks = train_ranks(80)
        encoding = tiktoken.Encoding(name, pat_str=pattern, special_tokens={},
                                     mergeable_ranks={token: rank for rank, token in enumerate(ranks)})
        yield {"name": name, "files": {name + ".tiktoken": base64.b64encode(ranks_text(ranks).encode()).decode()},
               "cases": [{"text": text, "ids": encoding.encode_ordinary(text)} for text in TEXTS],
               "decoded": byte_cases(encoding.decode)}
    pattern = r"\p{L}{1,3}+|[^\p{L}$^]+$|."
    encoding = tiktoken.Encoding("own", pat_str=pattern, special_tokens={},
                                 mergeable_ranks={token: rank for rank, token in enumerate(ranks)})
    files = {"tokenizer.model": ranks_text(ranks), "tokenizer_config.json": json.dumps({"pat_str": pattern})}
    yield {"name": "own pattern", "files": {file: base64.b64encode(text.encode()).decode() for file, text in files.items()},
           "cases": [{"text": text, "ids": encoding.encode_ordinary(text)} for text in TEXTS], "decoded": []}


def tekken_cases():
    pattern = (r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+|[^\r\n\p{L}\p{N}]?"
               r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+"
               r"|\s+(?!\S)|\s+")
    vocab = [{"rank": rank, "token_bytes": base64.b64encode(token).decode(), "token_str": None}
             for rank, token in enumerate(train_ranks(90))]
    document = {"config": {"pattern": pattern, "num_vocab_tokens": len(vocab), "default_vocab_size": 40 + 256 + 80,
                           "default_num_special_tokens": 40, "version": "v3"}, "vocab": vocab}
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "tekken.json")
        with open(path, "w", encoding="utf-8") as file:
            json.dump(document, file)
        package = Tekkenizer.from_file(path)
    yield {"name": "tekken", "files": {"tekken.json": base64.b64encode(json.dumps(document).encode()).decode()},
           "cases": [{"text": text, "ids": package.encode(text, bos=False, eos=False),
                      "ids_with_special": package.encode(text, bos=True, eos=False)} for text in TEXTS], "decoded": []}


def plain_case(name, files, document):
    tokenizer = make_golden.load(document)
    return {"name": name, "files": {file: base64.b64encode(text.encode()).decode() for file, text in files.items()},
            "cases": [{"text": text, "ids": tokenizer.encode(text, add_special_tokens=False).ids,
                       "ids_with_special": tokenizer.encode(text).ids} for text in TEXTS if "<" not in text],
            "decoded": []}


def plain_cases():
    """The same steps as transformers gives these files, written out as tokenizer.json has them."""
    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "the", "##re", "a", "##b", "b", "##a", "he", "##llo", "中", "'",
             "i", "##ll", "12", "##3", ",", "!", "l", "##l", "e", "é", "E"]
    document = make_golden.document(
        {"type": "WordPiece", "unk_token": "[UNK]", "continuing_subword_prefix": "##", "max_input_chars_per_word": 100,
         "vocab": {word: i for i, word in enumerate(words)}},
        normalizer={"type": "BertNormalizer", "clean_text": True, "handle_chinese_chars": True, "strip_accents": None,
                    "lowercase": True},
        pre_tokenizer={"type": "BertPreTokenizer"},
        post_processor={"type": "BertProcessing", "cls": ["[CLS]", 2], "sep": ["[SEP]", 3]})
    yield plain_case("vocab.txt", {"vocab.txt": "\n".join(words) + "\n"}, document)
    document["normalizer"].update(lowercase=False)
    yield plain_case("vocab.txt with case", {"vocab.txt": "\n".join(words) + "\n", "tokenizer_config.json":
                                             json.dumps({"do_lower_case": False, "tokenizer_class": "BertTokenizer"})}, document)
    alphabet = [make_golden.load(make_golden.document({"type": "BPE", "vocab": {}, "merges": []}, normalizer={
        "type": "ByteLevel"})).normalizer.normalize_str(chr(c)) for c in range(128)]
    chars = sorted(set("".join(alphabet)) | {chr(c) for c in list(range(0xA1, 0xAD)) + list(range(0xAE, 0x144))})
    merges = ["t h", "th e", "Ġ the", "a b", "l l", "' ll", "Ġ Ġ", "1 2", "Ċ Ċ", "I '"]
    tokens = ["<s>", "</s>"] + chars + [merge.replace(" ", "") for merge in merges]
    model = {"type": "BPE", "vocab": {token: i for i, token in enumerate(tokens)}, "merges": merges}
    files = {"vocab.json": json.dumps(model["vocab"]), "merges.txt": "#version: 0.2\n" + "\n".join(merges) + "\n"}
    byte_level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
    yield plain_case("vocab.json", files, make_golden.document(model, pre_tokenizer=byte_level))
    yield plain_case("RoBERTa", {**files, "tokenizer_config.json": json.dumps({"tokenizer_class": "RobertaTokenizerFast",
                                                                               "add_prefix_space": True})},
                     make_golden.document(model, pre_tokenizer={**byte_level, "add_prefix_space": True}, post_processor={
                         "type": "BertProcessing", "cls": ["<s>", 0], "sep": ["</s>", 1]}))
    with open(os.path.join(make_golden.HERE, "golden", "from_vocab.json"), encoding="utf-8") as file:
        qwen2 = json.load(file)["qwen2"]
    yield plain_case("Qwen2", {**files, "tokenizer_config.json": json.dumps({"tokenizer_class": "Qwen2Tokenizer"})},
                     make_golden.document(model, normalizer=qwen2["normalizer"], pre_tokenizer=qwen2["pre_tokenizer"]))


def main():
    cases = [*sentencepiece_cases(), *transformers_cases(), *tiktoken_cases(), *tekken_cases(), *plain_cases()]
    make_golden.write("formats.json", cases)


if __name__ == "__main__":
    main()
