// Which tasks of a persistent launch pass rows of numbers.
#include "codegen/run_rows.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <vector>

namespace llmc {
namespace {

// Products of a run, and what is between them, over values that have nothing but an address.
class RunRows : public testing::Test {
 protected:
  static KernelParam Reads(const Value& value, const std::string& name = "x") {
    return {"const llmc::bf16*", name, KernelArg::Of(&value)};
  }
  static KernelParam Writes(const Value& value, const std::string& name = "out") {
    return {"llmc::bf16*", name, KernelArg::Of(&value)};
  }
  void AddProduct(const Value& x, const Value& out, int64_t rows = 8, const Value* addend = nullptr) {
    KernelCall call;
    call.params = {Writes(out), Reads(x)};
    call.task.emplace() = {.forms = {{.threads = 288}}, .stage_bytes = 1024, .takes = {&x}, .gives = {&out}};
    call.task->addend = addend;
    call.task->columns = 1024;
    call.task->block_columns = rows;
    if (addend != nullptr) call.params.push_back(Reads(*addend, "addend"));
    calls_.push_back(call);
  }
  // Reads and writes the cache, or gives nothing.
  void AddCache(const Value& cache, bool writes, int64_t keys_at = 0) {
    calls_.back().params.push_back(writes ? Writes(cache, "kv") : Reads(cache, "kv"));
    calls_.back().AddConstants({{"kKeysAt", keys_at}, {"kValuesAt", 64}, {"kPageElements", 128}, {"kHeadDim", 16}});
  }
  void AddRope(const Value& qkv, const Value& q) {
    KernelCall call;
    call.params = {Writes(q), Reads(qkv, "qkv")};
    call.task.emplace() = {.takes = {&qkv}, .gives = {&q}, .turns_heads = true};
    calls_.push_back(call);
    AddCache(cache_, /*writes=*/true);
  }
  void AddAttention(const Value& q, const Value& out, int64_t keys_at = 0) {
    KernelCall call;
    call.params = {Writes(out), Reads(q, "q")};
    call.task.emplace() = {.takes = {&q}, .gives = {&out}, .is_attention = true};
    calls_.push_back(call);
    AddCache(cache_, /*writes=*/false, keys_at);
  }
  // Of each call: t takes, g gives, - is left out.
  std::vector<std::string> Pass() {
    PassRows(&calls_, 0, calls_.size());
    std::vector<std::string> flags;
    for (const KernelCall& call : calls_) {
      flags.push_back(std::string(call.task->has_taken ? "t" : "") + (call.task->has_given ? "g" : "") +
                      (call.task->is_left_out ? "-" : ""));
    }
    return flags;
  }
  using Flags = std::vector<std::string>;

