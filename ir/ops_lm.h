// The vocabulary of language models. Steps are token-major: T tokens of S sequences, in any mix of prefill chunks and
// single decode tokens. What the inputs of such a step are is said by their roles (base/step_contract.h); operands that
// are called pos, slots, pages, lens and starts here are of these roles.
// A KV cache is a paged state (ir/state_type.h). Its keys and its values are components, which ops name: [kv_heads,
// head_dim], in one element type, with as many heads but heads of any size; both may be the same component. Where they
// are encoded, kv_write makes codes of what it is given, and attention reads their numbers, both in f32
// (cached_rows.h); with static scales (per=tensor, per=channel: of a head) k_scale and v_scale give these to both ops,
// f32[] or f32[kv_heads].
#pragma once

#include "base/step_contract.h"
#include "ir/op.h"

namespace llmc {

// Rotates pairs of each head of x[T, heads * head_dim] (arXiv:2104.09864). Pair i is (x[i], x[i + r / 2]), or
// (x[2i], x[2i + 1]) if interleaved, where r = 2 * size(inv_freq) <= head_dim; elements past r pass unchanged.
// The angle is pos * inv_freq[i]; cos and sin are multiplied by `scale` (YaRN's attention factor).
struct Rope {
  static constexpr OpInfo kInfo{
      .name = "rope", .summary = "rotary position embedding of x[T, heads * head_dim]", .pattern = "rotary embedding"};
  Value* x = nullptr;
  Value* pos = nullptr;       // i32[T]
  Value* inv_freq = nullptr;  // f32[r / 2]
  int64_t head_dim = 0;
  bool interleaved = false;
  double scale = 1;
  static constexpr auto Fields() {
    return std::tuple(In("x", &Rope::x), In("pos", &Rope::pos, Use::kPlaces),
                      In("inv_freq", &Rope::inv_freq, Use::kFrequency), At("head_dim", &Rope::head_dim),
                      At("interleaved", &Rope::interleaved), At("scale", &Rope::scale));
  }
  absl::StatusOr<Types> Infer(SizeCollector& sizes) const;
  absl::StatusOr<Tensors> Eval(const EvalArgs& args) const;
};

struct KvWrite {
  static constexpr OpInfo kInfo{"kv_write", "stores k and v [T, heads * head_dim] at their slots", 0, kWritesState};
  Value* kv = nullptr;
  Value* k = nullptr;
  Value* v = nullptr;
  Value* slots = nullptr;
  Value* k_scale = nullptr;              // may be absent
  Value* v_scale = nullptr;              // may be absent
  std::string keys = "k", values = "v";  // components
  static constexpr auto Fields() {
    return std::tuple(In("kv", &KvWrite::kv), In("k", &KvWrite::k), In("v", &KvWrite::v),
                      In("slots", &KvWrite::slots, Use::kPlaces),
                      OptionalIn("k_scale", &KvWrite::k_scale, Use::kFrequency),
                      OptionalIn("v_scale", &KvWrite::v_scale, Use::kFrequency), At("keys", &KvWrite::keys),
                      At("values", &KvWrite::values));
  }
  absl::StatusOr<Types> Infer(SizeCollector& sizes) const;
  absl::StatusOr<Tensors> Eval(const EvalArgs& args) const;
  OpCost Cost() const;
};

// Causal attention of each token over its sequence's cache; the token's own key must be written already. A token at
// position p sees positions [max(0, p - window + 1), p], all from 0 if window is 0; with a chunk, [p - p % chunk, p]
// (Llama 4). Query head h reads KV head h / (heads / kv_heads), so that the result is [T, heads * the values'
// head_dim]. Scores are q·k * scale, then softcap * tanh(score / softcap) if softcap is not 0. With slopes, slopes[h] *
// (key's position - token's) is added to them (arXiv:2108.12409). With sinks, sinks[h] is one more score, of a key
// whose value is zero (arXiv:2309.17453).
struct PagedAttention {
  static constexpr OpInfo kInfo{.name = "paged_attention",
                                .summary = "causal attention of q[T, heads * head_dim] over paged KV",
                                .flags = kReadsState,
                                .pattern = "attention"};
  Value* q = nullptr;
  Value* kv = nullptr;
  Value* pages = nullptr;
  Value* lens = nullptr;
  Value* starts = nullptr;
  Value* sinks = nullptr;    // f32[heads]; may be absent
  Value* slopes = nullptr;   // f32[heads]; may be absent
  Value* k_scale = nullptr;  // may be absent
  Value* v_scale = nullptr;  // may be absent
  double scale = 1;
  int64_t window = 0;
  double softcap = 0;
  std::string keys = "k", values = "v";  // components
  int64_t chunk = 0;
  static constexpr auto Fields() {
    return std::tuple(
        In("q", &PagedAttention::q), In("kv", &PagedAttention::kv), In("pages", &PagedAttention::pages, Use::kPlaces),
        In("lens", &PagedAttention::lens, Use::kPlaces), In("starts", &PagedAttention::starts, Use::kPlaces),
        OptionalIn("sinks", &PagedAttention::sinks, Use::kFrequency),
        OptionalIn("slopes", &PagedAttention::slopes, Use::kFrequency),
        OptionalIn("k_scale", &PagedAttention::k_scale, Use::kFrequency),
        OptionalIn("v_scale", &PagedAttention::v_scale, Use::kFrequency), At("scale", &PagedAttention::scale),
        At("window", &PagedAttention::window), At("softcap", &PagedAttention::softcap),
        At("keys", &PagedAttention::keys), At("values", &PagedAttention::values), At("chunk", &PagedAttention::chunk));
  }
  AttendedRange Range() const { return {.window = window, .chunk = chunk}; }
  absl::StatusOr<Types> Infer(SizeCollector& sizes) const;
  absl::StatusOr<Tensors> Eval(const EvalArgs& args) const;
  OpCost Cost() const;
};

// Which experts a token goes to, and with what weights: the `top_k` best of its scores, best first, of equal ones the
// first. Scores are softmax(logits) (arXiv:2101.03961), sigmoid(logits) (arXiv:2412.19437, section 2.1.2), the logits
// themselves with a softmax over those that are chosen ("chosen": arXiv:2401.04088), or with a sigmoid of each
// ("chosen_sigmoid": Llama 4). For the choice alone `bias` is added to them. With `groups` of equally many experts only
// those of the `top_groups` best groups are chosen, where a group is as good as the sum of its `group_best` best scores
// (arXiv:2405.04434, section 2.1.2). Weights are the scores of the chosen, made to sum to 1 if `normalize`, times
// scale.
struct Route {
  static constexpr OpInfo kInfo{.name = "route",
                                .summary = "the experts of each token by its logits[T, experts], and their weights",
                                .results = 2,
                                .mixes = Mixes::kAllButFirst};
  Value* logits = nullptr;
  Value* bias = nullptr;  // f32[experts]; may be absent
  int64_t top_k = 1;
  std::string score = "softmax";
  int64_t groups = 1, top_groups = 1, group_best = 1;
  bool normalize = false;
  double scale = 1;
  static constexpr auto Fields() {
    return std::tuple(In("logits", &Route::logits), OptionalIn("bias", &Route::bias, Use::kFrequency),
                      At("top_k", &Route::top_k), At("score", &Route::score), At("groups", &Route::groups),
                      At("top_groups", &Route::top_groups), At("group_best", &Route::group_best),
                      At("normalize", &Route::normalize), At("scale", &Route::scale));
  }
  absl::StatusOr<Types> Infer() const;  // i32[T, top_k], f32[T, top_k]
  absl::StatusOr<Tensors> Eval(const EvalArgs& args) const;
};

// out[t, j] = x[t, j] * the matrix of expert experts[t, j] + its row of bias, of weight [experts, in, out], or
// [experts, out, in] if transposed; x is [T, in], the same for all j, or [T, K, in]. An encoded weight is decoded to
// f32.
struct ExpertLinear {
  static constexpr OpInfo kInfo{.name = "expert_linear",
                                .summary = "product of each token with the weights of its experts[T, K]",
                                .flags = kTakesEncoded,
                                .mixes = Mixes::kAllButFirst};
  Value* x = nullptr;
  Value* weight = nullptr;
  Value* experts = nullptr;  // i32[T, K]
  Value* bias = nullptr;     // [experts, out]; may be absent
  bool transpose_weight = false;
  static constexpr auto Fields() {
    return std::tuple(In("x", &ExpertLinear::x), In("weight", &ExpertLinear::weight, Use::kParameter),
                      In("experts", &ExpertLinear::experts, Use::kPlaces),
                      OptionalIn("bias", &ExpertLinear::bias, Use::kParameter),
                      At("transpose_weight", &ExpertLinear::transpose_weight));
  }
  absl::StatusOr<Types> Infer(SizeCollector& sizes) const;
  absl::StatusOr<Tensors> Eval(const EvalArgs& args) const;
  OpCost Cost(const Types& results) const;
};

struct SiluMul {
  static constexpr OpInfo kInfo{.name = "silu_mul",
                                .summary = "silu(gate_up[…, :n]) * gate_up[…, n:] for gate_up[…, 2n]",
                                .mixes = Mixes::kLastAxis};
  Value* gate_up = nullptr;
  static constexpr auto Fields() { return std::tuple(In("gate_up", &SiluMul::gate_up)); }
  absl::StatusOr<Types> Infer() const;
  absl::StatusOr<Tensors> Eval(const EvalArgs& args) const;
};

// Attention over whole tensors, as ONNX opset 23 defines it: q[B, heads, L, D], k[B, kv_heads, K, D],
// v[B, kv_heads, K, Dv], mask broadcastable to [B, heads, L, K] (bool: may see; float: added to scores). Causal: query
// i sees keys [0, i + K - L] when `causal_from_end`, else [0, i].
struct Attention {
  static constexpr OpInfo kInfo{
      .name = "attention", .summary = "softmax(q k^T * scale + mask) v", .pattern = "attention"};
  Value* q = nullptr;
  Value* k = nullptr;
  Value* v = nullptr;
  Value* mask = nullptr;
  double scale = 1;
  bool causal = false;
  bool causal_from_end = false;
  double softcap = 0;
  static constexpr auto Fields() {
    return std::tuple(In("q", &Attention::q), In("k", &Attention::k), In("v", &Attention::v),
                      OptionalIn("mask", &Attention::mask), At("scale", &Attention::scale),
                      At("causal", &Attention::causal), At("causal_from_end", &Attention::causal_from_end),
                      At("softcap", &Attention::softcap));
  }
  absl::StatusOr<Types> Infer(SizeCollector& sizes) const;
  absl::StatusOr<Tensors> Eval(const EvalArgs& args) const;
  OpCost Cost() const;
};

// Attention within each of several texts that lie one after the other: those of text s are the rows from starts[s] to
// starts[s + 1] of q[T, heads * head_dim], k[T, kv_heads * head_dim] and v[T, kv_heads * value_dim]; starts are i32[S +
// 1], from 0 to T. A token sees those of its text, if window is not 0 only those at most so far away, if causal none
// after itself. Query head h reads KV head h / (heads / kv_heads). Scores are q·k * scale, then softcap *
// tanh(score / softcap) if softcap is not 0.
struct PackedAttention {
  static constexpr OpInfo kInfo{
      .name = "packed_attention",
      .summary = "attention within each of the texts that rows of q[T, heads * head_dim] hold",
      .pattern = "attention"};
  Value* q = nullptr;
  Value* k = nullptr;
  Value* v = nullptr;
  Value* starts = nullptr;
  int64_t head_dim = 0;
  double scale = 1;
  int64_t window = 0;
  bool causal = false;
  double softcap = 0;
  static constexpr auto Fields() {
    return std::tuple(In("q", &PackedAttention::q), In("k", &PackedAttention::k), In("v", &PackedAttention::v),
                      In("starts", &PackedAttention::starts, Use::kPlaces), At("head_dim", &PackedAttention::head_dim),
                      At("scale", &PackedAttention::scale), At("window", &PackedAttention::window),
                      At("causal", &PackedAttention::causal), At("softcap", &PackedAttention::softcap));
  }
  absl::StatusOr<Types> Infer(SizeCollector& sizes) const;
  absl::StatusOr<Tensors> Eval(const EvalArgs& args) const;
  OpCost Cost() const;
};

// ONNX RotaryEmbedding on x[B, heads, L, D] with cos and sin [B, L, r / 2]; pairs as in `rope`.
struct RotaryEmbedding {
  static constexpr OpInfo kInfo{.name = "rotary_embedding",
                                .summary = "rotation of x[B, heads, L, D] by given cos and sin",
                                .pattern = "rotary embedding"};
  Value* x = nullptr;
  Value* cos = nullptr;
  Value* sin = nullptr;
  bool interleaved = false;
  static constexpr auto Fields() {
    return std::tuple(In("x", &RotaryEmbedding::x), In("cos", &RotaryEmbedding::cos), In("sin", &RotaryEmbedding::sin),
                      At("interleaved", &RotaryEmbedding::interleaved));
  }
  absl::StatusOr<Types> Infer(SizeCollector& sizes) const;
  absl::StatusOr<Tensors> Eval(const EvalArgs& args) const;
};

}  // namespace llmc
