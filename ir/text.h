// The language's text: parsing and printing. Types and dims inside of it are read by TensorType::Parse and Dim::Parse.
//
// clang-format off
//   model     := "model" (STRING | NAME) { dim | weight | state } [ "prepare" "{" {op} "}" ] { step }
//   dim       := "dim" NAME "<=" INT
//   weight    := "weight" "@"NAME ":" type [ "=" STRING ]
//   state     := "state" "@"NAME ":" kind "{" NAME ":" type {"," NAME ":" type} "}"      (ir/state_type.h)
//   kind      := "paged" "[" dim_expr "," INT "]" | "per_sequence" "[" dim_expr "]"
//   step      := "step" NAME "(" [ param {"," param} ] ")" "{" {op | kernel} [ return ] "}"
//   kernel    := "kernel" NAME "{" {op} "}"    ops that one kernel of a backend computes, in a step that is lowered
//   param     := "%"NAME ":" type [ "=" role ]
//   role      := NAME [ "(" NAME ")" ]         of an input of a language model's step (base/step_contract.h), and its pool
//   op        := [ value {"," value} "=" ] NAME [ operand {"," operand} ] [ "{" NAME "=" literal {"," …} "}" ]
//                [ ":" type {"," type} ] [ "loc" STRING ]
//   value     := ("%" | "@") (NAME | STRING), or "_" for an operand that is absent
//   return    := "return" [ STRING "=" value {"," …} ]
//   value     := "%"NAME | "@"NAME
//   operand   := value | "_"                    "_": an optional operand that is absent
//   type      := DTYPE "[" [ dim_expr {"," dim_expr} ] "]"
//   NAME      := letters, digits and _ . $ - /  a dim's without - and /, and not starting with a digit
// clang-format on
//
// `//` starts a comment, also right after a name. A step sees weights, states, results of `prepare` and what stands
// above in itself; `prepare` sees weights. Printing and parsing again gives an identical model.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "ir/graph.h"

namespace llmc {

// `file` is used in errors only: "file:LINE: message", the line, and a caret under the place.
absl::StatusOr<std::unique_ptr<Model>> ParseModel(absl::string_view text, absl::string_view file);

// A list of ops without a frame, for tests and rules: free names become parameters ("%x") or weights ("@w") whose types
// are given by lines `in %x: f32[4, 64]` / `weight @w: f32[64]` / `state …` / `dim T <= 8`; every result that no op
// uses is an output named after it.
absl::StatusOr<std::unique_ptr<Model>> ParseFragment(absl::string_view text, absl::string_view file);

std::string PrintModel(const Model& model);
std::string PrintNode(const Node& node);  // one line, without indent or newline
std::string PrintBlock(const Block& block);
std::string AttrToString(const Attr& attr);
// "f32[T, 64]", or the type of a state.
std::string TypeText(const Value& value);

// One op line split into its parts, names unresolved; for rule texts. Attribute values keep their text.
struct OpLine {
  std::vector<std::string> results, operands;  // with sigils; an absent optional operand is "_"
  std::string op;
  std::vector<std::pair<std::string, std::string>> attrs;
  int line = 0;
};
absl::StatusOr<std::vector<OpLine>> ParseOpLines(absl::string_view text, absl::string_view file);
// Text of one attribute to a value of the type that `like` has.
absl::StatusOr<Attr> ParseAttr(absl::string_view text, const Attr& like);

}  // namespace llmc
