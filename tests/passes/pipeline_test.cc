// The driver of the pipeline: dumps, resuming, choosing passes, errors.
#include "passes/pipeline.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <sstream>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "ir/op.h"
#include "ir/text.h"
#include "passes/driver/numerics.h"
#include "passes/proof/count_check.h"
#include "passes/proof/rounding_check.h"

namespace llmc {
namespace {

using testing::HasSubstr;

constexpr char kModel[] = R"(model "tiny"
dim N <= 64
dim T <= 128
weight @l0.norm: f32[8] = "m#norm"
weight @l0.wg: f32[16, 8] = "m#wg"
weight @l0.wu: f32[16, 8] = "m#wu"
step main(%x: f32[T, 8], %y: f32[T, 8]) {
  %one = constant {value = 1} : f32[]
  %i = identity %x
  %m = mul %i, %one
  %s = add %m, %y
  %n = rms_norm %s, @l0.norm loc "layers.0.norm"
  %g = matmul %n, @l0.wg {transpose_rhs = true}
  %u = matmul %n, @l0.wu {transpose_rhs = true}
  %a = silu %g
  %o = mul %a, %u loc "layers.0.mlp"
  return "out" = %o, "sum" = %s
}
)";

std::unique_ptr<Model> ParseText(absl::string_view text) {
  absl::StatusOr<std::unique_ptr<Model>> model = ParseModel(text, "test");
  EXPECT_TRUE(model.ok()) << model.status();
  return *std::move(model);
}

std::string Read(const std::string& path) {
  std::ifstream in(path);
  std::stringstream text;
  text << in.rdbuf();
  return text.str();
}

class PipelineTest : public testing::Test {
 protected:
  void SetUp() override { std::filesystem::remove_all(dir_); }
  void TearDown() override { std::filesystem::remove_all(dir_); }
  const std::string dir_ = absl::StrCat(testing::TempDir(), "llmc_pipeline_", getpid(), "_",
                                        testing::UnitTest::GetInstance()->current_test_info()->name());
};

TEST_F(PipelineTest, WritesDumpsThatResume) {
  std::unique_ptr<Model> model = ParseText(kModel);
  PipelineOptions options{.dump_dir = dir_, .target = "host"};
  Ledger ledger;
  ASSERT_TRUE(RunPipeline(model.get(), options, &ledger).ok());
  const std::string index = Read(dir_ + "/index.txt");
  EXPECT_THAT(index, HasSubstr("model tiny   target host\n"));
  EXPECT_THAT(index, HasSubstr("merge-gate-up x1"));
  EXPECT_THAT(index, HasSubstr("remove-identity x1, remove-mul-one x1"));
  EXPECT_THAT(index, HasSubstr("+1 in prepare"));
  EXPECT_FALSE(std::filesystem::exists(dir_ + "/01-retype.lir"));  // changed nothing
  EXPECT_TRUE(std::filesystem::exists(dir_ + "/times.txt"));

  // Every dump, resumed, ends in the same text.
  const std::string last = PrintModel(*model);
  for (int number : {0, 3, 6}) {
    const std::string file =
        absl::StrCat("0", number, "-", number == 0 ? "import" : std::string(Pipeline()[number - 1].name), ".lir");
    const std::string text = Read(dir_ + "/" + file);
    EXPECT_THAT(text, testing::StartsWith(absl::StrCat("// llmc opt ", file, " --from=", number + 1, "\n")));
    std::unique_ptr<Model> resumed = ParseText(text);
    ASSERT_TRUE(RunPipeline(resumed.get(), {.from = absl::StrCat(number + 1)}, nullptr).ok());
    EXPECT_EQ(PrintModel(*resumed), last) << file;
  }
}

TEST_F(PipelineTest, IndexIsTheSameEveryTime) {
  for (const char* name : {"a", "b"}) {
    std::unique_ptr<Model> model = ParseText(kModel);
    ASSERT_TRUE(RunPipeline(model.get(), {.dump_dir = absl::StrCat(dir_, "/", name)}, nullptr).ok());
  }
  EXPECT_EQ(Read(dir_ + "/a/index.txt"), Read(dir_ + "/b/index.txt"));
}

TEST_F(PipelineTest, StopsAndSkipsByNameOrNumber) {
  for (const char* stop : {"3", "03", "simplify"}) {
    std::unique_ptr<Model> model = ParseText(kModel);
    ASSERT_TRUE(RunPipeline(model.get(), {.stop_after = stop}, nullptr).ok());
    EXPECT_THAT(PrintModel(*model), testing::Not(HasSubstr("silu_mul")));
    EXPECT_THAT(PrintModel(*model), testing::Not(HasSubstr("identity")));
  }
  std::unique_ptr<Model> model = ParseText(kModel);
  ASSERT_TRUE(RunPipeline(model.get(), {.skip = {"fuse"}}, nullptr).ok());
  EXPECT_THAT(PrintModel(*model), testing::Not(HasSubstr("silu_mul")));
  model = ParseText(kModel);
  const std::string before = PrintModel(*model);
  ASSERT_TRUE(RunPipeline(model.get(), {.stop_after = "import"}, nullptr).ok());
  EXPECT_EQ(PrintModel(*model), before);
  EXPECT_THAT(std::string(RunPipeline(model.get(), {.from = "fusion"}, nullptr).message()),
              HasSubstr("there is no pass 'fusion'; passes are 0 import, 1 retype"));
}

TEST_F(PipelineTest, RefusesARangeWithoutPasses) {
  std::unique_ptr<Model> model = ParseText(kModel);
  for (const PipelineOptions& options :
       {PipelineOptions{.from = "4", .stop_after = "2"}, PipelineOptions{.from = "7", .stop_after = "fuse"}}) {
    const absl::Status status = RunPipeline(model.get(), options, nullptr);
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
    EXPECT_THAT(std::string(status.message()), HasSubstr("leaves no pass to run"));
  }
  EXPECT_THAT(std::string(RunPipeline(model.get(), {.stop_after = "8"}, nullptr).message()),
              HasSubstr("there is no pass '8'"));
  EXPECT_THAT(std::string(RunPipeline(model.get(), {.skip = {"8"}}, nullptr).message()),
              HasSubstr("there is no pass '8'"));
}

TEST_F(PipelineTest, ATextThatIsNotWhatThePassBeforeLeavesIsTheUsersMistake) {
  std::unique_ptr<Model> model = ParseText(kModel);  // holds an identity
  const absl::Status status = RunPipeline(model.get(), {.from = "4"}, nullptr);
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(status.message()), HasSubstr("an identity is left"));
  EXPECT_THAT(std::string(status.message()), HasSubstr("earlier --from"));
}

