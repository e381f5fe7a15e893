#include "runtime/plan/plan.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstring>
#include <filesystem>
#include <fstream>
#include <functional>
#include <random>
#include <set>
#include <sstream>

#include "absl/strings/str_cat.h"
#include "codegen/plan_writer.h"
#include "ir/eval.h"
#include "ir/ops.h"
#include "ir/state_type.h"
#include "ir/text.h"
#include "runtime/host/plan_model.h"
#include "tests/runtime/plan_bytes.h"

namespace llmc {
namespace {

namespace fs = std::filesystem;
using plan::Section;
using ::testing::HasSubstr;

class PlanTest : public ::testing::Test {
 protected:
  PlanTest() : folder_(fs::path(testing::TempDir()) / absl::StrCat("plan_", getpid())) {
    fs::create_directories(folder_);
    model_.name = "m";
    model_.dims["T"] = 16;
    model_.dims["N"] = 64;
    model_.steps.push_back(std::make_unique<Step>());
    Step* step = model_.steps[0].get();
    Value* x = model_.AddParam(step, "%x", {DType::kF32, {Dim::Symbol("T"), 3}});
    Value* w = model_.AddWeight("@w", {DType::kF32, {3}}, "model.safetensors#w");
    Value* b = model_.AddWeight("@b", {DType::kF32, {3}}, "model.safetensors#b");
    model_.AddWeight("@unused", {DType::kBF16, {40, 50}}, "model.safetensors#u");
    model_.AddState(
        "@kv0", StateType::Paged(Dim::Symbol("N"), 16, {{"k", {DType::kF32, {1, 4}}}, {"v", {DType::kF32, {1, 2}}}}));
    Builder builder(&model_, &step->block);
    Value* y = builder.Add(Mul{.lhs = x, .rhs = w}, "%y");
    step->outputs = {{"z", builder.Add(Add{.lhs = y, .rhs = b}, "%z")}};
    model_.data["@w"] = Tensor::FromValues<double>(DType::kF32, {3}, {1, 2, 3});
    model_.data["@b"] = Tensor::FromValues<double>(DType::kF32, {3}, {5, 6, 7});
    model_.data["@unused"] = Tensor(DType::kBF16, {40, 50});
    for (int64_t i = 0; i < 2000; ++i) model_.data["@unused"].SetInt(i, i % 200 + 1);
    PlanOptions options;
    options.compiler_version = "9.9";
    options.flags = {"--dtype=f32"};
    options.ledger = "ledger text";
    options.tokenizer = {{"vocab.json", "{\"a\": 1}"}, {"merges.txt", "\xFF"}};
    options.tokenizer_config = "{\"tokenizer_config\": 1}";
    options.chat_template = "{{ messages }}";
    options.generation_config = "{\"generation\": 1}";
    options.config_json = "{\"config\": 1}";
    plan::LanguageModel lm;
    lm.set_vocab_size(100);
    plan::LanguageModel::Pool* pool = lm.add_pools();
    pool->set_dim("N");
    pool->set_page_size(16);
    lm.set_max_context(512);
    lm.set_num_layers(1);
    lm.add_kv_states("@kv0");
    lm.add_eos_ids(2);
    options.language_model = lm;
    path_ = (folder_ / "plan.bin").string();
    const absl::Status status = WritePlan(model_, options, path_);
    EXPECT_TRUE(status.ok()) << status;
    bytes_ = Read(path_);
  }
  ~PlanTest() override { fs::remove_all(folder_); }

  static std::string Read(const std::string& path) {
    std::ifstream in(path, std::ios::binary);
    std::stringstream out;
    out << in.rdbuf();
    return out.str();
  }
  absl::StatusOr<std::unique_ptr<Plan>> LoadBytes(const std::string& bytes, const PlanLoadOptions& options = {}) const {
    const std::string path = (folder_ / "altered.bin").string();
    std::ofstream(path, std::ios::binary | std::ios::trunc) << bytes;
    return Plan::Load(path, options);
  }

