#include "ir/op.h"

#include <iterator>

#include "absl/algorithm/container.h"
#include "absl/container/flat_hash_map.h"
#include "absl/strings/str_cat.h"
#include "ir/ops.h"

namespace llmc {
namespace {

template <class... Ops>
std::vector<const OpDef*> DefsOf(OpList<Ops...>) {
  return {DefOf<Ops>()...};
}

const std::vector<const OpDef*>& Defs() {
  static const auto* const defs = new std::vector<const OpDef*>(DefsOf(AllOps{}));
  return *defs;
}

}  // namespace

Types ResultTypes(const Node& node) {
  Types types;
  for (const Value* result : node.results) types.push_back(result->type);
  return types;
}

bool NeedsNoKernel(const Node& node) { return node.op->info.is_view() || Is<Constant>(&node) || Is<Encode>(&node); }

const Value* ViewedValue(const Value* value) {
  while (value->def != nullptr && value->def->op->info.is_view()) value = value->def->operands[0];
  return value;
}

std::vector<const Value*> StoredValues(const Value* value) {
  value = ViewedValue(value);
  if (!Is<Encode>(value->def)) return {value};
  std::vector<const Value*> stored;
  for (const Value* component : value->def->operands) stored.push_back(ViewedValue(component));
  return stored;
}

std::vector<const Value*> StoredOperands(const Node& node) {
  std::vector<const Value*> all;
  for (const Value* operand : node.operands) {
    if (operand != nullptr) absl::c_copy(StoredValues(operand), std::back_inserter(all));
  }
  return all;
}

absl::Status CheckForm(const OpDef& op, absl::Span<Value* const> operands, const Attrs& attrs) {
  const absl::string_view name = op.info.name;
  if (operands.size() < op.min_operands || operands.size() > op.max_operands) {
    return absl::InvalidArgumentError(absl::StrCat(name, ": takes ", op.min_operands,
                                                   op.variadic() ? " or more"
                                                   : op.max_operands != op.min_operands
                                                       ? absl::StrCat(" to ", op.max_operands)
                                                       : std::string(),
                                                   " operands, got ", operands.size()));
  }
  for (size_t i = 0; i < operands.size(); ++i) {
    if (operands[i] == nullptr && (i < op.min_operands || op.variadic())) {
      return absl::InvalidArgumentError(absl::StrCat(name, ": operand ", i, " is absent"));
    }
  }
  for (const auto& [key, value] : attrs) {
    auto it = op.defaults.find(key);
    if (it == op.defaults.end()) {
      return absl::InvalidArgumentError(absl::StrCat(name, ": has no attribute '", key, "'"));
    }
    if (it->second.index() != value.index()) {
      return absl::InvalidArgumentError(absl::StrCat(name, ": attribute '", key, "' has the wrong type"));
    }
  }
  if ((op.info.flags & kWritesState) != 0 && operands[0]->kind != ValueKind::kState) {
    return absl::InvalidArgumentError(absl::StrCat(name, ": operand ", operands[0]->name, " is not a state"));
  }
  for (const Value* operand : operands) {
    if (operand == nullptr || operand->type.encoding == nullptr || op.info.Has(kTakesEncoded)) continue;
    return absl::InvalidArgumentError(absl::StrCat(name, ": does not take ", operand->name, ": ",
                                                   operand->type.ToString(),
                                                   ", which is encoded; decode gives its numbers"));
  }
  if (!op.info.touches_state()) {
    for (const Value* operand : operands) {
      if (operand == nullptr || operand->kind != ValueKind::kState) continue;
      return absl::InvalidArgumentError(absl::StrCat(name, ": does not take the state ", operand->name));
    }
  }
  return absl::OkStatus();
}

absl::Span<const OpDef* const> AllOpDefs() { return Defs(); }

const OpDef* FindOp(absl::string_view name) {
  static const auto* const by_name = [] {
    auto* map = new absl::flat_hash_map<absl::string_view, const OpDef*>();
    for (const OpDef* def : Defs()) map->emplace(def->info.name, def);
    return map;
  }();
  auto it = by_name->find(name);
  return it == by_name->end() ? nullptr : it->second;
}

Node* Builder::AddRaw(const OpDef* op, std::vector<Value*> operands, Attrs attrs, std::vector<std::string> names) {
  if (!status_.ok()) return nullptr;
  absl::StatusOr<Node*> node =
      model_->AddNode(block_, before_, op, std::move(operands), std::move(attrs), std::move(names), loc_);
  if (!node.ok()) {
    status_ = node.status();
    return nullptr;
  }
  return *node;
}

}  // namespace llmc
