"""Holds what llmc computes against ONNX Runtime: models of one operator, and whole files.

A check makes a model with the onnx package, runs it in ONNX Runtime on the CPU and with `llmc run --device=host`, and
compares the outputs. Checks are gathered, and run on two threads.
"""

import concurrent.futures
import json
import os
import struct
import subprocess
import traceback

import ml_dtypes
import numpy as np
import onnx
import onnxruntime
from onnx import TensorProto, helper, numpy_helper

MICROSOFT = "com.microsoft"

NAMES = {
    np.dtype(np.float32): "F32", np.dtype(np.float64): "F64", np.dtype(np.float16): "F16",
    np.dtype(ml_dtypes.bfloat16): "BF16", np.dtype(np.int64): "I64", np.dtype(np.int32): "I32",
    np.dtype(np.int8): "I8", np.dtype(np.uint8): "U8", np.dtype(np.bool_): "BOOL",
}
DTYPES = {name: dtype for dtype, name in NAMES.items()}
# Of the relative and absolute error: those of the ONNX project's node tests; for the short types, a few roundings.
TOLERANCES = {"F64": (1e-3, 1e-5), "F32": (1e-3, 1e-5), "F16": (5e-3, 5e-3), "BF16": (4e-2, 4e-2)}


def write_safetensors(path, tensors):
    header, body = {}, b""
    for name, array in tensors.items():
        data = np.ascontiguousarray(array).tobytes()
        header[name] = {"dtype": NAMES[array.dtype], "shape": list(array.shape),
                        "data_offsets": [len(body), len(body) + len(data)]}
        body += data
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with open(path, "wb") as file:
        file.write(struct.pack("<Q", len(text)) + text + body)


def read_safetensors(path):
    with open(path, "rb") as file:
        data = file.read()
    size = struct.unpack("<Q", data[:8])[0]
    tensors = {}
    for name, entry in json.loads(data[8:8 + size]).items():
        if name == "__metadata__":
            continue
        begin, end = (8 + size + offset for offset in entry["data_offsets"])
        tensors[name] = np.frombuffer(data[begin:end], DTYPES[entry["dtype"]]).reshape(entry["shape"])
    return tensors


def difference(got, want):
    """What is wrong with `got`, or None."""
    if got.dtype != want.dtype or got.shape != want.shape:
        return f"is {got.dtype}{list(got.shape)}, want {want.dtype}{list(want.shape)}"
    if NAMES[want.dtype] not in TOLERANCES:
        bad = got != want
    else:
        rtol, atol = TOLERANCES[NAMES[want.dtype]]
        got, want = got.astype(np.float64), want.astype(np.float64)
        with np.errstate(invalid="ignore"):
            near = np.abs(got - want) <= atol + rtol * np.abs(want)
        near &= np.isfinite(got) & np.isfinite(want)
        bad = ~(near | (got == want) | (np.isnan(got) & np.isnan(want)))
    if not bad.any():
        return None
    at = tuple(int(i) for i in np.argwhere(bad)[0])
    return f"{int(bad.sum())} of {bad.size} elements differ: at {list(at)} {got[at]}, want {want[at]}"


def model_of(op, inputs, outputs, attributes, constants, dynamic, domain, opset, declared=None):
    """A model of one node. `inputs` maps names to arrays, or to None for an absent one; `declared` gives outputs their
    dims, and inputs other ones."""
    declared = declared or {}
    graph_inputs, initializers, names = [], [], []
    for name, array in inputs.items():
        names.append("" if array is None else name)
        if array is None:
            continue
        if isinstance(array, onnx.TensorProto):  # of a type that numpy lacks
            tensor = onnx.TensorProto()
            tensor.CopyFrom(array)
            tensor.name = name
            initializers.append(tensor)
        elif name in constants:
            initializers.append(numpy_helper.from_array(array, name))
        else:
            shape = [f"{name}_{axis}" for axis in range(array.ndim)] if dynamic else list(array.shape)
            shape = declared.get(name, (None, shape))[1]
            graph_inputs.append(helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(array.dtype), shape))
    while names and not names[-1]:
        names.pop()
    node = helper.make_node(op, names, outputs, name="node", domain=domain, **attributes)
    graph_outputs = [helper.make_tensor_value_info(name, *declared[name]) if name in declared
                     else helper.make_empty_tensor_value_info(name) for name in outputs if name]
    graph = helper.make_graph([node], "one", graph_inputs, graph_outputs, initializers)
    imports = [helper.make_opsetid("", opset), helper.make_opsetid(MICROSOFT, 1)]
    return helper.make_model(graph, opset_imports=imports, ir_version=10)


def session_of(model):
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.log_severity_level = 4
    options.intra_op_num_threads = 1
    return onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"])


