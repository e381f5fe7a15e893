#include "passes/driver/ledger.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

namespace llmc {
namespace {

constexpr char kOtherReasons[] = "other reasons";

std::string Listed(const std::vector<std::string>& places, int64_t count) {
  const int64_t rest = count - static_cast<int64_t>(places.size());
  return absl::StrCat(absl::StrJoin(places, ", "), rest > 0 ? absl::StrCat(" and ", rest, " more") : "");
}

// Appends as many of `more` as there is room for.
template <class T>
void Extend(const std::vector<T>& more, std::vector<T>* list) {
  const size_t room = Ledger::kMaxPlaces - std::min(Ledger::kMaxPlaces, list->size());
  list->insert(list->end(), more.begin(), more.begin() + static_cast<ptrdiff_t>(std::min(room, more.size())));
}

}  // namespace

std::string LedgerPlace::ToString() const { return loc.empty() ? value : absl::StrCat(value, " (", loc, ")"); }

std::string Ledger::Refusal::Reason() const {
  return expected.empty() ? kOtherReasons : absl::StrCat("line `", line, "` found ", actual, ", expected ", expected);
}

void Ledger::Refusal::Add(const LedgerPlace& place) {
  ++count;
  if (places.size() < kMaxPlaces) places.push_back(place);
}

void Ledger::Fired(absl::string_view rule, absl::string_view place) {
  Entry& entry = entries_[std::string(rule)];
  ++entry.fired;
  if (entry.fired_at.size() < kMaxPlaces) entry.fired_at.emplace_back(place);
}

Ledger::Refusal& Ledger::Find(Entry* entry, const std::string& reason) {
  const bool full = entry->refusals.size() >= kMaxKinds && entry->refusals.count(reason) == 0;
  return entry->refusals[full ? kOtherReasons : reason];
}

void Ledger::Refused(absl::string_view rule, const LedgerPlace& place, absl::string_view line, absl::string_view actual,
                     absl::string_view expected, bool near) {
  Entry& entry = entries_[std::string(rule)];
  ++entry.refused;
  Refusal refusal{
      .line = std::string(line), .actual = std::string(actual), .expected = std::string(expected), .near = near};
  const std::string reason = refusal.Reason();
  Refusal& kept = Find(&entry, reason);
  if (kept.count == 0 && entry.refusals.count(reason) > 0) kept = std::move(refusal);
  kept.Add(place);
}

void Ledger::Merge(const Ledger& other) {
  for (const auto& [rule, theirs] : other.entries_) {
    Entry& entry = entries_[rule];
    entry.fired += theirs.fired;
    Extend(theirs.fired_at, &entry.fired_at);
    entry.refused += theirs.refused;
    for (const auto& [reason, refusal] : theirs.refusals) {
      Refusal& kept = Find(&entry, reason);
      if (kept.count == 0 && entry.refusals.count(reason) > 0) {
        kept = refusal;
        continue;
      }
      kept.count += refusal.count;
      Extend(refusal.places, &kept.places);
    }
  }
}

void Ledger::Put(absl::string_view rule, Entry entry) { entries_[std::string(rule)] = std::move(entry); }

int64_t Ledger::CountFired(absl::string_view rule) const {
  auto it = entries_.find(rule);
  return it == entries_.end() ? 0 : it->second.fired;
}

int64_t Ledger::CountRefused(absl::string_view rule) const {
  auto it = entries_.find(rule);
  return it == entries_.end() ? 0 : it->second.refused;
}

std::map<std::string, int64_t> Ledger::FiredCounts() const {
  std::map<std::string, int64_t> counts;
  for (const auto& [rule, entry] : entries_) counts[rule] = entry.fired;
  return counts;
}

std::string Ledger::ToString() const {
  std::string text;
  for (const auto& [rule, entry] : entries_) {
    absl::StrAppend(&text, rule, ": fired ", entry.fired, ", refused ", entry.refused, "\n");
    if (entry.fired > 0) absl::StrAppend(&text, "  fired at ", Listed(entry.fired_at, entry.fired), "\n");
    for (const auto& [reason, refusal] : entry.refusals) {
      std::vector<std::string> places;
      for (const LedgerPlace& place : refusal.places) places.push_back(place.ToString());
      absl::StrAppend(&text, "  refused ", refusal.count, ": ", reason, "\n    at ", Listed(places, refusal.count),
                      "\n");
    }
  }
  return text;
}

}  // namespace llmc
