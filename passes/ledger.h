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
inline constexpr absl::string_view kPromote = "promote";

// Memory is bounded: kinds of refusal per rule and places per kind are capped, counts are not.
class Ledger {
 public:
  static constexpr size_t kMaxKinds = 64;
  static constexpr size_t kMaxPlaces = 64;

  void Fired(absl::string_view rule, absl::string_view place);
  // `line` of the rule failed: it met `met` and wanted `wanted`.
  void Refused(absl::string_view rule, absl::string_view place, absl::string_view line, absl::string_view met,
               absl::string_view wanted);
  void Merge(const Ledger& other);

  int64_t CountFired(absl::string_view rule) const;
  int64_t CountRefused(absl::string_view rule) const;
  std::map<std::string, int64_t> FiredCounts() const;

  // Grouped by rule, then by reason:
  //   merge-qkv: fired 28, refused 1
  //     fired at @kv0 (model.layers.0.self_attn), …
  //     refused 1: line `%kr = rope %k, %pos, %f` met rms_norm, wanted rope
  //       at @kv7 (model.layers.7.self_attn)
  std::string ToString() const;

 private:
  struct Places {
    int64_t count = 0;
    std::vector<std::string> list;
    void Add(absl::string_view place);
    void Merge(const Places& other);
    std::string ToString() const;
  };
  struct Entry {
    Places fired;
    int64_t refused = 0;
    std::map<std::string, Places> refusals;  // by reason
  };
  std::map<std::string, Entry, std::less<>> entries_;
};

}  // namespace llmc
