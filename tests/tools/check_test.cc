// What `llmc check` says of ONNX files: real ones, and small ones that are broken in known ways.
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
#include "tests/tools/reports.h"
#include "tests/tools/run_command.h"

namespace llmc {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::Not;

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

}  // namespace
}  // namespace llmc
