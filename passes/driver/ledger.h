// What the rules did: how often each fired, and where and why it refused.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"

namespace llmc {

// What is counted beside the rules.
inline constexpr absl::string_view kFoldConstant = "fold-constant";
inline constexpr absl::string_view kMergeEqualOps = "merge-equal-ops";
inline constexpr absl::string_view kPaginate = "paginate";

// A node, so that people find it: its first result (or operand), its op, and where in the source model it comes from.
struct LedgerPlace {
  std::string value, op, loc;
  // "%x (model.layers.0)"
  std::string ToString() const;
};

// Memory is bounded: kinds of refusal per rule and places per kind are capped, counts are not.
class Ledger {
 public:
  static constexpr size_t kMaxKinds = 64;
  static constexpr size_t kMaxPlaces = 64;

  // Places where one rule refused for one reason: `line` of the rule failed, found `actual` where it expected
  // `expected`.
  struct Refusal {
    std::string line, actual, expected;
    bool near = false;  // most of the rule had matched: what it looks for is almost there
    int64_t count = 0;
    std::vector<LedgerPlace> places;  // the first kMaxPlaces

    std::string Reason() const;
    void Add(const LedgerPlace& place);
  };
  struct Entry {
    int64_t fired = 0, refused = 0;
    std::vector<std::string> fired_at;        // the first kMaxPlaces
    std::map<std::string, Refusal> refusals;  // by reason
  };

  void Fired(absl::string_view rule, absl::string_view place);
  void Refused(absl::string_view rule, const LedgerPlace& place, absl::string_view line, absl::string_view actual,
               absl::string_view expected, bool near = true);
  void Merge(const Ledger& other);
  // Takes over what the ledger of a plan holds.
  void Put(absl::string_view rule, Entry entry);

  int64_t CountFired(absl::string_view rule) const;
  int64_t CountRefused(absl::string_view rule) const;
  std::map<std::string, int64_t> FiredCounts() const;
  const std::map<std::string, Entry, std::less<>>& entries() const { return entries_; }

  // Grouped by rule, then by reason:
  //   merge-qkv: fired 28, refused 1
  //     fired at @kv0 (model.layers.0.self_attn), …
  //     refused 1: line `%kr = rope %k, %pos, %f` found rms_norm, expected rope
  //       at @kv7 (model.layers.7.self_attn)
  std::string ToString() const;

 private:
  // Where a refusal for `reason` is kept.
  static Refusal& Find(Entry* entry, const std::string& reason);

  std::map<std::string, Entry, std::less<>> entries_;
};

}  // namespace llmc
