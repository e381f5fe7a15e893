// ImportModel's choice of importer, and weights of texts.
#include "frontend/import.h"

#include <gtest/gtest.h>

#include "absl/strings/str_replace.h"
#include "frontend/formats/safetensors.h"
#include "ir/text.h"
#include "tests/frontend/test_folder.h"

namespace llmc {
namespace {

constexpr char kText[] = R"(model m
weight @w: f32[2, 3] = "w.safetensors#a#b"
step main(%x: f32[2, 3]) {
  %y = add %x, @w : f32[2, 3]
  return "y" = %y
}
)";

std::string With(const std::string& from, const std::string& to) {
  std::string text = kText;
  text.replace(text.find(from), from.size(), to);
  return text;
}

TEST(ImportModel, ReadsTextWithItsWeights) {
  TestFolder folder;
  const Tensor w = Tensor::FromValues(DType::kF32, {2, 3}, std::vector<float>{1, 2, 3, 4, 5, 6});
  ASSERT_TRUE(WriteSafetensors(folder / "w.safetensors", {{"a#b", w}}).ok());
  const auto model = ImportModel(folder.Write("m.lir", kText));
  ASSERT_TRUE(model.ok()) << model.status();
  EXPECT_TRUE((*model)->data.at("@w") == w);

  const std::pair<std::string, const char*> cases[] = {
      {With("f32[2, 3] =", "f32[3, 2] ="), "@w"},
      {With("a#b", "c"), "has no tensor \"c\""},
      {With("w.safetensors#a#b", "w.safetensors"), "must be \"FILE#TENSOR\""},
      {With("w.safetensors", "../w.safetensors"), "\"..\""},
      {With("w.safetensors", "/etc/passwd"), "absolute"},
      {With("w.safetensors", "m.lir"), ".safetensors, .gguf and .onnx files only"},
      {With("w.safetensors", "absent.safetensors"), "absent.safetensors"},
      {With("add", "no_such_op"), "no_such_op"},
  };
  for (const auto& [text, says] : cases) {
    EXPECT_TRUE(Says(ImportModel(folder.Write("m.lir", text)).status(), says)) << text;
  }
  // The text fits in itself, but not the file.
  const std::string both = absl::StrReplaceAll(kText, {{"f32[2, 3]", "f32[3, 2]"}});
  EXPECT_TRUE(Says(ImportModel(folder.Write("m.lir", both)).status(), "its type is f32[3, 2], but"));
}

TEST(ImportModel, SaysWhatItTakes) {
  TestFolder folder;
  EXPECT_TRUE(absl::IsNotFound(ImportModel(folder / "absent").status()));
  EXPECT_TRUE(Says(ImportModel(folder.Write("model.bin", "x")).status(), "not a model; wanted"));
  EXPECT_TRUE(Says(ImportModel(folder.path()).status(), "config.json"));
  EXPECT_TRUE(Says(ImportModel(folder.Write("m.gguf", "x")).status(), "does not begin with \"GGUF\""));
  EXPECT_TRUE(Says(ImportModel(folder.Write("m.safetensors", "x")).status(), "give the folder that holds them"));
}

// A text that was printed finds all of its contents again.
TEST(ResolveWeights, FindsWhatTheImportersFound) {
  const std::string folder = std::string(LLMC_TEST_DATA) + "/tale-7m";
  for (const std::string& path : {folder, folder + "/model.onnx"}) {
    const auto model = ImportModel(path);
    ASSERT_TRUE(model.ok()) << model.status();
    const auto again = ParseModel(PrintModel(**model), "again.lir");
    ASSERT_TRUE(again.ok()) << again.status();
    const absl::Status resolved = ResolveWeights(again->get(), folder);
    ASSERT_TRUE(resolved.ok()) << resolved;
    EXPECT_FALSE((*again)->data.empty());
    EXPECT_TRUE((*again)->data == (*model)->data);
  }
}

}  // namespace
}  // namespace llmc
