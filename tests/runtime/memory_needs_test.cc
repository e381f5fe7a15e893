// What a plan takes of a GPU's memory, from its manifest alone.
#include "runtime/plan/memory_needs.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <set>
#include <utility>

#include "runtime/device/graph_buckets.h"
#include "tests/runtime/target_programs.h"

namespace llmc {
namespace {

using ::testing::HasSubstr;

constexpr int64_t kMiB = int64_t{1} << 20, kGiB = int64_t{1} << 30;

void AddWeight(const std::string& name, int64_t bytes, plan::Manifest* manifest) {
  plan::Weight* weight = manifest->add_weights();
  weight->set_name(name);
  weight->set_bytes(static_cast<uint64_t>(bytes));
}

// A GPU with so much free memory, all of which may be used.
GpuMemory AllOf(int64_t bytes) { return {.total = bytes, .free = bytes, .fraction = 1}; }

// Copies of `prepare` from two weights each; one weight that steps read; a cache of 16 tokens a page.
plan::Manifest SomePlan() {
  plan::Manifest manifest;
  for (const char* name : {"@a", "@b", "@c", "@d"}) AddWeight(name, 64 * kMiB, &manifest);
  AddWeight("@norm", 100, &manifest);
  AddWeight("@head", 256 * kMiB, &manifest);
  for (uint32_t w = 0; w < 4; ++w) {
    plan::Task* task = PrepareOf(&manifest)->add_tasks();
    task->add_args()->set_prepared(w / 2);
    task->add_args()->set_weight(w);
  }
  PrepareOf(&manifest)->set_arena_bytes(256 * kMiB);
  for (const int64_t arena : {10 * kMiB, 100 * kMiB}) {
    plan::Program* program = AddProgram(&manifest);
    program->set_arena_bytes(static_cast<uint64_t>(arena));
    for (const uint32_t w : {4, 5}) {
      program->add_tasks()->add_args()->set_weight(w);
      program->add_launches()->set_count(1);
    }
  }
  const std::pair<const char*, int64_t> dims[] = {{"N", 1 << 20}, {"P", 64}, {"S", 32}};
  for (const auto& [name, max] : dims) {
    plan::DimBound* bound = manifest.add_dims();
    bound->set_name(name);
    bound->set_max(max);
  }
  plan::State* state = manifest.add_states();
  state->set_name("@kv0");
  state->set_pool("N");
  state->set_page_size(16);
  state->set_record_bytes(2 * 16 * 8 * 128 * 2);
  *manifest.add_states() = *state;
  plan::EntryPoint* entry = manifest.add_entry_points();
  plan::TensorSpec* lens = entry->add_inputs();
  lens->set_name("lens");
  lens->set_dtype("i32");
  lens->add_shape("S");
  lens->set_role("lengths");
  plan::TensorSpec* pages = entry->add_inputs();
  pages->set_name("pages");
  pages->add_shape("S");
  pages->add_shape("P");
  pages->set_dtype("i32");
  pages->set_role("page_table");
  plan::LanguageModel::Pool* pool = manifest.mutable_language_model()->add_pools();
  pool->set_dim("N");
  pool->set_page_size(16);
  manifest.mutable_language_model()->set_max_context(1 << 20);
  return manifest;
}

MemoryNeeds NeedsOfSomePlan() {
  const plan::Manifest manifest = SomePlan();
  return *MemoryNeedsOf(FirstCode(manifest));
}

TEST(MemoryNeeds, AreThoseOfTheManifest) {
  const plan::Manifest manifest = SomePlan();
  const absl::StatusOr<MemoryNeeds> needs = MemoryNeedsOf(FirstCode(manifest));
  ASSERT_TRUE(needs.ok()) << needs.status();
  EXPECT_EQ(needs->weights, 258 * kMiB) << "one allocation of all, rounded up";
  EXPECT_EQ(needs->passing_weights, 256 * kMiB) << "small enough to be there together";
  EXPECT_EQ(needs->prepared, 256 * kMiB);
  EXPECT_EQ(needs->arena, 100 * kMiB) << "of the widest program";
  EXPECT_EQ(needs->pools[0].page, 2 * 2 * 16 * 8 * 128 * 2);
  EXPECT_EQ(needs->max_context, 64 * 16) << "the pages of a sequence bound it";
  EXPECT_EQ(needs->max_sequences, 32);
  EXPECT_GT(needs->graphs, 0);
}

// With a second pool, of a layer with a window of 100 tokens.
plan::Manifest PlanWithAWindow() {
  plan::Manifest manifest = SomePlan();
  plan::DimBound* bound = manifest.add_dims();
  bound->set_name("M");
  bound->set_max(1 << 20);
  bound = manifest.add_dims();
  bound->set_name("T");
  bound->set_max(64);
  plan::TensorSpec* ids = manifest.mutable_entry_points(0)->add_inputs();
  ids->set_name("ids");
  ids->set_dtype("i32");
  ids->add_shape("T");
  ids->set_role("token_ids");
  manifest.mutable_states(1)->set_pool("M");
  manifest.mutable_language_model()->clear_pools();
  for (const auto& [dim, window] : {std::pair("N", 0), {"M", 100}}) {
    plan::LanguageModel::Pool* pool = manifest.mutable_language_model()->add_pools();
    pool->set_dim(dim);
    pool->set_window(window);
    pool->set_page_size(16);
  }
  return manifest;
}

// Pages of 16 tokens, 64 KiB, in both pools; those of pool `index` become four times as large.
MemoryNeeds NeedsOfTwoSizes(int index) {
  plan::Manifest manifest = PlanWithAWindow();
  plan::State* state = manifest.mutable_states(index);
  state->set_page_size(64);
  state->set_record_bytes(4 * state->record_bytes());
  manifest.mutable_language_model()->mutable_pools(index)->set_page_size(64);
  return *MemoryNeedsOf(FirstCode(manifest));
}

TEST(MemoryNeeds, EachPoolHoldsAPageOfTheLargestSize) {
  plan::Manifest manifest = PlanWithAWindow();
  manifest.mutable_states(0)->set_page_size(64);
  manifest.mutable_language_model()->mutable_pools(0)->set_page_size(64);
  for (plan::DimBound& bound : *manifest.mutable_dims()) {
    if (bound.name() == "M") bound.set_max(3);
  }
  EXPECT_EQ(
      MemoryNeedsOf(FirstCode(manifest)).status().message(),
      "the KV cache has room for no tokens: M is at most 3 pages of 16 tokens, fewer than one page of 64 of another "
      "pool; compile with --bound M=4 or more");
}

// Sizes of a cache are counted in pages of 64.
TEST(MemoryNeeds, PoolsMayHavePagesOfTheirOwnSize) {
  constexpr int64_t kPage = 65536;
  const MemoryNeeds small_window = NeedsOfTwoSizes(0);
  EXPECT_EQ(small_window.page_size, 64);
  EXPECT_EQ(small_window.SmallestPage(), 16);
  EXPECT_EQ(small_window.max_context, 64 * 16) << "tables have room for 64 of the smallest pages";
  EXPECT_EQ(small_window.max_pages, (1 << 20) / 4) << "the second pool has four for each";
  int64_t most = 32 * (7 + 2) + 2 * 64 / 16 + 1;
  EXPECT_EQ(small_window.CacheBytes(50), 50 * 4 * kPage + 200 * kPage);
  EXPECT_EQ(small_window.CacheBytes(1000), 1000 * 4 * kPage + most * kPage);
  EXPECT_EQ(small_window.PagesOfSequences(3, 1000), 48) << "16 of 64, and 63 of 16, which lie in 16 of 64";
  EXPECT_EQ(small_window.PagesOfSequences(3, 65), 6);
  EXPECT_EQ(small_window.PagesOfSequences(100, 1024), 1600);
  EXPECT_EQ(small_window.SequencesIn(48, 1000), 3);
  EXPECT_EQ(small_window.SequencesIn(47, 1000), 2);
  EXPECT_EQ(small_window.SequencesIn(50, 65), 25);
  EXPECT_EQ(small_window.SequencesIn(1000, 1000), 62) << "the window's pool has all that it needs";
  const MemoryNeeds large_window = NeedsOfTwoSizes(1);
  most = 32 * (2 + 2) + 2 * 64 / 64 + 1;
  EXPECT_EQ(large_window.max_context, 64 * 16);
  EXPECT_EQ(large_window.CacheBytes(50), 200 * kPage + 50 * 4 * kPage);
  EXPECT_EQ(large_window.CacheBytes(1000), 4000 * kPage + most * 4 * kPage);
  EXPECT_EQ(large_window.PagesOfSequences(3, 65), 6) << "two of 64 each, though five of 16 are fewer tokens";
  EXPECT_EQ(large_window.SequencesIn(6, 65), 3);
  EXPECT_EQ(large_window.SequencesIn(1000, 65), 800);
  EXPECT_EQ(large_window.PagesOfSequences(int64_t{1} << 62, 1000), int64_t{1} << 56) << "cut";
}

// It needs no more pages than its sequences hold at a time.
TEST(MemoryNeeds, WindowsNeedFewPages) {
  plan::Manifest manifest = PlanWithAWindow();
  const int64_t whole = NeedsOfSomePlan().CacheBytes(1000);
  const absl::StatusOr<MemoryNeeds> needs = MemoryNeedsOf(FirstCode(manifest));
  ASSERT_TRUE(needs.ok()) << needs.status();
  ASSERT_EQ(needs->pools.size(), 2u);
  // Of 32 sequences the 7 pages that 100 tokens lie in and two more; and for two steps of 64 tokens.
  const int64_t most = 32 * (7 + 2) + 2 * 64 / 16 + 1;
  EXPECT_EQ(needs->PagesOf(needs->pools[0], 1000), 1000);
  EXPECT_EQ(needs->PagesOf(needs->pools[1], 1000), most);
  EXPECT_EQ(needs->PagesOf(needs->pools[1], 100), 100);
  EXPECT_EQ(needs->CacheBytes(1000), whole / 2 + most * needs->pools[1].page);
  const int64_t pages = PagesThatFit(*needs, AllOf(4 * kGiB));
  EXPECT_LE(needs->Fixed() + needs->CacheBytes(pages), UsableBytes(AllOf(4 * kGiB)));
  EXPECT_GT(needs->Fixed() + needs->CacheBytes(pages + 1), UsableBytes(AllOf(4 * kGiB)));
  EXPECT_GT(pages, PagesThatFit(NeedsOfSomePlan(), AllOf(4 * kGiB)));
  // Sizes of a damaged plan.
  for (plan::DimBound& dim : *manifest.mutable_dims()) dim.set_max(std::numeric_limits<int64_t>::max());
  manifest.mutable_language_model()->mutable_pools(1)->set_window(int64_t{1} << 31);
  const absl::StatusOr<MemoryNeeds> damaged = MemoryNeedsOf(FirstCode(manifest));
  ASSERT_TRUE(damaged.ok()) << damaged.status();
  EXPECT_GT(damaged->PagesOf(damaged->pools[1], int64_t{1} << 40), 0);
  EXPECT_GT(damaged->CacheBytes(int64_t{1} << 40), damaged->CacheBytes(1));
}

TEST(MemoryNeeds, CountWhatStepsAddLater) {
  plan::Manifest manifest = SomePlan();
  manifest.mutable_language_model()->set_vocab_size(1000);
  EXPECT_EQ(MemoryNeedsOf(FirstCode(manifest))->counts, 32 * 4096) << "of each sequence";
  for (const uint64_t offset : {0, 1}) {
    plan::Buffer* buffer = FirstTarget(&manifest)->add_persistent();
    buffer->set_offset(offset * 1024 * 1024);
    buffer->set_bytes(4 * 1024 * 1024 + 1);
  }
  EXPECT_EQ(MemoryNeedsOf(FirstCode(manifest))->persistent, 6 * kMiB);
  EXPECT_EQ(MemoryNeedsOf(FirstCode(manifest))->Loading() - NeedsOfSomePlan().Loading(), 6 * kMiB);
  EXPECT_EQ(MemoryNeedsOf(FirstCode(manifest))->Fixed() - NeedsOfSomePlan().Fixed(), 6 * kMiB + 32 * 4096);
}

// Four kinds of sampling for each of the batch sizes that decode steps are filled up to.
TEST(MemoryNeeds, CountEveryGraph) {
  std::set<int64_t> sizes;
  for (int64_t sequences = 1; sequences <= kLargestGraph; ++sequences) {
    sizes.insert(GraphBucketOf(sequences));
    EXPECT_EQ(MostGraphs(sequences), kGraphKinds * static_cast<int64_t>(sizes.size())) << sequences;
  }
  EXPECT_EQ(sizes.size(), 17u);
  EXPECT_EQ(MostGraphs(100000), kGraphKinds * 17);
  EXPECT_EQ(MostGraphs(0), 0);
}

TEST(MemoryNeeds, LargeWeightsPassOneAfterTheOther) {
  plan::Manifest manifest = SomePlan();
  for (int w = 0; w < 4; ++w) manifest.mutable_weights(w)->set_bytes(200 * kMiB);
  EXPECT_EQ(MemoryNeedsOf(FirstCode(manifest))->passing_weights, 200 * kMiB);
  PrepareOf(&manifest)->mutable_tasks(3)->mutable_args(1)->set_weight(0);
  EXPECT_EQ(MemoryNeedsOf(FirstCode(manifest))->passing_weights, 400 * kMiB) << "the first stays for the last task";
  PrepareOf(&manifest)->set_temporary_bytes(100 * kMiB);
  EXPECT_EQ(MemoryNeedsOf(FirstCode(manifest))->passing_weights, 500 * kMiB);
  EXPECT_EQ(MemoryNeedsOf(FirstCode(manifest))->prepared, 156 * kMiB);
}

TEST(MemoryNeeds, TheCacheGetsWhatIsLeft) {
  const MemoryNeeds needs = NeedsOfSomePlan();
  const GpuMemory gpu = AllOf(int64_t{8} << 30);
  const int64_t pages = PagesThatFit(needs, gpu);
  EXPECT_GT(pages, 1000);
  EXPECT_LE(needs.Fixed() + needs.CacheBytes(pages), UsableBytes(gpu));
  EXPECT_TRUE(CheckFits(needs, pages, gpu).ok());
  const absl::Status more = CheckFits(needs, pages + 1, gpu);
  EXPECT_TRUE(absl::IsResourceExhausted(more));
  for (const char* part : {"weights 256.0 MiB", "prepared weights 256.0 MiB", "arena 100.0 MiB", "KV cache ",
                           "8.00 GiB", "too few; use a smaller context or batch"}) {
    EXPECT_THAT(std::string(more.message()), HasSubstr(part));
  }
  EXPECT_EQ(PagesThatFit(needs, AllOf(int64_t{1} << 50)), needs.max_pages);
}

// The fraction is of all of the memory; what others take counts only where less than that is left.
TEST(MemoryNeeds, AreHeldToAFraction) {
  const auto usable = [](int64_t total, int64_t free, double fraction) {
    return UsableBytes({.total = total, .free = free, .fraction = fraction});
  };
  EXPECT_EQ(GpuMemory().fraction, 0.9);
  EXPECT_EQ(usable(80 * kGiB, 79 * kGiB, 0.5), 40 * kGiB);
  EXPECT_EQ(usable(80 * kGiB, 50 * kGiB, 0.5), 40 * kGiB) << "another half may be taken";
  EXPECT_EQ(usable(80 * kGiB, 32 * kGiB, 0.5), 32 * kGiB - kGiB / 2 - 256 * kMiB) << "no more than is free";
  EXPECT_EQ(usable(64 * kGiB, 64 * kGiB, 1), 63 * kGiB - 256 * kMiB);
  EXPECT_EQ(usable(80 * kGiB, 0, 0.9), 0);

  const MemoryNeeds needs = NeedsOfSomePlan();
  const GpuMemory half = {.total = 8 * kGiB, .free = 8 * kGiB, .fraction = 0.5};
  const int64_t pages = PagesThatFit(needs, half);
  EXPECT_EQ(pages, (4 * kGiB - needs.Fixed()) / needs.pools[0].page);
  EXPECT_TRUE(CheckFits(needs, pages, half).ok());
  const std::string more(CheckFits(needs, pages + 1, half).message());
  EXPECT_THAT(more, HasSubstr("of a GPU of 8.00 GiB the fraction 0.5 may be used, 4.00 GiB: "));
  EXPECT_THAT(more, HasSubstr("allow more of this one (--memory-fraction)"));
  const std::string most(CheckFits(needs, int64_t{1} << 30, half).message());
  EXPECT_THAT(most, ::testing::Not(HasSubstr("--memory-fraction"))) << "that would not help";
  const std::string loading(CheckFits(needs, 1, {.total = 8 * kGiB, .free = 8 * kGiB, .fraction = 0.05}).message());
  EXPECT_THAT(loading, HasSubstr("use a larger GPU, allow more of this one (--memory-fraction)"));
}

TEST(DeviceChoice, IsReadAsUsersWriteIt) {
  EXPECT_FALSE(ParseDevice("host")->is_gpu);
  for (const auto& [text, index] : {std::pair("cuda", 0), std::pair("cuda:0", 0), std::pair("cuda:17", 17)}) {
    EXPECT_TRUE(ParseDevice(text)->is_gpu);
    EXPECT_EQ(ParseDevice(text)->index, index);
  }
  for (const char* wrong :
       {"", "gpu", "cuda:", "cuda:-1", "cuda: 1", "cuda:1x", "cuda:99999", "cuda1", "host:0", "CUDA"}) {
    const absl::Status status = ParseDevice(wrong).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << wrong;
    EXPECT_THAT(std::string(status.message()), HasSubstr("\"cuda:N\" (GPU number N)"));
  }
  for (const double wrong : {0.0, -0.5, 1.01, std::nan(""), std::numeric_limits<double>::infinity()}) {
    EXPECT_EQ(CheckMemoryFraction(wrong).code(), absl::StatusCode::kInvalidArgument) << wrong;
  }
  EXPECT_TRUE(CheckMemoryFraction(1).ok());
}

TEST(MemoryNeeds, LoadingMustFitToo) {
  plan::Manifest manifest = SomePlan();
  for (int w = 0; w < 4; ++w) manifest.mutable_weights(w)->set_bytes(uint64_t{4} << 30);
  const MemoryNeeds needs = *MemoryNeedsOf(FirstCode(manifest));
  EXPECT_EQ(PagesThatFit(needs, AllOf(int64_t{4} << 30)), 0);
  EXPECT_THAT(std::string(CheckFits(needs, 1, AllOf(int64_t{4} << 30)).message()), HasSubstr("loading needs 4.53 GiB"));
}

TEST(MemoryNeeds, SizesThatAreNoneAreRefused) {
  plan::Manifest manifest = SomePlan();
  manifest.mutable_states(1)->set_kind(plan::State::PER_SEQUENCE);
  EXPECT_FALSE(MemoryNeedsOf(FirstCode(manifest)).ok());
  manifest = SomePlan();
  for (int w = 0; w < 6; ++w) manifest.mutable_weights(w)->set_bytes(uint64_t{1} << 62);
  EXPECT_TRUE(absl::IsResourceExhausted(CheckFits(*MemoryNeedsOf(FirstCode(manifest)), 1, AllOf(int64_t{1} << 40))));
}

}  // namespace
}  // namespace llmc
