// Gives every f64, f32, f16 and bf16 value of a model one type. Weights keep theirs: a cast of each stands in
// `prepare`, so that it runs once. What must stay f32 stays: frequencies of rope, the logits of a language model, and
// angles that are computed from positions, which 16 bits would round to other positions.

#include <algorithm>
#include <cfloat>
#include <cmath>

#include "absl/container/flat_hash_set.h"
#include "absl/strings/str_cat.h"
#include "ir/ops.h"
#include "ir/text.h"
#include "passes/infer.h"
#include "passes/passes.h"

namespace llmc {
namespace {

bool IsRetyped(DType dtype) {
  return dtype == DType::kF64 || dtype == DType::kF32 || dtype == DType::kF16 || dtype == DType::kBF16;
}

double Largest(DType dtype) {
  switch (dtype) {
    case DType::kF16:
      return 65504;
    case DType::kBF16:
      return 0x1.FEp127;
    case DType::kF32:
      return FLT_MAX;
    default:
      return DBL_MAX;
  }
}

// Operands that ops take as f32 whatever the type of the rest.
bool StaysF32(const Node& node, size_t operand) {
  return operand < node.op->operands.size() && node.op->operands[operand] == "inv_freq";
}

// The f32 and f64 values from which sin and cos compute what rotates by positions, with their results: all that these
// depend on are integers, constants, and weights that are vectors.
class Angles {
 public:
  explicit Angles(const Model& model) {
    for (const auto& step : model.steps) {
      for (const auto& node : step->block.nodes) {
        const bool turns = Is<Sin>(node.get()) || Is<Cos>(node.get());
        if (turns && IsWide(node->results[0])) Add(node->results[0]);
      }
    }
  }
  bool Contain(const Value* value) const { return values_.contains(value); }

 private:
  static bool IsWide(const Value* value) {
    return value->type.dtype == DType::kF32 || value->type.dtype == DType::kF64;
  }

  void Add(const Value* result) {
    std::vector<const Value*> found = {result};
    absl::flat_hash_set<const Value*> seen = {result};
    for (size_t i = 0; i < found.size(); ++i) {
      if (!IsLeafOrComputed(*found[i])) return;
      if (found[i]->def == nullptr) continue;
      for (const Value* operand : found[i]->def->operands) {
        if (operand != nullptr && IsRetyped(operand->type.dtype) && seen.insert(operand).second) {
          found.push_back(operand);
        }
      }
    }
    std::copy_if(found.begin(), found.end(), std::inserter(values_, values_.end()), IsWide);
  }

  static bool IsLeafOrComputed(const Value& value) {
    if (value.kind == ValueKind::kResult) return true;
    const Dims& shape = value.type.shape;
    return value.kind == ValueKind::kWeight &&
           std::count_if(shape.begin(), shape.end(), [](const Dim& dim) { return dim != Dim(1); }) <= 1;
  }

  absl::flat_hash_set<const Value*> values_;
};

class Retyper {
 public:
  Retyper(Model* model, DType dtype) : model_(model), dtype_(dtype) {
    if (DTypeBits(dtype) == 16) angles_.emplace(*model);
  }

  absl::Status Run() {
    std::vector<std::pair<Step*, Output*>> logits = Logits();
    for (Value* state : model_->states) ChangeType(state);
    for (const auto& step : model_->steps) {
      for (Value* param : step->params) ChangeType(param);
    }
    ChangeBlock(&model_->prepare);
    for (const auto& step : model_->steps) ChangeBlock(&step->block);
    if (absl::Status status = CastWeights(); !status.ok()) return status;
    if (absl::Status status = CastAngles(); !status.ok()) return status;
    if (absl::Status status = InferAgain(model_); !status.ok()) {
      return absl::UnimplementedError(
          absl::StrCat("this model cannot be ", DTypeName(dtype_), " throughout: ", status.message()));
    }
    for (auto [step, output] : logits) {
      if (absl::Status status = CastBack(step, output); !status.ok()) return status;
    }
    return absl::OkStatus();
  }

 private:
  void ChangeType(Value* value) {
    if (IsRetyped(value->type.dtype)) value->type.dtype = dtype_;
  }

  bool IsAngle(const Value* value) const { return angles_.has_value() && angles_->Contain(value); }
  bool ComputesAngle(const Node& node) const {
    return std::any_of(node.results.begin(), node.results.end(), [this](const Value* value) { return IsAngle(value); });
  }

  bool IsFrequency(const Value* value) const {
    if (IsAngle(value)) return true;
    for (const Node* user : value->users) {
      for (size_t i = 0; i < user->operands.size(); ++i) {
        if (user->operands[i] == value && StaysF32(*user, i)) return true;
      }
    }
    return false;
  }

  // The logits of a language model are f32 for the sampler.
  std::vector<std::pair<Step*, Output*>> Logits() const {
    std::vector<std::pair<Step*, Output*>> logits;
    for (const auto& step : model_->steps) {
      for (Output& output : step->outputs) {
        const bool is_logits = !model_->states.empty() && output.name == "logits";
        if (is_logits && output.value->type.dtype == DType::kF32) logits.emplace_back(step.get(), &output);
      }
    }
    return logits;
  }

  bool IsLogits(const Value* value) const {
    for (auto [step, output] : Logits()) {
      if (output->value == value) return true;
    }
    return false;
  }

