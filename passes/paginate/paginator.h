// How paginate.cc makes a decoder over whole sequences a program of tokens. In the new program a value [.., B, .., S,
// ..] is [T, the other axes in their order].
#pragma once

#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/container/flat_hash_set.h"
#include "absl/strings/string_view.h"
#include "ir/ops.h"
#include "ir/step_inputs.h"
#include "passes/proof/element_value.h"
#include "passes/proof/mask.h"

namespace llmc::pagination {

constexpr int64_t kMaxContext = 131072;   // where nothing says less
constexpr int64_t kWindowRoom = 1 << 20;  // by how much a cache of a window is taken to be longer than all tokens

enum class Axis : uint8_t { kBatch, kSequence, kToken, kFeature };

// What stands for a value of the old step in the new one.
struct Token {
  Value* value = nullptr;
  std::vector<Axis> axes;  // of the old value; empty: it depends on no token, and is the same

  bool is_cut = false;  // it has more rows than the old value, which are for later positions

  bool is_constant() const { return axes.empty(); }
};

// Why a model is not paginated: an op, or nothing if the whole has not the form.
struct Refusal {
  const Node* node = nullptr;
  std::string actual, expected;
};
using Verdict = std::optional<Refusal>;  // nothing: all is well

// Builds the new step, op after op; what it meets that is not proven ends it.
class Paginator {
 public:
  Paginator(Model* model, Step* old) : model_(model), old_(*old) {}

  // Builds the new step beside the old one.
  Verdict Build();

  // "; %x: f32[B, S, 64] has tokens in axis 0 (B) and axis 1 (S)", of the first operand that has any.
  std::string TokensOf(const Node* node) const;

  std::unique_ptr<Step> TakeStep() { return std::move(step_); }
  // The bounds of the new step's dims; those of the old one hold still.
  DimEnv Bounds() const;
  const std::vector<std::pair<Value*, std::string>>& names() const { return names_; }

 private:
  // ---- the form ---------------------------------------------------------------------------------------------------
  Verdict ReadForm();

  // The most that a dim can be.
  int64_t Most(const Dim& dim) const;

  // [0, 1) of the tokens is one token, since there is at least one.
  void ReadFirstToken(const Node& node);

  Verdict ReadParam(const Value& param);

  // A cache of one sequence's tokens, and a mask as long as both, is how a decoder is run.
  void Same(const Dim& symbol, const Dim& known);
  Dim Known(const Dim& dim) const { return dim.Substitute(facts_.dims); }

  // What stands before attention's keys and values in the cache is not computed, nor masks and angles.
  void MarkNeeded();

  // The last product before the logits is for the rows that are asked for only, and so is a norm before it.
  void FindHead();

  // The first rows of something, as many as there are tokens.
  static bool IsCut(const Node& node);

  // The keys or values of this step's tokens, of those that attention sees.
  const Value* NewTokens(const Value* seen) const;

  // ---- caches that hold a window of the last tokens (paginate_window.cc) ----

  // Finds them among the parameters `past…`.
  void FindWindowCaches();

  // The new tokens behind those of such a cache, where it is proven that it holds all tokens in their order if it is
  // long enough; else null.
  const Value* NewTokensOfWindow(const Value& seen) const;

  // Facts that hold of symbols for rows, too.
  ElementFacts WithRows(ElementFacts facts) const;

  // Of attention to what such a cache holds and what is new, given that the cache is longer than all tokens.
  CausalProof ProveWindowMask(const Attention& op) const;

  // Whether a node makes a cache longer, which goes out as `seen` to come in again.
  bool ExtendsCache(const Node* node, const Value& seen) const;

  // Whether [B, heads, S, 3] indices are those of this step's tokens behind the past: (b, head, past + s).
  bool ReachesTokens(const Value& indices, const Dims& updates) const;

  // Whether a value is the output that comes in again as `past`: "%past_key_values.0.key" as "present.0.key".
  bool GoesOut(const Value& value, absl::string_view past) const;

  // Of an integer that counts positions: what its element at the token s of a sequence is more than past + s.
  std::optional<int64_t> PositionOffset(const Value& value) const;
  bool IsPosition(const Value& value) const { return PositionOffset(value) == 0; }

  // ---- the new step -------------------------------------------------------------------------------------------------
  void AddInputs();

