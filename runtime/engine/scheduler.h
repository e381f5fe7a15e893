// Which tokens of which sequences the next step computes, and where their keys and values go.
//
// Every running sequence whose cache is complete gets its one new token first; what is left of the step's token budget
// goes to prompts, in chunks, oldest first. A waiting sequence is admitted when pages for all of its tokens are free,
// in pools with a window those for its first chunk. When a running sequence needs a page and none is free, the one that
// was admitted last gives up its pages and waits again; its tokens so far are its prompt then. The first always
// advances, so every sequence ends.
//
// A sequence begins behind the longest prefix that the pool has of it. One whose next page is computed by a step in
// flight waits until that step is collected, and lets others pass meanwhile: many requests that begin alike compute
// that beginning once. A sequence that has the prompt of another one's beginning may name that one, its parent: it
// waits until the prompt's steps are collected, and then begins with a fork of the parent's pages, at its last token.
//
// A step is planned while the one before it may still run: what that one samples counts as a token that is not known.
// A sequence may turn out to have ended there; then its newer tokens were computed for nothing, and Remove forgets
// them. Steps run in order, so pages that are given to another sequence are written by it after their old owner's last
// step.
#pragma once

#include <cstdint>
#include <list>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "runtime/engine/executor.h"
#include "runtime/engine/page_pool.h"

namespace llmc {

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
  // `limits`: an executor's, or less, with max_sequences at most max_step_tokens. `pool` has their pools, and must
  // outlive the scheduler.
  Scheduler(ExecutorLimits limits, PagePool* pool) : limits_(std::move(limits)), pool_(pool) {}

  // InvalidArgument, saying which limit, if a prompt of so many tokens leaves no room for a new one. The same at any
  // time, on any thread.
  absl::Status CheckPrompt(int64_t length) const;
  // The same errors. Sequences are numbered by the caller in the order in which they come. `max_new_tokens` is at
  // least 1. `parent`: a sequence that came before, or kNoParent; whether it is still there, and has the same prompt,
  // does not change what the new one gives.
  static constexpr int64_t kNoParent = -1;
  absl::Status Add(int64_t sequence, std::vector<int32_t> prompt, int64_t max_new_tokens, int64_t parent = kNoParent);
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
  PoolTables page_tables(int64_t sequence) const { return sequences_.at(sequence).pages.tables(); }
  bool empty() const { return sequences_.empty(); }
  int64_t num_running() const { return static_cast<int64_t>(running_.size()); }
  int64_t num_waiting() const { return static_cast<int64_t>(waiting_.size()); }
  int64_t num_preemptions() const { return num_preemptions_; }
  int64_t num_cached_tokens() const { return num_cached_tokens_; }  // that were not computed, as their keys were there

 private:
  struct Sequence {
    std::vector<int32_t> tokens;
    int64_t max_tokens = 0;
    PageTable pages;
    int64_t in_flight = 0;  // tokens after those: sampled by planned steps, not appended yet
    int64_t computed = 0;   // tokens in the cache
    int64_t collected = 0;  // of those, by steps that were collected
    int64_t parent = kNoParent;
    bool begins = true;  // no chunk of it was planned since it was admitted
    int64_t preemptions = 0;
    int64_t plans_waited = 0;  // for pages that were under way
    int64_t length() const { return static_cast<int64_t>(tokens.size()) + in_flight; }
    // The last of max_tokens is never computed: nothing follows it.
    int64_t pending() const { return length() < max_tokens ? length() - computed : 0; }
  };

  // What runs goes on: first in the plan those with one new token, then prompts.
  void PlanRunning(int64_t* budget, StepPlan* plan);
  void Admit(int64_t* budget, StepPlan* plan);
  enum class Admission : uint8_t { kAdmitted, kWaitsForStep, kLacksPages };
  Admission TakePages(Sequence* sequence, int64_t budget, StepPlan* plan);
  // Of the first chunk and of what comes soon.
  bool HasRoom(const Sequence& sequence, int64_t chunk_end) const;
  // Its parent, if that runs and begins with the same tokens.
  const Sequence* ParentOf(const Sequence& sequence) const;
  // Makes the sequence an owner of what there is of it, by its parent or the pool. False: it is worth a wait for more.
  bool TakeWhatIsThere(Sequence* sequence);
  // The next `count` tokens.
  Scheduled TakeChunk(int64_t sequence, int64_t count);
  // Gives `sequence` pages for its next `count` tokens, if need be at the cost of later ones. False: it was preempted
  // itself.
  bool GrowOrPreempt(int64_t sequence, int64_t count, StepPlan* plan);
  void PreemptLast(StepPlan* plan);

  ExecutorLimits limits_;
  PagePool* pool_;
  absl::flat_hash_map<int64_t, Sequence> sequences_;
  std::list<int64_t> running_;  // in the order of their admission
  std::list<int64_t> waiting_;  // oldest first
  int64_t num_preemptions_ = 0;
  int64_t num_cached_tokens_ = 0;
};

}  // namespace llmc
