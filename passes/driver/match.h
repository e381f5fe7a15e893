// Binding a rule's left side to nodes of a block.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/statusor.h"
#include "ir/op.h"
#include "passes/driver/rule.h"

namespace llmc {

struct OpLine;

// "%y = add %x, %z": results, op and operands.
std::string LineText(const OpLine& line);

struct AttrPattern {
  std::string name;
  int slot = -1;  // of "$eps"; -1: `literal`
  Attr literal;
};

// One line of a rule with its names resolved to slots.
struct PatternLine {
  const OpDef* op = nullptr;  // nullptr: any with the rule's trait
  std::vector<int> operands;  // slots; -1 stands for an absent operand
  std::vector<int> results;
  std::vector<AttrPattern> attrs;
  std::string text;

  bool IsAlias() const;  // an `identity` of the right side
  const AttrPattern* FindAttr(absl::string_view name) const;
};

struct CompiledRule {
  const Rule* rule = nullptr;
  std::vector<PatternLine> find, replace;
  std::vector<std::string> names, attr_names;
  std::vector<int> kept_line;     // for each line of `replace`: the equal line of `find`, whose node stays; or -1
  std::vector<bool> line_stays;   // for each line of `find`
  std::vector<bool> redefined;    // for each slot: the right side defines it
  const OpDef* anchor = nullptr;  // the op of the last line, or of a rule with Apply
  std::string trait;              // ":elementwise", of the only line
  int border = -1;                // the slot of a border line
  bool kernel_reads = false;      // what the border line says of it

  int Slot(absl::string_view name) const;  // -1 if there is none
};
// `rule` must outlive the result. Errors mean that a literal of the rule does not parse.
absl::StatusOr<CompiledRule> CompileRule(const Rule& rule);

// Values, attributes and nodes that a left side is bound to. Names of attributes must be names of the rule; of a value
// with another name there is none.
class Match {
 public:
  Match(const CompiledRule* rule, Model* model);

  Value* operator[](absl::string_view name) const;
  const Attr& GetAttr(absl::string_view name) const;
  int64_t Int(absl::string_view name) const { return std::get<int64_t>(GetAttr(name)); }
  const Model& model() const { return *model_; }

  const CompiledRule* rule;
  std::vector<Value*> values;
  std::vector<std::optional<Attr>> attrs;
  std::vector<Node*> nodes;  // one for each line of the left side

  // Set once the match is found legal: the right side goes before this node (nullptr: at the end of the block).
  Node* insert_before = nullptr;

 private:
  Model* model_;
};

// Why a rule did not fire: the line of the rule that failed, what was there and what it expected.
struct Refusal {
  std::string line, actual, expected;
  std::vector<const Node*> nodes;  // that other lines had matched by then

  // Whether at least half of the rule had matched.
  bool IsNear(const CompiledRule& rule) const {
    return nodes.size() == rule.find.size() || (nodes.size() >= 2 && 2 * nodes.size() >= rule.find.size());
  }
};

// Binds the rule with `anchor` as its last line and checks that it may fire. `refusal` may be null.
// The work is bounded by a constant for each rule, whatever the model.
std::optional<Match> FindMatch(const CompiledRule& rule, Model* model, Node* anchor, Refusal* refusal);

// Why something does not fit: what was found and what was expected. Of a match, nothing expected: it is none to tell
// of.
struct Misfit {
  std::string actual, expected;
};
// For rules without a right side, where `model` may be null: binds `node` as line `line`, and takes the first match to
// which `judge` objects not.
std::optional<Match> FindMatch(const CompiledRule& rule, Model* model, size_t line, Node* node,
                               absl::FunctionRef<std::optional<Misfit>(const Match&)> judge, Refusal* refusal);

}  // namespace llmc
