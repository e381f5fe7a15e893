// Many tasks in one launch: a block for each multiprocessor goes through all tasks in their order, and computes those
// tiles of each that are its own. A task begins when all blocks have done the one before. The weights that tasks stream
// (linear/gemv.cuh) go through one ring of stages, which is filled ahead across tasks, since it waits for nothing that
// tasks compute: memory does not rest while blocks wait for each other.
//
// Warps of a block: R::kMathWarps compute; of four more, one copies weights, one tells the other blocks what this one
// has done and waits for theirs, one asks memory for what attention will read, and if R::kHasParts one copies scales
// and zero points.
//
// Where all that a task reads of those before is what the one before it makes, it may take that as a tagged row
// (tagged_row.cuh): then no block waits for all others, but each for the numbers that it needs. Three rows take turns:
// a block writes numbers of one when it has read the row before, all of whose writers have read the one before that, so
// that nobody reads what lies there.
//
// Blocks wait for each other, so all of them must be on the device at a time: the launch is a cooperative one. Every
// wait ends after kMostCycles even so, as a device error; what comes then is wrong, but ends.
//
// R::kBlocks, kTasks, kMathWarps, kHasParts; kStages, kStageBytes, kParts, kInFlight: of the ring; kBodyBytes,
// kArenaBytes: what the contexts of bodies have of shared memory; kSharedBytes: of a block; kRowWords: the longest
// tagged row.  R::Kind(task), R::First(task), R::Joins(task): what a task is, the first of its words, and whether it
// begins when all blocks have done those before; R::Next(task): the task that takes its row, if that one does something
// ahead; or 0.  R::Task<kRole>(kind, place, words), R::Ahead(kind, place, words): call RunTask, RunAhead for that kind.
#pragma once
#include "kernels/common/device_error.cuh"
#include "kernels/common/stage_ring.cuh"
#include "kernels/common/tagged_row.cuh"
#include "kernels/layout/run_clocks.h"

namespace llmc {

// An argument of a task, from the words of the launch.
template <class T>
struct OfWord {
  static __device__ __forceinline__ T From(u64 word) { return static_cast<T>(word); }
};
template <class T>
struct OfWord<T*> {
  static __device__ __forceinline__ T* From(u64 word) { return reinterpret_cast<T*>(word); }
};
template <>
struct OfWord<float> {
  static __device__ __forceinline__ float From(u64 word) { return __uint_as_float(static_cast<u32>(word)); }
};

#if LLMC_SM90
template <class R>
struct RunShared {
  u64 full[R::kStages * R::kParts], empty[R::kStages];
  u64 begun;        // a phase ends when a task may read what those before have written
  i64* clocks;      // RunClocks from the second task on, if they are wanted
  u32 is_there[2];  // of a task, by its parity: what the block has written, memory has for all
  u32 with_input;   // the last task whose x is there: a hint, which is read and written without a barrier
  // If it is not 0, a wait has taken too long, and nobody waits any longer: 1 more than what was waited for, and above
  // that the task.
  u32 late;
};

constexpr i64 kMostCycles = 20'000'000'000, kClockUnit = 65536;  // some ten seconds; few registers know the time

// Of all waits of a launch.
template <class R>
struct RunLimit {
  RunShared<R>* shared;
  int task = 0;

  template <class IsThere>
  __device__ __forceinline__ void Until(const IsThere& is_there, RunWait what = RunWait::kNumbers) const {
    u32 begin = 0;
#pragma unroll 1
    while (!is_there()) {  // once in the code, which is long
      volatile u32* const late = &shared->late;
      if (*late != 0) return;
      if (begin == 0) begin = Now();
      if (Now() - begin > kMostCycles / kClockUnit) *late = 1 + static_cast<u32>(what) + task * 8;
    }
  }
  static __device__ __forceinline__ u32 Now() { return static_cast<u32>(clock64() / kClockUnit); }
  // Of the ring.
  __device__ __forceinline__ void operator()(u64* barrier, u32 parity, RunWait what) const {
    Until([&] { return IsOver(barrier, parity); }, what);
  }
};

template <class R>
__device__ __forceinline__ void Stamp(i64* clocks, int task, RunClocks::RunStamp stamp) {
  if (clocks != nullptr) clocks[RunClocks::Of(R::kBlocks, task, static_cast<int>(blockIdx.x), stamp)] = clock64();
}
template <class R>
__device__ __forceinline__ void StampBlock(i64* clocks, RunClocks::BlockWord clock, RunClocks::BlockWord time) {
  if (clocks == nullptr) return;
  i64 now;
  asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(now));
  clocks[RunClocks::OfBlock(static_cast<int>(blockIdx.x), time)] = now;
  clocks[RunClocks::OfBlock(static_cast<int>(blockIdx.x), clock)] = clock64();
}

