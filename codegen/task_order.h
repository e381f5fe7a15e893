// Which tasks of a program must wait for which: the order that memory asks for, whatever order they are listed in.
#pragma once

#include "runtime/plan/plan.pb.h"

namespace llmc {

// Sets Task.after of every task, from the bytes that its arguments reach: in the arena if the program's buffers have
// places there, else buffer by buffer. `target` has the persistent memory; `is_prepare`: the program is its `prepare`,
// which alone writes prepared values.
//
// A task that another of its predecessors waits for is left out, as far as a search over kMostVisits tasks finds that:
// all further ones are named, so the work is linear in the tasks.
inline constexpr int kMostVisits = 256;
void SetTaskOrder(const plan::TargetPrograms& target, bool is_prepare, plan::Program* program);

}  // namespace llmc
