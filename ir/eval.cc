#include "ir/eval.h"

#include <algorithm>
#include <climits>
#include <functional>
#include <new>
#include <stdexcept>
#include <utility>

#include "absl/container/flat_hash_set.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/status_macros.h"
#include "ir/guards.h"
#include "ir/op.h"
#include "ir/text.h"

namespace llmc {
namespace {

constexpr size_t kMaxNodeText = 400;  // a constant's literal can be long

std::string Place(const Node& node) {
  std::string text = PrintNode(node);
  if (text.size() > kMaxNodeText) text = absl::StrCat(text.substr(0, kMaxNodeText), "…");
  return node.loc.empty() || text.size() <= kMaxNodeText ? absl::StrCat("\"", text, "\"")
                                                         : absl::StrCat("\"", text, "\" (", node.loc, ")");
}

absl::Status WrapError(const Node& node, const absl::Status& status) {
  return absl::Status(status.code(), absl::StrCat("while running ", Place(node), ": ", status.message()));
}

std::string TypeOf(const Tensor& tensor) {
  return absl::StrCat(DTypeName(tensor.dtype()), ShapeToString(tensor.shape()));
}

// Runs `body`; an allocation that fails becomes a status.
template <class F>
auto GuardMemory(F&& body) -> decltype(body()) {
  try {
    return body();
  } catch (const std::bad_alloc&) {
    return absl::ResourceExhaustedError("out of memory");
  } catch (const std::length_error&) {
    return absl::ResourceExhaustedError("out of memory");
  }
}

absl::Status CheckResults(const Node& node, const std::vector<IndexedType>& types, const Tensors& results,
                          SymbolSizes* sizes) {
  if (results.size() != types.size()) {
    return absl::InternalError(absl::StrCat(Place(node), " gave ", results.size(), " results, not ", types.size()));
  }
  for (size_t i = 0; i < results.size(); ++i) {
    if (absl::Status status = sizes->Check(types[i], results[i]); !status.ok()) {
      return absl::InternalError(absl::StrCat(Place(node), " gave ", TypeOf(results[i]), " for ",
                                              types[i].type->ToString(), ": ", status.message()));
    }
  }
  return absl::OkStatus();
}

bool HasFlag(const Node& node, unsigned flag) { return (node.op->info.flags & flag) != 0; }

}  // namespace

absl::StatusOr<Tensors> EvalNode(const Node& node, absl::Span<const Tensor* const> operands, const DimEnv& dims) {
  if (HasFlag(node, kWritesState)) {
    return absl::InvalidArgumentError(absl::StrCat(Place(node), " writes a state"));
  }
  SymbolTable table(nullptr);
  Types types;
  std::vector<IndexedType> indexed;
  for (const Value* result : node.results) {
    types.push_back(result->type);
    indexed.push_back(IndexType(result->type, &table));
  }
  SymbolSizes sizes(&table);
  for (const auto& [symbol, size] : dims) {
    RETURN_IF_ERROR(sizes.Bind(symbol, size));
  }
  for (const IndexedType& type : indexed) {
    if (absl::Status status = sizes.CheckBytes(type); !status.ok()) return WrapError(node, status);
  }
  return GuardMemory([&]() -> absl::StatusOr<Tensors> {
    const EvalArgs args{.in = operands, .state = nullptr, .dims = &dims, .result_types = &types};
    absl::StatusOr<Tensors> results = node.op->eval(node, args);
    if (!results.ok()) return WrapError(node, results.status());
    RETURN_IF_ERROR(CheckResults(node, indexed, *results, &sizes));
    return results;
  });
}

// A block with every name resolved to a slot: s >= 0 is a local of the run, ~s an index of persistent_.
struct Evaluator::Program {
  static constexpr int kAbsent = INT_MIN;
  struct Item {
    const Node* node = nullptr;
    std::vector<int> operands;
    std::vector<int> results;
    std::vector<int> release;  // slots that nothing reads after this node
    Types types;
    std::vector<IndexedType> indexed;
    int guard = -1;  // an index into guards: it runs if that holds
  };
  struct GuardItem {
    int outer = -1;
    int condition = 0;  // a slot
    bool wanted = false;
  };
  explicit Program(const DimEnv* bounds) : table(bounds) {}