  std::vector<PlanPart> Parts() const { return PartsOfFile(bytes_); }
  std::string WithManifest(const std::function<void(plan::Manifest*)>& change) const {
    return AlteredPlan(bytes_, change);
  }

  fs::path folder_;
  std::string path_;
  std::string bytes_;
  Model model_;
};

TEST_F(PlanTest, GivesBackWhatWasWritten) {
  auto plan = Plan::Load(path_);
  ASSERT_TRUE(plan.ok()) << plan.status();
  EXPECT_TRUE(Plan::IsPlan(path_));
  EXPECT_EQ((*plan)->ledger(), "ledger text");
  const auto tokenizer = (*plan)->tokenizer();
  ASSERT_TRUE(tokenizer.ok()) << tokenizer.status();
  ASSERT_EQ(tokenizer->files_size(), 2);
  EXPECT_EQ(tokenizer->files(0).name(), "vocab.json");
  EXPECT_EQ(tokenizer->files(0).contents(), "{\"a\": 1}");
  EXPECT_EQ(tokenizer->files(1).name(), "merges.txt");
  EXPECT_EQ(tokenizer->files(1).contents(), "\xFF");
  EXPECT_EQ((*plan)->tokenizer_config(), "{\"tokenizer_config\": 1}");
  EXPECT_EQ((*plan)->chat_template(), "{{ messages }}");
  EXPECT_EQ((*plan)->generation_config(), "{\"generation\": 1}");
  EXPECT_EQ((*plan)->config_json(), "{\"config\": 1}");
  EXPECT_EQ((*plan)->ir_text(), PrintModel(model_));
  EXPECT_THAT(std::string((*plan)->plan_text()), HasSubstr("lower bound"));
  const plan::Manifest& manifest = (*plan)->manifest();
  EXPECT_EQ(manifest.compiler_version(), "9.9");
  EXPECT_EQ(manifest.flags(0), "--dtype=f32");
  EXPECT_EQ(manifest.entry_points(0).inputs(0).name(), "x");
  EXPECT_EQ(manifest.entry_points(0).inputs(0).shape(0), "T");
  EXPECT_EQ(manifest.entry_points(0).outputs(0).name(), "z");
  EXPECT_EQ(manifest.language_model().kv_states(0), "@kv0");
  EXPECT_FALSE(manifest.language_model().has_bos_id());
  for (int i = 0; i < manifest.weights_size(); ++i) {
    EXPECT_EQ(reinterpret_cast<uintptr_t>((*plan)->WeightBytes(i).get()) % plan::kWeightAlignment, 0u);
  }
}

TEST_F(PlanTest, AModelComesBackWithItsWeights) {
  std::unique_ptr<Model> model;
  {
    auto plan = Plan::Load(path_);
    ASSERT_TRUE(plan.ok()) << plan.status();
    auto loaded = ModelFromPlan(**plan);
    ASSERT_TRUE(loaded.ok()) << loaded.status();
    model = *std::move(loaded);
  }  // the weights outlive the plan
  EXPECT_EQ(PrintModel(*model), PrintModel(model_));
  EXPECT_EQ(model->data, model_.data);
  auto evaluator = Evaluator::Create(model.get());
  ASSERT_TRUE(evaluator.ok()) << evaluator.status();
  auto out =
      (*evaluator)->Run(*model->steps[0], {{"x", Tensor::FromValues<double>(DType::kF32, {1, 3}, {10, 20, 30})}});
  ASSERT_TRUE(out.ok()) << out.status();
  EXPECT_EQ(out->at("z").ToFloats(), (std::vector<float>{15, 46, 97}));
}

TEST_F(PlanTest, ADamagedFileIsAnError) {
  std::mt19937 rng(42);
  for (int i = 0; i < 1000; ++i) {
    std::string bytes = bytes_;
    const bool truncate = i % 4 == 0;
    // Every byte of the header and the table in turn, then any.
    const size_t place = !truncate && i < 900 ? static_cast<size_t>(i) : rng() % bytes.size();
    if (truncate) {
      bytes.resize(place);
    } else {
      bytes[place] = static_cast<char>(bytes[place] ^ (1 + rng() % 255));
    }
    auto plan = LoadBytes(bytes);
    ASSERT_FALSE(plan.ok()) << (truncate ? "cut at " : "changed at ") << place;
    EXPECT_THAT(plan.status().message(), HasSubstr("altered.bin"));
  }
}

TEST_F(PlanTest, OnlyWeightsGoUncheckedWhereThatIsWanted) {
  auto whole = Plan::Load(path_);
  ASSERT_TRUE(whole.ok());
  const absl::string_view weights = (*whole)->section(Section::kWeights);
  const size_t begin =
      weights.data() - (*whole)->section(Section::kManifest).data() + Get<uint64_t>(bytes_, plan::kHeaderBytes + 8);
  const PlanLoadOptions unchecked = {.verify_weights = false};
  for (const size_t place : {begin, begin + weights.size() - 1, begin - 1, begin + weights.size()}) {
    std::string bytes = bytes_;
    bytes[place] = static_cast<char>(bytes[place] ^ 1);
    const bool in_weights = place >= begin && place < begin + weights.size();
    EXPECT_EQ(LoadBytes(bytes, unchecked).ok(), in_weights) << place - begin;
    const absl::Status checked = LoadBytes(bytes).status();
    EXPECT_THAT(checked.message(), HasSubstr(in_weights ? "checksum of section \"weights\"" : "are not zero"));
  }
}

TEST_F(PlanTest, RegionsAreReadFromTheFile) {
  auto plan = Plan::Load(path_);
  ASSERT_TRUE(plan.ok());
  ASSERT_EQ((*plan)->weight_regions().size(), 1);
  const Plan::WeightRegion& region = (*plan)->weight_regions()[0];
  std::string read(region.bytes.size(), '\0');
  ASSERT_TRUE((*plan)->ReadRegion(region, 0, read.size(), read.data()).ok());
  EXPECT_EQ(read, region.bytes);
  ASSERT_TRUE((*plan)->ReadRegion(region, 7, 30, read.data()).ok());
  EXPECT_EQ(read.substr(0, 23), region.bytes.substr(7, 23));
  const size_t size = region.bytes.size();
  fs::resize_file(path_, bytes_.size() - plan::kPage);
  const absl::Status cut = (*plan)->ReadRegion(region, 0, size, read.data());
  EXPECT_EQ(cut.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(cut.message(), HasSubstr(path_ + ": the file ends at byte "));
  EXPECT_THAT(cut.message(), HasSubstr("compile the model again"));
}

std::string SomeBytes(size_t size) {
  std::string bytes(size, '\0');
  for (size_t i = 0; i < size; ++i) bytes[i] = static_cast<char>(i * 2654435761u >> 13);
  return bytes;
}

class PiecewiseHashTest : public ::testing::TestWithParam<plan::PieceDigest> {};
INSTANTIATE_TEST_SUITE_P(, PiecewiseHashTest,
                         ::testing::Values(plan::PieceDigest::kChecksum, plan::PieceDigest::kSha256));

TEST_P(PiecewiseHashTest, IsTheSameHoweverItIsComputed) {
  const std::string bytes = SomeBytes(2 * plan::kPieceBytes + 5);
  for (const size_t size :
       {size_t{0}, size_t{1}, plan::kPieceBytes, plan::kPieceBytes + 1, 2 * plan::kPieceBytes, bytes.size()}) {
    const absl::string_view part(bytes.data(), size);
    std::vector<plan::Digest> digests;
    plan::PieceHash hash(GetParam());
    for (size_t at = 0; at < size; at += plan::kPieceBytes) {
      const absl::string_view piece = part.substr(at, plan::kPieceBytes);
      hash.Update(piece.data(), piece.size());
      digests.push_back(hash.Finish());
      if (GetParam() == plan::PieceDigest::kSha256) {
        EXPECT_EQ(digests.back(), plan::HashBytes(piece));
      }
    }
    EXPECT_EQ(plan::HashPieces(part, GetParam()), plan::CombinePieces(digests)) << size;
    for (const size_t step : {size_t{777777}, size_t{1} << 20}) {
      plan::PiecewiseHash streamed(GetParam());
      for (size_t at = 0; at < size; at += step) {
        const absl::string_view next = part.substr(at, step);
        streamed.Update(next.data(), next.size());
      }
      EXPECT_EQ(plan::HashPieces(part, GetParam()), streamed.Finish()) << size;
    }
  }
}

TEST_P(PiecewiseHashTest, SeesEveryChange) {
  const std::string bytes = SomeBytes(100);
  const auto hash = [](const std::string& piece) {
    plan::PieceHash hash(GetParam());
    hash.Update(piece.data(), piece.size());
    return hash.Finish();
  };
  std::set<plan::Digest> digests = {hash(bytes), hash(bytes + '\0'), hash(""), hash(std::string(64, '\0'))};
  for (size_t bit = 0; bit < 8 * bytes.size(); ++bit) {
    std::string changed = bytes;
    changed[bit / 8] = static_cast<char>(changed[bit / 8] ^ 1 << bit % 8);
    digests.insert(hash(changed));
  }
  std::string swapped = bytes;
  std::swap_ranges(swapped.begin(), swapped.begin() + 32, swapped.begin() + 32);
  digests.insert(hash(swapped));
  EXPECT_EQ(digests.size(), 4 + 800 + 1);
}

TEST_F(PlanTest, EveryByteOfPaddingIsChecked) {
  size_t checked = 0;
  for (size_t i = 0; i + 1 < Get<uint32_t>(bytes_, 12); ++i) {
    const size_t at = plan::kHeaderBytes + i * plan::kEntryBytes;
    const size_t end = Get<uint64_t>(bytes_, at + 8) + Get<uint64_t>(bytes_, at + 16);
    if (end % plan::kPage == 0) continue;
    std::string bytes = bytes_;
    bytes[end] = 1;
    EXPECT_THAT(LoadBytes(bytes).status().message(), HasSubstr("are not zero"));
    ++checked;
  }
  EXPECT_GT(checked, 5u);
  std::string bytes = bytes_;
  bytes.back() = 1;
  EXPECT_THAT(LoadBytes(bytes).status().message(), HasSubstr("after the last section are not zero"));
}

// Over 60 lines: a list of changes.
TEST_F(PlanTest, ManifestsThatLieAreRefused) {
  ASSERT_TRUE(LoadBytes(WithManifest([](plan::Manifest*) {})).ok());
  const auto error = [&](const std::function<void(plan::Manifest*)>& change) {
    return std::string(LoadBytes(WithManifest(change)).status().message());
  };
  using M = plan::Manifest*;
  const auto add_file = [](M m, const std::string& path) {
    plan::File* file = m->add_files();
    file->set_path(path);
    file->set_bytes(4);
    file->set_pieces_sha256(std::string(32, 'x'));
    file->set_external(true);
  };
  EXPECT_THAT(error([](M m) { m->set_format_version(plan::kVersion + 1); }), HasSubstr("format version"));
  EXPECT_THAT(error([](M m) { m->mutable_weights(0)->set_offset(uint64_t{1} << 40); }),
              HasSubstr("@w has 12 bytes at"));
  EXPECT_THAT(error([](M m) { m->mutable_weights(0)->set_offset(UINT64_MAX); }), HasSubstr("@w has 12 bytes at"));
  EXPECT_THAT(error([](M m) { m->mutable_weights(1)->set_offset(4); }), HasSubstr("not aligned"));
  EXPECT_THAT(error([](M m) { m->mutable_weights(0)->set_bytes(8); }), HasSubstr("do not agree"));
  EXPECT_THAT(error([](M m) { m->mutable_weights(0)->set_dtype("f31"); }), HasSubstr("do not agree"));
  EXPECT_THAT(error([](M m) { m->mutable_weights(0)->set_shape(0, -3); }), HasSubstr("do not agree"));
  EXPECT_THAT(error([](M m) {
                for (int i = 0; i < 4; ++i) m->mutable_weights(0)->add_shape(int64_t{1} << 33);
              }),
              HasSubstr("do not agree"));
  EXPECT_THAT(error([](M m) { m->mutable_weights(1)->set_name("@w"); }), HasSubstr("listed twice"));
  EXPECT_THAT(error([](M m) { m->mutable_weights(0)->set_external(true); }), HasSubstr("not listed as external"));
  for (const char* path : {"../x", "/etc/hostname", "a/../../x"}) {
    EXPECT_THAT(error([&](M m) { add_file(m, path); }), HasSubstr("does not stay in the plan's folder"));
  }
  EXPECT_THAT(error([&](M m) { add_file(m, "none"); }), HasSubstr("must lie beside the plan"));
  EXPECT_THAT(error([&](M m) {
                add_file(m, "none");
                m->mutable_files(0)->clear_pieces_sha256();
              }),
              HasSubstr("no SHA-256"));
  EXPECT_THAT(error([&](M m) {
                add_file(m, "none");
                m->mutable_files(0)->set_sha256(std::string(32, 'x'));
              }),
              HasSubstr("no SHA-256"));
  EXPECT_THAT(error([](M m) { m->mutable_language_model()->mutable_pools(0)->set_page_size(0); }),
              HasSubstr("out of range"));
  EXPECT_THAT(error([](M m) { m->mutable_language_model()->mutable_pools(0)->set_page_size(64); }),
              HasSubstr("the state @kv0 has other pages than its pool N"));
  EXPECT_THAT(error([](M m) {
                plan::LanguageModel::Pool* pool = m->mutable_language_model()->add_pools();
                pool->set_dim("M");
                pool->set_page_size(48);
              }),
              HasSubstr("pages of 48 tokens of the pool M are out of range, or no power of two beside others"));
  EXPECT_EQ(error([](M m) {
              plan::LanguageModel::Pool* pool = m->mutable_language_model()->add_pools();
              pool->set_dim("M");
              pool->set_page_size(64);
            }),
            "")
      << "as none of its states lies there";
  EXPECT_THAT(error([](M m) {
                plan::LanguageModel::Pool* pool = m->mutable_language_model()->add_pools();
                pool->set_dim("M");
                pool->set_page_size(64);
                *m->add_states() = m->states(0);
                m->mutable_states(1)->set_name("@kv1");
                m->mutable_states(1)->set_pool("M");
              }),
              HasSubstr("the state @kv1 has other pages than its pool M"));
  EXPECT_THAT(error([](M m) { m->mutable_language_model()->clear_pools(); }), HasSubstr("out of range"));
  EXPECT_THAT(error([](M m) { m->mutable_language_model()->add_pools()->set_window(-1); }), HasSubstr("out of range"));
  EXPECT_THAT(error([](M m) { m->mutable_language_model()->add_kv_states("@kv1"); }), HasSubstr("no state"));
  EXPECT_THAT(error([](M m) { m->mutable_language_model()->set_eos_ids(0, 100); }), HasSubstr("vocabulary"));
  EXPECT_THAT(error([](M m) { m->mutable_entry_points(0)->mutable_inputs(0)->set_role("tokens"); }),
              HasSubstr("'tokens' is no role of an input"));
  EXPECT_THAT(error([](M m) { m->mutable_entry_points(0)->mutable_inputs(0)->set_role("token_ids"); }),
              HasSubstr("must be of i32"));
  EXPECT_THAT(error([](M m) { m->mutable_programs(0)->set_arena_bytes(1); }), HasSubstr("outside the arena"));
  EXPECT_THAT(error([](M m) { m->mutable_programs(0)->mutable_buffers(0)->set_last_task(99); }),
              HasSubstr("outside the tasks"));
}

// Keys of 16 * 4 floats, then values of 16 * 2.
TEST_F(PlanTest, StatesThatLieAreRefused) {
  using S = plan::State*;
  const auto error = [&](const std::function<void(S)>& change) {
    return std::string(
        LoadBytes(WithManifest([&](plan::Manifest* m) { change(m->mutable_states(0)); })).status().message());
  };
  EXPECT_EQ(error([](S) {}), "");
  EXPECT_THAT(error([](S s) { s->set_page_size(0); }),
              HasSubstr("state @kv0 has pages of a size that is out of range"));
  EXPECT_THAT(error([](S s) { s->set_page_size(4097); }), HasSubstr("out of range"));
  EXPECT_THAT(error([](S s) { s->set_kind(plan::State::PER_SEQUENCE); }), HasSubstr("out of range"));
  EXPECT_THAT(error([](S s) { s->set_kind(static_cast<plan::State::Kind>(7)); }),
              HasSubstr("of no kind that there is"));
  for (const std::function<void(S)>& change : std::initializer_list<std::function<void(S)>>{
           [](S s) { s->set_pool("N +"); }, [](S s) { s->clear_components(); }, [](S s) { s->set_record_bytes(393); },
           [](S s) { s->set_record_bytes(uint64_t{1} << 41); }}) {
    EXPECT_THAT(error(change), HasSubstr("state @kv0 has no valid type"));
  }
  EXPECT_THAT(error([](S s) { s->mutable_components(1)->set_name("k"); }),
              HasSubstr("component k of state @kv0 is listed"));
  for (const std::function<void(S)>& change : std::initializer_list<std::function<void(S)>>{
           [](S s) { s->mutable_components(1)->set_bytes(4); }, [](S s) { s->mutable_components(1)->set_dtype("f9"); },
           [](S s) { s->mutable_components(1)->set_shape(0, -1); },
           [](S s) { s->mutable_components(1)->set_shape(0, int64_t{1} << 62); },
           [](S s) { s->mutable_components(1)->set_shape(0, 0); }}) {
    EXPECT_THAT(error(change), HasSubstr("component v of state @kv0 has a type and a size that do not agree"));
  }
  for (const uint64_t offset : {uint64_t{0}, uint64_t{240}, uint64_t{264}, uint64_t{272}, ~uint64_t{0} - 15}) {
    EXPECT_THAT(error([&](S s) { s->mutable_components(1)->set_offset(offset); }),
                HasSubstr("component v of state @kv0 has no place of its own"));
  }
}

TEST_F(PlanTest, TextAndManifestMustAgree) {
  const auto error = [&](const std::function<void(plan::Manifest*)>& change) {
    auto plan = LoadBytes(WithManifest(change));
    EXPECT_TRUE(plan.ok()) << plan.status();
    return std::string(ModelFromPlan(**plan).status().message());
  };
  EXPECT_THAT(error([](plan::Manifest* m) { m->mutable_weights(0)->set_name("@other"); }),
              HasSubstr("weight @w of its text is not in its manifest"));
  EXPECT_THAT(error([](plan::Manifest* m) { m->mutable_weights(0)->set_dtype("i32"); }),
              HasSubstr("weight @w is f32[3] in its text, i32[3] in its manifest"));
}

TEST_F(PlanTest, LayoutsThatLieAreRefused) {
  const auto error = [&](const std::function<void(std::vector<PlanPart>*)>& change) {
    std::vector<PlanPart> parts = Parts();
    change(&parts);
    return std::string(LoadBytes(Assemble(parts)).status().message());
  };
  EXPECT_THAT(error([](auto* parts) { (*parts)[1] = (*parts)[0]; }), HasSubstr("repeated"));
  EXPECT_THAT(error([](auto* parts) { std::swap((*parts)[1], (*parts)[2]); }), HasSubstr("out of order"));
  EXPECT_THAT(error([](auto* parts) { parts->erase(parts->begin()); }), HasSubstr("no manifest"));
  EXPECT_THAT(error([](auto* parts) { parts->erase(parts->begin() + 1); }), HasSubstr("no ir text"));
  EXPECT_THAT(error([](auto* parts) { parts->back().kind = 99; }), HasSubstr("unknown kind"));
  EXPECT_THAT(error([](auto* parts) { parts->pop_back(); }), HasSubstr("but there are 0"));  // no weights
  const size_t entry = plan::kHeaderBytes + plan::kEntryBytes;                               // of the second section
  for (uint64_t offset : {uint64_t{0}, uint64_t{4096}, Get<uint64_t>(bytes_, entry + 8) + 1, UINT64_MAX - 1}) {
    std::string bytes = bytes_;
    Put(&bytes, entry + 8, offset);
    FixHeader(&bytes);
    EXPECT_THAT(LoadBytes(bytes).status().message(), HasSubstr("does not fit")) << offset;
  }
  for (uint64_t size : {uint64_t{0}, uint64_t{1} << 40, UINT64_MAX}) {
    std::string bytes = bytes_;
    Put(&bytes, entry + 16, size);
    FixHeader(&bytes);
    EXPECT_THAT(LoadBytes(bytes).status().message(), HasSubstr("does not fit")) << size;
  }
  std::string more = bytes_ + std::string(4096, '\0');
  EXPECT_THAT(LoadBytes(more).status().message(), HasSubstr("but should have"));
  Put(&more, 16, static_cast<uint64_t>(more.size()));
  FixHeader(&more);
  EXPECT_THAT(LoadBytes(more).status().message(), HasSubstr("after the last section"));
  std::string version = bytes_;
  Put(&version, 8, plan::kVersion + 1);
  EXPECT_THAT(LoadBytes(version).status().message(), HasSubstr(absl::StrCat("format version ", plan::kVersion + 1)));
}

TEST_F(PlanTest, RandomManifestsWithMatchingChecksumsDoNoHarm) {
  std::mt19937 rng(1);
  const std::vector<PlanPart> parts = Parts();
  int loaded = 0;
  for (int i = 0; i < 1500; ++i) {
    std::vector<PlanPart> altered = parts;
    std::string& manifest = altered[i % 3 == 0 ? 1 : 0].contents;  // the text too
    for (uint32_t n = 1 + rng() % 3; n > 0; --n) manifest[rng() % manifest.size()] = static_cast<char>(rng());
    auto plan = LoadBytes(Assemble(altered));
    if (!plan.ok()) continue;
    auto model = ModelFromPlan(**plan);
    if (!model.ok()) continue;
    ++loaded;
    for (const auto& [name, tensor] : (*model)->data) (void)tensor.ToDoubles();
  }
  EXPECT_GT(loaded, 0);
}

TEST_F(PlanTest, OtherFilesAreRefused) {
  EXPECT_EQ(Plan::Load((folder_ / "none").string()).status().code(), absl::StatusCode::kNotFound);
  EXPECT_THAT(LoadBytes("").status().message(), HasSubstr("is not a plan"));
  EXPECT_THAT(LoadBytes("PK something else that is a little longer than the header of a plan is, and no plan")
                  .status()
                  .message(),
              HasSubstr("is not a plan"));
  EXPECT_THAT(Plan::Load(folder_.string()).status().message(), HasSubstr("not a regular file"));
  const std::string fifo = (folder_ / "fifo").string();
  ASSERT_EQ(mkfifo(fifo.c_str(), 0600), 0);
  EXPECT_THAT(Plan::Load(fifo).status().message(), HasSubstr("not a regular file"));
  EXPECT_FALSE(Plan::IsPlan(fifo));
}

}  // namespace
}  // namespace llmc