// Where a thread is.
template <class R>
struct RunPlace {
  using Ring = StageRing<R::kStages, R::kStageBytes, R::kInFlight, R::kParts, RunLimit<R>>;
  RunShared<R>& shared;
  char* arena;
  char* body;
  u32* rows;
  u32 first_tag;  // of the launch
  Ring ring;
  int task = 0;
  int given = 0;          // rows
  bool is_there = false;  // what the tile wrote, memory has for all

  __device__ __forceinline__ TaggedRow<RunLimit<R>> Row(int row) const {
    return {rows + row % 3 * R::kRowWords, (first_tag + row) << 16, {&shared, task}};
  }
};

template <class R, Role kRole_, class Task>
struct RunContext {
  static constexpr Role kRole = kRole_;
  static constexpr int kThreads = Task::kThreads;
  static constexpr bool kTakes = Task::kTakes, kGives = Task::kGives;
  using Ring = typename RunPlace<R>::Ring;
  RunPlace<R>& place;
  const u64* words;  // of its arguments
  u32 tile, x, y;    // this tile; how many there are of them in x and y
  u32 z;

  __device__ __forceinline__ u32 TileX() const { return tile % x; }
  __device__ __forceinline__ u32 TileY() const { return tile / x % y; }
  __device__ __forceinline__ u32 TileZ() const { return tile / x / y; }
  __device__ __forceinline__ u32 TilesX() const { return x; }
  __device__ __forceinline__ u32 TilesY() const { return y; }
  __device__ __forceinline__ u32 TilesZ() const { return z; }
  __device__ __forceinline__ u32 Tiles() const { return x * y * z; }
  // Of one of several bodies side by side: its words, and this tile among its own and those of what comes behind it.
  template <class Part>
  __device__ __forceinline__ auto Of(const u64* own, u32 of_part, u32 own_x, u32 own_y, u32 own_z) const {
    return RunContext<R, kRole_, Part>{place, own, of_part, own_x, own_y, own_z};
  }
  __device__ __forceinline__ void Wait() const { WaitAt(&place.shared.begun, place.task & 1); }
  __device__ __forceinline__ void Sync() const { SyncThreads<1, kThreads>(); }

  template <class T>
  __device__ __forceinline__ T& Shared() const {
    static_assert(sizeof(T) <= R::kBodyBytes && alignof(T) <= 16, "kBodyBytes: what bodies have in shared memory");
    return *reinterpret_cast<T*>(place.body);
  }
  template <int kAlignment>
  __device__ __forceinline__ char* Arena() const {
    return place.arena;
  }
  // A sector of memory to the cache of the multiprocessor, where nobody waits for it.
  __device__ __forceinline__ void Touch(const void* from) const {
    asm volatile("prefetch.global.L1 [%0];" ::"l"(from) : "memory");
  }

  // Whole pieces of 16 bytes to the cache of the GPU.
  __device__ __forceinline__ void AskFor(const void* from, u32 bytes) const {
    asm volatile("cp.async.bulk.prefetch.L2.global [%0], %1;" ::"l"(from), "r"(bytes) : "memory");
  }

  // ---- of tasks that take a row from the one before, or give one to the next ----
  __device__ __forceinline__ auto Taken() const { return place.Row(place.given); }
  __device__ __forceinline__ auto Given() const { return place.Row(place.given + 1); }
  // What is done to the heads of that row before attention: what a task between them would have done.
  __device__ __forceinline__ auto Before() const { return Task::Before(words); }

  // x, or the row, is there.
  __device__ __forceinline__ void TellInput() const {
    if (threadIdx.x != 0) return;
    *const_cast<volatile u32*>(&place.shared.with_input) = place.task;
    if (place.task > 0) Stamp<R>(place.shared.clocks, place.task, RunClocks::kInput);
  }
  __device__ __forceinline__ bool HasInput() const {
    return *const_cast<volatile u32*>(&place.shared.with_input) == place.task;
  }

  // ---- of tasks that stream a weight ----
  __device__ __forceinline__ Ring& ring() const { return place.ring; }
  // All threads that store have read their results back (linear/gemv_epilogue.cuh).
  __device__ __forceinline__ void HasReadBack() const { place.is_there = true; }
};

// The tiles of a task that are this block's.
// Task::kThreads, of its Config; Task::Run(context, words of the arguments); Task::kStreams: it streams a weight;
// Task::kWaits: its body waits itself; Task::kTakes, kGives: a row;
// Task::kIsLeftOut: the next task does it, too.
// Task::kTiles: how many there are, if its words do not say it. Task::kFromLast: its first tile is the last block's.
// Products of fewer tiles than there are blocks leave the last ones out, which are then at their attention before the
// others.
template <class R, class Task>
__device__ __forceinline__ u32 FirstTile() {
  return Task::kFromLast ? R::kBlocks - 1 - blockIdx.x : blockIdx.x;
}

