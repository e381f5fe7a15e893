// How configurations name modules: against Python's re.match and fnmatch, by hand.
#include "frontend/huggingface/quantized/name_pattern.h"

#include <gtest/gtest.h>

#include <string>

#include "tests/frontend/test_folder.h"

namespace llmc::hf {
namespace {

bool Matches(const std::string& pattern, const std::string& name) {
  const auto parsed = NamePattern::Parse(pattern);
  EXPECT_TRUE(parsed.ok()) << parsed.status();
  return parsed.ok() && parsed->MatchesBeginning(name);
}

TEST(NamePattern, IsPythonsMatch) {
  const std::string q = "model.layers.1.self_attn.q_proj";
  EXPECT_TRUE(Matches(".*self_attn.(q|k|v|o)_proj$", q));
  EXPECT_FALSE(Matches(".*self_attn.(k|v)_proj$", q));
  EXPECT_FALSE(Matches("self_attn", q)) << "a match begins where the name does";
  EXPECT_TRUE(Matches("model", q)) << "and may end before it";
  EXPECT_FALSE(Matches("model$", q));
  EXPECT_TRUE(Matches("^model\\.layers\\.\\d+\\.", q));
  EXPECT_FALSE(Matches("model\\.layers\\.\\d{2}\\.", q));
  EXPECT_TRUE(Matches("model\\.layers\\.[0-3]\\.(?:self_attn|mlp)\\..*", q));
  EXPECT_FALSE(Matches("model\\.layers\\.[^1]\\.", q));
  EXPECT_TRUE(Matches("(a*)*b?", "aaa"));
  EXPECT_TRUE(Matches("a{2,3}$", "aaa"));
  EXPECT_FALSE(Matches("a{2,3}$", "aaaa"));
  EXPECT_TRUE(Matches("[]a]+$", "a]"));
  EXPECT_TRUE(Matches("", ""));
}

// What takes other engines exponential time.
TEST(NamePattern, TakesLinearTime) { EXPECT_FALSE(Matches("(a|a)+(a|a)+(a|aa)+$", std::string(1000, 'a') + "b")); }

TEST(NamePattern, RefusesWhatItDoesNotKnow) {
  for (const char* pattern : {"(?!lm_head)", "a(", "a)", "[a", "*", "\\b", "a{", "a{1000}", "a**", "\\"}) {
    EXPECT_TRUE(Says(NamePattern::Parse(pattern).status(), "is not supported")) << pattern;
  }
  EXPECT_TRUE(Says(NamePattern::Parse(std::string(2000, 'a')).status(), "longer"));
  EXPECT_TRUE(
      Says(NamePattern::Parse("((((((((((((((a{64}){64}){64}){64}){64}){64}){64}))))))))").status(), "supported"));
  EXPECT_TRUE(Says(NamePattern::Parse(std::string(500, '(')).status(), "nested"));
}

TEST(NameList, IsOfModulesAndPartsOfNames) {
  const std::string gate = "model.layers.0.mlp.gate";
  EXPECT_TRUE(IsListed(gate, {"model.layers.0.mlp.gate"}));
  EXPECT_TRUE(IsListed(gate, {"mlp.gate"}));
  EXPECT_TRUE(IsListed(gate, {"model.layers.0"})) << "all that is inside of the module";
  EXPECT_FALSE(IsListed(gate, {"model.layers.0.mlp.gate_proj"}));
  EXPECT_FALSE(IsListed("model.layers.0.mlp.gate_proj", {"mlp.gate"}));
  EXPECT_TRUE(IsListed("model.layers.12.self_attn.q_proj", {"model.layers.*.self_attn"}));
  EXPECT_FALSE(IsListed("model.layers.12.mlp.up_proj", {"model.layers.*.self_attn"}));
  EXPECT_TRUE(IsListed("lm_head", {"lm_head*"}));
  EXPECT_FALSE(IsListed("lm_head", {""}));
}

}  // namespace
}  // namespace llmc::hf
