#include "frontend/formats/safetensors.h"

#include <gtest/gtest.h>
#include <sys/stat.h>

#include <cmath>
#include <limits>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "tests/frontend/test_folder.h"

namespace llmc {
namespace {

constexpr char kOne[] = R"({"t":{"dtype":"I32","shape":[2,2],"data_offsets":[0,16]}})";

absl::StatusOr<NamedTensors> Read(absl::string_view bytes) {
  TestFolder folder;
  return ReadSafetensors(folder.Write("t.safetensors", bytes));
}

std::string Zeros(size_t n) { return std::string(n, '\0'); }

struct Attack {
  const char* name;
  std::string bytes;
  const char* says;
};

// Over 60 lines: a table.
std::vector<Attack> Attacks() {
  using std::string;
  const auto file = [](absl::string_view header, size_t data) { return SafetensorsBytes(header, Zeros(data)); };
  return {
      {"empty file", "", "too short"},
      {"seven bytes", Zeros(7), "too short"},
      {"length only, zero", Zeros(8), "must begin with '{'"},
      {"length only", string("<\0\0\0\0\0\0\0", 8), "the file ends after 0"},
      {"huge length", string("<\0\0\0\0\xff\xff\xff", 8), "the format allows 100000000"},
      {"header over the limit", string("\x01\xe1\xf5\x05\0\0\0\0{}", 10), "the format allows 100000000"},
      {"not UTF-8", string("\x01\0\0\0\0\0\0\0\xff", 9), "must begin with '{'"},
      {"not UTF-8 inside", file("{\"\xff\":{}}", 0), "not JSON"},
      {"open brace only", file("{", 0), "not JSON"},
      {"not an object", file("[]", 0), "must begin with '{'"},
      {"byte order mark", file("\xef\xbb\xbf{}", 0), "must begin with '{'"},
      {"two objects", file("{}{}", 0), "not JSON"},
      {"NUL padding", file(string("{}\0\0", 4), 0), "NUL"},
      {"offsets past the end", file(R"({"t":{"dtype":"U8","shape":[4],"data_offsets":[0,4]}})", 3), "not within"},
      {"offsets past 2^63", file(R"({"t":{"dtype":"U8","shape":[4],"data_offsets":[0,18446744073709551615]}})", 4),
       "not within"},
      {"two bytes missing", file(kOne, 14), "not within"},
      {"bytes after the end", file(kOne, 18), "2 bytes at the end belong to no tensor"},
      {"bytes but no tensor", file("{}", 1), "1 bytes at the end"},
      {"reversed offsets", file(R"({"t":{"dtype":"U8","shape":[4],"data_offsets":[4,0]}})", 4), "not within"},
      {"overlap",
       file(
           R"({"a":{"dtype":"U8","shape":[3],"data_offsets":[0,3]},"b":{"dtype":"U8","shape":[2],"data_offsets":[2,4]}})",
           4),
       "overlap"},
      {"the same bytes twice",
       file(
           R"({"a":{"dtype":"U8","shape":[4],"data_offsets":[0,4]},"b":{"dtype":"U8","shape":[4],"data_offsets":[0,4]}})",
           4),
       "overlap"},
      {"hole",
       file(
           R"({"a":{"dtype":"U8","shape":[1],"data_offsets":[0,1]},"b":{"dtype":"U8","shape":[2],"data_offsets":[2,4]}})",
           4),
       "belong to no tensor"},
      {"hole at the start", file(R"({"a":{"dtype":"U8","shape":[1],"data_offsets":[1,2]}})", 2), "belong to no tensor"},
      {"size is not the shape's", file(R"({"t":{"dtype":"I32","shape":[2,3],"data_offsets":[0,16]}})", 16),
       "needs 24 bytes"},
      {"shape 2 x 2^64-2", file(R"({"t":{"dtype":"I32","shape":[2,18446744073709551614],"data_offsets":[0,16]}})", 16),
       "too large"},
      {"shape 2 x 2^63-1", file(R"({"t":{"dtype":"I32","shape":[2,9223372036854775807],"data_offsets":[0,16]}})", 16),
       "\"t\""},
      {"2^62 elements of 4 bytes",
       file(R"({"t":{"dtype":"I32","shape":[4611686018427387904],"data_offsets":[0,0]}})", 0), "\"t\""},
      {"dim over 2^64", file(R"({"t":{"dtype":"I32","shape":[99999999999999999999],"data_offsets":[0,16]}})", 16),
       "unexpected the number"},
      {"duplicate tensor",
       file(
           R"({"t":{"dtype":"U8","shape":[0],"data_offsets":[0,0]},"t":{"dtype":"U8","shape":[0],"data_offsets":[0,0]}})",
           0),
       "duplicate name"},
      {"duplicate through an escape",
       file(
           R"({"t":{"dtype":"U8","shape":[0],"data_offsets":[0,0]},"\u0074":{"dtype":"U8","shape":[0],"data_offsets":[0,0]}})",
           0),
       "duplicate name"},
      {"duplicate key", file(R"({"t":{"dtype":"U8","dtype":"U8","shape":[0],"data_offsets":[0,0]}})", 0),
       "duplicate key"},
      {"negative offset", file(R"({"t":{"dtype":"U8","shape":[0],"data_offsets":[-1,0]}})", 0), "negative"},
      {"negative dim", file(R"({"t":{"dtype":"U8","shape":[-1],"data_offsets":[0,0]}})", 0), "negative"},
      {"float offset", file(R"({"t":{"dtype":"U8","shape":[0],"data_offsets":[0.0,0]}})", 0), "the number 0.0"},
      {"string offset", file(R"({"t":{"dtype":"U8","shape":[0],"data_offsets":["0",0]}})", 0), "a string"},
      {"one offset", file(R"({"t":{"dtype":"U8","shape":[0],"data_offsets":[0]}})", 0), "must be two numbers"},
      {"three offsets", file(R"({"t":{"dtype":"U8","shape":[0],"data_offsets":[0,0,0]}})", 0), "must be two numbers"},
      {"number for dtype", file(R"({"t":{"dtype":3,"shape":[0],"data_offsets":[0,0]}})", 0), "a number"},
      {"unknown dtype", file(R"({"t":{"dtype":"Q7","shape":[0],"data_offsets":[0,0]}})", 0), "unknown dtype \"Q7\""},
      {"dtype that we lack", file(R"({"t":{"dtype":"U64","shape":[0],"data_offsets":[0,0]}})", 0),
       "U64 is not supported"},
      {"no dtype", file(R"({"t":{"shape":[0],"data_offsets":[0,0]}})", 0), "\"dtype\" is missing"},
      {"no shape", file(R"({"t":{"dtype":"U8","data_offsets":[0,0]}})", 0), "\"shape\" is missing"},
      {"no offsets", file(R"({"t":{"dtype":"U8","shape":[0]}})", 0), "data_offsets"},
      {"unknown key", file(R"({"t":{"dtype":"U8","shape":[0],"data_offsets":[0,0],"x":1}})", 0), "unknown key \"x\""},
      {"tensor is a number", file(R"({"t":1})", 0), "unexpected a number"},
      {"nested shape", file(R"({"t":{"dtype":"U8","shape":[[0]],"data_offsets":[0,0]}})", 0), "an array"},
      {"rank 65",
       file(absl::StrCat(R"({"t":{"dtype":"U8","data_offsets":[0,0],"shape":[0)",
                         [] {
                           string s;
                           for (int i = 0; i < 64; ++i) s += ",1";
                           return s;
                         }(),
                         "]}}"),
            0),
       "more than 64"},
      {"metadata number", file(R"({"__metadata__":{"a":1}})", 0), "must be strings"},
      {"metadata object", file(R"({"__metadata__":{"a":{}}})", 0), "must be strings"},
      {"metadata list", file(R"({"__metadata__":[]})", 0), "an array"},
      {"deep metadata",
       file(absl::StrCat(R"({"__metadata__":{"a":)", string(100000, '['), string(100000, ']'), "}}"), 0),
       "must be strings"},
      {"deep shape", file(absl::StrCat(R"({"t":{"shape":)", string(100000, '['), string(100000, ']'), "}}"), 0),
       "an array"},
      {"BOOL of 2", SafetensorsBytes(R"({"t":{"dtype":"BOOL","shape":[1],"data_offsets":[0,1]}})", "\x02"),
       "neither 0 nor 1"},
  };
}

TEST(ReadSafetensors, RefusesAttacks) {
  for (const Attack& attack : Attacks()) {
    SCOPED_TRACE(attack.name);
    const absl::Status status = Read(attack.bytes).status();
    EXPECT_TRUE(Says(status, attack.says));
    EXPECT_TRUE(Says(status, "t.safetensors"));
  }
}

TEST(ReadSafetensors, RefusesEveryTruncation) {
  const std::string whole = SafetensorsBytes(kOne, Zeros(16));
  ASSERT_TRUE(Read(whole).ok());
  for (size_t n = 0; n < whole.size(); ++n) EXPECT_FALSE(Read(whole.substr(0, n)).ok()) << n;
}

TEST(ReadSafetensors, ReadsValues) {
  const auto tensors = Read(SafetensorsBytes(kOne, std::string("\1\0\0\0\2\0\0\0\xff\xff\xff\xff\0\1\0\0", 16)));
  ASSERT_TRUE(tensors.ok()) << tensors.status();
  ASSERT_EQ(tensors->size(), 1u);
  EXPECT_EQ(tensors->at("t").shape(), (Shape{2, 2}));
  EXPECT_EQ(tensors->at("t").ToInts(), (std::vector<int64_t>{1, 2, -1, 256}));
}

TEST(ReadSafetensors, AcceptsWhiteSpaceAroundTheHeader) {
  for (const char* header : {"{}\r \t\n", "\t\n{}\r ", " {} "}) {
    const auto tensors = Read(SafetensorsBytes(header));
    ASSERT_TRUE(tensors.ok()) << tensors.status();
    EXPECT_TRUE(tensors->empty());
  }
}

TEST(ReadSafetensors, AcceptsEmptyTensorsScalarsAndNan) {
  const auto tensors = Read(SafetensorsBytes(
      R"({"__metadata__":{"format":"pt"},"empty":{"dtype":"F32","shape":[2,0],"data_offsets":[0,0]},)"
      R"("scalar":{"dtype":"F32","shape":[],"data_offsets":[0,4]},"late":{"dtype":"I8","shape":[0],"data_offsets":[4,4]}})",
      std::string("\0\0\xc0\x7f", 4)));
  ASSERT_TRUE(tensors.ok()) << tensors.status();
  EXPECT_EQ(tensors->at("empty").size(), 0);
  EXPECT_EQ(tensors->at("scalar").rank(), 0);
  EXPECT_TRUE(std::isnan(tensors->at("scalar").GetFloat(0)));
  EXPECT_EQ(tensors->at("late").shape(), Shape{0});
}

TEST(ReadSafetensors, CopiesUnalignedTensors) {
  const auto tensors = Read(SafetensorsBytes(R"({"a":{"dtype":"U8","shape":[1],"data_offsets":[0,1]},)"
                                             R"("b":{"dtype":"F32","shape":[1],"data_offsets":[1,5]}})",
                                             std::string("\7\0\0\x80\x3f", 5)));
  ASSERT_TRUE(tensors.ok()) << tensors.status();
  EXPECT_EQ(reinterpret_cast<uintptr_t>(tensors->at("b").raw()) % 4, 0u);
  EXPECT_EQ(tensors->at("b").GetFloat(0), 1);
}

// As many entries as fit into a header of 100 MB, and as many as one file may have, all of the same bytes.
TEST(ReadSafetensors, ManyEntriesEndQuickly) {
  for (const auto& [count, says] : {std::pair(1'600'000, "more than 262144 tensors"), std::pair(200'000, "overlap")}) {
    std::string header = "{";
    for (int i = 0; i < count; ++i) {
      absl::StrAppend(&header, i == 0 ? "" : ",", "\"", i, R"(":{"dtype":"U8","shape":[1],"data_offsets":[0,1]})");
    }
    header += "}";
    ASSERT_LT(header.size(), 100'000'000u);
    const absl::Time start = absl::Now();
    EXPECT_TRUE(Says(Read(SafetensorsBytes(header, "x")).status(), says));
    EXPECT_LT(absl::Now() - start, absl::Seconds(30));
  }
}

TEST(ReadSafetensors, MetadataIsBounded) {
  std::string header = R"({"__metadata__":{)";
  for (int i = 0; i <= 1 << 16; ++i) absl::StrAppend(&header, i == 0 ? "" : ",", "\"", i, "\":\"\"");
  EXPECT_TRUE(Says(Read(SafetensorsBytes(header + "}}")).status(), "more than 65536 keys"));
}

TEST(ReadSafetensors, RefusesWhatIsNoRegularFile) {
  TestFolder folder;
  EXPECT_TRUE(Says(ReadSafetensors(folder.path()).status(), "a folder"));
  ASSERT_EQ(mkfifo((folder / "fifo").c_str(), 0600), 0);
  EXPECT_TRUE(Says(ReadSafetensors(folder / "fifo").status(), "not a regular file"));
  EXPECT_TRUE(Says(ReadSafetensors("/dev/null").status(), "not a regular file"));
  EXPECT_TRUE(absl::IsNotFound(ReadSafetensors(folder / "absent").status()));
}

TEST(WriteSafetensors, RoundTrips) {
  TestFolder folder;
  NamedTensors tensors;
  tensors["b"] = Tensor::FromValues(DType::kU8, {3}, std::vector<int>{1, 2, 255});
  tensors["a"] = Tensor::FromValues(DType::kBF16, {2, 1}, std::vector<float>{1.5f, -2});
  tensors["scalar"] = Tensor::FromValues(DType::kF64, {}, std::vector<double>{0.1});
  tensors["empty"] = Tensor(DType::kI64, {0, 4});
  tensors["quote\" é"] =
      Tensor::FromValues(DType::kF32, {1}, std::vector<float>{std::numeric_limits<float>::infinity()});
  const std::string path = folder / "out.safetensors";
  ASSERT_TRUE(WriteSafetensors(path, tensors).ok());
  const auto read = ReadSafetensors(path);
  ASSERT_TRUE(read.ok()) << read.status();
  EXPECT_TRUE(*read == tensors);
  int files = 0;
  for ([[maybe_unused]] const auto& f : std::filesystem::directory_iterator(folder.path())) ++files;
  EXPECT_EQ(files, 1) << "the temporary file is left";
}

TEST(WriteSafetensors, ErrorsLeaveNoFile) {
  TestFolder folder;
  EXPECT_TRUE(Says(WriteSafetensors(folder / "x", {{"t", Tensor(DType::kI4, {2})}}), "no type for i4"));
  EXPECT_TRUE(Says(WriteSafetensors(folder / "x", {{"__metadata__", Tensor(DType::kI8, {2})}}), "__metadata__"));
  EXPECT_FALSE(WriteSafetensors(folder / "no/such/folder", {}).ok());
  EXPECT_TRUE(std::filesystem::is_empty(folder.path()));
}

// ---- checkpoints ---------------------------------------------------------------
constexpr char kA[] = R"({"a":{"dtype":"U8","shape":[1],"data_offsets":[0,1]}})";
constexpr char kB[] = R"({"b":{"dtype":"U8","shape":[1],"data_offsets":[0,1]}})";

absl::StatusOr<Checkpoint> ReadSharded(const TestFolder& folder, absl::string_view weight_map) {
  folder.Write("model.safetensors.index.json",
               absl::StrCat(R"({"metadata":{"total_size":2},"weight_map":)", weight_map, "}"));
  return ReadCheckpoint(folder.path());
}

TEST(ReadCheckpoint, ReadsShards) {
  TestFolder folder;
  folder.Write("s1.safetensors", SafetensorsBytes(kA, "\1"));
  folder.Write("s2.safetensors", SafetensorsBytes(kB, "\2"));
  const auto checkpoint = ReadSharded(folder, R"({"a":"s1.safetensors","b":"s2.safetensors"})");
  ASSERT_TRUE(checkpoint.ok()) << checkpoint.status();
  EXPECT_EQ(checkpoint->at("b").file, "s2.safetensors");
  EXPECT_EQ(checkpoint->at("b").tensor.GetInt(0), 2);
}

TEST(ReadCheckpoint, RefusesWrongShards) {
  TestFolder folder;
  folder.Write("s1.safetensors", SafetensorsBytes(kA, "\1"));
  folder.Write("s2.safetensors", SafetensorsBytes(kA, "\1"));
  std::filesystem::create_directory(folder / "dir.safetensors");
  ASSERT_EQ(mkfifo((folder / "fifo.safetensors").c_str(), 0600), 0);
  TestFolder outside;
  outside.Write("out.safetensors", SafetensorsBytes(kA, "\1"));
  std::filesystem::create_symlink(outside / "out.safetensors", folder / "link.safetensors");
  const std::pair<const char*, const char*> cases[] = {
      {R"({"a":"link.safetensors"})", "leads out of the model's folder"},
      {R"({"a":"../x"})", "\"..\""},
      {R"({"a":"sub/../../x"})", "\"..\""},
      {R"({"a":"/etc/passwd"})", "absolute"},
      {R"({"a":""})", "empty"},
      {R"({"a":"."})", "\".\""},
      {R"({"a":"s1.safetensors\u0000"})", "NUL"},
      {R"({"a":"absent.safetensors"})", "absent.safetensors"},
      {R"({"a":"dir.safetensors"})", "a folder"},
      {R"({"a":"fifo.safetensors"})", "not a regular file"},
      {R"({"a":"s1.safetensors","c":"s1.safetensors"})", "missing: \"c\""},
      {R"({"a":"s1.safetensors","b":"s2.safetensors"})", "not in the index: \"a\""},
      {R"({"a":"s1.safetensors","a":"s2.safetensors"})", "duplicate key"},
      {R"({"a":1})", "must be a string"},
      {R"(["a"])", "must be an object"},
  };
  for (const auto& [map, says] : cases) EXPECT_TRUE(Says(ReadSharded(folder, map).status(), says)) << map;
}

TEST(ReadCheckpoint, SaysWhenNothingIsThere) {
  TestFolder folder;
  EXPECT_TRUE(Says(ReadCheckpoint(folder.path()).status(), "neither model.safetensors nor"));
}

}  // namespace
}  // namespace llmc
