#include "ir/text.h"

#include <algorithm>
#include <cmath>

#include "absl/container/flat_hash_set.h"
#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "base/status_macros.h"
#include "ir/op.h"
#include "ir/state_type.h"
#include "ir/text_lexer.h"

namespace llmc {
namespace {

using text_internal::Lexer;
using text_internal::Statement;

constexpr int64_t kFragmentDimBound = 1 << 20;
constexpr size_t kMaxLiteral = 1 << 20;

absl::Status BadAttr(absl::string_view text, absl::string_view wanted) {
  return absl::InvalidArgumentError(absl::StrCat("'", text.substr(0, 100), "' is not ", wanted));
}

absl::StatusOr<double> ParseNumber(absl::string_view text) {
  double value = 0;
  if (!absl::SimpleAtod(text, &value)) return BadAttr(text, "a number");
  if (std::isinf(value) && text.find_first_of("0123456789") != text.npos) return BadAttr(text, "within f64");
  return value;
}

absl::StatusOr<int64_t> ParseInt(absl::string_view text) {
  int64_t value = 0;
  if (!absl::SimpleAtoi(text, &value)) return BadAttr(text, "an integer");
  return value;
}

// "[a, b]" split at commas of depth zero.
absl::StatusOr<std::vector<absl::string_view>> ParseList(absl::string_view text) {
  if (text.size() < 2 || text.front() != '[' || text.back() != ']') return BadAttr(text, "a list such as [1, 2]");
  text = text.substr(1, text.size() - 2);
  std::vector<absl::string_view> items;
  if (absl::StripAsciiWhitespace(text).empty()) return items;
  int depth = 0;
  size_t begin = 0;
  for (size_t i = 0; i <= text.size(); ++i) {
    if (i < text.size()) depth += text[i] == '(' ? 1 : text[i] == ')' ? -1 : 0;
    if (i < text.size() && (text[i] != ',' || depth != 0)) continue;
    items.push_back(absl::StripAsciiWhitespace(text.substr(begin, i - begin)));
    begin = i + 1;
  }
  return items;
}

template <class T, class F>
absl::StatusOr<Attr> ParseListOf(absl::string_view text, F parse) {
  ASSIGN_OR_RETURN(std::vector<absl::string_view> items, ParseList(text));
  std::vector<T> values;
  for (absl::string_view item : items) {
    ASSIGN_OR_RETURN(T value, parse(item));
    values.push_back(std::move(value));
  }
  return Attr(std::move(values));
}

absl::Status SetLiteralElement(absl::string_view text, int64_t i, Tensor* tensor) {
  if (tensor->dtype() == DType::kBool && (text == "true" || text == "false")) {
    tensor->SetInt(i, text == "true");
  } else if (IsFloat(tensor->dtype())) {
    ASSIGN_OR_RETURN(double value, ParseNumber(text));
    tensor->SetFloat(i, value);
    if (std::isfinite(value) && !std::isfinite(tensor->GetFloat(i))) {
      return BadAttr(text, absl::StrCat("within ", DTypeName(tensor->dtype())));
    }
  } else {
    ASSIGN_OR_RETURN(int64_t value, ParseInt(text));
    tensor->SetInt(i, value);
    if (tensor->GetInt(i) != value) return BadAttr(text, absl::StrCat("within ", DTypeName(tensor->dtype())));
  }
  return absl::OkStatus();
}

// The literal of a `constant`, whose type stands after the colon.
absl::StatusOr<Attr> ParseLiteral(absl::string_view text, const TensorType& type) {
  Shape shape;
  for (const Dim& dim : type.shape) {
    if (!dim.is_constant()) return absl::InvalidArgumentError("a constant's type has a symbol");
    shape.push_back(dim.value());
  }
  ASSIGN_OR_RETURN(int64_t size, CheckedElements(type.dtype, shape));
  if (size > static_cast<int64_t>(kMaxLiteral)) return absl::InvalidArgumentError("a constant is too large");
  Tensor tensor(type.dtype, shape);
  std::vector<absl::string_view> items;
  if (absl::StartsWith(text, "[")) {
    ASSIGN_OR_RETURN(std::vector<absl::string_view> list, ParseList(text));
    items = std::move(list);
  } else if (size > 0) {
    items.assign(size, text);
  } else {
    Tensor one(type.dtype, {1});
    RETURN_IF_ERROR(SetLiteralElement(text, 0, &one));
  }
  if (static_cast<int64_t>(items.size()) != size) {
    return absl::InvalidArgumentError(absl::StrCat("the literal has ", items.size(), " numbers, its type ", size));
  }
  for (int64_t i = 0; i < size; ++i) {
    RETURN_IF_ERROR(SetLiteralElement(items[i], i, &tensor));
  }
  return Attr(std::move(tensor));
}

// Builds a model from text; shared by whole models and fragments.
// Over 250 lines: a method for each rule of the grammar.
class ModelParser {
 public:
  ModelParser(absl::string_view text, absl::string_view file) : lexer_(text, file), model_(std::make_unique<Model>()) {}

