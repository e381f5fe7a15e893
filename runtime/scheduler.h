// Which tokens of which sequences the next step computes, and where their keys and values go.
//
// Every running sequence whose cache is complete gets its one new token first; what is left of the step's token budget
// goes to prompts, in chunks, oldest first. A waiting sequence is admitted when pages for all of its tokens are free.
// When a running sequence needs a page and none is free, the youngest one gives up its pages and waits again; its
// tokens so far are its prompt then. The oldest sequence always advances, so every sequence ends.
//
// A step is planned while the one before it may still run: what that one samples counts as a token that is not known.
// A sequence may turn out to have ended there; then its newer tokens were computed for nothing, and Remove forgets
// them. Steps run in order, so pages that are given to another sequence are written by it after their old owner's last
// step.
#pragma once

#include <cstdint>
#include <list>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "runtime/executor.h"
#include "runtime/kv_pages.h"

namespace llmc {

struct SchedulerOptions {
  int64_t max_step_tokens = 512;
  int64_t max_sequences = 16;  // running at once; at most max_step_tokens
  int64_t page_size = 16;
  int64_t max_context = 0;
};

// One sequence's part in a step.
struct Scheduled {
  int64_t sequence = 0;
  int64_t position = 0;  // of the first token
  int64_t count = 0;     // tokens
  bool samples = false;  // the chunk ends with the sequence's last token: a new one is sampled
};

class Scheduler {
 public:
  Scheduler(const SchedulerOptions& options, KvPages* pages) : options_(options), pages_(pages) {}

  // InvalidArgument, saying which limit, if the prompt leaves no room for a new token. Sequences are numbered by the
  // caller in the order in which they come. `max_new_tokens` is at least 1.
  absl::Status Add(int64_t sequence, std::vector<int32_t> prompt, int64_t max_new_tokens);
  // Takes the sequence out, running or waiting, and frees its pages.
  absl::Status Remove(int64_t sequence);

  // The next step, which counts as computed from now on. Empty if there is nothing to do until tokens of earlier steps
  // are appended. `preempted`, if given, gets the sequences that lost their pages.
  absl::StatusOr<std::vector<Scheduled>> Plan(std::vector<int64_t>* preempted = nullptr);
  // The token that the sequence sampled in the first step of which it is not known.
  void Append(int64_t sequence, int32_t token);
  // True if another token would be more than it wants, or go beyond the context or the whole pool.
  bool IsFull(int64_t sequence) const;

  // Those that are known.
  absl::Span<const int32_t> tokens(int64_t sequence) const { return sequences_.at(sequence).tokens; }
  absl::Span<const int32_t> page_table(int64_t sequence) const { return sequences_.at(sequence).pages; }
  bool empty() const { return sequences_.empty(); }
  int64_t num_running() const { return static_cast<int64_t>(running_.size()); }
  int64_t num_waiting() const { return static_cast<int64_t>(waiting_.size()); }
  int64_t num_preemptions() const { return num_preemptions_; }

 private:
  struct Sequence {
    std::vector<int32_t> tokens;
    int64_t max_tokens = 0;
    int64_t unknown = 0;   // tokens after those: sampled by planned steps, not appended yet
    int64_t computed = 0;  // tokens in the cache
    std::vector<int32_t> pages;
    int64_t length() const { return static_cast<int64_t>(tokens.size()) + unknown; }
    // The last of max_tokens is never computed: nothing follows it.
    int64_t pending() const { return length() < max_tokens ? length() - computed : 0; }
  };

  int64_t MaxTokens() const;
  absl::Status PlanNewTokens(int64_t* budget, std::vector<Scheduled>* plan, std::vector<int64_t>* preempted);
  void PlanPrompts(int64_t* budget, std::vector<Scheduled>* plan);
  void Admit(int64_t* budget, std::vector<Scheduled>* plan);
  // As much of what is pending as the budget allows.
  Scheduled TakeChunk(int64_t sequence, int64_t* budget);
  // Gives `sequence` a page for its next token, if need be at the cost of younger ones. False: it was preempted itself.
  absl::StatusOr<bool> GrowOrPreempt(int64_t sequence, std::vector<int64_t>* preempted);
  absl::Status PreemptYoungest();

  SchedulerOptions options_;
  KvPages* pages_;
  absl::flat_hash_map<int64_t, Sequence> sequences_;
  // Both oldest first; every running sequence is older than every waiting one.
  std::list<int64_t> running_;
  std::list<int64_t> waiting_;
  int64_t num_preemptions_ = 0;
};

}  // namespace llmc
