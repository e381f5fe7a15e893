#include "frontend/huggingface/quantized/part_reader.h"

#include <algorithm>
#include <cmath>

#include "absl/strings/str_cat.h"
#include "frontend/huggingface/number_check.h"

namespace llmc::hf {
namespace {

enum class NumberKind { kNumber, kZero, kNan, kInfinite };

NumberKind KindOf(float number) {
  if (number == 0) return NumberKind::kZero;
  if (std::isnan(number)) return NumberKind::kNan;
  return std::isinf(number) ? NumberKind::kInfinite : NumberKind::kNumber;
}

// Kinds of all numbers of a type of 8 or 16 bits: scales of large models are many.
std::vector<NumberKind> KindsOf(DType dtype) {
  std::vector<NumberKind> kinds;
  for (int bits = 0; bits < 1 << DTypeBits(dtype); ++bits) {
    const auto raw = static_cast<uint16_t>(bits);
    const auto byte = static_cast<uint8_t>(bits);
    kinds.push_back(KindOf(dtype == DType::kF16      ? HalfToFloat(raw)
                           : dtype == DType::kBF16   ? BFloat16ToFloat(raw)
                           : dtype == DType::kF8E4M3 ? F8E4M3ToFloat(byte)
                                                     : F8E5M2ToFloat(byte)));
  }
  return kinds;
}

}  // namespace

const Tensor* PartReader::Find(const std::string& part) const {
  const CheckpointTensor* found = weights_.Find(NameOf(part));
  return found == nullptr ? nullptr : &found->tensor;
}

Value* PartReader::Part(const std::string& part, absl::Span<const DType> types, const Shape& shape,
                        const std::string& why) {
  return weights_.AddPart(absl::StrCat(name_, ".", part), NameOf(part), types, shape, why, module_);
}

Value* PartReader::Bytes(const std::string& part, int64_t bytes, const std::string& why) {
  return weights_.AddBytes(absl::StrCat(name_, ".", part), NameOf(part), bytes, why, module_);
}

Value* PartReader::FloatCodes(const std::string& part, absl::Span<const DType> types, const Shape& shape,
                              const std::string& why) {
  Value* value = Part(part, types, shape, why);
  const Tensor* tensor = Find(part);
  if (tensor == nullptr || std::find(types.begin(), types.end(), tensor->dtype()) == types.end()) return value;
  const std::optional<int64_t> bad = FirstNotFinite(*tensor);
  if (!bad.has_value()) return value;
  Wrong(part, absl::StrCat(
                  PlaceOf(*bad, tensor->shape()),
                  KindOf(static_cast<float>(tensor->GetFloat(*bad))) == NumberKind::kNan ? " is NaN" : " is infinite",
                  ": the weight is damaged, or was not quantized well"));
  return value;
}

Value* PartReader::Scale(const std::string& part, const Shape& shape, const std::string& why,
                         absl::Span<const DType> types, Zeros zeros) {
  Value* value = Part(part, types, shape, why);
  const Tensor* tensor = Find(part);
  if (tensor != nullptr && std::find(types.begin(), types.end(), tensor->dtype()) != types.end()) {
    CheckNumbers(part, *tensor, zeros);
  }
  return value;
}

Value* PartReader::OneScale(const std::string& part, absl::Span<const DType> types) {
  const Tensor* tensor = Find(part);
  const Shape shape = tensor != nullptr && tensor->shape() == Shape{1} ? Shape{1} : Shape{};
  Value* value = Scale(part, shape, " or [1]: one scale for all", types);
  return shape.empty() ? value : Reshaped(value, {});
}

Value* PartReader::OuterScale(const std::string& part, bool divides) {
  const Tensor* tensor = Find(part);
  for (const auto& [known, scale] : shared_.scales) {
    if (tensor == nullptr || !(*known == *tensor)) continue;
    Ignore(part, "the same as that of another module");
    return scale;
  }
  const DType types[] = {DType::kF32};
  Value* scale = OneScale(part, types);
  if (divides) scale = Add(Div{.lhs = Constant(1), .rhs = scale}, "outer");
  if (tensor != nullptr && scale != nullptr) shared_.scales.emplace_back(tensor, scale);
  return scale;
}

Value* PartReader::Exponents(const std::string& part, const Shape& shape, const std::string& why) {
  constexpr uint8_t kNotANumber = 255;
  const DType types[] = {DType::kU8};
  Value* value = Part(part, types, shape, why);
  const Tensor* tensor = Find(part);
  if (tensor == nullptr || tensor->dtype() != DType::kU8) return value;
  const uint8_t* begin = tensor->data<uint8_t>();
  const uint8_t* at = std::find(begin, begin + tensor->size(), kNotANumber);
  if (at != begin + tensor->size()) Wrong(part, absl::StrCat(PlaceOf(at - begin, tensor->shape()), " is NaN (255)"));
  return value;
}

void PartReader::CheckNumbers(const std::string& part, const Tensor& scale, Zeros allowed) {
  const int bits = DTypeBits(scale.dtype());
  const std::vector<NumberKind> kinds = bits == 32 ? std::vector<NumberKind>() : KindsOf(scale.dtype());
  const auto kind_of = [&](int64_t i) {
    if (bits == 32) return KindOf(scale.data<float>()[i]);
    const char* raw = scale.raw() + i * (bits / 8);
    const unsigned low = static_cast<unsigned char>(raw[0]);
    return kinds[bits == 8 ? low : low | static_cast<unsigned>(static_cast<unsigned char>(raw[1])) << 8];
  };
  int64_t zeros = 0, first_zero = 0;
  for (int64_t i = 0; i < scale.size(); ++i) {
    const NumberKind kind = kind_of(i);
    if (kind == NumberKind::kNumber) continue;
    if (kind == NumberKind::kZero) {
      if (zeros++ == 0) first_zero = i;
      continue;
    }
    return Wrong(part, absl::StrCat(PlaceOf(i, scale.shape()), kind == NumberKind::kNan ? " is NaN" : " is infinite"));
  }
  if (zeros == 0 || allowed == Zeros::kAllow) return;
  if (zeros == scale.size() && scale.size() > 0) {
    return Wrong(part, ": all of it is 0, so that the module would give nothing; is a part of the file missing?");
  }
  if (allowed == Zeros::kRefuse) return Wrong(part, absl::StrCat(PlaceOf(first_zero, scale.shape()), " is 0"));
  weights_.Warn(NameOf(part), absl::StrCat(NameOf(part), PlaceOf(first_zero, scale.shape()), " is 0",
                                           zeros == 1 ? "" : absl::StrCat(", as are ", zeros - 1, " others"),
                                           ": all weights of the group become zero"));
}

std::optional<double> PartReader::Setting(const std::string& part) {
  const Tensor* tensor = Find(part);
  if (tensor == nullptr) return std::nullopt;
  Use(part);
  const bool is_one = tensor->size() == 1 && DTypeBits(tensor->dtype()) >= 8;
  if (is_one) return IsFloat(tensor->dtype()) ? tensor->GetFloat(0) : static_cast<double>(tensor->GetInt(0));
  Wrong(part, absl::StrCat(" is ", DTypeName(tensor->dtype()), ShapeToString(tensor->shape()), ", not one number"));
  return std::nullopt;
}

void PartReader::IgnoreActivationScale(const std::string& part, const std::string& reason) {
  const Tensor* tensor = Find(part);
  if (tensor == nullptr || weights_.IsUsed(NameOf(part))) return;
  Ignore(part, reason);
  const bool is_scale = IsFloat(tensor->dtype()) && DTypeBits(tensor->dtype()) <= 32 && tensor->size() > 0;
  if (!is_scale) {
    return Wrong(part,
                 absl::StrCat(" is ", DTypeName(tensor->dtype()), ShapeToString(tensor->shape()), ", not a scale"));
  }
  CheckNumbers(part, *tensor);
}

void PartReader::Wrong(const std::string& part, const std::string& message) {
  weights_.Complain(NameOf(part), absl::StrCat(NameOf(part), message));
}

bool PartReader::FillsWords(const std::string& part, int64_t codes, int64_t of_word) {
  if (codes % of_word == 0) return true;
  Wrong(part, absl::StrCat(": ", codes, " codes of ", module_, " do not fill words of ", of_word));
  return false;
}

Value* PartReader::OrderOfGroups(const std::string& part, int64_t in, int64_t group) {
  const DType types[] = {DType::kI32, DType::kI64};
  const Tensor* tensor = Find(part);
  const bool fits = tensor != nullptr && tensor->shape() == Shape{in} &&
                    (tensor->dtype() == DType::kI32 || tensor->dtype() == DType::kI64);
  if (!fits) {
    Part(part, types, {in}, absl::StrCat(" = [in ", in, "]"));
    return nullptr;
  }
  const std::vector<int64_t> groups = tensor->ToInts();
  const int64_t count = (in + group - 1) / group;
  std::vector<int64_t> columns(static_cast<size_t>(count));
  bool in_order = true;
  for (int64_t k = 0; k < in; ++k) {
    const int64_t g = groups[static_cast<size_t>(k)];
    if (g < 0 || g >= count) {
      Wrong(part, absl::StrCat("[", k, "] is ", g, ", not one of ", count, " groups"));
      return nullptr;
    }
    ++columns[static_cast<size_t>(g)];
    in_order = in_order && g == k / group;
  }
  if (in_order) {
    Ignore(part, "its groups lie in order");
    return nullptr;
  }
  for (int64_t g = 0; g < count; ++g) {
    const int64_t expected = std::min(group, in - g * group);
    if (columns[static_cast<size_t>(g)] == expected) continue;
    Wrong(part,
          absl::StrCat(" puts ", columns[static_cast<size_t>(g)], " columns in group ", g, ", expected ", expected));
    return nullptr;
  }
  for (const auto& [known, order] : shared_.orders) {
    if (!(*known == *tensor)) continue;
    Ignore(part, "the same as that of another module");
    return order;
  }
  Value* order = Add(ArgSort{.x = Part(part, types, {in})}, "order");
  if (order != nullptr) shared_.orders.emplace_back(tensor, order);
  return order;
}

Value* PartReader::Multiplier(const std::string& part, int64_t in) {
  const Tensor* tensor = Find(part);
  if (tensor == nullptr) return nullptr;
  for (const auto& [known, multiplier] : shared_.multipliers) {
    if (!(*known == *tensor)) continue;
    Ignore(part, "the same as that of another module");
    return multiplier;
  }
  Value* multiplier = Scale(part, {in}, absl::StrCat(" = [in ", in, "]"));
  shared_.multipliers.emplace_back(tensor, multiplier);
  return multiplier;
}

Value* PartReader::Constant(double number, const Shape& shape) {
  Tensor value(DType::kF32, shape);
  for (int64_t i = 0; i < value.size(); ++i) value.SetFloat(i, number);
  return b_.Add(llmc::Constant{.value = value});
}

}  // namespace llmc::hf
