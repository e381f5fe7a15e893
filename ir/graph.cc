#include "ir/graph.h"

#include <algorithm>
#include <limits>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/strip.h"
#include "base/status_macros.h"
#include "ir/op.h"
#include "ir/state_type.h"

namespace llmc {
namespace {

constexpr int64_t kDefaultDimBound = int64_t{1} << 31;

// Whether a written type can be what Infer found: unknown dims fit anything.
bool Fits(const TensorType& inferred, const TensorType& written) {
  if (inferred.dtype != written.dtype || inferred.encoding != written.encoding) return false;
  if (inferred.shape.size() != written.shape.size()) return false;
  for (size_t i = 0; i < inferred.shape.size(); ++i) {
    if (!inferred.shape[i].is_unknown() && inferred.shape[i] != written.shape[i]) return false;
  }
  return true;
}

// Whether a value's elements may be told as dims: as many as its type has, and none that may wrap around in 32 bits.
bool MayHold(const TensorType& type, const Dims& contents, const DimEnv& bounds) {
  if (Product(type.shape) != Dim(static_cast<int64_t>(contents.size()))) return false;
  if (DTypeBits(type.dtype) == 64) return true;
  return std::all_of(contents.begin(), contents.end(), [&](const Dim& dim) {
    const absl::StatusOr<DimRange> range = dim.Range(bounds);
    return range.ok() && range->low >= std::numeric_limits<int32_t>::min() &&
           range->high <= std::numeric_limits<int32_t>::max();
  });
}

// Copies nodes of one model to another.
class Copier {
 public:
  explicit Copier(Model* to) : to_(to) {}

  void Add(const Value* from, Value* to) { values_[from] = to; }
  Value* Get(const Value* from) const { return from == nullptr ? nullptr : values_.at(from); }

  // `kernels`: copies of the kernels of the step.
  void CopyBlock(const Block& from, const absl::flat_hash_map<const Kernel*, Kernel*>& kernels, Block* block) {
    for (const auto& node : from.nodes) {
      std::vector<Value*> operands;
      std::vector<std::string> names;
      Types types;
      for (const Value* operand : node->operands) operands.push_back(Get(operand));
      for (const Value* result : node->results) {
        names.push_back(result->name);
        types.push_back(result->type);
      }
      // It was accepted once.
      Node* copy =
          to_->AddNode(block, nullptr, node->op, std::move(operands), node->attrs, names, node->loc, &types).value();
      if (node->kernel != nullptr) copy->kernel = kernels.at(node->kernel);
      for (size_t i = 0; i < names.size(); ++i) Add(node->results[i], copy->results[i]);
    }
  }

