// What `llmc explain` says of what is not recognized: small models that nearly are.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/str_split.h"
#include "tests/tools/reports.h"
#include "tests/tools/run_command.h"

namespace llmc {
namespace {

using testing::HasSubstr;

// A decoder of one layer in the language, parts of which can be replaced.
constexpr char kLayer[] = R"(model m
dim B <= 4
dim S <= 8
step main(%input_ids: i64[B, S]INPUTS) {
  %embed = constant {value = 0.25} : f32[32, 16]
  %wq = constant {value = 0.5} : f32[16, 16]
  %x = gather %embed, %input_ids                          loc "model.embed"
  %q0 = matmul %x, %wq                                    loc "model.layers.0.q"
  %q1 = reshape %q0 {shape = [B, S, 2, 8]}
  %q = transpose %q1 {perm = [0, 2, 1, 3]}
  %zero = constant {value = 0} : i64[]
  %one = constant {value = 1} : i64[]
  %len = dims {values = [S], scalar = true}
  %r = range %zero, %len, %one
  %j = reshape %r {shape = [1, 1, 1, S]}
  %i = reshape %r {shape = [1, 1, S, 1]}
  %mask = less_equal %j, %i
  %low = constant {value = -3.4e38} : f32[]
  %none = constant {value = 0} : f32[]
MASK
  %p = matmul %q, %q {transpose_rhs = true}
  %half = constant {value = 0.5} : f32[]
  %scaled = mul %p, %half
  %scores = add %scaled, %added
SOFTMAX
  %o = matmul %w, %q                                      loc "model.layers.0.attn"
  %o1 = transpose %o {perm = [0, 2, 1, 3]}
  %o2 = reshape %o1 {shape = [B, S, 16]}
MIX
  %logits = matmul %mixed, %embed {transpose_rhs = true}  loc "model.head"
  return "logits" = %logits
}
)";

struct Layer {
  std::string inputs = "", mask = "  %added = where %mask, %none, %low",
              softmax = "  %w = softmax %scores {axis = 3}                         loc \"model.layers.0.softmax\"",
              mix = "  %mixed = neg %o2";
};

std::string WriteLayer(const Layer& layer) {
  return WriteFile(
      "layer.lir",
      absl::StrReplaceAll(
          kLayer, {{"INPUTS", layer.inputs}, {"MASK", layer.mask}, {"SOFTMAX", layer.softmax}, {"MIX", layer.mix}}));
}

// The report of explain on a layer; its dumps are in the folder "dumps".
Json Explain(const Layer& layer) {
  const std::string dumps = TempFolder() + "/dumps";
  std::filesystem::remove_all(dumps);
  const CommandResult result = RunLlmc({"explain", WriteLayer(layer), "--dump-ir=" + dumps, "--json"});
  EXPECT_EQ(result.exit_code, 0) << result.err;
  return result.Json();
}

// The one finding of a kind. Its line in the dump is that of the op which it names.
Json OneFinding(const Json& report, const std::string& kind) {
  const std::vector<Json> findings = Findings(report, kind);
  EXPECT_EQ(findings.size(), 1u) << kind << " in " << report["findings"].dump(1);
  if (findings.size() != 1) return Json::object();
  const Json& place = findings[0]["places"][0];
  const std::string op = place["op"], value = place["value"];
  EXPECT_TRUE(place.contains("dump")) << place;
  if (!place.contains("dump")) return findings[0];
  const std::string dump = ReadFile(TempFolder() + "/dumps/" + place["dump"]["file"].get<std::string>());
  const std::vector<std::string> lines = absl::StrSplit(dump, '\n');
  const size_t line = place["dump"]["line"].get<size_t>();
  EXPECT_LE(line, lines.size());
  EXPECT_THAT(lines.at(line - 1), HasSubstr(absl::StrCat("  ", value, " = ", op, " ")));
  return findings[0];
}

TEST(Explain, NothingWhereAllIsRecognized) {
  const Json report = Explain({});
  ExpectAll(report, "attention", 1);
  EXPECT_EQ(report["masks"]["causal"], 1);
  EXPECT_EQ(report["cache"]["kind"], "can be paged");
  for (const Json& finding : report["findings"]) EXPECT_EQ(finding["kind"], "fusion");
  EXPECT_THAT(RunLlmc({"explain", ShippedModel()}).out, HasSubstr("no rule came near without firing"));
}

TEST(Explain, MasksThatCannotBeProven) {
  // One that the caller gives, and one that sees a token of the future.
  Json report = Explain({.inputs = ", %bias: f32[S, S]", .mask = "  %added = identity %bias"});
  Json mask = OneFinding(report, "mask");
  EXPECT_EQ(mask["rule"], "prove-mask");
  EXPECT_EQ(mask["actual"], "its part %bias");
  EXPECT_EQ(mask["places"][0]["layer"], "model.layers.0");
  EXPECT_NE(mask["remedy"], "");
  EXPECT_EQ(report["masks"]["explicit"], 1);
  ExpectAll(report, "attention", 1);
  EXPECT_EQ(report["cache"]["kind"], "tensors");
  EXPECT_THAT(report["cache"]["why"].get<std::string>(), HasSubstr("the input %bias"));

  report = Explain({.mask = "  %next = add %i, %one\n  %ahead = less_equal %j, %next\n"
                            "  %added = where %ahead, %none, %low"});
  EXPECT_EQ(OneFinding(report, "mask")["actual"], "a mask of another form");
  EXPECT_THAT(OneFinding(report, "pagination")["actual"].get<std::string>(), HasSubstr("%added: f32["));
}

TEST(Explain, TokensThatMix) {
  const Json report = Explain({.mix = "  %mean = reduce_mean %o2 {axes = [1], keep_dims = true}  loc \"model.pool\"\n"
                                      "  %mixed = sub %o2, %mean"});
  const Json pagination = OneFinding(report, "pagination");
  EXPECT_EQ(pagination["places"][0]["op"], "reduce_mean");
  EXPECT_EQ(pagination["places"][0]["loc"], "model.pool");
  EXPECT_EQ(pagination["actual"], "axis 1 (S), which counts tokens");
  EXPECT_EQ(pagination["expected"], "axes of features; %o2: f32[B, S, 16] has tokens in axis 0 (B) and axis 1 (S)");
  EXPECT_THAT(report["cache"]["why"].get<std::string>(), HasSubstr("reduce_mean %mean (model.pool)"));
}

// Where a rule stops, and that what it leaves is counted.
void ExpectLeft(const Layer& layer, const std::string& kind, const std::string& what, int of, const std::string& op,
                const std::string& why) {
  SCOPED_TRACE(kind);
  const Json report = Explain(layer);
  const Json finding = OneFinding(report, kind);
  if (finding.empty()) return;
  EXPECT_EQ(finding["places"][0]["op"], op);
  EXPECT_THAT(absl::StrCat(finding["actual"].get<std::string>(), "; ", finding["expected"].get<std::string>()),
              HasSubstr(why));
  EXPECT_NE(finding["remedy"], "");
  ExpectRecognized(report, what, of - 1, of);
  EXPECT_FALSE(report["primitives"].empty());
}

TEST(Explain, AttentionThatIsNearlyOne) {
  ExpectLeft({.softmax = "  %w = softmax %scores {axis = 2}"}, "attention", "attention", 1, "softmax",
             "another softmax; softmax over keys");
  ExpectLeft({.softmax = "  %w0 = softmax %scores {axis = 3}\n  %w = sub %w0, %half"}, "attention", "attention", 1,
             "softmax", "sub of %w0");
  // The scores of one layer may not be shown to the next.
  ExpectLeft({.mix = "  %seen = reduce_max %w {axes = [1, 3]}\n  %seen1 = reshape %seen {shape = [B, S, 1]}\n"
                     "  %mixed = add %o2, %seen1"},
             "attention", "attention", 1, "softmax", "used elsewhere");
}

TEST(Explain, NormsThatAreNearlyOne) {
  const char* norm =
      "  %square = mul %o2, %o2\n  %mean = reduce_mean %square {axes = [AXIS], keep_dims = true}\n"
      "  %eps = constant {value = 1e-5} : f32[]\n  %sum = add %mean, EPS\n  %root = rsqrt %sum\n"
      "  %mixed = mul %o2, %root";
  ExpectLeft({.mix = absl::StrReplaceAll(norm, {{"AXIS", "1"}, {"EPS", "%eps"}})}, "norm", "norm", 1, "rsqrt",
             "$a = [1]; the last axis, and a constant epsilon");
  ExpectLeft({.mix = absl::StrReplaceAll(norm, {{"AXIS", "2"}, {"EPS", "%mean"}})}, "norm", "norm", 1, "rsqrt",
             "the last axis, and a constant epsilon");
  const Json whole = Explain({.mix = absl::StrReplaceAll(norm, {{"AXIS", "2"}, {"EPS", "%eps"}})});
  ExpectAll(whole, "norm", 1);
}

TEST(Explain, GeluThatIsNearlyOne) {
  const char* gelu =
      "  %c = constant {value = FACTOR} : f32[]\n  %arg = mul %o2, %c\n  %e = erf %arg\n"
      "  %onef = constant {value = 1} : f32[]\n  %gate = add %e, %onef\n  %g = mul %o2, %gate\n  %mixed = mul %g, "
      "%half";
  ExpectLeft({.mix = absl::StrReplaceAll(gelu, {{"FACTOR", "0.7"}})}, "gelu", "gelu", 1, "erf", "%c = 0.7, ");
  ExpectAll(Explain({.mix = absl::StrReplaceAll(gelu, {{"FACTOR", "0.70710677"}})}), "gelu", 1);
}

TEST(Explain, QuantizedProductsThatAreNearlyOne) {
  const auto layer = [](absl::string_view scale) {
    return Layer{.inputs = ", %wi: i8[16, 16], %of_terms: f32[16, 1], %of_columns: f32[16]",
                 .mix = absl::StrCat("  %oq = cast %o2 {to = i8}\n  %of = cast %oq\n  %od = mul %of, %half\n"
                                     "  %wf = cast %wi\n  %wd = mul %wf, ",
                                     scale, "\n  %product = matmul %od, %wd\n  %mixed = neg %product")};
  };
  ExpectLeft(layer("%of_terms"), "quantization", "quantized product", 1, "matmul",
             "f32[16, 1]; scales and zero points");
  ExpectAll(Explain(layer("%of_columns")), "quantized product", 1);
}

TEST(Explain, RotationsThatAreNearlyOne) {
  // Tables that are not halves written twice.
  const std::string rotate =
      "  %t = constant {value = 0.5} : f32[8]\n  %h = reshape %o2 {shape = [B, 2, S, 8]}\n"
      "  %lo = slice %h {axis = 3, start = [0], end = [4]}\n  %hi = slice %h {axis = 3, start = [4], end = [8]}\n"
      "  %minus = neg %hi\n  %turned = concat %minus, %lo {axis = 3}\n  %hc = mul %h, %t\n  %ts = mul %turned, %t\n"
      "  %rot = add %hc, %ts\n  %mixed = reshape %rot {shape = [B, S, 16]}";
  ExpectLeft({.mix = rotate}, "rotary", "rotary embedding", 1, "concat", "constant; concat");
}

TEST(Explain, GatesThatAreNotMerged) {
  // One weight is needed elsewhere.
  const Json report = Explain(
      {.mix = "  %wg = constant {value = 0.5} : f32[16, 16]\n  %wu = constant {value = 0.25} : f32[16, 16]\n"
              "  %gate = matmul %o2, %wg\n  %act = silu %gate\n  %up = matmul %x, %wu\n  %mixed = mul %act, %up"});
  ExpectRecognized(report, "swiglu", 0, 1);
  const std::vector<Json> fusions = Findings(report, "fusion");
  ASSERT_FALSE(fusions.empty());
  EXPECT_THAT(fusions[0]["rule"].get<std::string>(), testing::StartsWith("merge-gate-up"));
}

// A plan says what its compilation wrote down.
TEST(Explain, Plans) {
  const std::string layer = WriteLayer({.inputs = ", %bias: f32[S, S]", .mask = "  %added = identity %bias"});
  const std::string plan = TempFolder() + "/layer.bin";
  ASSERT_EQ(RunLlmc({"compile", layer, "-o", plan, "--target=host"}).exit_code, 0);
  const CommandResult result = RunLlmc({"explain", plan, "--json"});
  ASSERT_EQ(result.exit_code, 0) << result.err;
  const std::vector<Json> masks = Findings(result.Json(), "mask");
  ASSERT_EQ(masks.size(), 1u) << result.out;
  EXPECT_EQ(masks[0]["actual"], "its part %bias");
  const Json& place = masks[0]["places"][0];
  const std::vector<std::string> lines = absl::StrSplit(RunLlmc({"show", plan, "--ir"}).out, '\n');
  ASSERT_TRUE(place.contains("dump")) << place;
  EXPECT_THAT(lines[place["dump"]["line"].get<size_t>() - 1], HasSubstr(place["value"].get<std::string>() + " = "));
  EXPECT_THAT(RunLlmc({"explain", plan}).out, HasSubstr("masks that stay explicit: 1 place"));
  EXPECT_EQ(RunLlmc({"explain", plan, "--dump-ir=" + TempFolder()}).exit_code, 1);
}

// ---- kernels of a plan
// -----------------------------------------------------------------------------------------------

std::string CompiledForGpu(const std::string& name, std::vector<std::string> options) {
  const std::string plan = TempFolder() + "/" + name;
  options.insert(options.begin(), "compile");
  options.insert(options.end(), {"--target=sm_90a", "--fast-compile", "-o", plan});
  const CommandResult result = RunLlmc(options);
  EXPECT_EQ(result.exit_code, 0) << result.err;
  return plan;
}

TEST(Explain, AccountsForEveryTaskOfAPlan) {
  const std::string plan = CompiledForGpu("kernels.bin", {ShippedModel(), "--check-numerics"});
  const CommandResult result = RunLlmc({"explain", plan, "--json"});
  ASSERT_EQ(result.exit_code, 0) << result.err;
  const Json programs = result.Json()["programs"];
  ASSERT_EQ(programs.size(), 8u) << "steps of 1, 2, 4, 8, 32, 64 and 256 sequences, and all others";
  EXPECT_EQ(programs[0]["name"], "sm_90a/main-1");
  for (const Json& program : programs) {
    int tasks = 0;
    for (const Json& kernel : program["kernels"]) {
      tasks += kernel.contains("backend") ? kernel["tasks"].get<int>() : kernel["count"].get<int>();
    }
    EXPECT_EQ(tasks, program["tasks"].get<int>()) << program.dump(1);
  }
  // Of one token: what joined the product of queries, keys and values, and why it is no other backend's.
  const Json qkv = programs[0]["kernels"][2];
  EXPECT_EQ(qkv["backend"], "gemv");
  EXPECT_EQ(qkv["count"], 8);
  EXPECT_THAT(qkv["absorbed"].dump(), HasSubstr("absorb-norm: %n0a"));
  EXPECT_THAT(qkv["others"].dump(), HasSubstr("cublaslt"));
  // Of many: why it is not this one's.
  const std::string text = RunLlmc({"explain", plan}).out;
  EXPECT_THAT(text, HasSubstr("not gemv: found up to 256 rows, expected 1 to 8"));
  EXPECT_THAT(text, HasSubstr("without absorb-gate: %m0: found a result of another type"));
}

TEST(Show, TellsWhatKernelsTake) {
  const std::string plan = CompiledForGpu("with_resources.bin", {ShippedModel()});
  const Json rows = RunLlmc({"show", plan, "--kernels", "--json"}).Json();
  ASSERT_GT(rows.size(), 10u);
  for (const Json& row : rows) {
    EXPECT_EQ(row["target"], "sm_90a");
    EXPECT_GT(row["registers"], 8) << row;
    EXPECT_LE(row["registers"], 255) << row;
    EXPECT_GE(row["stack_bytes"], 0) << row;
    EXPECT_GT(row["code_bytes"], 100) << row;
    EXPECT_LE(row["shared_bytes"], 232448) << row;
  }
  const std::string text = RunLlmc({"show", plan, "--kernels"}).out;
  EXPECT_EQ(std::count(text.begin(), text.end(), '\n'), static_cast<int64_t>(rows.size()) + 1);
  EXPECT_THAT(text, HasSubstr(rows[0]["entry"].get<std::string>()));
  EXPECT_EQ(RunLlmc({"show", plan, "--memory", "--json"}).exit_code, 2);
  const std::string host = TempFolder() + "/host.bin";
  ASSERT_EQ(RunLlmc({"compile", ShippedModel(), "--target=host", "-o", host}).exit_code, 0);
  EXPECT_THAT(RunLlmc({"show", host, "--kernels"}).err, HasSubstr("has no code for GPUs; compile it with --target"));
}

TEST(Explain, TextInKernelsCompilesToTheSameKernels) {
  const std::string dump = TempFolder() + "/lowered_dump";
  const std::string plan = CompiledForGpu("dumped.bin", {ShippedModel(), "--dump-ir=" + dump});
  const std::string file = dump + "/lowered/sm_90a.main-1.lir";
  const CommandResult shown = RunLlmc({"show", plan, "--lowered", "sm_90a/main-1"});
  ASSERT_EQ(shown.exit_code, 0) << shown.err;
  const std::string ledger = RunLlmc({"show", plan, "--ledger"}).out;
  EXPECT_THAT(ledger, HasSubstr("merge-qkv: fired 8"));
  EXPECT_THAT(ledger.substr(ledger.find("in kernels of sm_90a/main-1\n")), HasSubstr("absorb-rope-kv-write: fired 8"));
  EXPECT_THAT(ReadFile(file), testing::EndsWith(shown.out));
  EXPECT_THAT(shown.out, HasSubstr("  kernel gemv {\n    %n0a = rms_norm"));

  const std::string again = CompiledForGpu("again.bin", {file, "--weights-folder=" + ShippedModel()});
  EXPECT_EQ(RunLlmc({"show", again, "--lowered", "sm_90a/main-1"}).out, shown.out);
  EXPECT_THAT(RunLlmc({"show", plan, "--lowered", "sm_90a/none"}).err,
              HasSubstr("there is no program sm_90a/none; the plan has sm_90a/main-1, "));
  // A backend that is not there.
  const std::string wrong =
      WriteFile("wrong.lir", absl::StrReplaceAll(ReadFile(file), {{"kernel gemv", "kernel gem"}}));
  const CommandResult refused = RunLlmc(
      {"compile", wrong, "--weights-folder=" + ShippedModel(), "--target=sm_90a", "-o", TempFolder() + "/wrong.bin"});
  EXPECT_EQ(refused.exit_code, 1);
  EXPECT_THAT(refused.err, HasSubstr("there is no backend gem; backends are streamed_gemm, gemv, "));
}

}  // namespace
}  // namespace llmc