template <class Task, class = void>
inline constexpr u32 kTilesOf = 0;
template <class Task>
inline constexpr u32 kTilesOf<Task, decltype(static_cast<void>(Task::kTiles))> = Task::kTiles;

template <Role kRole, class R, class Task>
__device__ __forceinline__ void RunTask(RunPlace<R>& place, const u64* words) {
  constexpr int kThreads = Task::kThreads;
  constexpr bool kComputes = kRole == Role::kCompute;
  if constexpr (Task::kIsLeftOut) {
    if (kComputes && threadIdx.x == 0) place.shared.is_there[place.task & 1] = true;
  } else if constexpr (kComputes || Task::kStreams) {
    constexpr u32 kTiles = kTilesOf<Task>;
    const u32 x = kTiles > 0 ? kTiles : static_cast<u32>(words[0]), y = kTiles > 0 ? 1 : static_cast<u32>(words[1]);
    const u32 z = kTiles > 0 ? 1 : static_cast<u32>(words[2]);
    if constexpr (kComputes && !Task::kStreams) {
      if (threadIdx.x >= kThreads) {
        if constexpr (Task::kGives) ++place.given;
        return;
      }
    }
    bool is_there = true;
    for (u32 tile = FirstTile<R, Task>(); tile < x * y * z; tile += R::kBlocks) {
      place.is_there = false;
      const RunContext<R, kRole, Task> context = {place, words + 3, tile, x, y, z};
      if constexpr (kComputes && !Task::kWaits) context.Wait();
      Task::Run(context, words + 3);
      if constexpr (kComputes && !Task::kStreams) {
        if (tile + R::kBlocks < x * y * z) context.Sync();
      }
      is_there = is_there && place.is_there;
    }
    if constexpr (Task::kGives) ++place.given;
    if (kComputes && threadIdx.x == 0) place.shared.is_there[place.task & 1] = is_there;
  }
}

// Before the task that gives a row to this one.
template <class R, class Task>
__device__ __forceinline__ void RunAhead(RunPlace<R>& place, const u64* words) {
  const u32 x = static_cast<u32>(words[0]), y = static_cast<u32>(words[1]), z = static_cast<u32>(words[2]);
  const u32 tile = FirstTile<R, Task>();
  if (tile >= x * y * z) return;
  const RunContext<R, Role::kCompute, Task> context = {place, words + 3, tile, x, y, z};
  Task::Ahead(context, words + 3);
}

// ---- blocks that wait for each other -------------------------------------------------------------------------------
__device__ __forceinline__ void CountUp(u32* counter) {
  asm volatile("red.release.gpu.global.add.u32 [%0], 1;" ::"l"(counter) : "memory");
}
// Where memory has all that the block has written.
__device__ __forceinline__ void CountUpRelaxed(u32* counter) {
  asm volatile("red.relaxed.gpu.global.add.u32 [%0], 1;" ::"l"(counter) : "memory");
}
__device__ __forceinline__ u32 ReadCount(const u32* counter) {
  u32 count;
  asm volatile("ld.acquire.gpu.global.u32 %0, [%1];" : "=r"(count) : "l"(counter) : "memory");
  return count;
}

// A warp of a block, beside those that compute. The counter is 0 when a launch begins, and it leaves it so.
template <class R>
__device__ __forceinline__ void KeepStep(RunShared<R>& shared, u32* counter, const DeviceErrorSite& error,
                                         u32* launches, i64* all_clocks) {
  constexpr int kThreads = 32 * (R::kMathWarps + 2);
  const bool is_first = threadIdx.x % 32 == 0;
  u32 joined = 0;  // tasks that have waited for all blocks
  bool is_there = true;
  i64* clocks = nullptr;
#pragma unroll 1
  for (int task = 0; task < R::kTasks; ++task) {
    const bool joins = R::Joins(task);
    if (is_first) {
      if (joins) {
        ++joined;
        RunLimit<R>{&shared, task}.Until([&] { return ReadCount(counter) >= joined * R::kBlocks; }, RunWait::kBlocks);
      }
      ArriveAt(&shared.begun);
      if (joins) Stamp<R>(clocks, task, RunClocks::kBegun);
      if (task == 0) {
        shared.clocks = clocks = *all_clocks != 0 ? all_clocks : nullptr;
        StampBlock<R>(clocks, RunClocks::kBeginClock, RunClocks::kBeginTime);
      }
    }
    __syncwarp();
    SyncThreads<2, kThreads>();  // this block has done the task
    if (!is_first) continue;
    Stamp<R>(clocks, task, RunClocks::kDone);
    is_there = is_there && shared.is_there[task & 1];
    if (task + 1 < R::kTasks && R::Joins(task + 1)) {
      if (is_there) {
        CountUpRelaxed(counter);
      } else {
        CountUp(counter);
      }
      is_there = true;
    }
    Stamp<R>(clocks, task, RunClocks::kTold);
  }
  if (!is_first) return;
  if (const u32 late = shared.late; late != 0) (error + static_cast<int>(late % 8 - 1)).Raise(late / 8, blockIdx.x);
  const u32 before = atomicAdd(counter, 1u);
  if (before == (joined + 1) * R::kBlocks - 1) {
    *counter = 0;
    ++*launches;
  }
  StampBlock<R>(clocks, RunClocks::kEndClock, RunClocks::kEndTime);
}