class Checks:
    def __init__(self, llmc, folder, data):
        self.llmc, self.folder, self.data = llmc, folder, data
        self.jobs = []

    def add(self, name, function):
        """`function(path)` may use files that begin with `path`; it returns what is wrong, or None."""
        self.jobs.append((name, function))

    # ---- one operator -----------------------------------------------------------------------------------------------
    def op(self, name, op, inputs, outputs=("y",), attributes=None, constants=(), domain=MICROSOFT, opset=21,
           want=None, valid=None, ways=("given", "dynamic"), ort=None, declared=None):
        """Compares all outputs with ONNX Runtime, with the shapes given and with every dim a symbol.

        want: what to expect instead, output name to array, where ONNX Runtime has no kernel.
        valid: output name to a function that keeps the part whose contents are defined.
        ort: inputs that ONNX Runtime is given instead, to the same meaning.
        declared: the type and dims that llmc's model gives inputs and outputs, by name.
        """
        attributes, valid, outputs = attributes or {}, valid or {}, list(outputs)

        def make(inputs, dynamic, declared=None):
            return model_of(op, inputs, outputs, attributes, constants, dynamic, domain, opset, declared)

        def run(path, dynamic):
            expected = want
            fed = {k: v for k, v in inputs.items() if isinstance(v, np.ndarray) and k not in constants}
            if expected is None:
                reference = ort or inputs
                feeds = {k: v for k, v in reference.items() if isinstance(v, np.ndarray) and k not in constants}
                session = session_of(make(reference, False).SerializeToString())
                kept = [output for output in outputs if output]
                expected = dict(zip(kept, session.run(kept, feeds)))
            onnx.save(make(inputs, dynamic, declared), path + ".onnx")
            return self.compare(path, path + ".onnx", fed, expected, valid)

        for way in ways:
            self.add(f"{name} ({way})", lambda path, way=way: run(path, way == "dynamic"))

    def refused(self, name, op, inputs, text, outputs=("y",), attributes=None, constants=(), domain=MICROSOFT,
                opset=21, code=3):
        """llmc refuses the model with exit code `code` and an error that has `text`."""
        def run(path):
            onnx.save(model_of(op, inputs, list(outputs), attributes or {}, constants, False, domain, opset),
                      path + ".onnx")
            result = subprocess.run([self.llmc, "check", path + ".onnx"], capture_output=True, text=True, timeout=60)
            said = result.stdout + result.stderr
            if result.returncode != code or text not in said:
                return f"exit code {result.returncode}, want {code} with {text!r}: {said}"
            return None

        self.add(name + " (refused)", run)

    # ---- running ----------------------------------------------------------------------------------------------------
    def compare(self, path, model, feeds, expected, valid=None):
        """Runs llmc on a model file; returns what differs."""
        write_safetensors(path + ".in", feeds)
        command = [self.llmc, "run", model, "--device=host", "--inputs", path + ".in", "--outputs", path + ".out"]
        result = subprocess.run(command, capture_output=True, text=True, timeout=300)
        if result.returncode != 0:
            return f"exit code {result.returncode}: {result.stderr.strip()}"
        got = read_safetensors(path + ".out")
        for name, array in expected.items():
            part = (valid or {}).get(name, lambda x: x)
            if name not in got:
                return f"no output {name}"
            wrong = difference(part(got[name]), part(np.asarray(array)))
            if wrong:
                return f"{name}: {wrong}"
        return None

    def expect(self, model, ops):
        """Whether the recognized model has as many ops of each kind as `ops` says."""
        result = subprocess.run([self.llmc, "opt", model, "--stop-after=raise", "--expect=" + ops, "-o", "/dev/null"],
                                capture_output=True, text=True, timeout=120)
        return None if result.returncode == 0 else result.stderr.strip() or f"exit code {result.returncode}"

    def recognizes(self, model, what, count):
        """Whether `llmc check` finds `count` of what a model has in several ops."""
        result = subprocess.run([self.llmc, "check", model, "--json"], capture_output=True, text=True, timeout=120)
        if result.returncode != 0:
            return result.stderr.strip() or f"exit code {result.returncode}"
        found = json.loads(result.stdout)["recognized"].get(what, {"found": 0})["found"]
        return None if found == count else f"{found} times a {what}, not {count}"

    def generates(self, model, prompt, tokens):
        """Whether llmc generates the tokens from the prompt, greedily."""
        command = [self.llmc, "generate", model, "--device=host", "--prompt-ids", ",".join(map(str, prompt)),
                   "--max-new-tokens", str(len(tokens)), "--temperature", "0", "--ignore-eos", "--json"]
        result = subprocess.run(command, capture_output=True, text=True, timeout=120)
        got = json.loads(result.stdout).get("output_ids") if result.returncode == 0 else result.stderr
        return None if got == tokens else f"{got}, want {tokens}"

    def run(self, only=""):
        """Runs all checks, prints those that fail, and returns how many do."""
        jobs = [job for job in self.jobs if only in job[0]]

        def attempt(numbered):
            index, (name, function) = numbered
            path = os.path.join(self.folder, f"{os.getpid()}-{index}")
            try:
                wrong = function(path)
            except Exception:  # a check that cannot run is one that fails
                wrong = traceback.format_exc(limit=3)
            for suffix in (".onnx", ".in", ".out"):
                if os.path.exists(path + suffix):
                    os.remove(path + suffix)
            return name, wrong

        failed = 0
        with concurrent.futures.ThreadPoolExecutor(2) as pool:
            for name, wrong in pool.map(attempt, enumerate(jobs)):
                if wrong:
                    failed += 1
                    print(f"{name}: {wrong}", flush=True)
        print(f"[  PASSED  ] {len(jobs) - failed} tests.")
        if failed:
            print(f"[  FAILED  ] {failed} tests.")
        return failed