  absl::Status CastBack(Step* step, Output* output) {
    if (output->value->type.dtype == DType::kF32) return absl::OkStatus();
    absl::StatusOr<Node*> cast = model_->AddNode(&step->block, nullptr, DefOf<Cast>(), {output->value}, {},
                                                 {absl::StrCat(output->value->name, ".f32")}, "");
    if (!cast.ok()) return cast.status();
    output->value = (*cast)->results[0];
    return absl::OkStatus();
  }

  void ChangeBlock(Block* block) {
    for (const auto& node : block->nodes) {
      if (Is<Cast>(node.get()) && !IsLogits(node->results[0]) && !IsFrequency(node->results[0])) {
        auto to = node->attrs.find("to");
        const DType target = to == node->attrs.end() ? Cast{}.to : std::get<DType>(to->second);
        if (IsRetyped(target)) SetTarget(node.get());
      }
      if (Is<Constant>(node.get()) && !IsFrequency(node->results[0])) ChangeConstant(node.get());
      if (Is<Pad>(node.get()) && IsRetyped(node->results[0]->type.dtype)) ChangePad(node.get());
    }
  }

  // An attribute that has its default is not stored.
  void SetTarget(Node* node) {
    if (dtype_ == Cast{}.to) {
      node->attrs.erase("to");
    } else {
      node->attrs["to"] = dtype_;
    }
  }

  // Masks are written with the lowest f32: as an infinity it would make NaN of a product with 0.
  double Clamped(double value) const {
    if (!std::isfinite(value)) return value;
    return std::clamp(value, -Largest(dtype_), Largest(dtype_));
  }

  void ChangePad(Node* node) {
    auto value = node->attrs.find("value");
    if (value != node->attrs.end()) value->second = Clamped(std::get<double>(value->second));
  }

  void ChangeConstant(Node* node) {
    const Tensor& old = std::get<Tensor>(node->attrs.at("value"));
    if (!IsRetyped(old.dtype()) || old.dtype() == dtype_) return;
    Tensor changed(dtype_, old.shape());
    for (int64_t i = 0; i < old.size(); ++i) changed.SetFloat(i, Clamped(old.GetFloat(i)));
    node->attrs["value"] = std::move(changed);
  }

  absl::Status CastWeights() {
    const std::vector<Value*> weights = model_->weights;
    Node* front = model_->prepare.nodes.empty() ? nullptr : model_->prepare.nodes.front().get();
    for (Value* weight : weights) {
      if (!IsRetyped(weight->type.dtype) || weight->type.dtype == dtype_) continue;
      std::vector<std::pair<Node*, size_t>> uses;
      for (Node* user : weight->users) {
        for (size_t i = 0; i < user->operands.size(); ++i) {
          if (user->operands[i] != weight || StaysF32(*user, i) || ComputesAngle(*user)) continue;
          uses.emplace_back(user, i);
        }
      }
      if (uses.empty()) continue;
      absl::StatusOr<Node*> cast =
          model_->AddNode(&model_->prepare, front, DefOf<Cast>(), {weight}, {{"to", Attr(dtype_)}},
                          {absl::StrCat(weight->name, ".", DTypeName(dtype_))}, "");
      if (!cast.ok()) return cast.status();
      for (auto [user, i] : uses) {
        if (user->operands[i] == weight) model_->SetOperand(user, i, (*cast)->results[0]);
      }
    }
    return absl::OkStatus();
  }

  // Where angles, their sines and cosines meet the rest, they are cast.
  absl::Status CastAngles() {
    if (!angles_.has_value()) return absl::OkStatus();
    std::vector<std::pair<Block*, Node*>> nodes;
    for (const auto& step : model_->steps) {
      for (const auto& node : step->block.nodes) {
        if (ComputesAngle(*node)) nodes.emplace_back(&step->block, node.get());
      }
    }
    for (auto [block, node] : nodes) {
      for (Value* angle : node->results) {
        if (absl::Status status = CastAngle(block, angle); !status.ok()) return status;
      }
    }
    return absl::OkStatus();
  }

  absl::Status CastAngle(Block* block, Value* angle) {
    std::vector<Node*> users;
    for (Node* user : angle->users) {
      if (!ComputesAngle(*user) && !Is<Cast>(user)) users.push_back(user);
    }
    if (users.empty()) return absl::OkStatus();
    const auto next = std::next(angle->def->self);
    absl::StatusOr<Node*> cast =
        model_->AddNode(block, next == block->nodes.end() ? nullptr : next->get(), DefOf<Cast>(), {angle},
                        {{"to", Attr(dtype_)}}, {absl::StrCat(angle->name, ".", DTypeName(dtype_))}, angle->def->loc);
    if (!cast.ok()) return cast.status();
    for (Node* user : users) {
      for (size_t i = 0; i < user->operands.size(); ++i) {
        if (user->operands[i] == angle && !StaysF32(*user, i)) model_->SetOperand(user, i, (*cast)->results[0]);
      }
    }
    return absl::OkStatus();
  }

  Model* model_;
  DType dtype_;
  std::optional<Angles> angles_;  // of 16-bit types
};

}  // namespace

absl::Status Retype(Model* model, const PassContext& context) {
  if (!context.options->dtype.has_value()) return absl::OkStatus();
  const DType dtype = *context.options->dtype;
  if (!IsRetyped(dtype))
    return absl::InvalidArgumentError(absl::StrCat("--dtype=", DTypeName(dtype), " is not f32, f16, bf16 or f64"));
  return Retyper(model, dtype).Run();
}

}  // namespace llmc
