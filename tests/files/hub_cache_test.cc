#include "files/hub_cache.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <stdlib.h>

#include <filesystem>

#include "absl/strings/str_cat.h"
#include "files/path_check.h"
#include "tests/frontend/test_folder.h"

namespace llmc {
namespace {

namespace fs = std::filesystem;

const std::string kCommit = "0123456789abcdef0123456789abcdef01234567";

// A cache with one model "org/name", as the tools of Hugging Face lay it out.
class HubCacheTest : public ::testing::Test {
 protected:
  HubCacheTest() {
    fs::create_directories(cache_ / "models--org--name/blobs");
    fs::create_directories(cache_ / "models--org--name/refs/pr");
    fs::create_directories(Snapshot());
    cache_.Write("models--org--name/refs/main", kCommit);
    cache_.Write("models--org--name/blobs/aa", "{}");
    fs::create_symlink("../../blobs/aa", Snapshot() + "/config.json");
  }

  std::string Repository() const { return cache_ / "models--org--name"; }
  std::string Snapshot() const { return absl::StrCat(Repository(), "/snapshots/", kCommit); }
  absl::StatusOr<std::string> Find(const std::string& name) const {
    const auto model = ParseHubModel(name);
    return model.has_value() ? FindInHubCache(*model, cache_.path()) : absl::InternalError("no name");
  }

  TestFolder cache_;
};

TEST(ParseHubModel, TakesNamesOfTheHubOnly) {
  const auto model = ParseHubModel("meta-llama/Llama-3.2_1B");
  ASSERT_TRUE(model.has_value());
  EXPECT_EQ(model->id, "meta-llama/Llama-3.2_1B");
  EXPECT_EQ(model->revision, "main");
  EXPECT_EQ(ParseHubModel("a/b@refs/pr/1")->revision, "refs/pr/1");
  EXPECT_TRUE(ParseHubModel(absl::StrCat(std::string(96, 'a'), "/b")).has_value());
  for (const std::string& text : {std::string(),
                                  std::string("a"),
                                  std::string("a/"),
                                  std::string("/b"),
                                  std::string("a/b/c"),
                                  std::string("./b"),
                                  std::string("../b"),
                                  std::string("a/.."),
                                  std::string("a/b..c"),
                                  std::string("a/b c"),
                                  std::string("a/b--c"),
                                  std::string("a/-b"),
                                  std::string("a/b."),
                                  std::string("a/b@"),
                                  std::string("a/b@../x"),
                                  std::string("a/b@/x"),
                                  std::string("a/b@x//y"),
                                  std::string("a/b@x@y"),
                                  std::string("a/b\0c", 5),
                                  std::string("a/ü"),
                                  absl::StrCat(std::string(97, 'a'), "/b"),
                                  absl::StrCat("a/b@", std::string(256, 'c'))}) {
    EXPECT_FALSE(ParseHubModel(text).has_value()) << text;
  }
}

TEST(HubCacheFolder, AsTheEnvironmentSays) {
  for (const char* name : {"HF_HUB_CACHE", "HF_HOME", "XDG_CACHE_HOME"}) unsetenv(name);
  setenv("HOME", "/h", 1);
  EXPECT_EQ(HubCacheFolder(), "/h/.cache/huggingface/hub");
  setenv("XDG_CACHE_HOME", "/x", 1);
  EXPECT_EQ(HubCacheFolder(), "/x/huggingface/hub");
  setenv("HF_HOME", "/f", 1);
  EXPECT_EQ(HubCacheFolder(), "/f/hub");
  setenv("HF_HUB_CACHE", "/c", 1);
  EXPECT_EQ(HubCacheFolder(), "/c");
  for (const char* name : {"HF_HUB_CACHE", "HF_HOME", "XDG_CACHE_HOME"}) unsetenv(name);
}

TEST_F(HubCacheTest, FindsSnapshotsByRefAndByCommit) {
  cache_.Write("models--org--name/refs/pr/1", kCommit + "\n");
  for (const char* name : {"org/name", "org/name@main", "org/name@pr/1"}) {
    EXPECT_EQ(*Find(name), Snapshot()) << Find(name).status();
  }
  EXPECT_EQ(*Find("org/name@" + kCommit), Snapshot());
  EXPECT_TRUE(ResolveInside(Snapshot(), "config.json").ok());
}

TEST_F(HubCacheTest, SaysHowToDownloadWhatIsAbsent) {
  EXPECT_TRUE(Says(Find("org/other").status(), "no model of this name in the Hugging Face cache " + cache_.path()));
  EXPECT_TRUE(Says(Find("org/other").status(), "`hf download org/other`"));
  EXPECT_TRUE(Says(Find("org/name@v2").status(), "`hf download org/name --revision v2`"));
  EXPECT_TRUE(absl::IsNotFound(Find("org/name@v2").status()));
}

TEST_F(HubCacheTest, TellsOfPartialDownloads) {
  cache_.Write("models--org--name/blobs/bb.incomplete", "{");
  fs::create_symlink("../../blobs/bb", Snapshot() + "/model.safetensors");
  EXPECT_TRUE(
      Says(Find("org/name").status(), "model.safetensors leads to a file that is not there (1 unfinished file"));
  fs::remove_all(Repository() + "/snapshots");
  EXPECT_TRUE(Says(Find("org/name").status(), "its download is not complete: there is no " + Snapshot()));
  EXPECT_TRUE(Says(Find("org/name").status(), "finish it with `hf download org/name`"));
}

TEST_F(HubCacheTest, RefusesRefsThatNameNoCommit) {
  for (const std::string& text : {std::string(), std::string("../../../etc"), kCommit + kCommit + kCommit + kCommit,
                                  std::string(40, 'g'), kCommit.substr(1)}) {
    cache_.Write("models--org--name/refs/main", text);
    EXPECT_TRUE(Says(Find("org/name").status(), "refs/main: must be a commit")) << text;
  }
}

TEST_F(HubCacheTest, RefusesLinksThatLeadElsewhere) {
  cache_.Write("elsewhere", kCommit);
  fs::create_symlink("../../elsewhere", Repository() + "/refs/out");
  EXPECT_TRUE(Says(Find("org/name@out").status(), "leads out"));
  fs::create_symlink("../../../elsewhere", Snapshot() + "/model.safetensors");
  EXPECT_TRUE(Says(ResolveInside(Snapshot(), "model.safetensors").status(), "leads out"));
  fs::create_directories(cache_ / "outside");
  fs::remove_all(Snapshot());
  fs::create_directory_symlink("../../outside", Snapshot());
  EXPECT_TRUE(Says(Find("org/name").status(), "leads out"));
}

TEST_F(HubCacheTest, HintsAreForSnapshotsOnly) {
  cache_.Write("models--org--name/blobs/bb.incomplete", "{");
  EXPECT_EQ(DownloadHint(Snapshot()), DownloadHint(Snapshot() + "/"));
  EXPECT_THAT(DownloadHint(Snapshot()), testing::HasSubstr("(1 unfinished file in "));
  EXPECT_THAT(DownloadHint(Snapshot()), testing::HasSubstr("`hf download org/name --revision " + kCommit + "`"));
  EXPECT_EQ(DownloadHint(cache_.path()), "");
  EXPECT_EQ(DownloadHint("models--a/snapshots/x"), "");
  EXPECT_EQ(DownloadHint(""), "");
}

}  // namespace
}  // namespace llmc
