// The parts of plan_check.cc. Internal to runtime/plan/plan_check*.cc.
#pragma once

#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "runtime/plan/plan.pb.h"

namespace llmc::plan::internal {

inline constexpr int kMaxRank = 64;
inline constexpr uint64_t kMaxBytes = uint64_t{1} << 62;

absl::Status Wrong(const std::string& what);

// Bits of an element by its type's name; 0 if there is no such type.
int BitsOf(absl::string_view dtype);
// Bytes of a tensor; false if they overflow or the type is none of ours.
bool TensorBytes(absl::string_view dtype, const google::protobuf::RepeatedField<int64_t>& shape, uint64_t* bytes);

// plan_check_states.cc
absl::Status CheckStates(const Manifest& manifest);
absl::Status CheckLanguageModel(const Manifest& manifest);

}  // namespace llmc::plan::internal
