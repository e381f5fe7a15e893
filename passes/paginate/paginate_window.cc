// Caches that hold a window of the last tokens: past [B, heads, C, D] of C rows, of which attention sees the first, and
// behind them the new tokens; what comes in again is gathered from both.
//
// Whoever runs such a model chooses C, and may give more rows than there are tokens. Then nothing is dropped, and row i
// holds token i. That is the run which the new program stands for: it is proven that in such a run every token attends
// to those that its window shows, and that each comes in again at its place.
#include "absl/strings/str_cat.h"
#include "passes/paginate/paginator.h"
#include "passes/proof/mask.h"

namespace llmc::pagination {
namespace {

Dim Row() { return Dim::Symbol("$row"); }
Dim More() { return Dim::Symbol("$more"); }

bool IsBehind(const Node* node, const Value* past) {
  if (!Is<Concat>(node)) return false;
  const auto op = View<Concat>(*node);
  return op.axis == 2 && op.parts.size() == 2 && op.parts[0] == past && op.parts[1] != past;
}

}  // namespace

void Paginator::FindWindowCaches() {
  for (const Value* past : caches_) {
    if (past->users.size() != 1 || !IsBehind(past->users[0], past)) continue;
    const Value* all = (past->users[0])->results[0];
    for (const Node* user : all->users) {
      const bool goes_out = Is<GatherNd>(user) && user->operands[0] == all && View<GatherNd>(*user).batch_dims == 0 &&
                            GoesOut(*user->results[0], past->name);
      if (goes_out && past->type.shape[2].is_symbol()) window_caches_[past] = user;
    }
  }
}

const Value* Paginator::NewTokensOfWindow(const Value& seen) const {
  if (seen.def == nullptr || seen.def->operands.empty()) return nullptr;
  const auto cache = window_caches_.find(seen.def->operands[0]);
  if (cache == window_caches_.end() || !IsBehind(seen.def, cache->first)) return nullptr;
  const Value *past = cache->first, *added = seen.def->operands[1];
  const Value& indices = *cache->second->operands[1];
  const Dims& shape = indices.type.shape;
  const Dims &rows = past->type.shape, &tokens = added->type.shape;
  const bool fits = shape.size() == 4 && shape[3] == Dim(3) && tokens.size() == 4 && Known(tokens[2]) == sequence_ &&
                    rows[0] == tokens[0] && rows[1] == tokens[1] && rows[3] == tokens[3] && shape[0] == rows[0] &&
                    shape[1] == rows[1] && shape[2] == rows[2];
  if (!fits) return nullptr;
  // Row i of what comes in again is token i: of the past, i = past - 1 - $row, or new, i = past + $row.
  const auto row_is = [&](const Dim& row, const Dim& from, const ElementFacts& facts) {
    const Dim expected[] = {Dim::Symbol("$update0"), Dim::Symbol("$update1"), from};
    for (int64_t i = 0; i < 3; ++i) {
      const bool is_one = i < 2 && shape[static_cast<size_t>(i)] == Dim(1);
      const auto element = ElementAt(indices, {expected[0], expected[1], row, Dim(i)}, facts);
      if (!element.has_value() || element->kind != ElementValue::Kind::kInteger) return false;
      if (!(element->integer == expected[i]) && !(is_one && element->integer == Dim(0))) return false;
    }
    return true;
  };
  const Dim before = past_ - Dim(1) - Row();
  ElementFacts facts = WithRows(facts_), apart = facts;
  // There are $row + 1 + $more new tokens.
  const std::map<std::string, Dim, std::less<>> split = {{sequence_.ToString(), Row() + Dim(1) + More()}};
  for (auto& [name, dim] : apart.dims) dim = dim.Substitute(split);
  apart.dims.insert(split.begin(), split.end());
  const Dim length = Known(rows[2]).Substitute(split);
  return row_is(before, before, facts) && row_is(past_ + Row(), length + Row(), apart) ? added : nullptr;
}

ElementFacts Paginator::WithRows(ElementFacts facts) const {
  facts.most[Row().ToString()] = facts.most[More().ToString()] = kMaxContext;
  facts.most[past_.ToString()] = Most(past_);
  return facts;
}

CausalProof Paginator::ProveWindowMask(const Attention& op) const {
  const Dims &q = op.q->type.shape, &k = op.k->type.shape;
  const Dims scores = {q[0], q[1], q[2], k[2]};
  const Dim rows = op.k->def->operands[0]->type.shape[2], before = past_ - Dim(1) - Row();
  const ElementFacts facts = WithRows(facts_);
  const CausalProof old = ProveCausalAt(*op.mask, scores, past_, {before, before}, facts);
  if (!old.mask.has_value()) return old;
  const CausalProof added = ProveCausalAt(*op.mask, scores, past_, {Known(rows) + Row(), past_ + Row()}, facts);
  if (!added.mask.has_value()) return added;
  if (old.mask->window != added.mask->window) return {.why = "windows that differ"};
  // Rows behind the past: the cache has $more + 1 of them from this one on.
  ElementFacts apart = facts;
  apart.dims[rows.ToString()] = past_ + Row() + Dim(1) + More();
  if (!ProveHidden(*op.mask, scores, past_ + Row(), apart)) return {.why = "rows without a token that may be seen"};
  return added;
}

}  // namespace llmc::pagination
