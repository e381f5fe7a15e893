#include "quantize/linear_modules.h"

#include <algorithm>
#include <optional>
#include <set>

#include "absl/container/flat_hash_map.h"
#include "absl/container/flat_hash_set.h"
#include "absl/strings/match.h"
#include "absl/strings/strip.h"
#include "files/path_check.h"
#include "ir/ops.h"

namespace llmc {
namespace {

constexpr absl::string_view kWeightEnding = ".weight";

bool IsProductOf(const Node& node, const Value* weight) {
  if (Is<Linear>(&node)) return View<Linear>(node).rhs == weight;
  return Is<ExpertLinear>(&node) && View<ExpertLinear>(node).weight == weight;
}

// Whether the result holds the same numbers, in another order, shape or type, or among others.
bool Passes(const Node& node) { return Is<Cast>(&node) || node.op->info.is_view() || node.op->info.Has(kMoves); }

// Nodes that read the weight, through nodes that only move its numbers.
struct Readers {
  std::vector<const Node*> products, others;
};
Readers ReadersOf(const Value* weight) {
  Readers readers;
  absl::flat_hash_set<const Node*> seen;
  std::vector<const Value*> open = {weight};
  while (!open.empty()) {
    const Value* value = open.back();
    open.pop_back();
    for (const Node* user : value->users) {
      if (!seen.insert(user).second) continue;
      if (IsProductOf(*user, value)) {
        readers.products.push_back(user);
      } else if (Passes(*user) && user->operands[0] == value && !Is<Gather>(user)) {
        open.insert(open.end(), user->results.begin(), user->results.end());
      } else if (Is<Concat>(user)) {
        open.insert(open.end(), user->results.begin(), user->results.end());
      } else {
        readers.others.push_back(user);
      }
    }
  }
  return readers;
}

bool IsProduct(const Node& node) { return Is<Linear>(&node) || Is<ExpertLinear>(&node); }

// The numbers of `whole` that lie before those of `weight`, where whole is made of weights one behind the other;
// nothing if it is not.
std::optional<int64_t> NumbersBefore(const Value* weight, const Value* whole) {
  while (whole != weight && whole->kind == ValueKind::kResult &&
         (Is<Cast>(whole->def) || whole->def->op->info.is_view())) {
    whole = whole->def->operands[0];
  }
  if (whole == weight) return 0;
  if (whole->kind != ValueKind::kResult || !Is<Concat>(whole->def) || View<Concat>(*whole->def).axis != 0) {
    return std::nullopt;
  }
  int64_t before = 0;
  for (const Value* part : whole->def->operands) {
    if (const std::optional<int64_t> inside = NumbersBefore(weight, part)) return before + *inside;
    const Dim numbers = Product(part->type.shape);
    if (!numbers.is_constant()) return std::nullopt;
    before += numbers.value();
  }
  return std::nullopt;
}

void FindExpert(const ExpertLinear& product, LinearModule* module) {
  const Dims& shape = product.weight->type.shape;  // [experts, rows, in]
  const std::optional<int64_t> before = NumbersBefore(module->weight, product.weight);
  const bool is_known = before.has_value() && product.transpose_weight && shape[2] == Dim(module->in);
  if (!is_known || !shape[1].is_constant()) return;
  const int64_t row = *before / module->in, rows = shape[1].value();
  module->expert = row / rows;
  module->first_row = row % rows;
}

// Values of a step from which a product, or a write to a state, is reached.
absl::flat_hash_set<const Value*> ValuesBeforeProducts(const Step& step) {
  absl::flat_hash_set<const Value*> before;
  for (auto it = step.block.nodes.rbegin(); it != step.block.nodes.rend(); ++it) {
    const Node& node = **it;
    const bool leads = IsProduct(node) || node.op->info.Has(kWritesState) ||
                       std::any_of(node.results.begin(), node.results.end(),
                                   [&](const Value* result) { return before.contains(result); });
    if (leads) before.insert(node.operands.begin(), node.operands.end());
  }
  return before;
}

// Whether the choice of experts is made of it, by elementwise ops alone.
bool LeadsToRoute(const Node& product) {
  std::vector<const Value*> open(product.results.begin(), product.results.end());
  absl::flat_hash_set<const Value*> seen;
  while (!open.empty()) {
    const Value* value = open.back();
    open.pop_back();
    if (!seen.insert(value).second) continue;
    for (const Node* user : value->users) {
      if (Is<Route>(user)) return true;
      if (!Passes(*user) && !user->op->info.is_elementwise()) continue;
      open.insert(open.end(), user->results.begin(), user->results.end());
    }
  }
  return false;
}

std::string WhyNot(const LinearModule& module, const Readers& readers) {
  if (!absl::EndsWith(module.tensor, kWeightEnding)) return "its tensor is not called MODULE.weight";
  if (!readers.others.empty()) {
    return std::any_of(readers.others.begin(), readers.others.end(), [](const Node* n) { return Is<Gather>(n); })
               ? "it is the table of embeddings, too"
               : "something else than a product reads it, too";
  }
  for (const Node* product : readers.products) {
    const bool is_transposed = Is<Linear>(product) && !View<Linear>(*product).transpose_rhs;
    if (is_transposed) return "it is stored with inputs in rows";
  }
  return "";
}

}  // namespace

std::vector<LinearModule> FindLinearModules(const Model& model) {
  const Step& step = *model.steps.front();
  absl::flat_hash_map<const Node*, int64_t> order;
  for (const auto& node : step.block.nodes) order.emplace(node.get(), static_cast<int64_t>(order.size()));
  const absl::flat_hash_set<const Value*> before = ValuesBeforeProducts(step);
  std::vector<std::pair<int64_t, LinearModule>> found;
  for (const Value* weight : model.weights) {
    const auto source = SplitWeightSource(weight->source);
    if (weight->type.rank() != 2 || !IsFloat(weight->type.dtype) || !source.has_value()) continue;
    const Readers readers = ReadersOf(weight);
    if (readers.products.empty()) {
      const bool is_table =
          std::all_of(readers.others.begin(), readers.others.end(), [](const Node* node) { return Is<Gather>(node); });
      if (is_table) continue;
    }
    LinearModule module{.tensor = source->second, .file = source->first, .weight = weight};
    module.name = std::string(absl::StripSuffix(module.tensor, kWeightEnding));
    module.out = weight->type.shape[0].value();
    module.in = weight->type.shape[1].value();
    module.products = readers.products;
    module.reason = WhyNot(module, readers);
    int64_t place = static_cast<int64_t>(order.size());
    for (const Node* product : readers.products) {
      if (const auto at = order.find(product); at != order.end()) place = std::min(place, at->second);
      module.is_expert |= Is<ExpertLinear>(product);
      if (Is<ExpertLinear>(product)) FindExpert(View<ExpertLinear>(*product), &module);
      module.is_router |= LeadsToRoute(*product);
      module.is_head |= !module.is_expert && !before.contains(product->results[0]);
      // What is tied to the table of embeddings is known by the head's own name.
      if (module.is_head && !readers.others.empty() && !product->loc.empty()) module.name = product->loc;
    }
    if (readers.products.empty()) module.reason = "nothing multiplies with it by itself";
    found.emplace_back(place, std::move(module));
  }
  std::stable_sort(found.begin(), found.end(), [](const auto& a, const auto& b) { return a.first < b.first; });
  std::vector<LinearModule> modules;
  for (auto& [place, module] : found) modules.push_back(std::move(module));
  return modules;
}

}  // namespace llmc
