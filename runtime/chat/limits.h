// What the rendering of one chat template may take. Templates come with models, and are hostile until checked.
#pragma once

#include <cstdint>

namespace llmc {

struct TemplateLimits {
  int64_t source_bytes = int64_t{1} << 20;    // of the template
  int64_t steps = 20'000'000;                 // expressions and statements, and one for each 16 bytes that they write
  int64_t output_bytes = int64_t{64} << 20;   // of the rendered text
  int64_t memory_bytes = int64_t{512} << 20;  // of all values that live at once
  int depth = 200;                            // of nested syntax, and of lists, dicts and the like in each other
  int call_depth = 500;  // of expressions and statements that run inside each other, through macros and loops too
};

}  // namespace llmc
