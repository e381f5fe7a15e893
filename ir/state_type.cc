#include "ir/state_type.h"

#include <algorithm>

#include "absl/algorithm/container.h"
#include "absl/strings/ascii.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/strip.h"
#include "base/status_macros.h"

namespace llmc {
namespace {

constexpr size_t kMaxComponents = 16, kMaxComponentRank = 8;
constexpr int64_t kMaxRecordBytes = int64_t{1} << 40;

absl::string_view KindName(StateKind kind) { return kind == StateKind::kPaged ? "paged" : "per_sequence"; }

int64_t AlignedRecord(int64_t bytes) { return (bytes + kRecordAlignment - 1) / kRecordAlignment * kRecordAlignment; }

template <class... Parts>
absl::Status BadState(const Parts&... parts) {
  return absl::InvalidArgumentError(absl::StrCat(parts...));
}

absl::Status NoState(absl::string_view text) {
  return BadState("'", text.substr(0, 100), "' is not a state such as paged[N, 16] {k: f32[2, 64], v: f32[2, 64]}");
}

bool IsComponentName(absl::string_view text) {
  const auto is_part = [](char c) { return absl::ascii_isalnum(c) || c == '_'; };
  return !text.empty() && !absl::ascii_isdigit(text[0]) && absl::c_all_of(text, is_part);
}

// The text up to the first of `stop`, which goes too; false if there is none.
bool TakeUntil(char stop, absl::string_view* rest, absl::string_view* taken) {
  const size_t at = rest->find(stop);
  if (at == rest->npos) return false;
  *taken = absl::StripAsciiWhitespace(rest->substr(0, at));
  *rest = absl::StripAsciiWhitespace(rest->substr(at + 1));
  return true;
}

// "N, 16" of pages, "M" of sequences.
absl::Status ParseCount(absl::string_view text, StateType* state) {
  absl::string_view count = text;
  if (const size_t comma = text.rfind(','); state->kind == StateKind::kPaged) {
    if (comma == text.npos || !absl::SimpleAtoi(text.substr(comma + 1), &state->page_size)) {
      return BadState("'[", text, "]' does not count pages and the tokens of a page, as in paged[N, 16]");
    }
    count = text.substr(0, comma);
  }
  ASSIGN_OR_RETURN(state->count, Dim::Parse(absl::StripAsciiWhitespace(count)));
  return absl::OkStatus();
}

absl::Status CheckComponent(const StateType& state, const StateComponent& component) {
  const Dims& shape = component.type.shape;
  if (shape.empty() || shape.size() > kMaxComponentRank) {
    return BadState("component ", component.name, ": ", component.type.ToString(), " has not 1 to ", kMaxComponentRank,
                    " axes");
  }
  std::vector<int64_t> sizes = {std::max<int64_t>(state.page_size, 1)};
  for (const Dim& dim : shape) {
    if (!dim.is_constant() || dim.value() < 1) {
      return BadState("component ", component.name, ": ", component.type.ToString(),
                      " has a size that is no number above 0");
    }
    sizes.push_back(dim.value());
  }
  const absl::StatusOr<int64_t> elements = CheckedElements(component.type.dtype, sizes);
  if (!elements.ok() || *elements > kMaxRecordBytes) {
    return BadState("component ", component.name, ": ", component.type.ToString(), " is too large");
  }
  return absl::OkStatus();
}

}  // namespace

int64_t StateComponent::Elements() const {
  int64_t elements = 1;
  for (const Dim& dim : type.shape) elements *= dim.value();
  return elements;
}

const StateComponent* StateType::Find(absl::string_view name) const {
  const auto it = absl::c_find_if(components, [&](const StateComponent& component) { return component.name == name; });
  return it == components.end() ? nullptr : &*it;
}

int64_t StateType::ComponentBytes(const StateComponent& component) const {
  return (component.Elements() * std::max<int64_t>(page_size, 1) * DTypeBits(component.type.dtype) + 7) / 8;
}

int64_t StateType::OffsetOf(const StateComponent& component) const {
  int64_t offset = 0;
  for (const StateComponent& other : components) {
    if (other.name == component.name) break;
    offset += AlignedRecord(ComponentBytes(other));
  }
  return offset;
}

int64_t StateType::RecordBytes() const {
  int64_t bytes = 0;
  for (const StateComponent& component : components) bytes += AlignedRecord(ComponentBytes(component));
  return bytes;
}

TensorType StateType::Memory() const { return {DType::kU8, {count, Dim(RecordBytes())}}; }

std::string StateType::ToString() const {
  const auto append = [](std::string* out, const StateComponent& component) {
    absl::StrAppend(out, component.name, ": ", component.type.ToString());
  };
  return absl::StrCat(KindName(kind), "[", count.ToString(),
                      kind == StateKind::kPaged ? absl::StrCat(", ", page_size) : "", "] {",
                      absl::StrJoin(components, ", ", append), "}");
}

absl::Status StateType::Check() const {
  const bool has_pages = page_size >= 1 && page_size <= kMaxPageSize;
  if (kind == StateKind::kPaged ? !has_pages : page_size != 0) {
    return BadState("a page of ", page_size, " tokens: there may be 1 to ", kMaxPageSize);
  }
  if (components.empty() || components.size() > kMaxComponents) {
    return BadState("a state has ", components.size(), " components, must have 1 to ", kMaxComponents);
  }
  int64_t bytes = 0;
  for (const StateComponent& component : components) {
    if (!IsComponentName(component.name))
      return BadState("'", component.name.substr(0, 100), "' is no name of a component");
    if (Find(component.name) != &component) return BadState("component ", component.name, " stands twice");
    RETURN_IF_ERROR(CheckComponent(*this, component));
    bytes += AlignedRecord(ComponentBytes(component));
    if (bytes > kMaxRecordBytes) return BadState("component ", component.name, ": a record with it is too large");
  }
  return absl::OkStatus();
}

absl::StatusOr<StateType> StateType::Parse(absl::string_view text) {
  const absl::string_view whole = text;
  StateType state;
  absl::string_view kind, count, components;
  if (!TakeUntil('[', &text, &kind) || !TakeUntil(']', &text, &count)) return NoState(whole);
  if (kind == KindName(StateKind::kPerSequence)) {
    state.kind = StateKind::kPerSequence;
  } else if (kind != KindName(StateKind::kPaged)) {
    return BadState("'", kind.substr(0, 100), "' is no kind of a state; there are paged, per_sequence");
  }
  RETURN_IF_ERROR(ParseCount(count, &state));
  if (!absl::ConsumePrefix(&text, "{") || !TakeUntil('}', &text, &components) || !text.empty()) return NoState(whole);
  while (!components.empty() && state.components.size() <= kMaxComponents) {
    absl::string_view name, type;
    if (!TakeUntil(':', &components, &name) || !TakeUntil(']', &components, &type)) return NoState(whole);
    ASSIGN_OR_RETURN(TensorType parsed, TensorType::Parse(absl::StrCat(type, "]")));
    state.components.push_back({std::string(name), std::move(parsed)});
    if (components.empty()) break;
    if (!absl::ConsumePrefix(&components, ",") || absl::StripAsciiWhitespace(components).empty()) return NoState(whole);
  }
  RETURN_IF_ERROR(state.Check());
  return state;
}

}  // namespace llmc