TEST_F(PipelineTest, SimplifiesPrepare) {
  std::unique_ptr<Model> model = ParseText(R"(model "m"
weight @w: f32[5, 30] = "m#w"
prepare {
  @a = identity @w
  @b = neg @a
  @c = neg @w
}
step main(%x: f32[30]) {
  %y = add %x, @b
  %z = add %y, @c
  return "y" = %z
}
)");
  ASSERT_TRUE(FillRandomWeights(model.get(), 1).ok());
  const absl::Status status = RunPipeline(model.get(), {.check_numerics = true}, nullptr);
  ASSERT_TRUE(status.ok()) << status;
  ASSERT_EQ(model->prepare.nodes.size(), 1u);
  EXPECT_EQ(model->prepare.nodes.front()->op->info.name, "neg");
}

TEST_F(PipelineTest, StepsShareWhatIsHoisted) {
  std::unique_ptr<Model> model = ParseText(R"(model "m"
weight @w: f32[4] = "m#w"
step a(%x: f32[4]) {
  %t = exp @w
  %y = add %x, %t
  return "y" = %y
}
step b(%x2: f32[4]) {
  %u = exp @w
  %z = mul %x2, %u
  return "z" = %z
}
)");
  ASSERT_TRUE(FillRandomWeights(model.get(), 1).ok());
  const absl::Status status = RunPipeline(model.get(), {.check_numerics = true}, nullptr);
  ASSERT_TRUE(status.ok()) << status;
  EXPECT_EQ(model->prepare.nodes.size(), 1u);
  EXPECT_EQ(model->steps[0]->block.nodes.size(), 1u);
  EXPECT_EQ(model->steps[1]->block.nodes.size(), 1u);
}

