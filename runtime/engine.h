// Continuous batching: many requests share each step of one language model.
#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "runtime/executor.h"
#include "runtime/kv_pages.h"
#include "runtime/request.h"
#include "runtime/scheduler.h"
#include "runtime/text/tokenizer.h"

namespace llmc {

struct EngineOptions {
  // Tokens in one step: one for each request that generates, the rest for pieces of prompts. Larger: prompts are read
  // faster, and tokens of other requests wait longer meanwhile.
  int64_t max_tokens_per_step = 512;
  int64_t max_sequences = 16;          // requests that run at once; others wait. At most max_tokens_per_step
  int64_t num_pages = 0;               // KV cache pages to use; 0: all that the executor has
  std::vector<int32_t> eos_token_ids;  // end a request, unless it ignores them
};

struct EngineStats {
  int64_t steps = 0;
  int64_t prompt_tokens = 0;  // computed, again after a preemption too
  int64_t generated_tokens = 0;
  int64_t preemptions = 0;
  int64_t running = 0;
  int64_t waiting = 0;
  int64_t pages_in_use = 0;
};

// A request's tokens do not depend on what runs beside it, but for the rounding of the executor's sums.
//
// While a step runs, the engine prepares the next one (if the executor takes two at a time) and delivers the events of
// the last. It does not wait for the tokens of the step that runs: a request that ends there, by a stop token say, is
// computed one token further for nothing, and what that gives is dropped.
// One thread at a time.
class Engine {
 public:
  // `executor` must outlive the engine, and `tokenizer` too; without one (nullptr) events have no text.
  // InvalidArgument: an option is out of the executor's limits.
  static absl::StatusOr<std::unique_ptr<Engine>> Create(Executor* executor, const Tokenizer* tokenizer,
                                                        const EngineOptions& options);
  // Ends what is left without events.
  ~Engine();

  // The request waits for its first Step. InvalidArgument: a field is out of its range, or the prompt is too long.
  absl::StatusOr<RequestId> AddRequest(Request request, TokenCallback callback);
  // The last event says kCancelled. NotFound: there is no such request, or it is finished.
  absl::Status Cancel(RequestId id);

  // Starts the next steps of the model, as many as the executor takes at a time, waits for the oldest, then delivers
  // its events. A failure of one request is an event of that request; a failure of the executor is returned, after it
  // ended all requests of the step with kError.
  absl::Status Step();
  // Steps until no request is left, or the first error.
  absl::Status RunUntilIdle();

  bool idle() const { return live_.empty() && in_flight_.empty(); }
  // Whether a callback is running, which may not call Step.
  bool in_callback() const { return delivering_; }
  EngineStats stats() const;

 private:
  struct Live;

  Engine(Executor* executor, const Tokenizer* tokenizer, const EngineOptions& options);
  absl::Status CheckRequest(const Request& request) const;
  using Plan = std::vector<Scheduled>;
  // Plans a step and submits it. False: there is nothing to do.
  absl::StatusOr<bool> SubmitStep();
  absl::Status Submit(const Plan& plan);
  absl::Status CollectStep();
  // Ends the requests of a step that failed. Ok if none is left: the step came after the one that ended them.
  absl::Status Fail(const Plan& plan, const absl::Status& status);
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
  KvPages pages_;
  Scheduler scheduler_;
  std::map<RequestId, std::unique_ptr<Live>> live_;
  std::deque<Plan> in_flight_;  // oldest first
  std::deque<Pending> events_;
  bool delivering_ = false;
  RequestId next_id_ = 1;
  EngineStats stats_;
};

// Adds the requests and steps until all are finished. InvalidArgument names the request that was refused; none ran
// then. FailedPrecondition: called from a callback.
absl::StatusOr<std::vector<Completion>> Generate(Engine* engine, std::vector<Request> requests);

}  // namespace llmc
