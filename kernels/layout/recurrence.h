// Recurrent layers: their kinds, and the shared memory of a block.
#pragma once
#include "kernels/layout/base.h"

namespace llmc {

enum RecurrenceKind { kLstm, kGru, kGruResetAfter, kRnnTanh, kRnnRelu };

// Elements, as they are computed with: the state, the cell or what is reset, and the gates' products.
LLMC_HOST_DEVICE constexpr i64 RecurrenceSharedElements(i64 hidden, i64 gates) { return (2 + gates) * hidden; }

}  // namespace llmc
