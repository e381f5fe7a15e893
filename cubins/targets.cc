#include "cubins/targets.h"

#include <algorithm>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "base/status_macros.h"

namespace llmc {
namespace {

constexpr int64_t kKiB = int64_t{1} << 10, kMiB = int64_t{1} << 20;
constexpr char kDefaultTarget[] = "sm_90a";

// By rising capability. Numbers are those of NVIDIA's data sheets, without sparsity.
// Over 60 lines: a table.
std::vector<Target> MakeTable() {
  return {
      // A100 80GB. A block may have 163 KiB, but the code runs on 8.6 and 8.9 too, which have less.
      {.name = "sm_80",
       .capability = 80,
       .gpus = "A100, A30",
       .sms = 108,
       .l2_bytes = 40 * kMiB,
       .bandwidth = 2.04e12,
       .flops_f16 = 312e12,
       .flops_8bit = 624e12,
       .shared_bytes = 99 * kKiB,
       .sm_shared_bytes = 164 * kKiB},
      // A40
      {.name = "sm_86",
       .capability = 86,
       .gpus = "RTX 30, A10, A40, A6000",
       .sms = 84,
       .l2_bytes = 6 * kMiB,
       .bandwidth = 696e9,
       .flops_f16 = 149.7e12,
       .flops_8bit = 299.3e12,
       .shared_bytes = 99 * kKiB,
       .sm_shared_bytes = 100 * kKiB},
      // Jetson AGX Orin 64GB. Its code runs on 8.9 too.
      {.name = "sm_87",
       .capability = 87,
       .gpus = "Jetson Orin",
       .sms = 16,
       .l2_bytes = 4 * kMiB,
       .bandwidth = 204.8e9,
       .flops_f16 = 42.5e12,
       .flops_8bit = 85e12,
       .shared_bytes = 99 * kKiB,
       .sm_shared_bytes = 164 * kKiB},
      // L40S
      {.name = "sm_89",
       .capability = 89,
       .gpus = "RTX 40, L4, L40",
       .sms = 142,
       .l2_bytes = 96 * kMiB,
       .bandwidth = 864e9,
       .flops_f16 = 362e12,
       .flops_8bit = 733e12,
       .shared_bytes = 99 * kKiB,
       .sm_shared_bytes = 100 * kKiB},
      // H200
      {.name = "sm_90a",
       .capability = 90,
       .gpus = "H100, H200, GH200",
       .sms = 132,
       .l2_bytes = 50 * kMiB,
       .bandwidth = 4.8e12,
       .flops_f16 = 989e12,
       .flops_8bit = 1979e12,
       .shared_bytes = 227 * kKiB,
       .sm_shared_bytes = 228 * kKiB,
       .wgmma = true,
       .bulk_copies = true,
       .pdl = true,
       .persistent_bytes = 8e6},
      // B200
      {.name = "sm_100a",
       .capability = 100,
       .gpus = "B200, GB200",
       .sms = 148,
       .l2_bytes = 126 * kMiB,
       .bandwidth = 8e12,
       .flops_f16 = 2250e12,
       .flops_8bit = 4500e12,
       .shared_bytes = 227 * kKiB,
       .sm_shared_bytes = 228 * kKiB,
       .bulk_copies = true,
       .pdl = true},
      // RTX PRO 6000
      {.name = "sm_120",
       .capability = 120,
       .gpus = "RTX 50, RTX PRO 6000",
       .sms = 188,
       .l2_bytes = 128 * kMiB,
       .bandwidth = 1.79e12,
       .flops_f16 = 500e12,
       .flops_8bit = 1000e12,
       .shared_bytes = 99 * kKiB,
       .sm_shared_bytes = 100 * kKiB,
       .bulk_copies = true,
       .pdl = true},
  };
}

const std::vector<Target>& Table() {
  static const auto& table = *new std::vector<Target>(MakeTable());
  return table;
}

std::string Known() {
  return absl::StrJoin(Targets(), ", ", [](std::string* out, const Target& target) {
    absl::StrAppend(out, target.name, " (", target.gpus, ")");
  });
}

}  // namespace

absl::Span<const Target> Targets() { return Table(); }

const Target& DefaultTarget() {
  return *std::find_if(Table().begin(), Table().end(), [](const Target& t) { return t.name == kDefaultTarget; });
}

absl::StatusOr<Target> FindTarget(absl::string_view name) {
  for (const Target& target : Targets()) {
    if (target.name == name) return target;
  }
  return absl::InvalidArgumentError(absl::StrCat("'", name, "' is no target; there are ", Known()));
}

absl::StatusOr<std::vector<Target>> ParseTargets(absl::Span<const std::string> texts) {
  std::vector<Target> targets;
  for (const std::string& text : texts) {
    for (const absl::string_view name : absl::StrSplit(text, ',')) {
      ASSIGN_OR_RETURN(Target found, FindTarget(name));
      const bool repeated =
          std::any_of(targets.begin(), targets.end(), [&](const Target& t) { return t.name == name; });
      if (!repeated) targets.push_back(std::move(found));
    }
  }
  return targets;
}

std::vector<std::string> NamesOf(absl::Span<const Target> targets) {
  std::vector<std::string> names;
  for (const Target& target : targets) names.push_back(target.name);
  return names;
}

int CapabilityOf(absl::string_view target) {
  int capability = 0;
  const bool is_name = absl::ConsumePrefix(&target, "sm_");
  absl::ConsumeSuffix(&target, "a");
  return is_name && absl::SimpleAtoi(target, &capability) && capability > 0 ? capability : 0;
}

// Code for 8.0 runs on 8.6 too, but that for sm_90a, which uses what only 9.0 has, runs there alone.
bool RunsOn(absl::string_view target, int capability) {
  const int built = CapabilityOf(target);
  if (built == 0) return false;
  const bool exact = target.back() == 'a';
  return exact ? built == capability : built / 10 == capability / 10 && built <= capability;
}

absl::StatusOr<Target> TargetFor(int capability) {
  const Target& oldest = Targets().front();  // 16-bit matrix instructions and asynchronous copies are needed
  if (capability < oldest.capability) {
    return absl::FailedPreconditionError(
        absl::StrFormat("llmc needs a GPU of compute capability %d.%d or later, and this one has %d.%d",
                        oldest.capability / 10, oldest.capability % 10, capability / 10, capability % 10));
  }
  const Target* best = nullptr;
  for (const Target& target : Targets()) {
    if (RunsOn(target.name, capability)) best = &target;
  }
  if (best != nullptr) return *best;
  Target unknown = oldest;
  unknown.name = absl::StrCat("sm_", capability);
  unknown.capability = capability;
  return unknown;
}

bool RunsProgramsOf(const Target& gpu, const Target& target) {
  return target.capability <= gpu.capability && target.shared_bytes <= gpu.shared_bytes &&
         (gpu.bulk_copies || !target.bulk_copies) && (gpu.pdl || !target.pdl);
}

}  // namespace llmc
