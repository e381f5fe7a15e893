#!/usr/bin/env python3
"""Large ONNX files, and how long llmc takes for them.

  scale.py layers N OUT.onnx         decoder layers in primitive ops, N nodes in all, weights of zeros in a sparse file
  scale.py elementwise N OUT.onnx    one chain of N elementwise nodes
  scale.py table LLMC FOLDER         writes both kinds in growing sizes to FOLDER, compiles them with the llmc command
                                     for the host, and prints a table of seconds, for docs/performance.md

Needs nothing but Python: it writes the few messages of onnx.proto that it uses itself.
"""
import json
import os
import struct
import subprocess
import sys

FLOAT, INT64 = 1, 7


def varint(value):
    out = bytearray()
    value &= (1 << 64) - 1
    while value >= 128:
        out.append(value & 127 | 128)
        value >>= 7
    out.append(value)
    return bytes(out)


def field(number, value):
    """A field of a message: an integer, text, or the bytes of a message."""
    if isinstance(value, int):
        return varint(number << 3) + varint(value)
    data = value.encode() if isinstance(value, str) else value
    return varint(number << 3 | 2) + varint(len(data)) + data


def attribute(name, value):
    if isinstance(value, float):
        return field(5, field(1, name) + varint(2 << 3 | 5) + struct.pack("<f", value) + field(20, 1))
    if isinstance(value, int):
        return field(5, field(1, name) + field(3, value) + field(20, 2))
    return field(5, field(1, name) + b"".join(field(8, v) for v in value) + field(20, 7))


class Graph:
    def __init__(self):
        self.nodes, self.count = [], 0
        self.initializers, self.data_bytes = [], 0

    def node(self, op, inputs, **attributes):
        self.count += 1
        out = f"v{self.count}"
        body = b"".join(field(1, name) for name in inputs) + field(2, out) + field(4, op)
        body += b"".join(attribute(name, value) for name, value in attributes.items())
        self.nodes.append(field(1, body))
        return out

    def weight(self, name, shape, data):
        """Zeros of the file `data`, each weight at its own place."""
        size = 4
        for dim in shape:
            size *= dim
        entries = {"location": data, "offset": str(self.data_bytes), "length": str(size)}
        body = b"".join(field(1, dim) for dim in shape) + field(2, FLOAT) + field(8, name) + field(14, 1)
        body += b"".join(field(13, field(1, key) + field(2, value)) for key, value in entries.items())
        self.initializers.append(field(5, body))
        self.data_bytes += (size + 4095) // 4096 * 4096
        return name

    def constant(self, name, kind, shape, values):
        raw = b"".join(struct.pack("<f" if kind == FLOAT else "<q", v) for v in values)
        body = b"".join(field(1, dim) for dim in shape) + field(2, kind) + field(8, name) + field(9, raw)
        self.initializers.append(field(5, body))
        return name

    def write(self, path, inputs, outputs):
        def info(name, shape):
            dims = b"".join(field(1, field(2, dim) if isinstance(dim, str) else field(1, dim)) for dim in shape)
            return field(1, name) + field(2, field(1, field(1, FLOAT) + field(2, dims)))

        graph = b"".join(self.nodes) + field(2, "scale") + b"".join(self.initializers)
        graph += b"".join(field(11, info(name, shape)) for name, shape in inputs.items())
        graph += b"".join(field(12, info(name, shape)) for name, shape in outputs.items())
        with open(path, "wb") as out:
            out.write(field(1, 8) + field(2, "scale.py") + field(8, field(1, "") + field(2, 17)) + field(7, graph))
        if self.data_bytes:
            with open(path + ".data", "wb") as data:
                data.truncate(self.data_bytes)