TEST_F(PipelineTest, SaysHowManyOpsRulesRemoved) {
  std::unique_ptr<Model> model = ParseText(R"(model "m"
step main(%x: f32[4]) {
  %one = constant {value = 1} : f32[]
  %two = add %one, %one
  %a = mul %x, %two
  %b = mul %x, %two
  %c = add %a, %b
  return "c" = %c
}
)");
  Ledger ledger;
  ASSERT_TRUE(RunPipeline(model.get(), {.dump_dir = dir_}, &ledger).ok());
  EXPECT_EQ(ledger.CountFired("fold-constant"), 1);
  EXPECT_EQ(ledger.CountFired("merge-equal-ops"), 1);
  const std::string index = Read(dir_ + "/index.txt");
  EXPECT_THAT(index, HasSubstr("fold-constant x1, -1 ops\n"));
  EXPECT_THAT(index, HasSubstr("merge-equal-ops x1, -1 ops\n"));
}

TEST_F(PipelineTest, RemovesWhatIsNotUsed) {
  std::unique_ptr<Model> model = ParseText(kModel);
  model->AddWeight("@unused", {DType::kF32, {2}}, "m#unused");
  ASSERT_TRUE(RunPipeline(model.get(), {.stop_after = "1"}, nullptr).ok());
  EXPECT_EQ(model->Find("@unused"), nullptr);
  EXPECT_NE(model->Find("@l0.wg"), nullptr);
}

TEST_F(PipelineTest, ChecksNumbers) {
  std::unique_ptr<Model> model = ParseText(kModel);
  ASSERT_TRUE(FillRandomWeights(model.get(), 1).ok());
  const absl::Status status = RunPipeline(model.get(), {.check_numerics = true}, nullptr);
  EXPECT_TRUE(status.ok()) << status;
}

// Buckets of relative positions, as T5 has them: an integer that floats of 16 bits round is another bucket.
constexpr char kBuckets[] = R"(model "m"
dim S <= 4096
weight @table: f32[64, 8] = "m#t"
step main(%x: f32[S, 8]) {
  %zero = constant {value = 0} : i64[]
  %one = constant {value = 1} : i64[]
  %length = dims {values = [S], scalar = true}
  %pos = range %zero, %length, %one
  %f = cast %pos FLOAT
  %n = constant {value = 8} : FLOATTYPE[]
  %q = div %f, %n
  %p = add %q, %n
  %l = log %p
  %m = mul %l, %n
  %b = cast %m {to = i64}
  %bias = gather @table, %b
  %y = add %x, %bias
  return "y" = %y
}
)";

std::unique_ptr<Model> Buckets(bool is_f32) {
  std::string text = kBuckets;
  const auto put = [&](absl::string_view what, absl::string_view by) {
    text = absl::StrReplaceAll(text, {{what, by}});
  };
  put("FLOATTYPE", is_f32 ? "f32" : "bf16");
  put("FLOAT", is_f32 ? "{to = f32}" : "{to = bf16}");
  std::unique_ptr<Model> model = ParseText(text);
  EXPECT_TRUE(FillRandomWeights(model.get(), 1).ok());
  return model;
}

