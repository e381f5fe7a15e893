#include "passes/pipeline.h"

#include <algorithm>
#include <chrono>

#include "absl/algorithm/container.h"
#include "absl/container/flat_hash_set.h"
#include "absl/strings/ascii.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "base/status_macros.h"
#include "ir/op.h"
#include "ir/text.h"
#include "passes/driver/dump.h"
#include "passes/driver/infer.h"
#include "passes/driver/numerics.h"
#include "passes/passes.h"
#include "passes/proof/count_check.h"
#include "passes/proof/rounding_check.h"
#include "passes/rules/rule_lists.h"

namespace llmc {
namespace {

constexpr Pass kPipeline[] = {
    // First, so that every later pass sees the types that run.
    {"retype", "gives floats the type of --dtype", Retype, Phase::kImported},
    {"fold-constants", "evaluates ops whose inputs are all known", FoldConstants, Phase::kImported},
    {"simplify", "algebra, movement ops and common subexpressions, to a fixed point", Simplify, Phase::kRaised},
    // After simplify, which leaves one spelling of what exporters write in many.
    {"raise", "recognizes norms, activations, rotary embeddings, attention and quantized products", Raise,
     Phase::kRaised},
    // After raise, which finds what stands for what; it simplifies what it makes.
    {"paginate", "makes a decoder over whole sequences a program of tokens with a paged cache", Paginate,
     Phase::kRaised},
    {"fuse", "merges weights whose products share an input", Fuse, Phase::kFused},
    // After fuse, which makes concats of weights: they run once at load, not in every step.
    {"hoist-weights", "moves weight-only ops from step to prepare", HoistWeights, Phase::kFused},
};
constexpr int kNumPasses = std::size(kPipeline);

std::string Label(int number) {
  return absl::StrFormat("%02d %s", number, number == 0 ? "import" : std::string(kPipeline[number - 1].name));
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

absl::StatusOr<int> ParseNumber(absl::string_view text, int last) {
  int number = -1;
  if (absl::SimpleAtoi(text, &number) && number >= 0 && number <= last) return number;
  if (text == "import") return 0;
  std::string names = "0 import";
  for (int i = 0; i < kNumPasses; ++i) {
    if (text == kPipeline[i].name) return i + 1;
    absl::StrAppend(&names, ", ", i + 1, " ", kPipeline[i].name);
  }
  return absl::InvalidArgumentError(absl::StrCat("there is no pass '", text, "'; passes are ", names));
}

std::string FlagsOf(const PipelineOptions& options) {
  const Pagination when = options.pagination;
  return absl::StrCat(when == Pagination::kNever      ? " --no-paginate"
                      : when == Pagination::kRequired ? " --paginate"
                                                      : "",
                      options.page_sizes.empty() ? "" : " ", absl::StrJoin(options.page_sizes.Flags(), " "),
                      options.kv.empty() ? "" : absl::StrCat(" --kv=\"", options.kv, "\""));
}

class PipelineRun {
 public:
  PipelineRun(Model* model, const PipelineOptions& options, Ledger* ledger)
      : model_(model),
        options_(options),
        ledger_(ledger),
        dump_(options.dump_dir, FlagsOf(options), options.weight_flags) {}

  absl::Status Run() {
    RETURN_IF_ERROR(ChooseRange());
    const Phase phase = first_ < 2 ? Phase::kImported : kPipeline[first_ - 2].phase;
    if (absl::Status status = CheckStart(phase); !status.ok()) return Prefixed(first_ - 1, status);
    RETURN_IF_ERROR(dump_.Begin(*model_, options_.target, Label(first_ - 1)));
    if (absl::Status status = TakeNumbers(Compare::kNot, std::nullopt); !status.ok())
      return Prefixed(first_ - 1, status);
    if (options_.after) options_.after({first_ - 1, Label(first_ - 1).substr(3), 0, model_});
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
    // A text whose steps are lowered is past all passes.
    const bool is_lowered = absl::c_any_of(model_->steps, [](const auto& step) { return !step->kernels.empty(); });
    first_ = is_lowered ? kNumPasses + 1 : 1;
    last_ = kNumPasses;
    if (!options_.from.empty()) {
      // The number after the last pass is where the last dump resumes: nothing is left to run.
      ASSIGN_OR_RETURN(int number, ParseFirstPassNumber(options_.from));
      first_ = std::max(1, number);
    }
    if (!options_.stop_after.empty()) {
      ASSIGN_OR_RETURN(int number, ParsePassNumber(options_.stop_after));
      last_ = number;
      if (!options_.from.empty() && first_ > std::max(1, last_)) {
        return absl::InvalidArgumentError(
            absl::StrCat("--from=", options_.from, " --stop-after=", options_.stop_after, " leaves no pass to run"));
      }
    }
    for (const std::string& text : options_.skip) {
      ASSIGN_OR_RETURN(int number, ParsePassNumber(text));
      skipped_.insert(number);
    }
    return CheckPagination();
  }

  // What must happen must be among what runs.
  absl::Status CheckPagination() const {
    const bool paginates = options_.pagination == Pagination::kRequired && model_->states.empty();
    if (!paginates && options_.page_sizes.empty() && options_.kv.empty()) return absl::OkStatus();
    for (int number = first_; number <= last_; ++number) {
      if (kPipeline[number - 1].run == Paginate && !skipped_.contains(number)) return absl::OkStatus();
    }
    return absl::InvalidArgumentError(absl::StrCat(paginates                     ? "--paginate"
                                                   : options_.page_sizes.empty() ? "--kv"
                                                                                 : "--page-size",
                                                   ": the pass paginate is not among those that run"));
  }

  absl::Status RunPass(int number) {
    const Pass& pass = kPipeline[number - 1];
    const auto start = std::chrono::steady_clock::now();
    const std::map<std::string, int64_t> fired_before = ledger_->FiredCounts();
    std::optional<CountCheck> counts;
    if (options_.check_numerics && options_.dtype.has_value() && pass.run == Retype) counts.emplace(*model_);
    std::optional<RoundingCheck> rounding;
    if (options_.check_numerics && DTypeBits(CoarsestFloat(*model_)) <= 16) rounding.emplace(*model_);
    RETURN_IF_ERROR(pass.run(model_, {.options = &options_, .ledger = ledger_}));
    RemoveDeadOps(model_);
    if (absl::Status status = InferAgain(model_); !status.ok()) return absl::InternalError(status.message());
    RETURN_IF_ERROR(Check(PhaseAfter(number)));
    RETURN_IF_ERROR(TakeNumbers(CompareAfter(pass, fired_before), rounding));
    if (counts.has_value()) {
      RETURN_IF_ERROR(counts->Compare(*model_));
    }
    const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - start;
    if (options_.after) options_.after({number, pass.name, seconds.count(), model_});
    return dump_.Add(*model_, Label(number), *ledger_, fired_before, seconds.count());
  }

  // What a skipped pass would have removed may still be there.
  Phase PhaseAfter(int number) const {
    for (int i = 1; i <= number; ++i) {
      if (skipped_.contains(i) && kPipeline[i - 1].phase != Phase::kImported) return Phase::kImported;
    }
    return kPipeline[number - 1].phase;
  }

  // A text that someone resumes may not be what the pass before leaves.
  absl::Status CheckStart(Phase phase) {
    absl::Status status = Check(phase);
    if (status.ok() || options_.from.empty()) return status;
    return absl::InvalidArgumentError(
        absl::StrCat("the model is not as this pass leaves it: ", status.message(), "\nChoose an earlier --from."));
  }

  absl::Status Check(Phase phase) {
    RETURN_IF_ERROR(Verify(*model_, phase));
    return CheckRoundTrip(*model_);
  }

  enum class Compare { kNot, kBits, kRounded };
  Compare CompareAfter(const Pass& pass, const std::map<std::string, int64_t>& fired_before) const {
    if (pass.run == Retype && options_.dtype.has_value()) return Compare::kNot;
    if (pass.run == Paginate && !model_->states.empty()) return Compare::kNot;  // has other inputs, or other pages
    return MayRound(*ledger_, fired_before, *model_) ? Compare::kRounded : Compare::kBits;
  }

  // With --check-numerics: evaluates the model and compares with what it gave before. `rounding` judges differences of
  // models that compute in 16 bits.
  absl::Status TakeNumbers(Compare compare, const std::optional<RoundingCheck>& rounding) {
    if (!options_.check_numerics) return absl::OkStatus();
    if (compare == Compare::kNot) {
      ASSIGN_OR_RETURN(SmallRun run, RunSmall(*model_, 1));
      inputs_ = std::move(run.inputs);
      numbers_ = std::move(run.outputs);
      return absl::OkStatus();
    }
    ASSIGN_OR_RETURN(NamedTensors results, EvaluateSmall(*model_, inputs_));
    absl::Status status = absl::OkStatus();
    if (compare == Compare::kBits) status = CompareResults(numbers_, results);
    if (compare == Compare::kRounded) status = CompareResults(numbers_, results, CoarsestFloat(*model_));
    if (!status.ok() && compare == Compare::kRounded && rounding.has_value()) {
      const absl::Status wrong = rounding->Compare(*model_, inputs_, numbers_, results);
      if (!wrong.ok()) return absl::InternalError(absl::StrCat(status.message(), "; ", wrong.message()));
      status = absl::OkStatus();
    }
    numbers_ = std::move(results);
    return status;
  }

  Model* model_;
  const PipelineOptions& options_;
  Ledger* ledger_;
  Dump dump_;
  int first_ = 1;
  int last_ = kNumPasses;
  absl::flat_hash_set<int> skipped_;
  NamedTensors inputs_, numbers_;
};

// A node is used if another uses its results, or a symbol whose size a run learns from them.
class DeadOps {
 public:
  explicit DeadOps(Model* model) : model_(model) {}

  int64_t Run() {
    for (const auto& step : model_->steps) {
      for (const Output& output : step->outputs) outputs_.insert(output.value);
    }
    for (const auto& step : model_->steps) {
      given_.clear();
      for (const Value* state : model_->states) AddSymbols(state->type.shape, &given_);
      for (const Value* param : step->params) AddSymbols(param->type.shape, &given_);
      Sweep(&step->block);
    }
    given_.clear();
    Sweep(&model_->prepare);
    model_->RemoveUnusedWeights();
    return removed_;
  }

 private:
  using Symbols = absl::flat_hash_set<std::string>;

  static void AddSymbols(const Dims& dims, Symbols* symbols) {
    for (const Dim& dim : dims) {
      for (std::string& symbol : dim.Symbols()) symbols->insert(std::move(symbol));
    }
  }

  // From the last node to the first, so that what only dead ops use is dead too.
  void Sweep(Block* block) {
    for (auto it = block->nodes.end(); it != block->nodes.begin();) {
      Node* node = (--it)->get();
      const Symbols told = Told(*node);
      if (IsUsed(*node, told)) {
        MoveNeeds(*node, told);
        continue;
      }
      ++it;
      model_->Erase(node);
      ++removed_;
    }
  }

  // The symbols whose sizes a run may learn from this node.
  Symbols Told(const Node& node) const {
    Symbols told, known;
    for (const Value* result : node.results) {
      for (const Dim& dim : result->type.shape) {
        if (!dim.is_symbol()) continue;
        std::string symbol = dim.Symbols()[0];
        if (!given_.contains(symbol)) told.insert(std::move(symbol));
      }
    }
    if (told.empty()) return told;
    for (const Value* operand : node.operands) {
      if (operand != nullptr) AddSymbols(operand->type.shape, &known);
    }
    for (const auto& [name, attr] : node.attrs) {
      if (const Dims* dims = std::get_if<Dims>(&attr)) AddSymbols(*dims, &known);
    }
    absl::erase_if(told, [&](const std::string& symbol) { return known.contains(symbol); });
    return told;
  }

  bool IsUsed(const Node& node, const Symbols& told) const {
    if ((node.op->info.flags & kWritesState) != 0) return true;
    for (const Value* result : node.results) {
      if (!result->users.empty() || outputs_.contains(result)) return true;
    }
    return std::any_of(told.begin(), told.end(), [&](const std::string& symbol) { return needed_.contains(symbol); });
  }

  // Nodes before it must tell what this one needs, but not what it tells.
  void MoveNeeds(const Node& node, const Symbols& told) {
    for (const Value* result : node.results) {
      for (const Dim& dim : result->type.shape) {
        if (!dim.is_symbol()) AddSymbols({dim}, &needed_);
      }
    }
    for (const std::string& symbol : told) needed_.erase(symbol);
    for (const auto& [name, attr] : node.attrs) {
      if (const Dims* dims = std::get_if<Dims>(&attr)) AddSymbols(*dims, &needed_);
    }
  }

  Model* model_;
  absl::flat_hash_set<const Value*> outputs_;
  Symbols given_;   // by parameters and states
  Symbols needed_;  // by nodes further on
  int64_t removed_ = 0;
};

}  // namespace

absl::Span<const Pass> Pipeline() { return kPipeline; }

std::vector<std::string> PageSizeWishes::Flags() const {
  std::vector<std::string> flags;
  if (all != 0) flags.push_back(absl::StrCat("--page-size=", all));
  for (const auto& [pool, size] : of_pools) flags.push_back(absl::StrCat("--page-size=", pool, "=", size));
  return flags;
}

absl::StatusOr<int> ParsePassNumber(absl::string_view text) { return ParseNumber(text, kNumPasses); }
absl::StatusOr<int> ParseFirstPassNumber(absl::string_view text) { return ParseNumber(text, kNumPasses + 1); }

absl::Status RunPipeline(Model* model, const PipelineOptions& options, Ledger* ledger) {
  Ledger own;
  return PipelineRun(model, options, ledger == nullptr ? &own : ledger).Run();
}

int64_t RemoveDeadOps(Model* model) { return DeadOps(model).Run(); }

}  // namespace llmc
