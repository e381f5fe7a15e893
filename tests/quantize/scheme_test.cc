#include "quantize/scheme.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace llmc {
namespace {

using testing::HasSubstr;

std::string EncodingText(const std::string& scheme) {
  return ParseScheme(scheme).value().EncodingFor(DType::kBF16).value()->text;
}

TEST(Scheme, FormatsAndOptionsSayTheEncoding) {
  EXPECT_EQ(EncodingText("int4"), "int4 group=128 scale=bf16");
  EXPECT_EQ(EncodingText("int4:g32:asym"), "int4 group=32 scale=bf16 zero=i4");
  EXPECT_EQ(EncodingText("int4:channel"), "int4 per=channel scale=bf16");
  EXPECT_EQ(EncodingText("int8"), "int8 per=channel scale=bf16");
  EXPECT_EQ(EncodingText("int8:g64:asym"), "int8 group=64 scale=bf16 zero=i8");
  EXPECT_EQ(EncodingText("fp8"), "f8e4m3 per=channel scale=bf16");
  EXPECT_EQ(EncodingText("fp8:static"), "f8e4m3 per=tensor scale=bf16");
  EXPECT_EQ(EncodingText("fp8:block"), "f8e4m3 block=128x128 scale=bf16");
  EXPECT_EQ(EncodingText("nf4"), "nf4 group=64 scale=f32");
  EXPECT_EQ(EncodingText("mxfp4"), "mxfp4");
  EXPECT_EQ(EncodingText("nvfp4"), "nvfp4");
}

TEST(Scheme, PresetsStandForText) {
  EXPECT_EQ(ParseScheme("gptq").value().text, "int4:g128:gptq");
  const Scheme smooth = ParseScheme("smoothquant").value();
  EXPECT_EQ(smooth.method, QuantizeMethod::kSmoothQuant);
  ASSERT_TRUE(smooth.activations.has_value());
  EXPECT_FALSE(smooth.activations->is_float);
  EXPECT_TRUE(ParseScheme("gptq:actorder").value().act_order);
  EXPECT_EQ(ParseScheme("awq:g64").value().group, 64);
  EXPECT_EQ(ParseScheme("llm.int8").value().container, Container::kBitsAndBytes);
  EXPECT_FALSE(ParseScheme("fp8:weight-only").value().activations.has_value());
}

TEST(Scheme, KnowsWhatNeedsAText) {
  for (const char* text : {"gptq", "awq", "smoothquant", "fp8-static", "nvfp4:local"}) {
    EXPECT_TRUE(ParseScheme(text).value().NeedsCalibration()) << text;
  }
  for (const char* text : {"int4", "fp8", "w8a8", "nf4", "fp8-block", "nvfp4", "mxfp4:dynamic"}) {
    EXPECT_FALSE(ParseScheme(text).value().NeedsCalibration()) << text;
  }
}

TEST(Scheme, ErrorsSayWhatThereIs) {
  const auto error = [](const std::string& text) { return std::string(ParseSchemeRules(text).status().message()); };
  EXPECT_THAT(error("int5"), HasSubstr("'int5' is unknown; there are int8, int4, fp8"));
  EXPECT_THAT(error("int4:g"), HasSubstr("option 'g' is unknown; there are gN, channel"));
  EXPECT_THAT(error("int4:g1"), HasSubstr("a group has from 2 to 65536"));
  EXPECT_THAT(error("int4:g99999999999999999999"), HasSubstr("is unknown"));
  EXPECT_THAT(error("int4:g-4"), HasSubstr("a group has"));
  EXPECT_THAT(error("fp8:asym"), HasSubstr("'asym' is for int8 and int4"));
  EXPECT_THAT(error("mxfp4:local"), HasSubstr("'local' is for nvfp4, not mxfp4"));
  EXPECT_THAT(error("nvfp4:dynamic"), HasSubstr("'dynamic' is for int8, fp8 and mxfp4, not nvfp4, which has 'local'"));
  EXPECT_THAT(error("int4:block"), HasSubstr("'block' is for fp8"));
  EXPECT_THAT(error("int4:actorder"), HasSubstr("behind 'gptq'"));
  EXPECT_THAT(error("int8:smooth"), HasSubstr("int8:channel:dynamic:smooth"));
  EXPECT_THAT(error("int8:asym:bitsandbytes"), HasSubstr("bitsandbytes has int8"));
  EXPECT_THAT(error("int8:asym:dynamic"), HasSubstr("no zero points"));
  EXPECT_THAT(error("*=int4,q_proj=fp8"), HasSubstr("never reached"));
  EXPECT_THAT(error("=int4"), HasSubstr("a pattern is empty"));
  EXPECT_THAT(error(""), HasSubstr("'' is unknown"));
}

TEST(Scheme, RulesHavePatterns) {
  const std::vector<SchemeRule> rules = ParseSchemeRules("q_proj|k_proj=fp8,layers.0.*=none,*=int4:g64").value();
  ASSERT_EQ(rules.size(), 3u);
  EXPECT_EQ(rules[0].pattern, "q_proj|k_proj");
  EXPECT_FALSE(rules[1].scheme.has_value());
  EXPECT_EQ(rules[2].scheme->group, 64);
}

TEST(Scheme, PatternsMatchFromADotOn) {
  const std::string name = "model.layers.10.self_attn.q_proj";
  EXPECT_TRUE(MatchesModule("q_proj", name));
  EXPECT_TRUE(MatchesModule("k_proj|q_proj", name));
  EXPECT_TRUE(MatchesModule("layers.10.*", name));
  EXPECT_TRUE(MatchesModule("*", name));
  EXPECT_TRUE(MatchesModule("self_attn.*", name));
  EXPECT_TRUE(MatchesModule("model.layers.*.q_proj", name));
  EXPECT_FALSE(MatchesModule("layers.1.*", name));
  EXPECT_FALSE(MatchesModule("proj", name));
  EXPECT_FALSE(MatchesModule("q_pro", name));
  EXPECT_FALSE(MatchesModule("layers.10", name));
}

}  // namespace
}  // namespace llmc
