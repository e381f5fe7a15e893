// Targets, included headers, the cache, and compilation through it.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <chrono>
#include <filesystem>
#include <fstream>
#include <set>
#include <vector>

#include "absl/strings/str_cat.h"
#include "cubins/compile.h"
#include "cubins/cubin_cache.h"
#include "cubins/kernel_resources.h"
#include "cubins/nvrtc.h"
#include "cubins/targets.h"
#include "files/file_writer.h"
#include "files/mapped_file.h"

namespace llmc {
namespace {

namespace fs = std::filesystem;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

TEST(Targets, AreGivenOneByOneOrAsLists) {
  EXPECT_THAT(NamesOf(*ParseTargets({"sm_80,sm_90a", "sm_120", "sm_80"})), ElementsAre("sm_80", "sm_90a", "sm_120"));
  for (const std::string wrong : {"sm_90", "sm_70", "", "sm_80,", "h100"}) {
    const absl::Status status = ParseTargets({wrong}).status();
    EXPECT_THAT(std::string(status.message()), HasSubstr("is no target; there are sm_80 (A100")) << wrong;
  }
}

TEST(Targets, RunOnTheirGpus) {
  EXPECT_TRUE(RunsOn("sm_80", 86));
  EXPECT_FALSE(RunsOn("sm_86", 80));
  EXPECT_FALSE(RunsOn("sm_89", 90));
  EXPECT_TRUE(RunsOn("sm_90a", 90));
  EXPECT_FALSE(RunsOn("sm_100a", 103));
  EXPECT_TRUE(RunsOn("sm_120", 121));
  EXPECT_FALSE(RunsOn("compute_90", 90));
  EXPECT_EQ(TargetFor(81)->name, "sm_80");
  EXPECT_EQ(TargetFor(90)->name, "sm_90a");
  EXPECT_EQ(TargetFor(110)->name, "sm_110") << "for NVRTC to know or not";
  EXPECT_FALSE(TargetFor(110)->bulk_copies) << "what every GPU has";
  EXPECT_THAT(std::string(TargetFor(75).status().message()), HasSubstr("8.0 or later, and this one has 7.5"));
}

// Rows are read by names and by what their GPUs have; a row that is wrong shows here.
TEST(Targets, HaveNumbersThatGoTogether) {
  int before = 0;
  for (const Target& target : Targets()) {
    SCOPED_TRACE(target.name);
    EXPECT_GT(target.capability, before) << "by rising capability";
    before = target.capability;
    EXPECT_EQ(CapabilityOf(target.name), target.capability);
    EXPECT_EQ(TargetFor(target.capability)->name, target.name);
    EXPECT_LE(target.shared_bytes + kBlockSharedBytes, target.sm_shared_bytes);
    EXPECT_GT(target.sms, 0);
    EXPECT_GT(target.l2_bytes, 0);
    EXPECT_GT(target.bandwidth, 1e11);
    EXPECT_GE(target.flops_8bit, target.flops_f16);
    EXPECT_GT(target.flops_f16, target.bandwidth);
    EXPECT_FALSE(target.gpus.empty());
    EXPECT_TRUE(RunsProgramsOf(target, target));
  }
}

TEST(Targets, RunProgramsOfOthersThatNeedNoMore) {
  const auto runs = [](absl::string_view gpu, absl::string_view target) {
    return RunsProgramsOf(*FindTarget(gpu), *FindTarget(target));
  };
  EXPECT_TRUE(runs("sm_90a", "sm_80"));
  EXPECT_TRUE(runs("sm_100a", "sm_90a"));
  EXPECT_FALSE(runs("sm_80", "sm_90a"));
  EXPECT_FALSE(runs("sm_120", "sm_90a")) << "a block has less shared memory";
}

TEST(IncludedFiles, AreFoundThroughOthers) {
  const SourceFile headers[] = {
      {"k/a.cuh", "#include \"k/b.cuh\"\n"}, {"k/b.cuh", "#include \"k/a.cuh\"\n"}, {"k/c.cuh", ""}};
  const auto names = [&](absl::string_view source) {
    std::vector<std::string> names;
    for (const SourceFile& file : IncludedFiles(source, headers)) names.emplace_back(file.name);
    return names;
  };
  EXPECT_THAT(names("// #include\n  # include \"k/b.cuh\"\nint x;"), ElementsAre("k/a.cuh", "k/b.cuh"));
  EXPECT_THAT(names("#include \"k/c.cuh\""), ElementsAre("k/c.cuh"));
  EXPECT_THAT(names("#include <k/c.cuh>\n#include \"k/none.cuh\""), ElementsAre());
}

class CubinCacheTest : public ::testing::Test {
 protected:
  CubinCacheTest() : folder_(fs::path(testing::TempDir()) / absl::StrCat("cubins_", getpid())) {}
  ~CubinCacheTest() override { fs::remove_all(folder_); }
  std::vector<fs::path> Files() const {
    std::vector<fs::path> files;
    std::error_code error;
    for (fs::directory_iterator it(folder_, error), end; !error && it != end; it.increment(error)) {
      files.push_back(it->path());
    }
    return files;
  }
  static void Flip(const fs::path& path, size_t at) {
    std::string bytes(MapFile(path)->view());
    bytes.at(at) ^= 1;
    ASSERT_TRUE(WriteWholeFile(path, bytes).ok());
  }