  absl::StatusOr<std::unique_ptr<Model>> ParseWhole() {
    if (!lexer_.EatWord("model")) return lexer_.Error("expected 'model \"name\"'");
    ASSIGN_OR_RETURN(std::string name, lexer_.Peek() == '"' ? lexer_.QuotedString() : lexer_.Word());
    model_->name = std::move(name);
    RETURN_IF_ERROR(ParseDeclarations(nullptr));
    if (lexer_.EatWord("prepare")) {
      RETURN_IF_ERROR(ParseBraced(&model_->prepare, nullptr));
    }
    while (lexer_.EatWord("step")) {
      RETURN_IF_ERROR(ParseStep());
    }
    if (!lexer_.AtEnd()) return lexer_.Error("expected 'step' or the end");
    return std::move(model_);
  }

  absl::StatusOr<std::unique_ptr<Model>> ParseLoose() {
    model_->name = "fragment";
    fragment_ = true;
    model_->steps.push_back(std::make_unique<Step>());
    Step* step = model_->steps.back().get();
    while (!lexer_.AtEnd()) {
      RETURN_IF_ERROR(ParseDeclarations(step));
      if (lexer_.AtEnd()) break;
      RETURN_IF_ERROR(ParseOpOrKernel(&step->block, step));
    }
    for (const auto& node : step->block.nodes) {
      for (Value* result : node->results) {
        if (result->users.empty()) step->outputs.push_back(Output{result->name.substr(1), result});
      }
    }
    return std::move(model_);
  }

 private:
  absl::Status ParseDeclarations(Step* loose_step) {
    while (true) {
      absl::Status status;
      if (lexer_.EatWord("dim")) {
        status = ParseDim();
      } else if (lexer_.EatWord("weight")) {
        status = ParseValue('@', [&](const std::string& name, TensorType type, const std::string& source,
                                     const StepRoleRef&) { model_->AddWeight(name, std::move(type), source); });
      } else if (lexer_.EatWord("state")) {
        status = ParseState();
      } else if (loose_step != nullptr && lexer_.EatWord("in")) {
        status = ParseParam(loose_step);
      } else {
        return absl::OkStatus();
      }
      if (!status.ok()) return status;
      lexer_.Eat(';');
    }
  }

  absl::Status ParseDim() {
    const size_t offset = lexer_.NextOffset();
    ASSIGN_OR_RETURN(std::string name, lexer_.Word());
    const absl::StatusOr<Dim> symbol = Dim::Parse(name);
    if (!symbol.ok() || !symbol->is_symbol()) {
      return lexer_.ErrorAt(offset, absl::StrCat("'", name, "' is not a name for a dim"));
    }
    if (!lexer_.Eat('<') || !lexer_.Eat('=')) return lexer_.Error("expected '<=' and the dim's bound");
    ASSIGN_OR_RETURN(std::string bound, lexer_.Word());
    absl::StatusOr<int64_t> value = ParseInt(bound);
    if (!value.ok() || *value < 0) return lexer_.Error("a dim's bound is not a number >= 0");
    if (!model_->dims.emplace(name, *value).second) {
      return lexer_.ErrorAt(offset, absl::StrCat("dim ", name, " is declared twice"));
    }
    return absl::OkStatus();
  }

  absl::StatusOr<TensorType> ParseType() {
    const size_t offset = lexer_.NextOffset();
    ASSIGN_OR_RETURN(std::string text, lexer_.TypeText());
    return CheckType(text, offset);
  }

  absl::StatusOr<TensorType> CheckType(const std::string& text, size_t offset) {
    absl::StatusOr<TensorType> type = TensorType::Parse(text);
    if (!type.ok()) return lexer_.ErrorAt(offset, type.status().message());
    RETURN_IF_ERROR(CheckDims(type->shape, offset));
    return type;
  }

