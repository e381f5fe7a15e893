// What a device plan runs of a target, as text that is compared with a file: every kernel with its template arguments
// and the digest of its source, and every program with its launches, products and copies, their bytes and floors on the
// target.
#pragma once

#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "cubins/targets.h"
#include "runtime/plan/plan.pb.h"

namespace llmc {

// Nothing in it depends on the numbers that the plan gives to kernels, buffers or weights.
struct PlanListing {
  std::string target;                // "sm_90a"
  std::vector<std::string> kernels;  // a line each, in their order
  struct Program {
    std::string heading;  // a line
    std::string body;     // lines; those that repeat, as layers do, stand once
    bool operator==(const Program&) const = default;
  };
  std::vector<Program> programs;
};

// What the plan has for `target`, an index of manifest.targets(). `sources` is the plan's section of sources.
// Floors are at `rates`.
PlanListing ListPlan(const plan::Manifest& manifest, int target, absl::string_view sources, const Target& rates);

// What each of these kernels takes on the target, in their order: its function and template arguments, registers of a
// thread, its memory, bytes of code. `cubins` is the plan's section of them.
std::vector<std::string> ListResources(const plan::Manifest& manifest, int target, absl::string_view sources,
                                       absl::string_view cubins);

// With `base`, kernels that it has too are left out, and a program that is the same there is one line.
std::string ListingText(const PlanListing& listing, const PlanListing* base);

// The lines in which two texts differ, each place with its heading (the last line before it that is not indented) and
// what lies around it; "" if there are none. At most `most_lines`.
std::string LineDiff(absl::string_view expected, absl::string_view actual, size_t most_lines);

}  // namespace llmc
