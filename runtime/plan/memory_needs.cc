#include "runtime/plan/memory_needs.h"

#include <algorithm>
#include <limits>
#include <map>

#include "absl/algorithm/container.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/status_macros.h"
#include "runtime/device/cublaslt.h"
#include "runtime/device/graph_buckets.h"
#include "runtime/engine/executor.h"
#include "runtime/host_tensor.h"
#include "runtime/plan/dim_expression.h"
#include "runtime/plan/extents.h"
#include "runtime/plan/plan_format.h"
#include "runtime/plan/step_programs.h"
#include "runtime/plan/weight_layout.h"

namespace llmc {
namespace {

constexpr uint64_t kLargeAllocation = uint64_t{2} << 20;  // and what the driver rounds such to
constexpr uint64_t kSmallAllocation = 512;
constexpr int64_t kGraphLaunchBytes = 8192;  // of one launch in a captured graph
constexpr int64_t kReserve = int64_t{256} << 20;
constexpr int64_t kMost = int64_t{1} << 58;  // what sizes are cut to, so that a few may be added up

int64_t Allocated(uint64_t bytes) {
  const uint64_t unit = bytes < kLargeAllocation / 2 ? kSmallAllocation : kLargeAllocation;
  return static_cast<int64_t>(plan::AlignUp(std::min(bytes, static_cast<uint64_t>(kMost)), unit));
}

// Sizes from a file may be anything.
void Add(int64_t bytes, int64_t* sum) { *sum = std::min(*sum + std::min(bytes, kMost), kMost); }

absl::Status AddPools(const plan::Manifest& manifest, MemoryNeeds* needs) {
  for (const plan::State& state : manifest.states()) {
    if (state.kind() != plan::State::PAGED) {
      return absl::InvalidArgumentError(absl::StrCat("the KV state ", state.name(), " has no pages"));
    }
    auto pool = absl::c_find_if(needs->pools, [&](const auto& pool) { return pool.dim == state.pool(); });
    if (pool == needs->pools.end()) {
      const int64_t page_size = std::max<int64_t>(state.page_size(), 1);
      pool = needs->pools.insert(pool, {.dim = state.pool(), .page_size = page_size, .max_pages = kMost});
      needs->page_size = std::max(needs->page_size, page_size);
    }
    Add(static_cast<int64_t>(state.record_bytes()), &pool->page);
  }
  for (MemoryNeeds::Pool& pool : needs->pools) {
    const plan::LanguageModel::Pool* listed = FindPool(manifest.language_model(), pool.dim);
    if (listed != nullptr) pool.window = listed->window();
  }
  return absl::OkStatus();
}

// Where all layers have a window, more pages than it needs keep prefixes for others.
void BoundWindows(int64_t max_step_tokens, MemoryNeeds* needs) {
  const ExecutorLimits limits = {.max_step_tokens = max_step_tokens,
                                 .max_sequences = needs->max_sequences,
                                 .max_steps_in_flight = kDeviceStepsInFlight};
  for (MemoryNeeds::Pool& pool : needs->pools) {
    if (pool.window == 0 || needs->pools.size() == 1) continue;
    pool.max_pages = PagesOfWindow({.page_size = pool.page_size, .window = pool.window}, limits);
  }
}

absl::Status AddCache(const plan::Manifest& manifest, MemoryNeeds* needs) {
  RETURN_IF_ERROR(AddPools(manifest, needs));
  std::map<std::string, int64_t> bounds;
  for (const plan::DimBound& bound : manifest.dims()) bounds[bound.name()] = bound.max();
  needs->max_pages = std::numeric_limits<int32_t>::max() / needs->page_size;
  for (const MemoryNeeds::Pool& pool : needs->pools) {
    RETURN_IF_ERROR(CheckHoldsPage(pool.dim, bounds[pool.dim], pool.page_size, needs->page_size));
    needs->max_pages = std::min(needs->max_pages, bounds[pool.dim] / (needs->page_size / pool.page_size));
  }
  needs->max_context = manifest.language_model().max_context();
  if (manifest.entry_points_size() == 0) return absl::OkStatus();
  ASSIGN_OR_RETURN(const StepContract contract, ContractOf(manifest.entry_points(0)));
  if (const auto it = bounds.find(contract.SizeOf(StepAxis::kSequence)); it != bounds.end()) {
    needs->max_sequences = it->second;
  }
  if (const auto it = bounds.find(contract.SizeOf(StepAxis::kPage)); it != bounds.end()) {
    const int64_t smallest = needs->SmallestPage();
    needs->max_context = std::min(needs->max_context, std::min(it->second, kMost / smallest) * smallest);
  }
  const auto tokens = bounds.find(contract.SizeOf(StepAxis::kToken));
  if (tokens != bounds.end()) BoundWindows(tokens->second, needs);
  return absl::OkStatus();
}

std::string Parts(const MemoryNeeds& needs) {
  return absl::StrCat(
      "weights ", BytesText(needs.weights), ", prepared weights ", BytesText(needs.prepared), ", arena ",
      BytesText(needs.arena), ", constants, persistent buffers, penalties, products and graphs ",
      BytesText(needs.constants + needs.persistent + needs.counts + needs.workspace + needs.code + needs.graphs));
}

int64_t FreeForUse(const GpuMemory& memory) { return memory.free - memory.free / 64 - kReserve; }
int64_t Allowed(const GpuMemory& memory) {
  return static_cast<int64_t>(static_cast<double>(memory.total) * memory.fraction);
}

std::string UsableText(const GpuMemory& memory) {
  const std::string usable = BytesText(UsableBytes(memory));
  if (FreeForUse(memory) <= Allowed(memory)) {
    return absl::StrCat("of ", BytesText(memory.free), " free GPU memory ", usable, " may be used");
  }
  return absl::StrCat("of a GPU of ", BytesText(memory.total), " the fraction ", memory.fraction, " may be used, ",
                      usable);
}

// Where a larger fraction would be enough.
std::string RemedyOf(const GpuMemory& memory, int64_t needed) {
  return needed > FreeForUse(memory) ? "" : ", allow more of this one (--memory-fraction)";
}

}  // namespace

std::string BytesText(int64_t bytes) {
  constexpr double kGiB = int64_t{1} << 30, kMiB = int64_t{1} << 20;
  const auto size = static_cast<double>(bytes);
  if (size >= kGiB) return absl::StrFormat("%.2f GiB", size / kGiB);
  return size >= kMiB ? absl::StrFormat("%.1f MiB", size / kMiB) : absl::StrFormat("%.1f KiB", size / 1024);
}

StepDims BoundsOf(const plan::Program& program) {
  StepDims bounds;
  for (const plan::DimBound& bound : program.bounds()) bounds[bound.name()] = bound.max();
  return bounds;
}

absl::StatusOr<MemoryNeeds> MemoryNeedsOf(const TargetCode& code) {
  MemoryNeeds needs;
  const plan::Manifest& manifest = code.manifest();
  const WeightLayout layout = LayOutWeights(code);
  const plan::Program& prepare = code.prepare();
  needs.weights = Allocated(layout.kept_bytes);
  needs.passing_weights = Allocated(layout.passing_bytes);
  Add(Allocated(prepare.temporary_bytes()), &needs.passing_weights);
  for (const std::string& constant : manifest.constants()) Add(Allocated(constant.size()), &needs.constants);
  needs.prepared = Allocated(prepare.arena_bytes() - std::min(prepare.arena_bytes(), prepare.temporary_bytes()));
  needs.persistent = Allocated(code.persistent_bytes());
  uint64_t arena = 0, run_arena = 0, code_bytes = 0;
  bool runs_known = true;
  int64_t launches = 0;
  for (const plan::Program* each : code.programs()) {
    const plan::Program& program = *each;
    // Models without states get buffers for the sizes of each run (runtime/device/cuda_run.h).
    const bool is_planned = program.unplanned().empty();
    uint64_t& most = manifest.states_size() > 0 ? arena : run_arena;
    if (is_planned) most = std::max(most, program.arena_bytes());
    runs_known = runs_known && is_planned && program.sample().empty();
    launches = std::max<int64_t>(launches, program.launches_size());
  }
  for (const int kernel : code.Kernels()) {
    uint64_t most = 0;
    for (const plan::Cubin& cubin : manifest.kernels(kernel).cubins()) most = std::max(most, cubin.bytes());
    code_bytes += most;
  }
  needs.arena = Allocated(arena);
  needs.run_arena = manifest.states_size() > 0 ? 0 : runs_known ? Allocated(run_arena) : -1;
  needs.workspace = kProductWorkspaceBytes;
  needs.code = Allocated(code_bytes);
  if (manifest.has_language_model() && manifest.states_size() > 0) {
    RETURN_IF_ERROR(AddCache(manifest, &needs));
    needs.graphs = MostGraphs(needs.max_sequences) * kGraphLaunchBytes * launches;
    const uint64_t counts = static_cast<uint64_t>(std::max<int64_t>(manifest.language_model().vocab_size(), 0)) * 4;
    if (__builtin_mul_overflow(needs.max_sequences, Allocated(counts), &needs.counts)) needs.counts = kMost;
    needs.counts = std::clamp<int64_t>(needs.counts, 0, kMost);
  }
  return needs;
}

int64_t UsableBytes(const GpuMemory& memory) {
  return std::max<int64_t>(std::min(FreeForUse(memory), Allowed(memory)), 0);
}

int64_t MemoryNeeds::CacheBytes(int64_t pages) const {
  int64_t sum = 0;
  for (const Pool& pool : pools) {
    int64_t bytes = 0;
    Add(__builtin_mul_overflow(PagesOf(pool, pages), pool.page, &bytes) ? kMost : bytes, &sum);
  }
  return sum;
}

int64_t MemoryNeeds::PagesOfSequences(int64_t sequences, int64_t context) const {
  int64_t most = 0;
  for (const Pool& pool : pools) {
    int64_t pages = 0;
    if (__builtin_mul_overflow(sequences, PagesFor(context, pool.page_size), &pages)) pages = kMost;
    most = std::max(most, PagesFor(std::min(pages, pool.max_pages), page_size / pool.page_size));
  }
  return most;
}

// Where a window bounds the pages of a pool, as many sequences have room as a step takes.
int64_t MemoryNeeds::SequencesIn(int64_t pages, int64_t context) const {
  int64_t least = kMost;
  for (const Pool& pool : pools) {
    const int64_t there = PagesOf(pool, pages);
    if (there < pool.max_pages) least = std::min(least, there / PagesFor(context, pool.page_size));
  }
  return least == kMost ? max_sequences : least;
}

int64_t MemoryNeeds::SmallestPage() const {
  int64_t smallest = page_size;
  for (const Pool& pool : pools) smallest = std::min(smallest, pool.page_size);
  return smallest;
}

int64_t PagesThatFit(const MemoryNeeds& needs, const GpuMemory& memory) {
  const int64_t room = UsableBytes(memory) - needs.Fixed();
  if (needs.pools.empty() || needs.Loading() > UsableBytes(memory) || room < 0) return 0;
  int64_t fits = 0, too_many = std::max<int64_t>(needs.max_pages, 0) + 1;
  while (too_many - fits > 1) {
    const int64_t middle = fits + (too_many - fits) / 2;
    (needs.CacheBytes(middle) <= room ? fits : too_many) = middle;
  }
  return fits;
}

absl::Status CheckFits(const MemoryNeeds& needs, int64_t pages, const GpuMemory& memory) {
  const int64_t usable = UsableBytes(memory);
  const int64_t cache = needs.CacheBytes(pages);
  int64_t whole = needs.Fixed();
  Add(cache, &whole);
  if (needs.Loading() > usable) {
    return absl::ResourceExhaustedError(
        absl::StrCat("the model does not fit: loading needs ", BytesText(needs.Loading()), " (weights ",
                     BytesText(needs.weights + needs.passing_weights), ", prepared weights ", BytesText(needs.prepared),
                     "), but ", UsableText(memory), ": ", BytesText(needs.Loading() - usable),
                     " too few; use a larger GPU", RemedyOf(memory, needs.Loading())));
  }
  if (whole <= usable) return absl::OkStatus();
  return absl::ResourceExhaustedError(
      absl::StrCat("the model does not fit: ", Parts(needs), ", KV cache ", BytesText(cache), " (", pages, " pages of ",
                   needs.page_size, " tokens) make ", BytesText(whole), ", but ", UsableText(memory), ": ",
                   BytesText(whole - usable), " too few; use a smaller context or batch", RemedyOf(memory, whole),
                   ", or compile with smaller bounds (--bound)"));
}

}  // namespace llmc
