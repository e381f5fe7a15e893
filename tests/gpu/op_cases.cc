#include "tests/gpu/op_cases.h"

#include <algorithm>
#include <cmath>
#include <iterator>
#include <limits>

#include "tests/gpu/op_case_parts.h"

namespace llmc {

std::string Head(const std::string& params, const std::string& dims) {
  return absl::StrCat("model m\n", dims, "step main(", params, ") {\n");
}

std::string Name(DType dtype) { return std::string(DTypeName(dtype)); }

Tensor EdgeFloats(DType dtype, Shape shape, uint64_t seed) {
  Tensor tensor = RandomFloats(dtype, std::move(shape), seed, 2);
  constexpr double kInfinity = std::numeric_limits<double>::infinity();
  const double edges[] = {0.0,  -0.0,      1.0,        -1.0,         0.5,     1.5,   2.5,   -0.5,
                          -2.5, kInfinity, -kInfinity, std::nan(""), 1e-8,    447.9, 448.1, 70000.0,
                          -7.5, 8.5,       255.7,      -129.0,       65519.9, 3e9,   -1e19};
  for (int64_t i = 0; i < std::min<int64_t>(tensor.size(), std::size(edges)); ++i) tensor.SetFloat(i, edges[i]);
  return tensor;
}

Tensor EdgeInts(DType dtype, Shape shape, uint64_t seed) {
  const int bits = DTypeBits(dtype);
  const bool is_unsigned = dtype == DType::kU8 || dtype == DType::kU4 || dtype == DType::kBool;
  Tensor tensor = RandomInts(dtype, std::move(shape), is_unsigned ? 0 : -7, dtype == DType::kBool ? 2 : 8, seed);
  if (dtype == DType::kBool) return tensor;
  const int64_t high = bits == 64 ? INT64_MAX : (int64_t{1} << (is_unsigned ? bits : bits - 1)) - 1;
  const int64_t edges[] = {0, high, is_unsigned ? 0 : -high - 1, 1, high - 1};
  for (int64_t i = 0; i < std::min<int64_t>(tensor.size(), std::size(edges)); ++i) tensor.SetInt(i, edges[i]);
  return tensor;
}

Tensor Edges(DType dtype, Shape shape, uint64_t seed) {
  return IsFloat(dtype) ? EdgeFloats(dtype, std::move(shape), seed) : EdgeInts(dtype, std::move(shape), seed);
}

std::vector<OpCase> OpCases() {
  std::vector<OpCase> cases;
  AddElementwiseCases(&cases);
  AddMovementCases(&cases);
  AddRowCases(&cases);
  AddLayerCases(&cases);
  AddEncodedCases(&cases);
  AddQuantizeCases(&cases);
  AddExpertCases(&cases);
  AddLatentCases(&cases);
  AddCacheCases(&cases);
  AddSizeCases(&cases);
  return cases;
}

std::vector<OpCase> OpCasesWithoutInputs() {
  const NothingDrawn nothing_drawn;
  std::vector<OpCase> cases = OpCases();
  for (OpCase& c : cases) c.device_case.inputs.clear();
  return cases;
}

}  // namespace llmc
