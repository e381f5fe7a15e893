// Decoders over whole sequences become programs of tokens with a paged cache that give the same logits; what is not
// proven to be one stays as it is, and the ledger says why.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "ir/op.h"
#include "ir/ops.h"
#include "ir/text.h"
#include "passes/element_value.h"
#include "passes/numerics.h"
#include "passes/pipeline.h"
#include "runtime/host/host_tensors.h"
#include "runtime/host/model_parts.h"
#include "runtime/llmc.h"

namespace llmc {
namespace {

using ::testing::HasSubstr;

// One layer with two query heads on one head of keys and values. MASK, ROTATE and MIX stand for what a test puts there.
constexpr char kDecoder[] = R"(model m
dim B <= 8
dim S <= 64
dim P <= 64
weight @embed: f32[32, 16] = "f#e"
weight @wq: f32[16, 16] = "f#q"
weight @wk: f32[16, 8] = "f#k"
weight @wv: f32[16, 8] = "f#v"
weight @wo: f32[16, 16] = "f#o"
weight @norm: f32[16] = "f#n"
weight @freq: f32[1, 4, 1] = "f#f"
weight @head: f32[32, 16] = "f#h"
WEIGHTSstep main(%input_ids: i64[B, S]PAST) {
  %x = gather @embed, %input_ids
  %n = rms_norm %x, @norm
  %q0 = matmul %n, @wq
  %k0 = matmul %n, @wk
  %v0 = matmul %n, @wv
  %q1 = reshape %q0 {shape = [B, S, 2, 8]}
  %k1 = reshape %k0 {shape = [B, S, 1, 8]}
  %v1 = reshape %v0 {shape = [B, S, 1, 8]}
  %q2 = transpose %q1 {perm = [0, 2, 1, 3]}
  %k2 = transpose %k1 {perm = [0, 2, 1, 3]}
  %v = transpose %v1 {perm = [0, 2, 1, 3]}
  %zero = constant {value = 0} : i64[]
  %one = constant {value = 1} : i64[]
  %length = dims {values = [S], scalar = true}
  %past = dims {values = [PAST_LENGTH], scalar = true}
  %all = dims {values = [PAST_LENGTH + S], scalar = true}
  %count = range %zero, %length, %one
  %pos = add %count, %past
  %keys = range %zero, %all, %one
ROTATE
  %i = reshape %pos {shape = [1, 1, S, 1]}
  %j = reshape %keys {shape = [1, 1, 1, PAST_LENGTH + S]}
MASK
CACHE
ATTEND
  %a1 = transpose %a {perm = [0, 2, 1, 3]}
  %a2 = reshape %a1 {shape = [B, S, 16]}
  %o = matmul %a2, @wo
MIX
  %y = add %x, %mixed
TAIL
  return "logits" = %logitsPRESENTOUTPUT
}
)";

constexpr char kRotate[] = R"(
  %posf = cast %pos {to = f32}
  %pos3 = reshape %posf {shape = [1, 1, S]}
  %angles0 = matmul @freq, %pos3
  %angles1 = transpose %angles0 {perm = [0, 2, 1]}
  %angles = expand %angles1 {shape = [B, S, 4]}
  %cos = cos %angles
  %sin = sin %angles
  %q = rotary_embedding %q2, %cos, %sin
  %k = rotary_embedding %k2, %cos, %sin
)";

// As GroupQueryAttention has it: lengths are sums of the mask, and keys and values are put behind the past.
constexpr char kScattered[] = R"(
  %lengths = reduce_sum %attention_mask {axes = [1]}
  %before = sub %lengths, %length
  %first = equal %all, %length
  %start = where %first, %zero, %before
  %start4 = reshape %start {shape = [B, 1, 1, 1]}
  %count4 = reshape %count {shape = [1, 1, S, 1]}
  %to = add %count4, %start4
  %batch = dims {values = [B], scalar = true}
  %b = range %zero, %batch, %one
  %b4 = reshape %b {shape = [B, 1, 1, 1]}
  %b5 = expand %b4 {shape = [B, 1, S, 1]}
  %h5 = expand %zero {shape = [B, 1, S, 1]}
  %to5 = expand %to {shape = [B, 1, S, 1]}
  %places = concat %b5, %h5, %to5 {axis = 3}
  %none = constant {value = 0} : f32[]
  %room = expand %none {shape = [B, 1, S, 8]}
  %key_room = concat %past_key_values.0.key, %room {axis = 2}
  %value_room = concat %past_key_values.0.value, %room {axis = 2}
  %present.0.key = scatter_nd %key_room, %places, %k
  %present.0.value = scatter_nd %value_room, %places, %v
)";

