// What looks at other tokens or at positions: caches, rotations and attention; and the rows whose logits are asked for.
#include <algorithm>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "ir/state_type.h"
#include "passes/paginate/paginator.h"
#include "passes/paginate/rotate_tokens.h"
#include "passes/proof/mask.h"

namespace llmc::pagination {

const Value* Paginator::NewTokens(const Value* seen) const {
  if (const Value* added = NewTokensOfWindow(*seen); added != nullptr) return added;
  const Node* node = seen->def;
  if (Is<ScatterNd>(node)) {
    const auto op = View<ScatterNd>(*node);
    const bool is_cache = ExtendsCache(op.x->def, *seen) && op.reduction == "none" &&
                          op.updates->type.shape == View<Concat>(*op.x->def).parts[1]->type.shape &&
                          ReachesTokens(*op.indices, op.updates->type.shape);
    return is_cache ? op.updates : seen;
  }
  return ExtendsCache(node, *seen) ? View<Concat>(*node).parts[1] : seen;
}

bool Paginator::ExtendsCache(const Node* node, const Value& seen) const {
  if (!Is<Concat>(node)) return false;
  const auto op = View<Concat>(*node);
  return op.parts.size() == 2 && op.axis == 2 && caches_.contains(op.parts[0]) && op.parts[0]->users.size() == 1 &&
         GoesOut(seen, op.parts[0]->name);
}

bool Paginator::ReachesTokens(const Value& indices, const Dims& updates) const {
  const Dims& shape = indices.type.shape;
  if (shape.size() != 4 || updates.size() != 4 || !(shape[3] == Dim(3)) || !(Known(updates[2]) == sequence_))
    return false;
  Dims place;
  for (size_t axis = 0; axis < 3; ++axis) {
    const bool is_one = updates[axis] == Dim(1);
    place.push_back(is_one ? Dim(0) : Dim::Symbol(absl::StrCat("$update", axis)));
    if (!(shape[axis] == updates[axis])) return false;
  }
  place.emplace_back();
  for (int64_t i = 0; i < 3; ++i) {
    place[3] = Dim(i);
    const std::optional<ElementValue> element = ElementAt(indices, place, facts_);
    const Dim expected = i == 2 ? past_ + place[2] : place[static_cast<size_t>(i)];
    const bool fits =
        element.has_value() && element->kind == ElementValue::Kind::kInteger && element->integer == expected;
    if (!fits) return false;
  }
  return true;
}

bool Paginator::GoesOut(const Value& value, absl::string_view past) const {
  if (!absl::ConsumePrefix(&past, "%past_key_values")) absl::ConsumePrefix(&past, "%past");
  return std::any_of(old_.outputs.begin(), old_.outputs.end(), [&](const Output& output) {
    return output.value == &value && absl::StartsWith(output.name, "present") && absl::EndsWith(output.name, past);
  });
}

std::optional<int64_t> Paginator::PositionOffset(const Value& value) const {
  const Dims& shape = value.type.shape;
  if (!IsInteger(value.type.dtype) || shape.empty() || shape.size() > 2) return std::nullopt;
  if (!(Known(shape.back()) == sequence_)) return std::nullopt;
  Dims place(shape.size(), Dim(0));
  place.back() = Dim::Symbol("$token");
  if (shape.size() == 2 && !(shape[0] == Dim(1))) place[0] = Dim::Symbol("$batch");
  const std::optional<ElementValue> element = ElementAt(value, place, facts_);
  if (!element.has_value() || element->kind != ElementValue::Kind::kInteger) return std::nullopt;
  const Dim offset = element->integer - past_ - place.back();
  return offset.is_constant() ? std::optional(offset.value()) : std::nullopt;
}

Value* Paginator::Flat(const Token& token) {
  const Dims& shape = token.value->type.shape;
  return Reshaped(token.value, {shape[0], shape[1] * shape[2]});
}

bool Paginator::HasHeads(const Token& token) {
  return token.axes == std::vector<Axis>{Axis::kBatch, Axis::kFeature, Axis::kSequence, Axis::kFeature};
}

std::optional<ElementValue> Paginator::AnglesOf(const RotaryEmbedding& op) const {
  const Dim& half = op.cos->type.shape[2];
  if (!half.is_constant()) return std::nullopt;
  ElementFacts facts = facts_;
  facts.most["$angle"] = half.value() - 1;
  const Dims place = {Dim::Symbol("$batch"), Dim::Symbol("$token"), Dim::Symbol("$angle")};
  const auto cos = ElementAt(*op.cos, place, facts), sin = ElementAt(*op.sin, place, facts);
  using Function = ElementValue::Function;
  const bool turns = cos.has_value() && sin.has_value() && cos->function == Function::kCos &&
                     sin->function == Function::kSin && cos->factor == past_ + place[1] && sin->factor == cos->factor &&
                     cos->table == sin->table && cos->place == sin->place && cos->inner == sin->inner &&
                     cos->outer == sin->outer;
  return turns ? cos : std::nullopt;
}

Verdict Paginator::ConvertRotary(const Node& node) {
  const auto op = View<RotaryEmbedding>(node);
  const std::optional<Token> x = Find(op.x);
  if (!x.has_value() || !HasHeads(*x)) return No(node, op.x->name, "tokens [B, heads, S, D]");
  const std::optional<ElementValue>& cos = angles_.at(&node);
  if (!cos.has_value()) return ConvertGivenRotary(node, *x);
  const Dim& half = op.cos->type.shape[2];
  Value* inv_freq = Frequencies(*cos, Dim::Symbol("$angle"), half);
  if (inv_freq == nullptr) return No(node, cos->table->name, "a table of frequencies");
  const int64_t dim = x->value->type.shape[2].value();
  Value* rotated = builder_->Add(Rope{.x = Flat(*x),
                                      .pos = inputs_.at(StepRole::kPositions),
                                      .inv_freq = inv_freq,
                                      .head_dim = dim,
                                      .interleaved = op.interleaved,
                                      .scale = cos->outer});
  if (rotated == nullptr) return No(node, std::string(builder_->status().message()), "rope");
  Set(node, Reshaped(rotated, x->value->type.shape), x->axes);
  return std::nullopt;
}

Verdict Paginator::ConvertGivenRotary(const Node& node, const Token& x) {
  const auto op = View<RotaryEmbedding>(node);
  const std::vector<Axis> expected = {Axis::kBatch, Axis::kSequence, Axis::kFeature};
  const std::optional<Token> cos = Find(op.cos), sin = Find(op.sin);
  for (const auto& [token, value] : {std::pair(&cos, op.cos), {&sin, op.sin}}) {
    const bool fits = token->has_value() && (*token)->axes == expected && (*token)->value->type.shape[1].is_constant();
    if (!fits) return No(node, value->name, "cos and sin of position * frequency, or of tokens");
  }
  const Dims& heads = x.value->type.shape;
  if (!heads[1].is_constant() || !heads[2].is_constant()) return No(node, DimsToString(heads), "known heads");
  Set(node, RotateTokens(&*builder_, x.value, cos->value, sin->value, op.interleaved), x.axes);
  return std::nullopt;
}

Value* Paginator::Frequencies(const ElementValue& cos, const Dim& angle, const Dim& half) {
  const Dims& shape = cos.table->type.shape;
  for (size_t i = 0; i < shape.size(); ++i) {
    if (shape[i] == Dim(1) ? false : !(shape[i] == half && cos.place[i] == angle)) return nullptr;
  }
  const auto key = std::make_pair(cos.table, cos.inner);
  if (const auto it = frequencies_.find(key); it != frequencies_.end()) return it->second;
  Value* table = const_cast<Value*>(cos.table);
  if (table->kind == ValueKind::kResult && table->def->block == &old_.block) {
    table = builder_->AddRaw(table->def->op, {}, table->def->attrs, {})->results[0];
  }
  table = Reshaped(table, {half});
  if (table->type.dtype != DType::kF32) table = builder_->Add(Cast{.x = table, .to = DType::kF32});
  if (cos.inner != 1) {
    Value* inner =
        builder_->Add(Constant{.value = Tensor::FromValues(DType::kF32, {}, std::vector<double>{cos.inner})});
    table = builder_->Add(Mul{.lhs = table, .rhs = inner});
  }
  return frequencies_[key] = table;
}

Verdict Paginator::ConvertAttention(const Node& node) {
  const auto op = View<Attention>(node);
  const std::optional<Token> q = Find(op.q), k = Find(NewTokens(op.k)), v = Find(NewTokens(op.v));
  for (const auto& [token, value] : {std::pair(&q, op.q), {&k, op.k}, {&v, op.v}}) {
    if (!token->has_value() || !HasHeads(**token)) return No(node, value->name, "tokens [B, heads, S, D]");
  }
  const bool with_cache = NewTokens(op.k) != op.k;
  if (with_cache != !caches_.empty() || with_cache != (NewTokens(op.v) != op.v)) {
    return No(node, "keys without a cache", "keys and values behind those of the cache");
  }
  const bool is_causal = op.causal && (op.causal_from_end || !with_cache);
  if (op.causal && !is_causal) return No(node, "causal from the first key", "causal from the last key");
  CausalProof proof{.why = "no mask"};
  if (op.mask != nullptr) {
    const Dims &q_shape = op.q->type.shape, &k_shape = op.k->type.shape;
    const bool is_window = NewTokensOfWindow(*op.k) != nullptr;
    proof = is_window ? ProveWindowMask(op)
                      : ProveCausal(*op.mask, {q_shape[0], q_shape[1], q_shape[2], k_shape[2]}, past_, facts_);
    proof.why = absl::StrCat(op.mask->name, ": ", op.mask->type.ToString(), ", ", proof.why);
  } else if (is_causal) {
    proof.mask = CausalMask{};
  }
  if (!proof.mask.has_value()) return No(node, proof.why, "a causal mask");
  const Dims &queries = q->value->type.shape, &keys = k->value->type.shape, &values = v->value->type.shape;
  if (!(keys[1] == values[1]) || !keys[1].is_constant() || !keys[2].is_constant() || !values[2].is_constant()) {
    return No(node, DimsToString(values), "values in as many heads as keys");
  }
  Value* kv = model_->AddState(model_->FreshName(absl::StrCat("@kv", layers_++)),
                               StateType::Paged(Dim::Symbol("N"), kDefaultPageSize,
                                                {{"k", {k->value->type.dtype, {keys[1], keys[2]}}},
                                                 {"v", {v->value->type.dtype, {values[1], values[2]}}}}));
  Value *flat_k = Flat(*k), *flat_v = Flat(*v), *flat_q = Flat(*q);
  builder_->AddNode(KvWrite{.kv = kv, .k = flat_k, .v = flat_v, .slots = inputs_.at(StepRole::kSlots)});
  Value* out = builder_->Add(PagedAttention{.q = flat_q,
                                            .kv = kv,
                                            .pages = inputs_.at(StepRole::kPageTable),
                                            .lens = inputs_.at(StepRole::kLengths),
                                            .starts = inputs_.at(StepRole::kStarts),
                                            .scale = op.scale,
                                            .window = proof.mask->window,
                                            .softcap = op.softcap});
  if (out == nullptr) return No(node, std::string(builder_->status().message()), "paged_attention");
  Set(node, Reshaped(out, {queries[0], queries[1], values[2]}), q->axes);
  return std::nullopt;
}

Verdict Paginator::AddLogits() {
  const std::optional<Token> token = Find(logits_->value);
  const std::vector<Axis> expected = {Axis::kBatch, Axis::kSequence, Axis::kFeature};
  if (!token.has_value() || token->axes != expected) {
    return Refusal{logits_->value->def, logits_->value->name, "logits of tokens"};
  }
  if (layers_ == 0) return Refusal{nullptr, "no attention", "a layer whose keys and values go into a cache"};
  Value* logits = token->value;
  if (head_ == nullptr) logits = builder_->Add(Gather{.x = logits, .indices = inputs_.at(StepRole::kRows)});
  if (logits->type.dtype != DType::kF32) logits = builder_->Add(Cast{.x = logits, .to = DType::kF32});
  step_->outputs.push_back({"logits", logits});
  return std::nullopt;
}

}  // namespace llmc::pagination