  Value a_, b_, c_, d_, e_, f_, cache_;
  std::vector<KernelCall> calls_;
};

TEST_F(RunRows, GoFromAProductToTheNext) {
  AddProduct(a_, b_);
  AddProduct(b_, c_);
  AddProduct(c_, d_);
  EXPECT_EQ(Pass(), (Flags{"g", "tg", "t"}));
}

TEST_F(RunRows, AreOfTheTaskBeforeAlone) {
  AddProduct(a_, b_);
  AddProduct(a_, c_);
  AddProduct(b_, d_);
  EXPECT_EQ(Pass(), (Flags{"", "", ""}));
}

TEST_F(RunRows, AreTakenIfTheSameBlocksHaveMadeTheAddend) {
  AddProduct(a_, b_);
  AddProduct(b_, c_);
  AddProduct(c_, d_, 8, &b_);
  EXPECT_EQ(Pass(), (Flags{"g", "tg", "t"}));
  calls_.clear();
  AddProduct(a_, b_, 16);
  AddProduct(b_, c_);
  AddProduct(c_, d_, 8, &b_);
  EXPECT_EQ(Pass(), (Flags{"g", "t", ""})) << "blocks that have made the addend may not have stored it";
}

// As the rows of an embedding are.
TEST_F(RunRows, AreTakenIfTheSameBlocksHaveLookedUpTheAddend) {
  for (const int64_t columns_of_block : {8, 16}) {
    calls_.clear();
    KernelCall gather;
    gather.params = {Writes(b_), Reads(a_)};
    gather.task.emplace() = {.forms = {{.threads = 32}}, .gives = {&b_}};
    gather.task->columns = 1024;
    gather.task->block_columns = columns_of_block;
    calls_.push_back(gather);
    AddProduct(b_, c_);
    AddProduct(c_, d_, 8, &b_);
    EXPECT_EQ(Pass(), columns_of_block == 8 ? (Flags{"g", "tg", "t"}) : (Flags{"g", "t", ""}));
  }
}

TEST_F(RunRows, AreTakenIfAllHaveWaitedSinceTheAddendWasMade) {
  AddProduct(a_, b_, 16);
  AddProduct(a_, c_);  // waits for all
  AddProduct(c_, d_);
  AddProduct(d_, e_, 8, &b_);
  EXPECT_EQ(Pass(), (Flags{"", "g", "tg", "t"}));
}

TEST_F(RunRows, GoThroughAttentionOfTheSameCache) {
  for (const int64_t keys_at : {0, 32}) {
    calls_.clear();
    AddProduct(a_, b_);
    AddProduct(b_, c_);
    AddCache(cache_, /*writes=*/true);
    AddAttention(c_, d_, keys_at);
    AddProduct(d_, e_);
    EXPECT_EQ(Pass(), keys_at == 0 ? (Flags{"g", "tg", "tg", "t"}) : (Flags{"g", "t", "g", "t"}));
  }
}

TEST_F(RunRows, LeaveOutWhatAttentionDoesItself) {
  AddProduct(a_, b_);
  AddProduct(b_, c_);
  AddRope(c_, d_);
  AddAttention(d_, e_);
  AddProduct(e_, f_);
  EXPECT_EQ(Pass(), (Flags{"g", "tg", "-", "tg", "t"}));
  ASSERT_NE(calls_[3].task->before, nullptr);
  EXPECT_TRUE(calls_[3].task->before->task->turns_heads);
}

// Products side by side give one row, in which their numbers lie as who takes them looks for them.
TEST_F(RunRows, AreOfProductsSideBySide) {
  Value q, k, v;
  AddProduct(a_, b_);
  KernelCall products;
  products.task.emplace() = {.stage_bytes = 1024, .takes = {&b_}, .gives = {&v, &q, &k}};
  for (const Value* part : products.task->gives) {
    KernelCall product;
    product.task.emplace() = {
        .stage_bytes = 1024, .takes = {&b_}, .gives = {part}, .given_numbers = part == &q ? 64 : 16};
    products.parts.push_back(product);
  }
  products.params = {Reads(b_), Writes(q), Writes(k), Writes(v)};
  calls_.push_back(products);
  KernelCall turns, as_one;
  turns.params = {Writes(c_), Reads(q), Reads(k), Reads(v)};
  turns.task.emplace() = {.takes = {&q, &k, &v}, .gives = {&c_}, .turns_heads = true};
  as_one.function = "RopeKvWrite";
  calls_.push_back(as_one);
  AddCache(cache_, /*writes=*/true);
  turns.task->as_one = std::make_shared<const KernelCall>(calls_.back());
  calls_.back() = turns;
  AddAttention(c_, d_);
  AddProduct(d_, e_);
  EXPECT_EQ(Pass(), (Flags{"g", "tg", "-", "tg", "t"}));
  const std::vector<int64_t> places = {80, 0, 64};  // of v, q, k
  for (size_t i = 0; i < places.size(); ++i) {
    EXPECT_THAT(calls_[1].parts[i].constants, testing::Contains(testing::Pair("kGivenAt", places[i])));
  }
  ASSERT_NE(calls_[3].task->before, nullptr);
  EXPECT_EQ(calls_[3].task->before->function, "RopeKvWrite");
}

// A task that turns heads writes to memory alone.
TEST_F(RunRows, AreNotGivenByWhatTurnsHeads) {
  AddProduct(a_, b_);
  AddProduct(b_, c_);
  calls_.back().task->gives.clear();
  AddRope(c_, d_);
  AddAttention(d_, e_);
  AddProduct(c_, f_);  // queries, keys and values are kept
  EXPECT_EQ(Pass(), (Flags{"g", "t", "", "", ""}));
}

TEST_F(RunRows, AreNoAddendsOfAttention) {
  AddProduct(a_, b_);
  AddProduct(b_, c_);
  AddCache(cache_, /*writes=*/true);
  AddAttention(c_, d_);
  AddProduct(d_, e_, 8, &d_);
  EXPECT_EQ(Pass(), (Flags{"g", "tg", "t", ""}));
}

TEST_F(RunRows, AreAllThatAttentionWrites) {
  AddProduct(a_, b_);
  AddProduct(b_, c_);
  AddCache(cache_, /*writes=*/true);
  AddAttention(c_, d_);
  AddProduct(d_, e_);
  AddProduct(e_, f_, 8, &d_);  // reads the result of attention again
  EXPECT_EQ(Pass(), (Flags{"g", "tg", "t", "g", "t"}));
}

}  // namespace
}  // namespace llmc
