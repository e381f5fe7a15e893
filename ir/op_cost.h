// What a node must do at the least.
#pragma once

#include <optional>
#include <vector>

#include "ir/size.h"

namespace llmc {

// As sizes in the dims of its model and of its step, those that base/step_contract.h names among them: for floors and
// shares of the hardware's rates, not for clocks.
struct OpCost {
  // Of products, convolutions, attention and recurrences: 2 for each multiplication that is added up. Elementwise
  // arithmetic counts as none.
  Size flops = 0;
  Size state_bytes = 0;  // of the state that it reads or writes
  // Bytes of each operand that it reads, where that is not all of it (a gather reads the rows that it picks); an entry
  // without a value, or a missing one: all of it. 0 for a state, whose bytes are in state_bytes alone.
  std::vector<std::optional<Size>> operand_bytes;
};

}  // namespace llmc