  SymbolTable table;
  std::vector<Item> items;
  std::vector<GuardItem> guards;
  int locals = 0;
  std::vector<std::pair<std::string, IndexedType>> params;  // local i is params[i]
  std::vector<std::pair<std::string, int>> outputs;
  bool uses_states = false;

  // Each slot goes with the last item that has it, but for those that are `done`: read after the last item.
  void FindReleases(absl::flat_hash_set<int> done, bool only_locals) {
    for (auto item = items.rbegin(); item != items.rend(); ++item) {
      for (const auto* list : {&item->operands, &item->results}) {
        for (int slot : *list) {
          if (slot == kAbsent || (only_locals && slot < 0)) continue;
          if (done.insert(slot).second) item->release.push_back(slot);
        }
      }
    }
  }
};

Evaluator::Evaluator(const Model* model) : model_(model) {}
Evaluator::~Evaluator() = default;

std::unique_ptr<Evaluator::Program> Evaluator::Compile(const Block& block, const Step* step) const {
  auto program = std::make_unique<Program>(&model_->dims);
  absl::flat_hash_map<const Value*, int> slots;
  const auto slot_of = [&](const Value* value) -> int {
    if (value == nullptr) return Program::kAbsent;
    if (auto it = persistent_index_.find(value); it != persistent_index_.end()) return ~it->second;
    return slots.emplace(value, static_cast<int>(slots.size())).first->second;
  };
  if (step != nullptr) {
    for (const Value* param : step->params) {
      slot_of(param);
      program->params.emplace_back(param->name.substr(1), IndexType(param->type, &program->table));
    }
  }
  for (const auto& node : block.nodes) {
    Program::Item& item = program->items.emplace_back();
    item.node = node.get();
    for (const Value* operand : node->operands) {
      item.operands.push_back(slot_of(operand));
      program->uses_states |= operand != nullptr && operand->kind == ValueKind::kState;
    }
    for (const Value* result : node->results) {
      item.results.push_back(slot_of(result));
      item.types.push_back(result->type);
      item.indexed.push_back(IndexType(result->type, &program->table));
    }
  }
  if (step != nullptr) {
    const GuardedNodes guarded = FindGuards(*step);
    for (const Guard& guard : guarded.guards) {
      program->guards.push_back({guard.outer, slot_of(guard.condition), guard.wanted});
    }
    for (Program::Item& item : program->items) {
      if (const auto guard = guarded.of.find(item.node); guard != guarded.of.end()) item.guard = guard->second;
    }
  }
  absl::flat_hash_set<int> done;  // read after the last node
  if (step != nullptr) {
    for (const Output& output : step->outputs) {
      program->outputs.emplace_back(output.name, slot_of(output.value));
      program->uses_states |= output.value->kind == ValueKind::kState;
      done.insert(program->outputs.back().second);
    }
  } else {
    // Of what `prepare` reads and makes, steps need some.
    for (const auto& [value, index] : persistent_index_) {
      const bool outside = std::any_of(value->users.begin(), value->users.end(),
                                       [&](const Node* user) { return user->block != &block; });
      if (outside || value->kind == ValueKind::kState || model_->IsOutput(value)) done.insert(~index);
    }
  }
  program->FindReleases(std::move(done), /*only_locals=*/step != nullptr);
  program->locals = static_cast<int>(slots.size());
  return program;
}

absl::StatusOr<std::unique_ptr<Evaluator>> Evaluator::Create(const Model* model) {
  auto evaluator = std::unique_ptr<Evaluator>(new Evaluator(model));
  const absl::Status status = GuardMemory([&] { return evaluator->Init(); });
  if (!status.ok()) return status;
  return evaluator;
}

absl::Status Evaluator::Init() {
  const auto add = [&](const Value* value, Tensor tensor) {
    persistent_index_.emplace(value, static_cast<int>(persistent_.size()));
    persistent_.push_back(std::move(tensor));
  };
  for (const Value* weight : model_->weights) {
    auto data = model_->data.find(weight->name);
    if (data == model_->data.end()) {
      return absl::FailedPreconditionError(
          absl::StrCat("weight ", weight->name, " has no data; its source is \"", weight->source, "\""));
    }
    SymbolTable table(nullptr);
    const IndexedType type = IndexType(weight->type, &table);
    SymbolSizes sizes(&table);
    if (absl::Status status = sizes.Check(type, data->second); !status.ok()) {
      return absl::InvalidArgumentError(absl::StrCat("weight ", weight->name, " is declared ", weight->type.ToString(),
                                                     ", its data is ", TypeOf(data->second)));
    }
    add(weight, data->second);
  }
  for (const Value* state : model_->states) add(state, Tensor());
  for (const auto& node : model_->prepare.nodes) {
    for (const Value* result : node->results) add(result, Tensor());
  }
  const std::unique_ptr<Program> program = Compile(model_->prepare, nullptr);
  SymbolSizes sizes(&program->table);
  std::vector<Tensor> locals(program->locals);
  RETURN_IF_ERROR(RunProgram(*program, &sizes, &locals));
  base_dims_ = sizes.env();
  states_allocated_ = model_->states.empty();
  return absl::OkStatus();
}

absl::Status Evaluator::AllocateStates(const DimEnv& dims) {
  return GuardMemory([&]() -> absl::Status {
    SymbolTable table(&model_->dims);
    for (const Value* state : model_->states) {
      for (const Dim& dim : state->type.shape) {
        for (const std::string& symbol : dim.Symbols()) table.Add(symbol);
      }
    }
    SymbolSizes sizes(&table);
    for (const DimEnv& env : {base_dims_, dims}) {
      for (const auto& [symbol, size] : env) {
        if (table.Find(symbol) < 0) continue;
        RETURN_IF_ERROR(sizes.Bind(symbol, size));
      }
    }
    for (const Value* state : model_->states) {
      Shape shape;
      for (const Dim& dim : state->type.shape) {
        const absl::StatusOr<int64_t> size = dim.Evaluate(sizes.env());
        if (!size.ok()) {
          return absl::InvalidArgumentError(absl::StrCat("state ", state->name, ": ", size.status().message()));
        }
        shape.push_back(*size);
      }
      RETURN_IF_ERROR(CheckedElements(state->type.dtype, shape).status());
      persistent_[persistent_index_.at(state)] = Tensor(state->type.dtype, std::move(shape));
    }
    for (const auto& [symbol, size] : sizes.env()) base_dims_[symbol] = size;
    states_allocated_ = true;
    return absl::OkStatus();
  });
}

Tensor* Evaluator::FindState(absl::string_view name) {
  const Value* value = model_->Find(name);
  if (!states_allocated_ || value == nullptr || value->kind != ValueKind::kState) return nullptr;
  return &persistent_[persistent_index_.at(value)];
}

const Evaluator::Program* Evaluator::ProgramFor(const Step& step) {
  std::unique_ptr<Program>& program = programs_[&step];
  if (program == nullptr) program = Compile(step.block, &step);
  return program.get();
}

absl::Status Evaluator::RunProgram(const Program& program, SymbolSizes* sizes, std::vector<Tensor>* locals) {
  const auto at = [&](int slot) -> Tensor* { return slot >= 0 ? &(*locals)[slot] : &persistent_[~slot]; };
  const std::function<bool(int)> holds = [&](int guard) {
    if (guard < 0) return true;
    const Program::GuardItem& own = program.guards[static_cast<size_t>(guard)];
    return holds(own.outer) && (at(own.condition)->data<uint8_t>()[0] != 0) == own.wanted;
  };
  std::vector<const Tensor*> operands;
  for (const Program::Item& item : program.items) {
    const Node& node = *item.node;
    if (!holds(item.guard)) {
      for (int slot : item.release) *at(slot) = Tensor();
      continue;
    }
    operands.clear();
    for (int slot : item.operands) operands.push_back(slot == Program::kAbsent ? nullptr : at(slot));
    for (const IndexedType& type : item.indexed) {
      if (absl::Status status = sizes->CheckBytes(type); !status.ok()) return WrapError(node, status);
    }
    const EvalArgs args{.in = operands,
                        .state = HasFlag(node, kWritesState) ? at(item.operands[0]) : nullptr,
                        .dims = &sizes->env(),
                        .result_types = &item.types};
    absl::StatusOr<Tensors> results = node.op->eval(node, args);
    if (!results.ok()) return WrapError(node, results.status());
    RETURN_IF_ERROR(CheckResults(node, item.indexed, *results, sizes));
    for (size_t i = 0; i < item.results.size(); ++i) *at(item.results[i]) = std::move((*results)[i]);
    for (int slot : item.release) *at(slot) = Tensor();
  }
  return absl::OkStatus();
}

namespace {

// "ids: i32[T], pos: i32[T]"
std::string Signature(const Step& step) {
  return absl::StrJoin(step.params, ", ", [](std::string* out, const Value* param) {
    absl::StrAppend(out, param->name.substr(1), ": ", param->type.ToString());
  });
}

absl::Status InputError(absl::string_view name, const TensorType& want, const Tensor& got, absl::string_view why) {
  return absl::InvalidArgumentError(
      absl::StrCat("input \"", name, "\" must be ", want.ToString(), ", got ", TypeOf(got), ": ", why));
}

}  // namespace

absl::StatusOr<NamedTensors> Evaluator::Run(const Step& step, const NamedTensors& inputs) {
  return GuardMemory([&]() -> absl::StatusOr<NamedTensors> {
    const Program& program = *ProgramFor(step);
    if (program.uses_states && !states_allocated_) {
      return absl::FailedPreconditionError("the model has states: call AllocateStates first");
    }
    std::vector<Tensor> locals(program.locals);
    SymbolSizes sizes(&program.table);
    for (const auto& [symbol, size] : base_dims_) {
      RETURN_IF_ERROR(sizes.Bind(symbol, size));
    }
    size_t taken = 0;
    for (size_t i = 0; i < program.params.size(); ++i) {
      const auto& [name, type] = program.params[i];
      auto input = inputs.find(name);
      if (input == inputs.end()) {
        return absl::InvalidArgumentError(
            absl::StrCat("input \"", name, "\" is missing; step ", step.name, " takes ", Signature(step)));
      }
      ++taken;
      locals[i] = input->second;
      if (locals[i].dtype() != type.type->dtype) {
        return InputError(name, *type.type, locals[i], "the element type differs");
      }
      if (absl::Status status = sizes.BindPlain(type, locals[i].shape()); !status.ok()) {
        return InputError(name, *type.type, locals[i], status.message());
      }
    }
    if (taken != inputs.size()) {
      for (const auto& [name, tensor] : inputs) {
        const bool known = std::any_of(program.params.begin(), program.params.end(),
                                       [&, n = &name](const auto& param) { return param.first == *n; });
        if (!known) {
          return absl::InvalidArgumentError(
              absl::StrCat("there is no input \"", name, "\"; step ", step.name, " takes ", Signature(step)));
        }
      }
    }
    for (size_t i = 0; i < program.params.size(); ++i) {
      const auto& [name, type] = program.params[i];
      if (absl::Status status = sizes.CheckExpressions(type, locals[i].shape()); !status.ok()) {
        return InputError(name, *type.type, locals[i], status.message());
      }
    }
    RETURN_IF_ERROR(RunProgram(program, &sizes, &locals));
    NamedTensors outputs;
    for (const auto& [name, slot] : program.outputs) outputs[name] = slot >= 0 ? locals[slot] : persistent_[~slot];
    return outputs;
  });
}

}  // namespace llmc
