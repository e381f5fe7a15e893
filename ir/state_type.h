// What outlives a step: a state is a number of records of equal size, each of named components.
//
//   state @kv0: paged[N, 16] {k: bf16[8, 128], v: bf16[8, 128]}       one record a page: 16 tokens of each component
//   state @ssm: per_sequence[M] {conv: f32[4, 512], ssm: f32[16, 512]}  one record a sequence
//
// The first dim counts the records and names the pool that they are given out from: states with the same dim share it.
// A component has the shape of one token, or of one sequence. In a record components lie one behind the other, in their
// order and aligned, so that a record is copied at once. In a page the tokens of a head lie together: a component
// bf16[8, 128] is [8, 16, 128] there, its last axis behind the tokens.
//
// A component of pages may be encoded: k: bf16<int8 per=token scale=f32>[8, 128]. Then a record has its codes, [8, 16,
// 128], and behind them what each token has of its own, one part after the other and aligned:
//   per=token            a scale for each head of a token: [8, 16, 1]
//   group=32             one for each 32 elements of a head: [8, 16, 4]; zero points likewise
//   per=tensor, =channel one scale for all tokens, or one for each head: no part of the record but an operand of the
//                        ops that write and read it (static scales, as checkpoints give them)
// How numbers become codes is said by ir/cached_rows.h.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "ir/graph.h"

namespace llmc {

inline constexpr int64_t kRecordAlignment = 16;                       // of components and records, in bytes
inline constexpr int64_t kDefaultPageSize = 16, kMaxPageSize = 4096;  // of tokens

enum class StateKind : uint8_t {
  kPaged,        // a record is a page: so many tokens of a sequence
  kPerSequence,  // a record is all that a sequence keeps
};

struct StateComponent {
  std::string name;
  TensorType type;  // of one token, or of one sequence: sizes are numbers above 0
  bool operator==(const StateComponent&) const = default;

  int64_t Elements() const;
  // All axes but the last, and the last.
  int64_t Heads() const { return Elements() / HeadDim(); }
  int64_t HeadDim() const { return type.shape.back().value(); }

  // What a record has of it, of one token: itself, or if it is encoded its codes (part 0), scales and zero points.
  size_t parts() const;
  absl::string_view PartName(
      size_t part) const;                  // "" of a component that is not encoded, else "codes", "scale", "zero"
  TensorType PartType(size_t part) const;  // [heads, elements of a head in that part]
  // The scale that all tokens share is an operand of this type; nullopt: there is none such.
  std::optional<TensorType> StaticScale() const;
  int64_t TokenBytes() const;
};

struct StateType {
  StateKind kind = StateKind::kPaged;
  Dim count;              // of records
  int64_t page_size = 0;  // tokens; 0 of states that are not paged
  std::vector<StateComponent> components;
  bool operator==(const StateType&) const = default;

  static StateType Paged(Dim pages, int64_t page_size, std::vector<StateComponent> components) {
    return {StateKind::kPaged, std::move(pages), page_size, std::move(components)};
  }

  // nullptr: there is none of this name.
  const StateComponent* Find(absl::string_view name) const;
  int64_t PartBytes(const StateComponent& component, size_t part) const;     // in a record
  int64_t ComponentBytes(const StateComponent& component) const;             // all its parts, up to the end of the last
  int64_t OffsetOf(const StateComponent& component, size_t part = 0) const;  // in a record, in bytes
  int64_t RecordBytes() const;
  TensorType Memory() const;  // u8[count, RecordBytes()]

  std::string ToString() const;  // as above
  // Components, sizes and bytes within bounds; what else is done with a state type may rely on it.
  absl::Status Check() const;
  static absl::StatusOr<StateType> Parse(absl::string_view text);
};

}  // namespace llmc
