// The op layer: an op is one struct. Printing, parsing, building, checking, equality and rule matching are derived from
// its Fields().
#pragma once

#include <map>
#include <optional>
#include <string>
#include <tuple>
#include <type_traits>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "ir/graph.h"
#include "ir/op_cost.h"
#include "ir/size_collector.h"

namespace llmc {

enum OpFlags : unsigned {
  kPure = 0,
  kCommutative = 1,  // the first two operands may be exchanged
  kWritesState = 2,  // the first operand is a state that the op changes
  kReadsState = 4,   // reads a state
  kView = 8,         // the result is the first operand under another shape
  kMoves = 16,       // each element of the result is one of the first operand's, or of any if there may be many
  kRoundsToIntegers = 32,
  // Whole numbers that floats hold must not be rounded before it: it jumps or turns between one and the next, or
  // counts.
  kNeedsWholeNumbers = 64,
  // Models write it as a part of what rules make one op of. Where it is left, something may not have been recognized.
  kIsOftenPart = 128,
  kTakesEncoded = 256,  // operands may be encoded (encoding.h); of other ops, none may
  kDivides = 512,       // by the second operand: an error where integers are divided by zero
};

// Along which axes of its first operand an op mixes elements. Along the others it does the same at each place, so
// tokens and batches pass through; but for kAxes the result has them at the same places.
enum class Mixes {
  kAll,         // nothing is said
  kNone,        // elementwise: one result, its elements are made from those at the same place, broadcast as numpy does
  kAxis,        // the attribute `axis`
  kAxisToLast,  // the attribute `axis` and all after it
  kLastAxis,
  kAxes,         // the attribute `axes`, which go unless `keep_dims`
  kAllButFirst,  // all but the first, which results and operands have, but for parameters and frequencies
};

struct OpInfo {
  absl::string_view name;
  absl::string_view summary;
  int results = 1;
  unsigned flags = kPure;
  Mixes mixes = Mixes::kAll;
  absl::string_view pattern = "";  // what it stands for in reports, where models write it as several ops

  bool Has(unsigned flag) const { return (flags & flag) != 0; }
  bool touches_state() const { return Has(kWritesState | kReadsState); }
  bool is_view() const { return Has(kView); }
  bool is_elementwise() const { return mixes == Mixes::kNone; }
  bool computes_elements() const { return is_elementwise() && !is_view(); }  // each by itself
};

// What Eval gets: the operands' contents (nullptr for an absent optional one), the memory of the state for ops with
// kWritesState to write to (ir/component_view.h, for which the operand has the state's type), the sizes of dim symbols,
// and the types that the results were inferred to have.
struct EvalArgs {
  absl::Span<const Tensor* const> in;
  Tensor* state = nullptr;
  const DimEnv* dims = nullptr;
  const Types* result_types = nullptr;

  const Tensor& operator[](size_t i) const { return *in[i]; }
  bool has(size_t i) const { return i < in.size() && in[i] != nullptr; }
  size_t size() const { return in.size(); }
};

// ---- fields ----------------------------------------------------------------
enum class FieldKind { kOperand, kOptionalOperand, kVariadic, kAttr };

// What an op uses an operand for.
enum class Use {
  kElements,   // the result's elements are made from it
  kPlaces,     // it says where or how much: indices, sizes, positions
  kParameter,  // a weight along the axes that the op mixes, the same for all others
  kFrequency,  // f32 whatever the type of the rest
  kComponent,  // of an encoded value, which says its type
};

template <class Op, class F>
struct Field {
  absl::string_view name;
  F Op::*member;
  FieldKind kind;
  Use use = Use::kElements;
};
template <class Op>
constexpr Field<Op, Value*> In(absl::string_view name, Value* Op::*member, Use use = Use::kElements) {
  return {name, member, FieldKind::kOperand, use};
}
template <class Op>  // May be absent: written `_`, or left out at the end.
constexpr Field<Op, Value*> OptionalIn(absl::string_view name, Value* Op::*member, Use use = Use::kElements) {
  return {name, member, FieldKind::kOptionalOperand, use};
}
template <class Op>  // Any number, at least one; only as the last operand.
constexpr Field<Op, std::vector<Value*>> In(absl::string_view name, std::vector<Value*> Op::*member,
                                            Use use = Use::kElements) {
  return {name, member, FieldKind::kVariadic, use};
}
// Attribute types: bool, int64_t, double, std::string, DType, std::vector<int64_t>, std::vector<double>, Dims, Tensor.
template <class Op, class F>
constexpr Field<Op, F> At(absl::string_view name, F Op::*member) {
  return {name, member, FieldKind::kAttr, Use::kElements};
}

// ---- the type-erased row of an op -------------------------------------------
struct OpDef {
  OpInfo info;
  std::vector<absl::string_view> operands;
  std::vector<Use> uses;  // of the operands; those of a variadic one have one use
  std::vector<absl::string_view> attrs;
  size_t min_operands = 0;
  size_t max_operands = 0;
  Attrs defaults;  // holds the type of every attribute too
  // The types of the results. What must hold of sizes besides, and no dim tells, goes to the collector.
  absl::StatusOr<Types> (*infer_with)(const Node&, SizeCollector& sizes);
  absl::StatusOr<Tensors> (*eval)(const Node&, const EvalArgs&);
  std::optional<Dims> (*contents)(const Node&);  // of result 0, as dims
  OpCost (*cost)(const Node&);                   // nothing, and all of the operands, unless the op has a Cost

