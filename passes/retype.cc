// Gives every f64, f32, f16 and bf16 value of a model one type. Weights keep theirs: a cast of each stands in
// `prepare`, so that it runs once. Some keep their type: frequencies of rope, the logits of a language model, what only
// becomes scales and zero points of encoded weights, and numbers that count (counts.h), which 16 bits would round to
// other positions; they are cast where they meet the rest.

#include <algorithm>
#include <cfloat>
#include <cmath>

#include "absl/container/flat_hash_set.h"
#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "ir/ops.h"
#include "ir/state_type.h"
#include "ir/text.h"
#include "passes/driver/infer.h"
#include "passes/passes.h"
#include "passes/proof/counts.h"

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

bool KeepsType(const Node& node, size_t operand) {
  return node.op->UseOf(operand) == Use::kFrequency || node.op->UseOf(operand) == Use::kComponent;
}

// Whether an op of floats of `dtype` gives others.
bool HasOwnType(const Node& node, const Value& result, DType dtype) {
  if (!IsRetyped(result.type.dtype) || result.type.dtype == dtype || Is<Cast>(&node)) return false;
  bool takes_floats = false;
  for (size_t i = 0; i < node.operands.size(); ++i) {
    const Value* operand = node.operands[i];
    if (operand == nullptr || KeepsType(node, i) || !IsRetyped(operand->type.dtype)) continue;
    if (operand->type.dtype != dtype) return false;
    takes_floats = true;
  }
  return takes_floats;
}

// An attribute that has its default is not stored.
void SetTarget(Node* node, DType dtype) {
  if (dtype == Cast{}.to) {
    node->attrs.erase("to");
  } else {
    node->attrs["to"] = dtype;
  }
}

// Masks are written with the lowest f32: as an infinity it would make NaN of a product with 0. That is no number that
// counts, and may meet the rest.
double Clamped(double value, bool is_exact, DType dtype) {
  constexpr double kMostCount = 0x1p63;
  if (!std::isfinite(value) || (is_exact && std::abs(value) <= kMostCount)) return value;
  return std::clamp(value, -Largest(dtype), Largest(dtype));
}

// What weights and constants alone give: nothing is known of what a step computes from its inputs.
absl::flat_hash_set<const Node*> PreparedNodes(const Model& model) {
  std::vector<const Block*> blocks = {&model.prepare};
  for (const auto& step : model.steps) blocks.push_back(&step->block);
  absl::flat_hash_set<const Node*> prepared;
  for (const Block* block : blocks) {
    for (const auto& node : block->nodes) {
      const bool is_prepared = std::all_of(node->operands.begin(), node->operands.end(), [&](const Value* operand) {
        return operand == nullptr || operand->kind == ValueKind::kWeight ||
               (operand->def != nullptr && prepared.contains(operand->def));
      });
      if (is_prepared) prepared.insert(node.get());
    }
  }
  return prepared;
}

// What weights and constants give and only components of encoded values need: scales that a checkpoint has otherwise
// than kernels read them. Rounding them would change all that they scale.
absl::flat_hash_set<const Node*> NodesOfComponents(const Model& model) {
  const absl::flat_hash_set<const Node*> prepared = PreparedNodes(model);
  std::vector<const Block*> blocks;
  for (const auto& step : model.steps) blocks.push_back(&step->block);
  blocks.push_back(&model.prepare);
  absl::flat_hash_set<const Node*> nodes;
  const auto is_component = [&](const Value* value) {
    return !value->users.empty() && !model.IsOutput(value) &&
           std::all_of(value->users.begin(), value->users.end(), [&](const Node* user) {
             if (nodes.contains(user)) return true;
             for (size_t i = 0; i < user->operands.size(); ++i) {
               if (user->operands[i] == value && user->op->UseOf(i) != Use::kComponent) return false;
             }
             return true;
           });
  };
  for (const Block* block : blocks) {
    for (auto node = block->nodes.rbegin(); node != block->nodes.rend(); ++node) {
      const std::vector<Value*>& results = (*node)->results;
      const bool is_candidate = !results.empty() && prepared.contains(node->get());
      if (is_candidate && std::all_of(results.begin(), results.end(), is_component)) nodes.insert(node->get());
    }
  }
  return nodes;
}