TEST_F(PipelineTest, ChecksIntegersThatPassThroughFloats) {
  for (const DType dtype : {DType::kBF16, DType::kF16}) {
    const absl::Status status = RunPipeline(Buckets(true).get(), {.dtype = dtype, .check_numerics = true}, nullptr);
    EXPECT_TRUE(status.ok()) << status;
  }
  // As the pass once left them.
  const CountCheck check(*Buckets(true));
  EXPECT_TRUE(check.Compare(*Buckets(true)).ok());
  EXPECT_THAT(std::string(check.Compare(*Buckets(false)).message()), HasSubstr("main/%b changes at element"));
}

// Of 600 tokens, far beyond what bf16 counts: a row of another bucket would be off by about 1.
TEST_F(PipelineTest, LongSequencesKeepTheirBuckets) {
  const SmallRun want = RunWith(*Buckets(true), {{"S", 600}}, 1).value();
  const std::unique_ptr<Model> model = Buckets(true);
  ASSERT_TRUE(RunPipeline(model.get(), {.dtype = DType::kBF16}, nullptr).ok());
  const SmallRun got = RunWith(*model, {{"S", 600}}, 1).value();
  const Tensor &y = got.outputs.at("main/y"), &expected = want.outputs.at("main/y");
  ASSERT_EQ(y.dtype(), DType::kBF16);
  for (int64_t i = 0; i < y.size(); ++i) ASSERT_NEAR(y.GetFloat(i), expected.GetFloat(i), 0.05) << i;
}

// Layers in which a rounding grows until the numbers of two orders of rounding have nothing in common.
std::unique_ptr<Model> GrowingRoundings(absl::string_view eps_of_the_last) {
  constexpr int kLayers = 12;
  std::string text = "model \"m\"\nstep main(%x0: bf16[4, 16]) {\n";
  for (int i = 0; i < kLayers; ++i) {
    absl::StrAppend(&text, absl::StrReplaceAll(R"(
  %eIN = constant {value = EPS} : bf16[]
  %gIN = constant {value = 3} : bf16[]
  %pIN = mul %xIN, %xIN
  %mIN = reduce_mean %pIN {axes = [1], keep_dims = true}
  %vIN = add %mIN, %eIN
  %rIN = rsqrt %vIN
  %nIN = mul %xIN, %rIN
  %sIN = mul %nIN, %gIN
  %xOUT = sin %sIN
)",
                                               {{"IN", absl::StrCat(i)},
                                                {"OUT", absl::StrCat(i + 1)},
                                                {"EPS", i + 1 == kLayers ? eps_of_the_last : "1e-6"}}));
  }
  return ParseText(absl::StrCat(text, "  return \"y\" = %x", kLayers, "\n}\n"));
}

TEST_F(PipelineTest, RoundingsThatGrowAreNoErrors) {
  const std::unique_ptr<Model> model = GrowingRoundings("1e-6");
  const SmallRun was = RunSmall(*model, 1).value();
  const RoundingCheck check(*model);
  const absl::Status status = RunPipeline(model.get(), {.check_numerics = true}, nullptr);
  EXPECT_TRUE(status.ok()) << status;
  const NamedTensors is = EvaluateSmall(*model, was.inputs).value();
  EXPECT_FALSE(CompareResults(was.outputs, is, DType::kBF16).ok()) << "or there is nothing to judge";
  EXPECT_TRUE(check.Compare(*model, was.inputs, was.outputs, is).ok());
}

// An error that no bound on the difference could tell from the roundings.
TEST_F(PipelineTest, ErrorsAmongRoundingsThatGrowAreFound) {
  const std::unique_ptr<Model> model = GrowingRoundings("1e-6"), wrong = GrowingRoundings("3e-3");
  const SmallRun was = RunSmall(*model, 1).value();
  ASSERT_TRUE(RunPipeline(wrong.get(), {}, nullptr).ok());
  const NamedTensors is = EvaluateSmall(*wrong, was.inputs).value();
  const absl::Status status = RoundingCheck(*model).Compare(*wrong, was.inputs, was.outputs, is);
  EXPECT_THAT(std::string(status.message()), HasSubstr("main/y changes at element"));
}