  absl::Status CheckDims(const Dims& dims, size_t offset) {
    for (const Dim& dim : dims) {
      if (dim.is_unknown()) return lexer_.ErrorAt(offset, "a dim is unknown");
      if (dim.is_constant() && dim.value() < 0) return lexer_.ErrorAt(offset, "a dim is negative");
      for (const std::string& symbol : dim.Symbols()) {
        // Passes name places in tensors so.
        if (symbol[0] == '$') return lexer_.ErrorAt(offset, absl::StrCat("the name of dim ", symbol, " begins with $"));
        if (fragment_) model_->dims.emplace(symbol, kFragmentDimBound);
        if (!model_->dims.contains(symbol)) {
          return lexer_.ErrorAt(offset, absl::StrCat("dim ", symbol, " is not declared"));
        }
      }
    }
    return absl::OkStatus();
  }

  // "token_ids" or "slots(full)"
  absl::StatusOr<StepRoleRef> ParseRole() {
    const size_t offset = lexer_.NextOffset();
    ASSIGN_OR_RETURN(std::string text, lexer_.Word());
    if (lexer_.Eat('(')) {
      ASSIGN_OR_RETURN(const std::string pool, lexer_.Word());
      RETURN_IF_ERROR(lexer_.Expect(')'));
      absl::StrAppend(&text, "(", pool, ")");
    }
    absl::StatusOr<StepRoleRef> role = StepRoleRef::Parse(text);
    if (!role.ok()) return lexer_.ErrorAt(offset, role.status().message());
    return role;
  }

  absl::Status ParseParam(Step* step) {
    return ParseValue('%', [&](const std::string& name, TensorType type, const std::string&, StepRoleRef role) {
      visible_params_.insert(model_->AddParam(step, name, std::move(type), std::move(role)));
    });
  }

  // "@x:", of a value that there is not yet
  absl::StatusOr<std::string> NewName(char sigil) {
    const size_t offset = lexer_.NextOffset();
    ASSIGN_OR_RETURN(std::string name, lexer_.ValueName());
    if (name[0] != sigil) return lexer_.ErrorAt(offset, absl::StrCat("expected a name with ", std::string(1, sigil)));
    if (model_->Find(name) != nullptr) return lexer_.ErrorAt(offset, absl::StrCat(name, " is defined twice"));
    RETURN_IF_ERROR(lexer_.Expect(':'));
    return name;
  }

  absl::Status ParseState() {
    ASSIGN_OR_RETURN(const std::string name, NewName('@'));
    const size_t offset = lexer_.NextOffset();
    ASSIGN_OR_RETURN(const std::string text, lexer_.StateTypeText());
    absl::StatusOr<StateType> type = StateType::Parse(text);
    if (!type.ok()) return lexer_.ErrorAt(offset, type.status().message());
    RETURN_IF_ERROR(CheckDims({type->count}, offset));
    model_->AddState(name, *type);
    return absl::OkStatus();
  }

  template <class Add>
  absl::Status ParseValue(char sigil, Add add) {
    const size_t offset = lexer_.NextOffset();
    ASSIGN_OR_RETURN(const std::string name, NewName(sigil));
    ASSIGN_OR_RETURN(TensorType type, ParseType());
    std::string source;
    if (sigil == '@' && lexer_.Eat('=')) {
      ASSIGN_OR_RETURN(std::string text, lexer_.QuotedString());
      source = std::move(text);
    }
    StepRoleRef role;
    if (sigil == '%' && lexer_.Eat('=')) {
      ASSIGN_OR_RETURN(role, ParseRole());
    }
    if (type.encoding != nullptr) {
      return lexer_.ErrorAt(offset, absl::StrCat(name, " is encoded: only results of ops are, such as of encode"));
    }
    add(name, std::move(type), source, std::move(role));
    return absl::OkStatus();
  }

  absl::Status ParseStep() {
    auto owned = std::make_unique<Step>();
    Step* step = owned.get();
    const size_t offset = lexer_.NextOffset();
    ASSIGN_OR_RETURN(std::string name, lexer_.Word());
    for (const auto& other : model_->steps) {
      if (other->name == name) return lexer_.ErrorAt(offset, absl::StrCat("step ", name, " is defined twice"));
    }
    step->name = std::move(name);
    model_->steps.push_back(std::move(owned));
    visible_params_.clear();
    RETURN_IF_ERROR(lexer_.Expect('('));
    if (!lexer_.Eat(')')) {
      do {
        RETURN_IF_ERROR(ParseParam(step));
      } while (lexer_.Eat(','));
      RETURN_IF_ERROR(lexer_.Expect(')'));
    }
    return ParseBraced(&step->block, step);
  }

