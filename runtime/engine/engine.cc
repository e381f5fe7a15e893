#include "runtime/engine/engine.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "absl/algorithm/container.h"
#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "runtime/engine/stop_strings.h"
#include "runtime/text/utf8.h"

namespace llmc {
namespace {

constexpr size_t kMaxStopStrings = 256;
constexpr size_t kMaxStopBytes = 4096;

absl::Status CheckOptions(const ExecutorLimits& limits, const EngineOptions& options) {
  auto check = [](absl::string_view name, int64_t value, int64_t low, int64_t high) {
    if (value >= low && value <= high) return absl::OkStatus();
    return absl::InvalidArgumentError(
        absl::StrCat("engine option ", name, " is ", value, ", must be in [", low, ", ", high, "]"));
  };
  absl::Status status = check("max_tokens_per_step", options.max_tokens_per_step, 1, limits.max_step_tokens);
  status.Update(
      check("max_sequences", options.max_sequences, 1, std::min(limits.max_sequences, options.max_tokens_per_step)));
  int64_t most_pages = 0;
  for (const PoolLimits& pool : limits.pools) {
    if (pool.page_size < 1) return absl::InternalError("the executor has a pool whose pages hold no tokens");
  }
  for (const PoolLimits& pool : limits.pools) {
    most_pages = std::max(most_pages, PagesFor(pool.num_pages, PagesInLargest(pool, limits.pools)));
  }
  status.Update(check("num_pages", options.num_pages, 0, most_pages));
  return status;
}

absl::Status CheckStopStrings(const Request& request, bool has_tokenizer) {
  const std::vector<std::string>& stops = request.stop_strings;
  if (stops.empty()) return absl::OkStatus();
  if (!has_tokenizer) return absl::InvalidArgumentError("stop strings need a tokenizer, and this model has none");
  if (stops.size() > kMaxStopStrings) {
    return absl::InvalidArgumentError(absl::StrCat(stops.size(), " stop strings, at most ", kMaxStopStrings));
  }
  for (const std::string& stop : stops) {
    if (stop.empty()) return absl::InvalidArgumentError("a stop string is empty");
    if (stop.size() > kMaxStopBytes) {
      return absl::InvalidArgumentError(absl::StrCat("a stop string is longer than ", kMaxStopBytes, " bytes"));
    }
    if (!IsValidUtf8(stop)) return absl::InvalidArgumentError("a stop string is not valid UTF-8");
  }
  return absl::OkStatus();
}

absl::Status CheckIds(absl::string_view what, absl::Span<const int32_t> ids, int64_t vocab_size) {
  for (size_t i = 0; i < ids.size(); ++i) {
    if (ids[i] < 0 || ids[i] >= vocab_size) {
      return absl::InvalidArgumentError(
          absl::StrCat(what, " ", i, " is ", ids[i], ", the vocabulary has [0, ", vocab_size, ")"));
    }
  }
  return absl::OkStatus();
}

// What the engine uses of an executor.
ExecutorLimits Within(ExecutorLimits limits, const EngineOptions& options) {
  limits.max_step_tokens = options.max_tokens_per_step;
  limits.max_sequences = options.max_sequences;
  for (PoolLimits& pool : limits.pools) {
    if (options.num_pages == 0) continue;
    pool.num_pages = std::min(pool.num_pages, options.num_pages * PagesInLargest(pool, limits.pools));
  }
  return limits;
}

}  // namespace

// A request that is not finished. Its tokens are the scheduler's.
struct Engine::Live {
  Request request;
  std::optional<RequestId> parent;
  std::shared_ptr<const TokenCallback> callback;
  std::optional<StreamDecoder> decoder;
  StopStrings stop_strings{{}};
};

absl::StatusOr<std::unique_ptr<Engine>> Engine::Create(Executor* executor, const Tokenizer* tokenizer,
                                                       const EngineOptions& options) {
  RETURN_IF_ERROR(CheckOptions(executor->limits(), options));
  std::unique_ptr<Engine> engine(new Engine(executor, tokenizer, options));
  if (absl::Status status = executor->BeginEngine(&engine->unfinished_); !status.ok()) {
    engine->executor_ = nullptr;
    return status;
  }
  return engine;
}

Engine::Engine(Executor* executor, const Tokenizer* tokenizer, const EngineOptions& options)
    : executor_(executor),
      tokenizer_(tokenizer),
      options_(options),
      pool_(Within(executor->limits(), options).pools, options.prefix_cache && executor->limits().shares_pages),
      num_loans_(executor->num_loans()),
      scheduler_(Within(executor->limits(), options), &pool_) {}

Engine::~Engine() {
  if (executor_ == nullptr) return;  // Create failed
  while (!in_flight_.empty()) {
    executor_->Collect().IgnoreError();
    in_flight_.pop_front();
  }
  for (const auto& [id, live] : live_) executor_->EndSequence(id);
  executor_->EndEngine();
}

absl::Status Engine::CheckRequest(const Request& request) const {
  const int64_t vocab_size = executor_->limits().vocab_size;
  if (request.max_new_tokens < 1) {
    return absl::InvalidArgumentError(
        absl::StrCat("max_new_tokens is ", request.max_new_tokens, ", must be at least 1"));
  }
  if (request.log_probs.has_value() && (*request.log_probs < 0 || *request.log_probs > vocab_size)) {
    return absl::InvalidArgumentError(
        absl::StrCat("log_probs is ", *request.log_probs, ", must be in [0, ", vocab_size, "]"));
  }
  absl::Status status = scheduler_.CheckPrompt(static_cast<int64_t>(request.prompt_ids.size()));
  status.Update(CheckSamplingParams(request.sampling));
  status.Update(CheckIds("prompt token", request.prompt_ids, vocab_size));
  status.Update(CheckStopStrings(request, tokenizer_ != nullptr));
  return status;
}

absl::StatusOr<RequestId> Engine::AddRequest(Request request, TokenCallback callback, std::optional<RequestId> parent) {
  RETURN_IF_ERROR(CheckRequest(request));
  auto live = std::make_unique<Live>();
  live->parent = parent;
  live->callback = std::make_shared<const TokenCallback>(std::move(callback));
  live->stop_strings = StopStrings(request.stop_strings);
  if (tokenizer_ != nullptr) live->decoder.emplace(*tokenizer_, /*skip_special_tokens=*/true);
  live->request = std::move(request);
  const std::lock_guard<std::mutex> lock(mutex_);
  const RequestId id = next_id_++;
  cancellable_.insert(id);
  added_.emplace_back(id, std::move(live));
  ++unfinished_;
  return id;
}

absl::Status Engine::Cancel(RequestId id) {
  const std::lock_guard<std::mutex> lock(mutex_);
  if (cancellable_.erase(id) == 0) {
    return absl::NotFoundError(absl::StrCat("request ", id, " does not exist, or is finished or cancelled"));
  }
  cancelled_.push_back(id);
  return absl::OkStatus();
}

void Engine::TakeQueue() {
  std::vector<std::pair<RequestId, std::unique_ptr<Live>>> added;
  std::vector<RequestId> cancelled;
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    added.swap(added_);
    cancelled.swap(cancelled_);
  }
  for (auto& [id, live] : added) Begin(id, std::move(live));
  for (const RequestId id : cancelled) {
    if (live_.count(id) != 0) Finish(id, FinishReason::kCancelled, TokenEvent{});
  }
}

