#include "frontend/onnx/doc_types.h"

#include <algorithm>
#include <memory>
#include <optional>
#include <set>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "frontend/onnx/doc_nodes.h"
#include "frontend/onnx/import.h"
#include "frontend/onnx/ops.h"

namespace llmc {
namespace {

constexpr int kDataTypes = 32;  // numbers of ONNX's element types are below it

std::optional<int> OnnxNumberOf(DType dtype) {
  for (int number = 1; number < kDataTypes; ++number) {
    if (auto own = DTypeOfOnnx(number); own.ok() && *own == dtype) return number;
  }
  return std::nullopt;
}

// The numbers of "[1, 2]" or of "1".
std::vector<int64_t> Numbers(absl::string_view text) {
  std::vector<int64_t> numbers;
  absl::ConsumePrefix(&text, "[");
  absl::ConsumeSuffix(&text, "]");
  for (absl::string_view part : absl::StrSplit(text, ',', absl::SkipEmpty())) {
    int64_t number = 0;
    (void)absl::SimpleAtoi(part, &number);
    numbers.push_back(number);
  }
  return numbers;
}

// The types that stand for T and U.
struct Chosen {
  DType t, u;
  int NumberOf(absl::string_view name) const {
    if (name == "T") return *OnnxNumberOf(t);
    return *OnnxNumberOf(name == "U" ? u : ParseDType(name).value_or(DType::kF32));
  }
};

// "T[2,3]", or a constant: "i64=[0,1]".
void AddInput(absl::string_view text, const Chosen& chosen, const std::string& name, onnx::GraphProto* graph) {
  const size_t end = text.find_first_of("[=");
  const int type = chosen.NumberOf(text.substr(0, end));
  if (text[end] == '=') {
    onnx::TensorProto* tensor = graph->add_initializer();
    tensor->set_name(name);
    tensor->set_data_type(type);
    const std::vector<int64_t> numbers = Numbers(text.substr(end + 1));
    if (text[end + 1] == '[') tensor->add_dims(static_cast<int64_t>(numbers.size()));
    for (int64_t number : numbers) {
      if (type == onnx::TensorProto::INT64) {
        tensor->add_int64_data(number);
      } else if (type == onnx::TensorProto::FLOAT) {
        tensor->add_float_data(static_cast<float>(number));
      } else {
        tensor->add_int32_data(static_cast<int32_t>(number));
      }
    }
    return;
  }
  onnx::ValueInfoProto* input = graph->add_input();
  input->set_name(name);
  auto* tensor = input->mutable_type()->mutable_tensor_type();
  tensor->set_elem_type(type);
  tensor->mutable_shape();
  for (int64_t size : Numbers(text.substr(end))) tensor->mutable_shape()->add_dim()->set_dim_value(size);
}

// "axis=1", "perm=[1,0]", "mode=linear" or "value=T": a tensor of that type.
void AddAttribute(absl::string_view text, const Chosen& chosen, onnx::NodeProto* node) {
  const std::pair<absl::string_view, absl::string_view> sides = absl::StrSplit(text, absl::MaxSplits('=', 1));
  onnx::AttributeProto* attr = node->add_attribute();
  attr->set_name(std::string(sides.first));
  int64_t number = 0;
  if (sides.second == "T") {
    attr->set_type(onnx::AttributeProto::TENSOR);
    attr->mutable_t()->set_data_type(chosen.NumberOf("T"));
    attr->mutable_t()->add_dims(1);
    attr->mutable_t()->set_raw_data(std::string(static_cast<size_t>(std::max(1, DTypeBits(chosen.t) / 8)), '\0'));
  } else if (sides.second[0] == '[') {
    attr->set_type(onnx::AttributeProto::INTS);
    for (int64_t value : Numbers(sides.second)) attr->add_ints(value);
  } else if (absl::SimpleAtoi(sides.second, &number)) {
    attr->set_type(onnx::AttributeProto::INT);
    attr->set_i(number);
  } else {
    attr->set_type(onnx::AttributeProto::STRING);
    attr->set_s(std::string(sides.second));
  }
}

onnx::ModelProto ModelOf(const OnnxDocNode& example, const Chosen& chosen) {
  onnx::ModelProto model;
  model.set_ir_version(10);
  for (absl::string_view domain : {"", "com.microsoft"}) {
    onnx::OperatorSetIdProto* opset = model.add_opset_import();
    opset->set_domain(std::string(domain));
    opset->set_version(domain.empty() ? example.opset : 1);
  }
  onnx::GraphProto* graph = model.mutable_graph();
  graph->set_name("one");
  onnx::NodeProto* node = graph->add_node();
  node->set_op_type(std::string(example.op_type));
  node->set_domain(std::string(example.domain));
  for (absl::string_view input : absl::StrSplit(example.inputs, ' ', absl::SkipEmpty())) {
    const std::string name = input == "-" ? "" : absl::StrCat("in", node->input_size());
    if (!name.empty()) AddInput(input, chosen, name, graph);
    node->add_input(name);
  }
  for (absl::string_view attribute : absl::StrSplit(example.attributes, ' ', absl::SkipEmpty())) {
    AddAttribute(attribute, chosen, node);
  }
  node->add_output("out");
  graph->add_output()->set_name("out");
  return model;
}

OnnxTypeTrial Try(const OnnxDocNode& example, const Chosen& chosen, char variable) {
  OnnxTypeTrial trial{.model = ModelOf(example, chosen), .dtype = variable == 'T' ? chosen.t : chosen.u, .input = -1};
  const std::vector<absl::string_view> inputs = absl::StrSplit(example.inputs, ' ', absl::SkipEmpty());
  for (size_t i = inputs.size(); i-- > 0;) {
    if (inputs[i][0] == variable) trial.input = static_cast<int>(i);
  }
  const auto bytes = std::make_shared<const std::string>(trial.model.SerializeAsString());
  const MappedFile file{.data = {bytes, bytes->data()}, .size = static_cast<int64_t>(bytes->size())};
  trial.status = ImportOnnx("example.onnx", file).status();
  return trial;
}

// The name of a group of types that is complete in `taken`, which then loses it.
struct Group {
  absl::string_view name;
  std::vector<DType> dtypes;
};

const std::vector<Group>& Groups() {
  static const std::vector<Group>& groups = *new std::vector<Group>([] {
    Group all{"all", {}}, numbers{"numbers", {}}, floats{"floats", {}}, eights{"f8", {}}, ints{"ints", {}},
        fours{"4-bit", {}};
    for (int i = 0; i < kNumDTypes; ++i) {
      const DType dtype = static_cast<DType>(i);
      if (!OnnxNumberOf(dtype).has_value()) continue;
      all.dtypes.push_back(dtype);
      if (dtype != DType::kBool) numbers.dtypes.push_back(dtype);
      if (IsFloat(dtype)) (DTypeBits(dtype) > 8 ? floats : eights).dtypes.push_back(dtype);
      if (IsInteger(dtype)) (DTypeBits(dtype) >= 8 ? ints : fours).dtypes.push_back(dtype);
    }
    return std::vector<Group>{all, numbers, floats, eights, ints, fours};
  }());
  return groups;
}

std::string TypeNames(const std::vector<OnnxTypeTrial>& trials) {
  std::set<DType> taken;
  for (const OnnxTypeTrial& trial : trials) {
    if (trial.status.ok()) taken.insert(trial.dtype);
  }
  std::vector<std::string> names;
  for (const Group& group : Groups()) {
    const bool whole =
        std::all_of(group.dtypes.begin(), group.dtypes.end(), [&](DType d) { return taken.contains(d); });
    if (whole) names.emplace_back(group.name);
    for (DType dtype : group.dtypes) {
      if (whole) taken.erase(dtype);
    }
  }
  for (DType dtype : taken) names.emplace_back(DTypeName(dtype));
  return absl::StrJoin(names, ", ");
}

}  // namespace

std::vector<std::vector<OnnxTypeTrial>> TryOnnxTypes(absl::string_view domain, absl::string_view op_type) {
  std::vector<std::vector<OnnxTypeTrial>> lists;
  for (const OnnxDocNode& example : OnnxDocNodes(domain, op_type)) {
    const std::string text = absl::StrCat(" ", example.inputs);
    for (size_t variable = 0; variable < 2; ++variable) {
      if (variable == 1 && !absl::StrContains(text, " U")) continue;
      lists.resize(std::max(lists.size(), variable + 1));
      for (DType dtype : Groups()[0].dtypes) {
        // The other kind of data has a type that goes with this one.
        for (DType other : {DType::kF32, DType::kI64, DType::kU8}) {
          const Chosen chosen = variable == 0 ? Chosen{dtype, other} : Chosen{other, dtype};
          OnnxTypeTrial trial = Try(example, chosen, variable == 0 ? 'T' : 'U');
          const bool taken = trial.status.ok();
          if (taken || other == DType::kU8) lists[variable].push_back(std::move(trial));
          if (taken) break;
        }
      }
    }
  }
  return lists;
}

std::string OnnxTypesOf(absl::string_view domain, absl::string_view op_type) {
  std::vector<std::string> parts;
  for (const std::vector<OnnxTypeTrial>& trials : TryOnnxTypes(domain, op_type)) {
    const bool first = parts.empty() && trials[0].input <= 0;
    parts.push_back(absl::StrCat(first ? "" : absl::StrCat("input ", trials[0].input, ": "), TypeNames(trials)));
  }
  return absl::StrJoin(parts, "; ");
}

std::string OnnxTypeGroups() {
  std::vector<std::string> texts;
  for (const Group& group : Groups()) {
    if (group.name == "all" || group.name == "numbers") continue;
    texts.push_back(absl::StrCat(
        "`", group.name, "` is ",
        absl::StrJoin(group.dtypes, " ", [](std::string* out, DType d) { absl::StrAppend(out, DTypeName(d)); })));
  }
  return absl::StrJoin(texts, ", ");
}

}  // namespace llmc
