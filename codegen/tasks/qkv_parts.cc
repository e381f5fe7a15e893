#include "codegen/tasks/qkv_parts.h"

#include "absl/algorithm/container.h"
#include "ir/ops.h"
#include "passes/driver/match.h"
#include "passes/lower/lower.h"

namespace llmc {
namespace {

// The rules that form such kernels: their left sides say what the nodes of one are.
const std::vector<CompiledRule>& FormingRules() {
  static const auto* const rules = [] {
    auto* compiled = new std::vector<CompiledRule>();
    for (const Rule& rule : LowerRules()) {
      if (rule.forms() == "rope_kv_write") compiled->push_back(CompileRule(rule).value());
    }
    return compiled;
  }();
  return *rules;
}

// The nodes, all of them and no others, as a rule names them.
std::optional<Match> MatchOf(absl::Span<const Node* const> nodes) {
  const auto write = absl::c_find_if(nodes, [](const Node* node) { return Is<KvWrite>(node); });
  if (write == nodes.end()) return std::nullopt;
  const auto judge = [&](const Match& match) {
    const bool fits = absl::c_all_of(match.nodes, [&](Node* node) { return absl::c_linear_search(nodes, node); });
    return fits ? std::nullopt : std::optional(Misfit());
  };
  for (const CompiledRule& rule : FormingRules()) {
    if (rule.find.size() != nodes.size()) continue;
    // Nothing is changed: the match has nodes to change for who rewrites them.
    std::optional<Match> match =
        FindMatch(rule, nullptr, rule.find.size() - 1, const_cast<Node*>(*write), judge, nullptr);
    if (match.has_value()) return match;
  }
  return std::nullopt;
}

}  // namespace

std::optional<Misfit> ReadQkv(absl::Span<const Node* const> nodes, QkvParts* parts) {
  const std::optional<Match> match = MatchOf(nodes);
  if (!match.has_value()) return Misfit{"other nodes", "slices, norms and rope of heads before a kv_write"};
  const Match& m = *match;
  *parts = {.qkv = m["%qkv"],
            .kv = m["@kv"],
            .pos = m["%pos"],
            .inv_freq = m["%f"],
            .slots = m["%slots"],
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

}  // namespace llmc
