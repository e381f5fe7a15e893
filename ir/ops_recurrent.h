// Recurrent layers.
#pragma once

#include "ir/op.h"

namespace llmc {

// One direction of an LSTM, a GRU or a simple recurrent layer. The gates, each of H rows of `weight`, are in the order
// of ONNX; with g = x[t] + h weight^T for a gate and s the logistic function, a step makes:
//   "lstm"             i, o, f = s(g), u = tanh(g);  c = f c + i u;  h = o tanh(c)
//   "gru"              z, r = s(g), u = tanh(x[t] + (r h) weight^T);  h = (1 - z) u + z h
//   "gru_reset_after"  the same with u = tanh(x[t] + r (h weight^T + bias))
//   "rnn_tanh", "rnn_relu"  h = tanh(g) or max(g, 0)
struct Recurrence {
  static constexpr OpInfo kInfo{
      "recurrence", "h[t] from x[t], the input's part of all gates, and h[t - 1]; all h, and the last state", 2};
  Value* x = nullptr;       // [T, B, gates H]
  Value* weight = nullptr;  // [gates H, H]
  Value* h = nullptr;       // [B, H], before the first step
  Value* c = nullptr;       // [B, H], of an LSTM
  // i64[B]: after so many steps a state stays, and what it gives is 0. Absent: all are T long.
  Value* lens = nullptr;
  Value* bias = nullptr;  // [H], of gru_reset_after
  std::string kind = "lstm";
  bool reverse = false;  // from the last step to the first
  static constexpr auto Fields() {
    return std::tuple(In("x", &Recurrence::x), In("weight", &Recurrence::weight), In("h", &Recurrence::h),
                      OptionalIn("c", &Recurrence::c), OptionalIn("lens", &Recurrence::lens, Use::kPlaces),
                      OptionalIn("bias", &Recurrence::bias), At("kind", &Recurrence::kind),
                      At("reverse", &Recurrence::reverse));
  }
  // Results: [T, B, H], and [1, B, H], of an LSTM [2, B, H]: the last h and c.
  absl::StatusOr<Types> Infer(SizeCollector& sizes) const;
  absl::StatusOr<Tensors> Eval(const EvalArgs& args) const;
  OpCost Cost() const;
};

// The gates of a kind; 0 if there is none of that name.
int64_t GatesOf(absl::string_view kind);

}  // namespace llmc
