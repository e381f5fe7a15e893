#include "frontend/onnx/doc.h"

#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "frontend/onnx/doc_types.h"
#include "frontend/onnx/file.h"
#include "frontend/onnx/ops.h"

namespace llmc {

namespace {

void AppendRows(absl::string_view domain, std::string* out) {
  for (const OnnxOp* op : AllOnnxOps(domain)) {
    std::string inputs = absl::StrCat(op->min_inputs);
    if (op->max_inputs < 0) {
      absl::StrAppend(&inputs, " or more");
    } else if (op->max_inputs != op->min_inputs) {
      absl::StrAppend(&inputs, " to ", op->max_inputs);
    }
    absl::StrAppend(out, "| ", op->op_type, " | ", op->since, " | ", inputs, " | ", OnnxTypesOf(domain, op->op_type),
                    " | ", op->limits, " |\n");
  }
}

constexpr char kWhatAModelBecomes[] = R"(## What a model becomes

One step `main`. Inputs and outputs keep their names (`%"in:0"` in text); in other names every character outside
`A-Za-z0-9_.$/-` becomes `_`. An input that is also an initializer has that as its default: it becomes the constant, and
cannot be given another value. A `dim_param` becomes a symbol (bound 2^20), an unnamed dim one of its own. Initializers
and constants of more than 64 elements are weights with the source `FILE.onnx#NAME`, smaller ones `constant` ops; they
are views of the file, but for those that it does not align to their element size. A shape that is known at import, by
number or by symbol, becomes an attribute (`reshape {shape = [B, S, 64]}`); else the op reads a tensor (`reshape_to`,
`expand_to`, `slice_by`). `loc` is the node's name, behind the module where the exporter notes it
(`model.layers.0.mlp/node_3`); nodes of a function are named `FUNCTION.N/NODE` for the Nth call. Calls may add up to 10^6
nodes, 256 MiB of them and 64 MiB of names.

Warnings are what other runtimes take as well: a declared shape that contradicts, a dim of less than 0, which is one of
any size, and nodes that are not in topological order, which are sorted. An attention mask shorter than the keys hides
the rest; where only a run tells, one that is longer is cut.

`If` takes the branch of a condition that is known at import: for optimum's merged decoders `use_cache_branch` must be
fixed (`--set`). Else both branches become part of the graph, and `choose` takes the results of one. Recurrent ops become
`recurrence`; with peepholes, a clip, coupled gates or unusual activations they are unrolled. Resize, Fourier transforms,
windows and the sampling of images become products with tables, and gathers, which the graph computes: constants if
scales and sizes are; else a run gives them, which has no GPU form. GroupQueryAttention with a past writes into a cache
(`scatter_nd`) at places that `seqlens_k` tells: a present declared as long as its past is a shared buffer, one declared
otherwise is longer by the new tokens; where nothing is declared a run tells, which has no GPU form. Packed 4-bit
constants stay packed (`u4`).

Not supported, with an error that says so: RoiAlign and DeformConv, sequences, strings, unsigned types wider than 8 bits
(but uint16 between QuantizeLinear and DequantizeLinear, as i32), sparse tensors, random numbers, image codecs.
)";

}  // namespace

std::string OnnxOpsMarkdown() {
  std::vector<std::string> types;
  constexpr int kDataTypes = 32;
  for (int type = 1; type < kDataTypes; ++type) {
    if (auto dtype = DTypeOfOnnx(type); dtype.ok())
      types.push_back(absl::StrCat(OnnxTypeName(type), " (`", DTypeName(*dtype), "`)"));
  }
  std::string out = absl::StrCat(
      "# ONNX operators\n\nMade from the importer's table, `frontend/onnx_ops_*.cc`; a test keeps it so. Opset ",
      kMinOpset, " to ", kMaxOpset,
      " of the default domain;\nan operator has the semantics of the model's opset. What is not here, or not within "
      "the "
      "limits, is refused with the\nnames of the nodes.\n\nBesides these: If (where only a run tells the condition, a "
      "host runs one branch, a GPU both),\nLoop and Scan (the latter since opset 9) of up to 1024\nturns that are "
      "known, and the model's own functions, "
      "all "
      "of which become part of the graph.\n\nElement types: ",
      absl::StrJoin(types, ", "), ".\n\n", kWhatAModelBecomes,
      "\n## Operators\n\nThe column of element types was found by importing one node of each operator with each type, "
      "of the data "
      "that "
      "the operator is\nabout: that is its first input, or the one that is named. Indices, axes and sizes are integers "
      "as "
      "ONNX says. `all` are the\ntypes above, `numbers` those without bool, ",
      OnnxTypeGroups(), ".\n\n| operator | since opset | inputs | element types | limits |\n|---|---|---|---|---|\n");
  AppendRows("", &out);
  absl::StrAppend(
      &out,
      "\n## com.microsoft\n\nThe operators that ONNX Runtime adds for language models, version 1. They mean "
      "what its CPU kernels compute, and what\nits documents say where it has none (packed projections, gates "
      "of experts).\n\n",
      "| operator | since version | inputs | element types | limits |\n|---|---|---|---|---|\n");
  AppendRows(kMicrosoftDomain, &out);
  return out;
}

}  // namespace llmc
