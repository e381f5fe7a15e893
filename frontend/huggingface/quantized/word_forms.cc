#include "frontend/huggingface/quantized/word_forms.h"

#include <algorithm>
#include <numeric>

#include "absl/strings/str_cat.h"
#include "frontend/huggingface/quantized/forms.h"
#include "ir/encoding.h"
#include "ir/ops_encoded.h"

namespace llmc::hf {
namespace {

constexpr DType kWords[] = {DType::kI32};

// ---- GPTQ ---------------------------------------------------------------------------------------------------------

// Rows of 4 bits that end within a byte cannot be moved by kernels.
std::string ZeroType(const GptqForm& form, int64_t in) {
  const int64_t groups = form.group_size < 0 ? 1 : (in + form.group_size - 1) / form.group_size;
  return form.bits > 4 || (groups % 2 != 0 && groups > 1) ? "u8" : "u4";
}

std::string TextOf(const GptqForm& form, int64_t in, int64_t group, absl::string_view scale, const std::string& zero) {
  const std::string how = group < 0 ? "per=channel" : absl::StrCat("group=", group);
  return absl::StrCat(IntegerFormat(static_cast<int>(form.bits), zero.empty(), in).name, " ", how, " scale=", scale,
                      zero.empty() ? "" : " zero=", zero);
}

bool CheckGroups(const LinearModule& module, int64_t group, int64_t groups, PartReader& reader) {
  const Tensor* scales = reader.Find("scales");
  const bool fits = module.in % group == 0 || scales == nullptr || scales->rank() != 2 || scales->shape()[0] == groups;
  if (fits) return true;
  for (const char* part : {"qweight", "qzeros", "g_idx"}) reader.Ignore(part, "");
  reader.Wrong("scales",
               absl::StrCat(": group_size ", group, " does not divide in_features ", module.in, " of ", module.name,
                            " (scales hold ", scales->shape()[0], " groups, ", group, " would need ", groups, ")"));
  return false;
}

// Whether no zero point has to be kept, which is so of symmetric quantization. Shapes that do not fit are complaints
// of who declares them.
bool HasMiddleZeros(const LinearModule& module, const GptqForm& form, int64_t groups, const PartReader& reader) {
  const Tensor* zeros = reader.Find("qzeros");
  if (zeros == nullptr) return true;
  const bool fits = zeros->dtype() == DType::kI32 && zeros->shape() == Shape{groups, module.out * form.bits / 32};
  if (!fits) return false;
  const uint32_t expected = (1u << (form.bits - 1)) - (form.stores_zero_less_one ? 1 : 0);
  const auto* bytes = reinterpret_cast<const unsigned char*>(zeros->raw());
  for (int64_t row = 0; row < groups; ++row) {
    const unsigned char* begin = bytes + row * (module.out * form.bits / 32) * 4;
    for (int64_t i = 0; i < module.out; ++i) {
      const int64_t bit = i * form.bits;
      uint32_t code = begin[bit / 8] >> bit % 8;
      if (bit % 8 + form.bits > 8) code |= static_cast<uint32_t>(begin[bit / 8 + 1]) << (8 - bit % 8);
      if ((code & ((1u << form.bits) - 1)) != expected) return false;
    }
  }
  return true;
}

// Symmetric weights whose zero points would all be in the middle by the other version's rule were most likely stored by
// that.
void WarnOfOtherVersion(const LinearModule& module, const GptqForm& form, int64_t groups, PartReader& reader) {
  GptqForm other = form;
  other.stores_zero_less_one = !form.stores_zero_less_one;
  if (!HasMiddleZeros(module, other, groups, reader)) return;
  const bool is_first = form.stores_zero_less_one;
  reader.weights().WarnOfSetting(
      "checkpoint_format", reader.NameOf("qzeros"),
      absl::StrCat("the weights are said to be symmetric, but all zero points of ", reader.NameOf("qzeros"),
                   " are one ", is_first ? "above" : "below", " the middle of the codes: they are most likely stored ",
                   is_first ? "as they are (gptq_v2)" : "less one (gptq)", ", and the format that config.json says, ",
                   is_first ? "gptq" : "gptq_v2", ", is the wrong one"));
}

// Tools write a bias of zeros where the model has none.
void IgnoreZeroBias(PartReader& reader) {
  const Tensor* bias = reader.Find("bias");
  if (bias == nullptr || !IsFloat(bias->dtype()) || DTypeBits(bias->dtype()) > 32) return;
  const std::vector<float> numbers = bias->ToFloats();
  if (std::any_of(numbers.begin(), numbers.end(), [](float x) { return x != 0; })) return;
  reader.weights().IgnoreUnlessUsed(reader.NameOf("bias"), "a bias of zeros");
}

// ---- AWQ ----------------------------------------------------------------------------------------------------------

int64_t GroupOf(const AwqForm& form, const LinearModule& module) {
  return form.group_size < 0 ? module.in : form.group_size;
}
std::string ZeroType(int64_t groups) { return groups % 2 == 0 ? "u4" : "u8"; }

// Zero points that nothing needs, where the format says that they are in the middle.
void IgnoreMiddleZeros(const AwqForm& form, PartReader& reader) {
  const Tensor* zeros = reader.Find(form.zero);
  if (zeros == nullptr) return;
  const int64_t middle = form.is_signed ? 0 : static_cast<int32_t>(0x88888888u);
  bool fits = zeros->dtype() == DType::kI32;
  for (int64_t i = 0; fits && i < zeros->size(); ++i) fits = zeros->GetInt(i) == middle;
  if (fits) return reader.Ignore(form.zero, "all zero points are in the middle of the codes");
  reader.Wrong(form.zero,
               " has zero points other than the middle of the codes, but config.json says that the weights "
               "are symmetric");
}

}  // namespace

std::string EncodingOf(const GptqForm& form, const LinearModule& module, DType scale) {
  return TextOf(form, module.in, form.group_size, DTypeName(scale), form.is_symmetric ? "" : ZeroType(form, module.in));
}

EncodedParts ReadGptqWords(const GptqForm& form, const LinearModule& module, PartReader& reader) {
  const int64_t group = form.group_size < 0 ? module.in : form.group_size, groups = (module.in + group - 1) / group;
  const std::string of_groups = form.group_size < 0 ? "1" : absl::StrCat("in ", module.in, " / group ", group);
  const int64_t of_words = 32 / std::gcd<int64_t>(32, form.bits);  // codes that fill whole words
  if (!CheckGroups(module, group, groups, reader) || !reader.FillsWords("qweight", module.in, of_words) ||
      !reader.FillsWords("qzeros", module.out, of_words)) {
    return {};
  }
  Value* packed = reader.Part("qweight", kWords, {module.in * form.bits / 32, module.out},
                              absl::StrCat(" = [in ", module.in, " * ", form.bits, " / 32, out ", module.out, "]"));
  Value* scales = reader.Scale("scales", {groups, module.out}, absl::StrCat(" = [", of_groups, ", out]"));
  Value* order = reader.Has("g_idx") || (form.has_order && form.group_size > 0)
                     ? reader.OrderOfGroups("g_idx", module.in, group)
                     : nullptr;
  IgnoreZeroBias(reader);
  const bool is_signed = form.is_symmetric && HasMiddleZeros(module, form, groups, reader);
  if (form.is_symmetric && !is_signed) WarnOfOtherVersion(module, form, groups, reader);
  EncodedParts parts = {.order = order};
  const int64_t middle = int64_t{1} << (form.bits - 1);
  Unpack codes = {.x = packed, .index = order, .bits = form.bits, .axis = 0, .across = 32 % form.bits != 0};
  codes.transpose = true;
  StoreAs(IntegerFormat(static_cast<int>(form.bits), is_signed, module.in), &codes);
  if (is_signed) codes.add = middle;
  parts.components.push_back(reader.Add(codes, "codes"));
  const bool of_channels = groups == 1;
  scales =
      of_channels ? reader.Reshaped(scales, {module.out}) : reader.Add(Transpose{.x = scales, .perm = {1, 0}}, "scale");
  parts.components.push_back(scales);
  std::string zero_type;
  if (is_signed) {
    reader.Ignore("qzeros", "all zero points are in the middle of the codes");
  } else {
    zero_type = ZeroType(form, module.in);
    Value* zeros = reader.Part("qzeros", kWords, {groups, module.out * form.bits / 32},
                               absl::StrCat(" = [", of_groups, ", out ", module.out, " / ", 32 / form.bits, "]"));
    Unpack op = {.x = zeros, .bits = form.bits, .axis = 1, .across = 32 % form.bits != 0, .transpose = true};
    op.add = form.stores_zero_less_one ? 1 : 0;
    op.to = zero_type == "u4" ? DType::kU4 : DType::kU8;
    zeros = reader.Add(op, "zero");
    parts.components.push_back(of_channels ? reader.Reshaped(zeros, {module.out}) : zeros);
  }
  parts.as = TextOf(form, module.in, of_channels ? -1 : group, DTypeName(DTypeOf(scales)), zero_type);
  return parts;
}

std::string EncodingOf(const AwqForm& form, const LinearModule& module, DType scale) {
  const int64_t group = GroupOf(form, module), groups = (module.in + group - 1) / group;
  return absl::StrCat(form.has_zeros ? "uint4" : "int4", " group=", group, " scale=", DTypeName(scale),
                      form.has_zeros ? " zero=" : "", form.has_zeros ? ZeroType(groups) : "");
}

EncodedParts ReadAwqWords(const AwqForm& form, const LinearModule& module, PartReader& reader) {
  const int64_t group = GroupOf(form, module), groups = (module.in + group - 1) / group;
  if (!reader.FillsWords(form.codes, module.out, 8)) return {};
  const std::string of_groups = absl::StrCat(" = [in ", module.in, " / group ", group, ", out ", module.out);
  Value* packed = reader.Part(form.codes, kWords, {module.in, module.out / 8},
                              absl::StrCat(" = [in ", module.in, ", out ", module.out, " / 8]"));
  Value* scales = reader.Scale(form.scale, {groups, module.out}, of_groups + "]");
  const auto unpacked = [&](Value* x, const std::string& zero, const std::string& name) {
    Unpack op = {.x = x, .bits = 4, .axis = 1, .order = form.order, .transpose = true};
    if (form.has_zeros == form.is_signed) op.add = 8;
    op.to = !form.has_zeros ? DType::kI4 : zero == "u8" ? DType::kU8 : DType::kU4;
    return reader.Add(op, name);
  };
  EncodedParts parts;
  parts.components = {unpacked(packed, "u4", "codes"), reader.Add(Transpose{.x = scales, .perm = {1, 0}}, "scale")};
  if (form.has_zeros) {
    Value* zeros = reader.Part(form.zero, kWords, {groups, module.out / 8}, of_groups + " / 8]");
    parts.components.push_back(unpacked(zeros, ZeroType(groups), "zero"));
  } else {
    IgnoreMiddleZeros(form, reader);
  }
  parts.as = EncodingOf(form, module, DTypeOf(scales));
  return parts;
}

}  // namespace llmc::hf
