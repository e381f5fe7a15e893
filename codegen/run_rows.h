// Which tasks of a persistent launch take what the one before makes as a tagged row (kernels/common/tagged_row.cuh).
#pragma once

#include <cstddef>
#include <vector>

#include "codegen/tasks/kernel_call.h"

namespace llmc {

// Sets has_taken, has_given, is_left_out and before of those calls number `first` up to `end` of a program that are one
// launch, all of which have a task. Of the others only what they read counts.
//
// A task that takes a row begins when the numbers are there that it needs, not when all blocks have done what comes
// before. So it reads nothing else that tasks of the launch have written since all blocks waited for each other, but
// what its own block has written. What it writes beside its row is in nobody's use: all who read it have given rows
// since, or the task is attention, which needs but a part of its row, and then what the giver has read is used later
// on, too, or was a row.
void PassRows(std::vector<KernelCall>* calls, size_t first, size_t end);

// Whether one writes the keys and values that the other reads.
bool HaveSameCache(const KernelCall& writer, const KernelCall& reader);

}  // namespace llmc
