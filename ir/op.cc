#include "ir/op.h"

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
