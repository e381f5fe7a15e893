// Models by their name on the Hugging Face hub, in a cache made up here.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <stdlib.h>

#include <filesystem>
#include <fstream>

#include "absl/strings/str_cat.h"
#include "tests/tools/run_command.h"

namespace llmc {
namespace {

namespace fs = std::filesystem;
using ::testing::HasSubstr;
using ::testing::Not;

const std::string kHubCommit = "89abcdef0123456789abcdef0123456789abcdef";

// The shipped model as "org/tale" in $HF_HUB_CACHE.
class HubTest : public ::testing::Test {
 protected:
  HubTest() {
    fs::remove_all(cache_);
    fs::create_directories(repository_ + "/refs");
    fs::create_directories(repository_ + "/blobs");
    fs::create_directories(snapshot_);
    std::ofstream(repository_ + "/refs/main") << kHubCommit;
    for (const char* name : {"config.json", "generation_config.json", "tokenizer.json", "model.safetensors"}) {
      const std::string blob = absl::StrCat("blob-", name);
      fs::copy_file(absl::StrCat(ShippedModel(), "/", name), absl::StrCat(repository_, "/blobs/", blob));
      fs::create_symlink("../../blobs/" + blob, absl::StrCat(snapshot_, "/", name));
    }
    setenv("HF_HUB_CACHE", cache_.c_str(), 1);
  }
  ~HubTest() override { unsetenv("HF_HUB_CACHE"); }

  const std::string cache_ = TempFolder() + "/hub", repository_ = cache_ + "/models--org--tale";
  const std::string snapshot_ = absl::StrCat(repository_, "/snapshots/", kHubCommit);
};

TEST_F(HubTest, CommandsTakeNames) {
  const CommandResult shown = RunLlmc({"check", "org/tale"});
  EXPECT_EQ(shown.exit_code, 0) << shown.err;
  const CommandResult generated = RunLlmc({"generate", "org/tale", "--prompt", "Once upon", "--max-new-tokens", "2"});
  EXPECT_EQ(generated.exit_code, 0) << generated.err;
  EXPECT_EQ(generated.out, RunLlmc({"generate", ShippedModel(), "--prompt", "Once upon", "--max-new-tokens", "2"}).out);
  EXPECT_EQ(RunLlmc({"fit", absl::StrCat("org/tale@", kHubCommit), "--gpu-memory=80GiB"}).exit_code, 0);
}

TEST_F(HubTest, AbsentModelsAreOneErrorWithTheCommand) {
  for (const char* command : {"check", "show", "fit", "generate", "explain"}) {
    std::vector<std::string> args = {command, "org/other"};
    if (std::string(command) == "generate") args.insert(args.end(), {"--prompt", "x"});
    const CommandResult result = RunLlmc(args);
    EXPECT_EQ(result.exit_code, 1) << command;
    EXPECT_THAT(result.err, HasSubstr("`hf download org/other`")) << command;
    EXPECT_THAT(result.err, HasSubstr(cache_)) << command;
  }
  EXPECT_EQ(RunLlmc({"check", "org/other", "--json"}).Json()["error"]["code"], "NOT_FOUND");
  // A file's name is no model's.
  EXPECT_THAT(RunLlmc({"check", "org/model.onnx"}).err, Not(HasSubstr("hf download")));
}

TEST_F(HubTest, PathsWin) {
  const fs::path before = fs::current_path();
  fs::create_directories(TempFolder() + "/here/org/tale");
  fs::current_path(TempFolder() + "/here");
  const CommandResult result = RunLlmc({"check", "org/tale"});
  fs::current_path(before);
  EXPECT_EQ(result.exit_code, 1);
  EXPECT_THAT(result.err, HasSubstr("org/tale: has no config.json"));
}

TEST_F(HubTest, PartialDownloadsSaySo) {
  fs::rename(repository_ + "/blobs/blob-model.safetensors", repository_ + "/blobs/blob-model.safetensors.incomplete");
  EXPECT_THAT(RunLlmc({"check", "org/tale"}).err, HasSubstr("finish it with `hf download org/tale`"));
  fs::remove(snapshot_ + "/model.safetensors");
  const CommandResult result = RunLlmc({"check", "org/tale"});
  EXPECT_EQ(result.exit_code, 1);
  EXPECT_THAT(result.out, HasSubstr("may not be complete (1 unfinished file in "));
  EXPECT_THAT(result.out, HasSubstr("`hf download org/tale --revision "));
}

TEST_F(HubTest, LinksOutOfTheRepositoryAreRefused) {
  fs::rename(repository_ + "/blobs/blob-model.safetensors", cache_ + "/blob");
  fs::remove(snapshot_ + "/model.safetensors");
  fs::create_symlink("../../../blob", snapshot_ + "/model.safetensors");
  const CommandResult result = RunLlmc({"check", "org/tale"});
  EXPECT_EQ(result.exit_code, 1);
  EXPECT_THAT(result.out, HasSubstr("leads out of the model's folder"));
}

}  // namespace
}  // namespace llmc