struct Decoder {
  bool cache = false;
  bool renamed = false;  // the output is not what comes in again
  std::string mask = "  %mask = less_equal %j, %i";
  std::string mix = "  %mixed = identity %o";
  std::string tail = "  %logits = matmul %y, @head {transpose_rhs = true}";
  std::string weights = {}, output = {};  // more of them
  std::string rotate = kRotate;
  std::string attend = "  %a = attention %q, KEYS, VALUES, %mask {scale = 0.3}";
  std::string caches = {};  // how keys and values join the past; empty: by concat
};

std::unique_ptr<Model> Parse(const Decoder& d) {
  const char* past =
      ", %attention_mask: i64[B, P + S], %past_key_values.0.key: f32[B, 1, P, 8], %past_key_values.0.value: f32[B, 1, "
      "P, 8]";
  const char* cache =
      "  %present.0.key = concat %past_key_values.0.key, %k {axis = 2}\n"
      "  %present.0.value = concat %past_key_values.0.value, %v {axis = 2}";
  const char* present = ", \"present.0.key\" = %present.0.key, \"present.0.value\" = %present.0.value";
  const char* other = ", \"present.0.key\" = %k, \"present.0.value\" = %v";
  const std::string whole = absl::StrReplaceAll(kDecoder, {{"ROTATE", d.rotate}, {"ATTEND", d.attend}});
  const std::string text = absl::StrReplaceAll(whole, {{"PAST_LENGTH", d.cache ? "P" : "0"},
                                                       {"PAST", d.cache ? past : ""},
                                                       {"CACHE", !d.cache           ? ""
                                                                 : d.caches.empty() ? cache
                                                                                    : d.caches},
                                                       {"KEYS", d.cache ? "%present.0.key" : "%k"},
                                                       {"VALUES", d.cache ? "%present.0.value" : "%v"},
                                                       {"PRESENT", !d.cache    ? ""
                                                                   : d.renamed ? other
                                                                               : present},
                                                       {"MASK", d.mask},
                                                       {"MIX", d.mix},
                                                       {"TAIL", d.tail},
                                                       {"WEIGHTS", d.weights},
                                                       {"OUTPUT", d.output}});
  absl::StatusOr<std::unique_ptr<Model>> model = ParseModel(text, "m.lir");
  EXPECT_TRUE(model.ok()) << model.status();
  EXPECT_TRUE(FillRandomWeights(model->get(), 3).ok());
  // As small as those of trained models: logits are about 1, and products that sum in another order differ little.
  for (auto& [name, tensor] : (*model)->data) {
    std::vector<double> values = tensor.ToDoubles();
    for (double& value : values) value /= 4;
    // Tables that hold each angle twice.
    for (size_t i = 0; name.find("twice") != std::string::npos && i < values.size(); ++i) {
      if (i % 8 >= 4) values[i] = values[i - 4];
    }
    tensor = Tensor::FromValues(tensor.dtype(), tensor.shape(), values);
  }
  return *std::move(model);
}

std::string Promoted(Model* model) {
  Ledger ledger;
  const absl::Status status = RunPipeline(model, {.promotion = Promotion::kWhereProven}, &ledger);
  EXPECT_TRUE(status.ok()) << status;
  return ledger.ToString();
}

