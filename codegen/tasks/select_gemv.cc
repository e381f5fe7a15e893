// GEMV: products of 1 to 8 rows as calls of kernels/linear/gemv.cuh, with what comes before and after them.
#include <algorithm>
#include <cmath>
#include <cstdlib>

#include "absl/algorithm/container.h"
#include "absl/base/casts.h"
#include "absl/strings/str_cat.h"
#include "codegen/tasks/product_parts.h"
#include "codegen/tasks/select_internal.h"
#include "ir/ops.h"
#include "kernels/layout/linear.h"

namespace llmc {
namespace {

// Shared memory of a block of a product with more results than terms, and of any other: one of each fit side by side,
// so that the next kernel fills its ring meanwhile, and two of a wide one do not, so that each multiprocessor gets one.
constexpr int64_t kWideBytes = 116 * 1024, kNarrowBytes = 107 * 1024;
// The same of a block that has a multiprocessor alone, beside the sums of its warps; its stages, and how many of them
// are under way.
constexpr int64_t kWholeBytes = 208 * 1024, kWholeStages = 6, kWholeInFlight = 4;
// Copies of so many bytes of a row are small: if a row has many of them, three stages are under way, else two.
constexpr int64_t kSmallCopy = 1024, kSmallInFlight = 3, kLargeInFlight = 2;
// The same by registers, for codes that become numbers by few instructions and one row of x: of each thread so many,
// and of a block so many warps that multiply. Two of a product that is not wide do not fit, either: where some
// multiprocessors have no block of the kernel before, they would get two.
constexpr int kRegisters = 72, kWideWarps = 8, kNarrowWarps = 16;
// Of codes and x as integers, of which a warp of a wide product multiplies two blocks at a time; of codes that become
// words, which take more instructions, sixteen warps one.
constexpr int kWideIntegerRegisters = 80, kNarrowIntegerRegisters = 64;
// From so many elements of the weight on, cuBLASLt is faster if x does not fit beside the ring (5 to 8 rows, H200).
constexpr int64_t kMostElementsWithXInRing = 20'000'000;

// The constants of a kernel of gemv.cuh; they are explained there.
struct GemvForm {
  int64_t chunk = 0, stages = 1, in_flight = 1, rows = 0, warp_columns = 1, shared_bytes = 0, integer_block = 0;
  int64_t used_bytes = 0;  // of shared_bytes
  bool x_in_ring = false;
  int threads = 256;
  // Of kernels that are balanced by registers, too: see kRegisters.
  int registers = 0;
};

// Columns of the weight in a stage: a divisor of k, whole groups of `step`, about `wished`; 0 if there is none.
int64_t ChunkOf(int64_t k, int64_t step, int64_t wished) {
  int64_t best = 0;
  for (int64_t chunk = step; chunk <= std::min(k, 2 * wished); chunk += step) {
    if (k % chunk == 0 && std::abs(chunk - wished) < std::abs(best - wished)) best = chunk;
  }
  return best * 2 >= wished || best == k ? best : 0;
}

// Whether a block for a wide product and one for any other fit on a multiprocessor.
bool HasRoomForRings(const Target& target) {
  return target.bulk_copies && kWideBytes + kNarrowBytes + 2 * kBlockSharedBytes <= target.sm_shared_bytes;
}

// As it is multiplied.
int64_t BytesOfX(const ProductParts& parts) {
  return DTypeBits(parts.weight.has_coded_x() ? parts.dtype : parts.x->type.dtype) / 8;
}

// Whether codes stand for halves of small integers (kernels/linear/code_bytes.cuh).
bool StandsForHalves(const EncodingFormat& format) {
  return format.codebook != nullptr && absl::c_all_of(absl::MakeSpan(format.codebook, 16), [](float x) {
           return std::abs(x) < 8 && 2 * x == std::round(2 * x);
         });
}

// Whether they are words to be multiplied byte by byte (kernels/linear/code_words.cuh).
bool AreWords(const EncodingFormat& format) {
  if (format.codebook == nullptr) return false;
  double numbers[16];
  absl::c_copy(absl::MakeSpan(format.codebook, 16), numbers);
  return AreCodeWords(numbers);
}

// Codes that are integers of 8 bits.
bool AreBytes(const WeightParts& weight) {
  return weight.bits() == 8 && weight.format != nullptr && weight.format->is_integer();
}

// Codes that are floats of 8 bits and become f16, of which x in bf16 becomes multiples of a power of two.
bool AreHalves(const ProductParts& parts) {
  return parts.weight.bits() == 8 && !parts.weight.has_coded_x() && parts.weight.codes != nullptr &&
         IsFloat(parts.weight.codes->type.dtype) && parts.x->type.dtype == DType::kBF16;
}

// Columns of x in a block where it becomes integers; 0 where it does not. Of two rows they take as long as floats or
// longer (H100); codes of 8 bits are integers in a persistent launch alone, whose few warps they bind: in launches they
// wait longer for x than they gain (H100, H200).  warps: that share a stage of superblocks.
int64_t IntegerBlockOf(const ProductParts& parts, int64_t chunk, bool is_task, int64_t warps = kNarrowWarps) {
  const WeightParts& weight = parts.weight;
  const bool has_integers = parts.is_decoded() && !weight.has_coded_x() && BytesOfX(parts) == 2 && parts.most_rows == 1;
  if (!has_integers) return 0;
  if (weight.superblock != nullptr) {
    // Of small stages halves of superblocks, so that there is work for all warps.
    constexpr int64_t kBlock = 256;
    if (chunk % kBlock != 0) return 0;
    return chunk / kBlock < warps ? kBlock / 2 : kBlock;
  }
  const bool are_bytes = AreBytes(weight) || AreHalves(parts);
  if (weight.bits() != 4 && !(are_bytes && is_task)) return 0;
  if (AreWords(*weight.format)) {
    const bool has_blocks = chunk % kCodeWordBlock == 0 && (!weight.has_blocks() || weight.block % kCodeWordBlock == 0);
    return has_blocks ? kCodeWordBlock : 0;
  }
  if (weight.format->codebook != nullptr) {  // small blocks, one for each lane
    const bool is_small = weight.block == 16 || weight.block == 32;
    const bool is_of_lanes = weight.scale_bits() > 0 && is_small && chunk % (4 * weight.block) == 0;
    return StandsForHalves(*weight.format) && is_of_lanes ? 4 * weight.block : 0;
  }
  int64_t block = are_bytes ? 64 : 128;  // a lane reads 16 bytes of codes
  while (chunk % block != 0 || (weight.has_blocks() && weight.block % block != 0)) block /= 2;
  return block >= 4 * kCodesOfLane ? block : 0;
}

// Whether codes stand for numbers that pairs of 16 bits do not hold: to make two of each by instructions takes longer
// than to look them up.
bool HasPairTable(const ProductParts& parts) {
  const WeightParts& weight = parts.weight;
  if (!parts.is_decoded() || weight.format == nullptr || weight.format->codebook == nullptr || BytesOfX(parts) != 2) {
    return false;
  }
  const uint32_t lost = parts.x->type.dtype == DType::kBF16 ? 0xffff : 0x1fff;
  return absl::c_any_of(absl::MakeSpan(weight.format->codebook, 16),
                        [&](float x) { return (absl::bit_cast<uint32_t>(x) & lost) != 0; });
}

// integer_block: as IntegerBlockOf says, or 0.
GemvLayout LayoutOf(const ProductParts& parts, int64_t chunk, int64_t integer_block) {
  const WeightParts& weight = parts.weight;
  return {.columns = parts.k,
          .chunk = chunk,
          .rows = parts.most_rows,
          .x_in_ring = false,
          .element_bytes = BytesOfX(parts),
          .block = integer_block > 0              ? integer_block
                   : weight.superblock != nullptr ? weight.superblock->superblock
                   : parts.is_decoded()           ? 4 * kCodesOfLane
                                                  : kGemvBlockBytes / BytesOfX(parts),
          .weight_bits = weight.bits(),
          .scale_bits = weight.scale_bits(),
          .zero_bits = weight.zero_bits(),
          .part_block = std::max<int64_t>(weight.block, 1),
          .superblock = weight.superblock == nullptr ? 0 : weight.superblock->superblock,
          .superblock_bytes = weight.superblock == nullptr ? 0 : weight.superblock->superblock_bytes,
          .integer_block = integer_block,
          .table_bytes = integer_block == 0 && HasPairTable(parts) ? kPairTableBytes : 0,
          .of_words = integer_block > 0 && weight.format != nullptr && AreWords(*weight.format),
          .of_halves = integer_block > 0 && AreHalves(parts)};
}

// A stage of rows of the weight, of which two fit `most` bytes. Copies of 2 KiB a row are best; smaller ones keep the
// copy engine busy without filling memory (1 KiB: 3.2 TB/s of 4.3 on an H200), larger ones make few stages. Rows of
// codes have more columns, so that x takes more room beside them: smaller copies that leave x all of it are better than
// x in the ring.
std::optional<GemvLayout> StageOf(const ProductParts& parts, int64_t most, bool is_task = false) {
  const WeightParts& weight = parts.weight;
  int64_t wished = 2048 * 8 / weight.bits();
  if (!parts.is_decoded()) {
    const int64_t chunk = ChunkOf(parts.k, kGemvBlockBytes / BytesOfX(parts), wished);
    if (chunk == 0) return std::nullopt;
    GemvLayout layout = LayoutOf(parts, chunk, 0);
    layout.x_in_ring = 2 * layout.StageBytes() + layout.KeptBytes() > most;
    return layout;
  }
  int64_t step = 4 * kCodesOfLane;
  while (weight.superblock == nullptr && step * weight.bits() % 128 != 0) step *= 2;  // bulk copies are of 16 bytes
  if (weight.superblock != nullptr) {
    // Copies end at multiples of 16 bytes, and must not pass the end of the weight.
    if (parts.n * weight.RowBytes(parts.k) % 16 != 0) return std::nullopt;
    step = weight.superblock->superblock;
    wished = 2048 * step / weight.superblock->superblock_bytes;
  }
  if (weight.has_blocks()) {
    if (parts.k % weight.block != 0) return std::nullopt;
    if (weight.block % step == 0) {
      step = weight.block;
    } else if (!weight.ScalesCodes() && (step % weight.block != 0 || weight.block % (4 * kCodesOfLane) != 0)) {
      return std::nullopt;
    }
  }
  const auto layout_of = [&](int64_t columns, bool x_as_integers) -> std::optional<GemvLayout> {
    const int64_t chunk = ChunkOf(parts.k, step, columns);
    const int64_t integer_block = chunk > 0 && x_as_integers ? IntegerBlockOf(parts, chunk, is_task) : 0;
    if (chunk == 0 || (x_as_integers && integer_block == 0)) return std::nullopt;
    const GemvLayout layout = LayoutOf(parts, chunk, integer_block);
    const bool has_copies = (layout.scale_bits == 0 || layout.PartCopy(layout.scale_bits) > 0) &&
                            (layout.zero_bits == 0 || layout.PartCopy(layout.zero_bits) > 0);
    return has_copies ? std::optional(layout) : std::nullopt;
  };
  const auto fits = [&](const GemvLayout& layout, int64_t stages = 2) {
    return stages * layout.StageBytes() + layout.KeptBytes() <= most;
  };
  // Integers take more room than x. Copies of half the size are better than none of them, and, of long rows, better
  // than two stages.
  for (int64_t columns = wished; columns >= wished / 2; columns /= 2) {
    const std::optional<GemvLayout> layout = layout_of(columns, true);
    const bool may_halve = weight.superblock == nullptr && columns == wished && parts.k >= kGemvManyChunks * wished / 2;
    if (layout.has_value() && fits(*layout, may_halve ? 3 : 2)) return layout;
  }
  std::optional<GemvLayout> in_ring;
  for (int64_t columns = wished; columns >= wished / 4; columns /= 2) {
    std::optional<GemvLayout> layout = layout_of(columns, false);
    if (!layout.has_value()) continue;
    if (fits(*layout)) return layout;
    layout->x_in_ring = true;
    if (!in_ring.has_value() && fits(*layout)) in_ring = layout;
  }
  return in_ring;
}

// A warp makes as many columns as share what is done to x, if there are warps enough for all multiprocessors.
int64_t WarpColumnsOf(const ProductParts& parts, const ProgramScope& scope, int64_t warps) {
  if (parts.weight.is_dense()) return 1;
  const int64_t columns = ColumnsOf(parts);
  int64_t each = (parts.most_rows <= 2 ? 4 : 2) / (parts.n / columns);
  while (each > 1 && columns < scope.target.sms * warps * each) each /= 2;
  return each;
}

// Measured on an H100 with the layers of Llama-3.1-8B in int4, uint4, nvfp4, nf4, f8e4m3, Q4_K, Q5_K, Q6_K, Q8_0 and
// IQ4_XS; nothing else was.
bool IsBalanced(const ProductParts& parts, const GemvLayout& layout) {
  const WeightParts& weight = parts.weight;
  if (!parts.is_decoded() || weight.has_coded_x()) return false;
  if (weight.superblock != nullptr) return layout.integer_block > 0;
  const bool is_light = weight.bits() == 8 || layout.integer_block > 0 || layout.table_bytes > 0 ||
                        (weight.codes->type.dtype == DType::kI4 && weight.zero == nullptr);
  return is_light && parts.most_rows == 1 && BytesOfX(parts) == 2;
}

bool IsOfSmallCopies(const ProductParts& parts, const GemvLayout& layout) {
  return layout.integer_block > 0 && parts.weight.superblock == nullptr && layout.RowBytes() <= kSmallCopy &&
         parts.k / layout.chunk >= kGemvManyChunks;
}

// Measured on an H200 with the whole step of Llama-3.2-1B and 3.1-8B, not product by product: three stages of which two
// are under way are 4 to 8 % faster than two stages or than three under way, as long as two kernels fit side by side.
GemvForm FormOf(const ProductParts& parts, const ProgramScope& scope) {
  const int64_t columns = ColumnsOf(parts);
  const bool wide = parts.n > parts.k;
  int64_t most = wide ? kWideBytes : kNarrowBytes;
  GemvForm form;
  std::optional<GemvLayout> layout = HasRoomForRings(scope.target) ? StageOf(parts, most) : std::nullopt;
  // Where codes have no room for two stages of large copies beside several rows of x, or superblocks beside integers,
  // they take more of it. Of rows of codes that was not measured.
  bool whole = false;
  if (layout.has_value() && parts.is_decoded() && !parts.weight.has_coded_x() &&
      (parts.most_rows > 1 || (parts.weight.superblock != nullptr && layout->RowBytes() <= kSmallCopy))) {
    const std::optional<GemvLayout> of_whole = StageOf(parts, kWholeBytes);
    whole = of_whole.has_value() && (layout->x_in_ring || of_whole->chunk > layout->chunk);
    if (whole) {
      layout = of_whole;
      most = kWholeBytes;
    }
  }
  if (!layout.has_value()) {
    form.warp_columns = WarpColumnsOf(parts, scope, form.threads / 32);
    form.rows = form.threads / 32 * form.warp_columns;
    return form;
  }
  form.chunk = layout->chunk;
  form.x_in_ring = layout->x_in_ring;
  form.integer_block = layout->integer_block;
  if (IsBalanced(parts, *layout)) {
    const bool has_few_warps = wide && !layout->of_words;
    form.threads = 32 * (has_few_warps ? kWideWarps : kNarrowWarps);
    const bool are_integers = form.integer_block > 0 && parts.weight.superblock == nullptr;
    form.registers = !are_integers ? kRegisters : has_few_warps ? kWideIntegerRegisters : kNarrowIntegerRegisters;
  } else if (parts.is_decoded() && (parts.weight.bits() < 8 || (whole && parts.weight.superblock != nullptr))) {
    form.threads *= 2;  // more work for each byte
  }
  form.threads += layout->scale_bits + layout->zero_bits > 0 ? 64 : 32;  // the warps that copy
  form.rows = (columns + scope.target.sms - 1) / scope.target.sms;
  const int64_t stage = layout->StageBytes(), x = layout->KeptBytes();
  const bool is_small = IsOfSmallCopies(parts, *layout);
  const int64_t tiles = (form.rows * (parts.n / columns) + kGemvTile - 1) / kGemvTile;
  form.stages =
      std::clamp<int64_t>(std::min((most - x) / stage, tiles * (parts.k / form.chunk)), 1, whole ? kWholeStages : 3);
  form.in_flight = std::min<int64_t>(form.stages, whole ? kWholeInFlight : is_small ? kSmallInFlight : kLargeInFlight);
  form.used_bytes = form.stages * stage + x;
  form.shared_bytes = std::max(form.used_bytes, wide ? kWideBytes : 0);
  return form;
}

std::optional<Misfit> AddNorm(const Node& norm, const ProgramScope& scope, ProductParts* parts) {
  const auto op = View<RmsNorm>(norm);
  if (op.weight->type.dtype != parts->dtype) {
    return Misfit{absl::StrCat("a norm by ", op.weight->type.ToString()), "a weight of the type of x"};
  }
  // It is read before the wait.
  if (!IsThereBeforeStep(op.weight)) return Misfit{"a norm by what the step makes", "a weight"};
  const GemvForm form = FormOf(*parts, scope);
  if (form.chunk == 0) return Misfit{"a kernel without a ring of stages", "one, beside which x is kept"};
  if (form.x_in_ring) return Misfit{"rows of x that do not fit beside the ring", "rows that do"};
  if (parts->addend != nullptr) return Misfit{"a norm before and an addend after the product", "one of them"};
  parts->x = op.x;
  parts->norm = op.weight;
  parts->eps = op.eps;
  return std::nullopt;
}

// All that the kernel computes, or why it cannot.
std::optional<Misfit> ReadGemv(const KernelBody& body, const ProgramScope& scope, ProductParts* parts) {
  if (std::optional<Misfit> misfit = ReadProduct(body, scope, kMaxGemvRows, parts)) return misfit;
  const bool is_large = parts->n * parts->k > kMostElementsWithXInRing && parts->most_rows > 4;
  if (parts->weight.is_dense() && is_large && FormOf(*parts, scope).x_in_ring) {
    return Misfit{
        absl::StrCat(parts->most_rows, " rows that do not fit beside the ring, with a large weight"),
        absl::StrCat("up to ", kMostElementsWithXInRing, " elements of the weight, where cuBLASLt is slower")};
  }
  if (parts->weight.has_coded_x()) {
    const GemvForm form = FormOf(*parts, scope);
    if (form.chunk == 0 || form.x_in_ring || parts->norm_node != nullptr) {
      return Misfit{"codes of x", "room for its numbers beside a ring of stages"};
    }
  }
  return parts->norm_node == nullptr ? std::nullopt : AddNorm(*parts->norm_node, scope, parts);
}

// A form that keeps x in blocks, the last of its constants, with x as it is instead: long rows leave more stages so.
KernelCall::Task::Form InPairs(const ProductParts& parts, const GemvForm& form, KernelCall::Task::Form made) {
  made.arena_bytes = static_cast<int>(LayoutOf(parts, form.chunk, 0).KeptBytes());
  made.constants.pop_back();
  return made;
}

// In a persistent launch the stages are those of its ring, and x lies beside it.
std::optional<KernelCall::Task> TaskOf(const ProductParts& parts, const GemvForm& form, const KernelCall& call) {
  if (form.chunk == 0) return AsTask(call);
  // It has room for x beside its ring where a launch of its own has not: for all of it, for a codebook's integers, and
  // for large copies of integers' weights where these would be halved.
  const bool has_codebook = parts.weight.format != nullptr && parts.weight.format->codebook != nullptr;
  const bool are_bytes = AreBytes(parts.weight) || AreHalves(parts);
  const int64_t own_block = has_codebook || are_bytes ? IntegerBlockOf(parts, form.chunk, true) : 0;
  // Codes of 8 bits keep the stages of launches.
  const bool keeps_stages = are_bytes && own_block > 0 && !form.x_in_ring;
  const std::optional<GemvLayout> whole = !keeps_stages && (form.x_in_ring || form.integer_block > 0 || own_block > 0)
                                              ? StageOf(parts, kWholeBytes, true)
                                              : std::nullopt;
  const bool fits = whole.has_value() && !whole->x_in_ring &&
                    (whole->integer_block == form.integer_block || (own_block > 0 && whole->integer_block > 0));
  if (form.x_in_ring && !fits) return std::nullopt;
  const bool is_better =
      fits && (form.x_in_ring || whole->chunk > form.chunk || whole->integer_block > form.integer_block);
  GemvLayout layout = is_better ? *whole : LayoutOf(parts, form.chunk, keeps_stages ? own_block : form.integer_block);
  // Superblocks are whole for fewer warps.
  if (parts.weight.superblock != nullptr && layout.integer_block > 0) {
    layout = LayoutOf(parts, layout.chunk, IntegerBlockOf(parts, layout.chunk, true, kWideWarps));
  }
  const bool is_small = IsOfSmallCopies(parts, layout);
  KernelCall::Task task;
  task.has_parts = layout.scale_bits + layout.zero_bits > 0;
  const int copying_warps = task.has_parts ? 2 : 1;
  task.math_warps = form.threads / 32 - copying_warps;
  // Beside tasks that need many registers, no more warps than the product needs by its instructions.
  // Words take more of them.
  const bool has_few_warps = (IsBalanced(parts, layout) || layout.integer_block > 0) && !layout.of_words;
  if (has_few_warps) task.math_warps = std::min(task.math_warps, kWideWarps);
  task.stage_bytes = static_cast<int>(layout.StageBytes());
  task.columns = ColumnsOf(parts);
  task.block_columns = form.rows;
  task.column_bytes = parts.n / task.columns * (parts.k / layout.chunk) * layout.RowBytes();
  task.forms = {
      {.threads = 32 * (task.math_warps + copying_warps),
       .arena_bytes = static_cast<int>(layout.KeptBytes()),
       .constants = {
           {"kChunk", layout.chunk}, {"kInFlight", is_small ? kSmallInFlight : kLargeInFlight}, {"kXInRing", 0}}}};
  if (layout.integer_block != form.integer_block) {
    task.forms[0].constants.push_back({"kIntegerBlock", layout.integer_block});
    if (form.integer_block == 0 && HasPairTable(parts)) task.forms[0].constants.push_back({"kPairTable", 0});
  }
  if (keeps_stages) {
    task.forms.push_back(InPairs(parts, form, task.forms[0]));
    // Rows of a stage lie further apart where blocks of other sizes are multiplied.
    task.stage_bytes = std::max(task.stage_bytes, static_cast<int>(LayoutOf(parts, form.chunk, 0).StageBytes()));
  }
  if (parts.most_rows == 1 && BytesOfX(parts) == 2 && parts.x->type.dtype == parts.dtype) {
    task.takes = {parts.x};
    const bool has_numbers = !parts.qkv.has_value() || !KvPagesOf(parts.qkv->kv).is_encoded();
    if (parts.out->type.dtype == parts.dtype && has_numbers) task.gives = {parts.out};
    task.given_numbers = parts.qkv.has_value() ? parts.n : ColumnsOf(parts);
    task.addend = parts.addend;
  }
  // Sums of the warps, twice, and of squares.
  task.body_bytes = static_cast<int>((2 * kGemvTile * parts.most_rows + kMaxGemvRows) * task.math_warps * 4);
  return task;
}

KernelCall GemvCall(const ProductParts& parts, const ProgramScope& scope) {
  const GemvForm form = FormOf(parts, scope);
  const int64_t columns = ColumnsOf(parts);
  KernelCall call{.header = "linear/gemv", .threads = form.threads, .pdl = true};
  call.function = absl::StrCat(parts.norm != nullptr ? "Norm" : "", "Gemv", EpilogueName(parts));
  call.types = {{"T", DeviceType(parts.dtype)}, {"Out", DeviceType(parts.out->type.dtype)}};
  call.constants = {{"kIn", parts.k},
                    {"kOut", columns},
                    {"kTokens", parts.most_rows},
                    {"kRows", form.rows},
                    {"kChunk", form.chunk},
                    {"kStages", form.stages},
                    {"kInFlight", form.in_flight},
                    {"kXInRing", form.x_in_ring},
                    {"kSharedBytes", form.shared_bytes}};
  AddReader(parts.weight, &call);
  if (form.integer_block > 0) call.constants.push_back({"kIntegerBlock", form.integer_block});
  if (form.chunk > 0 && form.integer_block == 0 && HasPairTable(parts)) call.constants.push_back({"kPairTable", 1});
  if (form.warp_columns > 1) call.constants.push_back({"kWarpColumns", form.warp_columns});
  AddProductArguments(parts, &call);
  if (parts.qkv.has_value()) AddStaticScales(parts.qkv->k_scale, parts.qkv->v_scale, &call);
  call.launches_next = form.registers > 0;
  call.registers = form.registers;
  call.grid[0] = Dim((columns + form.rows - 1) / form.rows);
  call.shared_bytes = static_cast<int>(form.shared_bytes);
  call.used_bytes = static_cast<int>(form.used_bytes);
  call.task = TaskOf(parts, form, call);
  return call;
}

// Shared memory of the last block, beside the ring: for each token what RouteOfToken has.
constexpr int64_t kMostRouteBytes = 32 * 1024;

// A product of a router, and the experts that the last block chooses by it.
Calls SelectRouter(const Node& route, const KernelBody& product, const ProgramScope& scope) {
  if (std::optional<Misfit> misfit = RouteMisfit(route)) return *misfit;
  ProductParts parts;
  if (std::optional<Misfit> misfit = ReadGemv(product, scope, &parts)) return *misfit;
  const auto op = View<Route>(route);
  const bool fits = parts.out == op.logits && parts.out->type.dtype == parts.dtype && parts.norm == nullptr &&
                    parts.addend == nullptr && !parts.silu_mul && !parts.qkv.has_value();
  if (!fits) return Misfit{"a route of another value", "of the product, or of its sum with a bias"};
  const int64_t experts = op.logits->type.shape[1].value();
  if (parts.most_rows * (2 * experts + op.groups + op.top_k) * 4 > kMostRouteBytes) {
    return Misfit{absl::StrCat(experts, " experts for each of ", parts.most_rows, " tokens"), "fewer"};
  }
  KernelCall call = GemvCall(parts, scope);
  if (call.shared_bytes > kWideBytes) return Misfit{"a product for which a block has most of the memory", "less of it"};
  call.task.reset();
  call.header = "experts/router";
  call.function = parts.bias != nullptr ? "RouterBias" : "Router";
  AddRouteConstants(route, &call);
  const Size logits = ElementsOf(op.logits->type.shape) * Size(DTypeBits(parts.dtype) / 8);
  call.params[0].arg = KernelArg::OfScratch(logits);
  call.AddParams({Out(route.results[0], "chosen"),
                  Out(route.results[1], "weights"),
                  {"llmc::i32*", "counter", KernelArg::OfCounters()},
                  Float(op.scale, "scale")});
  if (op.bias != nullptr) call.params.push_back(In(op.bias, "route_bias"));
  call.arguments = absl::StrCat("chosen, weights, counter, ", call.arguments, ", ",
                                op.bias != nullptr ? "route_bias" : "nullptr", ", scale");
  return std::vector<DeviceCall>{call};
}

}  // namespace

Calls SelectGemv(const KernelBody& body, const ProgramScope& scope) {
  if (const Node& last = *body.nodes.back(); Is<Route>(&last)) {
    const std::vector<const Value*> results(last.results.begin(), last.results.end());
    if (body.results != results) return Misfit{"other results", "the experts and their weights"};
    KernelBody product = {.nodes = {body.nodes.begin(), body.nodes.end() - 1}, .results = {last.operands[0]}};
    return SelectRouter(last, product, scope);
  }
  const auto product = absl::c_find_if(body.nodes, [](const Node* node) { return Is<MatMul>(node); });
  if (product != body.nodes.end()) {
    const ProductMatrices p = MatricesOf(ProductOf(**product), (*product)->results[0]->type);
    if (!p.is_single && !p.lead.empty()) return SelectBatchedGemv(body, scope);
  }
  ProductParts parts;
  if (std::optional<Misfit> misfit = ReadGemv(body, scope, &parts)) return *misfit;
  return std::vector<DeviceCall>{GemvCall(parts, scope)};
}

}  // namespace llmc