  fs::path folder_;
};

TEST_F(CubinCacheTest, GivesBackWhatWasStoredUnlessItIsDamaged) {
  const CubinCache cache((folder_ / "deep").string());
  folder_ /= "deep";
  const Digest one = HashBytes("1"), two = HashBytes("2");
  EXPECT_FALSE(cache.Find(one).has_value());
  cache.Store(one, "the code");
  cache.Store(two, "");
  EXPECT_EQ(cache.Find(one), "the code");
  EXPECT_EQ(cache.Find(two), "");
  const fs::path file = Files()[fs::file_size(Files()[0]) < fs::file_size(Files()[1]) ? 1 : 0];
  for (size_t at = 0; at < fs::file_size(file); ++at) {
    Flip(file, at);
    EXPECT_FALSE(cache.Find(one).has_value()) << at;
    Flip(file, at);
  }
  fs::resize_file(file, 20);
  EXPECT_FALSE(cache.Find(one).has_value());
  cache.Store(one, "the code");
  EXPECT_EQ(cache.Find(one), "the code");
  EXPECT_EQ(Files().size(), 2u) << "and no temporary file";
  folder_ = folder_.parent_path();
}

// What anybody else could have written is not run.
TEST_F(CubinCacheTest, ReadsOnlyWhatIsOurs) {
  const CubinCache cache(folder_.string());
  const Digest key = HashBytes("1");
  cache.Store(key, "the code");
  EXPECT_EQ(fs::status(folder_).permissions(), fs::perms::owner_all);
  const fs::path file = Files().at(0), moved = folder_ / "moved";
  EXPECT_EQ(static_cast<unsigned>(fs::status(file).permissions()), 0600u);
  for (const fs::perms others : {fs::perms::group_write, fs::perms::others_write}) {
    for (const fs::path& path : {folder_, file}) {
      fs::permissions(path, others, fs::perm_options::add);
      EXPECT_FALSE(cache.Find(key).has_value()) << path;
      fs::permissions(path, others, fs::perm_options::remove);
      EXPECT_TRUE(cache.Find(key).has_value()) << path;
    }
  }
  fs::rename(file, moved);
  fs::create_symlink(moved, file);
  EXPECT_FALSE(cache.Find(key).has_value()) << "a link";
  cache.Store(key, "the code");
  EXPECT_EQ(cache.Find(key), "the code");
  fs::permissions(folder_, fs::perms::others_write, fs::perm_options::add);
  cache.Store(HashBytes("2"), "the code");
  EXPECT_EQ(Files().size(), 2u) << "nothing is stored where others may write";
}

TEST_F(CubinCacheTest, IsNoneWithoutAFolder) {
  for (const std::string folder : {"", "/proc/none", "/dev/null"}) {
    const CubinCache cache(folder);
    cache.Store(HashBytes("1"), "the code");
    EXPECT_FALSE(cache.Find(HashBytes("1")).has_value());
    cache.Trim();
  }
}

TEST_F(CubinCacheTest, DropsWhatWasNotUsedForTheLongestTime) {
  const CubinCache cache(folder_.string(), 3000);
  const auto key = [](int i) { return HashBytes(absl::StrCat(i)); };
  for (int i = 0; i < 3; ++i) {
    cache.Store(key(i), std::string(1000, 'x'));
    for (const fs::path& file : Files()) {
      fs::last_write_time(file, fs::last_write_time(file) - std::chrono::hours(1));
    }
  }
  EXPECT_TRUE(cache.Find(key(0)).has_value());
  cache.Trim();
  EXPECT_TRUE(cache.Find(key(0)).has_value()) << "used a moment ago";
  EXPECT_FALSE(cache.Find(key(1)).has_value());
  EXPECT_TRUE(cache.Find(key(2)).has_value());
}

constexpr SourceFile kHeaders[] = {{"k/one.cuh", "#define VALUE 1\n"}, {"k/other.cuh", "#define OTHER 1\n"}};
constexpr char kSource[] = "#include \"k/one.cuh\"\nextern \"C\" __global__ void k(int* out) { *out = VALUE; }\n";

TEST_F(CubinCacheTest, GivesTheBytesOfTheCompiler) {
  if (!NvrtcVersion().ok()) GTEST_SKIP() << NvrtcVersion().status();
  const KernelSource kernels[] = {{"k", kSource, "sm_90a"}, {"k", kSource, "sm_80"}};
  const auto compile = [&](absl::Span<const SourceFile> headers, const std::string& folder) {
    const auto cubins = CompileKernels(kernels, headers, {.cache_folder = folder});
    EXPECT_TRUE(cubins.ok()) << cubins.status();
    return cubins.value_or(std::vector<std::string>());
  };
  const std::vector<std::string> cubins = compile(kHeaders, "");
  ASSERT_EQ(cubins.size(), 2u);
  EXPECT_NE(cubins[0], cubins[1]);
  EXPECT_EQ(compile(kHeaders, folder_.string()), cubins) << "stored";
  EXPECT_EQ(Files().size(), 2u);
  EXPECT_EQ(compile(kHeaders, folder_.string()), cubins) << "found";
  for (const fs::path& file : Files()) Flip(file, 100);
  EXPECT_EQ(compile(kHeaders, folder_.string()), cubins) << "damaged";
  EXPECT_EQ(compile(kHeaders, folder_.string()), cubins) << "stored again";
  EXPECT_EQ(Files().size(), 2u);
  const SourceFile headers[] = {kHeaders[0], {"k/other.cuh", "#define OTHER 2\n"}};
  compile(headers, folder_.string());
  EXPECT_EQ(Files().size(), 2u) << "no kernel includes what changed";
  const SourceFile changed[] = {{"k/one.cuh", "#define VALUE 2\n"}, kHeaders[1]};
  EXPECT_NE(compile(changed, folder_.string()), cubins);
  EXPECT_EQ(Files().size(), 4u);
}

// The second comment ends in a backslash: it goes on in the next line, which no compiler sees then.
constexpr char kHonest[] =
    "extern \"C\" __global__ void k(int* out, int i, int n) {\n  // in bounds\n  if (i >= n) return;\n  out[i] = "
    "1;\n}\n";
constexpr char kHostile[] =
    "extern \"C\" __global__ void k(int* out, int i, int n) {\n  // in bounds \\\n  if (i >= n) return;\n  out[i] = "
    "1;\n}\n";

TEST(CubinKey, IsOfEachByteThatIsCompiled) {
  const auto key = [](absl::string_view text, absl::Span<const SourceFile> headers, absl::string_view entry = "k") {
    return CubinKey({std::string(entry), text, "sm_80"}, headers, "13.0", false);
  };
  const std::vector<Digest> keys = {
      key(kHonest, {}),
      key(kHostile, {}),
      key(absl::StrCat(kHonest, "// more\n"), {}),
      key(absl::StrCat(kHonest, "\n"), {}),
      key(kHonest, {}, "l"),
      key(kHonest, {{"a", "b"}}),
      key(kHonest, {{"ab", ""}}),
      key(kHonest, {{"a", ""}, {"b", ""}}),
      key(kHonest, {{"b", ""}, {"a", ""}}),
      key(kHonest, {{"a", "// in bounds"}}),
      key(kHonest, {{"a", "// in bounds \\"}}),
      CubinKey({"k", kHonest, "sm_86"}, {}, "13.0", false),
      CubinKey({"k", kHonest, "sm_80"}, {}, "13.1", false),
      CubinKey({"k", kHonest, "sm_80"}, {}, "13.0", true),
  };
  EXPECT_EQ(std::set<Digest>(keys.begin(), keys.end()).size(), keys.size());
  EXPECT_EQ(key(kHonest, {}), keys[0]);
}

TEST_F(CubinCacheTest, IsNotPoisonedByComments) {
  if (!NvrtcVersion().ok()) GTEST_SKIP() << NvrtcVersion().status();
  const auto compile = [&](absl::string_view text, const std::string& folder) {
    const KernelSource kernels[] = {{"k", text, "sm_80"}};
    const auto cubins = CompileKernels(kernels, {}, {.cache_folder = folder});
    EXPECT_TRUE(cubins.ok()) << cubins.status();
    return cubins.value_or(std::vector<std::string>());
  };
  const auto hostile = compile(kHostile, folder_.string()), honest = compile(kHonest, folder_.string());
  EXPECT_NE(hostile, honest) << "the bounds check is gone";
  EXPECT_EQ(honest, compile(kHonest, "")) << "as without a cache";
}

// A kernel that keeps an array in local memory, one in shared memory, and one that does not.
constexpr char kTwoKernels[] = R"(
extern "C" __global__ void plain(int* out) { out[threadIdx.x] = 1; }
extern "C" __global__ void array(const int* in, int* out) {
  __shared__ int shared[32];
  int values[16];
  for (int i = 0; i < 16; ++i) values[in[i] & 15] = in[i + 16];
  shared[threadIdx.x & 31] = values[threadIdx.x & 15];
  __syncthreads();
  out[threadIdx.x] = shared[(threadIdx.x + 1) & 31];
}
)";

TEST(KernelResources, AreReadFromTheCode) {
  if (!NvrtcVersion().ok()) GTEST_SKIP() << NvrtcVersion().status();
  for (const char* target : {"sm_80", "sm_90a", "sm_120"}) {
    SCOPED_TRACE(target);
    const auto cubin = CompileToCubin(kTwoKernels, "two.cu", target, {});
    ASSERT_TRUE(cubin.ok()) << cubin.status();
    const auto found = ResourcesOf(*cubin);
    ASSERT_TRUE(found.ok()) << found.status();
    ASSERT_EQ(found->size(), 2u);
    const KernelResources& plain = (*found)[found->at(0).entry == "plain" ? 0 : 1];
    const KernelResources& array = (*found)[found->at(0).entry == "plain" ? 1 : 0];
    EXPECT_EQ(plain.entry, "plain");
    EXPECT_EQ(array.entry, "array");
    EXPECT_EQ(plain.stack_bytes, 0);
    EXPECT_EQ(plain.shared_bytes, 0);
    EXPECT_EQ(array.stack_bytes, 64);
    EXPECT_EQ(array.shared_bytes, target == std::string("sm_80") ? 128 : 1024 + 128);
    EXPECT_GT(plain.registers, 3);
    EXPECT_GT(array.registers, plain.registers);
    EXPECT_GT(array.code_bytes, plain.code_bytes);
    EXPECT_EQ(plain.code_bytes % 128, 0);
  }
}

TEST(KernelResources, OfDamagedCodeAreAnErrorOrNumbers) {
  if (!NvrtcVersion().ok()) GTEST_SKIP() << NvrtcVersion().status();
  const auto cubin = CompileToCubin(kTwoKernels, "two.cu", "sm_90a", {});
  ASSERT_TRUE(cubin.ok()) << cubin.status();
  EXPECT_THAT(std::string(ResourcesOf("").status().message()), HasSubstr("this is no cubin"));
  EXPECT_FALSE(ResourcesOf("\x7f"
                           "ELF")
                   .ok());
  // Copies of their own size, so that the sanitizer sees what is read behind them.
  for (size_t size = 0; size < cubin->size() / 2; size += 7) {
    const std::vector<char> cut(cubin->begin(), cubin->begin() + static_cast<std::ptrdiff_t>(size));
    EXPECT_FALSE(ResourcesOf({cut.data(), cut.size()}).ok()) << size;
  }
  for (size_t at = 0; at < cubin->size(); ++at) {
    std::vector<char> changed(cubin->begin(), cubin->end());
    changed[at] = static_cast<char>(~changed[at]);
    (void)ResourcesOf({changed.data(), changed.size()});
  }
}

TEST(CompileOrder, BeginsWithWhatTakesLongest) {
  const auto of = [](const std::string& entry) { return KernelSource{entry, "", "sm_90a"}; };
  EXPECT_THAT(CompileOrder({of("k0_gemv"), of("k1_sample"), of("k2_persistent_run"), of("k3_gemv"),
                            of("k4_prompt_gemm"), of("k5_prompt_gemm"), of("k6_rope")}),
              ElementsAre(2, 5, 4, 1, 6, 3, 0));
  EXPECT_THAT(CompileOrder({}), ElementsAre());
}

TEST(CompileToCubin, SaysWhenItBegins) {
  if (!NvrtcVersion().ok()) GTEST_SKIP() << NvrtcVersion().status();
  int begun = 0;
  const auto begin = [&] { ++begun; };
  EXPECT_TRUE(CompileToCubin(kTwoKernels, "two.cu", "sm_90a", {}, {.on_begin = begin}).ok());
  EXPECT_EQ(begun, 1);
  EXPECT_FALSE(CompileToCubin("nonsense", "wrong.cu", "sm_90a", {}, {.on_begin = begin}).ok());
  EXPECT_EQ(begun, 2);
  EXPECT_FALSE(CompileToCubin(std::string("\0", 1), "zero.cu", "sm_90a", {}, {.on_begin = begin}).ok());
  EXPECT_EQ(begun, 2);
}

TEST_F(CubinCacheTest, ReportsProgressAndTheFirstError) {
  if (!NvrtcVersion().ok()) GTEST_SKIP() << NvrtcVersion().status();
  const KernelSource kernels[] = {
      {"k", kSource, "sm_90a"}, {"wrong", "nonsense", "sm_90a"}, {"worse", "more nonsense", "sm_90a"}};
  std::vector<int64_t> done;
  const absl::Status status =
      CompileKernels(kernels, kHeaders, {.on_kernel = [&](int64_t n, int64_t) { done.push_back(n); }}).status();
  EXPECT_THAT(std::string(status.message()), HasSubstr("NVRTC cannot compile wrong.cu for sm_90a"));
  EXPECT_THAT(done, ElementsAre(1, 2, 3));
}

}  // namespace
}  // namespace llmc
