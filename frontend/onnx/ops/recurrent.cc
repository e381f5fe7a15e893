// LSTM, GRU and RNN: the op of the language for those that it has, sequences of a known length unrolled for others.
#include <algorithm>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "frontend/onnx/ops.h"
#include "frontend/onnx/ops/math.h"

namespace llmc {
namespace {

constexpr int64_t kMaxSteps = 1024;  // as of Loop and Scan
// Of a model, where a step becomes up to kOpsOfStep of them: small files must not become large programs.
constexpr int64_t kMaxOps = 500'000, kOpsOfStep = 40;

struct GateActivation {
  std::string name;  // in lower case
  std::optional<double> alpha, beta;
};

Value* ActivatedGate(OnnxNode& n, const GateActivation& f, Value* x) {
  const double alpha = f.alpha.value_or(f.name == "thresholdedrelu" || f.name == "elu" ? 1
                                        : f.name == "hardsigmoid"                      ? 0.2
                                                                                       : 0.01);
  if (f.name == "sigmoid") return Map<Sigmoid>(n, x);
  if (f.name == "tanh") return Map<Tanh>(n, x);
  if (f.name == "relu") return Map<Relu>(n, x);
  if (f.name == "softplus") return Map<Softplus>(n, x);
  if (f.name == "softsign") return Map<Div>(n, x, Map<Add>(n, Map<Abs>(n, x), 1));
  if (f.name == "hardsigmoid") {
    return Map<Max>(n, Map<Min>(n, Map<Add>(n, Map<Mul>(n, x, alpha), f.beta.value_or(0.5)), 1), 0);
  }
  Value* positive = Map<Greater>(n, x, 0);
  if (f.name == "leakyrelu") return Select(n, positive, x, Map<Mul>(n, x, alpha));
  if (f.name == "elu") return Select(n, positive, x, Map<Mul>(n, Map<Sub>(n, Map<Exp>(n, x), 1), alpha));
  if (f.name == "thresholdedrelu") return Select(n, Map<Greater>(n, x, alpha), x, n.Scalar(DTypeOf(x), 0));
  n.Unsupported(absl::StrCat("activation \"", f.name, "\" is not supported"));
  return nullptr;
}

// What all directions of a node share. Inputs and states are [T, B, …] and [B, hidden].
struct RecurrentNode {
  int64_t gates = 1;
  int64_t steps = 0;
  Dim batch, hidden;
  Value* x = nullptr;     // [T, B, in]
  Value* lens = nullptr;  // i64[B, 1]; nullptr if all are of full length
  double clip = 0;        // 0: none
  bool input_forget = false, linear_before_reset = false;
};

// The weights of one direction.
struct Direction {
  bool reverse = false;
  Value* recurrent = nullptr;  // [gates * hidden, hidden]
  Value* x_part = nullptr;     // [T, B, gates * hidden], with the bias of the input
  Value* bias = nullptr;       // [gates * hidden], of the state; nullptr for none
  Value* peepholes = nullptr;  // [3 * hidden]
  std::vector<GateActivation> activations;
};

struct State {
  Value* h = nullptr;
  Value* c = nullptr;
};

// Gate i of [B, gates * hidden] or [gates * hidden].
Value* Gate(OnnxNode& n, const RecurrentNode& r, Value* all, int64_t i) {
  if (!n.ok() || all == nullptr) return nullptr;
  return n.SliceOf(all, RankOf(all) - 1, Dim(i) * r.hidden, Dim(i + 1) * r.hidden);
}

Value* Clipped(OnnxNode& n, const RecurrentNode& r, Value* x) {
  return r.clip == 0 ? x : Map<Max>(n, Map<Min>(n, x, r.clip), -r.clip);
}

Value* TimesState(OnnxNode& n, Value* h, Value* weights) {
  return n.Emit(MatMul{.lhs = h, .rhs = weights, .transpose_rhs = true});
}

Value* PlusBias(OnnxNode& n, Value* x, Value* bias) { return bias == nullptr ? x : Map<Add>(n, x, bias); }

State LstmStep(OnnxNode& n, const RecurrentNode& r, const Direction& d, Value* x_part, const State& state) {
  Value* sum = PlusBias(n, Map<Add>(n, x_part, TimesState(n, state.h, d.recurrent)), d.bias);
  const auto gate = [&](int64_t i, int64_t peephole, Value* cell, size_t activation) {
    Value* y = Gate(n, r, sum, i);
    if (d.peepholes != nullptr && peephole >= 0)
      y = Map<Add>(n, y, Map<Mul>(n, Gate(n, r, d.peepholes, peephole), cell));
    return ActivatedGate(n, d.activations[activation], Clipped(n, r, y));
  };
  Value* input = gate(0, 0, state.c, 0);  // gates: input, output, forget, cell
  Value* forget = r.input_forget ? Map<Sub>(n, 1, input) : gate(2, 2, state.c, 0);
  Value* c = Map<Add>(n, Map<Mul>(n, forget, state.c), Map<Mul>(n, input, gate(3, -1, nullptr, 1)));
  Value* output = gate(1, 1, c, 0);
  // The cell is not clipped: neither does ONNX Runtime.
  return {.h = Map<Mul>(n, output, ActivatedGate(n, d.activations[2], c)), .c = c};
}

State GruStep(OnnxNode& n, const RecurrentNode& r, const Direction& d, Value* x_part, const State& state) {
  Value* own = PlusBias(n, TimesState(n, state.h, d.recurrent), d.bias);
  const auto gate = [&](int64_t i) {
    return ActivatedGate(n, d.activations[0], Clipped(n, r, Map<Add>(n, Gate(n, r, x_part, i), Gate(n, r, own, i))));
  };
  Value *update = gate(0), *reset = gate(1);
  Value* hidden = nullptr;
  if (r.linear_before_reset) {
    hidden = Map<Mul>(n, reset, Gate(n, r, own, 2));
  } else if (n.ok()) {
    Value* weights = n.SliceOf(d.recurrent, 0, Dim(2) * r.hidden, Dim(3) * r.hidden);
    hidden = PlusBias(n, TimesState(n, Map<Mul>(n, reset, state.h), weights), Gate(n, r, d.bias, 2));
  }
  hidden = ActivatedGate(n, d.activations[1], Clipped(n, r, Map<Add>(n, Gate(n, r, x_part, 2), hidden)));
  return {.h = Map<Add>(n, Map<Mul>(n, Map<Sub>(n, 1, update), hidden), Map<Mul>(n, update, state.h))};
}

State RnnStep(OnnxNode& n, const RecurrentNode& r, const Direction& d, Value* x_part, const State& state) {
  Value* sum = PlusBias(n, Map<Add>(n, x_part, TimesState(n, state.h, d.recurrent)), d.bias);
  return {.h = ActivatedGate(n, d.activations[0], Clipped(n, r, sum))};
}

using StepFunction = State (*)(OnnxNode&, const RecurrentNode&, const Direction&, Value*, const State&);

// Behind the end of its sequence a state stays, and the output is zero.
State RunDirection(OnnxNode& n, const RecurrentNode& r, const Direction& d, StepFunction step, State state,
                   std::vector<Value*>* outputs) {
  outputs->resize(static_cast<size_t>(r.steps));
  for (int64_t k = 0; k < r.steps && n.ok(); ++k) {
    const int64_t t = d.reverse ? r.steps - 1 - k : k;
    Value* x_part = n.SliceOf(d.x_part, 0, Dim(t), Dim(t + 1));
    State next = step(n, r, d, n.ReshapeTo(x_part, {r.batch, Dim(r.gates) * r.hidden}), state);
    Value* output = next.h;
    if (r.lens != nullptr) {
      Value* is_there = Map<Greater>(n, r.lens, static_cast<double>(t));
      output = Select(n, is_there, next.h, n.Scalar(DTypeOf(next.h), 0));
      next.h = Select(n, is_there, next.h, state.h);
      if (next.c != nullptr) next.c = Select(n, is_there, next.c, state.c);
    }
    (*outputs)[static_cast<size_t>(t)] = n.ReshapeTo(output, {Dim(1), Dim(1), r.batch, r.hidden});
    state = next;
  }
  return state;
}

// What a direction gives: [T, 1, B, hidden], and the state after its last step.
struct Sequence {
  Value* outputs = nullptr;
  State last;
};

Sequence Unroll(OnnxNode& n, const RecurrentNode& r, const Direction& d, StepFunction step, const State& first) {
  std::vector<Value*> outputs;
  const State last = RunDirection(n, r, d, step, first, &outputs);
  if (!n.ok()) return {};
  return {.outputs = outputs.size() == 1 ? outputs[0] : n.Emit(Concat{.parts = outputs, .axis = 0}), .last = last};
}

// The biases of a step are sums with the input's part, but for that of a gate which is reset after its product.
Sequence EmitDirection(OnnxNode& n, const RecurrentNode& r, const Direction& d, const std::string& kind,
                       const State& first) {
  Value *x = d.x_part, *bias = nullptr;
  if (d.bias != nullptr && kind != "gru_reset_after") {
    x = Map<Add>(n, x, d.bias);
  } else if (d.bias != nullptr) {
    Value* zero = n.Emit(Expand{.x = n.Scalar(DTypeOf(d.bias), 0), .shape = {r.hidden}});
    Value* others = n.SliceOf(d.bias, 0, Dim(0), Dim(2) * r.hidden);
    if (!n.ok()) return {};
    x = Map<Add>(n, x, n.Emit(Concat{.parts = {others, zero}, .axis = 0}));
    bias = Gate(n, r, d.bias, 2);
  }
  Value* outputs = n.Emit(Recurrence{.x = x,
                                     .weight = d.recurrent,
                                     .h = first.h,
                                     .c = first.c,
                                     .lens = r.lens,
                                     .bias = bias,
                                     .kind = kind,
                                     .reverse = d.reverse});
  if (!n.ok() || outputs == nullptr) return {};
  Value* last = outputs->def->results[1];
  const bool has_cell = first.c != nullptr;
  return {
      .outputs = n.ReshapeTo(outputs, {outputs->type.shape[0], Dim(1), r.batch, r.hidden}),
      .last = {.h = n.SliceOf(last, 0, Dim(0), Dim(1)), .c = has_cell ? n.SliceOf(last, 0, Dim(1), Dim(2)) : nullptr}};
}

// The name that the language has for it; empty for what it does not have.
std::string KindOf(OnnxNode& n, const RecurrentNode& r, const std::vector<GateActivation>& functions,
                   size_t per_direction) {
  if (r.clip != 0 || r.input_forget || n.has(7) || functions.empty()) return "";
  const auto are = [&](const std::vector<std::string>& names) {
    for (size_t i = 0; i < functions.size(); ++i) {
      if (functions[i].name != names[i % per_direction]) return false;
    }
    return true;
  };
  if (r.gates == 4) return are({"sigmoid", "tanh", "tanh"}) ? "lstm" : "";
  if (r.gates == 3) return !are({"sigmoid", "tanh"}) ? "" : r.linear_before_reset ? "gru_reset_after" : "gru";
  return are({"tanh"}) ? "rnn_tanh" : are({"relu"}) ? "rnn_relu" : "";
}

bool CanUnroll(OnnxNode& n, RecurrentNode* r, int64_t directions) {
  const Dim length = r->x->type.shape[0];
  if (!length.is_constant() || length.value() > kMaxSteps) {
    n.Unsupported(
        absl::StrCat("with peepholes, a clip, coupled gates or these activations the length of the sequence "
                     "must be known, and at most ",
                     kMaxSteps, ", not ", length.ToString()));
    return false;
  }
  r->steps = length.value();
  if (n.OpsSoFar() + r->steps * directions * kOpsOfStep > kMaxOps) {
    n.Unsupported(absl::StrCat("the model would have more than ", kMaxOps, " ops, the sequences unrolled"));
  } else if (r->steps == 0) {
    n.Unsupported("an empty sequence is not supported");
  }
  if (r->lens != nullptr) r->lens = n.ReshapeTo(r->lens, {r->batch, Dim(1)});
  return n.ok();
}

// The part of direction i of an input, without its first axis.
Value* PartOf(OnnxNode& n, size_t input, int64_t i) {
  if (!n.has(input) || !n.ok()) return nullptr;
  const Dims shape = n.in(input)->type.shape;
  return n.ReshapeTo(n.SliceOf(n.in(input), 0, Dim(i), Dim(i + 1)), Dims(shape.begin() + 1, shape.end()));
}

std::vector<GateActivation> ActivationsOf(OnnxNode& n, size_t count, std::vector<std::string> names) {
  const std::vector<double> alphas = n.Floats("activation_alpha"), betas = n.Floats("activation_beta");
  const std::vector<std::string> given = n.Strings("activations");
  if (!given.empty()) names = given;
  if (names.size() != count) n.Invalid(absl::StrCat("activations must be ", count, " names, not ", names.size()));
  std::vector<GateActivation> activations;
  size_t alpha = 0, beta = 0;  // They are of those functions alone that take them.
  for (const std::string& name : names) {
    GateActivation f{.name = absl::AsciiStrToLower(name)};
    const bool has_beta = f.name == "hardsigmoid";
    const bool has_alpha = has_beta || f.name == "leakyrelu" || f.name == "elu" || f.name == "thresholdedrelu";
    if (has_alpha && alpha < alphas.size()) f.alpha = alphas[alpha++];
    if (has_beta && beta < betas.size()) f.beta = betas[beta++];
    activations.push_back(f);
  }
  activations.resize(count);
  return activations;
}

// What stands in inputs 1 and 2 for direction i: [gates * hidden, …].
using DirectionWeights = Value* (*)(OnnxNode& n, size_t input, int64_t i);

void CheckRecurrentInputs(OnnxNode& n, const std::string& direction) {
  if (direction != "forward" && direction != "reverse" && direction != "bidirectional") {
    return n.Invalid(absl::StrCat("direction \"", direction, "\" is unknown"));
  }
  for (size_t i : {0, 1, 2}) {
    if (RankOf(n.in(i)) != 3) return n.Invalid("X, W and R must have rank 3");
  }
  if ((n.has(3) && RankOf(n.in(3)) != 2) || (n.has(4) && RankOf(n.in(4)) != 1) || (n.has(5) && RankOf(n.in(5)) != 3) ||
      (n.has(6) && RankOf(n.in(6)) != 3) || (n.has(7) && RankOf(n.in(7)) != 2)) {
    return n.Invalid("an input has another rank than the operator says");
  }
  if (!IsFloat(DTypeOf(n.in(0)))) n.Invalid("X must be floating-point");
}

// Inputs: X, W, R, B, sequence_lens, initial_h, and of LSTM initial_c and P. Axis `hidden_axis` of R is that of h.
void ImportRecurrent(OnnxNode& n, int64_t gates, const std::vector<std::string>& activations, StepFunction step,
                     DirectionWeights weights = PartOf, size_t hidden_axis = 2) {
  const bool is_lstm = gates == 4;
  const bool batch_first = n.Int("layout", 0) != 0;
  const std::string direction = n.String("direction", "forward");
  CheckRecurrentInputs(n, direction);
  if (!n.ok()) return;
  const int64_t directions = direction == "bidirectional" ? 2 : 1;
  const DType dtype = DTypeOf(n.in(0));
  RecurrentNode r{.gates = gates,
                  .x = batch_first ? n.TransposeBy(n.in(0), {1, 0, 2}) : n.in(0),
                  .clip = n.Float("clip", 0),
                  .input_forget = is_lstm && n.Int("input_forget", 0) != 0,
                  .linear_before_reset = gates == 3 && n.Int("linear_before_reset", 0) != 0};
  if (!n.ok()) return;
  r.batch = r.x->type.shape[1];
  r.hidden = n.in(2)->type.shape[hidden_axis];
  if (const int64_t given = n.Int("hidden_size", 0); given != 0 && r.hidden.is_constant() && r.hidden != Dim(given)) {
    return n.Invalid(absl::StrCat("hidden_size is ", given, ", but R is ", n.in(2)->type.ToString()));
  }
  if (n.has(4)) r.lens = n.AsI64(4);
  std::vector<std::string> usual = activations;  // of each direction
  if (directions == 2) usual.insert(usual.end(), activations.begin(), activations.end());
  const std::vector<GateActivation> functions = ActivationsOf(n, usual.size(), usual);
  const std::string kind = KindOf(n, r, functions, activations.size());
  if (kind.empty() && !CanUnroll(n, &r, directions)) return;
  std::vector<Value*> sequences, last_h, last_c;
  for (int64_t i = 0; i < directions && n.ok(); ++i) {
    const auto first = functions.begin() + i * static_cast<int64_t>(activations.size());
    Direction d{.reverse = direction == "reverse" || i == 1,
                .recurrent = weights(n, 2, i),
                .peepholes = is_lstm ? PartOf(n, 7, i) : nullptr,
                .activations = {first, first + static_cast<int64_t>(activations.size())}};
    d.x_part = n.Emit(MatMul{.lhs = r.x, .rhs = weights(n, 1, i), .transpose_rhs = true});
    if (Value* bias = PartOf(n, 3, i); bias != nullptr) {
      const Dim size = Dim(gates) * r.hidden;
      d.x_part = Map<Add>(n, d.x_part, n.SliceOf(bias, 0, Dim(0), size));
      d.bias = n.SliceOf(bias, 0, size, Dim(2) * size);
    }
    const auto initial = [&](size_t input) -> Value* {
      if (!n.has(input)) return n.Emit(Expand{.x = n.Scalar(dtype, 0), .shape = {r.batch, r.hidden}});
      Value* states = batch_first ? n.TransposeBy(n.in(input), {1, 0, 2}) : n.in(input);
      return n.ReshapeTo(n.SliceOf(states, 0, Dim(i), Dim(i + 1)), {r.batch, r.hidden});
    };
    const State first_state = {.h = initial(5), .c = is_lstm ? initial(6) : nullptr};
    const Sequence y = kind.empty() ? Unroll(n, r, d, step, first_state) : EmitDirection(n, r, d, kind, first_state);
    if (!n.ok()) return;
    sequences.push_back(y.outputs);
    last_h.push_back(n.ReshapeTo(y.last.h, {Dim(1), r.batch, r.hidden}));
    if (is_lstm) last_c.push_back(n.ReshapeTo(y.last.c, {Dim(1), r.batch, r.hidden}));
  }
  const auto joined = [&](const std::vector<Value*>& parts, int64_t axis, std::vector<int64_t> batch_first_perm) {
    Value* y = parts.size() == 1 || !n.ok() ? parts[0] : n.Emit(Concat{.parts = parts, .axis = axis});
    return batch_first ? n.TransposeBy(y, std::move(batch_first_perm)) : y;
  };
  if (!n.ok()) return;
  if (n.wants(0)) n.Set(0, joined(sequences, 1, {2, 0, 1, 3}));
  if (n.wants(1)) n.Set(1, joined(last_h, 0, {1, 0, 2}));
  if (is_lstm && n.wants(2)) n.Set(2, joined(last_c, 0, {1, 0, 2}));
}

void ImportLstm(OnnxNode& n) { ImportRecurrent(n, 4, {"Sigmoid", "Tanh", "Tanh"}, LstmStep); }
void ImportGru(OnnxNode& n) { ImportRecurrent(n, 3, {"Sigmoid", "Tanh"}, GruStep); }
void ImportRnn(OnnxNode& n) { ImportRecurrent(n, 1, {"Tanh"}, RnnStep); }

// Weights of 8 bits [directions, …, 4 * hidden]; inputs 8 and 9 are scale and zero point of W, 10 and 11 those of R:
// [directions], or [directions, 4 * hidden].
Value* DequantizedPart(OnnxNode& n, size_t input, int64_t i) {
  const size_t scale = input == 1 ? 8 : 10;
  Value* numbers = n.CastTo(PartOf(n, input, i), DType::kF32);
  Value* zero_point = n.CastTo(PartOf(n, scale + 1, i), DType::kF32);
  if (!n.ok()) return nullptr;
  return n.TransposeBy(Map<Mul>(n, Map<Sub>(n, numbers, zero_point), PartOf(n, scale, i)), {1, 0});
}

void ImportDynamicQuantizeLstm(OnnxNode& n) {
  for (const size_t i : {8, 9, 10, 11}) {
    if (!n.has(i)) return n.Invalid(absl::StrCat("input ", i, " is missing"));
    if (RankOf(n.in(i)) != 1 && RankOf(n.in(i)) != 2) return n.Invalid("scales and zero points must have rank 1 or 2");
  }
  for (const size_t i : {1, 2}) {
    if (DTypeOf(n.in(i)) != DType::kI8 && DTypeOf(n.in(i)) != DType::kU8) return n.Invalid("W and R must have 8 bits");
  }
  if (DTypeOf(n.in(0)) != DType::kF32) return n.Invalid("X must be float");
  ImportRecurrent(n, 4, {"Sigmoid", "Tanh", "Tanh"}, LstmStep, DequantizedPart, 1);
}

constexpr absl::string_view kLimits =
    "with peepholes, a clip, coupled gates or other activations than the usual ones, sequences of a known length up to "
    "1024, which are unrolled";

constexpr OnnxOp kRecurrentOps[] = {
    {"LSTM", 7, 3, 8, ImportLstm, kLimits},
    {"GRU", 7, 3, 6, ImportGru, kLimits},
    {"RNN", 7, 3, 6, ImportRnn, kLimits},
};

constexpr OnnxOp kContribRecurrentOps[] = {
    {"DynamicQuantizeLSTM", 1, 3, 12, ImportDynamicQuantizeLstm,
     "with the weights that are stood for; X and h stay f32, which ONNX Runtime rounds to 8 bits; else as LSTM"},
};

}  // namespace

absl::Span<const OnnxOp> OnnxRecurrentOps() { return kRecurrentOps; }
absl::Span<const OnnxOp> OnnxContribRecurrentOps() { return kContribRecurrentOps; }

}  // namespace llmc
