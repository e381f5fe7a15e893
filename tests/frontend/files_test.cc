#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>

#include "absl/strings/str_join.h"
#include "files/mapped_file.h"
#include "files/path_check.h"
#include "files/side_files.h"
#include "frontend/formats/json_file.h"
#include "tests/frontend/test_folder.h"

namespace llmc {
namespace {

namespace fs = std::filesystem;

TEST(MapFile, KeepsTheMapAlive) {
  TestFolder folder;
  const std::string path = folder.Write("x", "hello");
  std::shared_ptr<const char> view;
  {
    const auto file = MapFile(path);
    ASSERT_TRUE(file.ok()) << file.status();
    view = std::shared_ptr<const char>(file->data, file->data.get() + 1);
  }
  EXPECT_EQ(absl::string_view(view.get(), 4), "ello");
}

TEST(MapFile, EmptyFile) {
  TestFolder folder;
  const auto file = MapFile(folder.Write("x", ""));
  ASSERT_TRUE(file.ok()) << file.status();
  EXPECT_EQ(file->view(), "");
  EXPECT_NE(file->data, nullptr);
}

TEST(ResolveInside, StaysInTheFolder) {
  TestFolder outer;
  fs::create_directory(outer / "model");
  fs::create_directory(outer / "model/sub");
  fs::create_directory(outer / "model-2");
  outer.Write("model/sub/in", "");
  outer.Write("out", "");
  outer.Write("model-2/out", "");
  fs::create_symlink("sub/in", outer / "model/good_link");
  fs::create_symlink("../out", outer / "model/bad_link");
  fs::create_symlink("../model-2", outer / "model/bad_folder");
  fs::create_symlink("loop", outer / "model/loop");
  const std::string model = outer / "model";
  EXPECT_TRUE(ResolveInside(model, "sub/in").ok());
  EXPECT_TRUE(ResolveInside(model, "good_link").ok());
  EXPECT_TRUE(Says(ResolveInside(model, "bad_link").status(), "leads out"));
  EXPECT_TRUE(Says(ResolveInside(model, "bad_folder/out").status(), "leads out"));
  EXPECT_FALSE(ResolveInside(model, "loop").ok());
  for (const char* name :
       {"", "/", "/etc/passwd", "..", "../out", "sub/../../out", "sub/../sub/in", ".", "./sub/in", "sub//in"}) {
    EXPECT_TRUE(absl::IsInvalidArgument(ResolveInside(model, name).status())) << name;
  }
  EXPECT_FALSE(ResolveInside(model, std::string(65536, 'a')).ok());
  EXPECT_FALSE(ResolveInside(model, absl::string_view("sub/in\0", 7)).ok());
  EXPECT_TRUE(absl::IsNotFound(ResolveInside(model, "absent").status()));
}

TEST(MapInside, OpensWhatWasChecked) {
  TestFolder outer;
  fs::create_directories(outer / "model/sub");
  outer.Write("model/sub/in", "in");
  outer.Write("out", "out");
  fs::create_symlink("sub/in", outer / "model/good_link");
  fs::create_symlink("../out", outer / "model/bad_link");
  // A hard link is a file of the folder like any other: nothing tells it from a copy.
  fs::create_hard_link(outer / "out", outer / "model/hard_link");
  const std::string model = outer / "model";
  EXPECT_EQ(MapInside(model, "good_link")->view(), "in");
  EXPECT_EQ(MapInside(model, "hard_link")->view(), "out");
  EXPECT_TRUE(Says(MapInside(model, "bad_link").status(), "leads out"));
  EXPECT_TRUE(absl::IsNotFound(MapInside(model, "absent").status()));
}

// A Hugging Face cache: snapshots hold links into the blobs of the same repository.
TEST(ResolveInside, FollowsLinksIntoTheBlobsOfTheSameCache) {
  TestFolder cache;
  fs::create_directories(cache / "models--a--b/snapshots/rev/sub");
  fs::create_directories(cache / "models--a--b/blobs");
  fs::create_directories(cache / "models--c--d/blobs");
  cache.Write("models--a--b/blobs/1", "x");
  cache.Write("models--a--b/secret", "x");
  cache.Write("models--c--d/blobs/1", "x");
  const std::string rev = cache / "models--a--b/snapshots/rev";
  fs::create_symlink("../../blobs/1", rev + "/good");
  fs::create_symlink("../../../blobs/1", rev + "/sub/good");
  fs::create_symlink("../../secret", rev + "/bad");
  fs::create_symlink("../../../models--c--d/blobs/1", rev + "/other");
  EXPECT_TRUE(ResolveInside(rev, "good").ok()) << ResolveInside(rev, "good").status();
  EXPECT_TRUE(ResolveInside(rev, "sub/good").ok());
  EXPECT_TRUE(ResolveInside(rev + "/sub", "good").ok());
  EXPECT_TRUE(Says(ResolveInside(rev, "bad").status(), "leads out"));
  EXPECT_TRUE(Says(ResolveInside(rev, "other").status(), "leads out"));
}

TEST(ParseJson, RefusesHostileText) {
  const auto nested = [](int n) { return std::string(n, '[') + std::string(n, ']'); };
  EXPECT_TRUE(ParseJson(nested(kMaxJsonDepth), "f").ok());
  EXPECT_TRUE(Says(ParseJson(nested(kMaxJsonDepth + 1), "f").status(), "nested deeper"));
  EXPECT_TRUE(Says(ParseJson(std::string(1'000'000, '['), "f").status(), "nested deeper"));
  EXPECT_TRUE(Says(ParseJson(R"({"a":{"b":1,"b":1}})", "f").status(), "duplicate key \"b\""));
  EXPECT_TRUE(ParseJson(R"([{"b":1},{"b":1}])", "f").ok());
  const std::string many = absl::StrCat("[", absl::StrJoin(std::vector<int>(kMaxJsonValues, 1), ","), "]");
  EXPECT_TRUE(Says(ParseJson(many, "f").status(), "larger than 1048576 bytes"));
  EXPECT_TRUE(Says(ParseJson(many, "f", 4 * kMaxJsonValues).status(), "more than 1048576 values"));
  EXPECT_TRUE(Says(ParseJson(absl::string_view("{}\0{", 4), "f").status(), "NUL"));
  for (const char* text :
       {"", " ", "{", "{}x", "[1,]", "{\"a\":NaN}", "{\"a\":1e400}", "\"\xff\"", "{'a':1}", "// c\n{}"}) {
    EXPECT_TRUE(Says(ParseJson(text, "f").status(), "not JSON")) << text;
  }
}

TEST(ParseJson, BuildsWhatItReads) {
  const char* text = R"({"a":[1,-2,2.5,"x",null,true,[],{}],"b":{"c":{"d":[[3]]}},"e":""})";
  const auto parsed = ParseJson(text, "f");
  ASSERT_TRUE(parsed.ok()) << parsed.status();
  EXPECT_EQ(parsed->dump(), text);
  EXPECT_EQ(*ParseJson("7", "f"), 7);
}

TEST(JsonFields, ChecksTypesAndRanges) {
  const nlohmann::json object = {{"i", 3}, {"f", 2.5}, {"s", "x"}, {"n", nullptr}, {"big", UINT64_MAX}, {"b", true}};
  const JsonFields fields(&object, "c.json");
  EXPECT_EQ(*fields.Int("i", 0, 0, 9), 3);
  EXPECT_EQ(*fields.Int("n", 7, 0, 9), 7);
  EXPECT_EQ(*fields.Double("i", 0, 0, 9), 3);
  EXPECT_TRUE(Says(fields.Int("i", 0, 4, 9).status(), "c.json: \"i\" must be an integer from 4 to 9; found 3"));
  EXPECT_FALSE(fields.Int("f", 0, 0, 9).ok());
  EXPECT_FALSE(fields.Int("b", 0, 0, 9).ok());
  EXPECT_FALSE(fields.Int("big", 0, 0, INT64_MAX).ok());
  EXPECT_FALSE(fields.Double("s", 0, 0, 9).ok());
  EXPECT_FALSE(fields.Bool("i", false).ok());
  EXPECT_FALSE(fields.String("i", "").ok());
}

TEST(ReadSideFiles, OneThatCannotBeReadLeavesTheOthers) {
  TestFolder folder;
  folder.Write("config.json", "{}");
  folder.Write("tokenizer.json", std::string((64 << 20) + 1, ' '));
  std::filesystem::create_symlink("/etc/hostname", folder.path() + "/tokenizer_config.json");
  std::filesystem::create_directory(folder.path() + "/generation_config.json");
  folder.Write("vocab.txt", "a");
  folder.Write("x.txt", "b");
  const auto choose = [](const std::vector<std::string>&) { return std::vector<std::string>{"x.txt", "vocab.txt"}; };
  EXPECT_EQ(ReadSideFiles(folder.path(), choose).tokenizer->at(0).text, "b");
  EXPECT_EQ(ReadSideFiles(folder.path(), choose).tokenizer->at(1).name, "vocab.txt");
  const SideFiles files = ReadSideFiles(folder.path(), [](const std::vector<std::string>& names) {
    EXPECT_EQ(names.size(), 6u);
    EXPECT_TRUE(std::is_sorted(names.begin(), names.end()));
    return std::vector<std::string>{"tokenizer.json"};
  });
  EXPECT_EQ(*files.config, "{}");
  EXPECT_EQ(*files.chat_template, "");
  EXPECT_TRUE(Says(files.tokenizer.status(), "tokenizer.json: larger than 67108864 bytes"));
  EXPECT_TRUE(Says(files.tokenizer_config.status(), "tokenizer_config.json"));
  EXPECT_TRUE(Says(files.generation_config.status(), "generation_config.json"));
  EXPECT_EQ(files.NameOf("x"), folder.path() + "/x");
}

}  // namespace
}  // namespace llmc
