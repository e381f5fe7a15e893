#include "codegen/tasks/left_operand.h"

#include <algorithm>

#include "absl/algorithm/container.h"
#include "absl/base/casts.h"
#include "absl/strings/str_cat.h"
#include "absl/types/span.h"
#include "codegen/tasks/select_internal.h"
#include "kernels/layout/linear.h"

namespace llmc {
namespace {

// The layout of what is copied at once of an encoded weight.
EncodedGemmLayout EncodedLayout(const WeightParts& weight, int tile_rows) {
  return {.weight_bits = static_cast<int>(weight.bits()),
          .scale_bits = static_cast<int>(weight.scale_bits()),
          .zero_bits = static_cast<int>(weight.zero_bits()),
          .block = static_cast<int>(std::max<int64_t>(weight.block, 1)),
          .halves = tile_rows / 128};
}

std::optional<Misfit> StagesMisfit(const WeightParts& weight, int64_t k, int tile_rows, int tokens, int shared_bytes) {
  const EncodedGemmLayout layout = EncodedLayout(weight, tile_rows);
  if (k % layout.Depth() != 0) {
    return Misfit{absl::StrCat(k, " terms"), absl::StrCat("a multiple of ", layout.Depth())};
  }
  if (!layout.CanCopy(k, layout.scale_bits) || !layout.CanCopy(k, layout.zero_bits)) {
    return Misfit{absl::StrCat("scales or zero points of ", layout.block, " terms"),
                  absl::StrCat("whole words of them in ", layout.Depth(), " terms")};
  }
  const LeftGemmLayout stages = {.halves = layout.halves,
                                 .tokens = tokens,
                                 .slabs = layout.Depth() / LeftGemmLayout::kSlab,
                                 .weight_bytes = LeftGemmLayout::CodesStageBytes(layout),
                                 .shared_bytes = shared_bytes};
  if (stages.XStages() >= LeftGemmLayout::kLeastXStages) return std::nullopt;
  return Misfit{absl::StrCat("scales and zero points of ", layout.block, " terms"),
                "two stages of a weight in shared memory"};
}

}  // namespace

std::optional<Misfit> LeftOperandMisfit(const WeightParts& weight, int64_t n, int64_t k, int tile_rows, int tokens,
                                        int shared_bytes) {
  if (n < 1 || k < 1) return Misfit{"an empty weight", "rows and terms"};
  if (n * weight.RowBytes(k) >= int64_t{1} << 32) return Misfit{"a matrix of 4 GiB", "offsets of 32 bits"};
  if (weight.is_dense()) {
    return k % 8 == 0 ? std::nullopt : std::optional(Misfit{absl::StrCat(k, " terms"), "a multiple of 8"});
  }
  if (weight.superblock == nullptr) return StagesMisfit(weight, k, tile_rows, tokens, shared_bytes);
  const int64_t whole = std::max<int64_t>(weight.superblock->superblock, LeftGemmLayout::kSlab);
  return k % whole == 0 ? std::nullopt
                        : std::optional(Misfit{absl::StrCat(k, " terms"), absl::StrCat("a multiple of ", whole)});
}

int64_t MostRowsInRegisters(const EncodingFormat& format) {
  constexpr int64_t kMostOfTwoParts = 1024;
  if (format.codebook == nullptr) return INT32_MAX;
  const bool are_exact = absl::c_all_of(absl::MakeSpan(format.codebook, 16),
                                        [](float x) { return (absl::bit_cast<uint32_t>(x) & 0xffff) == 0; });
  return are_exact ? INT32_MAX : kMostOfTwoParts;
}

KernelCall OrderColumnsCall(const WeightParts& weight, const Value* x, const Size& rows, int64_t k, KernelArg out) {
  const std::string type = DeviceType(x);
  KernelCall call{.header = "linear/order_columns", .function = "OrderColumns", .types = {{"T", type}}, .pdl = true};
  AddReader(weight, &call);
  call.AddConstants({{"kIn", k}});
  const Size count = Size::FloorDiv(rows * Size(k), 16);
  call.params = {{absl::StrCat(type, "*"), "out", std::move(out)}, In(x, "x"), Count(count, "count")};
  call.arguments = "out, x, count";
  call.grid[0] = Blocks(count, call.threads);
  return call;
}

}  // namespace llmc
