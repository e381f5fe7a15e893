#include "codegen/persistent_runs.h"

#include <algorithm>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <utility>

#include "absl/algorithm/container.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "absl/types/span.h"
#include "codegen/run_rows.h"

namespace llmc {
namespace {

// The driver takes 32,764 bytes of parameters.
constexpr int64_t kMostWords = 4000;
// A ring of fewer stages runs dry while blocks wait for each other; more do not help.
constexpr int kDeepRing = 5, kMostRunStages = 12;
// What a block has of shared memory beside what is arranged here: barriers, behind which that begins at a multiple of
// 1024 bytes.
constexpr int64_t kRunSharedBytes = 1024;
// For one product, a launch of its own is as good.
constexpr int kLeastProducts = 2;
// That multiply, if nobody asked for a run. With 16 the 8B in mxfp4 took 3.18 ms, as launches 2.40 (H100).
constexpr int kMostWarps = 8;

constexpr int kEnoughAttentionThreads = 128;

int RoundUp(int64_t bytes) { return static_cast<int>((bytes + 127) / 128 * 128); }

std::string MisfitOf(const DeviceCall& call, const std::vector<plan::Sampling>& kinds) {
  const auto* kernel = std::get_if<KernelCall>(&call);
  if (kernel == nullptr) return std::holds_alternative<CopyCall>(call) ? "a copy" : "a product of cuBLASLt";
  if (!kinds.empty()) return "only some kinds of steps run it";
  if (!kernel->task.has_value()) return absl::StrCat(kernel->Name(), " has no form for it");
  return "";
}

// A call in one of its forms.
KernelCall InForm(const KernelCall& call, const KernelCall::Task::Form& form) {
  KernelCall made = call;
  made.threads = form.threads;
  for (auto& [name, value] : made.constants) {
    if (name == "kSharedBytes" && made.task->stage_bytes == 0) value = form.arena_bytes;
  }
  for (const auto& [own, of_form] : form.constants) {
    const auto it = absl::c_find_if(made.constants, [&](const auto& constant) { return constant.first == own; });
    if (it == made.constants.end()) {
      made.constants.emplace_back(own, of_form);
    } else {
      it->second = of_form;
    }
  }
  for (KernelCall& part : made.parts) part = InForm(part, part.task->forms.front());
  return made;
}

// What forms all kinds are in.
struct FormChoice {
  size_t of_products, of_others;  // these, or their last
  int least_threads;              // of attention
};

// All kinds in such forms; nothing if one has more threads than compute, or too few.
std::optional<RunCall> InForms(const std::vector<KernelCall>& kinds, const FormChoice& choice, RunCall run) {
  for (const KernelCall& kind : kinds) {
    const auto& forms = kind.task->forms;
    const bool is_product = kind.task->stage_bytes > 0;
    const KernelCall::Task::Form& form =
        forms[std::min(is_product ? choice.of_products : choice.of_others, forms.size() - 1)];
    if (!is_product && form.threads > 32 * run.math_warps) return std::nullopt;
    if (kind.task->is_attention && form.threads < choice.least_threads) return std::nullopt;
    run.kinds.push_back(InForm(kind, form));
    run.arena_bytes = std::max(run.arena_bytes, RoundUp(form.arena_bytes));
  }
  return run;
}

// Warps and shared memory for tasks of these kinds; nothing if they do not fit.
std::optional<RunCall> Arrange(const std::vector<KernelCall>& kinds, const Target& target) {
  RunCall run;
  run.blocks = static_cast<int>(target.sms);
  size_t most_forms = 0;
  for (const KernelCall& kind : kinds) {
    run.math_warps = std::max(run.math_warps, kind.task->math_warps);
    run.has_parts = run.has_parts || kind.task->has_parts;
    run.stage_bytes = std::max(run.stage_bytes, RoundUp(kind.task->stage_bytes));
    run.body_bytes = std::max(run.body_bytes, RoundUp(kind.task->body_bytes));
    most_forms = std::max(most_forms, kind.task->forms.size());
  }
  // The fastest forms that leave room for a deep ring, or else for the deepest. Slower products are better than
  // attention of very few warps.
  std::optional<RunCall> best;
  for (const FormChoice& first : {FormChoice{0, 0, kEnoughAttentionThreads},
                                  {most_forms, 0, kEnoughAttentionThreads},
                                  {0, 0, 0},
                                  {most_forms, 0, 0}}) {
    for (FormChoice choice = first; choice.of_others < most_forms; ++choice.of_others) {
      std::optional<RunCall> made = InForms(kinds, choice, run);
      if (!made.has_value()) continue;
      const int64_t room = target.shared_bytes - kRunSharedBytes - made->SharedBytes();
      made->stages = std::min(static_cast<int>(room / run.stage_bytes), kMostRunStages);
      if (made->stages >= 2 && (!best.has_value() || made->stages > best->stages)) best = std::move(made);
      if (best.has_value() && best->stages >= kDeepRing) return best;
    }
  }
  return best;
}

// A run as it grows.
struct Draft {
  std::vector<KernelCall> kinds;
  std::map<std::string, int> known;  // the kinds, by their texts
  std::optional<RunCall> arranged;
  std::vector<RunCall::Item> tasks;
  int64_t words = 0, row_words = 0;
  int products = 0, rows = 0;
  bool is_full = false;  // no room for more arguments: the next draft may begin with what comes

