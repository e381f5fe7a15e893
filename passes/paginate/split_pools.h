// Gives layers with a window pools of their own, so that the pages behind a window can be let go of while layers that
// see everything keep theirs.
#pragma once

#include "ir/graph.h"
#include "passes/driver/ledger.h"

namespace llmc::pagination {

// Of a model whose states lie in one pool, and of which some layers have a window, or windows of other sizes: states of
// one window lie in one pool after it, whose pages the dim N<window> counts, and the step gets slots and a page table
// for each pool. Other models stay as they are.
void SplitPools(Model* model, Ledger* ledger);

}  // namespace llmc::pagination
