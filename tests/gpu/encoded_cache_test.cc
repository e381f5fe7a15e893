// A cache of codes on a GPU, as a language model's steps use it: prompts alone and together, chunks after what is
// cached, single tokens of up to 128 sequences, and tokens that are taken back, against the host's numbers of each
// step.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <memory>
#include <ostream>
#include <random>
#include <string>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "codegen/plan_writer.h"
#include "ir/text.h"
#include "runtime/device/cuda_executor.h"
#include "runtime/host/host_executor.h"
#include "tests/gpu/device_check.h"
#include "tests/tools/run_command.h"

namespace llmc {
namespace {

constexpr int64_t kCacheVocabulary = 96, kCachePageSize = 16, kCachePages = 1024;

// One layer of attention over what the embedding has for each token, and a head.
constexpr char kCachedModel[] = R"(model m
dim N <= 1024
dim P <= 64
dim R <= 512
dim S <= 128
dim T <= 1024
weight @embed: TYPE[96, ALL] = "f#embed"
weight @head: TYPE[96, WIDTH] = "f#head"
weight @ks: f32[SCALES] = "f#ks"
weight @vs: f32[SCALES] = "f#vs"
weight @sinks: f32[4] = "f#sinks"
state @kv: paged[N, 16] {k: TYPE<ENCODING>[2, DIM], v: TYPE<ENCODING>[2, DIM]}
step main(%ids: i32[T] = token_ids, %pos: i32[T] = positions, %slots: i32[T] = slots, %pages: i32[S, P] = page_table,
          %lens: i32[S] = lengths, %starts: i32[S + 1] = starts, %rows: i32[R] = rows) {
  %x = gather @embed, %ids
  %q = slice %x {axis = 1, start = [0], end = [WIDTH]}
  %k = slice %x {axis = 1, start = [WIDTH], end = [KEYS_END]}
  %v = slice %x {axis = 1, start = [KEYS_END], end = [ALL]}
  kv_write @kv, %k, %v, %slotsSTATIC
  %a = paged_attention %q, @kv, %pages, %lens, %starts, SINKS, _STATIC {scale = 0.125ATTRIBUTES}
  %last = gather %a, %rows
  %head = linear %last, @head {transpose_rhs = true}
  %logits = cast %head {to = f32}
  return "logits" = %logits
}
)";

struct ServedCache {
  std::string type, encoding;
  int64_t head_dim;
  int64_t window = 0;
  bool sinks = false;
};
void PrintTo(const ServedCache& cache, std::ostream* out) { *out << cache.type << " " << cache.encoding; }

// The steps of the device and of the host, and the texts of their sequences.
class EncodedCacheOnDevice : public ::testing::TestWithParam<ServedCache> {
 protected:
  void SetUp() override {
    LLMC_NEEDS_GPU();
    const ServedCache& form = GetParam();
    const bool of_all = absl::StrContains(form.encoding, "per=tensor");
    const bool is_static = of_all || absl::StrContains(form.encoding, "per=channel");
    const int64_t width = 4 * form.head_dim, keys = 2 * form.head_dim;
    const std::string text = absl::StrReplaceAll(
        kCachedModel, {{"f32[SCALES]", of_all ? "f32[]" : "f32[2]"},
                       {"STATIC", is_static ? ", @ks, @vs" : ""},
                       {"SINKS", form.sinks ? "@sinks" : "_"},
                       {"TYPE", form.type},
                       {"ENCODING", form.encoding},
                       {"KEYS_END", absl::StrCat(width + keys)},
                       {"ALL", absl::StrCat(width + 2 * keys)},
                       {"WIDTH", absl::StrCat(width)},
                       {"DIM", absl::StrCat(form.head_dim)},
                       {"ATTRIBUTES", form.window > 0 ? absl::StrCat(", window = ", form.window) : ""}});
    auto model = ParseModel(text, "cache.lir");
    ASSERT_TRUE(model.ok()) << model.status();
    model_ = *std::move(model);
    const DType type = model_->weights[0]->type.dtype;
    model_->data["@embed"] = RandomFloats(type, {kCacheVocabulary, width + 2 * keys}, 1);
    model_->data["@head"] = RandomFloats(type, {kCacheVocabulary, width}, 2);
    model_->data["@sinks"] = RandomFloats(DType::kF32, {4}, 3);
    for (const char* name : {"@ks", "@vs"}) {
      const std::vector<float> scales = {name[1] == 'k' ? 0.01f : 0.013f, 0.02f};
      model_->data[name] = of_all ? Tensor::FromValues(DType::kF32, {}, std::vector<float>{scales[0]})
                                  : Tensor::FromValues(DType::kF32, {2}, scales);
    }
    const std::string path = TempFolder() + "/encoded_cache.bin";
    PlanOptions options = {.compiler_version = "test", .targets = {TargetHere()}};
    plan::LanguageModel& language_model = options.language_model.emplace();
    language_model.set_vocab_size(kCacheVocabulary);
    language_model.set_max_context(64 * kCachePageSize);
    language_model.set_num_layers(1);
    language_model.add_kv_states("@kv");
    plan::LanguageModel::Pool* pool = language_model.add_pools();
    pool->set_dim("N");
    pool->set_page_size(kCachePageSize);
    pool->set_window(form.window);
    options.compile.cache_folder = KernelCacheFolder();
    const absl::Status written = WritePlan(*model_, options, path);
    ASSERT_TRUE(written.ok()) << written;
    auto plan = Plan::Load(path);
    ASSERT_TRUE(plan.ok()) << plan.status();
    plan_ = *std::move(plan);
    auto host = HostExecutor::Create(model_.get(), {.num_pages = kCachePages});
    ASSERT_TRUE(host.ok()) << host.status();
    host_ = *std::move(host);
    auto device = CudaExecutor::Create(plan_.get(), {.num_pages = kCachePages});
    ASSERT_TRUE(device.ok()) << device.status();
    device_ = *std::move(device);
  }

