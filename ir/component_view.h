// One component of a state in memory, for ops and for whoever looks at states from outside.
#pragma once

#include <cstdint>
#include <string>

#include "ir/state_type.h"
#include "ir/tensor.h"

namespace llmc {

class ComponentView {
 public:
  // `memory` is of state.Memory(), with a number of records; its bytes are shared. Of a component that is encoded, one
  // of its parts, of whose elements the following speaks.
  ComponentView(const StateType& state, const StateComponent& component, const Tensor& memory, size_t part = 0);

  int64_t records() const { return records_; }
  int64_t page_size() const { return page_size_; }  // 1 of states that are not paged
  int64_t heads() const { return heads_; }
  int64_t head_dim() const { return head_dim_; }
  int64_t row() const { return heads_ * head_dim_; }  // elements of a token
  int64_t slots() const { return records_ * page_size_; }

  // All memory as elements of the component, and the index there of a head's first one, of a token of a page.
  Tensor& elements() { return elements_; }
  const Tensor& elements() const { return elements_; }
  int64_t At(int64_t page, int64_t head, int64_t token) const {
    return page * record_ + offset_ + (head * page_size_ + token) * head_dim_;
  }
  int64_t AtSlot(int64_t slot, int64_t head) const { return At(slot / page_size_, head, slot % page_size_); }

  // A copy: [records, heads, page size, head dim].
  Tensor Contents() const;

 private:
  int64_t records_, page_size_, heads_, head_dim_;
  int64_t record_, offset_;  // in elements
  Tensor elements_;
};

}  // namespace llmc