Tensor Logits(std::unique_ptr<Model> model, bool cache) {
  auto plan = LoadedPlan::FromParts({.path = "m", .model = std::move(model), .max_context = 64}, {});
  EXPECT_TRUE(plan.ok()) << plan.status();
  const std::vector<int64_t> ids = {3, 1, 4, 1, 5, 9, 2, 6, 5, 3, 5, 8, 9, 7, 9, 3};
  NamedHostTensors inputs = {{"input_ids", ToHostTensor(Tensor::FromValues(DType::kI64, {2, 8}, ids))}};
  if (cache) {
    inputs["attention_mask"] = ToHostTensor(Tensor::FromValues(DType::kI64, {2, 8}, std::vector<int64_t>(16, 1)));
    for (const char* name : {"past_key_values.0.key", "past_key_values.0.value"}) {
      inputs[name] = ToHostTensor(Tensor(DType::kF32, {2, 1, 0, 8}));
    }
  }
  const auto outputs = (*plan)->Run(inputs);
  EXPECT_TRUE(outputs.ok()) << outputs.status();
  return *FromHostTensor(outputs->at("logits"));
}

void ExpectSameLogits(const Decoder& d) {
  std::unique_ptr<Model> model = Parse(d);
  const std::string did = Promoted(model.get());
  ASSERT_EQ(model->states.size(), 1u) << did;
  EXPECT_THAT(did, HasSubstr("promote: fired 1"));
  const std::vector<double> want = Logits(Parse(d), d.cache).ToDoubles();
  const std::vector<double> got = Logits(std::move(model), false).ToDoubles();
  ASSERT_EQ(want.size(), got.size());
  for (size_t i = 0; i < want.size(); ++i) ASSERT_NEAR(want[i], got[i], 1e-5) << i;
}

TEST(Promote, GivesTheSameLogits) {
  ExpectSameLogits({});
  ExpectSameLogits({.cache = true});
}

TEST(Promote, MasksInManySpellings) {
  for (const char* mask : {
           "  %mask = greater_equal %i, %j",
           "  %m1 = add %i, %one\n  %mask = less %j, %m1",
           "  %m1 = greater %j, %i\n  %mask = not %m1",
           "  %m1 = less_equal %j, %i\n  %t = constant {value = true} : bool[]\n  %mask = and %m1, %t",
           "  %m1 = less_equal %j, %i\n  %h = constant {value = -3.4e38} : f32[]\n  %z = constant {value = 0} : f32[]\n"
           "  %mask = where %m1, %z, %h",
           "  %m1 = greater %j, %i\n  %m2 = cast %m1 {to = f32}\n  %h = constant {value = -100000} : f32[]\n"
           "  %mask = mul %m2, %h",
           // A window of 3, as where a sliding model looks.
           "  %m1 = less_equal %j, %i\n  %w = constant {value = 3} : i64[]\n  %m2 = sub %i, %w\n  %m3 = greater %j, "
           "%m2\n"
           "  %mask = and %m1, %m3",
       }) {
    SCOPED_TRACE(mask);
    ExpectSameLogits({.mask = mask});
  }
  // What the caller says of padding is true of every token.
  ExpectSameLogits({.cache = true,
                    .mask = "  %m1 = less_equal %j, %i\n  %m2 = cast %attention_mask {to = bool}\n"
                            "  %m3 = reshape %m2 {shape = [B, 1, 1, P + S]}\n  %mask = and %m1, %m3"});
}

void ExpectRefused(const Decoder& d, const std::string& why) {
  std::unique_ptr<Model> model = Parse(d);
  EXPECT_THAT(Promoted(model.get()), HasSubstr(why));
  EXPECT_TRUE(model->states.empty());
  EXPECT_EQ(model->steps[0]->params[0]->name, "%input_ids");
  EXPECT_EQ(Logits(std::move(model), d.cache).shape(), (Shape{2, 8, 32})) << "it still runs";
}

