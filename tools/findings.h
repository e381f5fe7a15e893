// Why what could have been recognized, paginated or fused was not: the refusals of a ledger that were near, each with
// its place in the model and in the dump, and what to do about it.
#pragma once

#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "ir/graph.h"
#include "passes/driver/ledger.h"

namespace llmc {

// A line of a dump; 0: the value is not there any more.
struct DumpLine {
  std::string file;  // "04-raise.lir", as --dump-ir names it; "ir" of a plan
  int64_t line = 0;
};

struct FindingPlace {
  LedgerPlace node;
  std::string layer;  // "model.layers.0", from the place; empty if that names none
  DumpLine dump;
};

struct Finding {
  std::string kind;  // "attention", "mask", "norm", "gelu", "rotary", "heads", "pagination" or "fusion"
  std::string rule, line, actual, expected, remedy;
  std::string key;  // equal for what is the same but for names of values
  int64_t count = 0;
  std::vector<FindingPlace> places;
};

// Where values stand in the text of a model.
class DumpIndex {
 public:
  // `offset` lines come before the text in its file.
  DumpIndex(std::string file, absl::string_view text, int64_t offset);
  DumpLine Find(const LedgerPlace& place) const;

 private:
  std::string file_;
  absl::flat_hash_map<std::string, int64_t> lines_;
};

// Takes part in a pipeline as PipelineOptions::after, and keeps where the refusals of each pass stand.
class FindingCollector {
 public:
  // `ledger` is the one that the pipeline fills.
  explicit FindingCollector(const Ledger* ledger) : ledger_(ledger) {}
  void After(int number, absl::string_view pass, const Model& model);
  std::vector<Finding> Take() { return std::move(findings_); }

 private:
  // `text` is of the model now; null: places get no lines.
  void Collect(const std::string* text);

  const Ledger* ledger_;
  std::map<std::string, int64_t> seen_;  // refusals by rule and reason
  std::string file_;
  size_t hash_ = 0;
  std::vector<Finding> findings_;
};

// All near refusals of a ledger, with their lines in `index`, if there is one.
std::vector<Finding> FindingsOf(const Ledger& ledger, const DumpIndex* index);

// "model.layers.0" of "model.layers.0.self_attn/node_3".
std::string LayerOfPlace(absl::string_view loc);

// What comes from a file, without control characters and not longer than `limit` bytes.
std::string Shown(absl::string_view text, size_t limit = 400);

std::string FindingsText(const std::vector<Finding>& findings, size_t max_places);
nlohmann::ordered_json FindingsJson(const std::vector<Finding>& findings);

}  // namespace llmc
