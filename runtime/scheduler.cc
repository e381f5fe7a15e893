#include "runtime/scheduler.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"

namespace llmc {
namespace {

absl::Status TooLong(int64_t length, absl::string_view what, int64_t limit, absl::string_view remedy) {
  return absl::InvalidArgumentError(absl::StrCat("the prompt has ", length,
                                                 " tokens; with one new token it exceeds the ", what, " of ", limit,
                                                 " tokens", remedy));
}

}  // namespace

int64_t Scheduler::MaxTokens() const {
  return std::min(options_.max_context, pages_->num_pages() * options_.page_size);
}

absl::Status Scheduler::Add(int64_t sequence, std::vector<int32_t> prompt, int64_t max_new_tokens) {
  const int64_t length = static_cast<int64_t>(prompt.size());
  if (length == 0) return absl::InvalidArgumentError("the prompt has no tokens");
  if (length >= options_.max_context) {
    return TooLong(length, "context", options_.max_context, "");
  }
  if (length >= MaxTokens()) {
    return TooLong(length, "KV cache", MaxTokens(), ": use more pages");
  }
  Sequence& s = sequences_[sequence];
  s.tokens = std::move(prompt);
  s.max_tokens = length + std::min(max_new_tokens, MaxTokens() - length);
  waiting_.push_back(sequence);
  return absl::OkStatus();
}

absl::Status Scheduler::Remove(int64_t sequence) {
  const auto it = sequences_.find(sequence);
  if (it == sequences_.end()) return absl::NotFoundError(absl::StrCat("sequence ", sequence));
  absl::Status status = pages_->Free(it->second.pages);
  sequences_.erase(it);
  running_.remove(sequence);
  waiting_.remove(sequence);
  return status;
}

absl::StatusOr<std::vector<Scheduled>> Scheduler::Plan(std::vector<int64_t>* preempted) {
  const int64_t preemptions_before = num_preemptions_;
  std::vector<Scheduled> plan;
  int64_t budget = options_.max_step_tokens;
  if (absl::Status status = PlanNewTokens(&budget, &plan, preempted); !status.ok()) return status;
  PlanPrompts(&budget, &plan);
  // Who just lost its pages would take them back at once.
  if (num_preemptions_ == preemptions_before) Admit(&budget, &plan);
  return plan;
}

absl::Status Scheduler::PlanNewTokens(int64_t* budget, std::vector<Scheduled>* plan, std::vector<int64_t>* preempted) {
  // NOLINTNEXTLINE(modernize-loop-convert): who is preempted leaves the list meanwhile
  for (auto it = running_.begin(); it != running_.end(); ++it) {
    if (sequences_.at(*it).pending() != 1) continue;
    const absl::StatusOr<bool> stays = GrowOrPreempt(*it, preempted);
    if (!stays.ok()) return stays.status();
    if (!*stays) break;  // it was the youngest, so nobody comes after it
    plan->push_back(TakeChunk(*it, budget));
  }
  return absl::OkStatus();
}

void Scheduler::PlanPrompts(int64_t* budget, std::vector<Scheduled>* plan) {
  for (int64_t sequence : running_) {
    if (*budget == 0) return;
    if (sequences_.at(sequence).pending() > 1) plan->push_back(TakeChunk(sequence, budget));
  }
}

void Scheduler::Admit(int64_t* budget, std::vector<Scheduled>* plan) {
  while (*budget > 0 && !waiting_.empty() && num_running() < options_.max_sequences) {
    const int64_t sequence = waiting_.front();
    Sequence& s = sequences_.at(sequence);
    // A spare page for each that runs, or the admission would soon force a preemption.
    if (s.unknown > 0) return;
    const int64_t needed = PagesFor(s.length(), options_.page_size);
    if (needed + num_running() > pages_->num_free() || !pages_->Allocate(needed, &s.pages)) return;
    waiting_.pop_front();
    running_.push_back(sequence);
    plan->push_back(TakeChunk(sequence, budget));
  }
}

Scheduled Scheduler::TakeChunk(int64_t sequence, int64_t* budget) {
  Sequence& s = sequences_.at(sequence);
  const int64_t count = std::min(*budget, s.pending());
  const Scheduled chunk = {
      .sequence = sequence, .position = s.computed, .count = count, .samples = count == s.pending()};
  *budget -= count;
  s.computed += count;
  if (chunk.samples) ++s.unknown;
  return chunk;
}

absl::StatusOr<bool> Scheduler::GrowOrPreempt(int64_t sequence, std::vector<int64_t>* preempted) {
  Sequence& s = sequences_.at(sequence);
  const int64_t missing = PagesFor(s.length(), options_.page_size) - static_cast<int64_t>(s.pages.size());
  while (missing > 0 && !pages_->Allocate(missing, &s.pages)) {
    const int64_t youngest = running_.back();
    if (absl::Status status = PreemptYoungest(); !status.ok()) return status;
    if (preempted != nullptr) preempted->push_back(youngest);
    if (youngest == sequence) return false;
  }
  return true;
}

absl::Status Scheduler::PreemptYoungest() {
  Sequence& s = sequences_.at(running_.back());
  if (absl::Status status = pages_->Free(s.pages); !status.ok()) return status;
  s.pages.clear();
  s.computed = 0;
  waiting_.push_front(running_.back());
  running_.pop_back();
  ++num_preemptions_;
  return absl::OkStatus();
}

void Scheduler::Append(int64_t sequence, int32_t token) {
  Sequence& s = sequences_.at(sequence);
  s.tokens.push_back(token);
  --s.unknown;
}

bool Scheduler::IsFull(int64_t sequence) const {
  const Sequence& s = sequences_.at(sequence);
  return static_cast<int64_t>(s.tokens.size()) >= s.max_tokens;
}

}  // namespace llmc
