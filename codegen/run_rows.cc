#include "codegen/run_rows.h"

#include <memory>
#include <optional>
#include <vector>

#include "absl/algorithm/container.h"
#include "absl/strings/string_view.h"

namespace llmc {
namespace {

bool IsSame(const Value* a, const Value* b) { return ViewedValue(a) == ViewedValue(b); }
bool IsOneOf(const Value* value, const std::vector<const Value*>& values) {
  return absl::c_any_of(values, [&](const Value* one) { return IsSame(one, value); });
}
// In any order.
bool AreSame(const std::vector<const Value*>& a, const std::vector<const Value*>& b) {
  return a.size() == b.size() && absl::c_all_of(a, [&](const Value* value) { return IsOneOf(value, b); });
}

std::optional<int64_t> ConstantOf(const KernelCall& call, absl::string_view name) {
  for (const auto& [own, value] : call.constants) {
    if (own == name) return value;
  }
  return std::nullopt;
}

const Value* CacheOf(const KernelCall& call) {
  const auto kv = absl::c_find_if(call.params, [](const KernelParam& param) { return param.name == "kv"; });
  return kv == call.params.end() ? nullptr : kv->arg.value;
}

// What does to heads what the call does.
const KernelCall& AsOne(const KernelCall& call) { return call.task->as_one != nullptr ? *call.task->as_one : call; }

// Numbers of parts where who takes them looks for them.
void GiveInOrder(const std::vector<const Value*>& taken, KernelCall* call) {
  int64_t at = 0;
  for (const Value* value : taken) {
    for (KernelCall& part : call->parts) {
      if (!IsOneOf(value, part.task->gives)) continue;
      part.constants.emplace_back("kGivenAt", at);
      at += part.task->given_numbers;
    }
  }
}

class RowPasser {
 public:
  RowPasser(std::vector<KernelCall>* calls, size_t first, size_t end) : calls_(*calls), first_(first), end_(end) {}

  void Run() {
    for (size_t giver = first_; giver + 1 < end_; ++giver) {
      const KernelCall::Task& next = *calls_[giver + 1].task;
      const bool leaves_out = next.turns_heads && giver + 2 < end_ && calls_[giver + 2].task->is_attention;
      if (leaves_out && Pass(giver, giver + 2)) {
        ++giver;
      } else {
        Pass(giver, giver + 1);
      }
    }
  }

 private:
  // From one task to the next, or to that behind it.
  bool Pass(size_t giver, size_t taker) {
    KernelCall::Task& from = *calls_[giver].task;
    KernelCall::Task& to = *calls_[taker].task;
    // Tasks that turn heads are left out, or write to memory.
    if (from.gives.empty() || to.takes.empty() || from.turns_heads || to.turns_heads) return false;
    KernelCall* between = taker > giver + 1 ? &calls_[giver + 1] : nullptr;
    std::vector<const Value*> given = from.gives;
    if (between != nullptr) {
      if (!AreSame(between->task->takes, given) || ReadersFrom(0, between->task->gives) != 1) return false;
      given = between->task->gives;
    }
    if (!AreSame(to.takes, given)) return false;
    if (to.is_attention && !HaveSameCache(between != nullptr ? AsOne(*between) : calls_[giver], calls_[taker])) {
      return false;
    }
    // Attention writes nothing but the row.
    const bool is_added = to.addend != nullptr && IsOneOf(to.addend, given);
    if (from.is_attention && (is_added || ReadersFrom(0, from.gives) != 1)) return false;
    const bool is_kept = from.has_taken || from.takes.empty() || ReadersFrom(giver + 1, from.takes) > 0;
    if (to.is_attention && !is_kept) return false;
    for (size_t i = giver + 1; i <= taker; ++i) {
      if (!ReadsWhatIsThere(i, giver)) return false;
    }
    from.has_given = to.has_taken = true;
    GiveInOrder(between != nullptr ? between->task->takes : to.takes, &calls_[giver]);
    if (between != nullptr) {
      to.before = std::make_shared<const KernelCall>(AsOne(*between));
      between->task->is_left_out = true;
    }
    return true;
  }

  // Tasks of the program from number `from` on that read any of the values.
  int ReadersFrom(size_t from, const std::vector<const Value*>& values) const {
    int readers = 0;
    for (size_t i = from; i < calls_.size(); ++i) {
      readers += absl::c_any_of(calls_[i].params, [&](const KernelParam& param) {
        return param.arg.value != nullptr && !param.writes() && IsOneOf(param.arg.value, values);
      });
    }
    return readers;
  }

  // Whether all that a task reads but its row can be read if it does not wait. All up to `last` are decided.
  bool ReadsWhatIsThere(size_t task, size_t last) const {
    const KernelCall& call = calls_[task];
    return absl::c_all_of(call.params, [&](const KernelParam& param) {
      const Value* value = param.arg.value;
      if (value == nullptr || param.writes() || param.name == "kv" || IsOneOf(value, call.task->takes)) return true;
      for (size_t i = last + 1; i-- > first_;) {
        const bool writes = absl::c_any_of(calls_[i].params, [&](const KernelParam& other) {
          return other.arg.value != nullptr && other.writes() && IsSame(other.arg.value, value);
        });
        if (writes) return IsOfSameBlocks(calls_[i], call);
        if (i > first_ && !calls_[i].task->has_taken && !calls_[i].task->is_left_out) return true;  // all have waited
      }
      return true;
    });
  }
  // Whether blocks make the same columns of both results.
  static bool IsOfSameBlocks(const KernelCall& a, const KernelCall& b) {
    return a.task->columns > 0 && a.task->columns == b.task->columns && a.task->block_columns == b.task->block_columns;
  }

  std::vector<KernelCall>& calls_;
  size_t first_, end_;
};

}  // namespace

bool HaveSameCache(const KernelCall& writer, const KernelCall& reader) {
  const Value *written = CacheOf(writer), *read = CacheOf(reader);
  if (written == nullptr || read == nullptr || !IsSame(written, read)) return false;
  return absl::c_all_of(std::vector<absl::string_view>{"kKeysAt", "kValuesAt", "kPageElements", "kKvHeads", "kHeadDim"},
                        [&](absl::string_view name) { return ConstantOf(writer, name) == ConstantOf(reader, name); });
}

void PassRows(std::vector<KernelCall>* calls, size_t first, size_t end) { RowPasser(calls, first, end).Run(); }

}  // namespace llmc