  absl::Status ParseBraced(Block* block, Step* step) {
    RETURN_IF_ERROR(lexer_.Expect('{'));
    while (lexer_.Peek() != '}') {
      if (lexer_.AtEnd()) return lexer_.Error("a block does not end");
      if (step != nullptr && lexer_.EatWord("return")) {
        RETURN_IF_ERROR(ParseReturn(step));
        break;
      }
      RETURN_IF_ERROR(ParseOpOrKernel(block, step));
    }
    return lexer_.Expect('}');
  }

  // A kernel stands in a step only: `step` is null in `prepare`.
  absl::Status ParseOpOrKernel(Block* block, Step* step) {
    if (step == nullptr || !lexer_.EatWord("kernel")) return ParseOp(block);
    ASSIGN_OR_RETURN(std::string backend, lexer_.Word());
    Kernel* kernel = &step->kernels.emplace_back(Kernel{.backend = std::move(backend)});
    RETURN_IF_ERROR(lexer_.Expect('{'));
    if (lexer_.Peek() == '}') return lexer_.Error("a kernel has no op");
    while (lexer_.Peek() != '}') {
      if (lexer_.AtEnd()) return lexer_.Error("a kernel does not end");
      RETURN_IF_ERROR(ParseOp(block));
      block->nodes.back()->kernel = kernel;
    }
    return lexer_.Expect('}');
  }

  absl::Status ParseReturn(Step* step) {
    if (lexer_.Peek() == '}') return absl::OkStatus();
    absl::flat_hash_set<std::string> names;
    do {
      const size_t name_offset = lexer_.NextOffset();
      ASSIGN_OR_RETURN(std::string name, lexer_.QuotedString());
      if (!names.insert(name).second) {
        return lexer_.ErrorAt(name_offset, absl::StrCat("output '", name, "' is defined twice"));
      }
      RETURN_IF_ERROR(lexer_.Expect('='));
      const size_t offset = lexer_.NextOffset();
      ASSIGN_OR_RETURN(std::string value, lexer_.ValueName());
      ASSIGN_OR_RETURN(Value * found, Lookup(value, offset, &step->block));
      step->outputs.push_back(Output{std::move(name), found});
    } while (lexer_.Eat(','));
    return absl::OkStatus();
  }

  // The value of a name, if it can be seen from `block`.
  absl::StatusOr<Value*> Lookup(const std::string& name, size_t offset, const Block* block) {
    Value* value = model_->Find(name);
    if (value == nullptr) return lexer_.ErrorAt(offset, absl::StrCat(name, " is not defined above"));
    const bool in_prepare = block == &model_->prepare;
    if (value->kind == ValueKind::kState && in_prepare) {
      return lexer_.ErrorAt(offset, absl::StrCat("prepare runs before there are states such as ", name));
    }
    const bool visible = value->kind == ValueKind::kParam ? visible_params_.contains(value)
                         : value->def != nullptr ? value->def->block == block || value->def->block == &model_->prepare
                                                 : true;
    if (!visible) return lexer_.ErrorAt(offset, absl::StrCat(name, " belongs to another step"));
    return value;
  }

  absl::Status CheckResults(const Statement& statement) {
    const std::vector<std::string>& results = statement.line.results;
    for (size_t i = 0; i < results.size(); ++i) {
      if (results[i] == "_") return lexer_.ErrorAt(statement.result_offsets[i], "a result needs a name such as %x");
      const bool repeats = std::find(results.begin(), results.begin() + i, results[i]) != results.begin() + i;
      if (repeats || model_->Find(results[i]) != nullptr) {
        return lexer_.ErrorAt(statement.result_offsets[i], absl::StrCat(results[i], " is defined twice"));
      }
    }
    if (!statement.types.empty() && statement.types.size() != results.size()) {
      return lexer_.ErrorAt(statement.type_offset, absl::StrCat(statement.types.size(), " types for ", results.size(),
                                                                results.size() == 1 ? " result" : " results"));
    }
    return absl::OkStatus();
  }