// Scales that a step computes get the type that their encoding says, in which they are not after they became `dtype`;
// those of the nodes `kept` are in it.
absl::Status CastComponents(Model* model, DType dtype, const absl::flat_hash_set<const Node*>& kept) {
  std::vector<Block*> blocks = {&model->prepare};
  for (const auto& step : model->steps) blocks.push_back(&step->block);
  for (Block* block : blocks) {
    for (const auto& node : block->nodes) {
      if (!Is<Encode>(node.get())) continue;
      ASSIGN_OR_RETURN(const Encoding* encoding, ParseEncoding(View<Encode>(*node).as));
      for (size_t i = 0; i < node->operands.size(); ++i) {
        Value* value = node->operands[i];
        const bool is_changed =
            value->kind == ValueKind::kParam || (value->def != nullptr && !Is<Constant>(value->def) &&
                                                 !Is<DynamicScale>(value->def) && !kept.contains(value->def));
        const DType wanted = encoding->ComponentType(i, Dims{Dim(1), Dim(1)}).dtype;
        if (!is_changed || !IsRetyped(wanted) || wanted == dtype) continue;
        ASSIGN_OR_RETURN(Node * cast, model->AddNode(block, node.get(), DefOf<Cast>(), {value}, {{"to", Attr(wanted)}},
                                                     {absl::StrCat(value->name, ".", DTypeName(wanted))}, node->loc));
        model->SetOperand(node.get(), i, cast->results[0]);
      }
    }
  }
  return absl::OkStatus();
}

class Retyper {
 public:
  Retyper(Model* model, DType dtype) : model_(model), dtype_(dtype), components_(NodesOfComponents(*model)) {
    if (DTypeBits(dtype) == 16) counts_.emplace(*model, dtype);
  }

  absl::Status Run() {
    std::vector<std::pair<Step*, Output*>> logits = Logits();
    for (Value* state : model_->states) ChangeState(state);
    for (const auto& step : model_->steps) {
      for (Value* param : step->params) ChangeType(param);
    }
    RETURN_IF_ERROR(SplitConstants());
    ChangeBlock(&model_->prepare);
    for (const auto& step : model_->steps) ChangeBlock(&step->block);
    RETURN_IF_ERROR(CastWeights());
    RETURN_IF_ERROR(CastCounts());
    RETURN_IF_ERROR(CastComponents(model_, dtype_, components_));
    RETURN_IF_ERROR(InferAndCast());
    for (auto [step, output] : logits) {
      RETURN_IF_ERROR(CastBack(step, output));
    }
    return absl::OkStatus();
  }

 private:
  void ChangeState(Value* state) {
    StateType type = *state->state;
    for (StateComponent& component : type.components) {
      if (IsRetyped(component.type.dtype)) component.type.dtype = dtype_;
    }
    Model::SetStateType(state, type);
  }

  void ChangeType(Value* value) {
    if (IsRetyped(value->type.dtype)) value->type.dtype = dtype_;
  }

  bool IsExact(const Value* value) const { return counts_.has_value() && counts_->IsExact(value); }
  bool TakesExact(const Node* node) const { return counts_.has_value() && counts_->Takes(node); }