TEST(Promote, SaysWhatStoppedIt) {
  ExpectRefused({.mask = "  %mask = less %j, %i"}, "wanted a causal mask");
  ExpectRefused({.mask = "  %m1 = add %i, %one\n  %mask = less_equal %j, %m1"}, "wanted a causal mask");
  ExpectRefused({.mask = "  %mask = greater_equal %j, %i"}, "wanted a causal mask");
  ExpectRefused({.mask = "  %m1 = less_equal %j, %i\n  %h = constant {value = -10} : f32[]\n"
                         "  %z = constant {value = 0} : f32[]\n  %mask = where %m1, %z, %h"},
                "wanted a causal mask");
  ExpectRefused({.mix = "  %mixed = reduce_mean %o {axes = [1], keep_dims = true}"}, "wanted axes of features");
  ExpectRefused({.mix = "  %mixed = cumsum %o {axis = 1}"}, "line `cumsum`");
  ExpectRefused({.mix = "  %s = softmax %o {axis = 1}\n  %mixed = identity %s"}, "wanted an axis of features");
  ExpectRefused(
      {.mix = "  %t = reshape %o {shape = [B, S*2, 8]}\n  %u = neg %t\n  %mixed = reshape %u {shape = [B, S, 16]}"},
      "wanted a shape that keeps the axes of tokens");
}

TEST(Promote, KeepsCachesThatAreNotFedBackAsTheyAre) {
  ExpectRefused({.cache = true, .renamed = true}, "met %past_key_values.0.key, wanted a value of tokens");
}

TEST(Promote, TokensDoNotMix) {
  // From [S, B, 16] to [B, S, 16] without a transpose: other tokens.
  ExpectRefused({.mix = "  %t = transpose %o {perm = [1, 0, 2]}\n  %u = neg %t\n"
                        "  %mixed = reshape %u {shape = [B, S, 16]}"},
                "wanted tokens in front of all other axes");
  // The length of a step is not that of a sequence.
  ExpectRefused({.mix = "  %len = dims {values = [S], scalar = true}\n  %lenf = cast %len {to = f32}\n"
                        "  %mixed = mul %o, %lenf"},
                "wanted what does not depend on how many tokens there are");
  // A weight that each token has for itself is none.
  ExpectRefused({.mix = "  %w = reduce_sum %o {axes = [0, 1]}\n  %mixed = rms_norm %o, %w"}, "wanted axes of features");
}

// A table that is cut where the sequence ends, and used otherwise than row by row.
TEST(Promote, TablesOfTheSequenceAreForRows) {
  ExpectRefused({.mix = R"(
  %zeros = constant {value = [0]} : i64[1]
  %ends = reshape %all {shape = [1]}
  %cut = slice_by @scales, %zeros, %ends, %zeros
  %sum = reduce_sum %cut {axes = [0]}
  %mixed = mul %o, %sum
)",
                 .weights = "weight @scales: f32[64, 16] = \"f#c\"\n"},
                "wanted rows of it by position");
}

// Of a known size, it is a weight like any other.
TEST(Promote, PartsOfWeightsAreWeights) {
  ExpectSameLogits({.mix = "  %part = slice @wide {axis = 0, start = [0], end = [16]}\n  %mixed = matmul %o, %part",
                    .weights = "weight @wide: f32[32, 16] = \"f#w\"\n"});
}

TEST(Promote, ScoresAllTokensWhereTheHeadIsNotLast) {
  ExpectSameLogits({.mix = "  %mixed = identity %o",
                    .tail = "  %l0 = matmul %y, @head {transpose_rhs = true}\n"
                            "  %l1 = sigmoid %l0\n  %logits = mul %l0, %l1"});
}

// cos and sin are rows of tables, of which only those of the sequence are there.
constexpr char kGatheredAngles[] = R"(
  %zeros = constant {value = [0]} : i64[1]
  %ends = reshape %all {shape = [1]}
  %rows = slice_by @cos, %zeros, %ends, %zeros
  %c0 = gather %rows, %pos
  %s0 = gather @sin, %pos
  %c1 = reshape %c0 {shape = [1, S, 4]}
  %s1 = reshape %s0 {shape = [1, S, 4]}
  %cos = expand %c1 {shape = [B, S, 4]}
  %sin = expand %s1 {shape = [B, S, 4]}
)";
constexpr char kTables[] = "weight @cos: f32[64, 4] = \"f#c\"\nweight @sin: f32[64, 4] = \"f#s\"\n";

