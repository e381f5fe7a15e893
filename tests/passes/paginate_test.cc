// Decoders over whole sequences become programs of tokens with a paged cache that give the same logits.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "ir/text.h"
#include "passes/driver/numerics.h"
#include "passes/pipeline.h"
#include "passes/proof/rounding_check.h"
#include "tests/passes/paginate_decoder.h"

namespace llmc {
namespace {

using ::testing::HasSubstr;

TEST(Paginate, GivesTheSameLogits) {
  ExpectSameLogits({});
  ExpectSameLogits({.cache = true});
}

// Programs with a paged cache have no form in f64, as frequencies are f32: f32 is what they are held against.
TEST(Paginate, RoundingsOfPagedProgramsCanBeJudged) {
  std::unique_ptr<Model> model = Parse({.cache = true});
  ASSERT_TRUE(FillRandomWeights(model.get(), 1).ok());
  ASSERT_TRUE(RunPipeline(model.get(), {.dtype = DType::kBF16, .stop_after = "paginate"}, nullptr).ok());
  ASSERT_FALSE(model->states.empty());
  const SmallRun was = RunSmall(*model, 1).value();
  const RoundingCheck check(*model);
  ASSERT_TRUE(RunPipeline(model.get(), {.from = "fuse", .stop_after = "fuse"}, nullptr).ok());
  const NamedTensors is = EvaluateSmall(*model, was.inputs).value();
  const absl::Status status = check.Compare(*model, was.inputs, was.outputs, is);
  EXPECT_TRUE(status.ok()) << status;
}

// Positions that are given are those that it counts, or are refused; they were once ignored.
TEST(Paginate, TakesNoOtherPositions) {
  const Decoder d = {.positions = true};
  const auto paginated = [&] {
    std::unique_ptr<Model> model = Parse(d);
    const std::string did = Paginated(model.get());
    EXPECT_EQ(model->states.size(), 1u) << did;
    return model;
  };
  for (const std::vector<int64_t>& positions :
       {std::vector<int64_t>{0, 1, 2, 3, 4}, {1, 1, 1, 1, 1}, {5, 6, 7, 8, 9}, {0, 1, 0, 1, 2}, {0, 0, 1, 2, 3}}) {
    const auto want = LogitsAt(Parse(d), positions), got = LogitsAt(paginated(), positions);
    ASSERT_TRUE(want.ok()) << want.status();
    if (positions == std::vector<int64_t>{0, 1, 2, 3, 4}) {
      ASSERT_TRUE(got.ok()) << got.status();
      for (int64_t i = 0; i < want->size(); ++i) ASSERT_NEAR(got->GetFloat(i), want->GetFloat(i), 1e-5) << i;
      continue;
    }
    EXPECT_EQ(got.status().code(), absl::StatusCode::kInvalidArgument);
    EXPECT_THAT(std::string(got.status().message()), HasSubstr("--no-paginate"));
  }
}

TEST(Paginate, KeepsCachesThatAreNotFedBackAsTheyAre) {
  ExpectRefused({.cache = true, .renamed = true}, "found %past_key_values.0.key, expected a value of tokens");
}

// Of a known size, it is a weight like any other.
TEST(Paginate, PartsOfWeightsAreWeights) {
  ExpectSameLogits({.mix = "  %part = slice @wide {axis = 0, start = [0], end = [16]}\n  %mixed = matmul %o, %part",
                    .weights = "weight @wide: f32[32, 16] = \"f#w\"\n"});
}

constexpr char kExperts[] = R"(
  %rows = reshape %o {shape = [B*S, 16]}
  %scores = matmul %rows, @router
  %experts, %shares = route %scores {top_k = 2, normalize = true}
  %hidden = expert_linear %rows, @up, %experts {transpose_weight = true}
  %gated = silu_mul %hidden
  %down = expert_linear %gated, @down, %experts, @bias {transpose_weight = true}
  %column = reshape %shares {shape = [B*S, 2, 1]}
  %weighed = mul %down, %column
  %sum = reduce_sum %weighed {axes = [1]}
  %mixed = reshape %sum {shape = [B, S, 16]})";
constexpr char kExpertWeights[] =
    "weight @router: f32[16, 4] = \"f#r\"\nweight @up: f32[4, 12, 16] = \"f#u\"\n"
    "weight @down: f32[4, 16, 6] = \"f#d\"\nweight @bias: f32[4, 16] = \"f#b\"\n";

TEST(Paginate, TokensGoToTheirExperts) {
  ExpectSameLogits({.mix = kExperts, .weights = kExpertWeights});
  ExpectSameLogits({.cache = true, .mix = kExperts, .weights = kExpertWeights});
  // The experts of a token may not be told by where it stands.
  ExpectRefused(
      {.mix = absl::StrReplaceAll(kExperts, {{"= route %scores", "= route @fixed"}, {"[B*S, 2, 1]", "[16, 2, 1]"}}),
       .weights = absl::StrCat(kExpertWeights, "weight @fixed: f32[16, 4] = \"f#x\"\n")},
      "tokens in the first axis alone");
}

TEST(Paginate, ScoresAllTokensWhereTheHeadIsNotLast) {
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

TEST(Paginate, RotatesByTables) {
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

// A head of one may stand between sequences and tokens.
TEST(Paginate, TokensBehindOneHead) {
  ExpectSameLogits({.mix = "  %r = reshape %o {shape = [B, 1, S, 16]}\n  %g = sigmoid %r\n"
                           "  %mixed = reshape %g {shape = [B, S, 16]}"});
}

// x * cos + rotate_half(x) * sin of [B, S, heads, D], with rows that hold each angle twice.
TEST(Paginate, RotatesRowsOfHeads) {
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
  EXPECT_THAT(Paginated(Parse(d).get()), HasSubstr("raise-rotary-of-rows: fired 2"));
}

// torch.bmm, of one head on one head.
TEST(Paginate, ProductsOfMergedBatches) {
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

// Bytes of tokens with a scale that is known, and a head of 4 bits in blocks, which only the last token needs.
TEST(Paginate, QuantizedProducts) {
  const Decoder d = {.cache = true,
                     .mix = R"(
  %step = constant {value = 0.05} : f32[]
  %shift = constant {value = 3} : f32[]
  %shift_i = constant {value = 3} : i32[]
  %steps = div %o, %step
  %rounded = round %steps
  %shifted = add %rounded, %shift
  %oq = cast %shifted {to = i8}
  %oi = cast %oq {to = i32}
  %oc = sub %oi, %shift_i
  %of = cast %oc
  %od = mul %of, %step
  %wf = cast @wm
  %wd = mul %wf, @ws
  %mixed = matmul %od, %wd)",
                     .tail = R"(
  %hf = cast @hq
  %hr = reshape @hs {shape = [32, 2, 1]}
  %hd = mul %hf, %hr
  %hm = reshape %hd {shape = [32, 16]}
  %logits = matmul %y, %hm {transpose_rhs = true})",
                     .weights =
                         "weight @wm: i8[16, 16] = \"f#wm\"\nweight @ws: f32[16] = \"f#ws\"\n"
                         "weight @hq: u4[32, 2, 8] = \"f#hq\"\nweight @hs: f32[32, 2] = \"f#hs\"\n"};
  ExpectSameLogits(d);
  std::unique_ptr<Model> model = Parse(d);
  EXPECT_THAT(Paginated(model.get()), HasSubstr("raise-quantized-linear: fired 2"));
  EXPECT_THAT(PrintModel(*model), HasSubstr("f32[R, 32]"));
}

// What would be dropped is kept: the model stays as it is.
TEST(Paginate, KeepsOtherOutputs) {
  ExpectRefused({.tail = "  %logits = matmul %y, @head {transpose_rhs = true}", .output = ", \"hidden\" = %y"},
                "found the output hidden");
}

TEST(Paginate, NeedsAttention) {
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
  EXPECT_THAT(Paginated(model->get()), HasSubstr("found no attention"));
  EXPECT_EQ((*model)->steps[0]->params[0]->name, "%input_ids");
}

TEST(Paginate, SaysWhyWhereItMust) {
  std::unique_ptr<Model> model = Parse({.mix = "  %mixed = cumsum %o {axis = 1}"});
  const absl::Status status = RunPipeline(model.get(), {.pagination = Pagination::kRequired}, nullptr);
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(status.message()),
              HasSubstr("%mixed: cumsum: found axis 1 (S), which counts tokens, expected "
                        "an axis of features; %o: f32[B, S, 16] has tokens in axis 0 (B) "
                        "and axis 1 (S); leave --paginate out"));
  model = Parse({});
  EXPECT_TRUE(RunPipeline(model.get(), {.pagination = Pagination::kRequired}, nullptr).ok());
  // A program of tokens is what it should be, and no decoder has nothing to become.
  EXPECT_TRUE(RunPipeline(model.get(), {.pagination = Pagination::kRequired}, nullptr).ok());
}

// Weights are [n, k] and merged, as those of folders; norm and head are for chosen rows only.
TEST(Paginate, LeavesTheFormOfFolders) {
  std::unique_ptr<Model> model = Parse({.tail = "  %n2 = rms_norm %y, @norm2\n"
                                                "  %logits = matmul %n2, @head {transpose_rhs = true}",
                                        .weights = "weight @norm2: f32[16] = \"f#n2\"\n"});
  Paginated(model.get());
  const std::string text = PrintModel(*model);
  for (const char* part : {"@wo.t = transpose @wo {perm = [1, 0]}", " = concat @wq.t, @wk.t, @wv.t", "kv_write @kv0, ",
                           ", @wo.t {transpose_rhs = true}", "%n2 = rms_norm %gather.1, @norm2 "}) {
    EXPECT_THAT(text, HasSubstr(part)) << text;
  }
}

TEST(Paginate, KeepsBounds) {
  std::unique_ptr<Model> model = Parse({.cache = true});
  Paginated(model.get());
  EXPECT_EQ(model->dims["S"], 8);
  EXPECT_EQ(model->dims["T"], 8 * 64);
  EXPECT_EQ(model->dims["P"], (64 + 64) / 16);
}

}  // namespace
}  // namespace llmc
