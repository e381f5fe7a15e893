// A plan as people read it.
#pragma once

#include <string>

#include "absl/strings/string_view.h"
#include "runtime/plan/plan.pb.h"

namespace llmc {

// The contents of plan.txt: every program once, and what is known of products.
std::string PlanText(const plan::Manifest& manifest);

// Tasks, buffers with their place and lifetime, peak, lower bound and their ratio. Tasks of a device plan say what
// runs.
std::string ProgramText(const plan::Program& program,
                        const plan::Manifest& manifest = plan::Manifest::default_instance());

// " + bias + residual, gelu_tanh": what a product includes.
std::string PartsText(const plan::Gemm& gemm);

// The source of a kernel, with comments that say what it is for: its label comes first, its notes at the ends of lines.
// `sources` is the plan's section of sources.
std::string KernelListing(const plan::Kernel& kernel, absl::string_view sources);

}  // namespace llmc
