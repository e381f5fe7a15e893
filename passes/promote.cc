// Makes a decoder over whole sequences, as ONNX has it (input_ids [B, S], a cache that comes in as past… and goes out
// as present…, or none), into the token-major program of language models (ir/ops_lm.h), whose cache is paged state.
// Then it serves like a model from a Hugging Face folder: several requests in a step, prompts in chunks.
//
// That is right only if every op but attention treats each token for itself, and attention is causal. Both are proven:
// the first by following where the axes B and S go through every op from input_ids to logits, the second from the graph
// of the mask (element_value.h), given that no token is padding. Where a proof fails, the model stays as it is, and the
// ledger names the op.
//
// In the new program a value [.., B, .., S, ..] is [T, the other axes in their order].

#include <algorithm>
#include <set>

#include "absl/container/flat_hash_map.h"
#include "absl/container/flat_hash_set.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "ir/ops.h"
#include "passes/element_value.h"
#include "passes/passes.h"
#include "passes/rewrite_driver.h"
#include "passes/rotate_tokens.h"

namespace llmc {
namespace {

constexpr int64_t kMaxTokens = 8192, kMaxSequences = 256, kMaxLogits = 1024, kMaxPages = 1 << 20, kPageSize = 16;
constexpr int64_t kMaxContext = 131072;  // where nothing says less

enum class Axis : uint8_t { kBatch, kSequence, kToken, kFeature };

// What stands for a value of the old step in the new one.
struct Token {
  Value* value = nullptr;
  std::vector<Axis> axes;  // of the old value; empty: it depends on no token, and is the same

  bool is_cut = false;  // it has more rows than the old value, which are for later positions

  bool is_constant() const { return axes.empty(); }
};

// Why a model is not promoted: an op, or nothing if the whole has not the form.
struct Refusal {
  const Node* node = nullptr;
  std::string met, wanted;
};
using Verdict = std::optional<Refusal>;  // nothing: all is well

const Output* OutputNamed(const Step& step, absl::string_view name) {
  for (const Output& output : step.outputs) {
    if (output.name == name) return &output;
  }
  return nullptr;
}

class Promoter {
 public:
  Promoter(Model* model, Step* old) : model_(model), old_(*old) {}

  // Builds the new step beside the old one.
  Verdict Build() {
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

  // "; %x: f32[B, S, 64] has tokens in axis 0 (B) and axis 1 (S)", of the first operand that has any.
  std::string TokensOf(const Node* node) const {
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

  std::unique_ptr<Step> TakeStep() { return std::move(step_); }
  // The bounds of the new step's dims; those of the old one hold still.
  DimEnv Bounds() const {
    const int64_t pages = (max_context_ + kPageSize - 1) / kPageSize, sequences = Most(batch_);
    return {{"T", std::min(kMaxTokens, sequences * Most(sequence_))},
            {"S", std::min(kMaxSequences, sequences)},
            {"R", kMaxLogits},
            {"P", pages},
            {"N", kMaxPages}};
  }
  const std::vector<std::pair<Value*, std::string>>& names() const { return names_; }

 private:
  // ---- the form ---------------------------------------------------------------------------------------------------
  Verdict ReadForm() {
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
        if (caches_.empty()) past_ = param->type.shape[2];
        caches_.insert(param);
      }
    }
    if (!caches_.empty() && !past_.is_symbol()) return Refusal{nullptr, past_.ToString(), "a symbol for past tokens"};
    for (const Value* param : old_.params) {
      if (Verdict no = ReadParam(*param); no.has_value()) return no;
    }
    for (const Output& output : old_.outputs) {
      const bool is_known = output.name == "logits" || absl::StartsWith(output.name, "present");
      if (!is_known) return Refusal{nullptr, absl::StrCat("the output ", output.name), "logits and present…"};
    }
    for (const auto& node : old_.block.nodes) ReadFirstToken(*node);
    facts_.most = model_->dims;
    max_context_ = std::min(max_context_, Most(past_) + Most(sequence_));
    return std::nullopt;
  }

  // The most that a dim can be.
  int64_t Most(const Dim& dim) const {
    const absl::StatusOr<DimRange> range = dim.Range(model_->dims);
    return range.ok() ? std::min(range->high, kMaxContext) : kMaxContext;
  }