  bool variadic() const { return max_operands == SIZE_MAX; }
  bool commutative() const { return info.Has(kCommutative); }
  Use UseOf(size_t operand) const {
    if (operand >= uses.size()) return variadic() ? uses.back() : Use::kElements;
    return uses[operand];
  }
  absl::StatusOr<Types> infer(const Node& node) const {
    SizeCollector nothing;
    return infer_with(node, nothing);
  }
};

template <class Op>
inline constexpr bool kIsOperandMember = false;
template <>
inline constexpr bool kIsOperandMember<Value*> = true;
template <>
inline constexpr bool kIsOperandMember<std::vector<Value*>> = true;

// A typed view of a node: the struct with its fields filled from operands and attributes. The node's arity and
// attribute types must have been checked (Model::AddNode does).
template <class Op>
Op View(const Node& node) {
  Op op{};
  size_t next = 0;
  auto fill = [&](const auto& field) {
    using F = std::remove_reference_t<decltype(op.*(field.member))>;
    if constexpr (std::is_same_v<F, Value*>) {
      op.*(field.member) = next < node.operands.size() ? node.operands[next] : nullptr;
      ++next;
    } else if constexpr (std::is_same_v<F, std::vector<Value*>>) {
      op.*(field.member) = std::vector<Value*>(node.operands.begin() + next, node.operands.end());
    } else if (auto it = node.attrs.find(field.name); it != node.attrs.end()) {
      op.*(field.member) = std::get<F>(it->second);
    }
  };
  std::apply([&](const auto&... field) { (fill(field), ...); }, Op::Fields());
  return op;
}

Types ResultTypes(const Node& node);

template <class Op>
OpDef MakeOpDef() {
  OpDef def{.info = Op::kInfo,
            .operands = {},
            .uses = {},
            .attrs = {},
            .defaults = {},
            .infer_with = nullptr,
            .eval = nullptr,
            .contents = nullptr,
            .cost = nullptr};
  Op defaults{};
  auto add = [&](const auto& field) {
    using F = std::remove_reference_t<decltype(defaults.*(field.member))>;
    if constexpr (kIsOperandMember<F>) {
      def.operands.push_back(field.name);
      def.uses.push_back(field.use);
      if (field.kind != FieldKind::kOptionalOperand) ++def.min_operands;
      def.max_operands = field.kind == FieldKind::kVariadic ? SIZE_MAX : def.max_operands + 1;
    } else {
      def.attrs.push_back(field.name);
      def.defaults.emplace(std::string(field.name), Attr(defaults.*(field.member)));
    }
  };
  std::apply([&](const auto&... field) { (add(field), ...); }, Op::Fields());
  def.infer_with = [](const Node& node, SizeCollector& sizes) {
    if constexpr (requires(const Op& op) { op.Infer(sizes); }) {
      return View<Op>(node).Infer(sizes);
    } else {
      return View<Op>(node).Infer();
    }
  };
  def.eval = [](const Node& node, const EvalArgs& args) { return View<Op>(node).Eval(args); };
  def.contents = [](const Node& node) -> std::optional<Dims> {
    if constexpr (requires(const Op& op) { op.Contents(); }) {
      return View<Op>(node).Contents();
    } else {
      return std::nullopt;
    }
  };
  def.cost = [](const Node& node) -> OpCost {
    if constexpr (requires(const Op& op, const Types& results) { op.Cost(results); }) {
      return View<Op>(node).Cost(ResultTypes(node));
    } else if constexpr (requires(const Op& op) { op.Cost(); }) {
      return View<Op>(node).Cost();
    } else {
      return {};
    }
  };
  return def;
}

template <class Op>
const OpDef* DefOf() {
  static const OpDef* const def = new OpDef(MakeOpDef<Op>());
  return def;
}

// Operands and attributes of a filled struct, for building.
template <class Op>
std::pair<std::vector<Value*>, Attrs> Flatten(const Op& op) {
  std::vector<Value*> operands;
  Attrs attrs;
  const Op defaults{};
  auto add = [&](const auto& field) {
    using F = std::remove_cvref_t<decltype(op.*(field.member))>;
    if constexpr (std::is_same_v<F, Value*>) {
      operands.push_back(op.*(field.member));
    } else if constexpr (std::is_same_v<F, std::vector<Value*>>) {
      for (Value* v : op.*(field.member)) operands.push_back(v);
    } else {
      if (!(op.*(field.member) == defaults.*(field.member))) {
        attrs.emplace(std::string(field.name), Attr(op.*(field.member)));
      }
    }
  };
  std::apply([&](const auto&... field) { (add(field), ...); }, Op::Fields());
  while (!operands.empty() && operands.back() == nullptr) operands.pop_back();
  return {std::move(operands), std::move(attrs)};
}

// False if the node is absent or of another op.
template <class Op>
bool Is(const Node* node) {
  return node != nullptr && node->op == DefOf<Op>();
}

// Whether no kernel computes the node: what it gives is there already, under another name.
bool NeedsNoKernel(const Node& node);
// The value whose contents `value` shows, through any number of views.
const Value* ViewedValue(const Value* value);
// The values that hold what `value` shows: that, or of an encoded value its components, which are read in its place. An
// encoded value has no memory of its own.
std::vector<const Value*> StoredValues(const Value* value);
std::vector<const Value*> StoredOperands(const Node& node);

// Whether operands and attributes may be an op's: how many, attributes' types, states only where the op touches states.
absl::Status CheckForm(const OpDef& op, absl::Span<Value* const> operands, const Attrs& attrs);

// Finds an op by its name in the language; nullptr if there is none.
const OpDef* FindOp(absl::string_view name);
// Every op, in the order of AllOps.
absl::Span<const OpDef* const> AllOpDefs();

// Builds nodes at the end of a block (or before a node), with one-line calls:
//   Builder b(&model, &step->block);
//   auto y = b.Add(RmsNorm{.x = x, .weight = w}, "%y");
// The first error is kept and returned by status(); after it, Add returns nullptr and does nothing.
class Builder {
 public:
  Builder(Model* model, Block* block, Node* before = nullptr) : model_(model), block_(block), before_(before) {}

  template <class Op>
  Value* Add(const Op& op, absl::string_view name = "") {
    Node* node = AddNode(op, name.empty() ? std::vector<std::string>{} : std::vector<std::string>{std::string(name)});
    return node == nullptr || node->results.empty() ? nullptr : node->results[0];
  }
  template <class Op>
  Node* AddNode(const Op& op, const std::vector<std::string>& names = {}) {
    auto [operands, attrs] = Flatten(op);
    return AddRaw(DefOf<Op>(), std::move(operands), std::move(attrs), names);
  }
  Node* AddRaw(const OpDef* op, std::vector<Value*> operands, Attrs attrs, std::vector<std::string> names);

  void set_loc(absl::string_view loc) { loc_ = std::string(loc); }
  const absl::Status& status() const { return status_; }
  Model* model() const { return model_; }

 private:
  Model* model_;
  Block* block_;
  Node* before_;
  std::string loc_;
  absl::Status status_;
};

}  // namespace llmc
