#include "files/mapped_file.h"

#include <gtest/gtest.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <fstream>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "files/temporary_folder.h"

namespace llmc {
namespace {

class MappedFileTest : public testing::Test {
 protected:
  void SetUp() override {
    auto folder = TemporaryFolder::Create();
    ASSERT_TRUE(folder.ok()) << folder.status();
    folder_.emplace(*std::move(folder));
    for (size_t i = 0; i < bytes_.size(); ++i) bytes_[i] = static_cast<char>(i * 7 + i / 251);
    std::ofstream(folder_->PathOf("file"), std::ios::binary) << bytes_;
    auto mapped = MapFile(folder_->PathOf("file"), {.keeps_descriptor = true});
    ASSERT_TRUE(mapped.ok()) << mapped.status();
    file_ = *mapped;
  }

  std::optional<TemporaryFolder> folder_;
  std::string bytes_ = std::string(1'000'003, '\0');
  MappedFile file_;
};

TEST_F(MappedFileTest, ThreadsReadPartsSideBySide) {
  std::string read(bytes_.size(), '\0');
  std::vector<std::thread> threads;
  static constexpr size_t kPart = 100'000;
  for (size_t begin = 0; begin < bytes_.size(); begin += kPart) {
    threads.emplace_back([this, begin, &read] {
      const size_t count = std::min(kPart, bytes_.size() - begin);
      const absl::Status status = file_.Read(static_cast<int64_t>(begin), static_cast<int64_t>(count), &read[begin]);
      EXPECT_TRUE(status.ok()) << status;
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(read, bytes_);
}

// Where a page of the map would end the process.
TEST_F(MappedFileTest, AFileThatWasCutIsAnError) {
  ASSERT_EQ(truncate(folder_->PathOf("file").c_str(), 500'000), 0);
  std::string read(bytes_.size(), '\0');
  const absl::Status status = file_.Read(400'000, 200'000, read.data());
  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ(status.message(), "the file ends at byte 500000, but had 1000003 bytes when it was opened");
  EXPECT_TRUE(file_.Read(400'000, 100'000, read.data()).ok());
  EXPECT_EQ(read.substr(0, 100'000), bytes_.substr(400'000, 100'000));
}

TEST_F(MappedFileTest, ReadsWhatWasOpenedWhenTheNameIsGone) {
  ASSERT_EQ(unlink(folder_->PathOf("file").c_str()), 0);
  std::string read(bytes_.size(), '\0');
  const MappedFile copy = file_;
  file_ = MappedFile{};
  ASSERT_TRUE(copy.Read(0, static_cast<int64_t>(read.size()), read.data()).ok());
  EXPECT_EQ(read, bytes_);
}

TEST_F(MappedFileTest, NoDescriptorStaysOpen) {
  const int descriptor = file_.descriptor;
  ASSERT_GE(descriptor, 0);
  EXPECT_EQ(lseek(descriptor, 0, SEEK_CUR), 0);
  file_ = MappedFile{};
  EXPECT_EQ(lseek(descriptor, 0, SEEK_CUR), -1);
}

// Of a model of many files, each of which stays mapped.
TEST_F(MappedFileTest, ManyMapsTakeNoDescriptors) {
  rlimit before;
  ASSERT_EQ(getrlimit(RLIMIT_NOFILE, &before), 0);
  const rlimit few = {.rlim_cur = 64, .rlim_max = before.rlim_max};
  ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &few), 0);
  std::vector<MappedFile> maps;
  absl::Status status;
  for (int i = 0; i < 100 && status.ok(); ++i) {
    auto mapped = MapFile(folder_->PathOf("file"));
    status = mapped.status();
    if (mapped.ok()) maps.push_back(*std::move(mapped));
  }
  ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &before), 0);
  ASSERT_TRUE(status.ok()) << status;
  std::string read(1000, '\0');
  ASSERT_TRUE(maps.back().Read(5, 1000, read.data()).ok());
  EXPECT_EQ(read, bytes_.substr(5, 1000));
}

TEST_F(MappedFileTest, NothingOfAnEmptyFile) {
  std::ofstream(folder_->PathOf("empty"));
  const auto empty = MapFile(folder_->PathOf("empty"));
  ASSERT_TRUE(empty.ok()) << empty.status();
  EXPECT_EQ(empty->descriptor, -1);
  EXPECT_TRUE(empty->Read(0, 0, nullptr).ok());
}

}  // namespace
}  // namespace llmc
