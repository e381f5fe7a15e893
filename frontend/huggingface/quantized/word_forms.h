// Codes in words of 32 bits, as GPTQ and AWQ pack them, which tools of other names do, too.
#pragma once

#include <string>
#include <vector>

#include "frontend/huggingface/quantized/part_reader.h"
#include "frontend/huggingface/quantized/scheme.h"

namespace llmc::hf {

// Codes of 2, 3, 4 or 8 bits along k: MODULE.qweight [in * bits / 32, out], scales [groups, out], zero points packed
// along the outputs, qzeros [groups, out * bits / 32], and g_idx [in], the group of each column. A number is
// (code - zero) * scale.
struct GptqForm {
  int64_t bits = 4, group_size = 128;  // -1: one group for each channel
  bool is_symmetric = true;
  bool stores_zero_less_one = true;  // version 1
  bool has_order = false;            // groups may lie across columns, so that nothing can be read without g_idx
  bool operator==(const GptqForm&) const = default;
};
std::string EncodingOf(const GptqForm& form, const LinearModule& module, DType scale);
EncodedParts ReadGptqWords(const GptqForm& form, const LinearModule& module, PartReader& reader);

// Codes of 4 bits along the outputs, eight in a word: MODULE.qweight [in, out / 8], qzeros [groups, out / 8],
// scales [groups, out].
struct AwqForm {
  std::string codes = "qweight", scale = "scales", zero = "qzeros";
  int64_t group_size = 128;  // -1: one group for each channel
  bool has_zeros = true;     // else all zero points are in the middle of the codes, whether they are stored or not
  bool is_signed = false;    // codes and zero points are from -8 to 7, else from 0 to 15
  std::vector<int64_t> order = {0, 4, 1, 5, 2, 6, 3, 7};  // where the n-th code of a word is
  bool operator==(const AwqForm&) const = default;
};
std::string EncodingOf(const AwqForm& form, const LinearModule& module, DType scale);
EncodedParts ReadAwqWords(const AwqForm& form, const LinearModule& module, PartReader& reader);

}  // namespace llmc::hf
