#include "runtime/engine/scheduler.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"

namespace llmc {
namespace {

absl::Status TooLong(int64_t length, absl::string_view what, int64_t limit, absl::string_view remedy) {
  return absl::InvalidArgumentError(absl::StrCat("the prompt has ", length,
                                                 " tokens; with one new token it exceeds the ", what, " of ", limit,
                                                 " tokens", remedy));
}

}  // namespace

int64_t Scheduler::MaxTokens() const { return std::min(options_.max_context, pool_->num_pages() * options_.page_size); }

absl::Status Scheduler::CheckPrompt(int64_t length) const {
  if (length == 0) return absl::InvalidArgumentError("the prompt has no tokens");
  if (length >= options_.max_context) {
    return TooLong(length, "context", options_.max_context, "");
  }
  if (length >= MaxTokens()) {
    return TooLong(length, "KV cache", MaxTokens(), ": use more pages");
  }
  return absl::OkStatus();
}

absl::Status Scheduler::Add(int64_t sequence, std::vector<int32_t> prompt, int64_t max_new_tokens) {
  const int64_t length = static_cast<int64_t>(prompt.size());
  RETURN_IF_ERROR(CheckPrompt(length));
  sequences_.emplace(sequence, Sequence{.tokens = std::move(prompt),
                                        .max_tokens = length + std::min(max_new_tokens, MaxTokens() - length),
                                        .pages = PageTable(pool_)});
  waiting_.push_back(sequence);
  return absl::OkStatus();
}

absl::Status Scheduler::Remove(int64_t sequence) {
  if (sequences_.erase(sequence) == 0) return absl::NotFoundError(absl::StrCat("sequence ", sequence));
  running_.remove(sequence);
  waiting_.remove(sequence);
  return absl::OkStatus();
}

StepPlan Scheduler::Plan() {
  StepPlan plan;
  int64_t budget = options_.max_step_tokens;
  PlanNewTokens(&budget, &plan);
  PlanPrompts(&budget, &plan);
  // Who just lost its pages would take them back at once.
  if (plan.preempted.empty()) Admit(&budget, &plan);
  return plan;
}

void Scheduler::PlanNewTokens(int64_t* budget, StepPlan* plan) {
  // NOLINTNEXTLINE(modernize-loop-convert): who is preempted leaves the list meanwhile
  for (auto it = running_.begin(); it != running_.end(); ++it) {
    if (sequences_.at(*it).pending() != 1) continue;
    if (!GrowOrPreempt(*it, plan)) break;  // it was the last
    plan->chunks.push_back(TakeChunk(*it, budget));
  }
}

void Scheduler::PlanPrompts(int64_t* budget, StepPlan* plan) {
  for (int64_t sequence : running_) {
    if (*budget == 0) return;
    if (sequences_.at(sequence).pending() > 1) plan->chunks.push_back(TakeChunk(sequence, budget));
  }
}

// Those that wait for a step count as if they ran, so that a plan looks at no more sequences than may run.
void Scheduler::Admit(int64_t* budget, StepPlan* plan) {
  int64_t num_held_back = 0;
  for (auto it = waiting_.begin();
       it != waiting_.end() && *budget > 0 && num_running() + num_held_back < options_.max_sequences;) {
    const int64_t sequence = *it;
    switch (TakePages(&sequences_.at(sequence), plan)) {
      case Admission::kLacksPages:
        return;
      case Admission::kWaitsForStep:
        ++num_held_back;
        ++it;
        break;
      case Admission::kAdmitted:
        it = waiting_.erase(it);
        running_.push_back(sequence);
        plan->chunks.push_back(TakeChunk(sequence, budget));
    }
  }
}

Scheduler::Admission Scheduler::TakePages(Sequence* sequence, StepPlan* plan) {
  Sequence& s = *sequence;
  // It was preempted while its next token was on the way.
  if (s.in_flight > 0) return Admission::kLacksPages;
  const CachedPrefix prefix = pool_->FindPrefix(s.tokens, &s.pages);
  // What is under way is collected after so many plans. Who waited as long computes it, for whatever else is under way.
  if (prefix.next_is_under_way && s.plans_waited < options_.max_steps_in_flight) {
    ++s.plans_waited;
    return Admission::kWaitsForStep;
  }
  const auto found = static_cast<int64_t>(prefix.pages.size());
  pool_->TakePrefix(prefix, &s.pages);
  s.computed = found * options_.page_size;
  // A spare page for each that runs, or the admission would soon force a preemption.
  const int64_t needed = PagesFor(s.length(), options_.page_size) - found + num_running();
  if (needed > pool_->num_available() || !pool_->Write(s.computed, s.length(), &s.pages, &plan->copies)) {
    pool_->Release(&s.pages);
    return Admission::kLacksPages;
  }
  num_cached_tokens_ += s.computed;
  s.plans_waited = 0;
  return Admission::kAdmitted;
}

Scheduled Scheduler::TakeChunk(int64_t sequence, int64_t* budget) {
  Sequence& s = sequences_.at(sequence);
  const int64_t count = std::min(*budget, s.pending());
  const Scheduled chunk = {.sequence = sequence,
                           .begins = std::exchange(s.begins, false),
                           .position = s.computed,
                           .count = count,
                           .samples = count == s.pending(),
                           .preemptions = s.preemptions};
  *budget -= count;
  s.computed += count;
  if (chunk.samples) ++s.in_flight;
  // Nobody can ask for tokens that are not known.
  if (s.computed <= static_cast<int64_t>(s.tokens.size())) pool_->Announce(s.tokens, s.computed, &s.pages);
  return chunk;
}

bool Scheduler::GrowOrPreempt(int64_t sequence, StepPlan* plan) {
  Sequence& s = sequences_.at(sequence);
  while (!pool_->Write(s.computed, s.length(), &s.pages, &plan->copies)) {
    const bool is_last = running_.back() == sequence;
    PreemptLast(plan);
    if (is_last) return false;
  }
  return true;
}

void Scheduler::PreemptLast(StepPlan* plan) {
  const int64_t sequence = running_.back();
  Sequence& s = sequences_.at(sequence);
  pool_->Release(&s.pages);
  s.computed = 0;
  s.begins = true;
  ++s.preemptions;
  plan->preempted.push_back(sequence);
  waiting_.push_front(sequence);
  running_.pop_back();
  ++num_preemptions_;
}

// A preemption since then took the pages that the chunk was for.
void Scheduler::Collected(const Scheduled& chunk) {
  Sequence& s = sequences_.at(chunk.sequence);
  if (chunk.preemptions != s.preemptions) return;
  const int64_t length = chunk.position + chunk.count;
  pool_->Publish(s.tokens, length, &s.pages);
  if (options_.window > 0) pool_->DropBefore(length - options_.window + 1, &s.pages);
}

void Scheduler::Append(int64_t sequence, int32_t token) {
  Sequence& s = sequences_.at(sequence);
  s.tokens.push_back(token);
  --s.in_flight;
}

bool Scheduler::IsFull(int64_t sequence) const {
  const Sequence& s = sequences_.at(sequence);
  return static_cast<int64_t>(s.tokens.size()) >= s.max_tokens;
}

}  // namespace llmc
