#include "ir/ops_recurrent.h"

#include <cmath>

#include "base/status_macros.h"
#include "ir/ops_internal.h"

namespace llmc {
namespace {

using ops::Elements;
using ops::Fail;
using ops::Result;
using ops::Str;
using ops::TypeOf;

bool FitsLayer(const Value* value, const TensorType& type, SizeCollector& sizes) {
  return value == nullptr || (TypeOf(value).dtype == type.dtype && sizes.Same(TypeOf(value).shape, type.shape));
}

template <class T>
T Logistic(T x) {
  return T(1) / (T(1) + std::exp(-x));
}

// The sizes of a run, and what a step works on: all of it as T.
template <class T>
struct RecurrentLayer {
  int64_t steps = 0, batch = 0, hidden = 0, gates = 0;
  absl::string_view kind;
  const T *x = nullptr, *weight = nullptr, *bias = nullptr;
  std::vector<T> h, c;
  std::vector<T> product;      // [batch, gates hidden]: h weight^T
  std::vector<T> reset, part;  // [batch, hidden]: r h, and its product with the last gate's weights

  void Multiply() {
    ops::MultiplyTransposed(h.data(), batch, weight, gates * hidden, hidden, product.data());
    if (kind != "gru") return;
    // r h is needed whole before it is multiplied.
    for (int64_t i = 0; i < batch * hidden; ++i) reset[i] = h[i] * Logistic(Sum(i / hidden, 1, i % hidden));
    ops::MultiplyTransposed(reset.data(), batch, weight + 2 * hidden * hidden, hidden, hidden, part.data());
  }
  const T* at = nullptr;  // x of this step
  T Sum(int64_t b, int64_t gate, int64_t j) const {
    const int64_t i = (b * gates + gate) * hidden + j;
    return at[i] + product[i];
  }

