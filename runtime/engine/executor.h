// What runs the steps of a language model: on the host, on a device, or in a test.
#pragma once

#include <atomic>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "base/step_contract.h"
#include "runtime/engine/sampler.h"

namespace llmc {

// Which rows of logits a chunk of tokens gives.
enum class WantedLogits : uint8_t { kNone, kLast, kAll };

// Stands in Chunk::ids for the token that the sequence sampled in the last step that it was part of. The caller need
// not know it yet: steps are planned while that step still runs. If sampling fails there, it is any token.
constexpr int32_t kSampledToken = -1;

// How the token after a chunk is chosen.
struct Sampling {
  SamplingParams params;
  uint64_t index = 0;                // the token's number in its request
  std::optional<int64_t> log_probs;  // the number of likeliest tokens that come with the token, as in Request
  // The sequence so far, read only if `params` has penalties and this is the sequence's first sampled token since it
  // began. The executor counts what it samples from then on.
  absl::Span<const int32_t> history;
  int64_t prompt_size = 0;  // tokens of the history that were not sampled
};

// The next tokens of one sequence: a piece of its prompt, or one token that was sampled.
struct Chunk {
  int64_t sequence = 0;           // a number that names the sequence from its first chunk to EndSequence
  bool begins = false;            // the sequence's first chunk, or its first after it lost its pages
  absl::Span<const int32_t> ids;  // at least one
  // Of ids[0]. The tokens before it were in earlier steps: of this sequence, or of others that wrote these pages.
  int64_t position = 0;
  PoolTables pages;  // the sequence's page tables; each covers at least position + ids.size() tokens
  WantedLogits logits = WantedLogits::kNone;  // rows for the caller
  const Sampling* sampling = nullptr;         // if set, a token is sampled after the last of `ids`
};

// All that a page holds.
struct PageCopy {
  size_t pool = 0;
  int32_t from = 0, to = 0;
};

struct StepInput {
  // Done before the step, after all earlier steps, one after the other. Only if ExecutorLimits::shares_pages.
  std::vector<PageCopy> copies;
  std::vector<Chunk> chunks;  // of different sequences
};

// Rows of f32, in the order of the chunks.
struct Logits {
  // Chunks (by their index) that failed alone: they gave no rows, and their sequences cannot go on.
  std::map<size_t, absl::Status> failed;
  int64_t rows = 0;
  int64_t vocab_size = 0;
  std::vector<float> values;  // [rows, vocab_size]

  absl::Span<const float> row(int64_t r) const {
    return absl::MakeConstSpan(values).subspan(r * vocab_size, vocab_size);
  }
};

struct StepResult {
  Logits logits;                      // of the chunks that want some
  std::vector<SampledToken> sampled;  // of each chunk; of no meaning for those that do not sample or failed
};

// Pages of the cache that are given out together: those of all layers, or of the layers with one window.
struct PoolLimits {
  int64_t num_pages = 0;  // page numbers are [0, num_pages)
  int64_t page_size = 0;  // tokens in a page; where pools have pages of several sizes, these are powers of two
  // Positions up to its own that a token sees at most; 0: all. Pages with none that a step sees are not read.
  int64_t window = 0;
};

struct ExecutorLimits {
  int64_t vocab_size = 0;
  std::vector<PoolLimits> pools = {{}};
  int64_t max_context = 0;  // tokens of a sequence
  int64_t max_step_tokens = 0;
  int64_t max_sequences = 0;  // in one step
  // Rows of logits in one step, at least max_sequences; 0: as many as tokens.
  int64_t max_step_logits = 0;
  int64_t max_steps_in_flight = 1;  // submitted and not collected
  // Pages hold all that is kept of their tokens, so that a sequence can begin after what others left in its pages.
  bool shares_pages = false;
};

// Steps run one after the other in the order of Submit. So a page may get a new owner, and a sequence may end, while
// steps that use it are still in flight: whatever they write is written before the new owner writes.
// One thread at a time.
class Executor {
 public:
  Executor() = default;
  Executor(const Executor&) = delete;
  Executor& operator=(const Executor&) = delete;
  virtual ~Executor() = default;
  virtual const ExecutorLimits& limits() const = 0;
  // Begins a step; nothing that `input` refers to is needed after the return. InvalidArgument if `input` breaks a limit
  // or too many steps are in flight, with no state changed. After any other error, here or from Collect, the pages that
  // this step writes hold anything, and its sequences cannot go on.
  virtual absl::Status Submit(const StepInput& input) = 0;
  // Waits for the oldest step in flight, which then is no more, whatever came of it. FailedPrecondition: there is none.
  // What went wrong with some chunks only is in Logits::failed.
  virtual absl::StatusOr<StepResult> Collect() = 0;
  // The sequence will not be continued; its pages may belong to others from now on.
  virtual void EndSequence(int64_t /*sequence*/) {}