void Engine::Begin(RequestId id, std::unique_ptr<Live> live) {
  const Live& added = *live_.emplace(id, std::move(live)).first->second;
  const absl::Status status = scheduler_.Add(id, added.request.prompt_ids, added.request.max_new_tokens,
                                             added.parent.value_or(Scheduler::kNoParent));
  if (!status.ok()) Finish(id, FinishReason::kError, TokenEvent{.status = status});
}

absl::Status Engine::Step() {
  if (stepping_.exchange(true)) {
    return absl::FailedPreconditionError("Engine::Step was called from a callback, or by two threads at once");
  }
  const absl::Status status = StepOnce();
  stepping_ = false;
  return status;
}

absl::Status Engine::StepOnce() {
  TakeQueue();
  absl::StatusOr<bool> submitted = true;
  while (submitted.ok() && *submitted &&
         static_cast<int64_t>(in_flight_.size()) < executor_->limits().max_steps_in_flight) {
    submitted = SubmitStep();
  }
  absl::Status status = submitted.status();
  if (!in_flight_.empty()) status.Update(CollectStep());
  Deliver();
  // What is still in flight then are tokens of requests that have ended.
  while (live_.empty() && !in_flight_.empty()) status.Update(CollectStep());
  return status;
}

absl::Status Engine::RunUntilIdle() {
  while (!idle()) {
    RETURN_IF_ERROR(Step());
  }
  return absl::OkStatus();
}