// The same program, but less exact than its types are.
TEST_F(PipelineTest, NumbersFartherFromExactOnesAreErrors) {
  const std::unique_ptr<Model> model = ParseText(R"(model "m"
step main(%x: bf16[4, 16]) {
  %y = exp %x
  return "y" = %y
}
)");
  const SmallRun was = RunSmall(*model, 1).value();
  NamedTensors is = was.outputs;
  EXPECT_TRUE(RoundingCheck(*model).Compare(*model, was.inputs, was.outputs, is).ok());
  Tensor& y = is.at("main/y");
  Tensor moved(y.dtype(), y.shape());
  for (int64_t i = 0; i < y.size(); ++i) moved.SetFloat(i, y.GetFloat(i) * 1.04);
  y = moved;
  EXPECT_THAT(std::string(RoundingCheck(*model).Compare(*model, was.inputs, was.outputs, is).message()),
              HasSubstr("from what f64 gives"));
}

// A mask of comparisons in f32, and positions beyond those that 16 bits hold.
TEST_F(PipelineTest, ChecksComparisonsOfPositions) {
  const char* text = R"(model "m"
dim S <= 4096
step main(%position_ids: i64[2, S]) {
  %f = cast %position_ids
  %i = reshape %f {shape = [2, S, 1]}
  %j = reshape %f {shape = [2, 1, S]}
  %m = less %i, %j
  return "m" = %m
}
)";
  const absl::Status status =
      RunPipeline(ParseText(text).get(), {.dtype = DType::kBF16, .check_numerics = true}, nullptr);
  EXPECT_TRUE(status.ok()) << status;
  const std::string rounded = absl::StrReplaceAll(text, {{"cast %position_ids", "cast %position_ids {to = bf16}"}});
  EXPECT_FALSE(CountCheck(*ParseText(text)).Compare(*ParseText(rounded)).ok());
}

TEST_F(PipelineTest, InstancesThatAreNotSmallAreRefused) {
  std::unique_ptr<Model> model = ParseText(R"(model "m"
step main(%x: f32[1000000000000]) {
  %y = neg %x
  return "y" = %y
}
)");
  const absl::Status status = RunPipeline(model.get(), {.check_numerics = true}, nullptr);
  EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted);
  const std::string message(status.message());
  EXPECT_THAT(message, testing::StartsWith("pass 00 import: a small instance"));
  EXPECT_THAT(message, HasSubstr("%x is f32[1000000000000]"));
}

TEST_F(PipelineTest, ErrorsOfCheckNumericsNameThePassOnce) {
  std::unique_ptr<Model> model = ParseText(kModel);  // its weights have no contents
  const std::string message(RunPipeline(model.get(), {.check_numerics = true}, nullptr).message());
  EXPECT_THAT(message, testing::StartsWith("pass 00 import: "));
  EXPECT_EQ(message.find("pass ", 1), std::string::npos);
}

TEST_F(PipelineTest, ErrorsNameThePass) {
  std::unique_ptr<Model> model = ParseText(kModel);
  const absl::Status status = RunPipeline(model.get(), {.dtype = DType::kI8}, nullptr);
  EXPECT_THAT(std::string(status.message()), testing::StartsWith("pass 01 retype: "));
}

TEST_F(PipelineTest, AnInvalidModelIsFound) {
  std::unique_ptr<Model> model = ParseText(kModel);
  model->Find("%s")->type.shape[1] = Dim(9);
  const absl::Status status = RunPipeline(model.get(), {}, nullptr);
  EXPECT_EQ(status.code(), absl::StatusCode::kInternal);
  EXPECT_THAT(std::string(status.message()), testing::StartsWith("pass 00 import: "));
}

