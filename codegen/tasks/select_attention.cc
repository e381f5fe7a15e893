// Attention over the paged KV cache: a kernel split over the cache for sequences of a few tokens, one on tensor cores
// for chunks of prompts; both in one program that may have both. Chunks' keys and values in a cache that is encoded are
// decoded before, as many as there is room for. What they cannot do falls to a kernel of one block a token.
#include <algorithm>
#include <cmath>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "codegen/tasks/select_internal.h"
#include "ir/ops.h"
#include "kernels/layout/attention.h"

namespace llmc {
namespace {

struct AttentionSizes {
  KvPages kv;
  int64_t group;  // query heads that share a head of keys and values
  int64_t element_bytes;
};

AttentionSizes SizesOf(const PagedAttention& op, const Value* out) {
  const KvPages kv = KvPagesOf(op.kv, op.keys, op.values);
  return {.kv = kv,
          .group = out->type.shape[1].value() / (kv.heads() * kv.value_dim()),
          .element_bytes = DTypeBits(out->type.dtype) / 8};
}

// `of_cache`: it reads the cache, not keys and values that are decoded.
KernelCall NewCall(const PagedAttention& op, const Value* out, const AttentionSizes& sizes, const std::string& header,
                   const std::string& function, bool of_cache = true) {
  KernelCall call{.header = header, .function = function};
  call.types = {{"T", DeviceType(out->type.dtype)}};
  call.constants = {{"kGroup", sizes.group},
                    {"kHeadDim", sizes.kv.head_dim()},
                    {"kWindow", op.window},
                    {"kChunk", op.chunk},
                    {"kSoftcap", op.softcap != 0}};
  if (of_cache) {
    AddKv(sizes.kv, &call);
  } else {
    call.AddConstants({{"kPageSize", sizes.kv.state->state->page_size}, {"kKvHeads", sizes.kv.heads()}});
  }
  call.params = {Out(out, "out"),       In(op.q, "q"),       sizes.kv.In(),
                 In(op.pages, "pages"), In(op.lens, "lens"), In(op.starts, "starts")};
  return call;
}

// `adds`: something is added to scores, as ScoreScale has it.
void AddNumbers(const PagedAttention& op, bool adds, KernelCall* call) {
  const double scale = op.softcap != 0 || adds ? op.scale : op.scale * std::log2(std::exp(1.0));
  call->AddParams({Count(op.pages->type.shape[0], "sequences"), Count(op.pages->type.shape[1], "pages_per_sequence"),
                   Float(scale, "scale"), Float(op.softcap, "softcap")});
}

// Sinks and slopes, and static scales, as the last arguments of the kernel; none where the op has none.
void AddHeadTerms(const PagedAttention& op, KernelCall* call) {
  if (op.sinks == nullptr && op.slopes == nullptr) {
    AddStaticScales(op.k_scale, op.v_scale, call, ", llmc::HeadTerms<false, false>{}");
    return;
  }
  const auto name = [](std::string* to, const KernelParam& p) { to->append(p.name); };
  const std::string others = absl::StrJoin(call->params, ", ", name);
  if (op.sinks != nullptr) call->params.push_back(In(op.sinks, "sinks"));
  if (op.slopes != nullptr) call->params.push_back(In(op.slopes, "slopes"));
  call->arguments = absl::StrCat(others, ",\n      llmc::HeadTerms<", op.sinks != nullptr ? "true" : "false", ", ",
                                 op.slopes != nullptr ? "true" : "false", ">{{", op.sinks != nullptr ? "sinks" : "",
                                 "}, {", op.slopes != nullptr ? "slopes" : "", "}}");
  AddStaticScales(op.k_scale, op.v_scale, call);
}

// Whether the kernels on tensor cores take codes of this kind: rows in whole pieces that are copied at once, groups
// that are whole steps of products.
bool AreFastCodes(const KvPages& kv) {
  const Encoding& e = *kv.keys->type.encoding;
  const int64_t row_bytes = kv.head_dim() * DTypeBits(e.format->codes) / 8;
  return e.format->codes != DType::kU8 && kv.head_dim() % 8 == 0 && row_bytes % 4 == 0 &&
         (e.group == 0 || e.group == kv.head_dim() || e.group % 32 == 0) && e.scale->dtype != DType::kF64;
}

// In a persistent launch.
KernelCall::Task DecodeTaskOf(const PagedAttention& op, const Value* out, const AttentionSizes& sizes, int64_t tokens,
                              const DecodeLayout& layout, int warps, bool is_one_sequence) {
  KernelCall::Task task{.body_bytes = 16};
  if (is_one_sequence && tokens == 1 && sizes.element_bytes == 2 && !sizes.kv.is_encoded()) {
    task.is_attention = true;
    task.takes = {op.q};
    task.gives = {out};
    task.given_numbers = out->type.shape[1].value();
    // Heads of queries, a key and a value.
    task.body_bytes += static_cast<int>((sizes.group + 2) * layout.Dim() * sizes.element_bytes);
  }
  // More warps that wait for their copies rather than fewer that do not: those beside a short sequence have one tile.
  // Five have what leaves room for a stage of weights more than eight do (measured with heads of 128).
  for (const int fewer : {8, 5, 4, 2, 1}) {
    if (fewer > warps) continue;
    for (const int stages : {layout.stages, 1}) {
      if (fewer == 5 && stages > 1) continue;
      DecodeLayout form = layout;
      form.stages = stages;
      task.forms.push_back(
          {.threads = 32 * fewer, .arena_bytes = form.SharedBytes(fewer), .constants = {{"kStages", stages}}});
    }
  }
  return task;
}

// Sequences of 1 to `tokens` tokens. `early`: see the kernel.
KernelCall DecodeCall(const PagedAttention& op, const Value* out, const AttentionSizes& sizes, int64_t tokens,
                      bool early, const ProgramScope& scope) {
  KernelCall call = NewCall(op, out, sizes, "attention/paged_attention_decode", "PagedAttentionDecode");
  DecodeLayout layout = {.rows = static_cast<int>(sizes.group * tokens),
                         .head_dim = static_cast<int>(sizes.kv.head_dim()),
                         .element_bytes = static_cast<int>(sizes.element_bytes),
                         .tile = 16,
                         .stages = 2};
  if (sizes.kv.is_encoded()) {
    const Encoding& e = *sizes.kv.keys->type.encoding;
    layout.code_bits = DTypeBits(e.format->codes);
    layout.groups = static_cast<int>(e.group > 0 ? sizes.kv.head_dim() / e.group : 1);
  }
  // About as many bytes of a tile whatever the elements.
  if (sizes.element_bytes == 2 && layout.RowBytes() <= 128) layout.tile = 32;
  // Large blocks have less to merge, small ones wait less for each other, which counts more where codes are decoded.
  const Target& target = scope.target;
  const auto has_room = [&](int of_sm) {
    return of_sm * (layout.SharedBytes(4) + kBlockSharedBytes) <= target.sm_shared_bytes;
  };
  int warps = 8, of_sm = 1;
  const absl::StatusOr<DimRange> sequences = op.pages->type.shape[0].Range(scope.bounds);
  if ((!sequences.ok() || sequences->high > 4 || sizes.kv.is_encoded()) && has_room(2)) {
    warps = 4;
    // Few rows leave registers for more warps, which codes need to be decoded as fast as they come.
    of_sm = sizes.kv.is_encoded() && layout.rows <= 8 && has_room(3) ? 3 : 2;
    if (sizes.kv.is_encoded()) call.blocks_of_sm = of_sm;
  }
  const int blocks = of_sm * static_cast<int>(target.sms);
  warps = layout.Warps(warps, static_cast<int>(target.shared_bytes));
  call.threads = 32 * warps;
  // A step has at least one, so that it is exactly one.
  const bool is_one_sequence = sequences.ok() && sequences->high == 1;
  if (of_sm == 1) call.task = DecodeTaskOf(op, out, sizes, tokens, layout, warps, is_one_sequence);
  call.shared_bytes = layout.SharedBytes(warps);
  call.AddConstants({{"kTokens", tokens},
                     {"kEarly", early},
                     {"kBlocks", blocks},
                     {"kTile", layout.tile},
                     {"kStages", layout.stages},
                     {"kSharedBytes", call.shared_bytes}});
  call.AddParams({{"float*", "partials", KernelArg::OfScratch(layout.PartialBytes(blocks))},
                  {"llmc::i32*", "counters", KernelArg::OfCounters()}});
  AddNumbers(op, /*adds=*/op.slopes != nullptr, &call);
  AddHeadTerms(op, &call);
  call.grid[0] = Dim(blocks);
  call.adapts = true;
  call.pdl = true;
  return call;
}

// Decoded keys and values of a cache that is encoded.
struct DecodedScratch {
  int64_t rows;    // for each KV head
  bool holds_all;  // of any step
  int64_t bytes;
};
// As many rows as a step may have, if these are not too many bytes, nor too many beside the tokens that read them.
DecodedScratch DecodedScratchOf(const PagedAttention& op, const Value* out, const AttentionSizes& sizes,
                                const ProgramScope& scope) {
  constexpr int64_t kMostBytes = int64_t{256} << 20, kMostOfToken = 64, kUnknown = int64_t{1} << 31;
  const auto most = [&](const Dim& size) {
    const absl::StatusOr<DimRange> range = size.Range(scope.bounds);
    return range.ok() ? std::max<int64_t>(range->high, 1) : kUnknown;
  };
  const int64_t row_bytes = sizes.kv.heads() * 2 * sizes.kv.head_dim() * sizes.element_bytes;
  const Dims& pages = op.pages->type.shape;
  const int64_t all = most(pages[0] * pages[1] * Dim(sizes.kv.state->state->page_size));
  const int64_t room = std::max<int64_t>(std::min(kMostBytes / row_bytes, kMostOfToken * most(out->type.shape[0])), 1);
  return {std::min(all, room), all <= room, std::min(all, room) * row_bytes};
}

// Decodes what the next call of prefill reads.
KernelCall DecodeRowsCall(const PagedAttention& op, const Value* out, const AttentionSizes& sizes, int64_t tokens,
                          const DecodedScratch& scratch, const Target& target) {
  KernelCall call = NewCall(op, out, sizes, "attention/decoded_rows", "DecodeCachedRows");
  call.AddConstants({{"kTokens", tokens}, {"kDecodedRows", scratch.rows}});
  call.params[0].arg = KernelArg::OfScratch(Size(scratch.bytes));
  call.params.erase(call.params.begin() + 1);  // queries
  call.AddParams({Count(op.pages->type.shape[0], "sequences"), Count(op.pages->type.shape[1], "pages_per_sequence")});
  AddStaticScales(op.k_scale, op.v_scale, &call);
  call.grid[0] = Dim(8 * target.sms);
  call.pdl = true;
  return call;
}

// Whether the cache is a matrix of rows of heads, of whose pages maps of tiles copy whole pieces.
bool HasMap(const KvPages& kv) {
  const StateType& type = *kv.state->state;
  const int64_t row_bytes = kv.head_dim() * DTypeBits(kv.dtype()) / 8;
  return !kv.is_encoded() && (kFlashMapRows % type.page_size == 0 || type.page_size % kFlashMapRows == 0) &&
         type.page_size % 8 == 0 && type.RecordBytes() % row_bytes == 0 && type.OffsetOf(*kv.keys) % row_bytes == 0 &&
         type.OffsetOf(*kv.values) % row_bytes == 0;
}

// Sequences of more than `tokens` tokens. Where there is a `scratch`: those that are in it (`in_scratch`), or the
// others.
KernelCall PrefillCall(const PagedAttention& op, const Value* out, const AttentionSizes& sizes, int64_t tokens,
                       const Target& target, const DecodedScratch* scratch = nullptr, bool in_scratch = false) {
  KernelCall call = NewCall(op, out, sizes, "attention/paged_attention_prefill", "PagedAttentionPrefill", !in_scratch);
  call.constants.push_back({"kTokens", tokens});
  if (scratch != nullptr) call.constants.push_back({"kDecodedRows", scratch->rows});
  if (in_scratch) {
    call.params[2] = {absl::StrCat("const ", DeviceType(out), "*"), "rows", KernelArg::OfScratch(Size(scratch->bytes))};
  }
  // Slopes take registers as a mask of floats does.
  const int64_t mask_bytes = op.slopes != nullptr ? 4 : 0;
  const bool by_map = scratch == nullptr && HasMap(sizes.kv);
  const bool persistent = AddFlashBlocks(sizes.kv.head_dim(), sizes.kv.head_dim(), mask_bytes, by_map, target, &call);
  if (by_map && persistent) {
    call.function = "PagedAttentionPrefillByMap";
    const int64_t rows = std::min<int64_t>(sizes.kv.state->state->page_size, kFlashMapRows);
    call.AddParams({{"const __grid_constant__ llmc::TileMap", "map",
                     KernelArg::Of(sizes.kv.state).AsAllTiles(sizes.kv.head_dim() * sizes.element_bytes, rows)}});
  }
  AddNumbers(op, /*adds=*/op.slopes != nullptr, &call);
  if (in_scratch) {
    PagedAttention decoded = op;
    decoded.k_scale = decoded.v_scale = nullptr;
    AddHeadTerms(decoded, &call);
  } else {
    AddHeadTerms(op, &call);
  }
  const Dim rows = out->type.shape[0] * Dim(sizes.group);
  const Dim tiles = Dim::FloorDiv(rows, Dim(kFlashRows)) + op.pages->type.shape[0];  // at the most
  call.grid[0] = persistent ? Dim(target.sms) : tiles * Dim(sizes.kv.heads());
  call.pdl = true;
  return call;
}

void AddPrefillCalls(const PagedAttention& op, const Value* out, const AttentionSizes& sizes, int64_t tokens,
                     const ProgramScope& scope, std::vector<DeviceCall>* calls) {
  if (!sizes.kv.is_encoded()) {
    calls->push_back(PrefillCall(op, out, sizes, tokens, scope.target));
    return;
  }
  const DecodedScratch scratch = DecodedScratchOf(op, out, sizes, scope);
  calls->push_back(DecodeRowsCall(op, out, sizes, tokens, scratch, scope.target));
  calls->push_back(PrefillCall(op, out, sizes, tokens, scope.target, &scratch, /*in_scratch=*/true));
  if (!scratch.holds_all) calls->push_back(PrefillCall(op, out, sizes, tokens, scope.target, &scratch));
}

// Every token by itself.
KernelCall SimpleCall(const PagedAttention& op, const Value* out, const AttentionSizes& sizes) {
  KernelCall call = NewCall(op, out, sizes, "attention/paged_attention", "PagedAttention");
  int64_t heads = std::min<int64_t>(
      sizes.group, MostTokenHeads(static_cast<int>(sizes.kv.head_dim()), static_cast<int>(sizes.kv.value_dim())));
  while (sizes.group % heads != 0) --heads;
  call.AddConstants({{"kHeads", heads}, {"kValueDim", sizes.kv.value_dim()}});
  AddNumbers(op, /*adds=*/false, &call);
  AddHeadTerms(op, &call);
  call.grid = {out->type.shape[0], Dim(sizes.kv.heads() * (sizes.group / heads)), Dim(1)};
  call.threads = kTokenThreads;
  return call;
}

}  // namespace

bool AddFlashBlocks(int64_t key_dim, int64_t value_dim, int64_t mask_bytes, bool by_maps, const Target& target,
                    KernelCall* call) {
  const int dim = static_cast<int>(std::max(key_dim, value_dim)), padded_dim = PaddedHeadDim(dim);
  const bool warpgroups = target.wgmma && key_dim == value_dim && (dim == 128 || dim == 64);
  const bool wide = padded_dim > 128;  // fewer rows a warp, so that their sums fit its registers
  const int small = padded_dim <= 64 || wide ? 64 : 32;
  // A tile's mask lies in registers, beside the sums.
  const bool fits = mask_bytes == 0 || (mask_bytes <= 2 && dim == 64);
  const int keys = !warpgroups ? small : fits ? 128 : 64;
  call->threads = warpgroups ? kFlashHopperThreads : wide ? 256 : 128;
  by_maps = by_maps && warpgroups;
  call->shared_bytes =
      warpgroups ? FlashHopperSharedBytes(dim, keys, by_maps) : FlashSharedBytes(dim, kFlashRows, keys);
  call->adapts = true;
  call->AddConstants({{"kHopper", warpgroups},
                      {"kByMaps", by_maps},
                      {"kBlocks", warpgroups ? target.sms : 0},
                      {"kM", wide || warpgroups ? 1 : 2},
                      {"kKeys", keys},
                      {"kSharedBytes", call->shared_bytes}});
  return warpgroups;
}

Calls SelectPagedAttention(const KernelBody& body, const ProgramScope& scope) {
  Calls latent = SelectLatentAttention(body, scope);
  if (body.nodes.size() > 1 || !std::holds_alternative<Misfit>(latent)) return latent;
  const Node& node = *body.nodes[0];
  const auto op = View<PagedAttention>(node);
  const Value* out = node.results[0];
  const AttentionSizes sizes = SizesOf(op, out);
  if (!Is16BitOrF32(sizes.kv.dtype())) return NoKernel(node, "in this type");
  if (const std::optional<Misfit> misfit = KvMisfit(sizes.kv)) {
    return NoKernel(node, absl::StrCat("of ", misfit->actual, " (", misfit->expected, " it takes)"));
  }
  const int64_t widest = std::max(sizes.kv.head_dim(), sizes.kv.value_dim());
  if (widest > kMaxTokenHeadDim) return NoKernel(node, absl::StrCat("of heads over ", kMaxTokenHeadDim));
  // Copies are of 16 bytes; the greatest score is found before scores are scaled.
  const bool fits = sizes.kv.is_encoded() ? sizes.element_bytes == 2 && AreFastCodes(sizes.kv)
                                          : sizes.kv.head_dim() * sizes.element_bytes % 16 == 0;
  const bool fast = widest <= kMaxHeadDim && fits && sizes.kv.value_dim() == sizes.kv.head_dim() && op.scale > 0;
  const bool few = sizes.group <= kMaxDecodeRows;
  std::vector<DeviceCall> calls;
  if (fast && few && scope.decode) {
    KernelCall call = DecodeCall(op, out, sizes, 1, /*early=*/true, scope);
    call.can_order = true;
    const auto ordered = scope.ordered.find(out);
    if (ordered != scope.ordered.end()) call.types.emplace_back("OrderedBy", ordered->second);
    calls.push_back(std::move(call));
  } else if (fast && sizes.element_bytes == 2) {
    const int64_t tokens = few ? kMaxDecodeRows / sizes.group : 0;
    AddPrefillCalls(op, out, sizes, tokens, scope, &calls);
    if (few) calls.push_back(DecodeCall(op, out, sizes, tokens, /*early=*/false, scope));
  } else {
    calls.push_back(SimpleCall(op, out, sizes));
  }
  return calls;
}

}  // namespace llmc
