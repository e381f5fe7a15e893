// What a language model's step asks for: each of its inputs has a role, and the role says its type, what its axes count
// and where its values come from. Whoever feeds a step (executors, benchmarks, the check of numbers) or plans it goes
// by roles, so inputs may have any names. The roles of a step are in the language (ir/text.h) and in plans.
//
// To add a role: an enumerator, and its row in step_contract.cc. What its values are made of must be in StepSequence.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/container/inlined_vector.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"

namespace llmc {

enum class StepRole : uint8_t {
  kNone,
  kTokenIds,
  kPositions,
  kSlots,
  kPageTable,
  kLengths,
  kStarts,
  kRows,
};

// What an axis of an input counts.
enum class StepAxis : uint8_t {
  kToken,         // tokens of the step, one sequence after the other
  kSequence,      // sequences that have tokens in the step
  kSequenceEdge,  // sequences + 1: where each begins, and where the last one ends
  kRow,           // rows of logits
  kPage,          // pages of the longest sequence, in the pool with the smallest pages
};
inline constexpr int kNumStepAxes = 5;

// Sizes of a step that no input tells, as programs and costs call them: no model's dim has a colon in its name.
inline constexpr absl::string_view kDraws = "step:draws";                 // requests for a token
inline constexpr absl::string_view kSampledForms = "step:sampled_forms";  // 2 if log-probabilities are wanted, else 1
inline constexpr absl::string_view kMessageWords = "step:message_words";  // of 32 bits, that a message has room for
inline constexpr absl::string_view kTableWidth = "step:table_width";      // pages that a page table has room for
// Sums over the sequences of a step.
inline constexpr absl::string_view kAttendedKeys = "step:keys";    // that any query of their sequence sees
inline constexpr absl::string_view kAttendedPairs = "step:pairs";  // of a query and a key that it sees

// Which positions of its sequence a token sees: its own and those before it, of these only the last `window`, or only
// those of its own chunk where sequences are cut into chunks of `chunk`. 0: no such end; never both.
struct AttendedRange {
  int64_t window = 0, chunk = 0;

  int64_t First(int64_t position) const;
  int64_t Most() const { return window != 0 ? window : chunk; }  // positions that a token sees; 0: no end
};
// What one of the two sums is called with that range: "step:keys", "step:keys:128", "step:keys:chunk128".
std::string AttendedSize(absl::string_view name, const AttendedRange& range);

// The page tables of a sequence, one for each pool of the model.
using PoolTables = absl::InlinedVector<absl::Span<const int32_t>, 2>;

// Tokens in the pages of each pool.
using PageSizes = absl::InlinedVector<int64_t, 2>;

// What a step has to know of one sequence.
struct StepSequence {
  absl::Span<const int32_t> ids;  // its tokens in this step
  int64_t position = 0;           // of ids[0]
  PoolTables pages;               // of its cache, as far as they are used after this step
};

// How the tokens of a step are shared out to sequences: all that the values of inputs are made of.
class StepLayout {
 public:
  // `table_width`: pages that the page tables of each pool have room for.
  StepLayout(PageSizes page_sizes, int64_t table_width)
      : page_sizes_(std::move(page_sizes)), table_width_(table_width) {}

  // The tokens of `sequence` come after those of the ones before; of them the last `rows` give rows of logits.
  void Add(const StepSequence& sequence, int64_t rows);
  // One more row, of any token.
  void AddRow(int64_t token) { rows_.push_back(static_cast<int32_t>(token)); }

  int64_t Size(StepAxis axis) const;
  int64_t page_size(size_t pool) const { return page_sizes_[pool]; }
  const StepSequence& sequence(int64_t i) const { return sequences_[static_cast<size_t>(i)]; }
  int64_t SequenceOf(int64_t token) const { return sequence_of_[static_cast<size_t>(token)]; }
  const std::vector<int32_t>& starts() const { return starts_; }
  const std::vector<int32_t>& rows() const { return rows_; }

