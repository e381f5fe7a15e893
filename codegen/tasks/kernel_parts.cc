#include "codegen/tasks/kernel_parts.h"

#include "absl/algorithm/container.h"
#include "absl/strings/str_cat.h"
#include "ir/ops.h"
#include "passes/driver/match.h"
#include "passes/lower/lower.h"

namespace llmc {
namespace {

// All rules that form kernels.
const std::vector<CompiledRule>& FormingRules() {
  static const auto* const rules = [] {
    auto* compiled = new std::vector<CompiledRule>();
    for (const Rule& rule : LowerRules()) {
      if (!rule.forms().empty()) compiled->push_back(CompileRule(rule).value());
    }
    return compiled;
  }();
  return *rules;
}

class ChainReader {
 public:
  ChainReader(const KernelBody& body, ProductChain* chain) : body_(body), chain_(*chain) {}

  std::optional<Misfit> Run() {
    const auto product = absl::c_find_if(body_.nodes, IsProduct);
    if (product == body_.nodes.end()) return Misfit{"no product", "one"};
    chain_.product = *product;
    const Value* value = chain_.product->results[0];
    std::vector<const Node*> rest;
    for (const Node* node : body_.nodes) {
      if (node == chain_.product) continue;
      if (IsCastOfOperand(*node)) {
        if (!Widens(*node)) return Misfit{absl::StrCat("a cast to ", node->results[0]->name), "operands as they are"};
        chain_.narrow = node->operands[0]->type.dtype;
      } else if (IsNorm(*node)) {
        chain_.norm = node;
      } else if (rest.empty() && Follow(*node, value)) {
        value = node->results[0];
      } else {
        rest.push_back(node);
      }
    }
    chain_.out = value;
    if (!rest.empty()) {
      if (std::optional<Misfit> misfit = ReadHeads(rest, value)) return misfit;
    }
    const std::vector<const Value*> expected = {chain_.out};
    if (body_.results == expected) return std::nullopt;
    return Misfit{body_.results.size() == 1 ? "other results" : absl::StrCat(body_.results.size(), " results"),
                  absl::StrCat("no other result than ", chain_.out->name)};
  }

 private:
  bool IsNorm(const Node& node) const {
    return Is<RmsNorm>(&node) && chain_.norm == nullptr && chain_.product->operands[0] == node.results[0];
  }

  bool IsCastOfOperand(const Node& node) const {
    return Is<Cast>(&node) && !absl::c_linear_search(body_.nodes, node.operands[0]->def);
  }

  // Whether the cast is one of those that take all operands from the type of the result to f32.
  bool Widens(const Node& cast) const {
    const Node* last = body_.nodes.back();
    return Is<Cast>(last) && last->operands[0]->type.dtype == DType::kF32 &&
           cast.results[0]->type.dtype == DType::kF32 && cast.operands[0]->type.dtype == last->results[0]->type.dtype;
  }

  bool IsInner(const Value* value) const {
    return value != nullptr && absl::c_linear_search(body_.nodes, value->def) && !IsCastOfOperand(*value->def);
  }

  bool Follow(const Node& node, const Value* value) {
    const OpInfo& info = node.op->info;
    if (absl::c_count(node.operands, value) != 1 ||
        absl::c_count_if(node.operands, [&](const Value* operand) { return IsInner(operand); }) != 1) {
      return false;
    }
    if (info.is_view()) return node.operands[0] == value;
    if (!info.is_elementwise() && !Is<SiluMul>(&node)) return false;
    chain_.links.push_back({&node, value});
    return true;
  }

  std::optional<Misfit> ReadHeads(const std::vector<const Node*>& nodes, const Value* value) {
    if (absl::c_none_of(nodes, [](const Node* node) { return Is<KvWrite>(node); })) {
      return Misfit{
          nodes[0]->op->info.name == "rms_norm" ? "a norm after the product" : std::string(nodes[0]->op->info.name),
          "what follows from the product, elementwise"};
    }
    QkvParts qkv;
    if (std::optional<Misfit> misfit = ReadQkv(nodes, &qkv)) return misfit;
    if (qkv.qkv != value) return Misfit{"heads of another value", absl::StrCat("of ", value->name)};
    chain_.qkv = qkv;
    chain_.out = qkv.out;
    return std::nullopt;
  }

  const KernelBody& body_;
  ProductChain& chain_;
};

}  // namespace

std::optional<Match> MatchFormed(absl::string_view backend, absl::Span<const Node* const> nodes) {
  const auto judge = [&](const Match& match) {
    const bool fits = absl::c_all_of(match.nodes, [&](Node* node) { return absl::c_linear_search(nodes, node); });
    return fits ? std::nullopt : std::optional(Misfit());
  };
  for (const CompiledRule& rule : FormingRules()) {
    if (View(rule.rule->forms()) != backend || rule.find.size() != nodes.size()) continue;
    for (const Node* anchor : nodes) {
      if (anchor->op != rule.anchor) continue;
      // Nothing is changed: the match has nodes to change for who rewrites them.
      std::optional<Match> match =
          FindMatch(rule, nullptr, rule.find.size() - 1, const_cast<Node*>(anchor), judge, nullptr);
      if (match.has_value()) return match;
    }
  }
  return std::nullopt;
}

std::optional<Misfit> ReadQkv(absl::Span<const Node* const> nodes, QkvParts* parts) {
  const std::optional<Match> match = MatchFormed("rope_kv_write", nodes);
  if (!match.has_value()) return Misfit{"other nodes", "slices, norms and rope of heads before a kv_write"};
  const Match& m = *match;
  *parts = {.qkv = m["%qkv"],
            .kv = m["@kv"],
            .pos = m["%pos"],
            .inv_freq = m["%f"],
            .slots = m["%slots"],
            .k_scale = m["%_ks"],
            .v_scale = m["%_vs"],
            .interleaved = std::get<bool>(m.GetAttr("$i")),
            .scale = std::get<double>(m.GetAttr("$s"))};
  if (parts->qkv == nullptr) {
    parts->k = m["%k"];
    parts->v = m["%v"];
    return std::nullopt;
  }
  parts->out = m["%qr"];
  const Dims &q_end = std::get<Dims>(m.GetAttr("$a")), &v_end = std::get<Dims>(m.GetAttr("$c"));
  if (parts->qkv->type.rank() != 2 || v_end != Dims{parts->qkv->type.shape[1]} || !q_end[0].is_constant()) {
    return Misfit{"other slices", "queries, keys and values one after the other"};
  }
  parts->heads = q_end[0].value() / m.Int("$d");
  parts->q_norm = m["%gq"];
  parts->k_norm = m["%gk"];
  if (parts->q_norm != nullptr) parts->eps = std::get<double>(m.GetAttr("$e"));
  return std::nullopt;
}

const Value* SourceOf(const Value* operand, const KernelBody& body) {
  const bool is_cast = Is<Cast>(operand->def) && absl::c_linear_search(body.nodes, operand->def);
  return is_cast ? operand->def->operands[0] : operand;
}

std::optional<Misfit> ReadChain(const KernelBody& body, ProductChain* chain) { return ChainReader(body, chain).Run(); }

}  // namespace llmc
