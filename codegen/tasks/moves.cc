#include "codegen/tasks/moves.h"

#include <algorithm>

#include "absl/algorithm/container.h"
#include "absl/strings/str_cat.h"
#include "ir/ops.h"

namespace llmc {
namespace {

// A place under axes of sizes `from`, under axes of sizes `to` of the same elements. Axes that become one must lie one
// after the other.
std::optional<Place> Reshaped(const Place& place, const SizeList& from, const SizeList& to) {
  Place out{.strides = SizeList(to.size(), Size(0)), .offset = place.offset};
  size_t i = 0, j = 0;
  while (i < from.size() || j < to.size()) {
    if (i < from.size() && from[i].Is(1)) {
      ++i;
      continue;
    }
    if (j < to.size() && to[j].Is(1)) {
      ++j;
      continue;
    }
    if (i == from.size() || j == to.size()) return std::nullopt;
    // The fewest axes of both that hold the same elements.
    const size_t first_from = i, first_to = j;
    Size a = from[i++], b = to[j++];
    while (!(a == b)) {
      if (!a.is_number() || !b.is_number()) return std::nullopt;
      if (a.number() < b.number() && i < from.size()) {
        a = a * from[i++];
      } else if (b.number() < a.number() && j < to.size()) {
        b = b * to[j++];
      } else {
        return std::nullopt;
      }
    }
    for (size_t axis = first_from; axis + 1 < i; ++axis) {
      if (!(place.strides[axis] == place.strides[axis + 1] * from[axis + 1])) return std::nullopt;
    }
    Size stride = place.strides[i - 1];
    for (size_t axis = j; axis-- > first_to;) {
      out.strides[axis] = stride;
      stride = stride * to[axis];
    }
  }
  return out;
}

}  // namespace

bool IsMove(const Node* node) { return Is<Slice>(node) || Is<Transpose>(node) || node->op->info.is_view(); }

std::optional<MovedValue> MovedFrom(const Value* value, const KernelBody& body) {
  const Node* node = value->def;
  if (!absl::c_linear_search(body.nodes, node) || !IsMove(node))
    return MovedValue{value, ContiguousPlace(value->type.shape)};
  std::optional<MovedValue> moved = MovedFrom(node->operands[0], body);
  if (!moved.has_value()) return std::nullopt;
  Place& place = moved->place;
  if (Is<Slice>(node)) {
    const auto op = View<Slice>(*node);
    for (size_t i = 0; i < op.start.size(); ++i) {
      place.offset = place.offset + place.strides[static_cast<size_t>(op.axis) + i] * Size(op.start[i]);
    }
  } else if (Is<Transpose>(node)) {
    const auto op = View<Transpose>(*node);
    const SizeList strides = place.strides;
    for (size_t i = 0; i < op.perm.size(); ++i) place.strides[i] = strides[static_cast<size_t>(op.perm[i])];
  } else {
    const std::optional<Place> reshaped =
        Reshaped(place, ToSizes(node->operands[0]->type.shape), ToSizes(value->type.shape));
    if (!reshaped.has_value()) return std::nullopt;
    place = *reshaped;
  }
  return moved;
}

std::optional<MovedResult> MovedTo(const Value* value, const KernelBody& body) {
  MovedResult moved = {.of = value};
  std::vector<const Node*> moves;  // from `of` to the end
  const Value* last = value;
  for (const Node* node : body.nodes) {
    if (node->operands.empty() || node->operands[0] != last || !IsMove(node)) continue;
    last = node->results[0];
    if (moves.empty() && node->op->info.is_view()) {
      moved.of = last;
    } else {
      moves.push_back(node);
    }
  }
  if (body.results.size() != 1 || body.results[0] != last) return std::nullopt;
  moved.to = {last, ContiguousPlace(last->type.shape)};
  moved.taken = ToSizes(last->type.shape);
  Place& place = moved.to.place;
  for (auto it = moves.rbegin(); it != moves.rend(); ++it) {
    const Node& node = **it;
    if (Is<Slice>(&node)) {
      const auto op = View<Slice>(node);
      if (!absl::c_all_of(op.start, [](const Dim& start) { return start == Dim(0); })) return std::nullopt;
    } else if (Is<Transpose>(&node)) {
      const auto op = View<Transpose>(node);
      const SizeList strides = place.strides, taken = moved.taken;
      for (size_t i = 0; i < op.perm.size(); ++i) {
        place.strides[static_cast<size_t>(op.perm[i])] = strides[i];
        moved.taken[static_cast<size_t>(op.perm[i])] = taken[i];
      }
    } else {
      // How many elements slices leave is known by axes only as long as no view changes these.
      const SizeList from = ToSizes(node.results[0]->type.shape), to = ToSizes(node.operands[0]->type.shape);
      const std::optional<Place> reshaped = Reshaped(place, from, to);
      if (!reshaped.has_value() || moved.taken != from) return std::nullopt;
      place = *reshaped;
      moved.taken = to;
    }
  }
  return moved;
}

std::optional<StridedRows> StridedRowsFrom(const Value* value, int64_t n, const KernelBody& body) {
  const Node* node = value->def;
  if (value->type.rank() == 2 && absl::c_linear_search(body.nodes, node) && node->op->info.is_view() &&
      node->operands[0]->type.rank() == 3 && node->operands[0]->type.shape[2] == Dim(n)) {
    value = node->operands[0];
  }
  const std::optional<MovedValue> moved = MovedFrom(value, body);
  if (!moved.has_value() || !moved->place.strides.back().Is(1)) return std::nullopt;
  const SizeList& strides = moved->place.strides;
  if (strides.size() != 2 && (strides.size() != 3 || !(value->type.shape[2] == Dim(n)))) return std::nullopt;
  return StridedRows{moved->in, moved->place.offset, strides[0], strides.size() == 3 ? strides[1] : Size(n)};
}

std::string StridedRowsText(const StridedRows& rows, const std::string& name, bool is_written, KernelCall* call) {
  const std::string offset = rows.offset.Is(0) ? "" : absl::StrCat(" + ", call->SizeText(rows.offset));
  return absl::StrCat("llmc::StridedRows<", is_written ? "" : "const ", DeviceType(rows.in), ">{", name, offset, ", ",
                      call->SizeText(rows.row), ", ", call->SizeText(rows.batch), "}");
}

}  // namespace llmc
