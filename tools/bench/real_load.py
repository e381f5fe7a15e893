"""Times llmc with weights that are read: makes a checkpoint of a configuration's shapes with random weights in bf16, or
in symmetric GPTQ of 4 bits if it says so, then compiles it and loads the plans up to the first token, from the page
cache and from disk.

usage: real_load.py LLMC CONFIG_FOLDER WORK_FOLDER OUT.json [--drop-caches] [--cached]
(takes twice the checkpoint's size on disk, and leaves it there)
--drop-caches: empties the page cache of the whole machine, as root; else only of the files, as far as the system does.
--cached: loads from the page cache alone.
"""
import json
import os
import random
import resource
import shutil
import subprocess
import sys
import time
from concurrent.futures import ProcessPoolExecutor

SHARD_BYTES = 2 << 30
PIECE = 16 << 20
PROMPT = ",".join(str(i % 1000 + 1) for i in range(128))


ONE = b"\x80\x3f"  # in bf16
SCALE = b"\x00\x10"  # 2^-11 in f16
ZERO = b"\x77"  # two zero points of 8, stored less 1
BYTES = {"BF16": 2, "F16": 2, "I32": 4}


def linear(config, name, rows, columns):
    """The tensors of a linear layer, as `tensors` has them."""
    scheme = config.get("quantization_config")
    if scheme is None or name == "lm_head":
        yield name + ".weight", "BF16", (rows, columns), None
        return
    if (scheme["quant_method"], scheme["bits"], scheme["sym"], scheme["desc_act"]) != ("gptq", 4, True, False):
        raise SystemExit("real_load.py makes weights in bf16 and in symmetric GPTQ of 4 bits without desc_act")
    groups = columns // scheme["group_size"]
    yield name + ".qweight", "I32", (columns // 8, rows), None
    yield name + ".qzeros", "I32", (groups, rows // 8), ZERO
    yield name + ".scales", "F16", (groups, rows), SCALE


def tensors(config):
    """Names, types and shapes, as transformers writes Llama and Qwen3, and bytes to repeat: without, they are random."""
    h, f = config["hidden_size"], config["intermediate_size"]
    heads, kv = config["num_attention_heads"], config["num_key_value_heads"]
    dim = config.get("head_dim") or h // heads
    yield "model.embed_tokens.weight", "BF16", (config["vocab_size"], h), None
    for i in range(config["num_hidden_layers"]):
        p = f"model.layers.{i}."
        yield p + "input_layernorm.weight", "BF16", (h,), ONE
        yield p + "post_attention_layernorm.weight", "BF16", (h,), ONE
        for name, rows, columns in (("q", heads * dim, h), ("k", kv * dim, h), ("v", kv * dim, h), ("o", h, heads * dim)):
            yield from linear(config, f"{p}self_attn.{name}_proj", rows, columns)
        if config["model_type"] == "qwen3":
            yield p + "self_attn.q_norm.weight", "BF16", (dim,), ONE
            yield p + "self_attn.k_norm.weight", "BF16", (dim,), ONE
        for name, rows, columns in (("gate", f, h), ("up", f, h), ("down", h, f)):
            yield from linear(config, f"{p}mlp.{name}_proj", rows, columns)
    yield "model.norm.weight", "BF16", (h,), ONE
    if not config.get("tie_word_embeddings", False):
        yield from linear(config, "lm_head", config["vocab_size"], h)


def size_of(entry):
    _, dtype, shape, _ = entry
    size = BYTES[dtype]
    for dim in shape:
        size *= dim
    return size


def repeated(two_bytes, count):
    return int.from_bytes(two_bytes * (count // 2), "little")


def random_pieces(size, generator):
    """Numbers in bf16 of random sign and mantissa, of magnitudes in [1/128, 1/64)."""
    keep, exponent = repeated(b"\x7f\x80", PIECE), repeated(b"\x00\x3c", PIECE)
    for begin in range(0, size, PIECE):
        bits = int.from_bytes(generator.randbytes(PIECE), "little") & keep | exponent
        yield bits.to_bytes(PIECE, "little")[:size - begin]


def pieces(entry, generator):
    size, (_, dtype, _, pattern) = size_of(entry), entry
    if pattern is not None:
        yield pattern * (size // len(pattern))
    elif dtype == "BF16":
        yield from random_pieces(size, generator)
    else:
        for begin in range(0, size, PIECE):
            yield generator.randbytes(min(PIECE, size - begin))


def write_shard(path, entries, seed):
    header, at = {"__metadata__": {"format": "pt"}}, 0
    for entry in entries:
        name, dtype, shape, _ = entry
        header[name] = {"dtype": dtype, "shape": list(shape), "data_offsets": [at, at + size_of(entry)]}
        at += size_of(entry)
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    generator = random.Random(seed)
    with open(path, "wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        for entry in entries:
            for piece in pieces(entry, generator):
                file.write(piece)


def make_checkpoint(config_folder, folder):
    os.makedirs(folder, exist_ok=True)
    with open(os.path.join(config_folder, "config.json")) as file:
        config = json.load(file)
    shutil.copy(os.path.join(config_folder, "config.json"), folder)
    shards = [[]]
    for entry in tensors(config):
        if shards[-1] and sum(map(size_of, shards[-1])) + size_of(entry) > SHARD_BYTES:
            shards.append([])
        shards[-1].append(entry)
    names = [f"model-{i + 1:05}-of-{len(shards):05}.safetensors" for i in range(len(shards))]
    with ProcessPoolExecutor(min(len(shards), os.cpu_count() or 1)) as pool:
        list(pool.map(write_shard, [os.path.join(folder, name) for name in names], shards, range(len(shards))))
    total = sum(size_of(entry) for shard in shards for entry in shard)
    index = {"metadata": {"total_size": total},
             "weight_map": {name: names[i] for i, shard in enumerate(shards) for name, *_ in shard}}
    with open(os.path.join(folder, "model.safetensors.index.json"), "w") as file:
        json.dump(index, file)
    return total


def timed(command):
    """Seconds on the clock, what the command printed as JSON, and the bytes that it read from a disk."""
    blocks = resource.getrusage(resource.RUSAGE_CHILDREN).ru_inblock
    begin = time.perf_counter()
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True)
    seconds = time.perf_counter() - begin
    blocks = resource.getrusage(resource.RUSAGE_CHILDREN).ru_inblock - blocks
    if done.returncode != 0:
        raise RuntimeError(f"{' '.join(command)}: exit status {done.returncode}: {done.stdout[-500:]}")
    return {"seconds": seconds, "disk_bytes": blocks * 512, "report": json.loads(done.stdout)}


def drop_caches(files, of_all):
    """How the page cache was emptied of the files."""
    os.sync()
    try:
        if of_all:
            with open("/proc/sys/vm/drop_caches", "w") as file:
                file.write("3\n")
            return "drop_caches"
    except OSError:
        pass
    for path in files:
        descriptor = os.open(path, os.O_RDONLY)
        os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
        os.close(descriptor)
    return "posix_fadvise"


def fill_cache(files):
    for path in files:
        with open(path, "rb", buffering=0) as file:
            while file.read(PIECE):
                pass


def main():
    llmc, config_folder, work, out = sys.argv[1:5]
    device = os.environ.get("LLMC_LOAD_DEVICE", "cuda")
    folder = os.path.join(work, "checkpoint")
    inside, external = os.path.join(work, "inside.plan"), os.path.join(folder, "external.plan")
    report = {"model": os.path.basename(os.path.normpath(config_folder)), "date": time.strftime("%Y-%m-%d", time.gmtime()),
              "cores": os.cpu_count(), "compile": [], "load": []}

    def save():
        with open(out + ".new", "w") as file:
            json.dump(report, file, indent=2)
        os.replace(out + ".new", out)

    begin = time.perf_counter()
    report["checkpoint_bytes"] = make_checkpoint(config_folder, folder)
    report["make_checkpoint_s"] = time.perf_counter() - begin
    weights = [os.path.join(folder, name) for name in os.listdir(folder) if name.endswith(".safetensors")]
    command = [llmc, "compile", folder, "--time", "--json"] + (["--target=host"] if device == "host" else [])

    def compile_to(kind, plan):
        run = timed(command + ["-o", plan] + (["--weights=external"] if kind == "external" else []))
        report["compile"].append({"weights": kind, "seconds": run["seconds"], "plan_bytes": os.path.getsize(plan),
                                  "stages": run["report"].get("stages", [])})
        save()

    def load(kind, plan, how):
        timings = timed([llmc, "generate", plan, f"--device={device}", "--prompt-ids", PROMPT, "--max-new-tokens", "1",
                         "--ignore-eos", "--json"])
        cold = how != "page cache"
        report["load"].append({"weights": kind, "from": "disk" if cold else "page cache", "how": how,
                               "seconds_to_first_token": timings["seconds"], "disk_bytes": timings["disk_bytes"],
                               "load_s": timings["report"]["timings"]["load_s"],
                               "is_from_disk": timings["disk_bytes"] > 0.9 * report["checkpoint_bytes"]})
        save()

    plans = (("inside", inside, [inside]), ("external", external, weights))
    for kind, plan, files in plans:
        fill_cache(weights)
        compile_to(kind, plan)
        fill_cache(files)
        for _ in range(2):
            load(kind, plan, "page cache")
    for kind, plan, files in plans if "--cached" not in sys.argv[5:] else ():
        load(kind, plan, drop_caches(files, "--drop-caches" in sys.argv[5:]))


if __name__ == "__main__":
    main()
