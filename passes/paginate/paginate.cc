// Makes a decoder over whole sequences, as ONNX has it (input_ids [B, S], a cache that comes in as past… and goes out
// as present…, or none), into the token-major program of language models (ir/ops_lm.h), whose cache is paged state.
// Then it serves like a model from a Hugging Face folder: several requests in a step, prompts in chunks.
//
// That is right only if every op but attention treats each token for itself, and attention is causal. Both are proven:
// the first by following where the axes B and S go through every op from input_ids to logits, the second from the graph
// of the mask (mask.h), given that the mask is all ones and positions count from the past on: what runs such a program
// refuses others (runtime/engine/score.h). Where a proof fails, the model stays as it is, and the ledger names the op.
//
// In the new program a value [.., B, .., S, ..] is [T, the other axes in their order].
#include <algorithm>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "ir/state_type.h"
#include "passes/driver/rewrite_driver.h"
#include "passes/paginate/kv_encoding.h"
#include "passes/paginate/page_size.h"
#include "passes/paginate/paginator.h"
#include "passes/paginate/split_pools.h"
#include "passes/passes.h"

namespace llmc {
namespace pagination {
namespace {

constexpr int64_t kMaxTokens = 8192, kMaxSequences = 256, kMaxLogits = 1024, kMaxPages = 1 << 20;

const Output* OutputNamed(const Step& step, absl::string_view name) {
  for (const Output& output : step.outputs) {
    if (output.name == name) return &output;
  }
  return nullptr;
}

}  // namespace

Verdict Paginator::Build() {
  if (Verdict no = ReadForm(); no.has_value()) return no;
  MarkNeeded();
  step_ = std::make_unique<Step>();
  step_->name = old_.name;
  builder_.emplace(model_, &step_->block);
  AddInputs();
  for (const auto& node : old_.block.nodes) {
    if (!needed_.contains(node.get())) continue;
    builder_->set_loc(node->loc);
    if (Verdict no = Convert(*node); no.has_value()) return no;
    if (!builder_->status().ok()) {
      return Refusal{node.get(), std::string(builder_->status().message()), "an op on tokens"};
    }
  }
  return AddLogits();
}

std::string Paginator::TokensOf(const Node* node) const {
  if (node == nullptr || Is<Attention>(node)) return "";
  for (const Value* operand : node->operands) {
    const std::optional<Token> token = operand == nullptr ? std::nullopt : Find(operand);
    if (!token.has_value() || token->is_constant()) continue;
    std::string axes;
    for (size_t i = 0; i < token->axes.size(); ++i) {
      if (token->axes[i] == Axis::kFeature) continue;
      absl::StrAppend(&axes, axes.empty() ? "" : " and ", "axis ", i, " (", operand->type.shape[i].ToString(), ")");
    }
    return absl::StrCat("; ", operand->name, ": ", operand->type.ToString(), " has tokens in ", axes);
  }
  return "";
}

DimEnv Paginator::Bounds() const {
  const int64_t pages = (max_context_ + kDefaultPageSize - 1) / kDefaultPageSize, sequences = Most(batch_);
  return {{"T", std::min(kMaxTokens, sequences * Most(sequence_))},
          {"S", std::min(kMaxSequences, sequences)},
          {"R", kMaxLogits},
          {"P", pages},
          {"N", kMaxPages}};
}

Verdict Paginator::ReadForm() {
  for (const Value* param : old_.params) {
    if (param->name == "%input_ids") ids_ = param;
  }
  logits_ = OutputNamed(old_, "logits");
  const bool is_decoder = ids_ != nullptr && ids_->type.rank() == 2 && logits_ != nullptr &&
                          logits_->value->type.rank() == 3 && ids_->type.shape[0].is_symbol() &&
                          ids_->type.shape[1].is_symbol();
  if (!is_decoder) return Refusal{nullptr, "no input_ids [B, S] with logits [B, S, V]", "a decoder"};
  batch_ = ids_->type.shape[0];
  sequence_ = ids_->type.shape[1];
  past_ = Dim(0);
  for (const Value* param : old_.params) {
    if (absl::StartsWith(param->name, "%past")) {
      if (param->type.rank() != 4) return Refusal{nullptr, param->type.ToString(), "a cache [B, heads, past, D]"};
      caches_.insert(param);
    }
  }
  FindWindowCaches();
  for (const Value* param : old_.params) {
    if (!caches_.contains(param) || window_caches_.contains(param)) continue;
    past_ = param->type.shape[2];
    break;
  }
  if (!caches_.empty() && window_caches_.size() == caches_.size()) past_ = Dim::Symbol("$past");
  if (!caches_.empty() && !past_.is_symbol()) return Refusal{nullptr, past_.ToString(), "a symbol for past tokens"};
  for (const Value* param : old_.params) {
    if (Verdict no = ReadParam(*param); no.has_value()) return no;
  }
  for (const Output& output : old_.outputs) {
    const bool is_known = output.name == "logits" || absl::StartsWith(output.name, "present");
    if (!is_known) return Refusal{nullptr, absl::StrCat("the output ", output.name), "logits and present…"};
  }
  for (const auto& node : old_.block.nodes) ReadFirstToken(*node);
  facts_.model = model_;
  facts_.nonempty = {batch_, sequence_};
  facts_.most = model_->dims;
  const auto bound = [&](const Dim& size, std::initializer_list<const char*> indices) {
    const absl::StatusOr<DimRange> range = size.Range(model_->dims);
    for (const char* index : indices) {
      if (range.ok()) facts_.most[index] = range->high;
    }
  };
  bound(batch_, {"$batch", "$update0"});
  bound(sequence_, {"$query", "$token", "$update2"});
  bound(past_ + sequence_, {"$key"});
  max_context_ = std::min(max_context_, Most(past_) + Most(sequence_));
  return std::nullopt;
}

int64_t Paginator::Most(const Dim& dim) const {
  const absl::StatusOr<DimRange> range = dim.Range(model_->dims);
  return range.ok() ? std::min(range->high, kMaxContext) : kMaxContext;
}

void Paginator::ReadFirstToken(const Node& node) {
  if (!Is<SliceBy>(&node)) return;
  const auto op = View<SliceBy>(node);
  const auto is = [](const Value* value, int64_t number) {
    return value != nullptr && value->contents.has_value() && *value->contents == Dims{Dim(number)};
  };
  if (!is(op.starts, 0) || !is(op.ends, 1) || (op.steps != nullptr && !is(op.steps, 1)) || op.axes == nullptr) return;
  const Dims axes = op.axes->contents.value_or(Dims());
  if (axes.size() != 1 || !axes[0].is_constant() || axes[0].value() < 0) return;
  const size_t axis = static_cast<size_t>(axes[0].value());
  if (Known(op.x->type.shape[axis]) == sequence_) Same(node.results[0]->type.shape[axis], Dim(1));
}

Verdict Paginator::ReadParam(const Value& param) {
  const Dims& shape = param.type.shape;
  if (caches_.contains(&param)) {
    Same(shape[0], batch_);
    Same(shape[2], window_caches_.contains(&param) ? past_ + sequence_ + Dim(kWindowRoom) : past_);
  } else if (param.name == "%attention_mask" && param.type.rank() == 2) {
    Same(shape[0], batch_);
    Same(shape[1], past_ + sequence_);
    facts_.params[&param] = [](const Dims&) { return IntegerElement(Dim(1)); };
  } else if (param.name == "%position_ids" && param.type.rank() == 2) {
    Same(shape[0], batch_);
    Same(shape[1], sequence_);
    facts_.params[&param] = [past = past_](const Dims& place) { return IntegerElement(past + place[1]); };
  } else if (&param != ids_) {
    return Refusal{nullptr, absl::StrCat("the input ", param.name), "input_ids, attention_mask, position_ids, past…"};
  }
  return std::nullopt;
}

void Paginator::Same(const Dim& symbol, const Dim& known) {
  if (symbol.is_symbol() && !(symbol == known)) facts_.dims[symbol.ToString()] = known;
}

void Paginator::MarkNeeded() {
  std::vector<const Value*> values = {logits_->value};
  for (size_t i = 0; i < values.size(); ++i) {
    const Node* node = values[i]->def;
    if (node == nullptr || node->block != &old_.block || !needed_.insert(node).second) continue;
    if (Is<Attention>(node)) {
      values.push_back(node->operands[0]);
      values.push_back(NewTokens(node->operands[1]));
      values.push_back(NewTokens(node->operands[2]));
    } else if (IsCut(*node)) {
      values.push_back(node->operands[0]);
    } else if (Is<RotaryEmbedding>(node)) {
      values.push_back(node->operands[0]);
      const std::optional<ElementValue>& angles = angles_[node] = AnglesOf(View<RotaryEmbedding>(*node));
      if (!angles.has_value()) values.insert(values.end(), {node->operands[1], node->operands[2]});
    } else {
      for (const Value* operand : node->operands) {
        if (operand != nullptr && operand->kind == ValueKind::kResult && !IsPosition(*operand)) {
          values.push_back(operand);
        }
      }
    }
  }
  FindHead();
}

void Paginator::FindHead() {
  const auto is_own = [&](const Node* node) {
    return node != nullptr && needed_.contains(node) && node->results.size() == 1 &&
           node->results[0]->users.size() <= 1;
  };
  const Node* node = logits_->value->def;
  while (is_own(node) && !IsProduct(node)) {
    if (Is<Attention>(node) || Is<RotaryEmbedding>(node)) return;  // rows of these need others
    node = node->operands.empty() || node->operands[0] == nullptr ? nullptr : node->operands[0]->def;
  }
  while (is_own(node)) {
    head_ = node;
    node = node->operands[0]->def;
    if (node == nullptr) break;
    const bool is_norm = node->op->info.mixes == Mixes::kLastAxis || node->op->info.mixes == Mixes::kAxisToLast;
    if (!is_norm && !Is<Cast>(node) && !Is<Encode>(node)) break;
  }
}

bool Paginator::IsCut(const Node& node) {
  if (node.results.empty() || node.results[0]->type.rank() == 0 || node.results[0]->type.shape[0].is_constant()) {
    return false;
  }
  if (Is<Slice>(&node)) {
    const auto op = View<Slice>(node);
    return op.axis == 0 && op.start[0] == Dim(0);
  }
  if (!Is<SliceBy>(&node)) return false;
  const auto op = View<SliceBy>(node);
  const auto is = [](const Value* value, int64_t number) {
    return value != nullptr && value->contents.has_value() && *value->contents == Dims{Dim(number)};
  };
  return is(op.starts, 0) && is(op.axes, 0) && (op.steps == nullptr || is(op.steps, 1));
}

void Paginator::AddInputs() {
  inputs_ = AddPagedInputs(model_, step_.get());
  for (const auto& [role, param] : inputs_) names_.emplace_back(param, absl::StrCat("%", InfoOf(role).input));
}

std::optional<Token> Paginator::Find(const Value* value) const {
  if (const auto it = tokens_.find(value); it != tokens_.end()) return it->second;
  if (value == ids_) return Token{inputs_.at(StepRole::kTokenIds), {Axis::kBatch, Axis::kSequence}};
  const bool outside = value->kind == ValueKind::kWeight || (value->def != nullptr && value->def->block != &old_.block);
  if (outside) return Token{const_cast<Value*>(value), {}};
  if (IsPosition(*value)) {
    std::vector<Axis> axes = {Axis::kSequence};
    if (value->type.rank() == 2) axes.insert(axes.begin(), Axis::kBatch);
    return Token{inputs_.at(StepRole::kPositions), axes};
  }
  return std::nullopt;
}

void Paginator::Set(const Node& node, Value* value, std::vector<Axis> axes, size_t result) {
  const Value* old = node.results[result];
  tokens_[old] = {value, std::move(axes)};
  if (value != nullptr && value->kind == ValueKind::kResult) names_.emplace_back(value, old->name);
}

}  // namespace pagination

namespace {

absl::Status PaginateDecoder(Model* model, const PassContext& context) {
  const Pagination when = context.options->pagination;
  if (when == Pagination::kNever || model->steps.size() != 1 || !model->states.empty()) return absl::OkStatus();
  Step* old = model->steps.front().get();
  if (when == Pagination::kWhereProven && pagination::OutputNamed(*old, "logits") == nullptr) return absl::OkStatus();
  pagination::Paginator paginator(model, old);
  const pagination::Verdict refusal = paginator.Build();
  const std::string tokens = refusal.has_value() ? paginator.TokensOf(refusal->node) : "";
  std::unique_ptr<Step> step = paginator.TakeStep();
  if (refusal.has_value()) {
    if (step != nullptr) model->EraseStep(std::move(step));
    model->RemoveUnusedStates();
    const Node* node = refusal->node;
    const LedgerPlace place =
        node == nullptr ? LedgerPlace{.value = model->name, .op = "step", .loc = ""} : LedgerPlaceOf(*node);
    const std::string line = node == nullptr ? "the step" : place.op;
    const std::string expected = absl::StrCat(refusal->expected, tokens);
    context.ledger->Refused(kPaginate, place, line, refusal->actual, expected);
    if (when == Pagination::kWhereProven) return absl::OkStatus();
    return absl::InvalidArgumentError(absl::StrCat(place.ToString(), ": ", line, ": found ", refusal->actual,
                                                   ", expected ", expected,
                                                   "; leave --paginate out to compile it as it is"));
  }
  std::unique_ptr<Step> gone = std::move(model->steps.front());
  model->steps.front() = std::move(step);
  model->EraseStep(std::move(gone));
  for (const auto& [value, name] : paginator.names()) {
    if (model->Find(name) == nullptr) model->Rename(value, name);
  }
  model->dims = paginator.Bounds();
  context.ledger->Fired(kPaginate, model->name);
  absl::Status status = Simplify(model, context);
  if (status.ok()) status = HoistWeights(model, context);
  return status.ok() ? TransposeWeights(model) : status;
}

}  // namespace

absl::Status Paginate(Model* model, const PassContext& context) {
  RETURN_IF_ERROR(PaginateDecoder(model, context));
  pagination::SplitPools(model, context.ledger);
  const PageSizeWishes& sizes = context.options->page_sizes;
  if (!sizes.empty()) RETURN_IF_ERROR(pagination::SetPageSizes(sizes, model));
  return pagination::SetKvEncoding(context.options->kv, model);
}

}  // namespace llmc