  // Adds the call, or says why not.
  std::string Add(const KernelCall& call, const Target& target) {
    const int64_t own = static_cast<int64_t>(call.params.size()) + kTileWords;
    if ((is_full = words + own > kMostWords)) return absl::StrCat("a launch takes ", kMostWords, " words of arguments");
    const bool is_product = call.task->stage_bytes > 0;
    const auto [kind, is_new] = known.try_emplace(TaskText(call), static_cast<int>(kinds.size()));
    if (is_new) {
      kinds.push_back(call);
      std::optional<RunCall> more;
      const bool streams = absl::c_any_of(kinds, [](const KernelCall& k) { return k.task->stage_bytes > 0; });
      if (streams && !(more = Arrange(kinds, target)).has_value()) {
        return absl::StrCat(call.Name(), " does not fit beside the others");
      }
      arranged = std::move(more);
    }
    products += is_product ? 1 : 0;
    if (call.task->has_given) row_words = std::max(row_words, (call.task->given_numbers + 31) / 32 * 32);
    rows += call.task->has_taken ? 1 : 0;
    if (call.task->is_attention && call.task->has_taken) {
      const size_t giver = tasks.size() - (call.task->before != nullptr ? 2 : 1);
      tasks[giver].next = static_cast<int>(tasks.size());
    }
    tasks.push_back({kind->second, words});
    words += own;
    return "";
  }
};

// Tasks whose row nobody takes give it all the same if they are of a kind with others then, as the last layer's: a kind
// takes time to compile, and place where instructions are kept.
void GiveAsOthersDo(std::vector<KernelCall>* calls, size_t first, size_t end) {
  std::set<std::string> kinds;
  for (size_t i = first; i < end; ++i) {
    if ((*calls)[i].task->has_given) kinds.insert(TaskText((*calls)[i]));
  }
  for (size_t i = first; i < end; ++i) {
    KernelCall::Task& task = *(*calls)[i].task;
    // What attention makes would be in memory no more, and what turns heads gives nothing.
    if (task.has_given || task.gives.empty() || task.is_attention || task.turns_heads) continue;
    task.has_given = true;
    task.has_given = kinds.contains(TaskText((*calls)[i]));
  }
}

// The tasks from `first` up to `end` as a run, with the rows that they can pass; nothing if that does not fit.
std::optional<Draft> WithRows(std::vector<KernelCall> calls, size_t first, size_t end, const Target& target) {
  PassRows(&calls, first, end);
  GiveAsOthersDo(&calls, first, end);
  Draft draft;
  for (size_t i = first; i < end; ++i) {
    if (!draft.Add(calls[i], target).empty()) return std::nullopt;
  }
  return draft;
}

// Adds the run, and tells of it.
std::string AddRun(const Draft& draft, size_t first, TaskWriter* writer, plan::Program* program) {
  RunCall run = *draft.arranged;
  run.tasks = draft.tasks;
  run.words = draft.words;
  run.row_words = draft.row_words;
  writer->AddRun(run, static_cast<uint32_t>(first), program);
  return absl::StrCat("tasks ", first, " to ", first + draft.tasks.size() - 1, " are one launch, with a ring of ",
                      run.stages, " stages of ", run.stage_bytes, " bytes; ", draft.rows,
                      " of them give what they make to the next as a row of numbers");
}

}  // namespace

// Tasks that can be one launch, as many as follow each other.
struct PersistentRuns::Stretch {
  size_t first = 0, end = 0;
  Draft draft;
  std::string misfit;  // why task `end` is in it no more

