// Where chat templates and special tokens of a model are found.
#include "runtime/chat/template_files.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>

#include "absl/strings/str_cat.h"
#include "runtime/text/tokenizer.h"

namespace llmc {
namespace {

using testing::HasSubstr;

class TemplateFilesTest : public testing::Test {
 protected:
  void SetUp() override {
    folder_ =
        absl::StrCat(testing::TempDir(), "/templates_", testing::UnitTest::GetInstance()->current_test_info()->name());
    std::filesystem::remove_all(folder_);
    std::filesystem::create_directories(folder_ + "/additional_chat_templates");
  }
  void TearDown() override { std::filesystem::remove_all(folder_); }
  void Write(const std::string& name, const std::string& text) { std::ofstream(folder_ + "/" + name) << text; }
  absl::StatusOr<TemplateFiles> Read() {
    return ReadTemplateFiles(ReadSideFiles(folder_, Tokenizer::ChooseFiles), folder_);
  }

  std::string folder_;
};

TEST_F(TemplateFilesTest, TheFileComesBeforeTheConfiguration) {
  Write("tokenizer_config.json", R"({"chat_template": "config", "bos_token": "<s>", "eos_token": {"content": "</s>"},
                                     "pad_token": null, "add_bos_token": true})");
  Write("chat_template.json", R"({"chat_template": "json"})");
  auto files = Read();
  ASSERT_TRUE(files.ok()) << files.status();
  EXPECT_EQ(ChooseTemplate(*files, "", false)->text, "config");
  EXPECT_EQ(files->special_tokens, nlohmann::ordered_json({{"bos_token", "<s>"}, {"eos_token", "</s>"}}));
  Write("chat_template.jinja", "file");
  Write("additional_chat_templates/rag.jinja", "rag");
  files = Read();
  ASSERT_TRUE(files.ok()) << files.status();
  EXPECT_EQ(ChooseTemplate(*files, "", true)->text, "file");
  EXPECT_EQ(ChooseTemplate(*files, "rag", false)->text, "rag");
  EXPECT_EQ(ChooseTemplate(*files, "", false)->source, folder_ + "/chat_template.jinja");
}

TEST_F(TemplateFilesTest, SeveralInTheConfiguration) {
  Write("tokenizer_config.json",
        R"({"chat_template": [{"name": "default", "template": "d"}, {"name": "tool_use", "template": "t"}]})");
  const auto files = Read();
  ASSERT_TRUE(files.ok()) << files.status();
  EXPECT_EQ(ChooseTemplate(*files, "", false)->text, "d");
  EXPECT_EQ(ChooseTemplate(*files, "", true)->text, "t");
  EXPECT_THAT(std::string(ChooseTemplate(*files, "rag", false).status().message()),
              HasSubstr("no chat template named rag; it has default, tool_use"));
}

TEST_F(TemplateFilesTest, TheOldFile) {
  Write("chat_template.json", R"({"chat_template": "json"})");
  EXPECT_EQ(ChooseTemplate(*Read(), "", false)->text, "json");
}

TEST_F(TemplateFilesTest, Errors) {
  EXPECT_TRUE(absl::IsNotFound(ChooseTemplate(*Read(), "", false).status()));
  for (const std::string wrong : {"[1]", "{\"chat_template\": 1}", "{\"chat_template\": [{\"name\": \"a\"}]}", "{",
                                  "{\"bos_token\": {\"content\": 1}}"}) {
    Write("tokenizer_config.json", wrong);
    EXPECT_TRUE(absl::IsInvalidArgument(Read().status())) << wrong;
    EXPECT_THAT(std::string(Read().status().message()), HasSubstr("tokenizer_config.json")) << wrong;
  }
}

}  // namespace
}  // namespace llmc
