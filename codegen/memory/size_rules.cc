#include "codegen/memory/size_rules.h"

#include "absl/algorithm/container.h"
#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "ir/op.h"
#include "ir/text.h"

namespace llmc {

SizeRules::SizeRules(const Model& model, const Step& step) {
  const auto add = [&](const Value* value) {
    for (const Dim& dim : value->type.shape) {
      for (const std::string& symbol : dim.Symbols()) known_.insert(symbol);
    }
  };
  for (const Value* param : step.params) add(param);
  for (const Value* state : model.states) add(state);
}

void SizeRules::Equate(const Size& size, const Size& expected) {
  if (size == expected) return;
  plan::SizeRule rule;
  rule.set_size(size.ToString());
  rule.set_label(PrintNode(*node_));
  if (expected.has_dim() && expected.dim().is_symbol() && known_.insert(expected.ToString()).second) {
    rule.set_symbol(expected.ToString());
  } else {
    rule.set_expected(expected.ToString());
  }
  rules_.push_back(std::move(rule));
}

const Dims* SizeRules::result() const { return node_->results.empty() ? nullptr : &node_->results[0]->type.shape; }

bool SizeRules::KnowsResult() const {
  return absl::c_all_of(node_->results[0]->type.shape, [&](const Dim& dim) {
    return absl::c_all_of(dim.Symbols(), [&](const std::string& symbol) { return known_.contains(symbol); });
  });
}

// Those of inputs are read, others are computed.
std::vector<std::optional<SizeList>> SizeRules::ElementsOf(absl::Span<const Value* const> values) {
  std::vector<std::optional<SizeList>> elements;
  for (const Value* value : values) elements.push_back(value == nullptr ? std::nullopt : small_.ContentsOf(value));
  for (plan::SizeRule& rule : small_.TakeRules()) {
    if (rule.label().empty()) rule.set_label(PrintNode(*node_));
    rules_.push_back(std::move(rule));
  }
  return elements;
}

absl::Status SizeRules::Add(const Node& node) {
  node_ = &node;
  RETURN_IF_ERROR(node.op->infer_with(node, *this).status());
  for (const Value* result : node.results) {
    for (const Dim& dim : result->type.shape) {
      for (const std::string& symbol : dim.Symbols()) {
        if (!known_.insert(symbol).second) continue;  // said once
        return absl::UnimplementedError(absl::StrCat(node.op->info.name,
                                                     ": there is no GPU form of a result whose size ", symbol,
                                                     " depends on the contents of tensors\n  in: ", PrintNode(node)));
      }
    }
  }
  return absl::OkStatus();
}

}  // namespace llmc