  bool IsRun() const { return draft.products >= kLeastProducts; }
  // Those from number `i` on of which each goes on where the one before was full.
  static absl::Span<Stretch> GroupFrom(size_t i, std::vector<Stretch>* all) {
    size_t end = i + 1;
    while (end < all->size() && (*all)[end - 1].draft.is_full) ++end;
    return absl::MakeSpan(*all).subspan(i, end - i);
  }
};

// Why tasks are launches: all that have one reason in one line, for they may be those of each layer.
class PersistentRuns::Reasons {
 public:
  void Add(const std::string& reason, const std::string& tasks) {
    const auto it = absl::c_find_if(all_, [&](const auto& one) { return one.first == reason; });
    (it == all_.end() ? all_.emplace_back(reason, std::vector<std::string>()) : *it).second.push_back(tasks);
  }
  std::vector<std::string> Lines() const {
    std::vector<std::string> lines;
    for (const auto& [reason, tasks] : all_) {
      const size_t shown = std::min<size_t>(tasks.size(), 3), more = tasks.size() - shown;
      lines.push_back(absl::StrCat(reason, ": ",
                                   tasks.size() > 1 || absl::StrContains(tasks[0], ' ') ? "tasks " : "task ",
                                   absl::StrJoin(tasks.begin(), tasks.begin() + shown, ", "),
                                   more > 0 ? absl::StrCat(" and ", more, " more") : ""));
    }
    return lines;
  }
  std::vector<std::string> WithoutTasks() const {
    std::vector<std::string> lines;
    for (const auto& [reason, tasks] : all_) lines.push_back(reason);
    return lines;
  }

