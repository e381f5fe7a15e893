#include "files/file_writer.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <thread>

#include "absl/strings/str_cat.h"
#include "files/temporary_folder.h"

std::atomic<int> times_umask_was_set = 0;

// In place of the C library's.
extern "C" mode_t umask(mode_t mask) noexcept {
  ++times_umask_was_set;
  return static_cast<mode_t>(syscall(SYS_umask, mask));
}

namespace llmc {
namespace {

namespace fs = std::filesystem;
using ::testing::HasSubstr;

class FileWriterTest : public ::testing::Test {
 protected:
  FileWriterTest() {
    std::string name = testing::TempDir() + "/file_writer_XXXXXX";
    folder_ = mkdtemp(name.data());
  }
  ~FileWriterTest() override { fs::remove_all(folder_); }

  std::string Path(const std::string& name) const { return (folder_ / name).string(); }
  std::string Read(const std::string& name) const {
    std::ifstream in(Path(name), std::ios::binary);
    std::stringstream out;
    out << in.rdbuf();
    return out.str();
  }
  std::ptrdiff_t Files() const { return std::distance(fs::directory_iterator(folder_), fs::directory_iterator()); }

  fs::path folder_;
};

TEST_F(FileWriterTest, NothingIsSeenBeforeCommit) {
  std::ofstream(Path("a")) << "old";
  {
    auto file = FileWriter::Create(Path("a"));
    ASSERT_TRUE(file.ok()) << file.status();
    ASSERT_TRUE((*file)->Write("gone").ok());
    EXPECT_EQ(Read("a"), "old");
  }
  EXPECT_EQ(Read("a"), "old");
  EXPECT_EQ(Files(), 1);

  auto file = FileWriter::Create(Path("a"));
  ASSERT_TRUE(file.ok()) << file.status();
  ASSERT_TRUE((*file)->PadTo(3).ok());
  ASSERT_TRUE((*file)->Write("new").ok());
  ASSERT_TRUE((*file)->WriteAt(0, "is:").ok());
  EXPECT_EQ((*file)->size(), 6u);
  ASSERT_TRUE((*file)->Commit().ok());
  EXPECT_EQ(Read("a"), "is:new");
  EXPECT_EQ(Files(), 1);
}

TEST_F(FileWriterTest, AKilledProcessLeavesNothing) {
  const pid_t child = fork();
  if (child == 0) {
    auto file = FileWriter::Create(Path("a"));
    if (!file.ok() || !(*file)->Write("half").ok()) _exit(1);
    raise(SIGKILL);
  }
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  ASSERT_TRUE(WIFSIGNALED(status));
  EXPECT_EQ(Files(), 0);
}

TEST_F(FileWriterTest, LinksStayAndTheirTargetChanges) {
  fs::create_directory(Path("sub"));
  std::ofstream(Path("sub/file")) << "old";
  fs::create_symlink("sub/file", Path("link"));
  fs::create_symlink("link", Path("link2"));
  ASSERT_TRUE(WriteWholeFile(Path("link2"), "new").ok());
  EXPECT_TRUE(fs::is_symlink(Path("link2")));
  EXPECT_TRUE(fs::is_symlink(Path("link")));
  EXPECT_EQ(Read("sub/file"), "new");

  fs::create_symlink("sub/absent", Path("dangling"));
  ASSERT_TRUE(WriteWholeFile(Path("dangling"), "there").ok());
  EXPECT_TRUE(fs::is_symlink(Path("dangling")));
  EXPECT_EQ(Read("sub/absent"), "there");
}

TEST_F(FileWriterTest, APipeIsWrittenIntoAndStays) {
  ASSERT_EQ(mkfifo(Path("pipe").c_str(), 0600), 0);
  std::string got;
  std::thread reader([&] { got = Read("pipe"); });
  const std::string bytes(200000, 'x');  // more than a pipe holds
  const absl::Status status = WriteWholeFile(Path("pipe"), bytes);
  reader.join();
  EXPECT_TRUE(status.ok()) << status;
  EXPECT_EQ(got, bytes);
  EXPECT_TRUE(fs::is_fifo(Path("pipe")));
}

TEST_F(FileWriterTest, DevicesStay) {
  fs::create_symlink("/dev/null", Path("null"));
  EXPECT_TRUE(WriteWholeFile(Path("null"), "x").ok());
  fs::create_symlink("/dev/full", Path("full"));
  EXPECT_THAT(WriteWholeFile(Path("full"), "x").message(), HasSubstr("No space left"));
  EXPECT_TRUE(fs::is_character_file("/dev/null"));
  EXPECT_TRUE(fs::is_character_file("/dev/full"));
}

TEST_F(FileWriterTest, PermissionsOfTheOldFileStay) {
  std::ofstream(Path("a")) << "old";
  fs::permissions(Path("a"), fs::perms::owner_read | fs::perms::owner_write);
  ASSERT_TRUE(WriteWholeFile(Path("a"), "new").ok());
  EXPECT_EQ(fs::status(Path("a")).permissions(), fs::perms::owner_read | fs::perms::owner_write);

  const mode_t before = umask(027);
  EXPECT_TRUE(WriteWholeFile(Path("b"), "new").ok());
  umask(before);
  EXPECT_EQ(static_cast<unsigned>(fs::status(Path("b")).permissions()), 0640u);
}

mode_t ModeOf(const std::string& path) {
  struct stat info = {};
  EXPECT_EQ(lstat(path.c_str(), &info), 0) << path;
  return info.st_mode & 07777;
}

TEST_F(FileWriterTest, NewFilesHaveThePermissionsOfAPlainOpen) {
  const mode_t before = umask(0);
  for (const mode_t mask : {0000, 0002, 0022, 0027, 0077, 0177}) {
    umask(mask);
    for (const mode_t mode : {0666, 0600, 0640}) {
      fs::remove(Path("plain"));
      fs::remove(Path("ours"));
      close(open(Path("plain").c_str(), O_CREAT | O_EXCL | O_WRONLY, mode));
      EXPECT_TRUE(WriteWholeFile(Path("ours"), "x", mode).ok());
      EXPECT_EQ(ModeOf(Path("ours")), ModeOf(Path("plain"))) << mask << " " << mode;
    }
  }
  umask(before);
}

// The umask is the process's: whoever sets it, if only to read it, opens the files of all threads to others.
TEST_F(FileWriterTest, NobodySetsTheUmask) {
  const int before = times_umask_was_set;
  EXPECT_TRUE(WriteWholeFile(Path("new"), "x").ok());
  EXPECT_TRUE(WriteWholeFile(Path("new"), "y").ok());
  EXPECT_EQ(times_umask_was_set, before);
}

// Names that could be known before are tried, as somebody would who may write to the same folder.
TEST_F(FileWriterTest, WhatOthersPutBesideStays) {
  std::ofstream(Path("victim")) << "precious";
  const std::string guess = absl::StrCat("a.", getpid(), ".tmp");
  fs::create_symlink("victim", Path(guess));
  ASSERT_TRUE(WriteWholeFile(Path("a"), "new").ok());
  EXPECT_EQ(Read("a"), "new");
  EXPECT_EQ(Read("victim"), "precious");
  EXPECT_TRUE(fs::is_symlink(Path(guess)));
  EXPECT_EQ(Files(), 3);
}

TEST(TemporaryFolder, IsForItsOwnerAloneAndGoesAway) {
  std::string path;
  {
    absl::StatusOr<TemporaryFolder> one = TemporaryFolder::Create(), other = TemporaryFolder::Create();
    ASSERT_TRUE(one.ok()) << one.status();
    ASSERT_TRUE(other.ok()) << other.status();
    EXPECT_NE(one->path(), other->path());
    EXPECT_EQ(ModeOf(one->path()), 0700u);
    const TemporaryFolder moved = *std::move(one);
    path = moved.path();
    ASSERT_TRUE(WriteWholeFile(moved.PathOf("plan"), "x").ok());
  }
  EXPECT_FALSE(fs::exists(path));
}

TEST_F(FileWriterTest, ErrorsNameThePath) {
  EXPECT_THAT(WriteWholeFile(folder_.string(), "x").message(), HasSubstr("is a folder"));
  EXPECT_THAT(WriteWholeFile(Path("no/file"), "x").message(), HasSubstr("no/file: cannot be written: No such file"));
  std::ofstream(Path("a")) << "old";
  EXPECT_THAT(WriteWholeFile(Path("a/file"), "x").message(), HasSubstr("Not a directory"));
}

}  // namespace
}  // namespace llmc