absl::StatusOr<bool> Engine::SubmitStep() {
  if (std::exchange(num_loans_, executor_->num_loans()) != executor_->num_loans()) pool_.ForgetContents();
  StepPlan plan = scheduler_.Plan();
  for (int64_t sequence : plan.preempted) executor_->EndSequence(sequence);
  if (plan.chunks.empty()) return false;
  if (absl::Status status = Submit(plan); !status.ok()) return Fail(plan.chunks, status);
  in_flight_.push_back(std::move(plan.chunks));
  return true;
}

absl::Status Engine::Submit(const StepPlan& plan) {
  StepInput input{.copies = plan.copies};
  input.chunks.reserve(plan.chunks.size());
  std::vector<Sampling> samplings(plan.chunks.size());
  for (size_t i = 0; i < plan.chunks.size(); ++i) {
    const Scheduled& s = plan.chunks[i];
    const Request& request = live_.at(s.sequence)->request;
    const absl::Span<const int32_t> tokens = scheduler_.tokens(s.sequence);
    const int64_t prompt_size = static_cast<int64_t>(request.prompt_ids.size());
    const bool is_known = s.position < static_cast<int64_t>(tokens.size());
    Chunk chunk{.sequence = s.sequence,
                .begins = s.begins,
                .ids = is_known ? tokens.subspan(s.position, s.count) : absl::MakeConstSpan(&kSampledToken, 1),
                .position = s.position,
                .pages = scheduler_.page_tables(s.sequence)};
    if (s.samples) {
      samplings[i] = {.params = request.sampling,
                      .index = static_cast<uint64_t>(s.position + s.count - prompt_size),
                      .log_probs = request.log_probs,
                      .history = tokens,
                      .prompt_size = prompt_size};
      chunk.sampling = &samplings[i];
    }
    if (s.position < prompt_size || s.count > 1) stats_.prompt_tokens += s.count;
    input.chunks.push_back(chunk);
  }
  return executor_->Submit(input);
}

absl::Status Engine::CollectStep() {
  const std::vector<Scheduled> plan = std::move(in_flight_.front());
  in_flight_.pop_front();
  absl::StatusOr<StepResult> result = executor_->Collect();
  ++stats_.steps;
  if (!result.ok()) return Fail(plan, result.status());
  for (size_t i = 0; i < plan.size(); ++i) {
    if (live_.count(plan[i].sequence) == 0) continue;  // it ended while the step was in flight
    if (const auto failed = result->logits.failed.find(i); failed != result->logits.failed.end()) {
      Finish(plan[i].sequence, FinishReason::kError, TokenEvent{.status = failed->second});
      continue;
    }
    scheduler_.Collected(plan[i]);
    if (plan[i].samples) TakeToken(plan[i].sequence, std::move(result->sampled[i]));
  }
  return absl::OkStatus();
}

absl::Status Engine::Fail(absl::Span<const Scheduled> chunks, const absl::Status& status) {
  bool concerns_anyone = false;
  for (const Scheduled& s : chunks) {
    if (live_.count(s.sequence) == 0) continue;
    concerns_anyone = true;
    Finish(s.sequence, FinishReason::kError, TokenEvent{.status = status});
  }
  return concerns_anyone ? status : absl::OkStatus();
}

