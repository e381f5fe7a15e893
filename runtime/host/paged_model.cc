#include "runtime/host/paged_model.h"

#include <algorithm>
#include <bit>
#include <limits>

#include "absl/algorithm/container.h"
#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "ir/ops_lm.h"
#include "ir/state_type.h"
#include "ir/step_inputs.h"
#include "ir/text.h"
#include "runtime/engine/executor.h"

namespace llmc {
namespace {

constexpr int64_t kMaxPageBytes = int64_t{1} << 40;

absl::Status Wrong(absl::string_view what) {
  return absl::InvalidArgumentError(absl::StrCat("language model: ", what));
}

const Step* FindMain(const Model& model) {
  for (const auto& step : model.steps) {
    if (step->name == "main") return step.get();
  }
  return nullptr;
}

// The largest size of a dim that is a number or a symbol.
absl::Status ReadBound(const Model& model, const Value& value, size_t axis, int64_t* bound) {
  const Dims& shape = value.type.shape;
  if (axis < shape.size() && shape[axis].is_constant()) {
    *bound = shape[axis].value();
  } else if (const auto it = axis < shape.size() ? model.dims.find(shape[axis].ToString()) : model.dims.end();
             it != model.dims.end()) {
    *bound = it->second;
  }
  if (*bound >= 1) return absl::OkStatus();
  return Wrong(absl::StrCat("axis ", axis, " of ", value.name, " ", TypeText(value), " has no size or bound"));
}

// The pool that a state lies in; nullptr if the step gives it no pages.
StatePool* FindPool(const StateType& state, const StepContract& contract, PagedModel* paged) {
  const std::string dim = state.count.ToString();
  const std::optional<size_t> index = contract.PoolOf(dim);
  if (!index.has_value()) return nullptr;
  StatePool& pool = paged->pools[*index];
  if (pool.dim.empty()) pool.dim = dim;
  return pool.dim == dim ? &pool : nullptr;
}

absl::Status AddState(const Value& state, const StepContract& contract, PagedModel* paged) {
  const auto wrong = [&](absl::string_view what) {
    return Wrong(absl::StrCat("the state ", state.name, " ", TypeText(state), what));
  };
  const StateType& type = *state.state;
  if (type.kind != StateKind::kPaged || !type.count.is_symbol()) {
    return wrong(" is no cache of as many pages as a run has room for");
  }
  StatePool* pool = FindPool(type, contract, paged);
  if (pool == nullptr) return wrong(" is of no pool of the step's inputs");
  if (pool->page_size == 0) pool->page_size = type.page_size;
  if (type.page_size != pool->page_size) {
    return wrong(absl::StrCat(" has pages of another size than other states, of ", pool->page_size, " tokens"));
  }
  if (type.RecordBytes() > kMaxPageBytes - pool->page_bytes) return wrong(" is too large");
  pool->page_bytes += type.RecordBytes();
  return absl::OkStatus();
}

absl::Status ReadVocabulary(const Step& step, PagedModel* paged) {
  for (const Output& output : step.outputs) {
    const Dims& shape = output.value->type.shape;
    if (output.name != "logits" || shape.size() != 2 || !shape[1].is_constant() || shape[1].value() < 1) continue;
    paged->vocab_size = shape[1].value();
    return absl::OkStatus();
  }
  return Wrong("it has no output \"logits\" [R, vocabulary]");
}

absl::Status ReadBounds(const Model& model, PagedModel* paged) {
  const Step& step = *paged->step;
  constexpr int64_t kMostSlots = std::numeric_limits<int32_t>::max();
  int64_t tokens = 0, rows = 0, pages = 0;
  absl::Status status = ReadBound(model, *FindInput(step, StepRole::kTokenIds), 0, &tokens);
  status.Update(ReadBound(model, *FindInput(step, StepRole::kRows), 0, &rows));
  status.Update(ReadBound(model, *FindInput(step, StepRole::kLengths), 0, &paged->max_sequences));
  status.Update(ReadBound(model, *FindInput(step, StepRole::kPageTable), 1, &pages));
  int64_t smallest = kMaxPageSize, largest = 0;
  for (const StatePool& pool : paged->pools) {
    smallest = std::min(smallest, pool.page_size);
    largest = std::max(largest, pool.page_size);
  }
  paged->max_pages = kMostSlots / largest;
  for (const Value* state : model.states) {
    int64_t of_pool = 0;
    status.Update(ReadBound(model, *state, 0, &of_pool));
    if (!status.ok()) return status;
    RETURN_IF_ERROR(CheckHoldsPage(state->state->count.ToString(), of_pool, state->state->page_size, largest));
    paged->max_pages = std::min(paged->max_pages, of_pool / (largest / state->state->page_size));
  }
  if (!status.ok()) return status;
  paged->max_step_tokens = tokens;
  paged->max_step_logits = rows;
  paged->max_sequences = std::min(paged->max_sequences, rows);
  // Positions are 32-bit numbers, too.
  paged->max_context = std::min(pages, kMostSlots / smallest) * smallest;
  return absl::OkStatus();
}

// Ends of pages must meet: prefixes are shared at them (runtime/engine/page_pool.h).
absl::Status CheckPageSizes(const PagedModel& paged) {
  for (const StatePool& pool : paged.pools) {
    const bool is_power = std::has_single_bit(static_cast<uint64_t>(pool.page_size));
    if (is_power || absl::c_all_of(paged.pools, [&](const auto& other) { return other.page_size == pool.page_size; })) {
      continue;
    }
    return Wrong(absl::StrCat("the pool ", pool.dim, " has pages of ", pool.page_size,
                              " tokens and others have not, so the size must be a power of two"));
  }
  return absl::OkStatus();
}

// The largest of the ops that read the pool's states.
int64_t WindowOf(const Step& step, const StatePool& pool) {
  int64_t window = 0;
  for (const auto& node : step.block.nodes) {
    if (!node->op->info.Has(kReadsState)) continue;
    const bool reads = absl::c_any_of(node->operands, [&](const Value* operand) {
      return operand != nullptr && operand->kind == ValueKind::kState && operand->type.shape[0].ToString() == pool.dim;
    });
    if (!reads) continue;
    const int64_t own = Is<PagedAttention>(node.get()) ? View<PagedAttention>(*node).Range().Most() : 0;
    if (own == 0) return 0;
    window = std::max(window, own);
  }
  return window;
}

}  // namespace

bool IsPagedLanguageModel(const Model& model) {
  const Step* step = FindMain(model);
  if (step == nullptr) return false;
  const absl::StatusOr<StepContract> contract = ContractOf(*step);
  return contract.ok() && contract->is_paged();
}

absl::StatusOr<PagedModel> DescribePagedModel(const Model& model) {
  if (!IsPagedLanguageModel(model)) return Wrong("it has no step \"main\" with the inputs of a paged model");
  if (model.states.empty()) return Wrong("it has no KV cache");
  PagedModel paged{.step = FindMain(model)};
  ASSIGN_OR_RETURN(const StepContract contract, ContractOf(*paged.step));
  paged.pools.resize(contract.pools().size());
  for (const Value* state : model.states) {
    RETURN_IF_ERROR(AddState(*state, contract, &paged));
  }
  for (size_t i = 0; i < paged.pools.size(); ++i) {
    if (paged.pools[i].dim.empty()) return Wrong(absl::StrCat("the pool ", contract.pools()[i], " has no states"));
  }
  absl::Status status = CheckPageSizes(paged);
  if (status.ok()) status = ReadVocabulary(*paged.step, &paged);
  if (status.ok()) status = ReadBounds(model, &paged);
  if (!status.ok()) return status;
  for (StatePool& pool : paged.pools) pool.window = WindowOf(*paged.step, pool);
  return paged;
}

}  // namespace llmc