  absl::Status ParseOp(Block* block) {
    ASSIGN_OR_RETURN(Statement parsed, lexer_.ParseStatement());
    const Statement& statement = parsed;
    const OpLine& line = statement.line;
    const OpDef* op = FindOp(line.op);
    if (op == nullptr) return lexer_.ErrorAt(statement.offset, absl::StrCat("unknown op '", line.op, "'"));
    if (static_cast<int>(line.results.size()) != op->info.results) {
      return lexer_.ErrorAt(statement.offset,
                            absl::StrCat(line.op, " has ", op->info.results, " results, not ", line.results.size()));
    }
    RETURN_IF_ERROR(CheckResults(statement));
    std::vector<Value*> operands;
    for (size_t i = 0; i < line.operands.size(); ++i) {
      operands.push_back(nullptr);
      if (line.operands[i] == "_") continue;
      ASSIGN_OR_RETURN(Value * operand, Lookup(line.operands[i], statement.operand_offsets[i], block));
      operands.back() = operand;
    }
    Types types;
    for (const std::string& text : statement.types) {
      ASSIGN_OR_RETURN(TensorType type, CheckType(text, statement.type_offset));
      types.push_back(std::move(type));
    }
    ASSIGN_OR_RETURN(Attrs attrs, ParseAttrs(*op, statement, types));
    absl::StatusOr<Node*> node = model_->AddNode(block, nullptr, op, std::move(operands), std::move(attrs),
                                                 line.results, statement.loc, types.empty() ? nullptr : &types);
    if (!node.ok()) return lexer_.ErrorAt(statement.offset, node.status().message());
    return absl::OkStatus();
  }

  absl::StatusOr<Attrs> ParseAttrs(const OpDef& op, const Statement& statement, const Types& types) {
    Attrs attrs;
    for (const auto& [key, text] : statement.line.attrs) {
      auto it = op.defaults.find(key);
      if (it == op.defaults.end()) {
        return lexer_.ErrorAt(statement.offset, absl::StrCat(op.info.name, " has no attribute '", key, "'"));
      }
      absl::StatusOr<Attr> value = absl::InvalidArgumentError("a constant needs its type after a colon");
      if (!std::holds_alternative<Tensor>(it->second)) {
        value = ParseAttr(text, it->second);
      } else if (types.size() == 1) {
        value = ParseLiteral(text, types[0]);
      }
      if (!value.ok()) {
        return lexer_.ErrorAt(statement.offset, absl::StrCat("attribute '", key, "': ", value.status().message()));
      }
      if (const Dims* dims = std::get_if<Dims>(&*value)) {
        RETURN_IF_ERROR(CheckDims(*dims, statement.offset));
      }
      if (!attrs.emplace(key, *std::move(value)).second) {
        return lexer_.ErrorAt(statement.offset, absl::StrCat("attribute '", key, "' stands twice"));
      }
    }
    return attrs;
  }

  Lexer lexer_;
  std::unique_ptr<Model> model_;
  absl::flat_hash_set<const Value*> visible_params_;
  bool fragment_ = false;
};

}  // namespace

absl::StatusOr<Attr> ParseAttr(absl::string_view text, const Attr& like) {
  if (std::holds_alternative<bool>(like)) {
    if (text != "true" && text != "false") return BadAttr(text, "true or false");
    return Attr(text == "true");
  }
  if (std::holds_alternative<int64_t>(like)) {
    ASSIGN_OR_RETURN(int64_t value, ParseInt(text));
    return Attr(value);
  }
  if (std::holds_alternative<double>(like)) {
    ASSIGN_OR_RETURN(double value, ParseNumber(text));
    return Attr(value);
  }
  if (std::holds_alternative<DType>(like)) {
    ASSIGN_OR_RETURN(DType value, ParseDType(text));
    return Attr(value);
  }
  if (std::holds_alternative<std::string>(like)) {
    absl::StatusOr<std::string> value = Lexer(text, "attribute").QuotedString();
    if (!value.ok()) return BadAttr(text, "a string");
    return Attr(*std::move(value));
  }
  if (std::holds_alternative<std::vector<int64_t>>(like)) return ParseListOf<int64_t>(text, ParseInt);
  if (std::holds_alternative<std::vector<double>>(like)) return ParseListOf<double>(text, ParseNumber);
  if (std::holds_alternative<Dims>(like)) return ParseListOf<Dim>(text, Dim::Parse);
  return absl::InvalidArgumentError("a literal needs its type");
}

absl::StatusOr<std::unique_ptr<Model>> ParseModel(absl::string_view text, absl::string_view file) {
  return ModelParser(text, file).ParseWhole();
}

absl::StatusOr<std::unique_ptr<Model>> ParseFragment(absl::string_view text, absl::string_view file) {
  return ModelParser(text, file).ParseLoose();
}

absl::StatusOr<std::vector<OpLine>> ParseOpLines(absl::string_view text, absl::string_view file) {
  Lexer lexer(text, file);
  std::vector<OpLine> lines;
  while (!lexer.AtEnd()) {
    ASSIGN_OR_RETURN(Statement statement, lexer.ParseStatement());
    lines.push_back(std::move(statement.line));
  }
  return lines;
}

}  // namespace llmc
