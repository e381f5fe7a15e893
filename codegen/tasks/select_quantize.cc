// Numbers of a step to codes.
#include <algorithm>

#include "absl/algorithm/container.h"
#include "absl/base/casts.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "codegen/tasks/select_internal.h"
#include "ir/encoding.h"
#include "ir/ops.h"

namespace llmc {
namespace {

constexpr int kWarp = 32;

const Encoding& EncodingOf(const std::string& as) { return **ParseEncoding(as); }  // Infer has checked it

// The struct of kernels/linear/codes.cuh that makes codes.
std::string QuantizedCodesOf(const EncodingFormat& format) {
  if (format.codebook == nullptr) return absl::StrCat("llmc::RoundedCodes<", DeviceType(format.codes), ">");
  const auto bits = [](std::string* out, float number) { absl::StrAppend(out, absl::bit_cast<uint32_t>(number), "u"); };
  return absl::StrCat("llmc::NearestCodes<", absl::StrJoin(absl::MakeSpan(format.codebook, 16), ", ", bits), ">");
}

// What both kernels of linear/quantize.cuh know of an encoding.
void AddRuns(const Encoding& e, bool inverse, KernelCall* call) {
  call->AddConstants({{"kRun", e.scale->per == Granularity::kGroup ? e.group : 0},
                      {"kScaleOfAll", e.scale->per == Granularity::kTensor},
                      {"kExponents", e.format->scale_is_exponent},
                      {"kHasOuter", e.format->outer_scale},
                      {"kInverse", inverse}});
}

KernelParam OuterParam(const Value* outer, const Value* other) {
  return In(outer == nullptr ? other : outer, "outer", outer == nullptr ? "" : "float");
}

Size RunsOf(const Encoding& e, const TensorType& x) {
  const Size rows = RowsOf(x);
  if (e.scale->per != Granularity::kGroup) return rows;
  return rows * Size::FloorDiv(Size(x.shape.back()) + Size(e.group - 1), e.group);
}

KernelCall ScaleCall(const Node& node) {
  const auto op = View<DynamicScale>(node);
  const Encoding& e = EncodingOf(op.as);
  const Value* out = node.results[0];
  KernelCall call{.header = "linear/quantize", .function = "DynamicScale", .pdl = true};
  call.types = {{"T", DeviceType(op.x)}, {"Scale", DeviceType(out)}};
  AddRuns(e, op.inverse, &call);
  call.params = {Out(out, "scale"),
                 In(op.x, "x"),
                 OuterParam(op.outer, op.x),
                 Float(op.limit, "limit"),
                 Count(RowsOf(op.x->type), "rows"),
                 Count(op.x->type.shape.back(), "columns")};
  call.arguments = absl::StrCat("scale, x, ", op.outer == nullptr ? "nullptr" : "outer", ", limit, rows, columns");
  call.grid[0] = Blocks(RunsOf(e, op.x->type), call.threads / kWarp);
  return call;
}

KernelCall CodesCall(const Node& node) {
  const auto op = View<Quantize>(node);
  const Encoding& e = EncodingOf(op.as);
  const Value* out = node.results[0];
  const Size elements = ElementsOf(out->type.shape);
  KernelCall call{.header = "linear/quantize", .function = "Quantize", .pdl = true};
  call.types = {{"T", DeviceType(op.x)}, {"Scale", DeviceType(op.scale)}, {"Codes", QuantizedCodesOf(*e.format)}};
  AddRuns(e, op.inverse, &call);
  call.params = {Out(out, "codes"),           In(op.x, "x"),
                 In(op.scale, "scale"),       OuterParam(op.outer, op.x),
                 Count(elements, "elements"), Count(op.x->type.shape.back(), "columns")};
  call.arguments = absl::StrCat("codes, x, scale, ", op.outer == nullptr ? "nullptr" : "outer", ", elements, columns");
  call.grid[0] = Blocks(Size::FloorDiv(elements + Size(1), 2), call.threads);
  return call;
}

}  // namespace

KernelCall RowsCall(const std::string& header, const std::string& function, const Value* rows) {
  const int64_t dim = rows->type.shape.back().value();
  KernelCall call{.header = header, .function = function, .types = {{"T", DeviceType(rows)}}, .pdl = true};
  call.constants = {{"kDim", dim}};
  call.grid[0] = RowsOf(rows->type);
  call.threads = ThreadsForRow(dim, rows->type.dtype, 512);
  return call;
}

std::variant<QuantizedRows, Misfit> ReadQuantizedRows(absl::Span<const Node* const> nodes) {
  const Node* last = nodes.empty() ? nullptr : nodes.back();
  if (last == nullptr || !Is<Quantize>(last)) return Misfit{"nothing that quantizes", "quantize"};
  const auto op = View<Quantize>(*last);
  const Encoding& e = EncodingOf(op.as);
  QuantizedRows q = {.rows = op.x, .scale = op.scale, .codes = last->results[0], .inverse = op.inverse};
  q.is_dynamic = nodes.size() > 1 && Is<DynamicScale>(nodes[nodes.size() - 2]);
  if (q.is_dynamic) {
    const auto scale = View<DynamicScale>(*nodes[nodes.size() - 2]);
    if (op.scale != nodes[nodes.size() - 2]->results[0] || scale.x != op.x || scale.as != op.as ||
        scale.inverse != op.inverse) {
      return Misfit{"scales of other rows", "those of the rows"};
    }
    q.limit = scale.limit;
  }
  const DType dtype = op.x->type.dtype;
  if (!ConstantLast(op.x) || !Is16BitOrF32(dtype)) return Misfit{op.x->type.ToString(), "rows of known length"};
  const bool is_byte = DTypeBits(e.format->codes) == 8 && e.format->codes != DType::kU8;
  if (!is_byte || e.scale->dtype != DType::kF32) return Misfit{e.text, "codes of 8 bits with scales in f32"};
  if (!q.is_dynamic) {
    if (e.scale->per != Granularity::kTensor) return Misfit{"scales of rows that are given", "one scale"};
    return q;
  }
  if (e.scale->per == Granularity::kToken) return q;
  const int64_t columns = op.x->type.shape.back().value(), vector = VectorOf(columns, dtype);
  q.group = e.group;
  const bool fits = columns % q.group == 0 && q.group % vector == 0 && kWarp % (q.group / vector) == 0;
  if (!fits) return Misfit{absl::StrCat("groups of ", q.group, " in rows of ", columns), "groups of lanes of a warp"};
  return q;
}

std::string AddQuantizedSink(const QuantizedRows& q, bool stores, KernelCall* call) {
  call->types.insert(call->types.end(),
                     {{"Sink", "llmc::QuantizedSink<Config>"}, {"Code", DeviceType(q.codes->type.dtype)}});
  call->AddConstants({{"kGroup", q.group}, {"kDynamic", q.is_dynamic}, {"kStores", stores}, {"kInverse", q.inverse}});
  if (stores) call->params.push_back(Out(q.rows, "out"));
  call->params.push_back(Out(q.codes, "codes"));
  if (q.is_dynamic) {
    call->AddParams({Out(q.scale, "scale"), Float(q.limit, "limit")});
  } else {
    call->params.push_back(In(q.scale, "scale"));
  }
  return absl::StrCat("{", stores ? "out" : "nullptr", ", codes, ",
                      q.is_dynamic ? "scale, limit, nullptr" : "nullptr, 0.0f, scale", "}");
}

// quantize and dynamic_scale alone, of any encoding; both, after silu_mul or nothing, of codes of 8 bits.
Calls SelectQuantize(const KernelBody& body, const ProgramScope&) {
  absl::Span<const Node* const> nodes = body.nodes;
  if (nodes.size() == 1 && Is<DynamicScale>(nodes[0])) return std::vector<DeviceCall>{ScaleCall(*nodes[0])};
  const std::variant<QuantizedRows, Misfit> read = ReadQuantizedRows(nodes);
  if (nodes.size() == 1 && std::holds_alternative<Misfit>(read)) return std::vector<DeviceCall>{CodesCall(*nodes[0])};
  if (const auto* misfit = std::get_if<Misfit>(&read)) return *misfit;
  const auto& q = std::get<QuantizedRows>(read);
  nodes.remove_suffix(q.is_dynamic ? 2 : 1);
  const bool is_gated = nodes.size() == 1 && Is<SiluMul>(nodes[0]) && nodes[0]->results[0] == q.rows;
  if (!nodes.empty() && !is_gated) return Misfit{std::string(nodes[0]->op->info.name), "silu_mul"};
  if (is_gated && absl::c_linear_search(body.results, q.rows)) return Misfit{"other readers of the gate", "none"};
  if (q.rows->type.rank() < 1 || (is_gated && !ConstantLast(nodes[0]->operands[0]))) {
    return Misfit{q.rows->type.ToString(), "rows of known length"};
  }
  KernelCall call = RowsCall("norm/quantize_rows", "QuantizeRows", q.rows);
  call.AddConstants({{"kGated", is_gated}});
  const std::string sink = AddQuantizedSink(q, false, &call);
  call.params.push_back(In(is_gated ? nodes[0]->operands[0] : q.rows, "x"));
  call.arguments = absl::StrCat(sink, ", x");
  return std::vector<DeviceCall>{call};
}

}  // namespace llmc