 private:
  Model* to_;
  absl::flat_hash_map<const Value*, Value*> values_;
};

}  // namespace

Size TensorType::Bytes() const {
  if (encoding != nullptr) return EncodedBytes(*encoding, shape);
  const int bits = DTypeBits(dtype);
  const Size elements = ElementsOf(shape);
  return bits >= 8 ? elements * Size(bits / 8) : Size::FloorDiv(elements + Size(1), 2);
}

std::string TensorType::ToString() const {
  return absl::StrCat(DTypeName(dtype), encoding == nullptr ? "" : absl::StrCat("<", encoding->text, ">"), "[",
                      DimsToString(shape), "]");
}

absl::StatusOr<TensorType> TensorType::Parse(absl::string_view text) {
  text = absl::StripAsciiWhitespace(text);
  const size_t bracket = text.find('[');
  if (bracket == absl::string_view::npos || text.back() != ']') {
    return absl::InvalidArgumentError(absl::StrCat("'", text, "' is not a type such as f32[T, 64]"));
  }
  absl::string_view element = absl::StripAsciiWhitespace(text.substr(0, bracket));
  TensorType type;
  if (const size_t angle = element.find('<'); angle != absl::string_view::npos) {
    if (element.back() != '>') return absl::InvalidArgumentError(absl::StrCat("'", element, "' does not end with '>'"));
    ASSIGN_OR_RETURN(type.encoding, ParseEncoding(element.substr(angle + 1, element.size() - angle - 2)));
    element = absl::StripTrailingAsciiWhitespace(element.substr(0, angle));
  }
  ASSIGN_OR_RETURN(type.dtype, ParseDType(element));
  absl::string_view dims = text.substr(bracket + 1, text.size() - bracket - 2);
  int depth = 0;
  size_t begin = 0;
  const bool is_scalar = absl::StripAsciiWhitespace(dims).empty();
  for (size_t i = 0; !is_scalar && i <= dims.size(); ++i) {
    if (i < dims.size()) depth += dims[i] == '(' ? 1 : dims[i] == ')' ? -1 : 0;
    if (i < dims.size() && (dims[i] != ',' || depth != 0)) continue;
    ASSIGN_OR_RETURN(Dim dim, Dim::Parse(absl::StripAsciiWhitespace(dims.substr(begin, i - begin))));
    type.shape.push_back(std::move(dim));
    begin = i + 1;
  }
  if (type.encoding != nullptr) RETURN_IF_ERROR(CheckEncoding(*type.encoding, type.shape));
  return type;
}

void Block::Renumber() {
  int64_t order = 0;
  for (const auto& node : nodes) node->order = ++order << 20;
}

Value* Model::NewValue(const std::string& name, TensorType type, ValueKind kind) {
  auto value = std::make_unique<Value>();
  value->name = name;
  value->type = std::move(type);
  value->kind = kind;
  Value* raw = value.get();
  values_[name] = std::move(value);
  return raw;
}

Value* Model::Find(absl::string_view name) const {
  auto it = values_.find(name);
  return it == values_.end() ? nullptr : it->second.get();
}

std::string Model::FreshName(absl::string_view stem) {
  if (!values_.contains(stem)) return std::string(stem);
  int64_t& suffix = next_suffix_[stem];
  while (true) {
    std::string name = absl::StrCat(stem, ".", ++suffix);
    if (!values_.contains(name)) return name;
  }
}

Dim Model::FreshDim(absl::string_view stem, int64_t bound) {
  std::string name(stem);
  int64_t& suffix = next_suffix_[absl::StrCat("dim ", stem)];
  while (dims.contains(name)) name = absl::StrCat(stem, ++suffix);
  dims[name] = bound;
  return Dim::Symbol(name);
}

Value* Model::AddParam(Step* step, absl::string_view name, TensorType type, StepRoleRef role) {
  Value* value = NewValue(FreshName(name), std::move(type), ValueKind::kParam);
  value->role = std::move(role);
  step->params.push_back(value);
  return value;
}

Value* Model::AddWeight(absl::string_view name, TensorType type, absl::string_view source) {
  Value* value = NewValue(FreshName(name), std::move(type), ValueKind::kWeight);
  value->source = std::string(source);
  weights.push_back(value);
  return value;
}

Value* Model::AddState(absl::string_view name, const StateType& type) {
  Value* value = NewValue(FreshName(name), type.Memory(), ValueKind::kState);
  SetStateType(value, type);
  states.push_back(value);
  return value;
}

void Model::SetStateType(Value* state, const StateType& type) {
  state->type = type.Memory();
  state->state = std::make_shared<StateType>(type);
}

void Model::SetContents(Node* node) const {
  if (node->results.empty()) return;
  Value* result = node->results[0];
  result->contents = node->op->contents(*node);
  if (result->contents.has_value() && !MayHold(result->type, *result->contents, dims)) result->contents.reset();
}

absl::StatusOr<Node*> Model::AddNode(Block* block, Node* before, const OpDef* op, std::vector<Value*> operands,
                                     Attrs attrs, std::vector<std::string> result_names, absl::string_view loc,
                                     const Types* written) {
  while (!operands.empty() && operands.back() == nullptr) operands.pop_back();
  RETURN_IF_ERROR(CheckForm(*op, operands, attrs));
  for (const auto& [key, value] : op->defaults) {
    if (std::holds_alternative<Tensor>(value)) {
      attrs.try_emplace(key, value);
    } else if (auto it = attrs.find(key); it != attrs.end() && it->second == value) {
      attrs.erase(it);
    }
  }

  auto node = std::make_unique<Node>();
  node->op = op;
  node->operands = std::move(operands);
  node->attrs = std::move(attrs);
  node->loc = std::string(loc);
  node->block = block;
  absl::StatusOr<Types> types = op->infer(*node);
  if (!types.ok()) {
    return absl::Status(types.status().code(), absl::StrCat(op->info.name, ": ", types.status().message()));
  }
  for (size_t i = 0; i < types->size(); ++i) {
    TensorType& type = (*types)[i];
    if (written != nullptr) {
      if (i >= written->size() || !Fits(type, (*written)[i])) {
        return absl::InvalidArgumentError(absl::StrCat(op->info.name, ": written type ",
                                                       i < written->size() ? (*written)[i].ToString() : "(none)",
                                                       ", inferred ", type.ToString()));
      }
      type = (*written)[i];
    }
    for (Dim& dim : type.shape) {
      if (dim.is_unknown()) dim = FreshDim("u", kDefaultDimBound);
    }
  }
  for (size_t i = 0; i < types->size(); ++i) {
    const std::string name = i < result_names.size() && !result_names[i].empty()
                                 ? FreshName(result_names[i])
                                 : FreshName(absl::StrCat("%", op->info.name));
    Value* result = NewValue(name, std::move((*types)[i]), ValueKind::kResult);
    result->def = node.get();
    node->results.push_back(result);
  }
  for (Value* operand : node->operands) {
    if (operand != nullptr) operand->users.push_back(node.get());
  }
  SetContents(node.get());
  auto at = before == nullptr ? block->nodes.end() : before->self;
  const int64_t low = at == block->nodes.begin() ? 0 : (*std::prev(at))->order;
  const int64_t high = at == block->nodes.end() ? low + (int64_t{2} << 20) : (*at)->order;
  node->order = low + (high - low) / 2;
  const bool crowded = high - low < 2;
  Node* raw = node.get();
  raw->self = block->nodes.insert(at, std::move(node));
  if (crowded) block->Renumber();
  return raw;
}

absl::Status Model::Reinfer(Node* node) {
  absl::StatusOr<Types> types = node->op->infer(*node);
  if (!types.ok()) {
    return absl::Status(types.status().code(), absl::StrCat(node->op->info.name, ": ", types.status().message()));
  }
  for (size_t i = 0; i < types->size(); ++i) {
    TensorType& old = node->results[i]->type;
    TensorType& type = (*types)[i];
    for (size_t d = 0; d < type.shape.size(); ++d) {
      if (!type.shape[d].is_unknown()) continue;
      type.shape[d] = d < old.shape.size() ? old.shape[d] : FreshDim("u", kDefaultDimBound);
    }
    old = std::move(type);
  }
  SetContents(node);
  return absl::OkStatus();
}

void Model::SetOperand(Node* node, size_t index, Value* value) {
  Value* old = node->operands[index];
  if (old == value) return;
  if (old != nullptr) {
    auto it = std::find(old->users.begin(), old->users.end(), node);
    if (it != old->users.end()) old->users.erase(it);
  }
  node->operands[index] = value;
  if (value != nullptr) value->users.push_back(node);
}

void Model::ReplaceUses(Value* from, Value* to) {
  if (from == to) return;
  for (Node* user : from->users) {
    for (Value*& operand : user->operands) {
      if (operand == from) operand = to;
    }
  }
  to->users.insert(to->users.end(), from->users.begin(), from->users.end());
  from->users.clear();
  for (const auto& step : steps) {
    for (Output& output : step->outputs) {
      if (output.value == from) output.value = to;
    }
  }
}

bool Model::IsOutput(const Value* value) const {
  for (const auto& step : steps) {
    for (const Output& output : step->outputs) {
      if (output.value == value) return true;
    }
  }
  return false;
}

bool Model::HasUses(const Value* value) const { return !value->users.empty() || IsOutput(value); }

void Model::Erase(Node* node) {
  for (Value* operand : node->operands) {
    if (operand == nullptr) continue;
    // From the back: a value with many users loses its last ones first when a block is cleaned up.
    auto it = std::find(operand->users.rbegin(), operand->users.rend(), node);
    if (it != operand->users.rend()) operand->users.erase(std::next(it).base());
  }
  for (Value* result : node->results) {
    const std::string name = result->name;
    values_.erase(name);
  }
  node->block->nodes.erase(node->self);
}

void Model::Rename(Value* value, absl::string_view name) {
  if (value->name == name) return;
  const std::string fresh = FreshName(name);
  auto it = values_.find(value->name);
  std::unique_ptr<Value> owned = std::move(it->second);
  values_.erase(it);
  owned->name = fresh;
  values_[fresh] = std::move(owned);
}

void Model::MoveToEnd(Node* node, Block* block) {
  block->nodes.splice(block->nodes.end(), node->block->nodes, node->self);
  node->block = block;
  const int64_t low = block->nodes.size() < 2 ? 0 : (*std::prev(node->self))->order;
  node->order = low + (int64_t{1} << 20);
}

void Model::RemoveUnusedWeights() {
  std::erase_if(weights, [&](Value* weight) {
    if (HasUses(weight)) return false;
    data.erase(weight->name);
    const std::string name = weight->name;
    values_.erase(name);
    return true;
  });
}

void Model::RemoveUnusedStates() {
  std::erase_if(states, [&](Value* state) {
    if (HasUses(state)) return false;
    const std::string name = state->name;
    values_.erase(name);
    return true;
  });
}

void Model::EraseStep(std::unique_ptr<Step> step) {
  while (!step->block.nodes.empty()) Erase(step->block.nodes.back().get());
  for (const Value* param : step->params) {
    const std::string name = param->name;
    values_.erase(name);
  }
}

std::unique_ptr<Model> Model::Clone() const {
  auto model = std::make_unique<Model>();
  model->name = name;
  model->dims = dims;
  Copier copier(model.get());
  for (const Value* weight : weights) {
    copier.Add(weight, model->AddWeight(weight->name, weight->type, weight->source));
  }
  copier.CopyBlock(prepare, {}, &model->prepare);
  for (const Value* state : states) copier.Add(state, model->AddState(state->name, *state->state));
  for (const auto& from : steps) {
    Step* step = model->steps.emplace_back(std::make_unique<Step>()).get();
    step->name = from->name;
    absl::flat_hash_map<const Kernel*, Kernel*> kernels;
    for (const Kernel& kernel : from->kernels) kernels[&kernel] = &step->kernels.emplace_back(kernel);
    for (const Value* param : from->params) {
      copier.Add(param, model->AddParam(step, param->name, param->type, param->role));
    }
    copier.CopyBlock(from->block, kernels, &step->block);
    for (const Output& output : from->outputs) step->outputs.push_back({output.name, copier.Get(output.value)});
  }
  return model;
}

}  // namespace llmc
