// How alike two names are.
#pragma once

#include <cstddef>

#include "absl/strings/string_view.h"

namespace llmc {

// Letters to change, put in or leave out on the way from one name to the other.
size_t EditDistance(absl::string_view a, absl::string_view b);

}  // namespace llmc