def layers(count, path, hidden=64, heads=4, inner=128):
    """RMSNorm, attention with heads, a residual, a gated SiLU MLP, a residual: as exporters write them."""
    g = Graph()
    data = os.path.basename(path) + ".data"
    two = g.constant("two", FLOAT, [], [2])
    eps = g.constant("eps", FLOAT, [], [1e-5])
    scale = g.constant("scale", FLOAT, [], [(hidden / heads) ** -0.5])
    split = g.constant("split", INT64, [4], [0, 0, heads, hidden // heads])
    merge = g.constant("merge", INT64, [3], [0, 0, hidden])

    def norm(x, weight):
        mean = g.node("ReduceMean", [g.node("Pow", [x, two])], axes=[-1], keepdims=1)
        root = g.node("Sqrt", [g.node("Add", [mean, eps])])
        return g.node("Mul", [g.node("Div", [x, root]), weight])

    def head(x, weight, perm):
        x = g.node("Reshape", [g.node("MatMul", [x, weight]), split])
        return g.node("Transpose", [x], perm=perm)

    x, layer = "x", 0
    while g.count < count:
        def weight(name, shape):
            return g.weight(f"l{layer}.{name}", shape, data)

        n = norm(x, weight("norm1", [hidden]))
        q = head(n, weight("q", [hidden, hidden]), [0, 2, 1, 3])
        k = head(n, weight("k", [hidden, hidden]), [0, 2, 3, 1])
        v = head(n, weight("v", [hidden, hidden]), [0, 2, 1, 3])
        scores = g.node("Mul", [g.node("MatMul", [q, k]), scale])
        mixed = g.node("MatMul", [g.node("Softmax", [scores], axis=-1), v])
        flat = g.node("Reshape", [g.node("Transpose", [mixed], perm=[0, 2, 1, 3]), merge])
        x = g.node("Add", [x, g.node("MatMul", [flat, weight("o", [hidden, hidden])])])
        n = norm(x, weight("norm2", [hidden]))
        gate = g.node("MatMul", [n, weight("gate", [hidden, inner])])
        gate = g.node("Mul", [gate, g.node("Sigmoid", [gate])])
        gated = g.node("Mul", [gate, g.node("MatMul", [n, weight("up", [hidden, inner])])])
        x = g.node("Add", [x, g.node("MatMul", [gated, weight("down", [inner, hidden])])])
        layer += 1
    shape = ["batch", "sequence", hidden]
    g.write(path, {"x": shape}, {x: shape})


def elementwise(count, path):
    g = Graph()
    x = "x"
    ops = [("Tanh", 1), ("Add", 2), ("Sigmoid", 1), ("Mul", 2), ("Neg", 1), ("Sub", 2), ("Sin", 1), ("Max", 2)]
    for i in range(count):
        op, arity = ops[i % len(ops)]
        x = g.node(op, [x, "y"][:arity])
    g.write(path, {"x": ["n", 64], "y": ["n", 64]}, {x: ["n", 64]})


KINDS = {"layers": (layers, "unrolled layers", [10**4, 10**5]),
         "elementwise": (elementwise, "elementwise chain", [10**5, 10**6])}


def table(llmc, folder):
    os.makedirs(folder, exist_ok=True)
    columns = []
    for kind, (make, title, sizes) in KINDS.items():
        for size in sizes:
            path = os.path.join(folder, f"{kind}-{size}.onnx")
            make(size, path)
            plan = os.path.join(folder, "scale.plan")
            command = [llmc, "compile", path, "-o", plan, "--target=host", "--time", "--json"]
            if os.path.exists(path + ".data"):
                command.append("--weights=external")
            done = subprocess.run(command, stdout=subprocess.PIPE, check=True)
            columns.append((f"{title}, 10^{len(str(size)) - 1}", json.loads(done.stdout)))
            os.remove(plan)
    print("| seconds | " + " | ".join(title for title, _ in columns) + " |")
    print("|---|" + "---|" * len(columns))
    for row in range(len(columns[0][1]["stages"])):
        cells = [f"{column['stages'][row]['seconds']:.2f}" for _, column in columns]
        print(f"| {columns[0][1]['stages'][row]['name']} | " + " | ".join(cells) + " |")
    print("| ops in the plan | " + " | ".join(f"{column['ops']:,}" for _, column in columns) + " |")
    print("| peak memory, GB | " + " | ".join(f"{column['peak_bytes'] / 1e9:.2f}" for _, column in columns) + " |")


def main(args):
    if len(args) == 3 and args[0] == "table":
        return table(args[1], args[2])
    if len(args) == 3 and args[0] in KINDS and args[1].isdigit():
        return KINDS[args[0]][0](int(args[1]), args[2])
    print(__doc__, file=sys.stderr)
    return 2


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
