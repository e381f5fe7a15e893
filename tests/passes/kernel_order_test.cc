// The order of kernels in the text of a step, where their members do not stand together.
#include "passes/lower/kernel_order.h"

#include <gtest/gtest.h>

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "ir/op.h"
#include "ir/text.h"

namespace llmc {
namespace {

// Names of ops in the order of OrderKernels. `kernels` has the members of each, by their first results.
std::vector<std::string> Ordered(const std::string& body, const std::vector<std::vector<std::string>>& kernels) {
  auto model = ParseModel(
      "model m\ndim N <= 8\ndim P <= 8\ndim S <= 4\ndim T <= 8\n"
      "state @kv: paged[N, 16] {k: f32[2, 16], v: f32[2, 16]}\n"
      "step main(%q: f32[T, 64], %k: f32[T, 32], %slots: i32[T] = slots, %pages: i32[S, P] = "
      "page_table, %lens: i32[S] = lengths, %starts: i32[S + 1] = starts) {\n" +
          body + "}\n",
      "m.lir");
  EXPECT_TRUE(model.ok()) << model.status();
  if (!model.ok()) return {};
  Step* step = (*model)->steps[0].get();
  for (const std::vector<std::string>& members : kernels) {
    Kernel* kernel = &step->kernels.emplace_back();
    kernel->backend = "test";
    for (const std::string& name : members) (*model)->Find(name)->def->kernel = kernel;
  }
  const absl::Status status = OrderKernels(step);
  EXPECT_TRUE(status.ok()) << status;
  std::vector<std::string> ops;
  for (const auto& node : step->block.nodes) ops.emplace_back(node->op->info.name);
  return ops;
}

using Ops = std::vector<std::string>;

TEST(KernelOrder, BringsMembersTogetherWhereTheLastIs) {
  EXPECT_EQ(Ordered("  %a = exp %q\n  %b = neg %q\n  %c = abs %a\n", {{"%a", "%c"}, {"%b"}}),
            (Ops{"neg", "exp", "abs"}));
}

// The reader waits for a kernel that ends behind the writer: the writer must wait with it.
TEST(KernelOrder, AWriterOfAStateWaitsForReadersBeforeIt) {
  const std::string body =
      "  %a = exp %q\n"
      "  %y = paged_attention %a, @kv, %pages, %lens, %starts\n"
      "  kv_write @kv, %k, %k, %slots\n"
      "  %b = neg %a\n";
  EXPECT_EQ(Ordered(body, {{"%a", "%b"}, {"%y"}}), (Ops{"exp", "neg", "paged_attention", "kv_write"}));
}

TEST(KernelOrder, AReaderOfAStateWaitsForTheWriterBeforeIt) {
  const std::string body =
      "  %a = exp %k\n"
      "  kv_write @kv, %a, %k, %slots\n"
      "  %y = paged_attention %q, @kv, %pages, %lens, %starts\n"
      "  %b = neg %a\n";
  EXPECT_EQ(Ordered(body, {{"%a", "%b"}, {"%y"}}), (Ops{"exp", "neg", "kv_write", "paged_attention"}));
}

}  // namespace
}  // namespace llmc
