// Memory of maps that is not needed for now.
#pragma once

#include "absl/strings/string_view.h"

namespace llmc {

// Takes the whole pages of `part` out of this process's memory; who reads them again gets them from the file. `part`
// must be of a MappedFile (mapped_file.h): of other memory the contents are lost.
void DropPages(absl::string_view part);

}  // namespace llmc