TEST(Promote, RotatesByTables) {
  for (const char* how : {"", " {interleaved = true}"}) {
    const std::string rotate = absl::StrCat(kGatheredAngles, "  %q = rotary_embedding %q2, %cos, %sin", how,
                                            "\n  %k = rotary_embedding %k2, %cos, %sin", how, "\n");
    ExpectSameLogits({.weights = kTables, .rotate = rotate});
    ExpectSameLogits({.cache = true, .weights = kTables, .rotate = rotate});
  }
  // Of half of each head.
  ExpectSameLogits({.weights = "weight @cos: f32[64, 2] = \"f#c\"\nweight @sin: f32[64, 2] = \"f#s\"\n",
                    .rotate = absl::StrReplaceAll(absl::StrCat(kGatheredAngles, R"(
  %q = rotary_embedding %q2, %cos, %sin
  %k = rotary_embedding %k2, %cos, %sin
)"),
                                                  {{"S, 4]", "S, 2]"}})});
}

// What looks like a causal mask, or like a position, and is none.
TEST(Promote, ProofsHaveNoHoles) {
  // One row for all queries.
  ExpectRefused({.mask = "  %m0 = less_equal %j, %i\n  %z1 = constant {value = [0]} : i64[1]\n"
                         "  %e1 = constant {value = [1]} : i64[1]\n  %ax = constant {value = [2]} : i64[1]\n"
                         "  %mask = slice_by %m0, %z1, %e1, %ax"},
                "wanted a causal mask");
  // The last position, counted from the end.
  ExpectRefused({.mask = "  %minus = constant {value = -1} : i64[]\n  %last = gather %pos, %minus\n"
                         "  %l1 = add %last, %one\n  %i2 = add %i, %l1\n  %mask = less_equal %j, %i2"},
                "wanted a causal mask");
  // Halves become 0 as integers.
  ExpectRefused({.mask = "  %m1 = less_equal %j, %i\n  %h = constant {value = 0.5} : f32[]\n"
                         "  %z = constant {value = 0} : f32[]\n  %m2 = where %m1, %h, %z\n"
                         "  %m3 = cast %m2 {to = i64}\n  %mask = cast %m3 {to = bool}"},
                "wanted a causal mask");
  // As many features as a sequence has tokens.
  ExpectRefused({.mix = "  %sl = slice %o {axis = 2, start = [0], end = [S]}\n"
                        "  %su = reduce_sum %sl {axes = [2], keep_dims = true}\n  %mixed = mul %o, %su"},
                "wanted features of known sizes");
  // A position that wraps is no position, but an op on tokens like others.
  ExpectSameLogits({.mix = "  %c = constant {value = 253} : i64[]\n  %p1 = add %pos, %c\n"
                           "  %pb = cast %p1 {to = u8}\n  %pi = cast %pb {to = i64}\n  %p3 = sub %pi, %c\n"
                           "  %p5 = cast %p3 {to = f32}\n  %small = constant {value = 0.001} : f32[]\n"
                           "  %p6 = mul %p5, %small\n  %p7 = reshape %p6 {shape = [1, S, 1]}\n"
                           "  %mixed = mul %o, %p7"});
}

// A head of one may stand between sequences and tokens.
TEST(Promote, TokensBehindOneHead) {
  ExpectSameLogits({.mix = "  %r = reshape %o {shape = [B, 1, S, 16]}\n  %g = sigmoid %r\n"
                           "  %mixed = reshape %g {shape = [B, S, 16]}"});
}

TEST(Promote, KeysAreScatteredBehindThePast) {
  ExpectSameLogits({.cache = true, .caches = kScattered});
  // All at one place, or at another one.
  for (const auto& [right, wrong] : {std::pair("add %count4, %start4", "add %start4, %start4"),
                                     std::pair("sub %lengths, %length", "sub %lengths, %one")}) {
    ExpectRefused({.cache = true, .caches = absl::StrReplaceAll(kScattered, {{right, wrong}})},
                  "wanted what does not depend on how many tokens there are");
  }
}

