// The passes, in order, and the driver that runs them.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "ir/graph.h"
#include "ir/verify.h"
#include "passes/driver/ledger.h"

namespace llmc {

// Whether a decoder over whole sequences becomes a program with a paged cache; see paginate/paginate.cc.
enum class Pagination : uint8_t {
  kNever,
  kWhereProven,  // else the model stays as it is, and the ledger says why
  kRequired,     // else an error says why
};

// What a pass did; number 0, "import": before the first.
struct PassRun {
  int number = 0;
  absl::string_view pass;
  double seconds = 0;  // of the pass, what follows it and its checks, without its dump
  const Model* model = nullptr;
};

// How many tokens the pages of paged states hold, where that is not what they have.
struct PageSizeWishes {
  int64_t all = 0;                          // in pools that are not named; 0: as they are
  std::map<std::string, int64_t> of_pools;  // by the dim that counts the pages

  bool empty() const { return all == 0 && of_pools.empty(); }
  std::vector<std::string> Flags() const;  // as --page-size takes them
};

struct PipelineOptions {
  std::optional<DType> dtype;     // the type that floats get (retype.cc: which); without it `retype` does nothing
  std::string from;               // the first pass to run, by name or number ("4", "04", "fuse"); empty: the first
  std::string stop_after;         // the last pass to run; empty: the last. "0" or "import": none
  std::vector<std::string> skip;  // passes to leave out, by name or number
  std::string dump_dir;           // where dumps go; empty: nowhere. Created if it is absent
  // Flags with which a dump finds its weights again, if it has any; its first line shows them.
  std::vector<std::string> weight_flags = {};
  std::string target;  // shown in index.txt
  // Evaluates a small instance before and after each pass and compares. Needs the weights' contents.
  bool check_numerics = false;
  Pagination pagination = Pagination::kWhereProven;
  PageSizeWishes page_sizes = {};
  std::string kv = {};  // how the KV cache is stored (paginate/kv_encoding.h); empty: as it is
  std::function<void(const PassRun&)> after = {};  // called with what was imported, and after each pass that ran
};

// What a pass sees besides the model.
struct PassContext {
  const PipelineOptions* options = nullptr;
  Ledger* ledger = nullptr;  // never null
};

struct Pass {
  absl::string_view name;
  absl::string_view summary;
  absl::Status (*run)(Model* model, const PassContext& context);
  Phase phase;  // what must hold afterwards
};

// Number 0 is the import; the first pass has number 1.
absl::Span<const Pass> Pipeline();

// Runs the passes over a model that has been imported (or read from a dump). After each it removes dead ops, infers
// types again, verifies, and writes a dump. Errors begin with "pass 04 fuse: ". `ledger` may be null.
absl::Status RunPipeline(Model* model, const PipelineOptions& options, Ledger* ledger);

// The number of a pass given by name or number, or an error that lists them all.
absl::StatusOr<int> ParsePassNumber(absl::string_view text);
// The same for PipelineOptions::from, which may also be the number after the last pass: the last dump resumes there.
absl::StatusOr<int> ParseFirstPassNumber(absl::string_view text);

// Removes nodes that write no state and of whose results nobody uses anything, their sizes included; then unused
// weights. Returns how many nodes were removed.
int64_t RemoveDeadOps(Model* model);

}  // namespace llmc
