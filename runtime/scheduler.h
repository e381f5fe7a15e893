// Which tokens of which sequences the next step computes, and where their keys and values go.
//
// Every running sequence whose cache is complete gets its one new token first; what is left of the step's token budget
// goes to prompts, in chunks, oldest first. A waiting sequence is admitted when pages for all of its tokens are free.
// When a running sequence needs a page and none is free, the youngest one gives up its pages and waits again; its
// tokens so far are its prompt then. The oldest sequence always advances, so every sequence ends.
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
  int64_t position = 0;       // of the first token
  int64_t count = 0;          // tokens
  bool wants_logits = false;  // the chunk ends with the sequence's last token
};

class Scheduler {
 public:
  Scheduler(const SchedulerOptions& options, KvPages* pages) : options_(options), pages_(pages) {}

  // InvalidArgument, saying which limit, if the prompt leaves no room for a new token. Sequences are numbered by the
  // caller in the order in which they come.
  absl::Status Add(int64_t sequence, std::vector<int32_t> prompt);
  // Takes the sequence out, running or waiting, and frees its pages.
  absl::Status Remove(int64_t sequence);

  // The next step; empty only if there is no sequence. `preempted`, if given, gets the sequences that lost their pages.
  absl::StatusOr<std::vector<Scheduled>> Plan(std::vector<int64_t>* preempted = nullptr);
  // Notes that a planned chunk is computed.
  void Advance(const Scheduled& scheduled);
  // Adds a new token to a sequence whose other tokens are all computed.
  void Append(int64_t sequence, int32_t token);
  // True if another token would go beyond the context or the whole pool.
  bool IsFull(int64_t sequence) const;

  absl::Span<const int32_t> tokens(int64_t sequence) const { return sequences_.at(sequence).tokens; }
  absl::Span<const int32_t> page_table(int64_t sequence) const { return sequences_.at(sequence).pages; }
  bool empty() const { return sequences_.empty(); }
  int64_t num_running() const { return static_cast<int64_t>(running_.size()); }
  int64_t num_waiting() const { return static_cast<int64_t>(waiting_.size()); }
  int64_t num_preemptions() const { return num_preemptions_; }

 private:
  struct Sequence {
    std::vector<int32_t> tokens;
    int64_t computed = 0;  // tokens in the cache
    std::vector<int32_t> pages;
    int64_t pending() const { return static_cast<int64_t>(tokens.size()) - computed; }
  };

  int64_t MaxTokens() const;
  absl::Status PlanNewTokens(int64_t* budget, std::vector<Scheduled>* plan, std::vector<int64_t>* preempted);
  void PlanPrompts(int64_t* budget, std::vector<Scheduled>* plan);
  void Admit(int64_t* budget, std::vector<Scheduled>* plan);
  // As much of what is pending as the budget allows.
  Scheduled TakeChunk(int64_t sequence, int64_t* budget) const;
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