// Rows of a table by position, of which the first two are for something else.
TEST(Promote, PositionsMayBeShifted) {
  const Decoder d = {.mix =
                         "  %two = constant {value = [2]} : i64[1]\n  %shifted = add %pos, %two\n"
                         "  %row = gather @learned, %shifted\n  %row1 = reshape %row {shape = [1, S, 16]}\n"
                         "  %mixed = add %o, %row1",
                     .weights = "weight @learned: f32[66, 16] = \"f#l\"\n"};
  ExpectSameLogits(d);
  std::unique_ptr<Model> model = Parse(d);
  Promoted(model.get());
  EXPECT_EQ(model->dims.at("P"), 4);  // pages of 16 for 64 positions
}

// x * cos + rotate_half(x) * sin of [B, S, heads, D], with rows that hold each angle twice.
TEST(Promote, RotatesRowsOfHeads) {
  std::string rotate = R"(
  %zeros = constant {value = [0]} : i64[1]
  %ends = reshape %all {shape = [1]}
  %first = slice_by @cos_twice, %zeros, %ends, %zeros
  %c0 = gather %first, %pos
  %s0 = gather @sin_twice, %pos
  %c = reshape %c0 {shape = [1, S, 1, 8]}
  %s = reshape %s0 {shape = [1, S, 1, 8]}
)";
  for (const char* x : {"q", "k"}) {
    absl::StrAppend(&rotate, absl::StrReplaceAll(R"(
  %Xlow = slice %X1 {axis = 3, start = [0], end = [4]}
  %Xhigh = slice %X1 {axis = 3, start = [4], end = [8]}
  %Xminus = neg %Xhigh
  %Xturned = concat %Xminus, %Xlow {axis = 3}
  %Xa = mul %X1, %c
  %Xb = mul %Xturned, %s
  %Xr = add %Xa, %Xb
  %X = transpose %Xr {perm = [0, 2, 1, 3]}
)",
                                                 {{"X", x}}));
  }
  const Decoder d = {.cache = true,
                     .weights = "weight @cos_twice: f32[64, 8] = \"f#c\"\nweight @sin_twice: f32[64, 8] = \"f#s\"\n",
                     .rotate = rotate};
  ExpectSameLogits(d);
  EXPECT_THAT(Promoted(Parse(d).get()), HasSubstr("raise-rotary-of-rows: fired 2"));
}

// torch.bmm, of one head on one head.
TEST(Promote, ProductsOfMergedBatches) {
  const Decoder d = {.mask =
                         "  %m1 = less_equal %j, %i\n  %h = constant {value = -3.4e38} : f32[]\n"
                         "  %z = constant {value = 0} : f32[]\n  %mask = where %m1, %z, %h",
                     .rotate = R"(
  %wide = concat %k2, %k2 {axis = 1}
  %widev = concat %v, %v {axis = 1}
)",
                     .attend = R"(
  %q3 = reshape %q2 {shape = [2*B, S, 8]}
  %k3 = reshape %wide {shape = [2*B, S, 8]}
  %v3 = reshape %widev {shape = [2*B, S, 8]}
  %kt = transpose %k3 {perm = [0, 2, 1]}
  %scores3 = matmul %q3, %kt
  %scores = reshape %scores3 {shape = [B, 2, S, S]}
  %masked = add %scores, %mask
  %masked3 = reshape %masked {shape = [2*B, S, S]}
  %weights3 = softmax %masked3 {axis = 2}
  %a3 = matmul %weights3, %v3
  %a = reshape %a3 {shape = [B, 2, S, 8]}
)"};
  ExpectSameLogits(d);
}

// What would be dropped is kept: the model stays as it is.
TEST(Promote, KeepsOtherOutputs) {
  ExpectRefused({.tail = "  %logits = matmul %y, @head {transpose_rhs = true}", .output = ", \"hidden\" = %y"},
                "met the output hidden");
}

