// where, choose, cast, and the broadcasting of dims.
#include "base/status_macros.h"
#include "ir/ops_elementwise.h"
#include "ir/ops_internal.h"

namespace llmc {
namespace {

using ops::Elements;
using ops::Fail;
using ops::Result;
using ops::Str;
using ops::TypeOf;

}  // namespace

absl::StatusOr<Dims> BroadcastDims(const Dims& a, const Dims& b) {
  Dims out(std::max(a.size(), b.size()));
  for (size_t i = 0; i < out.size(); ++i) {  // from the last axis
    const Dim x = i < a.size() ? a[a.size() - 1 - i] : Dim(1);
    const Dim y = i < b.size() ? b[b.size() - 1 - i] : Dim(1);
    Dim& dim = out[out.size() - 1 - i];
    if (ops::IsNumber(x, 1) || ops::IsNumber(y, 1)) {
      dim = ops::IsNumber(x, 1) ? y : x;
    } else if (x == y && !x.is_unknown()) {
      dim = x;
    } else if (x.is_constant() && y.is_constant()) {
      return Fail("shapes [", DimsToString(a), "] and [", DimsToString(b), "] do not broadcast: ", x.ToString(),
                  " against ", y.ToString());
    } else if (x.is_constant() || y.is_constant()) {
      dim = x.is_constant() ? x : y;  // The other is 1 or the same, checked at run time.
    } else {
      dim = Dim::Unknown();
    }
  }
  return out;
}

absl::StatusOr<Types> Where::Infer(SizeCollector& sizes) const {
  if (TypeOf(condition).dtype != DType::kBool || TypeOf(x).dtype != TypeOf(y).dtype) {
    return Fail("where_c1: does not take ", Str(condition), ", ", Str(x), " and ", Str(y));
  }
  absl::StatusOr<Dims> shape = BroadcastDims(TypeOf(x).shape, TypeOf(y).shape);
  if (shape.ok()) shape = BroadcastDims(TypeOf(condition).shape, *shape);
  if (!shape.ok()) return Fail("where_c2: ", shape.status().message());
  sizes.BroadcastToResult({TypeOf(condition).shape, TypeOf(x).shape, TypeOf(y).shape});
  return Types{{TypeOf(x).dtype, *std::move(shape)}};
}

absl::StatusOr<Tensors> Where::Eval(const EvalArgs& args) const {
  absl::StatusOr<Shape> shape = ops::BroadcastShapes("where", args[1].shape(), args[2].shape());
  if (shape.ok()) shape = ops::BroadcastShapes("where", args[0].shape(), *shape);
  if (!shape.ok()) return shape.status();
  ASSIGN_OR_RETURN(Tensor out, ops::NewTensor("where", args[1].dtype(), *shape));
  const ops::StridedLoop<3> loop(
      *shape, {ops::BroadcastStrides(args[0].shape(), *shape), ops::BroadcastStrides(args[1].shape(), *shape),
               ops::BroadcastStrides(args[2].shape(), *shape)});
  const uint8_t* chosen = args[0].data<uint8_t>();
  return ops::WithArithmetic(args[1].dtype(), [&]<class T>(T) -> absl::StatusOr<Tensors> {
    const Elements<T> a(args[1]), b(args[2]);
    Result<T> result(std::move(out));
    T* to = result.data();
    loop.Run([&](const std::array<int64_t, 3>& at, int64_t n, const std::array<int64_t, 3>& step) {
      for (int64_t i = 0; i < n; ++i) {
        to[i] = chosen[at[0] + i * step[0]] ? a[at[1] + i * step[1]] : b[at[2] + i * step[2]];
      }
      to += n;
    });
    return Tensors{result.Finish()};
  });
}

std::optional<Dims> Where::Contents() const {
  SizeCollector nothing;
  const absl::StatusOr<Types> types = Infer(nothing);
  if (!types.ok() || (*types)[0].rank() > 1) return std::nullopt;
  // A condition of another size fails when it runs, so nothing is known without it.
  const Dim size = Product((*types)[0].shape), tests = Product(TypeOf(condition).shape);
  if (!size.is_constant() || (tests != size && !ops::IsNumber(tests, 1))) return std::nullopt;
  if (size.value() > static_cast<int64_t>(ops::kMaxContents)) return std::nullopt;
  const size_t n = static_cast<size_t>(size.value());
  const std::optional<Dims> a = ops::Spread(x, n), b = ops::Spread(y, n);
  if (!a.has_value() || !b.has_value()) return std::nullopt;
  const std::optional<Dims> chosen = ops::Spread(condition, n);
  Dims out;
  for (size_t i = 0; i < n; ++i) {
    if ((*a)[i] == (*b)[i]) {
      out.push_back((*a)[i]);
    } else if (chosen.has_value() && (*chosen)[i].is_constant()) {
      out.push_back((*chosen)[i].value() != 0 ? (*a)[i] : (*b)[i]);
    } else {
      return std::nullopt;
    }
  }
  return ops::MakeContents((*types)[0], std::move(out));
}

absl::StatusOr<Types> Choose::Infer(SizeCollector& sizes) const {
  if (TypeOf(condition).dtype != DType::kBool || TypeOf(condition).rank() != 0) {
    return Fail("choose_c1: the condition ", Str(condition), " is not bool[]");
  }
  if (TypeOf(x).dtype != TypeOf(y).dtype || TypeOf(x).rank() != TypeOf(y).rank()) {
    return Fail("choose_c2: ", Str(x), " and ", Str(y), " are of other types or ranks");
  }
  TensorType out = TypeOf(x);
  for (size_t d = 0; d < out.shape.size(); ++d) {
    if (out.shape[d] != TypeOf(y).shape[d]) out.shape[d] = Dim::Unknown();
  }
  for (const Value* side : {x, y}) {
    if (sizes.result() != nullptr) sizes.Same(TypeOf(side).shape, *sizes.result());
  }
  return Types{out};
}

// Of the two, only what is chosen need be there.
absl::StatusOr<Tensors> Choose::Eval(const EvalArgs& args) const {
  return Tensors{args[args[0].data<uint8_t>()[0] != 0 ? 1 : 2]};
}

// One of the two is read, and no size tells which: x stands for it.
OpCost Choose::Cost(const Types& results) const { return {.operand_bytes = {std::nullopt, results[0].Bytes(), 0}}; }

absl::StatusOr<Types> Cast::Infer() const { return Types{{to, TypeOf(x).shape}}; }

absl::StatusOr<Tensors> Cast::Eval(const EvalArgs& args) const {
  const Tensor& in = args[0];
  if (in.dtype() == to) return Tensors{in};
  ASSIGN_OR_RETURN(Tensor out, ops::NewTensor("cast", to, in.shape()));
  return ops::WithArithmetic(in.dtype(), [&]<class T>(T) -> absl::StatusOr<Tensors> {
    const Elements<T> x(in);
    if (to == DType::kBool) {
      for (int64_t i = 0; i < in.size(); ++i) out.mutable_data<uint8_t>()[i] = x[i] != 0;
    } else if (std::is_integral_v<T> && to == DType::kF32) {
      for (int64_t i = 0; i < in.size(); ++i) out.mutable_data<float>()[i] = static_cast<float>(x[i]);
    } else {
      ops::Store<T>(x.data(), 0, in.size(), &out);
    }
    return Tensors{std::move(out)};
  });
}

std::optional<Dims> Cast::Contents() const {
  if (!x->contents.has_value() || IsFloat(to)) return std::nullopt;
  Dims out = *x->contents;
  if (to == DType::kBool) {
    for (Dim& dim : out) {
      const std::optional<bool> zero = ops::DecideEqual(dim, Dim(0));
      dim = zero.has_value() ? Dim(!*zero) : Dim::Unknown();
    }
  }
  return ops::MakeContents({to, TypeOf(x).shape}, std::move(out));
}

}  // namespace llmc
