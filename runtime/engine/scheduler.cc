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

absl::Status Scheduler::CheckPrompt(int64_t length) const {
  if (length == 0) return absl::InvalidArgumentError("the prompt has no tokens");
  if (length >= limits_.max_context) {
    return TooLong(length, "context", limits_.max_context, "");
  }
  if (const int64_t most = MaxCachedTokens(limits_); length >= most) {
    return TooLong(length, "KV cache", most, ": use more pages");
  }
  return absl::OkStatus();
}

absl::Status Scheduler::Add(int64_t sequence, std::vector<int32_t> prompt, int64_t max_new_tokens, int64_t parent) {
  const int64_t length = static_cast<int64_t>(prompt.size());
  RETURN_IF_ERROR(CheckPrompt(length));
  sequences_.emplace(sequence,
                     Sequence{.tokens = std::move(prompt),
                              .max_tokens = length + std::min(max_new_tokens, MaxCachedTokens(limits_) - length),
                              .pages = PageTable(pool_),
                              .parent = parent});
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
  int64_t budget = limits_.max_step_tokens;
  PlanRunning(&budget, &plan);
  // Who just lost its pages would take them back at once.
  if (plan.preempted.empty()) Admit(&budget, &plan);
  return plan;
}

void Scheduler::PlanRunning(int64_t* budget, StepPlan* plan) {
  int64_t new_tokens = 0;
  for (const int64_t sequence : running_) new_tokens += sequences_.at(sequence).pending() == 1 ? 1 : 0;
  int64_t of_prompts = *budget - new_tokens;
  std::vector<Scheduled> prompts;
  // NOLINTNEXTLINE(modernize-loop-convert): who is preempted leaves the list meanwhile
  for (auto it = running_.begin(); it != running_.end(); ++it) {
    const int64_t pending = sequences_.at(*it).pending(), count = pending > 1 ? std::min(of_prompts, pending) : pending;
    if (count == 0) continue;
    if (!GrowOrPreempt(*it, count, plan)) break;  // it was the last
    (pending > 1 ? prompts : plan->chunks).push_back(TakeChunk(*it, count));
    *budget -= count;
    if (pending > 1) of_prompts -= count;
  }
  plan->chunks.insert(plan->chunks.end(), prompts.begin(), prompts.end());
}

// Those that wait for a step count as if they ran, so that a plan looks at no more sequences than may run.
void Scheduler::Admit(int64_t* budget, StepPlan* plan) {
  int64_t num_held_back = 0;
  for (auto it = waiting_.begin();
       it != waiting_.end() && *budget > 0 && num_running() + num_held_back < limits_.max_sequences;) {
    const int64_t sequence = *it;
    switch (TakePages(&sequences_.at(sequence), *budget, plan)) {
      case Admission::kLacksPages:
        return;
      case Admission::kWaitsForStep:
        ++num_held_back;
        ++it;
        break;
      case Admission::kAdmitted:
        it = waiting_.erase(it);
        running_.push_back(sequence);
        plan->chunks.push_back(TakeChunk(sequence, std::min(*budget, sequences_.at(sequence).pending())));
        *budget -= plan->chunks.back().count;
    }
  }
}

Scheduler::Admission Scheduler::TakePages(Sequence* sequence, int64_t budget, StepPlan* plan) {
  Sequence& s = *sequence;
  // It was preempted while its next token was on the way.
  if (s.in_flight > 0) return Admission::kLacksPages;
  if (!TakeWhatIsThere(&s)) return Admission::kWaitsForStep;
  const int64_t chunk_end = s.computed + std::min(budget, s.length() - s.computed);
  if (!HasRoom(s, chunk_end) || !pool_->Reserve(s.length(), &s.pages) ||
      !pool_->Write(s.computed, chunk_end, &s.pages, &plan->copies)) {
    pool_->Release(&s.pages);
    return Admission::kLacksPages;
  }
  num_cached_tokens_ += s.computed;
  s.plans_waited = 0;
  return Admission::kAdmitted;
}

// A spare page for each that runs, or the admission would soon force a preemption; not in pools with a window, where
// what runs gives back what it takes.
bool Scheduler::HasRoom(const Sequence& sequence, int64_t chunk_end) const {
  for (size_t i = 0; i < pool_->num_pools(); ++i) {
    const bool slides = pool_->window(i) > 0 && pool_->num_pools() > 1;
    const int64_t end = pool_->window(i) > 0 ? chunk_end : sequence.length(), spare = slides ? 0 : num_running();
    const int64_t size = pool_->page_size(i), needed = PagesFor(end, size) - sequence.computed / size + spare;
    if (needed > pool_->num_available(i)) return false;
  }
  return true;
}

const Scheduler::Sequence* Scheduler::ParentOf(const Sequence& sequence) const {
  const auto parent = sequences_.find(sequence.parent);
  if (parent == sequences_.end() || parent->second.pages.empty()) return nullptr;  // it ended, or waits
  const std::vector<int32_t>& tokens = parent->second.tokens;
  const bool begins_alike = tokens.size() >= sequence.tokens.size() &&
                            std::equal(sequence.tokens.begin(), sequence.tokens.end(), tokens.begin());
  return begins_alike ? &parent->second : nullptr;
}

bool Scheduler::TakeWhatIsThere(Sequence* sequence) {
  Sequence& s = *sequence;
  const int64_t last = s.length() - 1;  // which must be computed
  if (const Sequence* parent = limits_.shares_pages ? ParentOf(s) : nullptr) {
    // It advances, or loses its pages, or ends: nobody waits for ever.
    if (parent->collected < last) return false;
    if (pool_->Holds(last, parent->pages)) {
      s.pages = pool_->Fork(parent->pages);
      pool_->Rollback(last, &s.pages);
      s.computed = last;
      return true;
    }
  }
  const CachedPrefix prefix = pool_->FindPrefix(s.tokens, &s.pages);
  // What is under way is collected after so many plans. Who waited as long computes it, for whatever else is under way.
  if (prefix.next_is_under_way && s.plans_waited < limits_.max_steps_in_flight) {
    ++s.plans_waited;
    return false;
  }
  pool_->TakePrefix(prefix, &s.pages);
  s.computed = prefix.length;
  return true;
}

Scheduled Scheduler::TakeChunk(int64_t sequence, int64_t count) {
  Sequence& s = sequences_.at(sequence);
  const Scheduled chunk = {.sequence = sequence,
                           .begins = std::exchange(s.begins, false),
                           .position = s.computed,
                           .count = count,
                           .samples = count == s.pending(),
                           .preemptions = s.preemptions};
  s.computed += count;
  if (chunk.samples) ++s.in_flight;
  // Nobody can ask for tokens that are not known.
  if (s.computed <= static_cast<int64_t>(s.tokens.size())) pool_->Announce(s.tokens, s.computed, &s.pages);
  return chunk;
}

bool Scheduler::GrowOrPreempt(int64_t sequence, int64_t count, StepPlan* plan) {
  Sequence& s = sequences_.at(sequence);
  while (!pool_->Write(s.computed, s.computed + count, &s.pages, &plan->copies)) {
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
  s.computed = s.collected = 0;
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
  const int64_t length = s.collected = chunk.position + chunk.count;
  pool_->Publish(s.tokens, length, &s.pages);
  // Who forks from it begins at the last token of the prompt.
  pool_->DropUnseen(length - 1, &s.pages);
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