TEST(Promote, NeedsAttention) {
  absl::StatusOr<std::unique_ptr<Model>> model = ParseModel(R"(model m
dim B <= 8
dim S <= 64
weight @embed: f32[32, 16] = "f#e"
weight @head: f32[16, 32] = "f#h"
step main(%input_ids: i64[B, S]) {
  %x = gather @embed, %input_ids
  %logits = matmul %x, @head
  return "logits" = %logits
}
)",
                                                            "m.lir");
  ASSERT_TRUE(model.ok()) << model.status();
  EXPECT_THAT(Promoted(model->get()), HasSubstr("met no attention"));
  EXPECT_EQ((*model)->steps[0]->params[0]->name, "%input_ids");
}

TEST(Promote, SaysWhyWhereItMust) {
  std::unique_ptr<Model> model = Parse({.mix = "  %mixed = cumsum %o {axis = 1}"});
  const absl::Status status = RunPipeline(model.get(), {.promotion = Promotion::kRequired}, nullptr);
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(status.message()), HasSubstr("%mixed: cumsum: met cumsum, wanted an op that treats each "
                                                       "token for itself; %o: f32[B, S, 16] has tokens in axis 0 (B) "
                                                       "and axis 1 (S); leave --promote out"));
  model = Parse({});
  EXPECT_TRUE(RunPipeline(model.get(), {.promotion = Promotion::kRequired}, nullptr).ok());
  // A program of tokens is what it should be, and no decoder has nothing to become.
  EXPECT_TRUE(RunPipeline(model.get(), {.promotion = Promotion::kRequired}, nullptr).ok());
}

// Weights are [n, k] and merged, as those of folders; norm and head are for chosen rows only.
TEST(Promote, LeavesTheFormOfFolders) {
  std::unique_ptr<Model> model = Parse({.tail = "  %n2 = rms_norm %y, @norm2\n"
                                                "  %logits = matmul %n2, @head {transpose_rhs = true}",
                                        .weights = "weight @norm2: f32[16] = \"f#n2\"\n"});
  Promoted(model.get());
  const std::string text = PrintModel(*model);
  for (const char* part :
       {"@wo.t = transpose @wo {perm = [1, 0]}", " = concat @wq.t, @wk.t, @wv.t", " = rope_kv_write @kv0, ",
        ", @wo.t {transpose_rhs = true}", "%n2 = rms_norm %gather.1, @norm2 "}) {
    EXPECT_THAT(text, HasSubstr(part)) << text;
  }
}

TEST(Promote, KeepsBounds) {
  std::unique_ptr<Model> model = Parse({.cache = true});
  Promoted(model.get());
  EXPECT_EQ(model->dims["S"], 8);
  EXPECT_EQ(model->dims["T"], 8 * 64);
  EXPECT_EQ(model->dims["P"], (64 + 64) / 16);
}

// One element of values that count, at symbolic places.
TEST(ElementValue, OfPositions) {
  absl::StatusOr<std::unique_ptr<Model>> model = ParseModel(R"(model m
dim S <= 64
step main(%x: f32[S]) {
  %zero = constant {value = 0} : i64[]
  %one = constant {value = 1} : i64[]
  %n = dims {values = [S], scalar = true}
  %r = range %zero, %n, %one
  %a = mul %r, %n
  %s = slice %a {axis = 0, start = [2], end = [S]}
  %t = constant {value = [7, 9, 11]} : i64[1, 3]
  %c = concat %r, %r {axis = 0}
  %f = cast %c {to = f32}
  return "s" = %s, "t" = %t, "f" = %f
}
)",
                                                            "m.lir");
  ASSERT_TRUE(model.ok()) << model.status();
  const Dim i = Dim::Symbol("$i");
  const auto at = [&](const char* name, const Dims& place) { return ElementAt(*(*model)->Find(name), place, {}); };
  ASSERT_TRUE(at("%s", {i}).has_value());
  EXPECT_EQ(at("%s", {i})->integer, (i + Dim(2)) * Dim::Symbol("S"));
  ASSERT_TRUE(at("%t", {Dim(0), i}).has_value());
  EXPECT_EQ(at("%t", {Dim(0), i})->integer, Dim(7) + Dim(2) * i);
  EXPECT_FALSE(at("%f", {i}).has_value()) << "the second part begins again";
  EXPECT_FALSE(at("%x", {i}).has_value());
}

}  // namespace
}  // namespace llmc