  // The Token of a value; nothing if it has none.
  std::optional<Token> Find(const Value* value) const;

  void Set(const Node& node, Value* value, std::vector<Axis> axes, size_t result = 0);

  static std::vector<size_t> Features(const std::vector<Axis>& axes);
  // The place of an old axis in the new value.
  static int64_t NewAxis(const std::vector<Axis>& axes, size_t axis);

  // The shape of what stands for an old value of `shape`.
  static Dims NewShape(const Dim& lead, const Dims& shape, const std::vector<Axis>& axes);

  Value* Reshaped(Value* value, Dims shape);

  static Refusal No(const Node& node, std::string actual, std::string expected);
  // "axis 1 (S), which counts tokens"
  static std::string OfTokens(const Node& node, size_t axis);

  Verdict Convert(const Node& node);

  static int Widest(const Node& node);

  Value* AddLike(const Node& node, std::vector<Value*> operands, Attrs attrs);

  // The first attribute of dims that has symbols, which are the old step's and none of the new one's; null if none has.
  static const Dims* SymbolicDims(const Node& node);

  Verdict ConvertConstant(const Node& node, const std::vector<Token>& in);

  // A table of as many rows as a sequence has tokens is not cut: its rows are only taken by position.
  Verdict ConvertCut(const Node& node, const std::vector<Token>& in);

  Verdict ConvertGather(const Node& node, const std::vector<Token>& in);

  Verdict ConvertProduct(const Node& node, const std::vector<Token>& in);

  Verdict ConvertEncode(const Node& node, const std::vector<Token>& in);

  // Axes of tokens stay in front, or stay two, or become one.
  Verdict ConvertReshape(const Node& node, const std::vector<Token>& in);

  // Axes of tokens only grow to what they stand for.
  Verdict ConvertExpand(const Node& node, const std::vector<Token>& in);

  Verdict ConvertTranspose(const Node& node, const std::vector<Token>& in);

  // Ops with an attribute `axis`: of a feature.
  Verdict ConvertAlongAxis(const Node& node, const std::vector<Token>& in);

  Verdict ConvertOverLast(const Node& node, const std::vector<Token>& in);

  // Ops that do the same for each place of the first axis.
  Verdict ConvertRows(const Node& node, const std::vector<Token>& in);

  Verdict ConvertReduce(const Node& node, const std::vector<Token>& in);

  Verdict ConvertElementwise(const Node& node, const std::vector<Token>& in);

  // x [B, heads, S, D] as [T, heads * D].
  Value* Flat(const Token& token);
  static bool HasHeads(const Token& token);

  // What one cosine is, where cosines and sines are those of position * frequency.
  std::optional<ElementValue> AnglesOf(const RotaryEmbedding& op) const;

  Verdict ConvertRotary(const Node& node);

  // By cosines and sines that each token has, such as rows of tables by its position.
  Verdict ConvertGivenRotary(const Node& node, const Token& x);

  // f32[half]: the table along the axis of `angle`, where it is nothing but that.
  Value* Frequencies(const ElementValue& cos, const Dim& angle, const Dim& half);

  Verdict ConvertAttention(const Node& node);

  Verdict AddLogits();

  Model* model_;
  const Step& old_;
  const Value* ids_ = nullptr;
  const Output* logits_ = nullptr;
  Dim batch_, sequence_, past_;
  absl::flat_hash_set<const Value*> caches_;
  absl::flat_hash_map<const Value*, const Node*> window_caches_;  // and the gather_nd that gives what comes in again
  ElementFacts facts_;
  absl::flat_hash_set<const Node*> needed_;
  const Node* head_ = nullptr;

  std::unique_ptr<Step> step_;
  std::optional<Builder> builder_;
  std::map<StepRole, Value*> inputs_;  // of the new step
  absl::flat_hash_map<const Value*, Token> tokens_;
  absl::flat_hash_map<const Node*, std::optional<ElementValue>> angles_;  // of rotations
  std::map<std::pair<const Value*, double>, Value*> frequencies_;
  std::vector<std::pair<Value*, std::string>> names_;  // that new values get when the old ones are gone
  int64_t layers_ = 0, max_context_ = kMaxContext;
};

}  // namespace llmc::pagination
