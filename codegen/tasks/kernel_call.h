// A kernel as codegen chooses it: which template of kernels/, with which constants, on what. select.cc makes these,
// emit.cc turns one into source.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <initializer_list>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "ir/graph.h"
#include "ir/size.h"
#include "kernels/layout/base.h"

namespace llmc {

// Data for which the language has no result (kernels/layout/device_error.h).
struct KernelDeviceError {
  std::string what;            // "gather: index $0 is not in an axis of $1"
  const Node* node = nullptr;  // that has no result; or
  std::string label;           // what else the kernel was at
};

// What a parameter is at run time.
struct KernelArg {
  const Value* value = nullptr;  // an operand or result; else one of:
  bool is_dim = false;
  std::string dim;    // passed as i64: an expression of runtime/plan/dim_expression.h
  double number = 0;  // passed as f32
  bool is_scratch = false;
  std::string persistent;  // a name
  Size bytes = 0;          // of persistent memory, or of scratch up to the end of what this argument takes of it
  int64_t offset = 0;      // of that in the scratch, in bytes
  bool is_step_messages = false;
  bool is_device_error_record = false;
  // Passed as a map of tiles of so many rows of that memory, a matrix of so many rows, or, if that is empty, of all
  // that it has; 0: as a pointer.
  int64_t tile_rows = 0, row_bytes = 0;
  std::string rows;
  bool read_once = false;                        // a matrix of which each tile is copied once
  std::vector<KernelDeviceError> device_errors;  // passed as i64: the number of the first in the plan

  static KernelArg Of(const Value* value) { return {.value = value}; }
  static KernelArg OfSize(std::string size) { return {.is_dim = true, .dim = std::move(size)}; }
  static KernelArg OfNumber(double number) { return {.number = number}; }
  // Memory for what passes between the blocks of a call, or from one call to the next of the same node: undefined at
  // first. One for each call; the calls of a node get the same.
  static KernelArg OfScratch(Size bytes, int64_t offset = 0) {
    return {.is_scratch = true, .bytes = std::move(bytes), .offset = offset};
  }
  // Memory that all programs of a target share by its name: zero when the plan is loaded, then as the last call left
  // it.
  static KernelArg OfPersistent(std::string name, int64_t bytes) {
    return {.persistent = std::move(name), .bytes = Size(bytes)};
  }
  // kCounterBytes that are zero when a call begins, and that it leaves so. Calls share them, so that two of them run
  // one after the other.
  static KernelArg OfCounters() { return OfPersistent("counters", kCounterBytes); }
  // The host's memory, from which steps of language models come.
  static KernelArg OfStepMessages() { return {.is_step_messages = true}; }
  // For products of warpgroups, which take tiles of bytes (kernels/layout/tile_map.h).
  static KernelArg OfTiles(const Value* matrix, const Size& rows, int64_t row_bytes, int64_t tile_rows) {
    return Of(matrix).AsTiles(rows, row_bytes, tile_rows);
  }
  KernelArg AsTiles(const Size& of_rows, int64_t of_row_bytes, int64_t of_tile_rows) const {
    KernelArg map = *this;
    map.tile_rows = of_tile_rows;
    map.row_bytes = of_row_bytes;
    map.rows = of_rows.ToString();
    return map;
  }
  KernelArg AsAllTiles(int64_t of_row_bytes, int64_t of_tile_rows) const {
    KernelArg map = *this;
    map.tile_rows = of_tile_rows;
    map.row_bytes = of_row_bytes;
    return map;
  }
  KernelArg ReadOnce() const {
    KernelArg map = *this;
    map.read_once = true;
    return map;
  }
};

struct KernelParam {
  std::string type;  // in the source: "const llmc::bf16*", "llmc::i64", "float"
  std::string name;
  KernelArg arg;

