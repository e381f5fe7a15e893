#include "quantize/part_model.h"

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "ir/ops.h"
#include "ir/state_type.h"

namespace llmc {
namespace {

std::string TapOutput(size_t i, absl::string_view what) { return absl::StrCat("tap", i, ".", what); }

}  // namespace

absl::StatusOr<std::unique_ptr<PartModel>> PartModel::Create(const Model& from, const Request& request) {
  auto part = std::unique_ptr<PartModel>(new PartModel());
  RETURN_IF_ERROR(part->Build(from, request));
  return part;
}

absl::Status PartModel::Build(const Model& from, const Request& request) {
  request_ = &request;
  model_.name = "part";
  model_.dims = from.dims;
  for (const auto& [dim, count] : request.records) model_.dims.erase(dim);
  for (auto& [dim, bound] : model_.dims) {
    if (const auto size = request.sizes.find(dim); size != request.sizes.end()) bound = std::max(bound, size->second);
  }
  step_ = model_.steps.emplace_back(std::make_unique<Step>()).get();
  for (const Node* node : request.nodes) RETURN_IF_ERROR(Copy(*node));
  for (const Value* value : request.passing) {
    ASSIGN_OR_RETURN(Value* const own, Import(value));
    passing_.emplace_back(value, absl::StrCat("out", passing_.size()));
    AddOutput(passing_.back().second, own);
  }
  for (const Tap& tap : request.taps) RETURN_IF_ERROR(AddTap(tap));
  request_ = nullptr;
  return absl::OkStatus();
}

// Names count up, so that they do not depend on which layer it is.
absl::StatusOr<Value*> PartModel::Import(const Value* value) {
  if (const auto known = copies_.find(value); known != copies_.end()) return known->second;
  if (value->kind == ValueKind::kState) {
    StateType type = *value->state;
    ASSIGN_OR_RETURN(const int64_t count, type.count.Evaluate(request_->records));
    type.count = Dim(count);
    return copies_[value] = model_.AddState(absl::StrCat("@state", model_.states.size()), type);
  }
  // What is made of weights and constants alone is made in each part that reads it.
  if (value->kind == ValueKind::kResult && !request_->of_sample->contains(value)) {
    RETURN_IF_ERROR(Copy(*value->def));
    return copies_.at(value);
  }
  const std::string name = absl::StrCat("in", inputs_.size());
  inputs_.emplace_back(value, name);
  return copies_[value] = model_.AddParam(step_, absl::StrCat("%", name), value->type);
}

absl::Status PartModel::Copy(const Node& node) {
  if (!node.results.empty() && copies_.contains(node.results[0])) return absl::OkStatus();
  std::vector<Value*> operands;
  for (const Value* operand : node.operands) {
    if (operand == nullptr) {
      operands.push_back(nullptr);
      continue;
    }
    ASSIGN_OR_RETURN(operands.emplace_back(), Import(operand));
  }
  Types types;
  std::vector<std::string> names;
  for (const Value* result : node.results) {
    types.push_back(result->type);
    names.push_back(absl::StrCat("%v", copies_.size() + names.size()));
  }
  ASSIGN_OR_RETURN(const Node* const own, model_.AddNode(&step_->block, nullptr, node.op, std::move(operands),
                                                         node.attrs, std::move(names), "", &types));
  for (size_t i = 0; i < node.results.size(); ++i) copies_[node.results[i]] = own->results[i];
  return absl::OkStatus();
}

// The rows of x, in f32; of those that go to other experts zeros, and how many do not.
Value* PartModel::RowsOf(const Tap& tap, Value* x, Value** tokens, Builder* builder) const {
  const Dims shape = x->type.shape;
  const Dim rows = Product(Dims(shape.begin(), shape.end() - 1));
  Value* all = x->type.dtype == DType::kF32 ? x : builder->Add(Cast{.x = x, .to = DType::kF32});
  if (shape.size() != 2) all = builder->Add(Reshape{.x = all, .shape = {rows, shape.back()}});
  if (tap.experts == nullptr) return all;
  Value* const experts = copies_.at(tap.experts);
  Value* const wanted =
      builder->Add(Constant{.value = Tensor::FromValues(experts->type.dtype, {}, std::vector<int64_t>{tap.expert})});
  Value* mask = builder->Add(Equal{.lhs = experts, .rhs = wanted});
  mask = builder->Add(Cast{.x = mask, .to = DType::kF32});
  *tokens = builder->Add(ReduceSum{.x = mask, .axes = {0, 1}});
  mask = shape.size() == 3 ? builder->Add(Reshape{.x = mask, .shape = {rows, 1}})
                           : builder->Add(ReduceMax{.x = mask, .axes = {1}, .keep_dims = true});
  return builder->Add(Mul{.lhs = all, .rhs = mask});
}

absl::Status PartModel::AddTap(const Tap& tap) {
  const size_t i = rows_.size();
  ASSIGN_OR_RETURN(Value* const x, Import(tap.value));
  if (tap.experts != nullptr) RETURN_IF_ERROR(Import(tap.experts).status());
  Builder builder(&model_, &step_->block);
  Value* tokens = nullptr;
  Value* const rows = RowsOf(tap, x, &tokens, &builder);
  RETURN_IF_ERROR(builder.status());
  rows_.push_back(rows->type.shape[0]);
  if (tokens != nullptr) AddOutput(TapOutput(i, "tokens"), tokens);
  Value* const magnitudes = builder.Add(Abs{.x = rows});
  AddOutput(TapOutput(i, "sum_abs"), builder.Add(ReduceSum{.x = magnitudes, .axes = {0}}));
  AddOutput(TapOutput(i, "amax"), builder.Add(ReduceMax{.x = magnitudes, .axes = {0}}));
  if (tap.with_gram) {
    // In f32, not in the type of x: sums of products over thousands of tokens.
    Value* const columns = builder.Add(Transpose{.x = rows, .perm = {1, 0}});
    AddOutput(TapOutput(i, "gram"), builder.Add(MatMul{.lhs = columns, .rhs = rows}));
  }
  return builder.status();
}

absl::Status PartModel::AddStats(size_t i, const NamedTensors& outputs, const DimEnv& dims, InputStats* stats) const {
  int64_t tokens = 0;
  if (const auto counted = outputs.find(TapOutput(i, "tokens")); counted != outputs.end()) {
    tokens = static_cast<int64_t>(counted->second.GetFloat(0));
  } else {
    ASSIGN_OR_RETURN(tokens, rows_[i].Evaluate(dims));
  }
  const auto gram = outputs.find(TapOutput(i, "gram"));
  stats->AddSums(tokens, outputs.at(TapOutput(i, "sum_abs")), outputs.at(TapOutput(i, "amax")),
                 gram == outputs.end() ? nullptr : &gram->second);
  return absl::OkStatus();
}

}  // namespace llmc
