#include "passes/pipeline.h"

#include <chrono>

#include "absl/container/flat_hash_set.h"
#include "absl/strings/ascii.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "ir/op.h"
#include "ir/text.h"
#include "passes/dump.h"
#include "passes/numerics.h"
#include "passes/passes.h"

namespace llmc {
namespace {

constexpr Pass kPipeline[] = {
    // First, so that every later pass sees the types that run.
    {"retype", "gives all floating point the type of --dtype", Retype, Phase::kImported},
    {"fold-constants", "evaluates ops whose inputs are all known", FoldConstants, Phase::kImported},
    {"simplify", "algebra, movement ops and common subexpressions, to a fixed point", Simplify, Phase::kRaised},
    {"fuse", "merges ops that share a kernel", Fuse, Phase::kFused},
    // After fuse, which makes concats of weights: they run once at load, not in every step.
    {"hoist-weights", "moves weight-only ops from step to prepare", HoistWeights, Phase::kFused},
};
constexpr int kNumPasses = std::size(kPipeline);

std::string Label(int number) {
  return absl::StrFormat("%02d %s", number, number == 0 ? "import" : std::string(kPipeline[number - 1].name));
}

absl::Status InferAll(Model* model) {
  std::vector<Block*> blocks = {&model->prepare};
  for (const auto& step : model->steps) blocks.push_back(&step->block);
  for (Block* block : blocks) {
    for (const auto& node : block->nodes) {
      if (absl::Status status = model->Reinfer(node.get()); !status.ok()) {
        return absl::InternalError(absl::StrCat(status.message(), "\n  in: ", PrintNode(*node)));
      }
    }
  }
  return absl::OkStatus();
}

#ifdef LLMC_DEBUG_CHECKS
absl::Status CheckRoundTrip(const Model& model) {
  const std::string text = PrintModel(model);
  absl::StatusOr<std::unique_ptr<Model>> again = ParseModel(text, "printed");
  if (!again.ok()) return absl::InternalError(absl::StrCat("its text does not parse: ", again.status().message()));
  if (PrintModel(**again) != text) return absl::InternalError("its text changes when it is parsed and printed again");
  return absl::OkStatus();
}
#else
absl::Status CheckRoundTrip(const Model&) { return absl::OkStatus(); }
#endif

class PipelineRun {
 public:
  PipelineRun(Model* model, const PipelineOptions& options, Ledger* ledger)
      : model_(model), options_(options), ledger_(ledger), dump_(options.dump_dir) {}

  absl::Status Run() {
    if (absl::Status status = ChooseRange(); !status.ok()) return status;
    const Phase phase = first_ < 2 ? Phase::kImported : kPipeline[first_ - 2].phase;
    if (absl::Status status = Check(phase); !status.ok()) return Prefixed(first_ - 1, status);
    if (absl::Status status = dump_.Begin(*model_, options_.target, Label(first_ - 1)); !status.ok()) {
      return status;
    }
    if (absl::Status status = TakeNumbers(first_ - 1, false); !status.ok()) return status;
    for (int number = first_; number <= last_; ++number) {
      if (skipped_.contains(number)) continue;
      if (absl::Status status = RunPass(number); !status.ok()) return Prefixed(number, status);
    }
    return dump_.End();
  }

 private:
  static absl::Status Prefixed(int number, const absl::Status& status) {
    return absl::Status(status.code(), absl::StrCat("pass ", Label(number), ": ", status.message()));
  }

  absl::Status ChooseRange() {
    first_ = 1;
    last_ = kNumPasses;
    if (!options_.from.empty()) {
      absl::StatusOr<int> number = ParsePassNumber(options_.from);
      if (!number.ok()) return number.status();
      first_ = std::max(1, *number);
    }
    if (!options_.stop_after.empty()) {
      absl::StatusOr<int> number = ParsePassNumber(options_.stop_after);
      if (!number.ok()) return number.status();
      last_ = std::min(kNumPasses, *number);
    }
    for (const std::string& text : options_.skip) {
      absl::StatusOr<int> number = ParsePassNumber(text);
      if (!number.ok()) return number.status();
      skipped_.insert(*number);
    }
    return absl::OkStatus();
  }