  bool writes() const { return absl::EndsWith(type, "*") && !absl::StartsWith(type, "const "); }
};

struct KernelCall {
  std::string header;                                      // in kernels/, without .cuh: "norm/rms_norm"
  std::string function;                                    // "RmsNorm", a body (kernels/common/context.cuh)
  std::vector<std::pair<std::string, std::string>> types;  // {"T", "llmc::bf16"}
  std::vector<std::pair<std::string, int64_t>> constants;  // {"kDim", 4096}
  std::string apply;                                       // the body of elementwise kernels, a whole function
  std::vector<std::string> apply_notes;  // beside its lines, for readers: what they are in the language; or none
  std::string arguments;                 // of the function, after the context; empty: the parameters
  std::vector<KernelParam> params;
  std::array<Size, 3> grid = {Size(1), Size(1), Size(1)};  // blocks
  int threads = 256;                                       // of a block; becomes kThreads
  int shared_bytes = 0;                                    // dynamic shared memory of a block
  // What a block uses of that, if the rest only keeps others off its multiprocessor; 0: all. As a part of a launch it
  // takes no more.
  int used_bytes = 0;
  int UsedBytes() const { return used_bytes > 0 ? used_bytes : shared_bytes; }
  // How many blocks of it registers of a multiprocessor are for, if the kernel says so, or how its threads share those
  // of a block: then it is no part of a launch.
  int blocks_of_sm = 0;
  // Neighbours along the first axis of the grid that run at the same time and read each other's shared memory; 0: none.
  // Of a call with blocks_of_sm.
  int cluster = 0;
  // Compiled for a GPU that has less shared memory than that, it needs no more than there is.
  bool adapts = false;
  // May start while its predecessor ends. The kernel waits itself before it reads what others wrote, or writes what
  // they may read: see kernels/README.md.
  bool pdl = false;
  // Its body says when its successor may start, by LaunchNext() of its context; else it may when this one has begun.
  bool launches_next = false;
  // Of a product: its x, for whose codes (CodeType) what makes it could write it in order (ProgramScope::ordered).
  const Value* reads_in_order = nullptr;
  std::string order_codes;
  bool can_order = false;  // its result can be written so
  // The most registers of a thread; 0: as many as the compiler likes, for a block of so many threads.
  int registers = 0;

  // Bodies that the launch runs side by side, none of which needs another: the launch has no body of its own then, and
  // its parameters are theirs, as AddPart names them.
  std::vector<KernelCall> parts;

  // What the call is as a task of a persistent launch (RunCall); absent: it cannot be one.
  struct Task {
    int body_bytes = 0;  // of shared memory, which the body asks its context for by type
    // Of the dynamic shared memory, what the body needs beside the ring of stages; less of it with fewer threads: the
    // forms to choose from, the fastest first. Their bytes become kSharedBytes; `constants` are in place of the call's,
    // or beside them.
    struct Form {
      int threads = 0, arena_bytes = 0;
      std::vector<std::pair<std::string, int64_t>> constants = {};
    };
    std::vector<Form> forms;
    // Of bodies that stream a weight: bytes of a stage, and warps that multiply. 0: it streams none.
    int stage_bytes = 0, math_warps = 0;
    bool has_parts = false;  // of which a warp of its own copies scales or zero points

    // What it can take as a tagged row (kernels/common/tagged_row.cuh) if the task before gives it, and what it can
    // give, of so many numbers. With heads of queries come those of keys and values of the same token.
    // Several values are one behind the other.
    std::vector<const Value*> takes, gives;
    int64_t given_numbers = 0;
    // Another value that it reads of what tasks have made: by the block that has made it, if it makes the same columns.
    const Value* addend = nullptr;
    // Of its result, and of them what a block makes, one block after the other; 0: otherwise.
    int64_t columns = 0, block_columns = 0;
    int64_t column_bytes = 0;  // of the weight that it streams
    // Of a part of a call: how many there are of it in a run, if not as many as in a launch of the call.
    int64_t tiles = 0;
    bool is_attention = false;
    bool turns_heads = false;  // it makes of heads what attention can make of them itself
    // Of parts that turn heads: one body that does so, of the call's parameters, for attention to do it; else the call.
    std::shared_ptr<const KernelCall> as_one;

    // What becomes of these in a run.
    bool has_taken = false, has_given = false, is_left_out = false;
    std::shared_ptr<const KernelCall> before;  // a task that is left out, what it does is done by this one
  };
  std::optional<Task> task;

  std::vector<std::string> sizes;  // that SizeText has made parameters of: d0, d1, …

