#include "tools/ledger_json.h"

#include <string>

namespace llmc {
namespace {

using Json = nlohmann::ordered_json;

Json PlaceJson(const LedgerPlace& place) { return {{"value", place.value}, {"op", place.op}, {"loc", place.loc}}; }

// The member of that name, or what its type has by default.
std::string Text(const Json& json, const char* name) {
  const auto it = json.find(name);
  return it != json.end() && it->is_string() ? it->get<std::string>() : "";
}
int64_t Count(const Json& json, const char* name) {
  const auto it = json.find(name);
  return it != json.end() && it->is_number_integer() ? it->get<int64_t>() : 0;
}
const Json& List(const Json& json, const char* name) {
  static const Json& empty = *new Json(Json::array());
  const auto it = json.find(name);
  return it != json.end() && it->is_array() ? *it : empty;
}

Ledger::Refusal ParseRefusal(const Json& json) {
  Ledger::Refusal refusal{.line = Text(json, "line"),
                          .actual = Text(json, "actual"),
                          .expected = Text(json, "expected"),
                          .near = json.value("near", false),
                          .count = Count(json, "count")};
  for (const Json& place : List(json, "at")) {
    if (place.is_object()) refusal.places.push_back({Text(place, "value"), Text(place, "op"), Text(place, "loc")});
  }
  return refusal;
}

}  // namespace

Json LedgerJson(const Ledger& ledger) {
  Json json = Json::object();
  for (const auto& [rule, entry] : ledger.entries()) {
    Json& rules = json[rule] = {{"fired", entry.fired}, {"refused", entry.refused}, {"fired_at", entry.fired_at}};
    Json refusals = Json::array();
    for (const auto& [reason, refusal] : entry.refusals) {
      Json places = Json::array();
      for (const LedgerPlace& place : refusal.places) places.push_back(PlaceJson(place));
      refusals.push_back({{"line", refusal.line},
                          {"actual", refusal.actual},
                          {"expected", refusal.expected},
                          {"near", refusal.near},
                          {"count", refusal.count},
                          {"at", places}});
    }
    rules["refusals"] = refusals;
  }
  return json;
}

absl::StatusOr<Ledger> ParseLedger(absl::string_view text) {
  const Json json = Json::parse(text.begin(), text.end(), nullptr, /*allow_exceptions=*/false);
  if (!json.is_object()) return absl::InvalidArgumentError("the ledger of the plan is not JSON");
  Ledger ledger;
  for (const auto& [rule, rules] : json.items()) {
    if (!rules.is_object()) return absl::InvalidArgumentError("the ledger of the plan has a rule without an entry");
    Ledger::Entry entry{.fired = Count(rules, "fired"), .refused = Count(rules, "refused")};
    for (const Json& place : List(rules, "fired_at")) {
      if (place.is_string()) entry.fired_at.push_back(place.get<std::string>());
    }
    for (const Json& item : List(rules, "refusals")) {
      if (!item.is_object()) continue;
      Ledger::Refusal refusal = ParseRefusal(item);
      const std::string reason = refusal.Reason();
      entry.refusals[reason] = std::move(refusal);
    }
    ledger.Put(rule, std::move(entry));
  }
  return ledger;
}

}  // namespace llmc
