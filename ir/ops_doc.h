// The table of all ops as Markdown, derived from their structs: ir/OPS.md.
#pragma once

#include <string>

namespace llmc {

std::string OpsMarkdown();

}  // namespace llmc
