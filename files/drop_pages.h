// Memory of files that are mapped and larger than it.
#pragma once

#include <cstddef>

#include "absl/strings/string_view.h"

namespace llmc {

// Takes the whole pages of `part` out of this process's memory, if they are of a file that is mapped (mapped_file.h);
// else does nothing. They are read again where they are needed, from the system's cache of the file while they are in
// it.
void DropPages(absl::string_view part);

// What is mapped, for DropPages. Nothing of it may be written.
void AddMap(const char* begin, size_t bytes);
void RemoveMap(const char* begin);

}  // namespace llmc