  void Step(int64_t b, int64_t j) {
    T& state = h[b * hidden + j];
    if (kind == "lstm") {
      T& cell = c[b * hidden + j];
      cell = Logistic(Sum(b, 2, j)) * cell + Logistic(Sum(b, 0, j)) * std::tanh(Sum(b, 3, j));
      state = Logistic(Sum(b, 1, j)) * std::tanh(cell);
    } else if (gates == 3) {
      const int64_t i = (b * gates + 2) * hidden + j;
      const T own = kind == "gru" ? part[b * hidden + j]
                                  : Logistic(Sum(b, 1, j)) * (product[i] + (bias == nullptr ? T(0) : bias[j]));
      const T update = Logistic(Sum(b, 0, j));
      state = (T(1) - update) * std::tanh(at[i] + own) + update * state;
    } else {
      state = kind == "rnn_tanh" ? std::tanh(Sum(b, 0, j)) : std::max(Sum(b, 0, j), T(0));
    }
  }
};

template <class T>
void RunLayer(RecurrentLayer<T>* layer, bool reverse, const std::vector<int64_t>& lens, T* out) {
  const int64_t batch = layer->batch, hidden = layer->hidden;
  layer->product.resize(batch * layer->gates * hidden);
  layer->reset.resize(batch * hidden);
  layer->part.resize(batch * hidden);
  for (int64_t k = 0; k < layer->steps; ++k) {
    const int64_t t = reverse ? layer->steps - 1 - k : k;
    layer->at = layer->x + t * batch * layer->gates * hidden;
    layer->Multiply();
    for (int64_t b = 0; b < batch; ++b) {
      const bool is_there = lens.empty() || t < lens[b];
      for (int64_t j = 0; j < hidden; ++j) {
        if (is_there) layer->Step(b, j);
        out[(t * batch + b) * hidden + j] = is_there ? layer->h[b * hidden + j] : T(0);
      }
    }
  }
}

// What an evaluation gets must be as the types say: dims that are no numbers may turn out otherwise.
absl::Status CheckRecurrence(const EvalArgs& args, int64_t gates) {
  const Shape &x = args[0].shape(), &weight = args[1].shape();
  const auto is = [&](size_t i, const Shape& shape) { return !args.has(i) || args[i].shape() == shape; };
  const int64_t hidden = weight[1];
  const bool fits = weight[0] == gates * hidden && x[2] == weight[0] && is(2, {x[1], hidden}) &&
                    is(3, {x[1], hidden}) && is(4, {x[1]}) && is(5, {hidden});
  return fits ? absl::OkStatus() : Fail("recurrence: the operands of x ", Str(args[0]), " do not fit each other");
}

}  // namespace

int64_t GatesOf(absl::string_view kind) {
  if (kind == "lstm") return 4;
  if (kind == "gru" || kind == "gru_reset_after") return 3;
  return kind == "rnn_tanh" || kind == "rnn_relu" ? 1 : 0;
}

absl::StatusOr<Types> Recurrence::Infer(SizeCollector& sizes) const {
  const int64_t gates = GatesOf(kind);
  if (gates == 0) return Fail("recurrence_c1: there is no kind \"", kind, "\"");
  const DType dtype = TypeOf(x).dtype;
  if (!IsFloat(dtype) || TypeOf(x).rank() != 3 || TypeOf(weight).rank() != 2) {
    return Fail("recurrence_c2: does not take ", Str(x), " and ", Str(weight));
  }
  const Dim hidden = TypeOf(weight).shape[1], batch = TypeOf(x).shape[1], rows = Dim(gates) * hidden;
  const TensorType state = {dtype, {batch, hidden}};
  if (!FitsLayer(weight, {dtype, {rows, hidden}}, sizes) ||
      !FitsLayer(x, {dtype, {TypeOf(x).shape[0], batch, rows}}, sizes) || !FitsLayer(h, state, sizes) ||
      !FitsLayer(c, state, sizes)) {
    return Fail("recurrence_c3: ", Str(x), ", ", Str(weight), " and the states do not fit");
  }
  if ((c == nullptr) == (kind == "lstm") || (bias != nullptr && kind != "gru_reset_after")) {
    return Fail("recurrence_c4: \"", kind, "\" takes other operands");
  }
  if (!FitsLayer(lens, {DType::kI64, {batch}}, sizes) || !FitsLayer(bias, {dtype, {hidden}}, sizes)) {
    return Fail("recurrence_c5: lens or bias do not fit ", Str(x));
  }
  return Types{{dtype, {TypeOf(x).shape[0], batch, hidden}}, {dtype, {Dim(kind == "lstm" ? 2 : 1), batch, hidden}}};
}

// Each step multiplies h with the rows of all gates; a "gru" has r h for those of one. No size tells lens: all are T
// long.
OpCost Recurrence::Cost() const { return ops::SumsOfProducts(TypeOf(x), TypeOf(weight).shape[1]); }

absl::StatusOr<Tensors> Recurrence::Eval(const EvalArgs& args) const {
  const Tensor &in = args[0], &weights = args[1];
  RETURN_IF_ERROR(CheckRecurrence(args, GatesOf(kind)));
  const int64_t steps = in.shape()[0], batch = in.shape()[1], hidden = weights.shape()[1];
  absl::StatusOr<Tensor> out = ops::NewTensor("recurrence", in.dtype(), {steps, batch, hidden});
  absl::StatusOr<Tensor> last = ops::NewTensor("recurrence", in.dtype(), {args.has(3) ? 2 : 1, batch, hidden});
  if (!out.ok()) return out.status();
  if (!last.ok()) return last.status();
  const std::vector<int64_t> lengths = args.has(4) ? args[4].ToInts() : std::vector<int64_t>();
  const auto run = [&]<class T>(T) {
    const Elements<T> from(in), weight(weights), state(args[2]);
    RecurrentLayer<T> layer{.steps = steps, .batch = batch, .hidden = hidden, .gates = GatesOf(kind), .kind = kind};
    layer.x = from.data();
    layer.weight = weight.data();
    layer.h.assign(state.data(), state.data() + batch * hidden);
    if (args.has(3)) {
      const Elements<T> cell(args[3]);
      layer.c.assign(cell.data(), cell.data() + batch * hidden);
    }
    std::vector<T> bias_elements;
    if (args.has(5)) {
      const Elements<T> elements(args[5]);
      bias_elements.assign(elements.data(), elements.data() + hidden);
      layer.bias = bias_elements.data();
    }
    Result<T> y(*std::move(out)), end(*std::move(last));
    RunLayer(&layer, reverse, lengths, y.data());
    std::copy(layer.h.begin(), layer.h.end(), end.data());
    std::copy(layer.c.begin(), layer.c.end(), end.data() + batch * hidden);
    return Tensors{y.Finish(), end.Finish()};
  };
  return in.dtype() == DType::kF64 ? run(double{}) : run(float{});
}

}  // namespace llmc
