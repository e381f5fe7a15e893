// Where llmc keeps what it can make again.
#pragma once

#include <string>

namespace llmc {

// The folder of compiled kernels: $LLMC_CACHE_DIR/cubins, else $XDG_CACHE_HOME/llmc/cubins, else ~/.cache/llmc/cubins.
// Empty, which is no cache, if none of them is known.
std::string CubinFolder();

}  // namespace llmc
