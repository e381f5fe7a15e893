#include "tools/findings.h"

#include <algorithm>
#include <set>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "ir/text.h"
#include "passes/rules/missed_patterns.h"

namespace llmc {
namespace {

using Json = nlohmann::ordered_json;

constexpr size_t kMaxIndexed = 300'000;  // ops: the text of larger models is not made only to find lines

struct Kind {
  absl::string_view rule, kind, title;
};
// Of rules that are in no row: "fusion". What raise-attention and raise-*-matmul refuse is not shown: it is in left-*.
constexpr Kind kKinds[] = {
    {kLeftAttention, "attention", "attention that was not recognized"},
    {kLeftNorm, "norm", "norms that were not recognized"},
    {kLeftGelu, "gelu", "gelu that was not recognized"},
    {kLeftRotary, "rotary", "rotary embeddings that were not recognized"},
    {kLeftQuantized, "quantization", "products of quantized factors that were not recognized"},
    {"prove-mask", "mask", "masks that stay explicit"},
    {"share-heads-in-attention", "heads", "key-value heads that stay repeated"},
    {kPaginate, "pagination", ""},
    {"raise-attention", "", ""},
    {"raise-quantized-linear", "", ""},
    {"raise-integer-linear", "", ""},
};
constexpr Kind kFusion = {"", "fusion", "ops that were not fused"};

const Kind& KindOf(absl::string_view rule) {
  for (const Kind& kind : kKinds) {
    if (kind.rule == rule) return kind;
  }
  return kFusion;
}

// The first row of the kind whose word is in what was expected or found.
struct Remedy {
  absl::string_view kind, word, text;
};
constexpr Remedy kRemedies[] = {
    {"attention", "batch and heads",
     "repeat key-value heads with Unsqueeze, Expand and Reshape, as transformers does, or export with opset 23, whose "
     "Attention takes fewer heads"},
    {"attention", "nothing else uses",
     "export without attention weights as an output (output_attentions=False); ops that use the scores keep them"},
    {"attention", "",
     "write attention as product, scale, mask, softmax over keys and product, or export scaled_dot_product_attention "
     "with opset 23"},
    {"norm", "", "normalize over the last axis with a constant epsilon, or export with opset 23 (RMSNormalization)"},
    {"gelu", "", "use gelu or its tanh form with their exact constants, or export with opset 20 (Gelu)"},
    {"rotary", "", "turn heads [B, heads, S, D] by tables [S, D / 2], or export with opset 23 (RotaryEmbedding)"},
    {"quantization", "",
     "quantize weights by tensor, by column or by blocks along k, and activations by tensor; others are multiplied "
     "out"},
    {"mask", "",
     "none is needed: attention reads the mask, and a paged cache does without; to be rid of it, let the graph make it "
     "from positions, or export without attention_mask if nothing is padded"},
    {"pagination", "a bias that",
     "none: paged attention has no biases of distance (alibi); the model runs with its cache as tensors"},
    {"pagination", "a causal mask", "export with a mask that the graph makes from positions, as transformers does"},
    {"pagination", "position_ids, past", "export with no other inputs than these"},
    {"pagination", "logits and present", "export with no other outputs than these"},
    {"pagination", "cos and sin", "compute the angles from position_ids and a table of frequencies in the graph"},
    {"pagination", "", "leave out of the export what stands there; as it is, the model runs with its cache as tensors"},
};

std::string RemedyOf(const Finding& finding) {
  for (const Remedy& row : kRemedies) {
    if (row.kind != finding.kind) continue;
    if (absl::StrContains(finding.expected, row.word) || absl::StrContains(finding.actual, row.word)) {
      return std::string(row.text);
    }
  }
  return "";
}

bool IsNameChar(char c) {
  return absl::ascii_isalnum(static_cast<unsigned char>(c)) || absl::StrContains("_.$/-", absl::string_view(&c, 1));
}

// Text with the names of values taken out: the same mistake in another layer reads the same.
std::string WithoutNames(absl::string_view text) {
  std::string out;
  for (size_t i = 0; i < text.size(); ++i) {
    out.push_back(text[i]);
    if (text[i] != '%' && text[i] != '@') continue;
    while (i + 1 < text.size() && IsNameChar(text[i + 1])) ++i;
  }
  return out;
}

Finding MakeFinding(const std::string& rule, const Ledger::Refusal& refusal, const DumpIndex* index) {
  Finding finding{.kind = std::string(KindOf(rule).kind),
                  .rule = rule,
                  .line = refusal.line,
                  .actual = refusal.actual,
                  .expected = refusal.expected,
                  .remedy = "",
                  .key = absl::StrCat(rule, "\n", refusal.line, "\n", WithoutNames(refusal.actual), "\n",
                                      WithoutNames(refusal.expected)),
                  .count = refusal.count,
                  .places = {}};
  finding.remedy = RemedyOf(finding);
  for (const LedgerPlace& place : refusal.places) {
    finding.places.push_back({place, LayerOfPlace(place.loc), index == nullptr ? DumpLine() : index->Find(place)});
  }
  return finding;
}

bool IsShown(const std::string& rule, const Ledger::Refusal& refusal) {
  return refusal.near && !refusal.expected.empty() && !KindOf(rule).kind.empty();
}

std::string PlaceText(const FindingPlace& place) {
  std::string text = absl::StrCat(place.node.op, " ", place.node.value);
  if (place.dump.line > 0) absl::StrAppend(&text, ", ", place.dump.file, ":", place.dump.line);
  if (!place.node.loc.empty()) absl::StrAppend(&text, ", at ", place.node.loc);
  return Shown(text);
}

}  // namespace

DumpIndex::DumpIndex(std::string file, absl::string_view text, int64_t offset) : file_(std::move(file)) {
  int64_t number = offset;
  for (absl::string_view line : absl::StrSplit(text, '\n')) {
    ++number;
    line = absl::StripLeadingAsciiWhitespace(line);
    const size_t equals = line.find(" = ");
    if (line.empty()) continue;
    if (line[0] != '%' && line[0] != '@') {  // "kv_write @kv0, %k, %v": an op without results
      const std::vector<absl::string_view> words = absl::StrSplit(line.substr(0, 512), absl::ByAnyChar(" ,"));
      if (words.size() > 1) lines_.try_emplace(absl::StrCat(words[0], " ", words[1]), number);
      continue;
    }
    if (equals == absl::string_view::npos) continue;
    for (const absl::string_view name : absl::StrSplit(line.substr(0, equals), ", "))
      lines_[std::string(name)] = number;
  }
}

DumpLine DumpIndex::Find(const LedgerPlace& place) const {
  auto it = lines_.find(place.value);
  if (it == lines_.end()) it = lines_.find(absl::StrCat(place.op, " ", place.value));
  return it == lines_.end() ? DumpLine() : DumpLine{file_, it->second};
}

void FindingCollector::After(int number, absl::string_view pass, const Model& model) {
  size_t ops = 0;
  for (const auto& step : model.steps) ops += step->block.nodes.size();
  if (ops > kMaxIndexed) return Collect(nullptr);
  const std::string text = PrintModel(model);
  if (const size_t hash = std::hash<std::string>()(text); hash != hash_) {
    hash_ = hash;
    file_ = absl::StrCat(absl::Dec(number, absl::kZeroPad2), "-", pass, ".lir");
  }
  Collect(&text);
}

void FindingCollector::Collect(const std::string* text) {
  std::optional<DumpIndex> index;
  for (const auto& [rule, entry] : ledger_->entries()) {
    for (const auto& [reason, refusal] : entry.refusals) {
      int64_t& seen = seen_[absl::StrCat(rule, "\n", reason)];
      if (seen == refusal.count || !IsShown(rule, refusal)) continue;
      seen = refusal.count;
      if (text != nullptr && !index.has_value()) index.emplace(file_, *text, 1);  // a dump begins with a comment
      findings_.push_back(MakeFinding(rule, refusal, index.has_value() ? &*index : nullptr));
    }
  }
}

std::vector<Finding> FindingsOf(const Ledger& ledger, const DumpIndex* index) {
  std::vector<Finding> findings;
  for (const auto& [rule, entry] : ledger.entries()) {
    for (const auto& [reason, refusal] : entry.refusals) {
      if (IsShown(rule, refusal)) findings.push_back(MakeFinding(rule, refusal, index));
    }
  }
  return findings;
}

std::string LayerOfPlace(absl::string_view loc) {
  size_t begin = 0;
  while (begin < loc.size()) {
    size_t end = loc.find_first_of("./", begin);
    if (end == absl::string_view::npos) end = loc.size();
    const absl::string_view part = loc.substr(begin, end - begin);
    const bool is_number = !part.empty() && std::all_of(part.begin(), part.end(), [](char c) {
      return absl::ascii_isdigit(static_cast<unsigned char>(c));
    });
    if (is_number && begin > 0) return std::string(loc.substr(0, end));
    begin = end + 1;
  }
  return "";
}

std::string Shown(absl::string_view text, size_t limit) {
  const bool is_long = text.size() > limit;
  std::string shown(is_long ? text.substr(0, limit) : text);
  for (char& c : shown) {
    if (absl::ascii_iscntrl(static_cast<unsigned char>(c))) c = '?';
  }
  return is_long ? shown + "…" : shown;
}

std::string FindingsText(const std::vector<Finding>& findings, size_t max_places) {
  std::string text;
  std::set<std::string> told;
  for (const Finding& finding : findings) {
    if (!told.insert(finding.key).second) continue;
    int64_t count = 0;
    std::vector<const FindingPlace*> places;
    for (const Finding& other : findings) {
      if (other.key != finding.key) continue;
      count += other.count;
      for (const FindingPlace& place : other.places) places.push_back(&place);
    }
    if (places.empty()) continue;
    if (finding.rule != kPaginate) {
      absl::StrAppend(&text, KindOf(finding.rule).title, ": ", count, count == 1 ? " place" : " places", "\n");
    }
    absl::StrAppend(&text, "  ", PlaceText(*places[0]), "\n");
    const std::string line = absl::StrContains(finding.line, " ") ? absl::StrCat("line `", finding.line, "` ") : "";
    absl::StrAppend(&text, "    ", finding.rule, ": ", finding.rule == kPaginate ? "" : line, "found ",
                    Shown(finding.actual), ", expected ", Shown(finding.expected), "\n");
    for (size_t i = 1; i < places.size() && i < max_places; ++i) {
      absl::StrAppend(&text, "  and ", PlaceText(*places[i]), "\n");
    }
    const int64_t rest = count - static_cast<int64_t>(std::min(places.size(), max_places));
    if (rest > 0)
      absl::StrAppend(&text, "  and ", rest, rest == 1 ? " place" : " places", " more",
                      max_places == SIZE_MAX ? "" : " (--all)", "\n");
    if (!finding.remedy.empty()) absl::StrAppend(&text, "  remedy: ", finding.remedy, "\n");
  }
  return text;
}

Json FindingsJson(const std::vector<Finding>& findings) {
  Json list = Json::array();
  for (const Finding& finding : findings) {
    Json places = Json::array();
    for (const FindingPlace& place : finding.places) {
      Json json = {{"value", place.node.value}, {"op", place.node.op}, {"loc", place.node.loc}, {"layer", place.layer}};
      if (place.dump.line > 0) json["dump"] = {{"file", place.dump.file}, {"line", place.dump.line}};
      places.push_back(json);
    }
    list.push_back({{"kind", finding.kind},
                    {"rule", finding.rule},
                    {"line", finding.line},
                    {"actual", finding.actual},
                    {"expected", finding.expected},
                    {"remedy", finding.remedy},
                    {"count", finding.count},
                    {"places", places}});
  }
  return list;
}

}  // namespace llmc
