// Continuous batching: many requests share each step of one language model.
#pragma once

#include <atomic>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "runtime/engine/executor.h"
#include "runtime/engine/page_pool.h"
#include "runtime/engine/request.h"
#include "runtime/engine/scheduler.h"
#include "runtime/text/tokenizer.h"

namespace llmc {

struct EngineOptions {
  // Tokens in one step: one for each request that generates, the rest for pieces of prompts. Larger: prompts are read
  // faster, and tokens of other requests wait longer meanwhile.
  int64_t max_tokens_per_step = 512;
  int64_t max_sequences = 16;  // requests that run at once; others wait. At most max_tokens_per_step
  // KV cache pages to use, of each pool; 0: all that the executor has. Pools with smaller pages use as many tokens.
  int64_t num_pages = 0;
  std::vector<int32_t> eos_token_ids;  // end a request, unless it ignores them
  // Requests begin behind the longest prefix, in whole pages, that earlier ones left in the KV cache, where the
  // executor can; without, only those that name a parent do. Whoever may send requests can learn by their times whether
  // others sent such a prefix before.
  bool prefix_cache = true;
};

struct EngineStats {
  int64_t steps = 0;
  int64_t prompt_tokens = 0;         // computed, again after a preemption too
  int64_t cached_prompt_tokens = 0;  // found in the prefix cache or with a parent, after a preemption too
  int64_t generated_tokens = 0;
  int64_t preemptions = 0;
  int64_t running = 0;
  int64_t waiting = 0;
  int64_t pages_in_use = 0;  // of all pools
  int64_t pages_cached = 0;  // that no request uses, kept for those that begin with the same tokens
  int64_t evictions = 0;     // of such pages
};

// A request's tokens do not depend on what runs beside it, but for the rounding of the executor's sums.
//
// While a step runs, the engine prepares the next one (if the executor takes two at a time) and delivers the events of
// the last. It does not wait for the tokens of the step that runs: a request that ends there, by a stop token say, is
// computed one token further for nothing, and what that gives is dropped.
//
// AddRequest, Cancel and idle may be called by any thread at any time between Create and the destructor: what they ask
// for is queued and done by Step. Everything else, the callbacks too, is for one thread at a time: the one that steps.
class Engine {
 public:
  // `executor` must outlive the engine, and `tokenizer` too; without one (nullptr) events have no text.
  // InvalidArgument: an option is out of the executor's limits. FailedPrecondition: the executor has an engine already.
  static absl::StatusOr<std::unique_ptr<Engine>> Create(Executor* executor, const Tokenizer* tokenizer,
                                                        const EngineOptions& options);
  // Ends what is left without events.
  ~Engine();

  // The request waits for its first Step; requests of several threads come in any order, those of one thread in its
  // order. InvalidArgument: a field is out of its range, or the prompt is too long.
  // `parent`: an earlier request with the same prompt, of which this is another sample; it computes the prompt for
  // both, as far as the executor can share pages.
  absl::StatusOr<RequestId> AddRequest(Request request, TokenCallback callback,
                                       std::optional<RequestId> parent = std::nullopt);
  // The next Step, or the one that runs, ends the request; the last event says kCancelled, unless the request finishes
  // in that step by itself. NotFound: there is no such request, or it is finished or cancelled.
  absl::Status Cancel(RequestId id);

  // Takes what is queued, starts the next steps of the model, as many as the executor takes at a time, waits for the
  // oldest, then delivers its events. A failure of one request is an event of that request; a failure of the executor
  // is returned, after it ended all requests of the step with kError. FailedPrecondition: called from a callback, or
  // while another thread is in it.
  absl::Status Step();
  // Steps until no request is left, or the first error.
  absl::Status RunUntilIdle();

  // Whether every request has ended and its last event was delivered. Between steps: whether Step has nothing to do.
  bool idle() const { return unfinished_ == 0; }
  // Whether a callback is running, which may not call Step.
  bool in_callback() const { return delivering_; }
  EngineStats stats() const;

 private:
  struct Live;

  Engine(Executor* executor, const Tokenizer* tokenizer, const EngineOptions& options);
  absl::Status CheckRequest(const Request& request) const;
  // Begins and ends the requests that threads asked for.
  void TakeQueue();
  void Begin(RequestId id, std::unique_ptr<Live> live);
  absl::Status StepOnce();
  // Plans a step and submits it. False: there is nothing to do.
  absl::StatusOr<bool> SubmitStep();
  absl::Status Submit(const StepPlan& plan);
  absl::Status CollectStep();
  // Ends the requests of a step that failed. Ok if none is left: the step came after the one that ended them.
  absl::Status Fail(absl::Span<const Scheduled> chunks, const absl::Status& status);
  void TakeToken(RequestId id, SampledToken sampled);
  bool IsStopToken(const Request& request, int32_t token) const;
  // Queues the last event, and takes the request out.
  void Finish(RequestId id, FinishReason reason, TokenEvent event);
  void Deliver();

  struct Pending {
    std::shared_ptr<const TokenCallback> callback;
    TokenEvent event;
  };

  Executor* executor_;
  const Tokenizer* tokenizer_;
  EngineOptions options_;
  PagePool pool_;
  int64_t num_loans_;  // of the executor's pages, when the pool last forgot what was in them
  Scheduler scheduler_;
  std::map<RequestId, std::unique_ptr<Live>> live_;
  std::deque<std::vector<Scheduled>> in_flight_;  // oldest first
  std::deque<Pending> events_;
  bool delivering_ = false;
  std::atomic<bool> stepping_ = false;
  EngineStats stats_;
  std::atomic<int64_t> unfinished_ = 0;  // requests, queued ones too

  // What any thread may touch.
  mutable std::mutex mutex_;
  RequestId next_id_ = 1;
  std::set<RequestId> cancellable_;  // requests that are neither finished nor cancelled
  std::vector<std::pair<RequestId, std::unique_ptr<Live>>> added_;
  std::vector<RequestId> cancelled_;
};

// Adds the requests and steps until all are finished. InvalidArgument names the request that was refused; none ran
// then. FailedPrecondition: called from a callback.
absl::StatusOr<std::vector<Completion>> Generate(Engine* engine, std::vector<Request> requests);

}  // namespace llmc
