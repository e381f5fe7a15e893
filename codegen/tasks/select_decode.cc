// The numbers of encoded tensors, of every format.
#include "absl/strings/str_cat.h"
#include "codegen/tasks/select_internal.h"
#include "codegen/tasks/weight_parts.h"
#include "ir/encoding.h"
#include "ir/ops.h"

namespace llmc {
namespace {

// The struct that reads codes (kernels/linear/decode.cuh).
std::string CodesOf(const EncodingFormat& format) {
  return absl::StrCat("llmc::", format.codebook == nullptr ? "Number" : "Codebook", "Codes<", CodeType(format), ">");
}

// The rectangle whose elements share a number of the part; 0 for a whole axis.
void AddPart(const std::string& name, const Encoding& e, const std::optional<Encoding::Part>& part, KernelCall* call) {
  int64_t rows = 0, columns = 0, matrices = 1;
  switch (part.has_value() ? part->per : Granularity::kTensor) {
    case Granularity::kTensor:
      matrices = 0;
      break;
    case Granularity::kChannel:
      matrices = 0;
      (e.k_is_last ? rows : columns) = 1;
      break;
    case Granularity::kToken:
      rows = 1;
      break;
    case Granularity::kGroup:
      rows = e.k_is_last ? 1 : e.group;
      columns = e.k_is_last ? e.group : 1;
      break;
    case Granularity::kBlock:
      rows = e.rows;
      columns = e.columns;
      break;
  }
  call->AddConstants({{absl::StrCat("kHas", name), part.has_value() ? 1 : 0},
                      {absl::StrCat("k", name, "Rows"), rows},
                      {absl::StrCat("k", name, "Columns"), columns},
                      {absl::StrCat("k", name, "Matrices"), matrices}});
}

KernelCall SuperblockCall(const Value* encoded, DType to, KernelArg out) {
  constexpr int64_t kEach = 16;  // of a thread
  const Size elements = ElementsOf(encoded->type.shape);
  KernelCall call{.header = "linear/decode", .function = "DecodeSuperblocks"};
  call.types = {{"T", DeviceType(to)}, {"Format", DeviceSuperblock(*encoded->type.encoding->format)}};
  call.params = {
      {"Config::T*", "out", std::move(out)}, In(encoded->def->operands[0], "blocks"), Count(elements, "elements")};
  call.grid[0] = Blocks(elements, kEach * call.threads);
  call.pdl = true;
  return call;
}

}  // namespace

std::optional<KernelCall> DecodeCall(const Value* encoded, DType to, KernelArg out) {
  const Encoding& e = *encoded->type.encoding;
  if (!Is<Encode>(encoded->def)) return std::nullopt;
  if (e.format->superblock > 0) return SuperblockCall(encoded, to, std::move(out));
  const std::vector<Value*>& components = encoded->def->operands;
  const Value* scale = e.scale.has_value() ? components[1] : components[0];
  const Value* zero = e.zero.has_value() ? components[2] : components[0];
  const Value* outer = components.back();
  KernelCall call{.header = "linear/decode", .function = "Decode"};
  call.types = {{"T", DeviceType(to)},
                {"Codes", CodesOf(*e.format)},
                {"Scale", DeviceType(scale->type.dtype)},
                {"Zero", DeviceType(zero->type.dtype)}};
  AddPart("Scale", e, e.scale, &call);
  AddPart("Zero", e, e.zero, &call);
  call.AddConstants({{"kHasOuter", e.format->outer_scale},
                     {"kOuterMatrices", e.outer == OuterScale::kOfMatrices},
                     {"kOuterRows", e.outer == OuterScale::kOfRows},
                     {"kExponents", e.format->scale_is_exponent}});
  const Dims& shape = encoded->type.shape;
  const Dim rows = shape.size() < 2 ? Dim(1) : shape[shape.size() - 2], columns = shape.empty() ? Dim(1) : shape.back();
  const Size elements = ElementsOf(shape);
  call.params = {{"Config::T*", "out", std::move(out)},
                 In(components[0], "codes"),
                 In(scale, "scale"),
                 In(zero, "zero"),
                 In(outer, "outer"),
                 Count(elements, "elements"),
                 Count(rows, "rows"),
                 Count(columns, "columns")};
  const std::string outer_text = e.format->outer_scale ? "outer" : "nullptr";
  call.arguments = absl::StrCat("out, codes, scale, zero, ", outer_text, ", elements, rows, columns");
  call.grid[0] = Blocks(elements, call.threads);
  call.pdl = true;
  return call;
}

Calls SelectDecode(const Node& node, const ProgramScope&) {
  const Value* out = node.results[0];
  std::optional<KernelCall> call = DecodeCall(node.operands[0], out->type.dtype, KernelArg::Of(out));
  if (!call.has_value()) return NoKernel(node, absl::StrCat("of ", node.operands[0]->type.ToString()));
  return std::vector<DeviceCall>{*std::move(call)};
}

}  // namespace llmc