 private:
  PageSizes page_sizes_;
  int64_t table_width_;
  std::vector<StepSequence> sequences_;
  std::vector<int64_t> sequence_of_;  // by token
  std::vector<int32_t> starts_ = {0}, rows_;
};

struct StepRoleInfo {
  StepRole role = StepRole::kNone;
  absl::string_view name;   // as texts and plans write it
  absl::string_view input;  // what an input of this role is called where nothing else is
  absl::string_view dtype;  // the language's name
  int rank = 1;
  std::array<StepAxis, 2> axes;
  bool of_pool = false;  // its values are places in a pool of pages
  bool needed = false;   // by every executor with a paged cache: without it there is no such step
  // The i-th element, in row-major order; `pool`: the number of the one that it is for.
  int32_t (*element)(const StepLayout& layout, size_t pool, int64_t i) = nullptr;

  absl::Span<const StepAxis> Axes() const { return absl::MakeConstSpan(axes).subspan(0, static_cast<size_t>(rank)); }
};

absl::Span<const StepRoleInfo> StepRoles();
// Not of kNone.
const StepRoleInfo& InfoOf(StepRole role);

std::vector<int64_t> InputShape(StepRole role, const StepLayout& layout);
std::vector<int32_t> InputValues(StepRole role, const StepLayout& layout, size_t pool = 0);

// A role as it is written: "lengths", "slots", or "slots(N512)" with the pool that it is for, where there are several.
// A pool is named by the dim that counts its pages, the first one of the states that lie in it.
struct StepRoleRef {
  StepRole role = StepRole::kNone;
  std::string pool;

  bool operator==(const StepRoleRef&) const = default;
  std::string ToString() const;  // "" of kNone
  // InvalidArgument names the roles that there are.
  static absl::StatusOr<StepRoleRef> Parse(absl::string_view text);
};

// An input of a step, from a model or from a plan.
struct StepInputSpec {
  std::string name;
  std::string role;  // "": none
  std::string dtype;
  std::vector<std::string> shape;  // dims as the language writes them
};

class StepContract {
 public:
  // InvalidArgument: a role that there is not, or that two inputs have; a type or axes that are not its role's.
  static absl::StatusOr<StepContract> Read(const std::vector<StepInputSpec>& inputs);

  // Whether this is the step of a language model with a paged cache: it has all inputs that such a step needs, of each
  // pool, and none without a role.
  bool is_paged() const { return is_paged_; }
  // As inputs name them, in their order; {""} where they name none, so that there is one.
  const std::vector<std::string>& pools() const { return pools_; }
  // The number of a pool by the dim that counts its pages; nothing if there is no such.
  std::optional<size_t> PoolOf(absl::string_view dim) const;
  // What the input with a role is called; empty: there is none.
  const std::string& NameOf(StepRole role, size_t pool = 0) const;
  StepRole RoleOf(absl::string_view name) const { return InputNamed(name).role.role; }
  // The number of the pool that an input is for; 0 if it is for none.
  size_t PoolOfInput(absl::string_view name) const { return InputNamed(name).pool; }
  // The dim that counts along an axis, as the step writes it; empty: no input has the axis.
  const std::string& SizeOf(StepAxis axis) const { return sizes_[static_cast<size_t>(axis)]; }

 private:
  struct Input {
    std::string name;
    StepRoleRef role;
    size_t pool = 0;
  };
  const Input& InputNamed(absl::string_view name) const;
  absl::Status AddSizes(const StepInputSpec& input, const StepRoleInfo& role);
  absl::Status ReadPools();
  bool IsPaged() const;

  std::vector<Input> inputs_;  // all of the step
  std::vector<std::string> pools_ = {""};
  std::array<std::string, kNumStepAxes> sizes_;
  bool is_paged_ = false;
};

}  // namespace llmc
