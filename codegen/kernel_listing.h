// The source of a plan's kernel as people read it: with comments that say what it is for.
#pragma once

#include <string>

#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "runtime/plan/plan.pb.h"

namespace llmc {

// notes[i] belongs beside line i of the source; empty: nothing does.
void SetNotes(absl::Span<const std::string> notes, plan::Kernel* kernel);

// `sources` is the plan's section of sources. The kernel's label comes first, its notes at the ends of lines.
std::string KernelListing(const plan::Kernel& kernel, absl::string_view sources);

}  // namespace llmc