  // Goes on with so many new tokens of each of these sequences.
  void Step(const std::map<int64_t, int64_t>& tokens, WantedLogits wanted = WantedLogits::kAll) {
    StepInput step;
    std::string trace;
    for (const auto& [number, count] : tokens) {
      Sequence& sequence = sequences_[number];
      const auto begin = static_cast<int64_t>(sequence.ids.size());
      for (int64_t i = 0; i < count; ++i) sequence.ids.push_back(static_cast<int32_t>(random_() % kCacheVocabulary));
      const int64_t end = begin + count;
      while (static_cast<int64_t>(sequence.pages.size()) * kCachePageSize < end) sequence.pages.push_back(--free_);
      ASSERT_GE(free_, 0);
      step.chunks.push_back({.sequence = number,
                             .begins = begin == 0,
                             .ids = absl::MakeConstSpan(sequence.ids).subspan(static_cast<size_t>(begin)),
                             .position = begin,
                             .pages = {sequence.pages},
                             .logits = wanted});
      if (tokens.size() < 8) absl::StrAppend(&trace, " ", number, ": ", begin, " + ", count);
    }
    SCOPED_TRACE(absl::StrCat(tokens.size(), " sequences", trace));
    const auto host = host_->RunStep(step), device = device_->RunStep(step);
    ASSERT_TRUE(host.ok()) << host.status();
    ASSERT_TRUE(device.ok()) << device.status();
    ASSERT_EQ(host->logits.rows, device->logits.rows);
    for (int64_t row = 0; row < host->logits.rows; ++row)
      ExpectNear(device->logits.row(row), host->logits.row(row), row);
  }
  void Step(int64_t sequences) {
    std::map<int64_t, int64_t> tokens;
    for (int64_t i = 0; i < sequences; ++i) tokens[i] = 1;
    Step(tokens, WantedLogits::kLast);
  }

  // Forgets the last tokens.
  void TakeBack(int64_t number, size_t tokens) {
    Sequence& sequence = sequences_[number];
    sequence.ids.resize(sequence.ids.size() - tokens);
  }

 private:
  struct Sequence {
    std::vector<int32_t> ids, pages;
  };

  // What is rounded on the way, weights of attention above all, beside the size of the row.
  void ExpectNear(absl::Span<const float> got, absl::Span<const float> want, int64_t row) const {
    double squares = 0;
    for (const float x : want) squares += x * x;
    const double tolerance = GetParam().type == "f32" ? 1e-5 : GetParam().type == "f16" ? 1.0 / 256 : 1.0 / 32;
    const double most = tolerance * std::sqrt(squares / static_cast<double>(want.size()));
    for (size_t i = 0; i < want.size(); ++i) {
      ASSERT_NEAR(got[i], want[i], std::max(most, tolerance * std::abs(want[i]))) << "row " << row << ", logit " << i;
    }
  }

  std::unique_ptr<Model> model_;
  std::unique_ptr<Plan> plan_;
  std::unique_ptr<Executor> host_, device_;
  std::map<int64_t, Sequence> sequences_;
  int32_t free_ = kCachePages;
  std::mt19937 random_{1};
};

TEST_P(EncodedCacheOnDevice, StepsGiveTheNumbersOfTheHost) {
  Step({{0, 37}});                    // a short prompt
  Step({{1, 70}, {2, 9}, {3, 1}});    // several
  Step({{0, 21}, {4, 130}, {2, 1}});  // after what is cached, beside a new one and a single token
  Step(1);
  for (int i = 0; i < 3; ++i) Step(4);  // the later ones from a graph
  // Few tokens of each, and many.
  std::map<int64_t, int64_t> prompts;
  for (int64_t i = 5; i < 32; ++i) prompts[i] = i % 5 == 0 ? 1 : 1 + i * 11 % 40;
  Step(prompts, WantedLogits::kLast);
  for (int i = 0; i < 2; ++i) Step(32);
  prompts.clear();
  for (int64_t i = 32; i < 128; ++i) prompts[i] = 1 + i % 9;
  Step(prompts, WantedLogits::kLast);
  Step(128);
  // Written over: within a page and across its edge, by a chunk and by single tokens.
  TakeBack(0, 7);
  TakeBack(1, 40);
  Step({{0, 5}, {1, 20}});
  TakeBack(2, 1);
  Step(4);
  Step({{4, 180}});
  Step(8);
}

std::vector<ServedCache> ServedCaches() {
  std::vector<ServedCache> forms;
  for (const char* encoding :
       {"f8e4m3 per=tensor scale=f32", "f8e4m3 per=channel scale=f32", "f8e4m3 per=token scale=f32",
        "int8 per=token scale=f32", "int4 group=32 scale=f16", "uint4 group=32 scale=f16 zero=u8"}) {
    forms.push_back({"f16", encoding, 128});
    forms.push_back({"bf16", encoding, 64, /*window=*/50, /*sinks=*/true});
  }
  forms.push_back({"f32", "int4 group=32 scale=f16", 64});
  return forms;
}

INSTANTIATE_TEST_SUITE_P(, EncodedCacheOnDevice, ::testing::ValuesIn(ServedCaches()),
                         [](const ::testing::TestParamInfo<ServedCache>& info) {
                           std::string name = absl::StrCat(info.param.type, "_", info.param.encoding, "_of_",
                                                           info.param.head_dim, info.param.window > 0 ? " window" : "");
                           for (char& each : name) {
                             if (!absl::ascii_isalnum(static_cast<unsigned char>(each))) each = '_';
                           }
                           return name;
                         });

}  // namespace
}  // namespace llmc
