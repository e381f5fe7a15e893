// What ops cost, counted by hand.
#include "ir/op_cost.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <set>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "ir/ops.h"
#include "ir/text.h"
#include "runtime/plan/dim_expression.h"

namespace llmc {
namespace {

// The last op of a fragment, its cost as sizes, and in a run with these dims. A cost is written as
// "flops | bytes of the state | bytes of each operand that is not read as a whole (-)".
struct CostCase {
  const char* text;
  const char* sizes;
  StepDims dims;
  const char* numbers;
};

const CostCase kCostCases[] = {
    // ---- products: 2 for each element of the result and each term of its sum
    {"in %x: f32[2, 3, 4]\nin %w: f32[4, 5]\n%y = matmul %x, %w\n", "240 | 0 |", {}, "240 | 0 |"},
    {"in %x: bf16[T, 64]\nin %w: bf16[32, 64]\n%y = matmul %x, %w {transpose_rhs = true}\n",
     "4096*T | 0 |",
     {{"T", 3}},
     "12288 | 0 |"},
    {"in %x: f32[B, 8, S, 16]\nin %z: f32[8, 16, S]\n%y = matmul %x, %z\n",
     "256*B*S*S | 0 |",
     {{"B", 2}, {"S", 3}},
     "4608 | 0 |"},
    {"in %x: f32[4]\nin %z: f32[4]\n%y = matmul %x, %z\n", "8 | 0 |", {}, "8 | 0 |"},
    {"in %x: f32[T, 64]\nin %w: u4[64, 32]\nin %s: f32[2, 32]\n"
     "%e = encode %w, %s {as = \"uint4 group=32 along=-2 scale=f32\"}\n%y = linear %x, %e\n",
     "4096*T | 0 |",
     {{"T", 5}},
     "20480 | 0 |"},
    // Six channels at five places, each from two channels of x at three.
    {"in %x: f32[N, 4, 10]\nin %w: f32[6, 2, 3]\n%y = conv %x, %w {strides = [2], pads = [1, 1], groups = 2}\n",
     "360*N | 0 |",
     {{"N", 3}},
     "1080 | 0 |"},
    {"in %x: f32[1, 3, H, W]\nin %w: f32[8, 3, 3, 3]\n%y = conv %x, %w {pads = [1, 1, 1, 1]}\n",
     "432*H*W | 0 |",
     {{"H", 5}, {"W", 4}},
     "8640 | 0 |"},
    // A step multiplies h of each sequence with 32 rows of 8 weights, or 24.
    {"in %x: f32[T, B, 32]\nin %w: f32[32, 8]\nin %h: f32[B, 8]\nin %c: f32[B, 8]\n"
     "%y, %l = recurrence %x, %w, %h, %c {reverse = true}\n",
     "512*B*T | 0 |",
     {{"T", 7}, {"B", 2}},
     "7168 | 0 |"},
    {"in %x: f32[T, 2, 24]\nin %w: f32[24, 8]\nin %h: f32[2, 8]\nin %n: i64[2]\n"
     "%y, %l = recurrence %x, %w, %h, _, %n {kind = \"gru\"}\n",
     "768*T | 0 |",
     {{"T", 7}},
     "5376 | 0 |"},
    // Two experts for each token, of which there are four.
    {"in %x: f32[T, 8]\nin %w: f32[4, 8, 6]\nin %e: i32[T, 2]\n%y = expert_linear %x, %w, %e\n",
     "192*T | 0 | - (min(2*T, 4))*(192)",
     {{"T", 1}},
     "192 | 0 | - 384"},
    // An expert has 48 codes of 4 bits, and from byte 128 on 12 scales of 16.
    {"in %x: f32[T, 8]\nin %c: u4[4, 6, 8]\nin %s: f16[4, 6, 2]\nin %e: i32[T, 2]\n"
     "%w = encode %c, %s {as = \"uint4 group=4 scale=f16\"}\n"
     "%y = expert_linear %x, %w, %e {transpose_weight = true}\n",
     "192*T | 0 | - (min(2*T, 4))*(152)",
     {{"T", 1}},
     "192 | 0 | - 304"},
    // ---- attention: 15 pairs of each of 2 * 4 heads take 8 multiplications for the score and 16 for the value
    {"in %q: f32[2, 4, 3, 8]\nin %k: f32[2, 2, 5, 8]\nin %v: f32[2, 2, 5, 16]\n%y = attention %q, %k, %v\n",
     "5760 | 0 |",
     {},
     "5760 | 0 |"},
    // 3 + 4 + 5 pairs
    {"in %q: f32[2, 4, 3, 8]\nin %k: f32[2, 2, 5, 8]\nin %v: f32[2, 2, 5, 16]\n"
     "%y = attention %q, %k, %v {causal = true, causal_from_end = true}\n",
     "4608 | 0 |",
     {},
     "4608 | 0 |"},
    // 1 + 2 + 3 pairs, of 3 keys
    {"in %q: f32[2, 4, 3, 8]\nin %k: f32[2, 2, 5, 8]\nin %v: f32[2, 2, 5, 16]\n"
     "%y = attention %q, %k, %v {causal = true}\n",
     "2304 | 0 | - 384 768",
     {},
     "2304 | 0 | - 384 768"},
    // 6 + 7 + 8 pairs
    {"in %q: bf16[B, 4, S, 8]\nin %k: bf16[B, 4, P + S, 8]\nin %v: bf16[B, 4, P + S, 8]\n"
     "%y = attention %q, %k, %v {causal = true, causal_from_end = true}\n",
     "128*B*P*S + 64*B*S + 64*B*S*S | 0 |",
     {{"B", 2}, {"S", 3}, {"P", 5}},
     "5376 | 0 |"},
    // 32 heads of 128 in the queries, 8 in the state
    {"state @kv: paged[N, 16] {k: bf16[8, 128], v: bf16[8, 128]}\nin %q: bf16[T, 4096]\nin %p: i32[S, P]\nin %l: "
     "i32[S]\nin %s: i32[S + 1]\n"
     "%y = paged_attention %q, @kv, %p, %l, %s\n",
     "16384*step:pairs | 4096*step:keys | - 0 0",
     {{"step:keys", 10}, {"step:pairs", 30}},
     "491520 | 40960 | - 0 0"},
    {"state @kv: paged[N, 16] {k: f32[2, 3], v: f32[2, 3]}\nin %q: f32[T, 6]\nin %p: i32[S, P]\nin %l: i32[S]\nin %s: "
     "i32[S + 1]\n"
     "%y = paged_attention %q, @kv, %p, %l, %s {window = 128}\n",
     "24*step:pairs:128 | 48*step:keys:128 | - 0 0",
     {{"step:keys:128", 10}, {"step:pairs:128", 30}},
     "720 | 480 | - 0 0"},
    {"state @kv: paged[N, 16] {k: f32[2, 3], v: f32[2, 3]}\nin %q: f32[T, 6]\nin %p: i32[S, P]\nin %l: i32[S]\nin %s: "
     "i32[S + 1]\n"
     "%y = paged_attention %q, @kv, %p, %l, %s {chunk = 128}\n",
     "24*step:pairs:chunk128 | 48*step:keys:chunk128 | - 0 0",
     {{"step:keys:chunk128", 10}, {"step:pairs:chunk128", 30}},
     "720 | 480 | - 0 0"},
    // ---- states: two heads of three elements, as key and as value
    {"state @kv: paged[5, 4] {k: f32[2, 3], v: f32[2, 3]}\nin %k: f32[T, 6]\nin %v: f32[T, 6]\nin %s: i32[T]\nkv_write "
     "@kv, %k, %v, %s\n",
     "0 | 48*T | 0",
     {{"T", 8}},
     "0 | 384 | 0"},
    // ---- parts of operands: rows that are picked, at most all
    {"in %x: bf16[32000, 64]\nin %i: i32[T]\n%y = gather %x, %i\n",
     "0 | 0 | min(128*T, 4096000)",
     {{"T", 3}},
     "0 | 0 | 384"},
    {"in %x: bf16[32000, 64]\nin %i: i32[T]\n%y = gather %x, %i\n",
     "0 | 0 | min(128*T, 4096000)",
     {{"T", 40000}},
     "0 | 0 | 4096000"},
    {"in %x: f32[10, 4]\nin %i: i32[20]\n%y = gather %x, %i\n", "0 | 0 | 160", {}, "0 | 0 | 160"},
    {"in %x: u4[10, 3]\nin %i: i32[3]\n%y = gather %x, %i\n", "0 | 0 | 5", {}, "0 | 0 | 5"},
    {"in %x: u4[3, V]\nin %i: i32[V]\n%y = gather %x, %i {axis = 1}\n",
     "0 | 0 | (3*V + 1)/(2)",
     {{"V", 3}},
     "0 | 0 | 5"},
    {"in %x: f32[4, 6]\nin %i: i64[2, 6]\n%y = gather_elements %x, %i\n", "0 | 0 | 48", {}, "0 | 0 | 48"},
    {"in %x: f32[4, 6, 2]\nin %i: i64[3, 1]\n%y = gather_nd %x, %i\n", "0 | 0 | 144", {}, "0 | 0 | 144"},
    {"in %x: f32[T, 8]\n%y = slice %x {axis = 1, start = [2], end = [5]}\n", "0 | 0 | 12*T", {{"T", 5}}, "0 | 0 | 60"},
    {"in %x: f16[6, 8]\n%a = constant {value = [1]} : i64[1]\n%b = constant {value = [5]} : i64[1]\n"
     "%y = slice_by %x, %a, %b\n",
     "0 | 0 | 64",
     {},
     "0 | 0 | 64"},
    {"in %x: f16[6, 8]\nin %a: i64[1]\nin %b: i64[1]\n%i = constant {value = [0]} : i64[1]\n"
     "%y = slice_by %x, %a, %b, %i\n",
     "0 | 0 | 16*u",
     {{"u", 3}},
     "0 | 0 | 48"},
    {"in %x: f32[T, 8]\n%y = shape_of %x\n", "0 | 0 | 0", {}, "0 | 0 | 0"},
    {"in %c: bool[]\nin %x: f32[T, 8]\nin %z: f32[T, 8]\n%y = choose %c, %x, %z\n",
     "0 | 0 | - 32*T 0",
     {{"T", 2}},
     "0 | 0 | - 64 0"},
    // ---- how many tokens a text has is not known: each sees itself
    {"in %q: f32[T, 32]\nin %k: f32[T, 16]\nin %v: f32[T, 32]\nin %s: i32[S + 1]\n"
     "%y = packed_attention %q, %k, %v, %s {head_dim = 8}\n",
     "192*T | 0 |",
     {{"T", 3}, {"S", 2}},
     "576 | 0 |"},
    // ---- ops without a cost of their own
    {"in %x: f32[T, 8]\nin %w: f32[8]\n%y = rms_norm %x, %w\n", "0 | 0 |", {}, "0 | 0 |"},
    {"in %x: f32[T, 8]\nin %p: i32[T]\nin %f: f32[2]\n%y = rope %x, %p, %f {head_dim = 4}\n", "0 | 0 |", {}, "0 | 0 |"},
};

// The last node of a fragment.
const Node& LastNode(const Model& model) { return *model.steps[0]->block.nodes.back(); }

std::string SizeInRun(const Size& size, const StepDims& dims) {
  const absl::StatusOr<DimExpression> expression = DimExpression::Parse(size.ToString());
  if (!expression.ok()) return std::string(expression.status().message());
  const absl::StatusOr<int64_t> value = expression->Evaluate(dims);
  return value.ok() ? absl::StrCat(*value) : std::string(value.status().message());
}

template <class Print>
std::string CostText(const OpCost& cost, const Print& print) {
  std::string text = absl::StrCat(print(cost.flops), " | ", print(cost.state_bytes), " |");
  for (const std::optional<Size>& bytes : cost.operand_bytes) {
    absl::StrAppend(&text, " ", bytes.has_value() ? print(*bytes) : "-");
  }
  return text;
}

TEST(OpCost, IsWhatAHandCounts) {
  for (const CostCase& c : kCostCases) {
    SCOPED_TRACE(c.text);
    const absl::StatusOr<std::unique_ptr<Model>> model = ParseFragment(c.text, "case");
    ASSERT_TRUE(model.ok()) << model.status();
    const Node& node = LastNode(**model);
    const OpCost cost = node.op->cost(node);
    EXPECT_EQ(CostText(cost, [](const Size& size) { return size.ToString(); }), c.sizes);
    EXPECT_EQ(CostText(cost, [&](const Size& size) { return SizeInRun(size, c.dims); }), c.numbers);
    EXPECT_LE(cost.operand_bytes.size(), node.operands.size());
  }
}

// ---- the ops that must be among the cases ------------------------------------------------------------------------
std::set<absl::string_view> OpsOfCases() {
  std::set<absl::string_view> ops;
  for (const CostCase& c : kCostCases) {
    const absl::StatusOr<std::unique_ptr<Model>> model = ParseFragment(c.text, "case");
    if (model.ok()) ops.insert(LastNode(**model).op->info.name);
  }
  return ops;
}

template <class Op>
constexpr bool HasCost() {
  return requires(const Op& op, const Types& results) { op.Cost(results); }
  || requires(const Op& op) { op.Cost(); };
}

template <class... Ops>
std::vector<absl::string_view> OpsWithCost(OpList<Ops...>) {
  std::vector<absl::string_view> names;
  ((HasCost<Ops>() ? names.push_back(Ops::kInfo.name) : void()), ...);
  return names;
}

TEST(OpCost, OfEveryOpThatHasOneIsCounted) {
  const std::vector<absl::string_view> ops = OpsWithCost(AllOps{});
  EXPECT_GE(ops.size(), 14u);
  const std::set<absl::string_view> counted = OpsOfCases();
  for (const absl::string_view op : ops) EXPECT_TRUE(counted.contains(op)) << op;
}

TEST(OpCost, OfOpsThatTouchAStateHasItsBytes) {
  const std::set<absl::string_view> ops = OpsOfCases();
  for (const OpDef* op : AllOpDefs()) {
    EXPECT_TRUE(!op->info.touches_state() || ops.contains(op->info.name)) << op->info.name;
  }
  for (const CostCase& c : kCostCases) {
    SCOPED_TRACE(c.text);
    const absl::StatusOr<std::unique_ptr<Model>> model = ParseFragment(c.text, "case");
    ASSERT_TRUE(model.ok()) << model.status();
    const Node& node = LastNode(**model);
    const OpCost cost = node.op->cost(node);
    EXPECT_EQ(!cost.state_bytes.Is(0), node.op->info.touches_state());
    for (size_t i = 0; i < node.operands.size(); ++i) {
      if (node.operands[i] == nullptr || node.operands[i]->kind != ValueKind::kState) continue;
      ASSERT_LT(i, cost.operand_bytes.size());
      EXPECT_EQ(cost.operand_bytes[i], Size(0));
    }
  }
}

TEST(OpCost, OfElementwiseOpsAndViewsIsNone) {
  int checked = 0;
  for (const OpDef* op : AllOpDefs()) {
    if (!op->info.is_elementwise() && !op->info.is_view()) continue;
    SCOPED_TRACE(op->info.name);
    Value value{.name = "%x", .type = {DType::kF32, {Dim::Symbol("T"), Dim(8)}}};
    const Node node{.op = op,
                    .operands = std::vector<Value*>(op->max_operands, &value),
                    .results = std::vector<Value*>(static_cast<size_t>(op->info.results), &value)};
    EXPECT_EQ(CostText(op->cost(node), [](const Size& size) { return size.ToString(); }), "0 | 0 |");
    ++checked;
  }
  EXPECT_GT(checked, 45);
}

// ---- causal attention, whichever of queries and keys are more ------------------------------------------------------
int64_t VisiblePairs(int64_t queries, int64_t keys, bool from_end) {
  int64_t pairs = 0;
  for (int64_t i = 0; i < queries; ++i) {
    for (int64_t j = 0; j < keys; ++j) pairs += j <= i + (from_end ? keys - queries : 0) ? 1 : 0;
  }
  return pairs;
}

TEST(OpCost, OfCausalAttentionHasThePairsThatPositionsLeave) {
  for (const bool from_end : {false, true}) {
    const std::string text =
        absl::StrCat("in %q: f32[1, 1, L, 2]\nin %k: f32[1, 1, K, 2]\nin %v: f32[1, 1, K, 3]\n",
                     "%y = attention %q, %k, %v {causal = true", from_end ? ", causal_from_end = true" : "", "}\n");
    const absl::StatusOr<std::unique_ptr<Model>> model = ParseFragment(text, "case");
    ASSERT_TRUE(model.ok()) << model.status();
    const Node& node = LastNode(**model);
    const OpCost cost = node.op->cost(node);
    for (const int64_t queries : {0, 1, 2, 5, 6}) {
      for (const int64_t keys : {0, 1, 2, 5, 6}) {
        const StepDims dims = {{"L", queries}, {"K", keys}};
        EXPECT_EQ(SizeInRun(cost.flops, dims), absl::StrCat(10 * VisiblePairs(queries, keys, from_end)));
        if (from_end) continue;
        EXPECT_EQ(SizeInRun(*cost.operand_bytes[1], dims), absl::StrCat(8 * std::min(queries, keys)));
        EXPECT_EQ(SizeInRun(*cost.operand_bytes[2], dims), absl::StrCat(12 * std::min(queries, keys)));
      }
    }
  }
}

TEST(OpCost, NamesSizesThatNoModelHas) {
  for (const absl::string_view name : {kAttendedKeys, kAttendedPairs}) {
    EXPECT_FALSE(Dim::Parse(name).ok());
    EXPECT_FALSE(ParseFragment(absl::StrCat("in %x: f32[", name, "]\n%y = exp %x\n"), "case").ok());
    EXPECT_FALSE(ParseFragment(absl::StrCat("dim ", name, " <= 8\nin %x: f32[4]\n%y = exp %x\n"), "case").ok());
  }
}

}  // namespace
}  // namespace llmc
