// What `llmc check` and `llmc explain` say of ONNX files: real ones, and small ones that are broken in known ways.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/str_split.h"
#include "tests/frontend/onnx_builder.h"
#include "tests/tools/run_command.h"

namespace llmc {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::Not;
using Json = nlohmann::json;

std::string WriteFile(const std::string& name, const std::string& bytes) {
  const std::string path = TempFolder() + "/" + name;
  std::ofstream(path, std::ios::binary) << bytes;
  return path;
}
std::string Write(const std::string& name, const onnx::ModelProto& model) {
  return WriteFile(name, model.SerializeAsString());
}

Json Check(const std::string& path, int exit_code) {
  const CommandResult result = RunLlmc({"check", path, "--json"});
  EXPECT_EQ(result.exit_code, exit_code) << path << "\n" << result.err;
  const Json json = result.Json();
  EXPECT_TRUE(json.is_object()) << path << "\n" << result.out;
  return json;
}

// The findings of a kind.
std::vector<Json> Findings(const Json& report, const std::string& kind) {
  std::vector<Json> found;
  for (const Json& finding : report["findings"]) {
    if (finding["kind"] == kind) found.push_back(finding);
  }
  return found;
}

void ExpectRecognized(const Json& report, const std::string& what, int found, int of) {
  const Json rows = report.value("recognized", Json::object());
  EXPECT_EQ(rows.value(what, Json()), (Json{{"found", found}, {"of", of}})) << what;
}
void ExpectAll(const Json& report, const std::string& what, int count) { ExpectRecognized(report, what, count, count); }

// ---- real files ---------------------------------------------------------------
TEST(Check, ShippedModel) {
  const Json report = Check(ShippedModel() + "/model.onnx", 0);
  EXPECT_EQ(report["ok"], true);
  EXPECT_EQ(report["exporter"]["id"], "torch-dynamo");
  EXPECT_EQ(report["producer"]["name"], "pytorch");
  EXPECT_THAT(report["producer"]["version"].get<std::string>(), HasSubstr("2.11"));
  EXPECT_EQ(report["ir_version"], 10);
  EXPECT_EQ(report["opsets"]["ai.onnx"], 18);
  EXPECT_EQ(report["inputs"][0]["name"], "input_ids");
  EXPECT_THAT(report["inputs"][0]["type"].get<std::string>(), testing::StartsWith("i64["));
  EXPECT_EQ(report["outputs"][0]["name"], "logits");
  EXPECT_TRUE(report["unsupported"].empty());
  ExpectAll(report, "attention", 8);
  ExpectAll(report, "rotary embedding", 16);
  ExpectAll(report, "norm", 17);
  ExpectAll(report, "swiglu", 8);
  EXPECT_EQ(report["cache"]["kind"], "can be paged");
  const CommandResult text = RunLlmc({"check", ShippedModel() + "/model.onnx"});
  EXPECT_THAT(text.out, HasSubstr("attention          8 of 8\n"));
  EXPECT_THAT(text.out, HasSubstr("cache: can be paged"));
  EXPECT_THAT(text.out, HasSubstr("the model can be compiled\n"));
  EXPECT_EQ(text.err, "");
}

struct CheckedArchitecture {
  const char* name;
  int rotary, norms, gelu, swiglu;
};
constexpr CheckedArchitecture kCheckedArchitectures[] = {
    {"llama-gqa", 4, 5, 0, 2}, {"qwen3", 4, 9, 0, 2}, {"phi3", 4, 5, 0, 2}, {"gemma2", 4, 9, 2, 0},
    {"gpt2", 0, 5, 2, 0},      {"bert", 0, 5, 2, 0},  {"vit", 0, 5, 2, 0}};

TEST(Check, Exports) {
  const std::string exports = SharedData("onnx-exports");
  if (exports.empty()) GTEST_SKIP() << "the shared test data is not there";
  int count = 0;
  for (const auto& entry : std::filesystem::directory_iterator(exports)) {
    const std::string name = entry.path().filename();
    SCOPED_TRACE(name);
    for (const CheckedArchitecture& architecture : kCheckedArchitectures) {
      if (!absl::StartsWith(name, architecture.name)) continue;
      ++count;
      const Json report = Check(entry.path().string() + "/model.onnx", 0);
      const bool is_legacy = absl::StrContains(name, "legacy"), is_decoder = absl::StrContains(name, "cache");
      EXPECT_EQ(report["exporter"]["id"], is_legacy ? "torch-torchscript" : "torch-dynamo");
      EXPECT_EQ(report["opset"], is_legacy ? 17 : absl::StrContains(name, "18") ? 18 : 23);
      ExpectAll(report, "attention", 2);
      ExpectAll(report, "norm", architecture.norms);
      if (architecture.rotary > 0) ExpectAll(report, "rotary embedding", architecture.rotary);
      if (architecture.gelu > 0) ExpectAll(report, "gelu", architecture.gelu);
      if (architecture.swiglu > 0) ExpectAll(report, "swiglu", architecture.swiglu);
      EXPECT_EQ(report["cache"]["kind"], is_decoder ? "can be paged" : "none");
      for (const char* kind : {"attention", "norm", "gelu", "rotary", "pagination"}) {
        EXPECT_TRUE(Findings(report, kind).empty()) << kind;
      }
    }
  }
  EXPECT_EQ(count, 21);
}

TEST(Check, NamesLayersOfBothExporters) {
  const std::string exports = SharedData("onnx-exports");
  if (exports.empty()) GTEST_SKIP() << "the shared test data is not there";
  for (const char* exporter : {"dynamo18", "legacy17"}) {
    const Json report = Check(absl::StrCat(exports, "/llama-gqa-cache-", exporter, "/model.onnx"), 0);
    // With a cache the mask depends on what the caller gives.
    const std::vector<Json> masks = Findings(report, "mask");
    ASSERT_FALSE(masks.empty()) << exporter;
    EXPECT_THAT(masks[0]["places"][0]["layer"].get<std::string>(), HasSubstr("layers.")) << exporter;
  }
}

TEST(Check, FilesOfOtherTools) {
  const std::string contrib = SharedData("onnx-contrib");
  if (contrib.empty()) GTEST_SKIP() << "the shared test data is not there";
  const std::pair<const char*, const char*> files[] = {{"optimum-encoder", "torch-torchscript"},
                                                       {"tiny-qwen35", "ort-optimizer"},
                                                       {"tiny-random-gpt2-fp16", "ort-optimizer"},
                                                       {"tiny-random-gpt2-fp32", "ort-optimizer"}};
  for (const auto& [name, exporter] : files) {
    SCOPED_TRACE(name);
    const CommandResult result = RunLlmc({"check", absl::StrCat(contrib, "/", name, ".onnx"), "--json"});
    const Json report = result.Json();
    ASSERT_TRUE(report.is_object()) << result.err;
    EXPECT_EQ(report["exporter"]["id"], exporter);
    EXPECT_EQ(result.exit_code, 0);
    EXPECT_EQ(report["ok"], true);
    EXPECT_TRUE(report["wrong"].empty()) << report["wrong"];
    ExpectAll(report, "attention", absl::StartsWith(name, "tiny-random-gpt2") ? 5 : 2);
  }
}

TEST(Check, Exporters) {
  struct Case {
    const char *producer, *op, *domain, *input, *id, *mark;
  };
  for (const Case& c : {
           Case{"onnxruntime-genai", "MatMulNBits", "com.microsoft", "x", "ort-genai", "weights in few bits: 1 nodes"},
           {"", "MatMulNBits", "com.microsoft", "past_key_values.0.key", "ort-genai", "cache named as by optimum"},
           {"onnx.quantize", "QuantizeLinear", "", "x", "ort-quantizer", "quantized as QDQ: 1 nodes"},
           {"onnx.quantize", "MatMulInteger", "", "x", "ort-quantizer", "quantized with integer operators: 1 nodes"},
           {"onnxruntime.transformers", "QMoE", "com.microsoft", "x", "ort-optimizer", "mixtures of experts: 1 nodes"},
           {"optimum-onnx", "If", "", "use_cache_branch", "optimum", "merged decoder"},
           {"pytorch", "Erf", "", "x", "torch-torchscript", "nodes are named after modules"},
           {"", "Erf", "", "x", "hand-written", ""},
           {"tf2onnx", "Erf", "", "x", "tf2onnx", "producer tf2onnx"},
       }) {
    SCOPED_TRACE(absl::StrCat(c.producer, " ", c.op));
    onnx::ModelProto model = OneNode(c.op, {c.input});
    model.set_producer_name(c.producer);
    model.mutable_graph()->mutable_input(0)->set_name(c.input);
    model.mutable_graph()->mutable_node(0)->set_domain(c.domain);
    model.mutable_graph()->mutable_node(0)->set_name("/layers.0/node");
    const Json report = RunLlmc({"check", Write("exporter.onnx", model), "--json"}).Json();
    EXPECT_EQ(report["exporter"]["id"], c.id);
    EXPECT_NE(report["exporter"]["name"], "");
    EXPECT_THAT(report["exporter"]["marks"].dump(), HasSubstr(c.mark));
  }
}

// ---- what is not supported ----------------------------------------------------
// x -> Erf -> op -> Add -> op -> y, where what `op` makes is declared.
onnx::ModelProto TwoLayers(const std::string& op, const std::string& domain) {
  onnx::ModelProto model = OneNode("Erf");
  auto* nodes = model.mutable_graph()->mutable_node();
  nodes->Clear();
  AddNode(nodes, "Erf", {"x"}, {"a"}, "/layers.0/erf");
  AddNode(nodes, op, {"a"}, {"b"}, "/layers.0/odd")->set_domain(domain);
  AddNode(nodes, "Add", {"b", "x"}, {"c"}, "/layers.1/add");
  AddNode(nodes, op, {"c"}, {"d"}, "/layers.1/odd")->set_domain(domain);
  AddNode(nodes, "DeformConv", {"d"}, {"y"}, "/head/deform");
  *model.mutable_graph()->add_value_info() = Info("b", {2, 3});
  *model.mutable_graph()->add_value_info() = Info("d", {2, 3});
  if (!domain.empty()) {
    auto* import = model.add_opset_import();
    import->set_domain(domain);
    import->set_version(1);
  }
  return model;
}

TEST(Check, GroupsWhatIsNotSupported) {
  for (const char* domain : {"", "com.example", "com.microsoft"}) {
    SCOPED_TRACE(domain);
    const std::string path = Write("two.onnx", TwoLayers("Peculiar", domain));
    const Json report = Check(path, 3);
    EXPECT_EQ(report["ok"], false);
    ASSERT_EQ(report["unsupported"].size(), 2u) << report["unsupported"];
    const Json& odd = report["unsupported"][1];
    EXPECT_EQ(odd["op"], absl::string_view(domain).empty() ? "Peculiar" : absl::StrCat(domain, ".Peculiar"));
    EXPECT_EQ(odd["count"], 2);
    EXPECT_THAT(odd["nodes"], ElementsAre("/layers.0/odd", "/layers.1/odd"));
    EXPECT_NE(odd["reason"], "");
    EXPECT_NE(odd["remedy"], "");
    EXPECT_EQ(report["unsupported"][0]["op"], "DeformConv");
    const CommandResult text = RunLlmc({"check", path});
    EXPECT_EQ(text.exit_code, 3);
    EXPECT_THAT(text.out, HasSubstr("Peculiar x2: "));
    EXPECT_THAT(text.out, HasSubstr("at 2 places: /layers.0/odd, /layers.1/odd"));
    EXPECT_THAT(text.out, HasSubstr("the model cannot be compiled"));
    EXPECT_THAT(text.err, HasSubstr("3 places are not supported, in 5 nodes"));
  }
}

// What the file declares of a node's results stands in for them: the attribute of a later node is looked at too.
TEST(Check, LooksBehindWhatIsNotSupported) {
  onnx::ModelProto model = TwoLayers("Peculiar", "");
  AddNode(model.mutable_graph()->mutable_node(), "Relu", {"d"}, {"e"}, "/head/relu");
  onnx::AttributeProto* odd = model.mutable_graph()->mutable_node(2)->add_attribute();
  odd->set_name("odd");
  odd->set_type(onnx::AttributeProto::INT);
  const auto ops_of = [](const Json& report) {
    std::vector<std::string> ops;
    for (const Json& item : report["unsupported"]) ops.push_back(item["op"]);
    return absl::StrJoin(ops, ",");
  };
  EXPECT_EQ(ops_of(Check(Write("behind.onnx", model), 3)), "Add,DeformConv,Peculiar");
  model.mutable_graph()->clear_value_info();
  EXPECT_EQ(ops_of(Check(Write("behind.onnx", model), 3)), "DeformConv,Peculiar");
}

TEST(Check, VersionsThatAreNotKnown) {
  onnx::ModelProto model = TwoLayers("Peculiar", "");
  model.mutable_opset_import(0)->set_version(99);
  model.set_ir_version(99);
  const Json report = Check(Write("new.onnx", model), 3);
  std::vector<std::string> ops;
  for (const Json& item : report["unsupported"]) ops.push_back(item["op"]);
  EXPECT_THAT(ops, ElementsAre("DeformConv", "IR version", "Peculiar", "opset"));
  EXPECT_EQ(report["opsets"]["ai.onnx"], 99);
  EXPECT_EQ(RunLlmc({"opt", TempFolder() + "/new.onnx", "--passes=none"}).exit_code, 1) << "only reports go on";
}

TEST(Check, TypesThatAreNotKnown) {
  onnx::ModelProto model = OneNode("Abs");
  *model.mutable_graph()->mutable_input(0) = Info("x", {2, 3}, onnx::TensorProto::COMPLEX64);
  const Json report = Check(Write("complex.onnx", model), 3);
  ASSERT_EQ(report["unsupported"].size(), 1u);
  EXPECT_EQ(report["unsupported"][0]["op"], "input");
  EXPECT_EQ(report["inputs"][0]["type"], "COMPLEX64[2, 3]");
}

TEST(Check, MissingDataIsNamedOnce) {
  onnx::ModelProto model = Base();
  for (const char* name : {"w", "v"}) {
    auto* tensor = name[0] == 'w' ? model.mutable_graph()->mutable_initializer(0) : AddFloats(&model, name, {2, 3}, 0);
    tensor->clear_raw_data();
    tensor->set_data_location(onnx::TensorProto::EXTERNAL);
    auto* entry = tensor->add_external_data();
    entry->set_key("location");
    entry->set_value("absent.data");
  }
  const Json report = Check(Write("absent.onnx", model), 1);
  ASSERT_EQ(report["wrong"].size(), 1u) << report["wrong"];
  EXPECT_THAT(report["wrong"][0].get<std::string>(), HasSubstr("absent.data"));
  EXPECT_TRUE(report["unsupported"].empty());
}

// The report ends with the hundredth, so that its time stays in the order of the file.
TEST(Check, ManyWrongPlaces) {
  onnx::ModelProto model = Base();
  for (int i = 0; i < 30000; ++i) AddNode(&model, "Neg", {absl::StrCat("none", i)}, {absl::StrCat("made", i)});
  const CommandResult result = RunLlmc({"check", Write("wrong.onnx", model), "--json"});
  EXPECT_EQ(result.exit_code, 1);
  EXPECT_EQ(result.Json()["wrong"].size(), 100u);
  EXPECT_LT(result.cpu_seconds, 10);
}

TEST(Check, WhatIsNoModelIsAnError) {
  const CommandResult result = RunLlmc({"check", WriteFile("noise.onnx", "not a model"), "--json"});
  EXPECT_EQ(result.exit_code, 1);
  EXPECT_TRUE(result.Json().contains("error"));
}

// ---- what is not recognized ---------------------------------------------------
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

}  // namespace
}  // namespace llmc
