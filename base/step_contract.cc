#include "base/step_contract.h"

#include <algorithm>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/status_macros.h"

namespace llmc {
namespace {

int64_t PositionOf(const StepLayout& layout, int64_t token) {
  const int64_t s = layout.SequenceOf(token);
  return layout.sequence(s).position + token - layout.starts()[static_cast<size_t>(s)];
}

int32_t TokenId(const StepLayout& layout, size_t /*pool*/, int64_t token) {
  const int64_t s = layout.SequenceOf(token);
  return layout.sequence(s).ids[static_cast<size_t>(token - layout.starts()[static_cast<size_t>(s)])];
}

int32_t Position(const StepLayout& layout, size_t /*pool*/, int64_t token) {
  return static_cast<int32_t>(PositionOf(layout, token));
}

int32_t Slot(const StepLayout& layout, size_t pool, int64_t token) {
  const int64_t position = PositionOf(layout, token), size = layout.page_size(pool);
  const int64_t page = layout.sequence(layout.SequenceOf(token)).pages[pool][static_cast<size_t>(position / size)];
  return static_cast<int32_t>(page * size + position % size);
}

int32_t TablePage(const StepLayout& layout, size_t pool, int64_t i) {
  const int64_t width = layout.Size(StepAxis::kPage);
  const absl::Span<const int32_t> pages = layout.sequence(i / width).pages[pool];
  const auto page = static_cast<size_t>(i % width);
  return page < pages.size() ? pages[page] : 0;
}

int32_t Length(const StepLayout& layout, size_t /*pool*/, int64_t s) {
  const StepSequence& sequence = layout.sequence(s);
  return static_cast<int32_t>(sequence.position + static_cast<int64_t>(sequence.ids.size()));
}

int32_t Start(const StepLayout& layout, size_t /*pool*/, int64_t s) { return layout.starts()[static_cast<size_t>(s)]; }

int32_t Row(const StepLayout& layout, size_t /*pool*/, int64_t row) { return layout.rows()[static_cast<size_t>(row)]; }

// In the order of StepRole.
constexpr StepRoleInfo kRoles[] = {
    {.role = StepRole::kTokenIds,
     .name = "token_ids",
     .input = "ids",
     .dtype = "i32",
     .axes = {StepAxis::kToken},
     .needed = true,
     .element = TokenId},
    {.role = StepRole::kPositions,  // of each token in its sequence
     .name = "positions",
     .input = "pos",
     .dtype = "i32",
     .axes = {StepAxis::kToken},
     .needed = true,
     .element = Position},
    {.role = StepRole::kSlots,  // where a token's key and value go: page * page_size + offset
     .name = "slots",
     .input = "slots",
     .dtype = "i32",
     .axes = {StepAxis::kToken},
     .of_pool = true,
     .needed = true,
     .element = Slot},
    {.role = StepRole::kPageTable,  // padded with 0
     .name = "page_table",
     .input = "pages",
     .dtype = "i32",
     .rank = 2,
     .axes = {StepAxis::kSequence, StepAxis::kPage},
     .of_pool = true,
     .needed = true,
     .element = TablePage},
    {.role = StepRole::kLengths,  // tokens of each sequence in the cache, after this step
     .name = "lengths",
     .input = "lens",
     .dtype = "i32",
     .axes = {StepAxis::kSequence},
     .needed = true,
     .element = Length},
    {.role = StepRole::kStarts,  // the tokens of sequence s in this step are [starts[s], starts[s + 1])
     .name = "starts",
     .input = "starts",
     .dtype = "i32",
     .axes = {StepAxis::kSequenceEdge},
     .needed = true,
     .element = Start},
    {.role = StepRole::kRows,  // the tokens whose logits are asked for
     .name = "rows",
     .input = "rows",
     .dtype = "i32",
     .axes = {StepAxis::kRow},
     .needed = true,
     .element = Row},
};

absl::Status Wrong(const StepInputSpec& input, absl::string_view what) {
  return absl::InvalidArgumentError(absl::StrCat("the input ", input.name, ": ", input.dtype, "[",
                                                 absl::StrJoin(input.shape, ", "), "] = ", input.role, ": ", what));
}

// Whether `edges` is written as `sequences` + 1.
bool IsOneMore(const std::string& edges, const std::string& sequences) {
  int64_t more = 0, size = 0;
  if (absl::SimpleAtoi(edges, &more) && absl::SimpleAtoi(sequences, &size)) return more - 1 == size;
  return edges == absl::StrCat(sequences, " + 1");
}

}  // namespace

void StepLayout::Add(const StepSequence& sequence, int64_t rows) {
  const auto count = static_cast<int64_t>(sequence.ids.size());
  sequence_of_.insert(sequence_of_.end(), sequence.ids.size(), static_cast<int64_t>(sequences_.size()));
  sequences_.push_back(sequence);
  const int64_t end = starts_.back() + count;
  starts_.push_back(static_cast<int32_t>(end));
  for (; rows > 0; --rows) AddRow(end - rows);
}

int64_t StepLayout::Size(StepAxis axis) const {
  switch (axis) {
    case StepAxis::kToken:
      return static_cast<int64_t>(sequence_of_.size());
    case StepAxis::kSequence:
      return static_cast<int64_t>(sequences_.size());
    case StepAxis::kSequenceEdge:
      return static_cast<int64_t>(starts_.size());
    case StepAxis::kRow:
      return static_cast<int64_t>(rows_.size());
    case StepAxis::kPage:
      return table_width_;
  }
  return 0;
}

int64_t AttendedRange::First(int64_t position) const {
  if (chunk > 0) return position - position % chunk;
  return window > 0 && window <= position ? position - window + 1 : 0;
}

std::string AttendedSize(absl::string_view name, const AttendedRange& range) {
  if (range.chunk != 0) return absl::StrCat(name, ":chunk", range.chunk);
  return range.window == 0 ? std::string(name) : absl::StrCat(name, ":", range.window);
}

absl::Span<const StepRoleInfo> StepRoles() { return kRoles; }

const StepRoleInfo& InfoOf(StepRole role) { return kRoles[static_cast<size_t>(role) - 1]; }

std::vector<int64_t> InputShape(StepRole role, const StepLayout& layout) {
  std::vector<int64_t> shape;
  for (const StepAxis axis : InfoOf(role).Axes()) shape.push_back(layout.Size(axis));
  return shape;
}

std::vector<int32_t> InputValues(StepRole role, const StepLayout& layout, size_t pool) {
  int64_t size = 1;
  for (const int64_t dim : InputShape(role, layout)) size *= dim;
  std::vector<int32_t> values(static_cast<size_t>(size));
  for (int64_t i = 0; i < size; ++i) values[static_cast<size_t>(i)] = InfoOf(role).element(layout, pool, i);
  return values;
}

std::string StepRoleRef::ToString() const {
  if (role == StepRole::kNone) return "";
  return pool.empty() ? std::string(InfoOf(role).name) : absl::StrCat(InfoOf(role).name, "(", pool, ")");
}

absl::StatusOr<StepRoleRef> StepRoleRef::Parse(absl::string_view text) {
  const size_t open = std::min(text.find('('), text.size());
  const absl::string_view name = text.substr(0, open);
  const auto info = std::find_if(std::begin(kRoles), std::end(kRoles), [&](const auto& r) { return r.name == name; });
  if (info == std::end(kRoles)) {
    const auto append = [](std::string* out, const StepRoleInfo& r) { absl::StrAppend(out, r.name); };
    return absl::InvalidArgumentError(absl::StrCat("'", text.substr(0, 100), "' is no role of an input; there are ",
                                                   absl::StrJoin(absl::MakeConstSpan(kRoles), ", ", append)));
  }
  StepRoleRef ref{.role = info->role};
  if (open == text.size()) return ref;
  const absl::string_view pool = text.substr(open + 1, text.size() - open - 1 - (absl::EndsWith(text, ")") ? 1 : 0));
  const bool is_name = !pool.empty() && std::all_of(pool.begin(), pool.end(), [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_';
  });
  if (!info->of_pool || !is_name || !absl::EndsWith(text, ")")) {
    return absl::InvalidArgumentError(absl::StrCat(
        "'", text.substr(0, 100),
        "': ", info->of_pool ? "expected the name of a pool in parentheses" : "an input of this role is of no pool"));
  }
  ref.pool = std::string(pool);
  return ref;
}

absl::StatusOr<StepContract> StepContract::Read(const std::vector<StepInputSpec>& inputs) {
  StepContract contract;
  for (const StepInputSpec& input : inputs) {
    Input& read = contract.inputs_.emplace_back(Input{.name = input.name});
    if (input.role.empty()) continue;
    absl::StatusOr<StepRoleRef> role = StepRoleRef::Parse(input.role);
    if (!role.ok()) return Wrong(input, role.status().message());
    for (const Input& other : contract.inputs_) {
      if (other.role == *role) return Wrong(input, absl::StrCat(other.name, " has this role, too"));
    }
    read.role = *std::move(role);
    RETURN_IF_ERROR(contract.AddSizes(input, InfoOf(read.role.role)));
  }
  RETURN_IF_ERROR(contract.ReadPools());
  const std::string &edges = contract.SizeOf(StepAxis::kSequenceEdge),
                    &sequences = contract.SizeOf(StepAxis::kSequence);
  if (!edges.empty() && !sequences.empty() && !IsOneMore(edges, sequences)) {
    return absl::InvalidArgumentError(absl::StrCat("the input ", contract.NameOf(StepRole::kStarts), " has ", edges,
                                                   " elements, must have one more than the ", sequences, " sequences"));
  }
  contract.is_paged_ = contract.IsPaged();
  return contract;
}

absl::Status StepContract::AddSizes(const StepInputSpec& input, const StepRoleInfo& role) {
  if (input.dtype != role.dtype) return Wrong(input, absl::StrCat("must be of ", role.dtype));
  if (static_cast<int>(input.shape.size()) != role.rank) {
    return Wrong(input, absl::StrCat("must have ", role.rank, role.rank == 1 ? " axis" : " axes"));
  }
  for (size_t axis = 0; axis < input.shape.size(); ++axis) {
    std::string& size = sizes_[static_cast<size_t>(role.axes[axis])];
    if (size.empty()) size = input.shape[axis];
    if (size == input.shape[axis]) continue;
    return Wrong(input, absl::StrCat("axis ", axis, " counts what another input has ", size, " of"));
  }
  return absl::OkStatus();
}

// Inputs that name pools, and others that do not, would be of pools that nobody can tell apart.
absl::Status StepContract::ReadPools() {
  std::vector<std::string> pools;
  for (Input& input : inputs_) {
    if (input.role.role == StepRole::kNone || !InfoOf(input.role.role).of_pool) continue;
    const auto known = std::find(pools.begin(), pools.end(), input.role.pool);
    input.pool = static_cast<size_t>(known - pools.begin());
    if (known == pools.end()) pools.push_back(input.role.pool);
  }
  if (pools.empty()) return absl::OkStatus();
  if (pools.size() > 1 && std::find(pools.begin(), pools.end(), "") != pools.end()) {
    return absl::InvalidArgumentError("some inputs say which pool they are for and others do not");
  }
  pools_ = std::move(pools);
  return absl::OkStatus();
}

bool StepContract::IsPaged() const {
  for (const Input& input : inputs_) {
    if (input.role.role == StepRole::kNone) return false;
  }
  return std::all_of(std::begin(kRoles), std::end(kRoles), [this](const StepRoleInfo& role) {
    for (size_t pool = 0; pool < (role.of_pool ? pools_.size() : 1); ++pool) {
      if (role.needed && NameOf(role.role, pool).empty()) return false;
    }
    return true;
  });
}

std::optional<size_t> StepContract::PoolOf(absl::string_view dim) const {
  if (pools_.size() == 1 && pools_[0].empty()) return 0;
  const auto it = std::find(pools_.begin(), pools_.end(), dim);
  return it == pools_.end() ? std::nullopt : std::optional(static_cast<size_t>(it - pools_.begin()));
}

const std::string& StepContract::NameOf(StepRole role, size_t pool) const {
  static const auto* const kEmpty = new std::string();
  const auto it = std::find_if(inputs_.begin(), inputs_.end(),
                               [&](const Input& input) { return input.role.role == role && input.pool == pool; });
  return it == inputs_.end() ? *kEmpty : it->name;
}

const StepContract::Input& StepContract::InputNamed(absl::string_view name) const {
  static const auto* const kNone = new Input();
  const auto it = std::find_if(inputs_.begin(), inputs_.end(), [&](const Input& input) { return input.name == name; });
  return it == inputs_.end() ? *kNone : *it;
}

}  // namespace llmc
