#include "frontend/formats/gguf_types.h"

#include <algorithm>
#include <map>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "files/path_check.h"

namespace llmc {
namespace {

constexpr GgmlType kGgmlTypes[] = {
    {0, "F32", DType::kF32},
    {1, "F16", DType::kF16},
    {2, "Q4_0", std::nullopt, "q4_0"},
    {3, "Q4_1", std::nullopt, "q4_1"},
    {6, "Q5_0", std::nullopt, "q5_0"},
    {7, "Q5_1", std::nullopt, "q5_1"},
    {8, "Q8_0", std::nullopt, "q8_0"},
    {9, "Q8_1"},
    {10, "Q2_K", std::nullopt, "q2_k"},
    {11, "Q3_K", std::nullopt, "q3_k"},
    {12, "Q4_K", std::nullopt, "q4_k"},
    {13, "Q5_K", std::nullopt, "q5_k"},
    {14, "Q6_K", std::nullopt, "q6_k"},
    {15, "Q8_K"},
    {16, "IQ2_XXS"},
    {17, "IQ2_XS"},
    {18, "IQ3_XXS"},
    {19, "IQ1_S"},
    {20, "IQ4_NL", std::nullopt, "iq4_nl"},
    {21, "IQ3_S"},
    {22, "IQ2_S"},
    {23, "IQ4_XS", std::nullopt, "iq4_xs"},
    {24, "I8"},
    {25, "I16"},
    {26, "I32"},
    {27, "I64"},
    {28, "F64"},
    {29, "IQ1_M"},
    {30, "BF16", DType::kBF16},
    {34, "TQ1_0"},
    {35, "TQ2_0"},
    {39, "MXFP4", std::nullopt, "mxfp4_gguf"},
    {40, "NVFP4"},
};

}  // namespace

const GgmlType* FindGgmlType(uint32_t number) {
  const auto* type = std::find_if(std::begin(kGgmlTypes), std::end(kGgmlTypes),
                                  [&](const GgmlType& row) { return row.number == number; });
  return type == std::end(kGgmlTypes) ? nullptr : type;
}

absl::Status UnsupportedGgmlTypes(const std::string& path,
                                  absl::Span<const std::pair<uint32_t, absl::string_view>> tensors) {
  std::map<std::string, std::pair<int64_t, std::string>> refused;  // count and first name
  for (const auto& [number, name] : tensors) {
    const GgmlType* type = FindGgmlType(number);
    auto& entry = refused[type == nullptr ? absl::StrCat("number ", number) : std::string(type->name)];
    if (entry.first++ == 0) entry.second = std::string(name);
  }
  const std::string list = absl::StrJoin(refused, ", ", [](std::string* out, const auto& item) {
    absl::StrAppend(out, item.second.first, " of type ", item.first, " (first: ", Quoted(item.second.second), ")");
  });
  std::vector<absl::string_view> known;
  for (const GgmlType& type : kGgmlTypes) {
    if (type.is_supported()) known.push_back(type.name);
  }
  return absl::UnimplementedError(absl::StrCat(
      path, ": tensors of other types than ", absl::StrJoin(known, ", "), " are not supported; there are ", list,
      "; take a file of another quantization, such as Q4_K_M or Q8_0 (llama.cpp's llama-quantize makes them), or the "
      "model's Hugging Face folder"));
}

}  // namespace llmc