TEST(CompareResults, SeesDifferences) {
  const NamedTensors a = {{"x", Tensor::FromValues<double>(DType::kF32, {2}, {1, 2})}};
  NamedTensors b = {{"x", Tensor::FromValues<double>(DType::kF32, {2}, {1, 2.000001})}};
  EXPECT_TRUE(CompareResults(a, a).ok());
  EXPECT_FALSE(CompareResults(a, b).ok());
  EXPECT_TRUE(CompareResults(a, b, DType::kF32).ok());
  b["x"] = Tensor::FromValues<double>(DType::kF32, {2}, {1, 2.01});
  EXPECT_FALSE(CompareResults(a, b, DType::kF32).ok());
  EXPECT_FALSE(CompareResults(a, b).ok());
  b["x"] = Tensor::FromValues<double>(DType::kF32, {2}, {1, NAN});
  EXPECT_FALSE(CompareResults(a, b).ok());
  EXPECT_FALSE(CompareResults(b, a).ok());
  EXPECT_FALSE(CompareResults(a, {}).ok());
}

// Small rows are not measured by large ones.
TEST(CompareResults, MeasuresByTheRow) {
  const NamedTensors a = {{"x", Tensor::FromValues<double>(DType::kF32, {2, 1}, {1000, 0.001})}};
  const NamedTensors b = {{"x", Tensor::FromValues<double>(DType::kF32, {2, 1}, {1000, 0.002})}};
  EXPECT_FALSE(CompareResults(a, b, DType::kF32).ok());
}

// Integers that 16 bits round, tokens of the whole vocabulary, and masks that hide.
TEST(RandomInputs, DrawsWhatShows) {
  absl::StatusOr<std::unique_ptr<Model>> model = ParseFragment(
      "in %i: i64[64]\nin %ids: i64[64]\nin %size: i64[2]\nin %attention_mask: i64[2, 4]\nin %t: f32[300]\n"
      "in %b: i8[64]\n%y = neg %i\n%z = gather %t, %ids\n%r = reshape_to %z, %size\n%m = neg %attention_mask\n"
      "%c = neg %b",
      "test");
  ASSERT_TRUE(model.ok()) << model.status();
  const NamedTensors wide = RandomInputs(*(*model)->steps[0], {}, 0).value();
  const auto range = [&](const char* name) {
    const std::vector<int64_t> values = wide.at(name).ToInts();
    const auto [low, high] = std::minmax_element(values.begin(), values.end());
    return std::pair(*low, *high);
  };
  EXPECT_LT(range("i").first, -2048);
  EXPECT_GT(range("i").second, 2048);
  EXPECT_GE(range("ids").first, 0);
  EXPECT_GT(range("ids").second, 256);
  EXPECT_LT(range("ids").second, 300);
  EXPECT_LE(range("size").second, 1);
  EXPECT_LE(range("b").second, 7);
  EXPECT_EQ(wide.at("attention_mask").ToInts(), (std::vector<int64_t>{1, 0, 1, 1, 0, 0, 1, 1}));
}

TEST(RandomInputs, IntegersAreNegativeTooUnlessTheyAreIndices) {
  absl::StatusOr<std::unique_ptr<Model>> model = ParseFragment(
      "in %x: i64[64]\nin %i: i64[64]\nin %t: f32[2]\n%y = neg %x\n%j = neg %i\n%k = neg %j\n"
      "%z = gather %t, %k",
      "test");
  ASSERT_TRUE(model.ok()) << model.status();
  const NamedTensors inputs = RandomInputs(*(*model)->steps[0], {}, 0).value();
  const std::vector<int64_t> x = inputs.at("x").ToInts(), i = inputs.at("i").ToInts();
  EXPECT_LT(*std::min_element(x.begin(), x.end()), -3);
  EXPECT_GT(*std::max_element(x.begin(), x.end()), 3);
  EXPECT_EQ(*std::min_element(i.begin(), i.end()), 0);
  EXPECT_EQ(*std::max_element(i.begin(), i.end()), 1);
}

}  // namespace
}  // namespace llmc
