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

bool IsOfToken(const Encoding::Part& part) {
  return part.per == Granularity::kToken || part.per == Granularity::kGroup;
}

// Rows of heads can be made codes one by one, as they are written.
absl::Status CheckEncoded(const StateType& state, const StateComponent& component) {
  const Encoding* e = component.type.encoding;
  if (e == nullptr) return absl::OkStatus();
  const auto bad = [&](const auto&... what) {
    return BadState("component ", component.name, ": ", component.type.ToString(), " ", what...);
  };
  if (state.kind != StateKind::kPaged) return bad("is encoded, which only components of pages may be");
  if (!IsFloat(component.type.dtype)) return bad("is encoded, which only floats may be");
  const EncodingFormat& format = *e->format;
  if (format.run() > 0 || format.codebook != nullptr || format.scale_is_exponent || format.outer_scale) {
    return bad("is stored in a format that a cache cannot have; those of int8, uint8, int4, uint4, f8e4m3, f8e5m2 can");
  }
  if (const absl::Status status = CheckEncoding(*e, component.type.shape); !status.ok()) return bad(status.message());
  if (!e->k_is_last || e->scale->per == Granularity::kBlock) return bad("has scales that run across heads");
  if (!IsOfToken(*e->scale)) {
    if (e->scale->per == Granularity::kChannel && component.type.rank() != 2) return bad("has scales of no heads");
    if (!IsFloat(format.codes)) return bad("has integers, which need scales per=token or group=N");
    if (e->scale->dtype != DType::kF32) return bad("has a static scale that is not f32");
  }
  const bool is_unsigned = format.codes == DType::kU8 || format.codes == DType::kU4;
  if (e->zero.has_value() != is_unsigned) return bad("needs zero points exactly if its codes have no sign");
  if (e->zero.has_value() && (e->zero->per != e->scale->per || e->zero->dtype != DType::kU8)) {
    return bad("needs a zero point in u8 for each scale");
  }
  if (e->group > 0 && component.HeadDim() % e->group != 0) return bad("has heads that are no whole groups");
  if (component.HeadDim() * DTypeBits(format.codes) % 8 != 0) return bad("has heads that are no whole bytes");
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
  return CheckEncoded(state, component);
}

}  // namespace

int64_t StateComponent::Elements() const {
  int64_t elements = 1;
  for (const Dim& dim : type.shape) elements *= dim.value();
  return elements;
}

size_t StateComponent::parts() const {
  const Encoding* e = type.encoding;
  if (e == nullptr) return 1;
  return 1 + (IsOfToken(*e->scale) ? 1 : 0) + (e->zero.has_value() && IsOfToken(*e->zero) ? 1 : 0);
}

absl::string_view StateComponent::PartName(size_t part) const {
  return type.encoding == nullptr ? "" : type.encoding->ComponentName(part);
}

TensorType StateComponent::PartType(size_t part) const {
  if (type.encoding == nullptr) return type;
  TensorType of = type.encoding->ComponentType(part, type.shape);
  if (of.shape.size() < type.shape.size()) of.shape.push_back(Dim(1));  // per=token
  return of;
}

std::optional<TensorType> StateComponent::StaticScale() const {
  if (type.encoding == nullptr || IsOfToken(*type.encoding->scale)) return std::nullopt;
  return type.encoding->ComponentType(1, type.shape);
}

int64_t StateComponent::TokenBytes() const {
  int64_t bytes = 0;
  for (size_t i = 0; i < parts(); ++i) bytes += PartType(i).Bytes().number();
  return bytes;
}

const StateComponent* StateType::Find(absl::string_view name) const {
  const auto it = absl::c_find_if(components, [&](const StateComponent& component) { return component.name == name; });
  return it == components.end() ? nullptr : &*it;
}

int64_t StateType::PartBytes(const StateComponent& component, size_t part) const {
  const TensorType type = component.PartType(part);
  const int64_t tokens = std::max<int64_t>(page_size, 1);
  return (ElementsOf(type.shape).number() * tokens * DTypeBits(type.dtype) + 7) / 8;
}

int64_t StateType::ComponentBytes(const StateComponent& component) const {
  const size_t last = component.parts() - 1;
  return OffsetOf(component, last) - OffsetOf(component) + PartBytes(component, last);
}

int64_t StateType::OffsetOf(const StateComponent& component, size_t part) const {
  int64_t offset = 0;
  for (const StateComponent& other : components) {
    const bool is_it = other.name == component.name;
    const size_t before = is_it ? part : other.parts();
    for (size_t i = 0; i < before; ++i) offset += AlignedRecord(PartBytes(other, i));
    if (is_it) break;
  }
  return offset;
}

int64_t StateType::RecordBytes() const {
  int64_t bytes = 0;
  for (const StateComponent& component : components) {
    for (size_t i = 0; i < component.parts(); ++i) bytes += AlignedRecord(PartBytes(component, i));
  }
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
    for (size_t i = 0; i < component.parts(); ++i) bytes += AlignedRecord(PartBytes(component, i));
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