  // A size in emitted code: a number, or a parameter.
  std::string SizeText(const Size& size);
  std::string SizesText(const SizeList& list);  // "d0, 64"

  void AddConstants(std::initializer_list<std::pair<std::string, int64_t>> more) {
    constants.insert(constants.end(), more);
  }
  void AddParams(std::initializer_list<KernelParam> more) { params.insert(params.end(), more); }
  // The blocks of `part` come behind those of the parts before it.
  void AddPart(KernelCall part);
  // For the entry of its kernel: the last part of the header, or those of its parts.
  std::string Name() const;
};

// Many tasks as one launch (kernels/common/persistent_run.cuh): of each what it is, and which of the words of the
// launch are its tiles and arguments.
struct RunCall {
  std::vector<KernelCall> kinds;
  struct Item {
    int kind = 0;
    int64_t first_word = 0;
    int next = 0;  // the task that takes its row and does something ahead of it; 0: none
  };
  std::vector<Item> tasks;
  int64_t words = 0;
  int64_t row_words = 0;  // of the longest tagged row
  int blocks = 0;         // one for each multiprocessor
  int math_warps = 0;     // that compute
  bool has_parts = false;
  int stages = 0, stage_bytes = 0, body_bytes = 0, arena_bytes = 0;

  int Threads() const { return 32 * (math_warps + 4); }
  // Of tagged rows, behind a line that counts launches.
  int64_t RowBytes() const { return 4 * (32 + 3 * row_words); }
  // Whether a task begins when all blocks have done those before.
  bool Joins(size_t task) const {
    const KernelCall::Task& kind = *kinds[static_cast<size_t>(tasks[task].kind)].task;
    return task > 0 && !kind.has_taken && !kind.is_left_out;
  }
  int SharedBytes() const { return arena_bytes + body_bytes + stages * stage_bytes; }
  // Parts of a stage of some 32 KiB, and how many of them are copied at a time: more fill memory no better, and all
  // other reads wait behind them. Measured with floats of 16 bits and with int4.
  int Parts() const { return has_parts ? 1 : 2; }
  int InFlight() const { return std::min(stages * Parts(), has_parts ? 2 : 3); }
};
// Words of a task before its arguments: its tiles.
inline constexpr int kTileWords = 3;

// Matrix products through cuBLASLt: out[m, n] = x[m, k] * weight + bias + residual, rounded once, `batch`
// times.
struct GemmCall {
  const Value* out = nullptr;
  const Value* x = nullptr;
  const Value* weight = nullptr;        // absent: the call before has made it in the scratch memory of the node
  std::optional<int64_t> x_in_scratch;  // x as well, at this offset in bytes
  Dim m, n, k;
  bool transposed = true;  // weight is [n, k], else [k, n]
  Size batch = 1;
  Dim x_stride, weight_stride;  // in elements, from one product to the next
  // Of single products.
  const Value* bias = nullptr;      // [n]
  const Value* residual = nullptr;  // as out
  bool gelu_tanh = false;           // of that sum
  bool gelu = false;                // likewise; cuBLASLt has none
  // Of factors of f8: one number each, or one for each row of x and column of the result; f32, multiplied to the sums.
  const Value* x_scale = nullptr;
  bool x_scale_in_scratch = false;  // the call before has repeated it for each row in the scratch memory of the node
  const Value* weight_scale = nullptr;
};

struct CopyCall {
  const Value* to = nullptr;
  const Value* from = nullptr;
  int64_t to_offset = 0;  // in bytes
  Size bytes = 0;
};

struct EmittedKernel {
  std::string source;              // complete, for NVRTC or nvcc
  std::vector<std::string> notes;  // beside its lines, as apply_notes
};
// Nothing in the source but `entry` says where it is used: calls that need the same kernel have the same bytes.
EmittedKernel EmitKernel(const KernelCall& call, const std::string& entry);
std::string EmitRun(const RunCall& call, const std::string& entry);
// All that distinguishes a task from others that are not of its kind.
std::string TaskText(const KernelCall& call);

// "llmc::bf16", "float", "bool", …
std::string DeviceType(DType dtype);
std::string DeviceType(const Value* value);  // of its elements

}  // namespace llmc
