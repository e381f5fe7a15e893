// What plans say of states and of language models.
#include <algorithm>
#include <bit>

#include "absl/algorithm/container.h"
#include "absl/container/flat_hash_set.h"
#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "runtime/plan/dim_expression.h"
#include "runtime/plan/plan_check_internal.h"

namespace llmc::plan::internal {
namespace {

constexpr int64_t kMaxPageSize = 4096;
constexpr uint64_t kMaxRecordBytes = uint64_t{1} << 40, kStateAlignment = 16;

// The components of a state, in their order in its records.
absl::Status CheckComponents(const State& state) {
  absl::flat_hash_set<absl::string_view> names;
  uint64_t end = 0;
  for (const State::Component& component : state.components()) {
    const std::string name = absl::StrCat("component ", component.name(), " of state ", state.name());
    if (component.name().empty() || !names.insert(component.name()).second) return Wrong(name + " is listed twice");
    auto shape = component.shape();
    shape.Add(std::max<int64_t>(state.page_size(), 1));
    uint64_t bytes = 0;
    if (!TensorBytes(component.dtype(), shape, &bytes) || bytes == 0 || bytes != component.bytes()) {
      return Wrong(name + " has a type and a size that do not agree");
    }
    if (component.offset() < end || component.offset() % kStateAlignment != 0 ||
        component.offset() > state.record_bytes() || bytes > state.record_bytes() - component.offset()) {
      return Wrong(name + " has no place of its own");
    }
    end = component.offset() + bytes;
  }
  return absl::OkStatus();
}

absl::Status CheckPools(const Manifest& manifest) {
  absl::flat_hash_set<absl::string_view> pools;
  const auto& all = manifest.language_model().pools();
  const bool one_size = absl::c_all_of(all, [&](const auto& pool) { return pool.page_size() == all[0].page_size(); });
  for (const LanguageModel::Pool& pool : all) {
    if (!pools.insert(pool.dim()).second) return Wrong(absl::StrCat("the pool ", pool.dim(), " is listed twice"));
    if (pool.window() < 0 || pool.window() > int64_t{1} << 31) {
      return Wrong(absl::StrCat("the window of the pool ", pool.dim(), " is out of range"));
    }
    const bool is_power = std::has_single_bit(static_cast<uint64_t>(pool.page_size()));
    if (pool.page_size() < 1 || pool.page_size() > kMaxPageSize || !(one_size || is_power)) {
      return Wrong(absl::StrCat("pages of ", pool.page_size(), " tokens of the pool ", pool.dim(),
                                " are out of range, or no power of two beside others"));
    }
    for (const State& state : manifest.states()) {
      if (state.pool() != pool.dim() || state.page_size() == pool.page_size()) continue;
      return Wrong(absl::StrCat("the state ", state.name(), " has other pages than its pool ", pool.dim()));
    }
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status CheckStates(const Manifest& manifest) {
  absl::flat_hash_set<absl::string_view> names;
  for (const State& state : manifest.states()) {
    const std::string name = absl::StrCat("state ", state.name());
    if (!names.insert(state.name()).second) return Wrong(name + " is listed twice");
    const bool is_paged = state.kind() == State::PAGED;
    if (!is_paged && state.kind() != State::PER_SEQUENCE) return Wrong(name + " is of no kind that there is");
    if (is_paged ? state.page_size() < 1 || state.page_size() > kMaxPageSize : state.page_size() != 0) {
      return Wrong(name + " has pages of a size that is out of range");
    }
    if (!DimExpression::Parse(state.pool()).ok() || state.components().empty() ||
        state.record_bytes() > kMaxRecordBytes || state.record_bytes() % kStateAlignment != 0) {
      return Wrong(name + " has no valid type");
    }
    RETURN_IF_ERROR(CheckComponents(state));
  }
  return absl::OkStatus();
}

absl::Status CheckLanguageModel(const Manifest& manifest) {
  const LanguageModel& lm = manifest.language_model();
  constexpr int64_t kMax = int64_t{1} << 31;
  // Models without paged states may leave sizes open.
  const int64_t least = lm.kv_states_size() == 0 && lm.pools_size() == 0 ? 0 : 1;
  if (lm.vocab_size() < least || lm.vocab_size() > kMax || lm.pools_size() < least || lm.max_context() < least ||
      lm.max_context() > kMax || lm.num_layers() < 0 || lm.num_layers() > 65536) {
    return Wrong("the sizes of the language model are out of range");
  }
  RETURN_IF_ERROR(CheckPools(manifest));
  const int64_t tokens = lm.vocab_size() == 0 ? kMax : lm.vocab_size();
  absl::flat_hash_set<absl::string_view> states;
  for (const State& state : manifest.states()) states.insert(state.name());
  for (const std::string& state : lm.kv_states()) {
    if (!states.contains(state)) return Wrong(absl::StrCat("KV state ", state, " is no state of the model"));
  }
  for (int64_t id : lm.eos_ids()) {
    if (id < 0 || id >= tokens) return Wrong(absl::StrCat("end token ", id, " is outside the vocabulary"));
  }
  if (lm.has_bos_id() && (lm.bos_id() < 0 || lm.bos_id() >= tokens)) {
    return Wrong(absl::StrCat("begin token ", lm.bos_id(), " is outside the vocabulary"));
  }
  return absl::OkStatus();
}

}  // namespace llmc::plan::internal