  // [0, 1) of the tokens is one token, since there is at least one.
  void ReadFirstToken(const Node& node) {
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

  Verdict ReadParam(const Value& param) {
    const Dims& shape = param.type.shape;
    if (caches_.contains(&param)) {
      Same(shape[0], batch_);
      Same(shape[2], past_);
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

  // A cache of one sequence's tokens, and a mask as long as both, is how a decoder is run.
  void Same(const Dim& symbol, const Dim& known) {
    if (symbol.is_symbol() && !(symbol == known)) facts_.dims[symbol.ToString()] = known;
  }
  Dim Known(const Dim& dim) const { return dim.Substitute(facts_.dims); }

  // What stands before attention's keys and values in the cache is not computed, nor masks and angles.
  void MarkNeeded() {
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

  // The last product before the logits is for the rows that are wanted only, and so is a norm before it.
  void FindHead() {
    const auto is_own = [&](const Node* node) {
      return node != nullptr && needed_.contains(node) && node->results.size() == 1 &&
             node->results[0]->users.size() <= 1;
    };
    const Node* node = logits_->value->def;
    while (is_own(node) && !Is<MatMul>(node)) {
      node = node->operands.empty() || node->operands[0] == nullptr ? nullptr : node->operands[0]->def;
    }
    while (is_own(node)) {
      head_ = node;
      node = node->operands[0]->def;
      if (!Is<RmsNorm>(node) && !Is<LayerNorm>(node) && !Is<Cast>(node)) break;
    }
  }

  // The first rows of something, as many as there are tokens.
  static bool IsCut(const Node& node) {
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

  // The keys or values of this step's tokens, of those that attention sees.
  const Value* NewTokens(const Value* seen) const {
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

  // Whether a node makes a cache longer, which goes out as `seen` to come in again.
  bool ExtendsCache(const Node* node, const Value& seen) const {
    if (!Is<Concat>(node)) return false;
    const auto op = View<Concat>(*node);
    return op.parts.size() == 2 && op.axis == 2 && caches_.contains(op.parts[0]) && op.parts[0]->users.size() == 1 &&
           GoesOut(seen, op.parts[0]->name);
  }

  // Whether [B, heads, S, 3] indices are those of this step's tokens behind the past: (b, head, past + s).
  bool ReachesTokens(const Value& indices, const Dims& updates) const {
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
      const Dim wanted = i == 2 ? past_ + place[2] : place[static_cast<size_t>(i)];
      const bool fits =
          element.has_value() && element->kind == ElementValue::Kind::kInteger && element->integer == wanted;
      if (!fits) return false;
    }
    return true;
  }

  // Whether a value is the output that comes in again as `past`: "%past_key_values.0.key" as "present.0.key".
  bool GoesOut(const Value& value, absl::string_view past) const {
    if (!absl::ConsumePrefix(&past, "%past_key_values")) absl::ConsumePrefix(&past, "%past");
    return std::any_of(old_.outputs.begin(), old_.outputs.end(), [&](const Output& output) {
      return output.value == &value && absl::StartsWith(output.name, "present") && absl::EndsWith(output.name, past);
    });
  }

  // Of an integer that counts positions: what its element at the token s of a sequence is more than past + s.
  std::optional<int64_t> PositionOffset(const Value& value) const {
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
  bool IsPosition(const Value& value) const { return PositionOffset(value) == 0; }

  // ---- the new step -------------------------------------------------------------------------------------------------
  void AddInputs() {
    const auto input = [this](absl::string_view name, Dims shape) {
      Value* param = model_->AddParam(step_.get(), model_->FreshName(name), {DType::kI32, std::move(shape)});
      names_.emplace_back(param, std::string(name));
      return param;
    };
    const Dim s = Dim::Symbol("S"), t = Dim::Symbol("T");
    new_ids_ = input("%ids", {t});
    pos_ = input("%pos", {t});
    slots_ = input("%slots", {t});
    pages_ = input("%pages", {s, Dim::Symbol("P")});
    lens_ = input("%lens", {s});
    starts_ = input("%starts", {s + Dim(1)});
    rows_ = input("%rows", {Dim::Symbol("R")});
  }

  // The Token of a value; nothing if it has none.
  std::optional<Token> Find(const Value* value) const {
    if (const auto it = tokens_.find(value); it != tokens_.end()) return it->second;
    if (value == ids_) return Token{new_ids_, {Axis::kBatch, Axis::kSequence}};
    const bool outside =
        value->kind == ValueKind::kWeight || (value->def != nullptr && value->def->block != &old_.block);
    if (outside) return Token{const_cast<Value*>(value), {}};
    if (IsPosition(*value)) {
      std::vector<Axis> axes = {Axis::kSequence};
      if (value->type.rank() == 2) axes.insert(axes.begin(), Axis::kBatch);
      return Token{pos_, axes};
    }
    return std::nullopt;
  }

  void Set(const Node& node, Value* value, std::vector<Axis> axes, size_t result = 0) {
    const Value* old = node.results[result];
    tokens_[old] = {value, std::move(axes)};
    if (value != nullptr && value->kind == ValueKind::kResult) names_.emplace_back(value, old->name);
  }

  static std::vector<size_t> Features(const std::vector<Axis>& axes) {
    std::vector<size_t> features;
    for (size_t i = 0; i < axes.size(); ++i) {
      if (axes[i] == Axis::kFeature) features.push_back(i);
    }
    return features;
  }
  // The place of an old axis in the new value.
  static int64_t NewAxis(const std::vector<Axis>& axes, size_t axis) {
    return 1 + std::count(axes.begin(), axes.begin() + static_cast<ptrdiff_t>(axis), Axis::kFeature);
  }

  // The shape of what stands for an old value of `shape`.
  static Dims NewShape(const Dim& lead, const Dims& shape, const std::vector<Axis>& axes) {
    Dims out = {lead};
    for (const size_t i : Features(axes)) out.push_back(shape[i]);
    return out;
  }

  Value* Reshaped(Value* value, Dims shape) {
    return value->type.shape == shape ? value : builder_->Add(Reshape{.x = value, .shape = std::move(shape)});
  }

  static Refusal No(const Node& node, std::string met, std::string wanted) {
    return {&node, std::move(met), std::move(wanted)};
  }
  // "axis 1 (S), which counts tokens"
  static std::string OfTokens(const Node& node, size_t axis) {
    const Dims& shape = node.operands[0]->type.shape;
    const std::string size = axis < shape.size() ? shape[axis].ToString() : "none";
    return absl::StrCat("axis ", axis, " (", size, "), which counts tokens");
  }

  Verdict Convert(const Node& node) {
    if (Is<Attention>(&node)) return ConvertAttention(node);
    if (Is<RotaryEmbedding>(&node)) return ConvertRotary(node);
    if (IsCut(node)) {
      const std::optional<Token> whole = Find(node.operands[0]);
      if (whole.has_value() && whole->is_constant()) {
        tokens_[node.results[0]] = {whole->value, {}, true};
        return std::nullopt;
      }
    }
    std::vector<Token> in;
    bool is_constant = true;
    Dim lead;
    for (const Value* operand : node.operands) {
      if (operand == nullptr) {
        in.emplace_back();
        continue;
      }
      const std::optional<Token> token = Find(operand);
      if (!token.has_value()) return No(node, operand->name, "a value of tokens");
      if (!token->is_constant() && !is_constant && !(token->value->type.shape[0] == lead)) {
        return No(node, operand->name, "as many tokens as its other operands have");
      }
      if (!token->is_constant()) lead = token->value->type.shape[0];
      is_constant = is_constant && token->is_constant();
      in.push_back(*token);
    }
    if (std::any_of(in.begin(), in.end(), [](const Token& token) { return token.is_cut; })) {
      return ConvertCut(node, in);
    }
    if (is_constant) return ConvertConstant(node, in);
    if (&node == head_ && !in[0].is_constant()) in[0].value = builder_->Add(Gather{.x = in[0].value, .indices = rows_});
    if (Is<Gather>(&node)) return ConvertGather(node, in);
    if (Is<MatMul>(&node)) return ConvertMatMul(node, in);
    if (Is<Reshape>(&node)) return ConvertReshape(node, in);
    if (Is<Expand>(&node)) return ConvertExpand(node, in);
    if (Is<Transpose>(&node)) return ConvertTranspose(node, in);
    if (Is<Slice>(&node) || Is<Softmax>(&node) || Is<Concat>(&node) || Is<LayerNorm>(&node)) {
      return ConvertAlongAxis(node, in);
    }
    if (Is<RmsNorm>(&node) || Is<AddRmsNorm>(&node) || Is<SiluMul>(&node)) return ConvertOverLast(node, in);
    if (Is<ReduceSum>(&node) || Is<ReduceMean>(&node) || Is<ReduceMax>(&node)) return ConvertReduce(node, in);
    const bool is_elementwise =
        node.results.size() == 1 && node.results[0]->type.rank() == Widest(node) && IsElementwise(node);
    if (is_elementwise) return ConvertElementwise(node, in);
    return No(node, std::string(node.op->info.name), "an op that treats each token for itself");
  }

  static int Widest(const Node& node) {
    int rank = 0;
    for (const Value* operand : node.operands) rank = std::max(rank, operand == nullptr ? 0 : operand->type.rank());
    return rank;
  }

  static bool IsElementwise(const Node& node) {
    static const auto* const ops = new absl::flat_hash_set<const OpDef*>{
        DefOf<Identity>(), DefOf<Neg>(),   DefOf<Abs>(),       DefOf<Relu>(),     DefOf<Exp>(),      DefOf<Log>(),
        DefOf<Sqrt>(),     DefOf<Rsqrt>(), DefOf<Sin>(),       DefOf<Cos>(),      DefOf<Tanh>(),     DefOf<Sigmoid>(),
        DefOf<Silu>(),     DefOf<Gelu>(),  DefOf<Erf>(),       DefOf<GeluTanh>(), DefOf<Softplus>(), DefOf<Add>(),
        DefOf<Sub>(),      DefOf<Mul>(),   DefOf<Div>(),       DefOf<Pow>(),      DefOf<Max>(),      DefOf<Min>(),
        DefOf<Where>(),    DefOf<Cast>(),  DefOf<Reciprocal>()};
    return ops->contains(node.op);
  }

  Value* AddLike(const Node& node, std::vector<Value*> operands, Attrs attrs) {
    Node* made = builder_->AddRaw(node.op, std::move(operands), std::move(attrs), {});
    return made == nullptr || made->results.empty() ? nullptr : made->results[0];
  }

  Verdict ConvertConstant(const Node& node, const std::vector<Token>& in) {
    for (const auto& [name, attr] : node.attrs) {
      const Dims* dims = std::get_if<Dims>(&attr);
      const auto is_number = [](const Dim& dim) { return dim.is_constant(); };
      if (dims != nullptr && !std::all_of(dims->begin(), dims->end(), is_number)) {
        return No(node, DimsToString(*dims), "what does not depend on how many tokens there are");
      }
    }
    std::vector<Value*> operands;
    for (const Token& token : in) operands.push_back(token.value);
    Node* made = builder_->AddRaw(node.op, operands, node.attrs, {});
    for (size_t i = 0; made != nullptr && i < made->results.size(); ++i) {
      for (const Dim& dim : made->results[i]->type.shape) {
        if (!dim.is_constant()) return No(node, made->results[i]->type.ToString(), "a size that is a number");
      }
      Set(node, made->results[i], {}, i);
    }
    return std::nullopt;
  }

  // A table of as many rows as a sequence has tokens is not cut: its rows are only taken by position.
  Verdict ConvertCut(const Node& node, const std::vector<Token>& in) {
    if (Is<Gather>(&node) && in[0].is_cut && in[1].value == pos_) return ConvertGather(node, in);
    const bool by_row = in.size() == 1 && (Is<Cast>(&node) || (Is<Slice>(&node) && View<Slice>(node).axis != 0));
    if (!by_row) return No(node, "a table with a row for each token", "rows of it by position");
    if (Verdict no = ConvertConstant(node, in); no.has_value()) return no;
    tokens_[node.results[0]].is_cut = true;
    return std::nullopt;
  }

  Verdict ConvertGather(const Node& node, const std::vector<Token>& in) {
    const auto op = View<Gather>(node);
    if (!in[0].is_constant() || op.axis != 0 || in[1].is_constant()) {
      return No(node, "slices of what depends on tokens", "rows of a table by token or position");
    }
    const Dim& rows = in[0].value->type.shape[0];
    const std::optional<int64_t> offset = PositionOffset(*op.indices);
    if (offset.has_value() && rows.is_constant()) {
      if (*offset < 0 || *offset >= rows.value()) return No(node, "positions outside the table", "rows by position");
      max_context_ = std::min(max_context_, rows.value() - *offset);
    }
    std::vector<Axis> axes = in[1].axes;
    axes.resize(static_cast<size_t>(node.results[0]->type.rank()), Axis::kFeature);
    Set(node, builder_->Add(Gather{.x = in[0].value, .indices = in[1].value}), axes);
    return std::nullopt;
  }

  Verdict ConvertMatMul(const Node& node, const std::vector<Token>& in) {
    const auto op = View<MatMul>(node);
    if (in[0].is_constant() || !in[1].is_constant() || op.rhs->type.rank() != 2 ||
        in[0].axes.back() != Axis::kFeature) {
      return No(node, "a product of tokens", "a product with a matrix");
    }
    Set(node, builder_->Add(MatMul{.lhs = in[0].value, .rhs = in[1].value, .transpose_rhs = op.transpose_rhs}),
        in[0].axes);
    return std::nullopt;
  }

  // Axes of tokens stay in front, or stay two, or become one.
  Verdict ConvertReshape(const Node& node, const std::vector<Token>& in) {
    const Dims &from = node.operands[0]->type.shape, &to = node.results[0]->type.shape;
    std::vector<Axis> axes;  // but for those of 1
    for (size_t i = 0; i < from.size(); ++i) {
      if (in[0].axes[i] != Axis::kFeature || !(from[i] == Dim(1))) axes.push_back(in[0].axes[i]);
    }
    const std::vector<Axis> two = {Axis::kBatch, Axis::kSequence}, one = {Axis::kToken}, line = {Axis::kSequence};
    const auto starts_with = [&](const std::vector<Axis>& front) {
      return axes.size() >= front.size() && std::equal(front.begin(), front.end(), axes.begin()) &&
             std::all_of(axes.begin() + static_cast<ptrdiff_t>(front.size()), axes.end(),
                         [](Axis axis) { return axis == Axis::kFeature; });
    };
    if (!starts_with(two) && !starts_with(one) && !starts_with(line)) {
      return No(node, DimsToString(from), "tokens in front of all other axes");
    }
    std::vector<Axis> kept;
    const bool is_line = starts_with(line) || (from[0] == Dim(1) && starts_with(two));
    if (to.size() >= 2 && Known(to[0]) == batch_ && Known(to[1]) == sequence_) {
      kept = two;
    } else if (!to.empty() && Known(to[0]) == batch_ * sequence_) {
      kept = one;
    } else if (is_line && to.size() >= 2 && to[0] == Dim(1) && Known(to[1]) == sequence_) {
      kept = two;  // the same for each sequence: what comes of positions
    } else if (is_line && !to.empty() && Known(to[0]) == sequence_) {
      kept = line;
    } else if (!is_line && to.size() >= 3 && Known(to[0]) == batch_ && to[1] == Dim(1) && Known(to[2]) == sequence_) {
      kept = {Axis::kBatch, Axis::kFeature, Axis::kSequence};  // one head before the tokens
    } else {
      return No(node, DimsToString(to), "a shape that keeps the axes of tokens");
    }
    for (size_t i = kept.size(); i < to.size(); ++i) {
      if (!to[i].is_constant()) return No(node, DimsToString(to), "features of known sizes");
    }
    kept.resize(to.size(), Axis::kFeature);
    const Dim lead = in[0].value->type.shape[0];
    Set(node, Reshaped(in[0].value, NewShape(lead, to, kept)), kept);
    return std::nullopt;
  }

  // Axes of tokens only grow to what they stand for.
  Verdict ConvertExpand(const Node& node, const std::vector<Token>& in) {
    const Dims& to = node.results[0]->type.shape;
    const std::vector<Axis>& axes = in[0].axes;
    if (to.size() != axes.size()) return No(node, DimsToString(to), "as many axes as before");
    for (size_t i = 0; i < to.size(); ++i) {
      const bool fits = axes[i] == Axis::kBatch      ? Known(to[i]) == batch_
                        : axes[i] == Axis::kSequence ? Known(to[i]) == sequence_
                        : axes[i] == Axis::kToken    ? Known(to[i]) == batch_ * sequence_
                                                     : to[i].is_constant();
      if (!fits) return No(node, DimsToString(to), "the axes of tokens, and known sizes");
    }
    const Dims shape = NewShape(in[0].value->type.shape[0], to, axes);
    Value* value = in[0].value;
    if (!(value->type.shape == shape)) value = builder_->Add(Expand{.x = value, .shape = shape});
    Set(node, value, axes);
    return std::nullopt;
  }

  Verdict ConvertTranspose(const Node& node, const std::vector<Token>& in) {
    const auto op = View<Transpose>(node);
    std::vector<Axis> axes;
    std::vector<int64_t> perm = {0};
    for (const int64_t from : op.perm) {
      axes.push_back(in[0].axes[static_cast<size_t>(from)]);
      if (axes.back() == Axis::kFeature) perm.push_back(NewAxis(in[0].axes, static_cast<size_t>(from)));
    }
    Value* value = in[0].value;
    if (!std::is_sorted(perm.begin(), perm.end())) value = builder_->Add(Transpose{.x = value, .perm = perm});
    Set(node, value, axes);
    return std::nullopt;
  }

  // Ops with an attribute `axis`: of a feature.
  Verdict ConvertAlongAxis(const Node& node, const std::vector<Token>& in) {
    const auto attr = node.attrs.find("axis");
    const size_t axis = attr == node.attrs.end() ? 0 : static_cast<size_t>(std::get<int64_t>(attr->second));
    const std::vector<Axis>& axes = in[0].axes;
    std::vector<Value*> operands;
    for (size_t i = 0; i < in.size(); ++i) {
      const bool is_parameter = Is<LayerNorm>(&node) && i > 0;
      const bool fits = is_parameter ? in[i].is_constant() : in[i].axes == axes;
      if (node.operands[i] != nullptr && !fits) {
        return No(node, node.operands[i]->name, is_parameter ? "a weight" : "parts that are all of tokens");
      }
      operands.push_back(in[i].value);
    }
    if (axis >= axes.size() || axes[axis] != Axis::kFeature)
      return No(node, OfTokens(node, axis), "an axis of features");
    const bool to_the_end = Is<LayerNorm>(&node);
    for (size_t i = axis; to_the_end && i < axes.size(); ++i) {
      if (axes[i] != Axis::kFeature) return No(node, OfTokens(node, i), "axes of features");
    }
    Attrs attrs = node.attrs;
    attrs["axis"] = NewAxis(axes, axis);
    Set(node, AddLike(node, operands, attrs), axes);
    return std::nullopt;
  }

  Verdict ConvertOverLast(const Node& node, const std::vector<Token>& in) {
    const std::vector<Axis>& axes = in[0].axes;
    const bool both = !Is<AddRmsNorm>(&node) || in[1].axes == axes;
    if (in.size() > 1 && !in.back().is_constant()) return No(node, node.operands.back()->name, "a weight");
    if (axes.empty() || axes.back() != Axis::kFeature || !both)
      return No(node, OfTokens(node, axes.size() - 1), "a last axis of features");
    std::vector<Value*> operands;
    for (const Token& token : in) operands.push_back(token.value);
    Node* made = builder_->AddRaw(node.op, operands, node.attrs, {});
    for (size_t i = 0; made != nullptr && i < made->results.size(); ++i) Set(node, made->results[i], axes, i);
    return std::nullopt;
  }

  Verdict ConvertReduce(const Node& node, const std::vector<Token>& in) {
    std::vector<int64_t> reduced;
    if (const auto it = node.attrs.find("axes"); it != node.attrs.end())
      reduced = std::get<std::vector<int64_t>>(it->second);
    const auto keep = node.attrs.find("keep_dims");
    const bool keeps = keep != node.attrs.end() && std::get<bool>(keep->second);
    std::vector<Axis> axes;
    std::vector<int64_t> mapped;
    for (size_t i = 0; i < in[0].axes.size(); ++i) {
      const bool goes = std::find(reduced.begin(), reduced.end(), static_cast<int64_t>(i)) != reduced.end();
      if (goes && in[0].axes[i] != Axis::kFeature) return No(node, OfTokens(node, i), "axes of features");
      if (goes) mapped.push_back(NewAxis(in[0].axes, i));
      if (!goes || keeps) axes.push_back(in[0].axes[i]);
    }
    Attrs attrs = node.attrs;
    attrs["axes"] = mapped;
    Set(node, AddLike(node, {in[0].value}, attrs), axes);
    return std::nullopt;
  }

  Verdict ConvertElementwise(const Node& node, const std::vector<Token>& in) {
    const size_t rank = node.results[0]->type.shape.size();
    std::vector<Axis> axes(rank, Axis::kFeature);
    for (const Token& token : in) {
      for (size_t i = 0; i < token.axes.size(); ++i) {
        if (token.axes[i] != Axis::kFeature) axes[rank - token.axes.size() + i] = token.axes[i];
      }
    }
    std::vector<Value*> operands;
    for (size_t i = 0; i < in.size(); ++i) {
      const Dims& shape = node.operands[i]->type.shape;
      const size_t missing = rank - shape.size();
      Dims features;
      for (size_t axis = 0; axis < shape.size(); ++axis) {
        const bool is_token = axes[missing + axis] != Axis::kFeature;
        const bool broadcasts = in[i].is_constant() ? shape[axis] == Dim(1) : true;
        const bool fits = in[i].is_constant() || in[i].axes[axis] == axes[missing + axis];
        if (is_token ? !broadcasts || !fits : !fits)
          return No(node, node.operands[i]->name, "axes of tokens that agree");
        if (!is_token) features.push_back(shape[axis]);
      }
      if (!in[i].is_constant()) {
        // Features that the value lacks stand between its tokens and its features.
        Dims with_lead = {in[i].value->type.shape[0]};
        const size_t wanted = Features(axes).size();
        with_lead.resize(1 + wanted - features.size(), Dim(1));
        features.insert(features.begin(), with_lead.begin(), with_lead.end());
      }
      Value* value = in[i].value;
      const DType dtype = node.operands[i]->type.dtype;  // positions are counted in i32
      if (value->type.dtype != dtype) value = builder_->Add(Cast{.x = value, .to = dtype});
      operands.push_back(Reshaped(value, features));
    }
    Set(node, AddLike(node, operands, node.attrs), axes);
    return std::nullopt;
  }

  // x [B, heads, S, D] as [T, heads * D].
  Value* Flat(const Token& token) {
    const Dims& shape = token.value->type.shape;
    return Reshaped(token.value, {shape[0], shape[1] * shape[2]});
  }
  static bool HasHeads(const Token& token) {
    return token.axes == std::vector<Axis>{Axis::kBatch, Axis::kFeature, Axis::kSequence, Axis::kFeature};
  }

  // What one cosine is, where cosines and sines are those of position * frequency.
  std::optional<ElementValue> AnglesOf(const RotaryEmbedding& op) const {
    const Dim& half = op.cos->type.shape[2];
    if (!half.is_constant()) return std::nullopt;
    ElementFacts facts = facts_;
    facts.most["$angle"] = half.value() - 1;
    const Dims place = {Dim::Symbol("$batch"), Dim::Symbol("$token"), Dim::Symbol("$angle")};
    const auto cos = ElementAt(*op.cos, place, facts), sin = ElementAt(*op.sin, place, facts);
    using Function = ElementValue::Function;
    const bool turns = cos.has_value() && sin.has_value() && cos->function == Function::kCos &&
                       sin->function == Function::kSin && cos->factor == past_ + place[1] &&
                       sin->factor == cos->factor && cos->table == sin->table && cos->place == sin->place &&
                       cos->inner == sin->inner && cos->outer == sin->outer;
    return turns ? cos : std::nullopt;
  }

  Verdict ConvertRotary(const Node& node) {
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
                                        .pos = pos_,
                                        .inv_freq = inv_freq,
                                        .head_dim = dim,
                                        .interleaved = op.interleaved,
                                        .scale = cos->outer});
    if (rotated == nullptr) return No(node, std::string(builder_->status().message()), "rope");
    Set(node, Reshaped(rotated, x->value->type.shape), x->axes);
    return std::nullopt;
  }

  // By cosines and sines that each token has, such as rows of tables by its position.
  Verdict ConvertGivenRotary(const Node& node, const Token& x) {
    const auto op = View<RotaryEmbedding>(node);
    const std::vector<Axis> wanted = {Axis::kBatch, Axis::kSequence, Axis::kFeature};
    const std::optional<Token> cos = Find(op.cos), sin = Find(op.sin);
    for (const auto& [token, value] : {std::pair(&cos, op.cos), {&sin, op.sin}}) {
      const bool fits = token->has_value() && (*token)->axes == wanted && (*token)->value->type.shape[1].is_constant();
      if (!fits) return No(node, value->name, "cos and sin of position * frequency, or of tokens");
    }
    const Dims& heads = x.value->type.shape;
    if (!heads[1].is_constant() || !heads[2].is_constant()) return No(node, DimsToString(heads), "known heads");
    Set(node, RotateTokens(&*builder_, x.value, cos->value, sin->value, op.interleaved), x.axes);
    return std::nullopt;
  }

  // f32[half]: the table along the axis of `angle`, where it is nothing but that.
  Value* Frequencies(const ElementValue& cos, const Dim& angle, const Dim& half) {
    const auto key = std::make_pair(cos.table, cos.inner);
    if (const auto it = frequencies_.find(key); it != frequencies_.end()) return it->second;
    const Dims& shape = cos.table->type.shape;
    for (size_t i = 0; i < shape.size(); ++i) {
      if (shape[i] == Dim(1) ? false : !(shape[i] == half && cos.place[i] == angle)) return nullptr;
    }
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

  Verdict ConvertAttention(const Node& node) {
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
    std::optional<CausalMask> mask;
    if (op.mask != nullptr) {
      mask = ProveCausal(*op.mask, past_, facts_);
    } else if (is_causal) {
      mask = CausalMask{};
    }
    if (!mask.has_value()) {
      const std::string met =
          op.mask == nullptr ? "no mask" : absl::StrCat(op.mask->name, ": ", op.mask->type.ToString());
      return No(node, met, "a causal mask");
    }
    const Dims &queries = q->value->type.shape, &keys = k->value->type.shape;
    if (!(keys == v->value->type.shape) || !keys[2].is_constant() || !keys[1].is_constant()) {
      return No(node, DimsToString(v->value->type.shape), "values as wide as keys");
    }
    Value* kv = model_->AddState(model_->FreshName(absl::StrCat("@kv", layers_++)),
                                 {k->value->type.dtype, {Dim::Symbol("N"), Dim(2), Dim(kPageSize), keys[1], keys[2]}});
    Value *flat_k = Flat(*k), *flat_v = Flat(*v), *flat_q = Flat(*q);
    builder_->AddNode(KvWrite{.kv = kv, .k = flat_k, .v = flat_v, .slots = slots_});
    Value* out = builder_->Add(PagedAttention{.q = flat_q,
                                              .kv = kv,
                                              .pages = pages_,
                                              .lens = lens_,
                                              .starts = starts_,
                                              .scale = op.scale,
                                              .window = mask->window,
                                              .softcap = op.softcap});
    if (out == nullptr) return No(node, std::string(builder_->status().message()), "paged_attention");
    Set(node, Reshaped(out, queries), q->axes);
    return std::nullopt;
  }

  Verdict AddLogits() {
    const std::optional<Token> token = Find(logits_->value);
    const std::vector<Axis> wanted = {Axis::kBatch, Axis::kSequence, Axis::kFeature};
    if (!token.has_value() || token->axes != wanted) {
      return Refusal{logits_->value->def, logits_->value->name, "logits of tokens"};
    }
    if (layers_ == 0) return Refusal{nullptr, "no attention", "a layer whose keys and values go into a cache"};
    Value* logits = token->value;
    if (head_ == nullptr) logits = builder_->Add(Gather{.x = logits, .indices = rows_});
    if (logits->type.dtype != DType::kF32) logits = builder_->Add(Cast{.x = logits, .to = DType::kF32});
    step_->outputs.push_back({"logits", logits});
    return std::nullopt;
  }

  Model* model_;
  const Step& old_;
  const Value* ids_ = nullptr;
  const Output* logits_ = nullptr;
  Dim batch_, sequence_, past_;
  absl::flat_hash_set<const Value*> caches_;
  ElementFacts facts_;
  absl::flat_hash_set<const Node*> needed_;
  const Node* head_ = nullptr;

  std::unique_ptr<Step> step_;
  std::optional<Builder> builder_;
  Value *new_ids_ = nullptr, *pos_ = nullptr, *slots_ = nullptr, *pages_ = nullptr, *lens_ = nullptr,
        *starts_ = nullptr, *rows_ = nullptr;
  absl::flat_hash_map<const Value*, Token> tokens_;
  absl::flat_hash_map<const Node*, std::optional<ElementValue>> angles_;  // of rotations
  std::map<std::pair<const Value*, double>, Value*> frequencies_;
  std::vector<std::pair<Value*, std::string>> names_;  // that new values get when the old ones are gone
  int64_t layers_ = 0, max_context_ = kMaxContext;
};

}  // namespace

absl::Status Promote(Model* model, const PassContext& context) {
  const Promotion promotion = context.options->promotion;
  if (promotion == Promotion::kNever || model->steps.size() != 1 || !model->states.empty()) return absl::OkStatus();
  Step* old = model->steps.front().get();
  if (promotion == Promotion::kWhereProven && OutputNamed(*old, "logits") == nullptr) return absl::OkStatus();
  Promoter promoter(model, old);
  const Verdict refusal = promoter.Build();
  const std::string tokens = refusal.has_value() ? promoter.TokensOf(refusal->node) : "";
  std::unique_ptr<Step> step = promoter.TakeStep();
  if (refusal.has_value()) {
    if (step != nullptr) model->EraseStep(std::move(step));
    model->RemoveUnusedStates();
    const Node* node = refusal->node;
    const LedgerPlace place =
        node == nullptr ? LedgerPlace{.value = model->name, .op = "step", .loc = ""} : LedgerPlaceOf(*node);
    const std::string line = node == nullptr ? "the step" : place.op;
    const std::string wanted = absl::StrCat(refusal->wanted, tokens);
    context.ledger->Refused(kPromote, place, line, refusal->met, wanted);
    if (promotion == Promotion::kWhereProven) return absl::OkStatus();
    return absl::InvalidArgumentError(absl::StrCat(place.ToString(), ": ", line, ": met ", refusal->met, ", wanted ",
                                                   wanted, "; leave --promote out to keep its cache as it is"));
  }
  std::unique_ptr<Step> gone = std::move(model->steps.front());
  model->steps.front() = std::move(step);
  model->EraseStep(std::move(gone));
  for (const auto& [value, name] : promoter.names()) {
    if (model->Find(name) == nullptr) model->Rename(value, name);
  }
  model->dims = promoter.Bounds();
  context.ledger->Fired(kPromote, model->name);
  absl::Status status = Simplify(model, context);
  if (status.ok()) status = HoistWeights(model, context);
  return status.ok() ? TurnWeights(model) : status;
}

}  // namespace llmc
