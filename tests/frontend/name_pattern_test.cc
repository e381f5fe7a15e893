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

TEST(NamePattern, LooksAhead) {
  const std::string q = "model.layers.1.self_attn.q_proj";
  EXPECT_TRUE(Matches("^(?!.*lm_head).*", q));
  EXPECT_FALSE(Matches("^(?!.*lm_head).*", "model.lm_head"));
  EXPECT_FALSE(Matches("^(?!.*(attn|down)).*_proj", q));
  EXPECT_TRUE(Matches("^(?!.*(attn|down)).*_proj", "model.layers.1.mlp.up_proj"));
  EXPECT_TRUE(Matches("(?=.*q_proj$)model", q));
  EXPECT_FALSE(Matches("(?=.*k_proj$)model", q));
  EXPECT_TRUE(Matches("model\\.layers\\.(?!0\\.)\\d+", q));
  EXPECT_FALSE(Matches("model\\.layers\\.(?!1\\.)\\d+", q));
  EXPECT_TRUE(Matches("(?:(?!b).)+$", "aaa"));
  EXPECT_FALSE(Matches("(?:(?!b).)+$", "aba"));
  EXPECT_EQ(NamePattern::Parse("a(?=b)")->size(), 2 + 1 + 64 * 2) << "it is run from each place";
}

TEST(NamePattern, WordsClassesAndCase) {
  EXPECT_TRUE(Matches(".*(q|k)_proj\\b", "attn.q_proj.weight"));
  EXPECT_TRUE(Matches(".*(q|k)_proj\\b", "attn.q_proj"));
  EXPECT_FALSE(Matches(".*(q|k)_proj\\b", "attn.q_proj_2"));
  EXPECT_TRUE(Matches(".*(q|k)_proj\\B", "attn.q_proj_2"));
  EXPECT_TRUE(Matches("\\D+\\d\\W\\w\\S$", "ab1.cd"));
  EXPECT_FALSE(Matches("\\S+$", "a b"));
  EXPECT_TRUE(Matches("(?i).*PROJ", "attn.q_proj"));
  EXPECT_TRUE(Matches("(?i)[A-C]+$", "abCc"));
  EXPECT_FALSE(Matches("(?i)[^A-C]", "b"));
  EXPECT_FALSE(Matches(".*PROJ", "attn.q_proj"));
}

// What takes other engines exponential time.
TEST(NamePattern, TakesLinearTime) { EXPECT_FALSE(Matches("(a|a)+(a|a)+(a|aa)+$", std::string(1000, 'a') + "b")); }

TEST(NamePattern, RefusesWhatItDoesNotKnow) {
  for (const char* pattern : {"(?<!a)b", "a(?i)b", "(?P<a>b)", "(?=(?!a)b)", "(?!a", "a(", "a)", "[a", "*", "\\Z", "a{",
                              "a{1000}", "a**", "\\"}) {
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
