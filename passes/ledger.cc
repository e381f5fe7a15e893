#include "passes/ledger.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

namespace llmc {

void Ledger::Places::Add(absl::string_view place) {
  ++count;
  if (list.size() < kMaxPlaces) list.emplace_back(place);
}

void Ledger::Places::Merge(const Places& other) {
  count += other.count;
  const size_t room = kMaxPlaces - std::min(kMaxPlaces, list.size());
  list.insert(list.end(), other.list.begin(), other.list.begin() + std::min(room, other.list.size()));
}

std::string Ledger::Places::ToString() const {
  std::string text = absl::StrJoin(list, ", ");
  const int64_t rest = count - static_cast<int64_t>(list.size());
  if (rest > 0) absl::StrAppend(&text, " and ", rest, " more");
  return text;
}

void Ledger::Fired(absl::string_view rule, absl::string_view place) { entries_[std::string(rule)].fired.Add(place); }

void Ledger::Refused(absl::string_view rule, absl::string_view place, absl::string_view line, absl::string_view met,
                     absl::string_view wanted) {
  Entry& entry = entries_[std::string(rule)];
  ++entry.refused;
  std::string reason = absl::StrCat("line `", line, "` met ", met, ", wanted ", wanted);
  const bool full = entry.refusals.size() >= kMaxKinds && entry.refusals.count(reason) == 0;
  entry.refusals[full ? "other reasons" : std::move(reason)].Add(place);
}

void Ledger::Merge(const Ledger& other) {
  for (const auto& [rule, theirs] : other.entries_) {
    Entry& entry = entries_[rule];
    entry.fired.Merge(theirs.fired);
    entry.refused += theirs.refused;
    for (const auto& [reason, places] : theirs.refusals) {
      const bool full = entry.refusals.size() >= kMaxKinds && entry.refusals.count(reason) == 0;
      entry.refusals[full ? "other reasons" : reason].Merge(places);
    }
  }
}

int64_t Ledger::CountFired(absl::string_view rule) const {
  auto it = entries_.find(rule);
  return it == entries_.end() ? 0 : it->second.fired.count;
}

int64_t Ledger::CountRefused(absl::string_view rule) const {
  auto it = entries_.find(rule);
  return it == entries_.end() ? 0 : it->second.refused;
}

std::map<std::string, int64_t> Ledger::FiredCounts() const {
  std::map<std::string, int64_t> counts;
  for (const auto& [rule, entry] : entries_) counts[rule] = entry.fired.count;
  return counts;
}

std::string Ledger::ToString() const {
  std::string text;
  for (const auto& [rule, entry] : entries_) {
    absl::StrAppend(&text, rule, ": fired ", entry.fired.count, ", refused ", entry.refused, "\n");
    if (entry.fired.count > 0) absl::StrAppend(&text, "  fired at ", entry.fired.ToString(), "\n");
    for (const auto& [reason, places] : entry.refusals) {
      absl::StrAppend(&text, "  refused ", places.count, ": ", reason, "\n    at ", places.ToString(), "\n");
    }
  }
  return text;
}

}  // namespace llmc