 private:
  std::vector<std::pair<std::string, std::vector<std::string>>> all_;
};

std::vector<PersistentRuns::Stretch> PersistentRuns::Stretches() const {
  std::vector<KernelCall> calls;
  for (const Entry& entry : entries_) calls.push_back(entry.call);
  calls.push_back(outputs_.call);
  std::vector<Stretch> stretches;
  for (size_t first = 0; first < entries_.size(); first = std::max(stretches.back().end, first + 1)) {
    Stretch& stretch = stretches.emplace_back();
    stretch.first = stretch.end = first;
    for (; stretch.end < entries_.size(); ++stretch.end) {
      const Entry& entry = entries_[stretch.end];
      stretch.misfit = entry.misfit.empty() ? stretch.draft.Add(entry.call, target_) : entry.misfit;
      if (!stretch.misfit.empty()) break;
    }
    if (!stretch.IsRun()) continue;
    std::optional<Draft> with_rows = WithRows(calls, first, stretch.end, target_);
    if (with_rows.has_value()) {
      with_rows->is_full = stretch.draft.is_full;
      stretch.draft = *std::move(with_rows);
    }
  }
  return stretches;
}

// Why `stretches`, which are a group, had better be launches, where nobody asked for runs: nothing if they had not.
std::string PersistentRuns::WhyLaunches(absl::Span<const Stretch> stretches, double least_weight_bytes) const {
  if (least_weight_bytes == 0) return "";
  const size_t first = stretches.front().first, end = stretches.back().end, count = end - first;
  double sum = 0;
  for (size_t i = first; i < end; ++i) sum += entries_[i].weight_bytes;
  if (sum < least_weight_bytes * static_cast<double>(count)) {
    return absl::StrFormat("they read %.2f MB of weights each, on average, and one launch is faster from %.2f MB on",
                           sum / 1e6 / static_cast<double>(count), least_weight_bytes / 1e6);
  }
  if (2 * count < entries_.size()) {
    return absl::StrCat("they are not most of the ", entries_.size(), " tasks, and runs begin and end with all blocks");
  }
  for (const Stretch& stretch : stretches) {
    if (!stretch.IsRun()) continue;
    const RunCall& run = *stretch.draft.arranged;
    if (run.stages < kDeepRing) {
      return absl::StrCat("there is room for ", run.stages, " stages, which run dry while blocks wait for each other");
    }
    if (run.math_warps > kMostWarps) {
      return absl::StrCat("their products want ", run.math_warps,
                          " warps, beside which attention has too few registers");
    }
  }
  return "";
}

void PersistentRuns::Add(const DeviceCall& call, const std::vector<plan::Sampling>& kinds, double weight_bytes) {
  Entry& entry = entries_.emplace_back();
  entry.weight_bytes = weight_bytes;
  entry.misfit = MisfitOf(call, kinds);
  if (const auto* kernel = std::get_if<KernelCall>(&call)) {
    entry.call = *kernel;
  } else if (const auto* gemm = std::get_if<GemmCall>(&call)) {
    for (const Value* read : {gemm->x, gemm->weight, gemm->bias, gemm->residual}) entry.AddRead(read);
  } else {
    entry.AddRead(std::get<CopyCall>(call).from);
  }
}

std::vector<PersistentRuns::Stretch> PersistentRuns::Chosen(double least_weight_bytes, Reasons* reasons) const {
  std::vector<Stretch> stretches = Stretches(), chosen;
  for (size_t i = 0; i < stretches.size();) {
    const absl::Span<Stretch> group = Stretch::GroupFrom(i, &stretches);
    i += group.size();
    const std::string why = WhyLaunches(group, least_weight_bytes);
    for (Stretch& stretch : group) {
      if (stretch.IsRun() && why.empty()) {
        chosen.push_back(stretch);
      } else if (stretch.IsRun()) {
        reasons->Add(absl::StrCat("launches, since ", why), absl::StrCat(stretch.first, " to ", stretch.end - 1));
      }
      // The first task of a stretch that is empty ended the one before.
      const bool is_told = stretch.end == stretch.first && stretch.first > 0;
      if (stretch.misfit.empty() || is_told) continue;
      const bool fits_elsewhere = entries_[stretch.end].misfit.empty();
      reasons->Add(
          absl::StrCat(fits_elsewhere ? "in no run with those before" : "in no run", ", since ", stretch.misfit),
          absl::StrCat(stretch.end));
    }
  }
  return chosen;
}

std::optional<std::vector<std::string>> PersistentRuns::WhyNone(double least_weight_bytes) const {
  Reasons reasons;
  if (!Chosen(least_weight_bytes, &reasons).empty()) return std::nullopt;
  return reasons.WithoutTasks();
}

std::vector<std::string> PersistentRuns::Write(double least_weight_bytes, TaskWriter* writer,
                                               plan::Program* program) const {
  Reasons reasons;
  std::vector<std::string> lines;
  for (const Stretch& stretch : Chosen(least_weight_bytes, &reasons)) {
    lines.push_back(AddRun(stretch.draft, stretch.first, writer, program));
  }
  for (std::string& line : reasons.Lines()) lines.push_back(std::move(line));
  return lines;
}

}  // namespace llmc
