#include "codegen/tasks/weight_parts.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "codegen/tasks/select_internal.h"
#include "ir/encoding.h"

namespace llmc {
namespace {

// Whether scales and zero points are those of all, of columns or of groups of them.
bool IsAlongK(const Encoding& weight, bool transpose_rhs) {
  for (const std::optional<Encoding::Part>& part : {weight.scale, weight.zero}) {
    if (!part.has_value() || part->per == Granularity::kTensor) continue;
    const bool is_of_columns = part->per == Granularity::kChannel || part->per == Granularity::kGroup;
    if (!is_of_columns || weight.k_is_last != transpose_rhs) return false;
  }
  return true;
}

}  // namespace

PartKind WeightParts::KindOf(const Value* part) {
  if (part == nullptr) return kNoPart;
  if (part->type.rank() == 2) return kOfBlocks;
  return ElementsOf(part->type.shape).Is(1) ? kOneNumber : kOfColumns;
}

int64_t WeightParts::RowBytes(int64_t elements) const {
  return superblock == nullptr ? elements * bits() / 8
                               : elements / superblock->superblock * superblock->superblock_bytes;
}

bool WeightParts::IsThereBeforeStep() const {
  for (const Value* value : {codes, scale, zero}) {
    if (value != nullptr && !llmc::IsThereBeforeStep(value)) return false;
  }
  return true;
}

std::string DeviceSuperblock(const EncodingFormat& format) { return absl::StrCat("llmc::superblock::", format.name); }

Components ComponentsOf(const Value* encoded) {
  const std::vector<Value*>& all = encoded->def->operands;
  return {all[0], all.size() > 1 ? all[1] : nullptr, all.size() > 2 ? all[2] : nullptr};
}

std::optional<WeightParts> WeightPartsOf(const Linear& op) {
  const Encoding* weight = op.rhs->type.encoding;
  if (weight == nullptr) return WeightParts{{.codes = op.rhs}, 0, op.transpose_rhs};
  if (!Is<Encode>(op.rhs->def)) return std::nullopt;
  if (weight->format->superblock > 0) {
    if (!op.transpose_rhs || op.rhs->type.rank() != 2) return std::nullopt;
    WeightParts parts = {ComponentsOf(op.rhs)};
    parts.superblock = weight->format;
    return parts;
  }
  if (!weight->format->is_integer()) return std::nullopt;
  if (!IsAlongK(*weight, op.transpose_rhs) || (weight->group > 0 && op.rhs->type.rank() != 2)) return std::nullopt;
  WeightParts parts = {ComponentsOf(op.rhs), weight->group, op.transpose_rhs};
  if (op.lhs->type.encoding != nullptr && Is<Encode>(op.lhs->def)) parts.x = ComponentsOf(op.lhs);
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
  call->types.insert(call->types.end(), {{"Weight", "llmc::IntegerWeight<Config>"},
                                         {"Q", DeviceType(weight.codes->type.dtype)},
                                         {"Scale", DeviceType(weight.scale->type.dtype)},
                                         {"Zero", DeviceType(weight.zero_or_scale()->type.dtype)}});
  call->AddConstants({{"kTransposed", weight.transposed},
                      {"kScale", weight.scale_kind()},
                      {"kZero", weight.zero_kind()},
                      {"kBlock", std::max<int64_t>(weight.block, 1)}});
}

std::string AddWeight(const WeightParts& weight, const std::string& name, KernelCall* call) {
  call->params.push_back(In(weight.codes, name));
  if (weight.is_dense()) return name;
  if (weight.superblock != nullptr) return absl::StrCat("{", name, "}");
  const std::string scale = absl::StrCat(name, "_scale"), zero = absl::StrCat(name, "_zero");
  call->AddParams({In(weight.scale, scale), In(weight.zero_or_scale(), zero)});
  if (!weight.is_of_bytes()) return absl::StrCat("{", name, ", ", scale, ", ", zero, "}");
  call->AddParams({In(weight.x.scale, "x_scale"), In(weight.x.zero_or_scale(), "x_zero")});
  return absl::StrCat("{", name, ", {", scale, ", ", zero, ", x_scale, x_zero}}");
}

}  // namespace llmc
