// Attention over rows of the paged cache that are keys and values at once, as latent attention has them, and the write
// of such rows. Queries of two parts, and results of which only the first elements are kept, lie anywhere.
#include <algorithm>
#include <cmath>

#include "absl/algorithm/container.h"
#include "absl/strings/str_cat.h"
#include "codegen/tasks/kernel_parts.h"
#include "codegen/tasks/moves.h"
#include "codegen/tasks/select_internal.h"
#include "ir/ops.h"
#include "kernels/layout/attention.h"

namespace llmc {
namespace {

// What lies where of a query and of the result: tokens are rows, heads are batches.
struct LatentParts {
  const Node* attention = nullptr;
  PagedAttention op;
  KvPages kv;
  int64_t group = 0;  // query heads
  StridedRows out, first, second;
  int64_t first_dim = 0, value_dim = 0;
  LatentLayout layout;
};

// A query of two parts side by side, or of one.
std::optional<Misfit> ReadQuery(const KernelBody& body, LatentParts* parts) {
  const Value* query = parts->op.q;
  while (absl::c_linear_search(body.nodes, query->def) && query->def->op->info.is_view())
    query = query->def->operands[0];
  const int64_t width = parts->kv.head_dim();
  std::optional<StridedRows> first, second;
  if (absl::c_linear_search(body.nodes, query->def) && Is<Concat>(query->def)) {
    const auto concat = View<Concat>(*query->def);
    if (concat.parts.size() != 2 || query->type.rank() != 3 || concat.axis != 2 || query->type.shape[2] != Dim(width)) {
      return Misfit{"other parts of queries", "two, along their heads"};
    }
    parts->first_dim = concat.parts[0]->type.shape[2].value();
    first = StridedRowsFrom(concat.parts[0], parts->first_dim, body);
    second = StridedRowsFrom(concat.parts[1], width - parts->first_dim, body);
  } else {
    parts->first_dim = width;
    first = second = StridedRowsFrom(parts->op.q, width, body);
  }
  if (!first.has_value() || !second.has_value() || !first->IsMultipleOf(8) || !second->IsMultipleOf(8) ||
      parts->first_dim % 8 != 0) {
    return Misfit{"queries that lie otherwise", "whole vectors"};
  }
  parts->first = *first;
  parts->second = *second;
  return std::nullopt;
}

std::optional<Misfit> ReadResult(const KernelBody& body, LatentParts* parts) {
  const Value* result = parts->attention->results[0];
  const std::optional<MovedResult> moved = MovedTo(result, body);
  const int64_t width = parts->kv.value_dim();
  if (!moved.has_value()) return Misfit{"elements of the result that go elsewhere", "the first of each head"};
  const SizeList& strides = moved->to.place.strides;
  parts->value_dim = width;
  parts->out = {.in = moved->to.in, .offset = moved->to.place.offset};
  if (moved->of == result && moved->taken == ToSizes(result->type.shape)) {
    parts->out.row = strides[0];
    parts->out.batch = width;
  } else if (moved->of->type.rank() == 3 && moved->of->type.shape[2] == Dim(width) && moved->taken[2].is_number() &&
             moved->taken[0] == Size(moved->of->type.shape[0]) && moved->taken[1] == Size(moved->of->type.shape[1])) {
    parts->value_dim = moved->taken[2].number();
    parts->out.row = strides[0];
    parts->out.batch = strides[1];
  } else {
    return Misfit{"other axes of the result", "tokens, heads and their elements"};
  }
  if (!strides.back().Is(1) || !parts->out.IsMultipleOf(4) || parts->value_dim % 8 != 0) {
    return Misfit{"results that lie otherwise", "whole vectors"};
  }
  return std::nullopt;
}

// The largest tiles that leave few blocks without work; a misfit if none has room.
std::optional<Misfit> ChooseLayout(const ProgramScope& scope, LatentParts* parts) {
  LatentLayout& layout = parts->layout;
  layout = {.rows = 16,
            .head_dim = static_cast<int>(parts->kv.head_dim()),
            .value_dim = static_cast<int>(parts->value_dim),
            .tile = 32,
            .stages = 2};
  const auto fits = [&] {
    return layout.SharedBytes() <= scope.target.shared_bytes && layout.Columns() <= kMaxHeadDim;
  };
  const absl::StatusOr<DimRange> tokens = parts->op.q->type.shape[0].Range(scope.bounds);
  if (!scope.decode && (!tokens.ok() || tokens->high * parts->group > 64)) layout.rows = 64;
  while (layout.rows > 16 && !fits()) layout.rows /= 2;
  if (!fits()) layout.tile = 16;
  return fits() ? std::nullopt : std::optional(Misfit{"rows that have no room in shared memory", "shorter ones"});
}

std::optional<Misfit> ReadLatent(const KernelBody& body, const ProgramScope& scope, LatentParts* parts) {
  const auto node = absl::c_find_if(body.nodes, [](const Node* each) { return Is<PagedAttention>(each); });
  if (node == body.nodes.end()) return Misfit{"no paged_attention", "one"};
  for (const Node* other : body.nodes) {
    if (other != *node && !IsMove(other) && !Is<Concat>(other)) {
      return Misfit{std::string(other->op->info.name), "elements that are only moved"};
    }
  }
  parts->attention = *node;
  parts->op = View<PagedAttention>(**node);
  const PagedAttention& op = parts->op;
  parts->kv = KvPagesOf(op.kv, op.keys, op.values);
  if (op.keys != op.values || parts->kv.heads() != 1)
    return Misfit{"keys and values", "rows that are both, of one head"};
  if (parts->kv.is_encoded()) return Misfit{"a cache that is encoded", "floats"};
  if (DTypeBits(parts->kv.dtype()) != 16) return Misfit{std::string(DTypeName(parts->kv.dtype())), "f16 or bf16"};
  if (parts->kv.head_dim() % 8 != 0 || parts->kv.head_dim() > kMaxLatentDim) {
    return Misfit{absl::StrCat("rows of ", parts->kv.head_dim()),
                  absl::StrCat("whole vectors, at most ", kMaxLatentDim)};
  }
  if (op.softcap != 0 || op.sinks != nullptr || op.slopes != nullptr || op.scale <= 0) {
    return Misfit{"a softcap, sinks, slopes or a negative scale", "none"};
  }
  parts->group = op.q->type.shape[1].value() / parts->kv.head_dim();
  if (std::optional<Misfit> misfit = ReadQuery(body, parts)) return misfit;
  if (std::optional<Misfit> misfit = ReadResult(body, parts)) return misfit;
  return ChooseLayout(scope, parts);
}

// Over 60 lines: the two calls and what they share.
std::vector<DeviceCall> LatentCalls(const LatentParts& parts, const ProgramScope& scope) {
  const PagedAttention& op = parts.op;
  const Size tokens = op.q->type.shape[0], group = parts.group;
  const Size tiles = scope.decode ? tokens * Size((parts.group + parts.layout.rows - 1) / parts.layout.rows)
                                  : Size::FloorDiv(tokens * group, parts.layout.rows) + Size(op.pages->type.shape[0]);
  // Two blocks of few rows fit a multiprocessor.
  const int64_t blocks = parts.layout.rows == 16 ? 2 * scope.target.sms : scope.target.sms;

  KernelCall attend{.header = "attention/latent_attention", .function = "LatentAttention"};
  attend.types = {{"T", DeviceType(parts.kv.dtype())}};
  attend.constants = {{"kGroup", parts.group},
                      {"kHeadDim", parts.kv.head_dim()},
                      {"kValueDim", parts.value_dim},
                      {"kFirstDim", parts.first_dim},
                      {"kWindow", op.window},
                      {"kChunk", op.chunk},
                      {"kRows", parts.layout.rows},
                      {"kTile", parts.layout.tile},
                      {"kStages", parts.layout.stages},
                      {"kBlocks", blocks},
                      {"kTokens", 0},
                      {"kEarly", scope.decode != 0}};
  AddKv(parts.kv, &attend);
  attend.pdl = true;
  const KernelParam lens = In(op.lens, "lens"), starts = In(op.starts, "starts"),
                    sequences = Count(op.pages->type.shape[0], "sequences"), count = Count(tiles, "tiles"),
                    partials = {"float*", "partials", KernelArg::OfScratch(blocks * parts.layout.PartialBytes())};
  KernelCall merge = attend;
  merge.function = "LatentAttentionMerge";
  merge.threads = kLatentMergeThreads;
  merge.params = {Out(parts.out.in, "out"), lens, starts, partials, sequences, count};
  merge.arguments =
      absl::StrCat(StridedRowsText(parts.out, "out", true, &merge), ", lens, starts, partials, sequences, tiles");
  merge.grid[0] = Size::Call("min", {tiles * Size(parts.layout.rows), Size(blocks)});

  const bool is_one = parts.second.in == parts.first.in;
  attend.threads = 32 * kLatentWarps;
  attend.shared_bytes = parts.layout.SharedBytes();
  attend.constants.push_back({"kSharedBytes", attend.shared_bytes});
  attend.params = {Out(parts.out.in, "out"), In(parts.first.in, "first")};
  if (!is_one) attend.params.push_back(In(parts.second.in, "second"));
  attend.AddParams({parts.kv.In(), In(op.pages, "pages"), lens, starts, partials, sequences, count,
                    Count(op.pages->type.shape[1], "pages_per_sequence"),
                    Float(op.scale * std::log2(std::exp(1.0)), "scale")});
  attend.arguments = absl::StrCat("llmc::LatentStep<Config>{", StridedRowsText(parts.out, "out", true, &attend),
                                  ",\n      ", StridedRowsText(parts.first, "first", false, &attend), ",\n      ",
                                  StridedRowsText(parts.second, is_one ? "first" : "second", false, &attend),
                                  ",\n      kv, pages, lens, starts, partials, static_cast<llmc::i32>(sequences), "
                                  "pages_per_sequence, scale}, tiles");
  // No more blocks than parts; and as many as tiles: blocks that end make room for others, which balances tiles of many
  // positions against those of few.
  attend.grid[0] = Size::Call("max", {tiles, Size::Call("min", {tiles * Size(kMostLatentSplits), Size(blocks)})});
  // Of so many tiles none is split.
  const absl::StatusOr<DimRange> tokens_range = op.q->type.shape[0].Range(scope.bounds);
  if (tokens_range.ok() && tokens_range->low * parts.group / parts.layout.rows >= blocks) return {attend};
  return {attend, merge};
}

}  // namespace

Calls SelectLatentAttention(const KernelBody& body, const ProgramScope& scope) {
  LatentParts parts;
  if (std::optional<Misfit> misfit = ReadLatent(body, scope, &parts)) return *misfit;
  return LatentCalls(parts, scope);
}

Calls SelectLatentWrite(const KernelBody& body, const ProgramScope&) {
  const std::optional<Match> m = MatchFormed("latent_kv_write", body.nodes);
  if (!m.has_value())
    return Misfit{"other nodes", "the norm of a row's first elements, rope of the rest, and a kv_write"};
  const Value *x = (*m)["%kv"], *weight = (*m)["%g"], *pos = (*m)["%pos"], *inv_freq = (*m)["%f"],
              *slots = (*m)["%slots"];
  // Where the row begins in x, where its latent part ends, and where it ends.
  const auto place = [&](absl::string_view attr) { return std::get<Dims>(m->GetAttr(attr))[0]; };
  const Dim begin = place("$z"), middle = place("$a"), end = place("$b");
  const std::string& component = std::get<std::string>(m->GetAttr("$n"));
  const KvPages kv = KvPagesOf((*m)["@kv"], component, component);
  if (!body.results.empty()) return Misfit{"results that others read", "none"};
  if (kv.is_encoded()) return Misfit{"a cache that is encoded", "floats"};
  if (!Is16BitOrF32(kv.dtype()) || weight->type.dtype != kv.dtype()) return Misfit{"other types", "f32, f16 or bf16"};
  if (x->type.rank() != 2 || !ConstantLast(x) || !inv_freq->type.shape[0].is_constant() || kv.heads() != 1 ||
      !begin.is_constant() || !middle.is_constant() || end != begin + Dim(kv.head_dim()) ||
      Dim(m->Int("$d")) != end - middle) {
    return Misfit{"other sizes", "the row of one head, and one head in it that rotates"};
  }
  KernelCall call{
      .header = "attention/latent_write", .function = "LatentWrite", .types = {{"T", DeviceType(x)}}, .pdl = true};
  call.constants = {
      {"kLatentDim", (middle - begin).value()}, {"kRow", x->type.shape[1].value()}, {"kRowBegins", begin.value()}};
  AddRope(inv_freq, m->Int("$d"), std::get<bool>(m->GetAttr("$i")), {pos, inv_freq, slots, weight}, &call);
  absl::c_find_if(call.constants, [](const auto& constant) { return constant.first == "kHeadDim"; })->second =
      kv.head_dim();
  AddKv(kv, &call);
  call.params = {kv.Out(),
                 In(x, "x"),
                 In(weight, "weight"),
                 In(pos, "pos"),
                 In(inv_freq, "inv_freq"),
                 In(slots, "slots"),
                 Float(std::get<double>(m->GetAttr("$s")), "scale"),
                 Float(std::get<double>(m->GetAttr("$e")), "eps")};
  call.grid[0] = x->type.shape[0];
  return std::vector<DeviceCall>{call};
}

}  // namespace llmc