  // Submit and Collect, for callers that have no other step in flight.
  absl::StatusOr<StepResult> RunStep(const StepInput& input);

  // Whoever gives out the pages of the cache asks first. An engine has them until it is destroyed; `live_requests` says
  // whether it uses them. FailedPrecondition: there is an engine.
  absl::Status BeginEngine(const std::atomic<int64_t>* live_requests);
  void EndEngine() { live_requests_ = nullptr; }
  // For others than the engine, before they write to pages, which may be all. FailedPrecondition: an engine has live
  // requests, whose cache would be overwritten.
  absl::Status BorrowPages();
  // How often that was allowed: what an engine kept in its pages before is gone.
  int64_t num_loans() const { return num_loans_; }

 private:
  const std::atomic<int64_t>* live_requests_ = nullptr;  // of the engine, if there is one
  int64_t num_loans_ = 0;
};

// An executor whose Submit does all the work: of logits, from which the reference sampler chooses.
class SynchronousExecutor : public Executor {
 public:
  absl::Status Submit(const StepInput& input) final;
  absl::StatusOr<StepResult> Collect() final;
  void EndSequence(int64_t sequence) override { histories_.erase(sequence); }

 protected:
  // `input` has passed CheckStepInput, holds no kSampledToken, and asks for logits only.
  virtual absl::StatusOr<Logits> ComputeLogits(const StepInput& input) = 0;

 private:
  // What is kept of a sequence that samples: the last token, and counts if it has penalties.
  struct History {
    int32_t last = 0;
    bool is_counted = false;
    TokenCounts counts;
  };
  absl::StatusOr<StepResult> Run(const StepInput& input);
  absl::StatusOr<SampledToken> Sample(const Chunk& chunk, absl::Span<const float> logits);

  std::map<int64_t, History> histories_;
  std::optional<absl::StatusOr<StepResult>> result_;  // of the step in flight
};

// InvalidArgument, naming the chunk, if the input breaks a limit: for executors to call first.
absl::Status CheckStepInput(const ExecutorLimits& limits, const StepInput& input);

// Rows of logits that a chunk needs, for the caller or to sample from.
int64_t RowsOf(const Chunk& chunk);

int64_t PagesFor(int64_t tokens, int64_t page_size);
// InvalidArgument if a pool of at most so many pages does not hold as many tokens as one page of the largest size, in
// which caches are counted: there would be room for none.
absl::Status CheckHoldsPage(absl::string_view pool, int64_t pages, int64_t page_size, int64_t largest);

PageSizes PageSizesOf(absl::Span<const PoolLimits> pools);
// Pages of a pool that hold as many tokens as one of the largest page of all pools. Whoever gives one number of pages
// for all pools counts in those.
int64_t PagesInLargest(const PoolLimits& pool, absl::Span<const PoolLimits> pools);

// Tokens of the longest sequence that can go through the cache alone.
int64_t MaxCachedTokens(const ExecutorLimits& limits);

// Pages that a pool with this window and page size needs at most, beside pools without a window: for all sequences that
// a step takes, and for the tokens of `max_steps_in_flight` steps.
int64_t PagesOfWindow(const PoolLimits& pool, const ExecutorLimits& limits);

}  // namespace llmc