void Engine::TakeToken(RequestId id, SampledToken sampled) {
  Live& live = *live_.at(id);
  ++stats_.generated_tokens;
  const int32_t token = sampled.token;
  TokenEvent event{
      .request = id, .token = token, .log_prob = sampled.log_prob, .top_log_probs = std::move(sampled.top_log_probs)};
  if (IsStopToken(live.request, token)) return Finish(id, FinishReason::kStop, std::move(event));
  if (live.decoder.has_value()) event.text = live.stop_strings.Push(live.decoder->Push(token));
  if (live.stop_strings.found()) return Finish(id, FinishReason::kStop, std::move(event));
  scheduler_.Append(id, token);
  if (scheduler_.IsFull(id)) return Finish(id, FinishReason::kLength, std::move(event));
  events_.push_back({live.callback, std::move(event)});
}

bool Engine::IsStopToken(const Request& request, int32_t token) const {
  if (absl::c_linear_search(request.stop_token_ids, token)) return true;
  return !request.ignore_eos && absl::c_linear_search(options_.eos_token_ids, token);
}

void Engine::Finish(RequestId id, FinishReason reason, TokenEvent event) {
  Live& live = *live_.at(id);
  if (live.decoder.has_value() && !live.stop_strings.found()) {
    // The rest of the text may hold a stop string too.
    event.text += live.stop_strings.Push(live.decoder->Finish());
    if (live.stop_strings.found() && reason == FinishReason::kLength) reason = FinishReason::kStop;
    event.text += live.stop_strings.Finish();
  }
  event.request = id;
  event.finish = reason;
  events_.push_back({live.callback, std::move(event)});
  // A request that the scheduler does not know is a bug that must not stay hidden behind a normal end.
  if (absl::Status status = scheduler_.Remove(id); !status.ok()) {
    events_.back().event.finish = FinishReason::kError;
    events_.back().event.status = status;
  }
  executor_->EndSequence(id);
  live_.erase(id);
  const std::lock_guard<std::mutex> lock(mutex_);
  cancellable_.erase(id);
}

// What a callback cancels ends before its next token.
void Engine::Deliver() {
  delivering_ = true;
  while (!events_.empty()) {
    const Pending pending = std::move(events_.front());
    events_.pop_front();
    if (*pending.callback) (*pending.callback)(pending.event);
    if (pending.event.finish.has_value()) --unfinished_;
    TakeQueue();
  }
  delivering_ = false;
}

EngineStats Engine::stats() const {
  EngineStats stats = stats_;
  stats.preemptions = scheduler_.num_preemptions();
  stats.running = scheduler_.num_running();
  stats.waiting = scheduler_.num_waiting();
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    stats.waiting += static_cast<int64_t>(added_.size());
  }
  stats.cached_prompt_tokens = scheduler_.num_cached_tokens();
  stats.pages_in_use = pool_.num_in_use();
  stats.pages_cached = pool_.num_cached();
  stats.evictions = pool_.num_evictions();
  return stats;
}

absl::StatusOr<std::vector<Completion>> Generate(Engine* engine, std::vector<Request> requests) {
  if (engine->in_callback()) return absl::FailedPreconditionError("Generate was called from a callback of the engine");
  // Callbacks may outlive this call, which ends with the first error.
  const auto completions = std::make_shared<std::vector<Completion>>(requests.size());
  std::vector<RequestId> ids;
  const auto cancel = [&](const absl::Status& status) {
    for (RequestId id : ids) engine->Cancel(id).IgnoreError();
    engine->Step().IgnoreError();
    return status;
  };
  for (size_t i = 0; i < requests.size(); ++i) {
    const auto id = engine->AddRequest(std::move(requests[i]),
                                       [completions, i](const TokenEvent& event) { (*completions)[i].Add(event); });
    if (!id.ok()) {
      return cancel(absl::Status(id.status().code(), absl::StrCat("request ", i, ": ", id.status().message())));
    }
    ids.push_back(*id);
  }
  while (absl::c_any_of(*completions, [](const Completion& c) { return !c.finish.has_value(); })) {
    if (absl::Status status = engine->Step(); !status.ok()) return cancel(status);
  }
  return *completions;
}

}  // namespace llmc
