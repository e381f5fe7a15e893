#include "frontend/onnx/exporter.h"

#include <google/protobuf/unknown_field_set.h>

#include <algorithm>
#include <cstdint>
#include <map>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "frontend/onnx/checks.h"

namespace llmc {
namespace {

constexpr absl::string_view kScopes = "pkg.torch.onnx.name_scopes";
// The oldest supported ONNX package does not know the field.
constexpr int kNodeMetadata = 9;

struct ExporterName {
  const char *id, *name;
};
constexpr ExporterName kNames[] = {
    {"torch-torchscript", "PyTorch's TorchScript exporter"},
    {"torch-dynamo", "PyTorch's dynamo exporter"},
    {"optimum", "optimum"},
    {"ort-genai", "onnxruntime-genai's model builder"},
    {"mobius", "onnxruntime's mobius"},
    {"ort-optimizer", "ONNX Runtime's optimizer"},
    {"ort-quantizer", "ONNX Runtime's quantizer"},
    {"tf2onnx", "tf2onnx"},
    {"sklearn-onnx", "skl2onnx"},
    {"hand-written", "no exporter that llmc knows"},
};

// What the entries of a node's metadata say; nothing is parsed that does not begin with `key`.
std::string Metadata(const onnx::NodeProto& node, absl::string_view key) {
  if (const auto* field = node.GetDescriptor()->FindFieldByNumber(kNodeMetadata); field != nullptr) {
    const auto* reflection = node.GetReflection();
    for (int i = 0; i < reflection->FieldSize(node, field); ++i) {
      const auto& entry =
          static_cast<const onnx::StringStringEntryProto&>(reflection->GetRepeatedMessage(node, field, i));
      if (entry.key() == key) return entry.value();
    }
    return "";
  }
  const auto& unknown = node.unknown_fields();
  for (int i = 0; i < unknown.field_count(); ++i) {
    const auto& field = unknown.field(i);
    if (field.number() != kNodeMetadata || field.type() != google::protobuf::UnknownField::TYPE_LENGTH_DELIMITED) {
      continue;
    }
    if (!absl::StrContains(field.length_delimited(), key)) continue;
    onnx::StringStringEntryProto entry;
    if (entry.ParseFromString(field.length_delimited()) && entry.key() == key) return entry.value();
  }
  return "";
}

struct Counts {
  std::map<std::string, int64_t> domains;
  int64_t nodes = 0, scoped = 0, paths = 0, qdq = 0, quantized = 0, packed = 0, experts = 0;
  bool if_on_cache = false;
};

Counts CountNodes(const onnx::ModelProto& model) {
  Counts counts;
  for (const onnx::NodeProto& node : model.graph().node()) {
    ++counts.nodes;
    if (!IsDefaultDomain(node.domain())) ++counts.domains[node.domain()];
    if (counts.scoped == 0 && !LayerOf(node).empty()) ++counts.scoped;
    if (absl::StartsWith(node.name(), "/")) ++counts.paths;
    const std::string& op = node.op_type();
    if (op == "QuantizeLinear" || op == "DequantizeLinear") ++counts.qdq;
    if (absl::StartsWith(op, "QLinear") || op == "MatMulInteger" || op == "DynamicQuantizeLinear" ||
        op == "DynamicQuantizeMatMul" || op == "QAttention") {
      ++counts.quantized;
    }
    if (op == "MatMulNBits" || op == "GatherBlockQuantized" || op == "MatMulBnb4") ++counts.packed;
    if (op == "MoE" || op == "QMoE") ++counts.experts;
    if (op == "If" && node.input_size() == 1 && absl::StrContains(node.input(0), "use_cache")) {
      counts.if_on_cache = true;
    }
  }
  return counts;
}

// past_key_values.0.key and the like, which optimum named first and others took over.
bool HasNamesOfOptimum(const onnx::GraphProto& graph) {
  const auto is_past = [](const onnx::ValueInfoProto& info) {
    return absl::StartsWith(info.name(), "past_key_values.");
  };
  return std::any_of(graph.input().begin(), graph.input().end(), is_past);
}

bool HasFunctions(const onnx::ModelProto& model, absl::string_view domain) {
  return std::any_of(model.functions().begin(), model.functions().end(),
                     [&](const onnx::FunctionProto& function) { return absl::StartsWith(function.domain(), domain); });
}

std::string IdOf(const onnx::ModelProto& model, const Counts& counts, std::vector<std::string>* marks) {
  const std::string& producer = model.producer_name();
  const auto says = [&](absl::string_view word) { return absl::StrContains(producer, word); };
  if (!producer.empty()) marks->push_back(absl::StrCat("producer ", producer));
  if (says("genai")) return "ort-genai";
  if (says("mobius")) return "mobius";
  if (says("optimum")) return "optimum";
  if (producer == "onnx.quantize" || says("onnxruntime.quantization")) return "ort-quantizer";
  if (says("onnxruntime")) return "ort-optimizer";
  if (says("tf2onnx")) return "tf2onnx";
  if (says("skl2onnx")) return "sklearn-onnx";
  if (counts.scoped > 0) {
    marks->push_back("nodes note the modules that they come from");
    return "torch-dynamo";
  }
  if (HasFunctions(model, "pkg.onnxscript.torch_lib") || HasFunctions(model, "pkg.torch")) {
    marks->push_back("functions of torch_lib");
    return "torch-dynamo";
  }
  if (says("pytorch") || says("torch")) {
    if (counts.paths > 0) marks->push_back("nodes are named after modules");
    return "torch-torchscript";
  }
  // The builder writes no producer in some versions; its layers are these.
  const bool is_fused = counts.domains.count("com.microsoft") > 0;
  if (is_fused && absl::StartsWith(producer, "onnxruntime")) return "ort-optimizer";
  if (is_fused && counts.paths > 0 && HasNamesOfOptimum(model.graph())) return "ort-genai";
  return "hand-written";
}

}  // namespace

OnnxExporter FindExporter(const onnx::ModelProto& model) {
  const Counts counts = CountNodes(model);
  OnnxExporter exporter;
  exporter.id = IdOf(model, counts, &exporter.marks);
  for (const ExporterName& row : kNames) {
    if (exporter.id == row.id) exporter.name = row.name;
  }
  std::vector<std::string>& marks = exporter.marks;
  for (const auto& [domain, count] : counts.domains) {
    marks.push_back(absl::StrCat(count, count == 1 ? " node" : " nodes", " of domain ", domain));
  }
  if (counts.if_on_cache) marks.push_back("merged decoder: an If chooses the graph with a cache");
  if (HasNamesOfOptimum(model.graph())) marks.push_back("cache named as by optimum");
  if (counts.qdq > 0) marks.push_back(absl::StrCat("quantized as QDQ: ", counts.qdq, " nodes"));
  if (counts.quantized > 0) {
    marks.push_back(absl::StrCat("quantized with integer operators: ", counts.quantized, " nodes"));
  }
  if (counts.packed > 0) marks.push_back(absl::StrCat("weights in few bits: ", counts.packed, " nodes"));
  if (counts.experts > 0) marks.push_back(absl::StrCat("mixtures of experts: ", counts.experts, " nodes"));
  return exporter;
}

std::string LayerOf(const onnx::NodeProto& node) {
  // "['', 'model', 'model.layers.0', 'view']": modules from the outside in, then the op.
  std::string list = Metadata(node, kScopes);
  if (list.size() < 2 || list.size() > 4096) return "";
  const std::vector<absl::string_view> parts = absl::StrSplit(absl::string_view(list).substr(1, list.size() - 2), ", ");
  if (parts.size() < 2) return "";
  absl::string_view layer = parts[parts.size() - 2];
  if (!absl::ConsumePrefix(&layer, "'") || !absl::ConsumeSuffix(&layer, "'")) return "";
  if (absl::StartsWith(layer, "_empty") || layer.size() > 256) return "";
  const auto is_plain = [](char c) { return c > ' ' && c < 127 && c != '"' && c != '\\'; };
  return std::all_of(layer.begin(), layer.end(), is_plain) ? std::string(layer) : "";
}

}  // namespace llmc
