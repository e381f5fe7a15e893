#include "cubins/targets.h"

#include <algorithm>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"

namespace llmc {
namespace {

constexpr Target kTargets[] = {
    {"sm_80", 80, "A100, A30"},       {"sm_86", 86, "RTX 30, A10, A40, A6000"},
    {"sm_89", 89, "RTX 40, L4, L40"}, {"sm_90a", 90, "H100, H200, GH200"},
    {"sm_100a", 100, "B200, GB200"},  {"sm_120", 120, "RTX 50, RTX PRO 6000"},
};
constexpr int kLeastCapability = 80;  // 16-bit matrix instructions and asynchronous copies

std::string Known() {
  return absl::StrJoin(Targets(), ", ", [](std::string* out, const Target& target) {
    absl::StrAppend(out, target.name, " (", target.gpus, ")");
  });
}

}  // namespace

absl::Span<const Target> Targets() { return kTargets; }

absl::StatusOr<std::vector<std::string>> ParseTargets(absl::Span<const std::string> texts) {
  std::vector<std::string> targets;
  for (const std::string& text : texts) {
    for (const absl::string_view name : absl::StrSplit(text, ',')) {
      const bool known = std::any_of(std::begin(kTargets), std::end(kTargets),
                                     [&](const Target& target) { return target.name == name; });
      if (!known) return absl::InvalidArgumentError(absl::StrCat("'", name, "' is no target; there are ", Known()));
      if (std::find(targets.begin(), targets.end(), name) == targets.end()) targets.emplace_back(name);
    }
  }
  return targets;
}

// Code for 8.0 runs on 8.6 too, but that for sm_90a, which uses what only 9.0 has, runs there alone.
bool RunsOn(absl::string_view target, int capability) {
  if (!absl::ConsumePrefix(&target, "sm_")) return false;
  const bool exact = absl::ConsumeSuffix(&target, "a");
  int built = 0;
  if (!absl::SimpleAtoi(target, &built)) return false;
  return exact ? built == capability : built / 10 == capability / 10 && built <= capability;
}

absl::StatusOr<std::string> TargetFor(int capability) {
  if (capability < kLeastCapability) {
    return absl::FailedPreconditionError(
        absl::StrFormat("llmc needs a GPU of compute capability 8.0 or later, and this one has %d.%d", capability / 10,
                        capability % 10));
  }
  absl::string_view best;
  for (const Target& target : kTargets) {
    if (RunsOn(target.name, capability)) best = target.name;
  }
  return best.empty() ? absl::StrCat("sm_", capability) : std::string(best);
}

}  // namespace llmc