template <Role kRole, class R>
__device__ __forceinline__ void RunTasks(RunPlace<R>& place, const u64* words) {
#pragma unroll 1
  for (; place.task < R::kTasks; ++place.task) {
    place.ring.wait.task = place.task;
    R::template Task<kRole>(R::Kind(place.task), place, words + R::First(place.task));
    if constexpr (kRole == Role::kCompute) SyncThreads<2, 32 * (R::kMathWarps + 2)>();
  }
}

// A warp that waits for nothing but memory: what tasks read besides rows and weights is asked for while the block does
// the task before. It keeps step with the block.
template <class R>
__device__ __forceinline__ void RunAheads(RunPlace<R>& place, const u64* words) {
#pragma unroll 1
  for (int task = 0; task < R::kTasks; ++task) {
    WaitAt(&place.shared.begun, task & 1);
    if (const int next = R::Next(task); next > 0) R::Ahead(R::Kind(next), place, words + R::First(next));
    __syncwarp();
    ArriveThreads<2, 32 * (R::kMathWarps + 2)>();
  }
}

// The first 32 words of `rows`: how many launches there were.
template <class R>
__device__ __forceinline__ void PersistentRun(const u64* words, u32* counter, const DeviceErrorSite& error, u32* rows,
                                              i64* clocks) {
  extern __shared__ __align__(1024) char memory[];
  __shared__ RunShared<R> shared;
  static_assert(R::kArenaBytes + R::kBodyBytes + R::kStages * R::kStageBytes <= R::kSharedBytes, "kSharedBytes");
  static_assert((R::kArenaBytes + R::kBodyBytes) % 128 == 0 && R::kStageBytes % 128 == 0, "copies to whole lines");
  RunPlace<R> place = {shared,
                       memory,
                       memory + R::kArenaBytes,
                       rows + 32,
                       *rows * R::kTasks,
                       {memory + R::kArenaBytes + R::kBodyBytes, shared.full, shared.empty, {&shared}}};
  if (threadIdx.x < R::kStages) {
    // Scales and zero points come with the first part of a stage.
    for (int part = 0; part < R::kParts; ++part) {
      InitBarrier(&shared.full[threadIdx.x * R::kParts + part], R::kHasParts && part == 0 ? 1 + 32 : 1);
    }
    InitBarrier(&shared.empty[threadIdx.x], R::kMathWarps);
    if (threadIdx.x == 0) {
      InitBarrier(&shared.begun, 1);
      shared.late = 0;
      shared.with_input = ~0u;
    }
    FenceBarriers();
  }
  SyncThreads<0, R::kThreads>();
  // Those that compute take the registers that the others do not need, of those that the block was launched with.
  constexpr int kOwn = R::kMathWarps <= 8 ? 40 : 32, kLaunched = 65536 / R::kThreads / 8 * 8;
  constexpr int kRest = (kLaunched * R::kThreads - 128 * kOwn) / (32 * R::kMathWarps) / 8 * 8;
  static_assert(R::kMathWarps % 4 == 0 && R::kThreads == 32 * (R::kMathWarps + 4), "whole warpgroups");
  const int warp = threadIdx.x / 32;
  if (warp < R::kMathWarps) {
    TakeRegisters<(kRest < 240 ? kRest : 240)>();
    RunTasks<Role::kCompute>(place, words);
    return;
  }
  GiveRegisters<kOwn>();
  if (warp == R::kMathWarps) {
    if (ElectThread()) RunTasks<Role::kStream>(place, words);
  } else if (warp == R::kMathWarps + 1) {
    KeepStep(shared, counter, error, rows, clocks);
  } else if (R::kHasParts && warp == R::kMathWarps + 2) {
    RunTasks<Role::kStreamParts>(place, words);
    WaitForAllCopies();
  } else if (warp == R::kMathWarps + 3) {
    RunAheads(place, words);
  }
}
#endif

}  // namespace llmc
