// When the blocks of a persistent launch did what: written for `llmc bench --profile`.
#pragma once
#include "kernels/layout/base.h"

namespace llmc {

// Words of 64 bits. The first says whether they are wanted: it is 0 until the host writes another. Then of each block
// the clock of its multiprocessor and the time in nanoseconds, when it begins and when it ends; then of each task and
// block the clock at each of RunStamp; 0: the task has no such.
struct RunClocks {
  enum RunStamp {
    kBegun = 0,  // all blocks have done the tasks before, if it waits for that
    kInput = 1,  // what it reads of those is there: a product's x, or a row
    kDone = 2,   // the block has done its part
    kTold = 3,   // and has told so
    kStamps = 4
  };
  enum BlockWord { kBeginClock = 0, kBeginTime = 1, kEndClock = 2, kEndTime = 3, kBlockWords = 4 };

  LLMC_HOST_DEVICE static constexpr i64 OfBlock(int block, BlockWord word) { return 1 + block * kBlockWords + word; }
  LLMC_HOST_DEVICE static constexpr i64 Of(int blocks, int task, int block, RunStamp stamp) {
    return OfBlock(blocks, kBeginClock) + (static_cast<i64>(task) * blocks + block) * kStamps + stamp;
  }
  LLMC_HOST_DEVICE static constexpr i64 Words(int blocks, int tasks) { return Of(blocks, tasks, 0, kBegun); }
};

}  // namespace llmc
