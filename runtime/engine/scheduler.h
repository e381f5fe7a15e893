// Which tokens of which sequences the next step computes, and where their keys and values go.
//
// Every running sequence whose cache is complete gets its one new token first; what is left of the step's token budget
// goes to prompts, in chunks, oldest first. A waiting sequence is admitted when pages for all of its tokens are free.
// When a running sequence needs a page and none is free, the one that was admitted last gives up its pages and waits
// again; its tokens so far are its prompt then. The first always advances, so every sequence ends.
//
// A sequence begins behind the longest prefix that the pool has of it. One whose next page is computed by a step in
// flight waits until that step is collected, and lets others pass meanwhile: many requests that begin alike compute
// that beginning once.
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
#include "runtime/engine/executor.h"
#include "runtime/engine/page_pool.h"

namespace llmc {

struct SchedulerOptions {
  int64_t max_step_tokens = 512;
  int64_t max_sequences = 16;  // running at once; at most max_step_tokens
  int64_t page_size = 16;
  int64_t max_context = 0;
  int64_t max_steps_in_flight = 1;
  int64_t window = 0;  // as in ExecutorLimits
};

// One sequence's part in a step.
struct Scheduled {
  int64_t sequence = 0;
  bool begins = false;      // its first chunk, or its first after a preemption
  int64_t position = 0;     // of the first token
  int64_t count = 0;        // tokens
  bool samples = false;     // the chunk ends with the sequence's last token: a new one is sampled
  int64_t preemptions = 0;  // of the sequence, before this step
};

struct StepPlan {
  std::vector<Scheduled> chunks;
  std::vector<PageCopy> copies;    // done before
  std::vector<int64_t> preempted;  // sequences that lost their pages
};

class Scheduler {
 public:
  // `pool` must outlive the scheduler.
  Scheduler(const SchedulerOptions& options, PagePool* pool) : options_(options), pool_(pool) {}

  // InvalidArgument, saying which limit, if a prompt of so many tokens leaves no room for a new one. The same at any
  // time, on any thread.
  absl::Status CheckPrompt(int64_t length) const;
  // The same errors. Sequences are numbered by the caller in the order in which they come. `max_new_tokens` is at
  // least 1.
  absl::Status Add(int64_t sequence, std::vector<int32_t> prompt, int64_t max_new_tokens);
  // Takes the sequence out, running or waiting, and lets go of its pages. NotFound: there is none.
  absl::Status Remove(int64_t sequence);

  // The next step, which counts as computed from now on. Without chunks if there is nothing to do until earlier steps
  // are collected.
  StepPlan Plan();
  // A chunk of a step was collected without an error, and its token is not appended yet: others may share what it
  // computed, and what no later token sees is let go. Of a sequence that is there.
  void Collected(const Scheduled& chunk);
  // The token that the sequence sampled in the first step of which it is not known.
  void Append(int64_t sequence, int32_t token);
  // True if another token would be more than it wants, or go beyond the context or the whole pool.
  bool IsFull(int64_t sequence) const;

  // Those that are known.
  absl::Span<const int32_t> tokens(int64_t sequence) const { return sequences_.at(sequence).tokens; }
  absl::Span<const int32_t> page_table(int64_t sequence) const { return sequences_.at(sequence).pages.pages(); }
  bool empty() const { return sequences_.empty(); }
  int64_t num_running() const { return static_cast<int64_t>(running_.size()); }
  int64_t num_waiting() const { return static_cast<int64_t>(waiting_.size()); }
  int64_t num_preemptions() const { return num_preemptions_; }
  int64_t num_cached_tokens() const { return num_cached_tokens_; }  // that were not computed, as the pool had them

 private:
  struct Sequence {
    std::vector<int32_t> tokens;
    int64_t max_tokens = 0;
    PageTable pages;
    int64_t in_flight = 0;  // tokens after those: sampled by planned steps, not appended yet
    int64_t computed = 0;   // tokens in the cache
    bool begins = true;     // no chunk of it was planned since it was admitted
    int64_t preemptions = 0;
    int64_t plans_waited = 0;  // for pages that were under way
    int64_t length() const { return static_cast<int64_t>(tokens.size()) + in_flight; }
    // The last of max_tokens is never computed: nothing follows it.
    int64_t pending() const { return length() < max_tokens ? length() - computed : 0; }
  };

  int64_t MaxTokens() const;
  void PlanNewTokens(int64_t* budget, StepPlan* plan);
  void PlanPrompts(int64_t* budget, StepPlan* plan);
  void Admit(int64_t* budget, StepPlan* plan);
  enum class Admission : uint8_t { kAdmitted, kWaitsForStep, kLacksPages };
  Admission TakePages(Sequence* sequence, StepPlan* plan);
  // As much of what is pending as the budget allows.
  Scheduled TakeChunk(int64_t sequence, int64_t* budget);
  // Gives `sequence` a page for its next token, if need be at the cost of later ones. False: it was preempted itself.
  bool GrowOrPreempt(int64_t sequence, StepPlan* plan);
  void PreemptLast(StepPlan* plan);

  SchedulerOptions options_;
  PagePool* pool_;
  absl::flat_hash_map<int64_t, Sequence> sequences_;
  std::list<int64_t> running_;  // in the order of their admission
  std::list<int64_t> waiting_;  // oldest first
  int64_t num_preemptions_ = 0;
  int64_t num_cached_tokens_ = 0;
};

}  // namespace llmc
