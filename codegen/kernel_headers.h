// The files of kernels/, which emitted sources include.
#pragma once

#include "absl/types/span.h"
#include "cubins/source.h"

namespace llmc {

absl::Span<const SourceFile> KernelHeaders();

}  // namespace llmc