  bool IsFrequency(const Value* value) const {
    if (IsExact(value)) return true;
    for (const Node* user : value->users) {
      for (size_t i = 0; i < user->operands.size(); ++i) {
        if (user->operands[i] == value && KeepsType(*user, i)) return true;
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
    ASSIGN_OR_RETURN(Node * cast, model_->AddNode(&step->block, nullptr, DefOf<Cast>(), {output->value}, {},
                                                  {absl::StrCat(output->value->name, ".f32")}, ""));
    output->value = cast->results[0];
    return absl::OkStatus();
  }

  void ChangeBlock(Block* block) {
    for (const auto& node : block->nodes) {
      if (components_.contains(node.get())) continue;
      if (Is<Cast>(node.get()) && !IsLogits(node->results[0]) && !IsFrequency(node->results[0])) {
        auto to = node->attrs.find("to");
        const DType target = to == node->attrs.end() ? Cast{}.to : std::get<DType>(to->second);
        if (IsRetyped(target)) SetTarget(node.get(), dtype_);
      }
      if (Is<Encode>(node.get())) SetTarget(node.get(), dtype_);
      if (Is<Constant>(node.get())) ChangeConstant(node.get());
      if (Is<Pad>(node.get()) && IsRetyped(node->results[0]->type.dtype)) ChangePad(node.get());
    }
  }

  void ChangePad(Node* node) {
    auto value = node->attrs.find("value");
    if (value == node->attrs.end()) return;
    value->second = Clamped(std::get<double>(value->second), IsExact(node->results[0]), dtype_);
  }

  void ChangeConstant(Node* node) {
    const bool is_exact = IsExact(node->results[0]);
    if (!is_exact && IsFrequency(node->results[0])) return;
    const Tensor& old = std::get<Tensor>(node->attrs.at("value"));
    const DType dtype = is_exact ? old.dtype() : dtype_;
    if (!IsRetyped(old.dtype()) || old.dtype() == dtype_) return;
    Tensor changed(dtype, old.shape());
    for (int64_t i = 0; i < old.size(); ++i) changed.SetFloat(i, Clamped(old.GetFloat(i), is_exact, dtype_));
    node->attrs["value"] = std::move(changed);
  }

  // An exact constant that the rest uses too gets a twin for that.
  absl::Status SplitConstants() {
    for (Block* block : Blocks()) {
      std::vector<Node*> constants;
      for (const auto& node : block->nodes) {
        if (Is<Constant>(node.get()) && IsExact(node->results[0])) constants.push_back(node.get());
      }
      for (Node* node : constants) {
        const Value* value = node->results[0];
        const auto twin = [&] {
          return model_->AddNode(block, node, node->op, {}, node->attrs, {RoundedName(*value)}, node->loc);
        };
        RETURN_IF_ERROR(MoveUses(node->results[0], UsersThatRound(*value), twin));
      }
    }
    return absl::OkStatus();
  }

  absl::Status CastWeights() {
    const std::vector<Value*> weights = model_->weights;
    Node* front = model_->prepare.nodes.empty() ? nullptr : model_->prepare.nodes.front().get();
    for (Value* weight : weights) {
      if (!IsRetyped(weight->type.dtype) || weight->type.dtype == dtype_) continue;
      std::vector<std::pair<Node*, size_t>> uses;
      for (Node* user : weight->users) {
        for (size_t i = 0; i < user->operands.size(); ++i) {
          if (user->operands[i] != weight || KeepsType(*user, i) || TakesExact(user) || components_.contains(user))
            continue;
          uses.emplace_back(user, i);
        }
      }
      if (uses.empty()) continue;
      ASSIGN_OR_RETURN(Node * cast,
                       model_->AddNode(&model_->prepare, front, DefOf<Cast>(), {weight}, {{"to", Attr(dtype_)}},
                                       {absl::StrCat(weight->name, ".", DTypeName(dtype_))}, ""));
      for (auto [user, i] : uses) {
        if (user->operands[i] == weight) model_->SetOperand(user, i, cast->results[0]);
      }
    }
    return absl::OkStatus();
  }

  // Where what counts meets the rest, it is cast; and what was rounded to integers, where it goes on to count.
  absl::Status CastCounts() {
    if (!counts_.has_value()) return absl::OkStatus();
    for (Block* block : Blocks()) {
      std::vector<Value*> values;
      for (const auto& node : block->nodes) values.insert(values.end(), node->results.begin(), node->results.end());
      for (Value* value : values) {
        absl::Status status;
        if (IsExact(value) && value->type.dtype != dtype_) {
          status = CastUses(block, value, dtype_, RoundedName(*value), UsersThatRound(*value));
        } else if (counts_->IsWidened(value)) {
          const DType dtype = value->type.dtype;
          status = CastUses(block, value, dtype, absl::StrCat(value->name, ".", DTypeName(dtype)), ExactUsers(*value));
        }
        if (!status.ok()) return status;
      }
    }
    return absl::OkStatus();
  }

  // Infers types again. A result that has a type of its own, such as the weights of `route`, is cast where it meets the
  // rest, behind the views of it.
  absl::Status InferAndCast() {
    absl::Status casts;
    absl::flat_hash_set<const Value*> own;
    const auto visit = [&](Node* node) {
      const bool is_view = node->op->info.is_view() && own.contains(node->operands[0]);
      for (Value* result : node->results) {
        if (!casts.ok() || components_.contains(node) || !(is_view || HasOwnType(*node, *result, dtype_))) continue;
        own.insert(result);
        std::vector<Node*> users = UsersThatRound(*result);
        std::erase_if(users, [](const Node* user) { return user->op->info.is_view(); });
        casts = CastUses(node->block, result, dtype_, RoundedName(*result), users);
      }
    };
    if (absl::Status status = InferAgain(model_, visit); !status.ok()) {
      return absl::UnimplementedError(
          absl::StrCat("this model cannot be ", DTypeName(dtype_), " throughout: ", status.message()));
    }
    return casts;
  }

  std::string RoundedName(const Value& value) const { return absl::StrCat(value.name, ".", DTypeName(dtype_)); }

  // Casts take any type.
  std::vector<Node*> UsersThatRound(const Value& value) const {
    std::vector<Node*> users;
    for (Node* user : value.users) {
      if (!TakesExact(user) && !Is<Cast>(user)) users.push_back(user);
    }
    return users;
  }

  std::vector<Node*> ExactUsers(const Value& value) const {
    std::vector<Node*> users;
    for (Node* user : value.users) {
      if (TakesExact(user) && !Is<Cast>(user)) users.push_back(user);
    }
    return users;
  }

  absl::Status CastUses(Block* block, Value* value, DType dtype, const std::string& name,
                        const std::vector<Node*>& users) {
    const auto next = std::next(value->def->self);
    const Attrs attrs = dtype == Cast{}.to ? Attrs() : Attrs{{"to", Attr(dtype)}};
    return MoveUses(value, users, [&] {
      return model_->AddNode(block, next == block->nodes.end() ? nullptr : next->get(), DefOf<Cast>(), {value}, attrs,
                             {name}, value->def->loc);
    });
  }

  // The users take the result of the node that `make` makes, if there are any.
  template <class F>
  absl::Status MoveUses(Value* value, const std::vector<Node*>& users, F make) {
    if (users.empty()) return absl::OkStatus();
    ASSIGN_OR_RETURN(Node * made, make());
    for (Node* user : users) {
      for (size_t i = 0; i < user->operands.size(); ++i) {
        if (user->operands[i] == value && !KeepsType(*user, i)) model_->SetOperand(user, i, made->results[0]);
      }
    }
    return absl::OkStatus();
  }

  std::vector<Block*> Blocks() const {
    std::vector<Block*> blocks = {&model_->prepare};
    for (const auto& step : model_->steps) blocks.push_back(&step->block);
    return blocks;
  }

  Model* model_;
  DType dtype_;
  absl::flat_hash_set<const Node*> components_;  // of which values keep their types
  std::optional<ExactCounts> counts_;            // of 16-bit types
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
