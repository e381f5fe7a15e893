// What the parts of op_cases.cc share: types, the text of programs, tensors at the edges of types.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "ir/encoding.h"
#include "tests/gpu/op_cases.h"

namespace llmc {

inline constexpr DType kFloats[] = {DType::kF64,  DType::kF32,    DType::kF16,
                                    DType::kBF16, DType::kF8E4M3, DType::kF8E5M2};
inline constexpr DType kIntegers[] = {DType::kI64, DType::kI32, DType::kI16, DType::kI8, DType::kU8};
inline constexpr DType kFourBits[] = {DType::kI4, DType::kU4};
inline constexpr DType kEvery[] = {DType::kF64,    DType::kF32, DType::kF16, DType::kBF16, DType::kF8E4M3,
                                   DType::kF8E5M2, DType::kI64, DType::kI32, DType::kI16,  DType::kI8,
                                   DType::kI4,     DType::kU8,  DType::kU4,  DType::kBool};

// A program with one step: a line for each op, all results are outputs.
class OpProgram {
 public:
  explicit OpProgram(std::string head) : text_(std::move(head)) {}
  // "%NAME = LINE"; the result is an output.
  void Add(const std::string& line) {
    const std::string name = absl::StrCat("r", count_++);
    absl::StrAppend(&text_, "  %", name, " = ", line, "\n");
    absl::StrAppend(&outputs_, outputs_.empty() ? "" : ", ", "\"", name, " ", line.substr(0, line.find(' ')), "\" = %",
                    name);
  }
  void Line(const std::string& line) { absl::StrAppend(&text_, "  ", line, "\n"); }
  std::string Text() const { return absl::StrCat(text_, "  return ", outputs_, "\n}\n"); }

 private:
  std::string text_, outputs_;
  int count_ = 0;
};

// The beginning of a program.
std::string Head(const std::string& params, const std::string& dims = "");
std::string Name(DType dtype);

// Numbers at the edges of what types hold, and random ones.
Tensor EdgeFloats(DType dtype, Shape shape, uint64_t seed);
Tensor EdgeInts(DType dtype, Shape shape, uint64_t seed);
Tensor Edges(DType dtype, Shape shape, uint64_t seed);

// Bytes of superblocks, whose scales are small numbers.
Tensor RandomSuperblocks(const EncodingFormat& format, Shape shape, uint64_t seed);

// op_cases_cache.cc: keys and values that are cached as codes
void AddCacheCases(std::vector<OpCase>* cases);
// op_cases_elementwise.cc
void AddElementwiseCases(std::vector<OpCase>* cases);
// op_cases_encoded.cc
void AddEncodedCases(std::vector<OpCase>* cases);
// op_cases_experts.cc: mixtures of experts, and attention over a paged cache
void AddExpertCases(std::vector<OpCase>* cases);
// op_cases_latent.cc: latent attention
void AddLatentCases(std::vector<OpCase>* cases);
// op_cases_movement.cc
void AddMovementCases(std::vector<OpCase>* cases);
// op_cases_quantize.cc: activations to codes
void AddQuantizeCases(std::vector<OpCase>* cases);
// op_cases_rows.cc
void AddRowCases(std::vector<OpCase>* cases);
// op_cases_layers.cc: products, convolutions, attention, recurrent layers
void AddLayerCases(std::vector<OpCase>* cases);
// op_cases_sizes.cc: sizes that the dims of inputs do not give
void AddSizeCases(std::vector<OpCase>* cases);

}  // namespace llmc