  absl::Status RunPass(int number) {
    const Pass& pass = kPipeline[number - 1];
    const auto start = std::chrono::steady_clock::now();
    const std::map<std::string, int64_t> fired_before = ledger_->FiredCounts();
    if (absl::Status status = pass.run(model_, {.options = &options_, .ledger = ledger_}); !status.ok()) return status;
    RemoveDeadOps(model_);
    if (absl::Status status = InferAll(model_); !status.ok()) return status;
    if (absl::Status status = Check(PhaseAfter(number)); !status.ok()) return status;
    if (absl::Status status = TakeNumbers(number, pass.run != Retype); !status.ok()) return status;
    const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - start;
    return dump_.Add(*model_, Label(number), *ledger_, fired_before, seconds.count());
  }

  // What a skipped pass would have removed may still be there.
  Phase PhaseAfter(int number) const {
    for (int i = 1; i <= number; ++i) {
      if (skipped_.contains(i) && kPipeline[i - 1].phase != Phase::kImported) return Phase::kImported;
    }
    return kPipeline[number - 1].phase;
  }

  absl::Status Check(Phase phase) {
    if (absl::Status status = Verify(*model_, phase); !status.ok()) return status;
    return CheckRoundTrip(*model_);
  }

  // With --check-numerics: evaluates the model and compares with what it gave before.
  absl::Status TakeNumbers(int number, bool compare) {
    if (!options_.check_numerics) return absl::OkStatus();
    absl::StatusOr<NamedTensors> results = EvaluateSmall(*model_, 1);
    if (!results.ok()) return Prefixed(number, results.status());
    absl::Status status = compare ? CompareResults(numbers_, *results, CoarsestFloat(*model_)) : absl::OkStatus();
    numbers_ = *std::move(results);
    return status;
  }

  Model* model_;
  const PipelineOptions& options_;
  Ledger* ledger_;
  Dump dump_;
  int first_ = 1;
  int last_ = kNumPasses;
  absl::flat_hash_set<int> skipped_;
  NamedTensors numbers_;
};

}  // namespace

absl::Span<const Pass> Pipeline() { return kPipeline; }

absl::StatusOr<int> ParsePassNumber(absl::string_view text) {
  int number = -1;
  // The number after the last pass is where the last dump resumes: nothing is left to run.
  if (absl::SimpleAtoi(text, &number) && number >= 0 && number <= kNumPasses + 1) return number;
  if (text == "import") return 0;
  std::string names = "0 import";
  for (int i = 0; i < kNumPasses; ++i) {
    if (text == kPipeline[i].name) return i + 1;
    absl::StrAppend(&names, ", ", i + 1, " ", kPipeline[i].name);
  }
  return absl::InvalidArgumentError(absl::StrCat("there is no pass '", text, "'; passes are ", names));
}

absl::Status RunPipeline(Model* model, const PipelineOptions& options, Ledger* ledger) {
  Ledger own;
  return PipelineRun(model, options, ledger == nullptr ? &own : ledger).Run();
}

int64_t RemoveDeadOps(Model* model) {
  absl::flat_hash_set<const Value*> outputs;
  std::vector<Block*> blocks;
  for (const auto& step : model->steps) {
    blocks.push_back(&step->block);
    for (const Output& output : step->outputs) outputs.insert(output.value);
  }
  blocks.push_back(&model->prepare);
  int64_t removed = 0;
  for (Block* block : blocks) {
    for (auto it = block->nodes.end(); it != block->nodes.begin();) {
      Node* node = (--it)->get();
      if ((node->op->info.flags & kWritesState) != 0) continue;
      bool used = false;
      for (const Value* result : node->results) used = used || !result->users.empty() || outputs.contains(result);
      if (used) continue;
      ++it;
      model->Erase(node);
      ++removed;
    }
  }
  model->RemoveUnusedWeights();
  return removed;
}

}  // namespace llmc
