#include "codegen/tasks/weight_parts.h"

#include <algorithm>

#include "absl/algorithm/container.h"
#include "absl/base/casts.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/types/span.h"
#include "codegen/tasks/select_internal.h"
#include "ir/encoding.h"

namespace llmc {
namespace {

// Whether scales and zero points are those of all, of columns, or of groups or rectangles that lie along the sum.
bool IsAlongK(const Encoding& weight, bool transpose_rhs) {
  for (const std::optional<Encoding::Part>& part : {weight.scale, weight.zero}) {
    if (!part.has_value() || part->per == Granularity::kTensor) continue;
    const bool by_rows = part->per == Granularity::kToken || part->per == Granularity::kBlock;
    if (by_rows ? !transpose_rhs : weight.k_is_last != transpose_rhs) return false;
  }
  return true;
}

}  // namespace

PartKind WeightParts::KindOf(const Value* part) {
  if (part == nullptr) return kNoPart;
  if (part->type.rank() >= 2) return kOfBlocks;
  return ElementsOf(part->type.shape).Is(1) ? kOneNumber : kOfColumns;
}

bool WeightParts::ScalesCodes() const {
  if (format == nullptr || format->codebook == nullptr || scale->type.dtype != DType::kF8E4M3) return false;
  const absl::Span<const float> numbers(format->codebook, 16);
  return absl::c_all_of(numbers, [](float x) { return (absl::bit_cast<uint32_t>(x) & 0xfffff) == 0; }) &&
         block % kCodesOfLane == 0;
}

int64_t WeightParts::RowBytes(int64_t elements) const {
  return superblock == nullptr ? elements * bits() / 8
                               : elements / superblock->superblock * superblock->superblock_bytes;
}

bool WeightParts::IsThereBeforeStep() const {
  for (const Value* value : {codes, scale, zero, outer}) {
    if (value != nullptr && !llmc::IsThereBeforeStep(value)) return false;
  }
  return true;
}

std::string DeviceSuperblock(const EncodingFormat& format) { return absl::StrCat("llmc::superblock::", format.name); }

Components ComponentsOf(const Value* encoded) {
  const Encoding& e = *encoded->type.encoding;
  const std::vector<Value*>& all = encoded->def->operands;
  return {.codes = all[0],
          .scale = e.scale.has_value() ? all[1] : nullptr,
          .zero = e.zero.has_value() ? all[2] : nullptr,
          .outer = e.format->outer_scale ? all.back() : nullptr};
}

std::optional<WeightParts> WeightPartsOf(const Linear& op) {
  const Encoding* weight = op.rhs->type.encoding;
  if (weight == nullptr) return WeightParts{{.codes = op.rhs}, 0, 1, op.transpose_rhs};
  if (!Is<Encode>(op.rhs->def)) return std::nullopt;
  const bool is_matrix = op.transpose_rhs && op.rhs->type.rank() == 2;
  const bool is_of_elements = weight->format->is_integer() && weight->format->packed_bits == 0;
  if (!is_of_elements && !is_matrix) return std::nullopt;
  if (weight->format->superblock > 0) {
    WeightParts parts = {ComponentsOf(op.rhs)};
    parts.superblock = weight->format;
    return parts;
  }
  const bool has_blocks = weight->group > 0 || weight->columns > 0 || weight->scale->per == Granularity::kToken;
  if (!IsAlongK(*weight, op.transpose_rhs) || (has_blocks && op.rhs->type.rank() != 2)) return std::nullopt;
  WeightParts parts = {ComponentsOf(op.rhs), std::max(weight->group, weight->columns),
                       std::max<int64_t>(weight->rows, 1), op.transpose_rhs, weight->format};
  parts.outer_of = weight->outer;
  if (op.lhs->type.encoding != nullptr && Is<Encode>(op.lhs->def)) {
    parts.x = ComponentsOf(op.lhs);
    parts.x_block = op.lhs->type.encoding->group;
  }
  return parts;
}

std::optional<WeightParts> ExpertWeightPartsOf(const Value* weight) {
  const Encoding* e = weight->type.encoding;
  if (e == nullptr) return WeightParts{{.codes = weight}};
  if (!Is<Encode>(weight->def) || !e->k_is_last) return std::nullopt;
  WeightParts parts = {ComponentsOf(weight)};
  parts.outer_of = e->outer;
  if (e->format->superblock > 0) {
    parts.superblock = e->format;
    return parts;
  }
  const int64_t n = weight->type.shape[1].value(), k = weight->type.shape[2].value();
  parts.format = e->format;
  parts.block = std::max(e->group, e->columns);
  parts.block_rows = std::max<int64_t>(e->rows, 1);
  // A number for each row is that of a block as long as it: those of columns would be the same for all experts.
  if (e->scale->per == Granularity::kToken) parts.block = k;
  const bool fits = k > 0 && k % kCodesOfLane == 0 && parts.block % kCodesOfLane == 0;
  if (!fits || (parts.bits() != 4 && parts.bits() != 8)) return std::nullopt;
  if (parts.zero_bits() > 0 && parts.zero_bits() < 8) {
    const int64_t zeros = (n + parts.block_rows - 1) / parts.block_rows * ((k + parts.block - 1) / parts.block);
    if (zeros % 2 != 0) return std::nullopt;  // those of the next expert would begin within a byte
  }
  return parts;
}

bool SumsBytes(const Linear& op, const WeightParts& weight, DType out) {
  if (!weight.is_of_bytes() || !SumsIntegers(op.lhs->type, op.rhs->type, op.transpose_rhs)) return false;
  const Encoding& encoding = *op.lhs->type.encoding;
  if (encoding.zero.has_value() && encoding.zero->per != Granularity::kTensor) return false;
  const DType scale = weight.scale->type.dtype;
  return DTypeBits(weight.x.codes->type.dtype) == 8 && weight.bits() == 8 && weight.x.scale->type.dtype == scale &&
         (scale == out || (scale == DType::kF32 && DTypeBits(out) == 16));
}

void AddByteParts(const WeightParts& weight, KernelCall* call) {
  const Components& x = weight.x;
  call->types.insert(call->types.end(), {{"A", DeviceType(x.codes->type.dtype)},
                                         {"B", DeviceType(weight.codes->type.dtype)},
                                         {"Scale", DeviceType(weight.scale->type.dtype)},
                                         {"ZeroA", DeviceType(x.zero_or_scale()->type.dtype)},
                                         {"ZeroB", DeviceType(weight.zero_or_scale()->type.dtype)}});
  call->AddConstants({{"kScaleA", weight.x_scale_kind()},
                      {"kScale", weight.scale_kind()},
                      {"kZero", weight.zero_kind()},
                      {"kZeroA", x.zero != nullptr}});
}

std::string CodeType(const EncodingFormat& format) {
  if (format.packed_bits > 0) {
    return absl::StrCat("llmc::PackedInt<", format.packed_bits, ", ", format.is_signed() ? "true" : "false", ">");
  }
  if (format.codebook == nullptr) return DeviceType(format.codes);
  const auto bits = [](std::string* out, float number) { absl::StrAppend(out, absl::bit_cast<uint32_t>(number), "u"); };
  return absl::StrCat("llmc::Codebook<", absl::StrJoin(absl::MakeSpan(format.codebook, 16), ", ", bits), ">");
}

void AddReader(const WeightParts& weight, KernelCall* call) {
  if (weight.is_of_bytes()) {
    call->types.emplace_back("Weight", "llmc::ByteWeight<Config>");
    return AddByteParts(weight, call);
  }
  if (weight.is_dense()) return;
  if (weight.superblock != nullptr) {
    call->types.insert(call->types.end(), {{"Weight", "llmc::SuperblockWeight<Config>"},
                                           {"Format", DeviceSuperblock(*weight.superblock)}});
    return;
  }
  call->types.insert(call->types.end(), {{"Weight", "llmc::EncodedWeight<Config>"},
                                         {"Q", CodeType(*weight.format)},
                                         {"Scale", DeviceType(weight.scale->type.dtype)},
                                         {"Zero", DeviceType(weight.zero_or_scale()->type.dtype)}});
  call->AddConstants({{"kTransposed", weight.transposed},
                      {"kScale", weight.scale_kind()},
                      {"kZero", weight.zero_kind()},
                      {"kBlock", std::max<int64_t>(weight.block, 1)},
                      {"kBlockRows", weight.block_rows},
                      {"kExponents", weight.format->scale_is_exponent},
                      {"kOuter", weight.outer_kind()}});
  if (!weight.has_coded_x()) return;
  call->types.emplace_back("XCodes", DeviceType(weight.x.codes->type.dtype));
  call->AddConstants(
      {{"kXScale", weight.x_scale_kind()}, {"kXBlock", weight.x_block > 0 ? weight.x_block : kCodesOfLane}});
}

std::string AddWeight(const WeightParts& weight, const std::string& name, KernelCall* call) {
  call->params.push_back(In(weight.codes, name));
  if (weight.is_dense()) return name;
  if (weight.superblock != nullptr) return absl::StrCat("{", name, "}");
  const std::string scale = absl::StrCat(name, "_scale"), zero = absl::StrCat(name, "_zero");
  call->AddParams({In(weight.scale, scale), In(weight.zero_or_scale(), zero)});
  if (weight.has_coded_x()) {
    if (weight.outer != nullptr) call->params.push_back(In(weight.outer, absl::StrCat(name, "_outer")));
    call->params.push_back(In(weight.x.scale, "x_scale"));
    return absl::StrCat("{", name, ", ", scale, ", ", zero, ", ",
                        weight.outer != nullptr ? absl::StrCat(name, "_outer") : "nullptr", ", x_scale}");
  }
  if (weight.outer != nullptr) {
    const std::string outer = absl::StrCat(name, "_outer");
    call->params.push_back(In(weight.outer, outer));
    return absl::StrCat("{", name, ", ", scale, ", ", zero, ", ", outer, "}");
  }
  if (!weight.is_of_bytes()) return absl::StrCat("{", name, ", ", scale, ", ", zero, "}");
  call->AddParams({In(weight.x.scale, "x_scale"), In(weight.x.zero_or_scale(), "x_zero")});
  return absl::StrCat("{", name, ", {", scale, ", ", zero, ", x_scale, x_zero}}");
}

}  // namespace llmc
