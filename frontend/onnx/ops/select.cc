// What is chosen, scattered and rearranged.
#include <algorithm>
#include <limits>
#include <map>
#include <set>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "frontend/onnx/ops.h"
#include "frontend/onnx/ops/math.h"

namespace llmc {
namespace {

// ---- order ----------------------------------------------------------------------

// The first k along an axis in the order that argsort gives.
void ImportTopK(OnnxNode& n) {
  Value* x = n.in(0);
  const int64_t axis = n.Axis("axis", -1, RankOf(x));
  const bool descending = n.Int("largest", 1) != 0;
  n.Int("sorted", 1);  // Sorted is allowed too.
  if (!n.ok()) return;
  Value* order = n.Emit(ArgSort{.x = x, .axis = axis, .descending = descending});
  if (n.opset() < 10) {
    order = n.SliceOf(order, axis, Dim(0), Dim(n.Int("k", 0)));
  } else if (!n.has(1)) {
    return n.Invalid("k is missing");
  } else if (n.IsKnown(1)) {
    const int64_t k = n.StaticInt(1, "k");
    if (k < 0) return n.Invalid("k is negative");
    order = n.SliceOf(order, axis, Dim(0), Dim(k));
  } else {
    Value* k = n.ReshapeTo(n.AsI64(1), {Dim(1)});
    order = n.Emit(SliceBy{.x = order, .starts = n.Ints64({0}), .ends = k, .axes = n.Ints64({axis})});
  }
  n.Set(0, n.Emit(GatherElements{.x = x, .indices = order, .axis = axis}));
  n.Set(1, order);
}

// ---- where a condition holds --------------------------------------------------------

// The positions of the true elements of bool[size], in order: each goes to the place that the running count gives it,
// the others to one that is cut off.
Value* TruePositions(OnnxNode& n, Value* flags) {
  if (!n.ok()) return nullptr;
  const Dim size = flags->type.shape[0];
  Value* ones = n.CastTo(flags, DType::kI64);
  Value* place = n.Emit(CumSum{.x = ones, .axis = 0, .exclusive = true});
  place = Select(n, flags, place, SizeAsScalar(n, size));
  Value* zeros = n.Emit(Expand{.x = n.Scalar(DType::kI64, 0), .shape = {size + Dim(1)}});
  Value* list =
      n.Emit(ScatterNd{.x = zeros, .indices = n.ReshapeTo(place, {size, Dim(1)}), .updates = Positions(n, size)});
  Value* count = n.ReshapeTo(ReduceOver<ReduceSum>(n, ones, {0}, false), {Dim(1)});
  return n.Emit(SliceBy{.x = list, .starts = n.Ints64({0}), .ends = count, .axes = n.Ints64({0})});
}

Value* AsFlags(OnnxNode& n, Value* x) {
  if (DTypeOf(x) != DType::kBool) x = Map<Not>(n, Map<Equal>(n, x, 0));
  return n.ok() ? n.ReshapeTo(x, {Product(x->type.shape)}) : nullptr;
}

void ImportNonZero(OnnxNode& n) {
  Value* x = n.in(0);
  const Dims shape = DimsOfValue(x);
  Value* flat = TruePositions(n, AsFlags(n, x));
  std::vector<Value*> rows;
  Dim inner = Product(shape);
  for (size_t i = 0; i < shape.size() && n.ok(); ++i) {
    inner = Product(Dims(shape.begin() + static_cast<int64_t>(i) + 1, shape.end()));
    Value* row = Map<Mod>(n, Map<Div>(n, flat, SizeAsScalar(n, inner)), SizeAsScalar(n, shape[i]));
    rows.push_back(n.Emit(ReshapeTo{.x = row, .shape = n.Ints64({1, -1})}));
  }
  if (rows.empty()) return n.Unsupported("a scalar is not supported");
  n.Set(0, rows.size() == 1 ? rows[0] : n.Emit(Concat{.parts = rows, .axis = 0}));
}

void ImportCompress(OnnxNode& n) {
  Value* x = n.in(0);
  if (RankOf(n.in(1)) != 1 || DTypeOf(n.in(1)) != DType::kBool)
    return n.Invalid("the condition must be a row of bools");
  if (!n.HasAttr("axis")) x = n.ReshapeTo(x, {Product(DimsOfValue(x))});
  const int64_t axis = n.Axis("axis", 0, RankOf(x));
  n.Set(0, GatherAlong(n, x, TruePositions(n, n.in(1)), axis));
}

void ImportOneHot(OnnxNode& n) {
  if (!IsInteger(DTypeOf(n.in(0))) && !IsFloat(DTypeOf(n.in(0)))) return n.Invalid("the indices must be numbers");
  Value* indices = n.CastTo(n.in(0), DType::kI64);
  const int rank = RankOf(indices) + 1;
  const int64_t axis = n.Axis("axis", -1, rank);
  if (!n.ok()) return;
  Value* depth = n.ReshapeTo(n.CastTo(n.in(1), DType::kI64), {});
  if (n.ok() && n.IsKnown(1) && IsInteger(DTypeOf(n.in(1)))) depth = n.Ints64({n.StaticInt(1, "depth")});
  depth = n.ReshapeTo(depth, {});
  Value* range = n.Emit(Range{.start = n.Scalar(DType::kI64, 0), .limit = depth, .delta = n.Scalar(DType::kI64, 1)});
  // Negative indices count from the end.
  indices = Select(n, Map<Less>(n, indices, 0), Map<Add>(n, indices, depth), indices);
  Dims shape = DimsOfValue(indices);
  shape.insert(shape.begin() + axis, Dim(1));
  Value* hit = Map<Equal>(n, n.ReshapeTo(indices, std::move(shape)), Along(n, range, axis, rank));
  Value* off = n.ReshapeTo(n.SliceOf(n.in(2), 0, Dim(0), Dim(1)), {});
  Value* on = n.ReshapeTo(n.SliceOf(n.in(2), 0, Dim(1), Dim(2)), {});
  n.Set(0, Select(n, hit, on, off));
}

void ImportEyeLike(OnnxNode& n) {
  if (RankOf(n.in(0)) != 2) return n.Invalid("the input must be a matrix");
  DType dtype = DTypeOf(n.in(0));
  if (n.HasAttr("dtype")) {
    auto given = DTypeOfOnnx(n.Int("dtype", 0));
    if (!given.ok()) return n.Fail(given.status());
    dtype = *given;
  }
  const Dims shape = DimsOfValue(n.in(0));
  Value* row = Map<Add>(n, PositionsAlong(n, shape[0], 0, 2), static_cast<double>(n.Int("k", 0)));
  n.Set(0, n.CastTo(Map<Equal>(n, row, PositionsAlong(n, shape[1], 1, 2)), dtype));
}

// ---- scatter ----------------------------------------------------------------------------

// Negative indices into an axis of `size`, counted from its start.
Value* FromStart(OnnxNode& n, Value* indices, Dim size) {
  return Select(n, Map<Less>(n, indices, 0), Map<Add>(n, indices, SizeAsScalar(n, std::move(size))), indices);
}

// Every element is a tuple of its position, with the index in place of that along the axis.
void ImportScatterElements(OnnxNode& n) {
  Value *x = n.in(0), *indices = n.AsI64(1);
  const int rank = RankOf(x);
  const int64_t axis = n.Axis("axis", 0, rank);
  const std::string reduction = n.String("reduction", "none");
  if (!n.ok()) return;
  if (RankOf(indices) != rank) return n.Invalid("input and indices differ in rank");
  const Dims shape = indices->type.shape;
  Dims column = shape;
  column.push_back(Dim(1));
  std::vector<Value*> tuple;
  for (int64_t d = 0; d < rank; ++d) {
    Value* place = d == axis ? FromStart(n, indices, x->type.shape[static_cast<size_t>(d)])
                             : PositionsAlong(n, shape[static_cast<size_t>(d)], d, rank);
    if (d != axis) place = n.Emit(Expand{.x = place, .shape = shape});
    tuple.push_back(n.ReshapeTo(place, column));
  }
  if (!n.ok()) return;
  Value* tuples = tuple.size() == 1 ? tuple[0] : n.Emit(Concat{.parts = tuple, .axis = rank});
  n.Set(0, n.Emit(ScatterNd{.x = x, .indices = tuples, .updates = n.in(2), .reduction = reduction}));
}

// Writes update[B, …, L, …] into past[B, …, S, …] from a place of its own in each sequence.
void ImportTensorScatter(OnnxNode& n) {
  Value *past = n.in(0), *update = n.in(1);
  const int rank = RankOf(past);
  const int64_t axis = n.Axis("axis", -2, rank);
  const std::string mode = n.String("mode", "linear");
  if (mode != "linear" && mode != "circular") return n.Invalid("mode must be \"linear\" or \"circular\"");
  if (!n.ok()) return;
  if (RankOf(update) != rank || axis == 0) return n.Invalid("the update must have the rank of the cache; axis not 0");
  const Dims shape = update->type.shape;
  Dims column = shape;
  column.push_back(Dim(1));
  std::vector<Value*> tuple;
  for (int64_t d = 0; d < rank; ++d) {
    Value* place = PositionsAlong(n, shape[static_cast<size_t>(d)], d, rank);
    if (d == axis && n.has(2)) place = Map<Add>(n, place, Along(n, n.AsI64(2), 0, rank));
    if (d == axis && mode == "circular") {
      place = Map<Mod>(n, place, SizeAsScalar(n, past->type.shape[static_cast<size_t>(d)]));
    }
    tuple.push_back(n.ReshapeTo(n.Emit(Expand{.x = place, .shape = shape}), column));
  }
  Value* tuples = n.Emit(Concat{.parts = tuple, .axis = rank});
  n.Set(0, n.Emit(ScatterNd{.x = past, .indices = tuples, .updates = update}));
}

// The first lens[b] elements of each sequence in reverse order.
void ImportReverseSequence(OnnxNode& n) {
  Value* x = n.in(0);
  const int rank = RankOf(x);
  const int64_t batch = n.Axis("batch_axis", 1, rank), time = n.Axis("time_axis", 0, rank);
  if (!n.ok()) return;
  if (rank < 2 || batch == time || batch > 1 || time > 1) return n.Invalid("the axes must be 0 and 1");
  const Dims shape = x->type.shape;
  Value* at = PositionsAlong(n, shape[static_cast<size_t>(time)], time, rank);
  Value* lens = Along(n, n.AsI64(1), batch, rank);
  at = Select(n, Map<Less>(n, at, lens), Map<Sub>(n, Map<Sub>(n, lens, 1), at), at);
  n.Set(0, n.Emit(GatherElements{.x = x, .indices = n.Emit(Expand{.x = at, .shape = shape}), .axis = time}));
}

// ---- blocks of channels -------------------------------------------------------------------

// x[N, C, H, W] with `block`: splits of its axes, their new order, and the joined shape.
void ImportDepthToSpace(OnnxNode& n) {
  const std::string mode = n.String("mode", "DCR");
  if (mode != "DCR" && mode != "CRD") return n.Invalid("mode must be \"DCR\" or \"CRD\"");
  const Dims s = DimsOfValue(n.in(0));
  const Dim b(n.Int("blocksize", 0));
  if (s.size() != 4 || b.value() < 1) return n.Invalid("the input must have rank 4, blocksize must be positive");
  const bool depth_first = mode == "DCR";
  const Dim depth = Dim::FloorDiv(s[1], b * b);
  const Dims split = depth_first ? Dims{s[0], b, b, depth, s[2], s[3]} : Dims{s[0], depth, b, b, s[2], s[3]};
  const std::vector<int64_t> perm =
      depth_first ? std::vector<int64_t>{0, 3, 4, 1, 5, 2} : std::vector<int64_t>{0, 1, 4, 2, 5, 3};
  n.Set(0, n.ReshapeTo(n.TransposeBy(n.ReshapeTo(n.in(0), split), perm), {s[0], depth, s[2] * b, s[3] * b}));
}

void ImportSpaceToDepth(OnnxNode& n) {
  const Dims s = DimsOfValue(n.in(0));
  const Dim b(n.Int("blocksize", 0));
  if (s.size() != 4 || b.value() < 1) return n.Invalid("the input must have rank 4, blocksize must be positive");
  const Dim high = Dim::FloorDiv(s[2], b), wide = Dim::FloorDiv(s[3], b);
  Value* x = n.TransposeBy(n.ReshapeTo(n.in(0), {s[0], s[1], high, b, wide, b}), {0, 3, 5, 1, 2, 4});
  n.Set(0, n.ReshapeTo(x, {s[0], s[1] * b * b, high, wide}));
}

// ---- einsum ------------------------------------------------------------------------------------

// One operand's letters; an ellipsis stands for capital letters of broadcast axes, the last one 'Z'.
absl::StatusOr<std::string> LettersOf(absl::string_view term, int rank, bool output, size_t ellipsis) {
  std::string letters;
  for (size_t i = 0; i < term.size(); ++i) {
    const char c = term[i];
    if (c == ' ') continue;
    if (c != '.') {
      letters.push_back(c);
      continue;
    }
    if (term.substr(i, 3) != "...") return absl::InvalidArgumentError("a dot is no ellipsis");
    i += 2;
    const int64_t named =
        static_cast<int64_t>(std::count_if(term.begin(), term.end(), [](char l) { return l != '.' && l != ' '; }));
    const int64_t axes = output ? static_cast<int64_t>(ellipsis) : rank - named;
    if (axes < 0 || axes > 8) return absl::InvalidArgumentError("an ellipsis stands for no or too many axes");
    for (int64_t k = axes; k-- > 0;) letters.push_back(static_cast<char>('\x80' + k));
  }
  return letters;
}

// The axes of x in the order of `order`, diagonals taken and absent letters of size 1.
Value* Aligned(OnnxNode& n, Value* x, std::string letters, const std::string& order) {
  for (size_t i = 0; i < letters.size() && n.ok(); ++i) {
    size_t twin = letters.find(letters[i], i + 1);
    if (twin == std::string::npos) continue;
    // Of a letter given twice the elements with equal places remain: the sum over the second axis of x where they are.
    const int rank = RankOf(x);
    const Dims shape = x->type.shape;
    Value* equal = Map<Equal>(n, PositionsAlong(n, shape[i], static_cast<int64_t>(i), rank),
                              PositionsAlong(n, shape[twin], static_cast<int64_t>(twin), rank));
    Value* kept = Select(n, equal, x, n.Scalar(DTypeOf(x), 0));
    x = ReduceOver<ReduceSum>(n, kept, {static_cast<int64_t>(twin)}, false);
    letters.erase(twin, 1);
    --i;
  }
  if (!n.ok()) return nullptr;
  std::vector<int64_t> perm;
  Dims shape;
  for (char letter : order) {
    const size_t at = letters.find(letter);
    if (at != std::string::npos) perm.push_back(static_cast<int64_t>(at));
    shape.push_back(at == std::string::npos ? Dim(1) : x->type.shape[at]);
  }
  return n.ReshapeTo(n.TransposeBy(x, std::move(perm)), std::move(shape));
}

// The letters of `from` that `keep` accepts.
template <class Keep>
std::string Letters(const std::string& from, Keep keep) {
  std::string kept;
  std::copy_if(from.begin(), from.end(), std::back_inserter(kept), keep);
  return kept;
}

Dims SizesOf(const Value* x, size_t begin, size_t count) {
  const auto first = x->type.shape.begin() + static_cast<int64_t>(begin);
  return Dims(first, first + static_cast<int64_t>(count));
}

// Sum of products of two operands as one matmul: letters of both that stay are its batch, those of one its rows or
// columns, the rest is summed over.
Value* Contract(OnnxNode& n, Value* a, const std::string& a_letters, Value* b, const std::string& b_letters,
                const std::string& output) {
  const auto in = [](const std::string& letters) {
    return [&letters](char c) { return letters.find(c) != std::string::npos; };
  };
  const std::string batch = Letters(output, [&](char c) { return in(a_letters)(c) && in(b_letters)(c); });
  const std::string rows = Letters(output, [&](char c) { return in(a_letters)(c) && !in(b_letters)(c); });
  const std::string columns = Letters(output, [&](char c) { return !in(a_letters)(c) && in(b_letters)(c); });
  const std::string summed = Letters(a_letters, [&](char c) { return !in(output)(c); });
  a = Aligned(n, a, a_letters, batch + rows + summed);
  b = Aligned(n, b, b_letters, batch + summed + columns);
  if (!n.ok()) return nullptr;
  Dims a_shape = SizesOf(a, 0, batch.size()), b_shape = SizesOf(b, 0, batch.size());
  const Dims row_sizes = SizesOf(a, batch.size(), rows.size());
  const Dims column_sizes = SizesOf(b, batch.size() + summed.size(), columns.size());
  const Dim inner = Product(SizesOf(a, batch.size() + rows.size(), summed.size()));
  a_shape.insert(a_shape.end(), {Product(row_sizes), inner});
  b_shape.insert(b_shape.end(), {inner, Product(column_sizes)});
  Value* y = n.Emit(MatMul{.lhs = n.ReshapeTo(a, std::move(a_shape)), .rhs = n.ReshapeTo(b, std::move(b_shape))});
  if (!n.ok()) return nullptr;
  Dims shape = SizesOf(y, 0, batch.size());
  shape.insert(shape.end(), row_sizes.begin(), row_sizes.end());
  shape.insert(shape.end(), column_sizes.begin(), column_sizes.end());
  return Aligned(n, n.ReshapeTo(y, std::move(shape)), batch + rows + columns, output);
}

// x summed over the letters that nothing else has.
Value* WithoutOwn(OnnxNode& n, Value* x, std::string* letters, const std::string& others) {
  std::string unique = Letters(*letters, [&](char c) { return letters->find(c) == letters->rfind(c); });
  if (unique.size() != letters->size()) {
    unique = Letters(*letters, [seen = std::set<char>()](char c) mutable { return seen.insert(c).second; });
    x = Aligned(n, x, *letters, unique);
  }
  std::vector<int64_t> axes;
  for (size_t i = 0; i < unique.size(); ++i) {
    if (others.find(unique[i]) == std::string::npos) axes.push_back(static_cast<int64_t>(i));
  }
  *letters = Letters(unique, [&](char c) { return others.find(c) != std::string::npos; });
  return ReduceOver<ReduceSum>(n, x, std::move(axes), false);
}

void ImportEinsum(OnnxNode& n) {
  const std::string equation = n.String("equation", "");
  const std::vector<std::string> sides = absl::StrSplit(equation, "->");
  const std::vector<std::string> terms = absl::StrSplit(sides[0], ',');
  const std::vector<Value*> inputs = n.AllInputs();
  if (sides.size() > 2 || terms.size() != inputs.size()) return n.Invalid("the equation does not fit the inputs");
  std::vector<std::string> letters;
  size_t ellipsis = 0;
  std::map<char, int> seen;
  for (size_t i = 0; i < terms.size(); ++i) {
    auto own = LettersOf(terms[i], RankOf(inputs[i]), false, 0);
    if (!own.ok()) return n.Fail(own.status());
    if (static_cast<int>(own->size()) != RankOf(inputs[i])) return n.Invalid("the equation does not fit the inputs");
    size_t broadcast = 0;
    for (char c : *own) {
      ++seen[c];
      broadcast += static_cast<unsigned char>(c) >= 0x80;
    }
    ellipsis = std::max(ellipsis, broadcast);
    letters.push_back(*own);
  }
  std::string output;
  if (sides.size() == 2) {
    auto given = LettersOf(sides[1], 0, true, ellipsis);
    if (!given.ok()) return n.Fail(given.status());
    output = *given;
  } else {
    for (size_t k = ellipsis; k-- > 0;) output.push_back(static_cast<char>('\x80' + static_cast<int>(k)));
    for (const auto& [c, times] : seen) {
      if (static_cast<unsigned char>(c) < 0x80 && times == 1) output.push_back(c);
    }
  }
  for (char c : output) {
    if (!seen.contains(c) || std::count(output.begin(), output.end(), c) > 1) {
      return n.Invalid("the equation's result has a letter that no operand has, or one twice");
    }
  }
  // From left to right; a letter lives as long as the result or a later operand has it.
  Value* y = inputs[0];
  std::string have = letters[0];
  for (size_t i = 1; i < inputs.size(); ++i) {
    std::string later = output;
    for (size_t k = i + 1; k < inputs.size(); ++k) later += letters[k];
    y = WithoutOwn(n, y, &have, later + letters[i]);
    Value* x = WithoutOwn(n, inputs[i], &letters[i], later + have);
    std::string kept;
    for (char c : have + letters[i]) {
      if (later.find(c) != std::string::npos && kept.find(c) == std::string::npos) kept.push_back(c);
    }
    y = Contract(n, y, have, x, letters[i], kept);
    have = kept;
  }
  y = WithoutOwn(n, y, &have, output);
  n.Set(0, Aligned(n, y, have, output));
}

constexpr OnnxOp kSelectOps[] = {
    {"TopK", 1, 1, 2, ImportTopK},
    {"NonZero", 9, 1, 1, ImportNonZero, "rank 1 or more"},
    {"Compress", 9, 2, 2, ImportCompress},
    {"OneHot", 9, 3, 3, ImportOneHot},
    {"EyeLike", 9, 1, 1, ImportEyeLike},
    {"Scatter", 9, 3, 3, ImportScatterElements},
    {"ScatterElements", 11, 3, 3, ImportScatterElements},
    {"TensorScatter", 24, 2, 3, ImportTensorScatter},
    {"ReverseSequence", 10, 2, 2, ImportReverseSequence},
    {"DepthToSpace", 1, 1, 1, ImportDepthToSpace},
    {"SpaceToDepth", 1, 1, 1, ImportSpaceToDepth},
    {"Einsum", 12, 1, -1, ImportEinsum},
};

}  // namespace

absl::Span<const OnnxOp> OnnxSelectOps() { return kSelectOps; }

}  // namespace llmc
