#include "passes/paginate/kv_encoding.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>
#include <string>

#include "absl/strings/str_replace.h"
#include "ir/text.h"
#include "ir/verify.h"

namespace llmc {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

// `state`: of the cache. `scales`: operands of both ops behind their others.
std::unique_ptr<Model> CachingModel(const std::string& state, const std::string& write_scales = "",
                                    const std::string& attention_scales = "") {
  auto model =
      ParseModel(absl::StrReplaceAll(R"(model "m"
dim N <= 100 dim S <= 4 dim T <= 32 dim P <= 9
state @kv: paged[N, 16] STATE
weight @k_scale: f32[]
weight @v_scale: f32[]
weight @k_scales: f32[2]
step main(%q: f32[T, 128], %k: f32[T, 64], %v: f32[T, 64], %slots: i32[T] = slots, %pages: i32[S, P] = page_table,
          %lens: i32[S] = lengths, %starts: i32[S + 1] = starts) {
  kv_write @kv, %k, %v, %slotsWRITE
  %a = paged_attention %q, @kv, %pages, %lens, %startsATTENTION
  return "a" = %a
})",
                                     {{"STATE", state}, {"WRITE", write_scales}, {"ATTENTION", attention_scales}}),
                 "m.lir");
  EXPECT_TRUE(model.ok()) << model.status();
  return *std::move(model);
}

constexpr char kFloats[] = "{k: f32[2, 32], v: f32[2, 32]}";
constexpr char kOfCheckpoint[] =
    "{k: f32<f8e4m3 per=tensor scale=f32>[2, 32], v: f32<f8e4m3 per=tensor scale=f32>[2, 32]}";

// The text of the model with a cache that is stored so; its text says all that there is.
std::string Stored(const std::string& kv, std::unique_ptr<Model> model) {
  const absl::Status status = pagination::SetKvEncoding(kv, model.get());
  if (!status.ok()) return std::string(status.message());
  EXPECT_TRUE(Verify(*model, Phase::kImported).ok()) << Verify(*model, Phase::kImported);
  const std::string text = PrintModel(*model);
  const auto again = ParseModel(text, "again.lir");
  EXPECT_TRUE(again.ok()) << again.status();
  EXPECT_EQ(again.ok() ? PrintModel(**again) : "", text);
  return text;
}

TEST(KvEncoding, HasNames) {
  for (const auto& [kv, encoding] : {std::pair("f8e4m3", "f8e4m3 per=token scale=f32"),
                                     {"f8e5m2", "f8e5m2 per=token scale=f32"},
                                     {"int8", "int8 per=token scale=f32"},
                                     {"int4", "int4 group=32 scale=f16"},
                                     {"int4 group=16 scale=f16", "int4 group=16 scale=f16"}}) {
    const std::string heads = std::string("f32<") + encoding + ">[2, 32]";
    EXPECT_THAT(Stored(kv, CachingModel(kFloats)), HasSubstr("{k: " + heads + ", v: " + heads + "}")) << kv;
  }
  for (const char* kv : {"", "auto", "none"}) EXPECT_THAT(Stored(kv, CachingModel(kFloats)), HasSubstr(kFloats));
}

// A checkpoint's scales stay where they are asked for, or nothing is; else they go.
TEST(KvEncoding, KeepsScalesOfTheModel) {
  const auto decoder = [] { return CachingModel(kOfCheckpoint, ", @k_scale, @v_scale", ", _, _, @k_scale, @v_scale"); };
  for (const char* kv : {"auto", "f8e4m3:tensor"}) {
    const std::string text = Stored(kv, decoder());
    EXPECT_THAT(text, HasSubstr(kOfCheckpoint));
    EXPECT_THAT(text, HasSubstr("%slots, @k_scale, @v_scale"));
    EXPECT_THAT(text, HasSubstr("%starts, _, _, @k_scale, @v_scale"));
  }
  for (const char* kv : {"none", "f8e4m3", "int8"}) {
    const std::string text = Stored(kv, decoder());
    EXPECT_THAT(text, Not(HasSubstr("%slots, @k_scale")));
    EXPECT_THAT(text, Not(HasSubstr("_, @k_scale")));
  }
  EXPECT_THAT(
      Stored("f8e4m3:head", decoder()),
      HasSubstr("--kv: f8e4m3:head needs a scale f32[2] of component k of @kv, for which the model brings f32[]"));
}

TEST(KvEncoding, HasScalesOfOneWhereTheModelHasNone) {
  const std::string text = Stored("f8e4m3:tensor", CachingModel(kFloats));
  EXPECT_THAT(text, HasSubstr("%kv_scale = constant {value = 1"));
  EXPECT_THAT(text, HasSubstr("kv_write @kv, %k, %v, %slots, %kv_scale, %kv_scale"));
  EXPECT_THAT(text, HasSubstr("%starts, _, _, %kv_scale, %kv_scale"));
  EXPECT_THAT(Stored("f8e4m3:head", CachingModel(kFloats)),
              HasSubstr("the model brings none; f8e4m3 makes scales of its own"));
}

TEST(KvEncoding, SaysWhatCannotBe) {
  EXPECT_THAT(Stored("int5", CachingModel(kFloats)),
              HasSubstr("--kv: 'int5' is not one of none, f8e4m3, f8e5m2, int8, int4"));
  EXPECT_THAT(Stored("int8 per=tensor scale=f32", CachingModel(kFloats)),
              HasSubstr("--kv: @kv: component k: f32<int8 per=tensor scale=f32>[2, 32] has integers"));
  EXPECT_THAT(Stored("int4 group=24 scale=f32", CachingModel(kFloats)), HasSubstr("no whole groups"));
  auto without = ParseModel("model \"m\"\nstep main(%x: f32[2]) {\n  return \"x\" = %x\n}\n", "m.lir");
  EXPECT_THAT(Stored("int8", *std::move(without)),
              HasSubstr("--kv: the model has no cache of keys and values in pages"));
  auto latent = ParseModel(R"(model "m"
dim N <= 100 dim T <= 32
state @kv: paged[N, 16] {latent: f32[1, 32]}
step main(%x: f32[T, 32], %slots: i32[T] = slots) {
  kv_write @kv, %x, %x, %slots {keys = "latent", values = "latent"}
  return "x" = %x
})",
                           "m.lir");
  ASSERT_TRUE(latent.ok()) << latent.status();
  EXPECT_THAT(Stored("int8", *std::move(latent)), HasSubstr("holds latents, which are stored as they are"));
}

TEST(KvEncoding, ChecksNames) {
  EXPECT_TRUE(pagination::CheckKvName("auto").ok());
  EXPECT_TRUE(pagination::CheckKvName("f8e4m3:head").ok());
  EXPECT_FALSE(pagination::CheckKvName("fp8").ok());
}

}  // namespace
}  // namespace llmc
