#include "ir/size_collector.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "absl/strings/str_cat.h"
#include "ir/op.h"
#include "ir/text.h"

namespace llmc {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

class Recorder : public SizeCollector {
 public:
  explicit Recorder(const Node& node) : node_(node) {}
  void Equate(const Size& size, const Size& expected) override {
    if (!(size == expected)) sizes.push_back(absl::StrCat(size.ToString(), " = ", expected.ToString()));
  }
  const Dims* result() const override { return node_.results.empty() ? nullptr : &node_.results[0]->type.shape; }

  std::vector<std::string> sizes;

 private:
  const Node& node_;
};

// What the last op of a fragment assumes of sizes.
std::vector<std::string> Assumed(const std::string& text) {
  const absl::StatusOr<std::unique_ptr<Model>> model = ParseFragment(text, "case");
  EXPECT_TRUE(model.ok()) << model.status();
  if (!model.ok()) return {};
  const Node& node = *(*model)->steps[0]->block.nodes.back();
  Recorder recorder(node);
  EXPECT_TRUE(node.op->infer_with(node, recorder).ok());
  return recorder.sizes;
}

TEST(SizeCollector, GetsWhatNoDimTells) {
  EXPECT_THAT(Assumed("in %x: f32[A, K]\nin %w: f32[L, 8]\n%y = matmul %x, %w\n"), ElementsAre("K = L"));
  EXPECT_THAT(Assumed("in %x: f32[T, D]\nin %w: f32[E]\n%y = rms_norm %x, %w\n"), ElementsAre("E = D"));
  EXPECT_THAT(Assumed("in %x: f32[A]\nin %y: f32[4]\n%z = add %x, %y\n"), ElementsAre("broadcast(A, 4) = 4"));
  EXPECT_THAT(Assumed("in %x: f32[A, 6]\nin %y: f32[B, 2]\n%z = concat %x, %y {axis = 1}\n"), ElementsAre("B = A"));
  EXPECT_THAT(Assumed("in %x: f32[A, 6]\n%y = slice %x {start = [1], end = [3]}\n"),
              ElementsAre("within(1, 3, A) = 2"));
  EXPECT_THAT(Assumed("in %x: f32[A, 6]\nin %z: f32[B]\n%y = reshape %x {shape = [B, 3]}\n"), ElementsAre("6*A = 3*B"));
}

TEST(SizeCollector, GetsWhatStepsOfLanguageModelsAssume) {
  EXPECT_THAT(Assumed("in %x: bf16[T, 128]\nin %p: i32[U]\nin %f: f32[32]\n%y = rope %x, %p, %f {head_dim = 64}\n"),
              ElementsAre("U = T"));
}

TEST(SizeCollector, GetsNothingWhereDimsAgree) {
  EXPECT_THAT(Assumed("in %x: f32[A, K]\nin %w: f32[K, 8]\n%y = matmul %x, %w\n"), IsEmpty());
  EXPECT_THAT(Assumed("in %x: f32[A, 1]\nin %y: f32[B]\n%z = add %x, %y\n"), IsEmpty());
  EXPECT_THAT(Assumed("in %x: f32[A]\n%y = exp %x\n"), IsEmpty());
}

}  // namespace
}  // namespace llmc
