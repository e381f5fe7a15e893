#include "frontend/huggingface/quantized/forms.h"

#include <algorithm>
#include <cmath>

#include "absl/strings/str_cat.h"

namespace llmc::hf {
namespace {

// Powers of two are exact in f32 and in bf16. 255 stands for no number.
Value* PowersOf(Value* exponents, DType to, PartReader& reader) {
  Tensor powers(to, {256});
  for (int i = 0; i < 255; ++i) powers.SetFloat(i, std::ldexp(1.0, i - 127));
  Value* table = reader.Add(Constant{.value = powers});
  return reader.Add(Gather{.x = table, .indices = reader.Add(Cast{.x = exponents, .to = DType::kI32})}, "scale");
}

// Scales may be stored as their exponents (ue8m0), which become f32.
Value* AnyScale(const std::string& part, const Shape& shape, const std::string& why, absl::Span<const DType> types,
                PartReader& reader) {
  const Tensor* found = reader.Find(part);
  const bool has_exponents = found != nullptr && found->dtype() == DType::kU8;
  if (!has_exponents) return reader.Scale(part, shape, why, types);
  return PowersOf(reader.Exponents(part, shape, why), DType::kF32, reader);
}

constexpr DType kBytes[] = {DType::kU8};
constexpr DType kF8[] = {DType::kF8E4M3};
constexpr DType kI8[] = {DType::kI8};

std::string GranularityText(const ByteForm& form) {
  switch (form.per) {
    case Granularity::kTensor:
      return "per=tensor";
    case Granularity::kGroup:
      return absl::StrCat("group=", form.group);
    case Granularity::kBlock:
      return absl::StrCat("block=", form.rows, "x", form.columns);
    default:
      return "per=channel";
  }
}

int64_t RunCount(int64_t size, int64_t run) { return (size + run - 1) / run; }

}  // namespace

Value* ReadRuns(const ByteForm& form, const std::string& part, bool is_zero, const LinearModule& m,
                PartReader& reader) {
  const absl::Span<const DType> types = is_zero ? absl::Span<const DType>(kI8) : kScaleTypes;
  const auto of_shape = [&](const Shape& shape, const std::string& why) {
    return is_zero ? reader.Part(part, types, shape, why) : AnyScale(part, shape, why, types, reader);
  };
  switch (form.per) {
    case Granularity::kTensor: {
      const Tensor* found = reader.Find(part);
      const Shape shape = found != nullptr && found->size() == 1 && found->rank() <= 2 ? found->shape() : Shape{};
      Value* one = of_shape(shape, " or [1]: one for all");
      return shape.empty() ? one : reader.Reshaped(one, {});
    }
    case Granularity::kGroup: {
      Value* groups = of_shape({m.out, RunCount(m.in, form.group)},
                               absl::StrCat(" = [out ", m.out, ", in ", m.in, " / group ", form.group, "]"));
      return groups;
    }
    case Granularity::kBlock: {
      // modelopt keeps an axis of 1 for the elements of a block, and none where there is one block.
      const int64_t rows = RunCount(m.out, form.rows), columns = RunCount(m.in, form.columns);
      const Tensor* found = reader.Find(part);
      const bool is_wide = found != nullptr && (found->shape() == Shape{rows, 1, columns, 1} ||
                                                (found->rank() == 0 && rows * columns == 1));
      if (is_wide) return reader.Reshaped(of_shape(found->shape(), ""), {rows, columns});
      return of_shape({RunCount(m.out, form.rows), RunCount(m.in, form.columns)},
                      absl::StrCat(" = [out ", m.out, " / ", form.rows, ", in ", m.in, " / ", form.columns, "]"));
    }
    default:
      return is_zero ? ScaleOfRows(part, m.out, reader, types) : ScaleOfRows(part, m.out, reader);
  }
}

Value* ScaleOfRows(const std::string& part, int64_t out, PartReader& reader, absl::Span<const DType> types) {
  const Tensor* found = reader.Find(part);
  const bool is_column = found != nullptr && found->shape() == Shape{out, 1};
  const Shape shape = is_column ? Shape{out, 1} : Shape{out};
  const std::string why = " or [out, 1]: one for each of the outputs";
  const bool is_scale = !types.empty() && IsFloat(types[0]);
  Value* rows = is_scale ? AnyScale(part, shape, why, types, reader) : reader.Part(part, types, shape, why);
  return is_column ? reader.Reshaped(rows, {out}) : rows;
}

void IgnoreZeros(const std::string& part, PartReader& reader, bool may_be_any) {
  if (may_be_any) return reader.Ignore(part, "zero points of what is not quantized");
  const Tensor* zeros = reader.Find(part);
  const std::vector<float> numbers = zeros == nullptr ? std::vector<float>() : zeros->ToFloats();
  if (std::all_of(numbers.begin(), numbers.end(), [](float zero) { return zero == 0; })) {
    return reader.Ignore(part, "symmetric: zero points are 0");
  }
  reader.Wrong(part, " has numbers other than 0, but config.json says that they are symmetric");
}

std::string EncodingOf(const ByteForm& form, DType scale) {
  return absl::StrCat(form.is_float ? "f8e4m3" : "int8", " ", GranularityText(form), " scale=", DTypeName(scale),
                      form.zero.empty() ? "" : " zero=i8");
}

Value* OrderOf(const ByteForm& form, const LinearModule& module, PartReader& reader) {
  const bool has_groups = form.per == Granularity::kGroup;
  const Tensor* found = form.order.empty() ? nullptr : reader.Find(form.order);
  if (found == nullptr && !(has_groups && form.needs_order)) return nullptr;
  const std::vector<int64_t> groups =
      found != nullptr && IsInteger(found->dtype()) ? found->ToInts() : std::vector<int64_t>();
  const bool is_none = !groups.empty() && std::all_of(groups.begin(), groups.end(), [](int64_t g) { return g == -1; });
  if (has_groups && !is_none) return reader.OrderOfGroups(form.order, module.in, form.group);
  reader.Ignore(form.order, "its groups lie in order");
  return nullptr;
}

EncodedParts ReadBytes(const ByteForm& form, const LinearModule& module, PartReader& reader) {
  EncodedParts parts;
  const std::string why = absl::StrCat(" = [out ", module.out, ", in ", module.in, "]");
  Value* codes = form.is_float ? reader.FloatCodes(form.codes, kF8, {module.out, module.in}, why)
                               : reader.Part(form.codes, kI8, {module.out, module.in}, why);
  Value* scale = ReadRuns(form, form.scale, false, module, reader);
  parts.order = OrderOf(form, module, reader);
  if (parts.order != nullptr) codes = reader.Add(Gather{.x = codes, .indices = parts.order, .axis = 1});
  parts.as = EncodingOf(form, DTypeOf(scale));
  parts.components = {codes, scale};
  if (!form.zero.empty()) parts.components.push_back(ReadRuns(form, form.zero, true, module, reader));
  return parts;
}

void StoreAs(const EncodingFormat& format, Unpack* codes) {
  codes->to = format.codes;
  codes->packed = format.packed_bits > 0;
}

EncodedParts ReadNvfp4(const Nvfp4Form& form, const LinearModule& module, PartReader& reader) {
  if (!reader.FillsWords(form.codes, module.in, 2)) return {};
  Value* packed = reader.Part(form.codes, kBytes, {module.out, module.in / 2},
                              absl::StrCat(" = [out ", module.out, ", in ", module.in, " / 2]"));
  Value* scale = reader.Scale("weight_scale", {module.out, RunCount(module.in, 16)},
                              absl::StrCat(" = [out ", module.out, ", in ", module.in, " / 16]"), kF8);
  Value* outer = reader.OuterScale(form.outer, form.outer_divides);
  Value* codes = reader.Add(Unpack{.x = packed, .axis = 1}, "codes");
  return {.as = "nvfp4", .components = {codes, scale, outer}};
}

EncodedParts ReadMxfp4(const std::string& codes, const std::string& scale, const LinearModule& module,
                       PartReader& reader) {
  if (!reader.FillsWords(codes, module.in, 2)) return {};
  Value* packed = reader.Part(codes, kBytes, {module.out, module.in / 2},
                              absl::StrCat(" = [out ", module.out, ", in ", module.in, " / 2]"));
  Value* exponents = reader.Exponents(scale, {module.out, RunCount(module.in, 32)},
                                      absl::StrCat(" = [out ", module.out, ", in ", module.in, " / 32]"));
  return {.as = "mxfp4", .components = {reader.Add(Unpack{.x = packed, .axis = 1}, "codes"), exponents}};
}

EncodedParts ReadMxfp8(const std::string& codes, const std::string& scale, const LinearModule& module,
                       PartReader& reader) {
  Value* numbers = reader.FloatCodes(codes, kF8, {module.out, module.in},
                                     absl::StrCat(" = [out ", module.out, ", in ", module.in, "]"));
  Value* exponents = reader.Exponents(scale, {module.out, RunCount(module.in, 32)},
                                      absl::StrCat(" = [out ", module.out, ", in ", module.in, " / 32]"));
  return {.as = kMxfp8, .components = {numbers, PowersOf(exponents, DType::kBF16, reader)}};
}

}  // namespace llmc::hf
