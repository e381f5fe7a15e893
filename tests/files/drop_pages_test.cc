#include "files/drop_pages.h"

#include <gtest/gtest.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <fstream>
#include <optional>
#include <string>
#include <vector>

#include "files/mapped_file.h"
#include "files/temporary_folder.h"

namespace llmc {
namespace {

constexpr size_t kBytes = size_t{32} << 20;

// Of this process, those of files among them.
size_t ResidentBytes() {
  std::ifstream file("/proc/self/statm");
  size_t all = 0, resident = 0;
  file >> all >> resident;
  return resident * static_cast<size_t>(sysconf(_SC_PAGESIZE));
}

size_t Sum(absl::string_view bytes) {
  size_t sum = 0;
  for (const char byte : bytes) sum += static_cast<unsigned char>(byte);
  return sum;
}

class DropPagesTest : public testing::Test {
 protected:
  void SetUp() override {
    auto folder = TemporaryFolder::Create();
    ASSERT_TRUE(folder.ok()) << folder.status();
    folder_.emplace(*std::move(folder));
    std::ofstream(folder_->PathOf("file")) << std::string(kBytes, 'x');
    auto mapped = MapFile(folder_->PathOf("file"));
    ASSERT_TRUE(mapped.ok()) << mapped.status();
    mapped_ = *mapped;
  }

  std::optional<TemporaryFolder> folder_;
  MappedFile mapped_;
};

TEST_F(DropPagesTest, PagesOfAFileLeaveMemoryAndCanBeReadAgain) {
  EXPECT_EQ(Sum(mapped_.view()), kBytes * 'x');
  const size_t before = ResidentBytes();
  DropPages(mapped_.view());
  EXPECT_LT(ResidentBytes() + kBytes / 2, before);
  EXPECT_EQ(Sum(mapped_.view()), kBytes * 'x');
}

// Only whole pages of the part go, and of no other map.
TEST_F(DropPagesTest, APartEndsWithItsMap) {
  EXPECT_EQ(Sum(mapped_.view()), kBytes * 'x');
  const size_t before = ResidentBytes();
  DropPages(mapped_.view().substr(1, 100));
  EXPECT_GT(ResidentBytes() + kBytes / 2, before);
  DropPages({mapped_.view().data() + kBytes / 2, kBytes});
  EXPECT_LT(ResidentBytes() + kBytes / 4, before);
  EXPECT_GT(ResidentBytes() + 3 * kBytes / 4, before);
}

TEST_F(DropPagesTest, OtherMemoryStaysAsItIs) {
  std::vector<char> heap(kBytes, 'y');
  DropPages({heap.data(), heap.size()});
  EXPECT_EQ(Sum({heap.data(), heap.size()}), kBytes * 'y');
  void* anonymous = mmap(nullptr, kBytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  ASSERT_NE(anonymous, MAP_FAILED);
  std::fill_n(static_cast<char*>(anonymous), kBytes, 'z');
  DropPages({static_cast<const char*>(anonymous), kBytes});
  EXPECT_EQ(Sum({static_cast<const char*>(anonymous), kBytes}), kBytes * 'z');
  munmap(anonymous, kBytes);
}

// Memory that is used for something else after a map was given back is none of its pages.
TEST_F(DropPagesTest, AMapThatIsGoneIsForgotten) {
  const char* const at = mapped_.view().data();
  mapped_ = MappedFile();
  void* same = mmap(const_cast<char*>(at), kBytes, PROT_READ | PROT_WRITE,
                    MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE, -1, 0);
  ASSERT_EQ(same, at);
  std::fill_n(static_cast<char*>(same), kBytes, 'z');
  DropPages({at, kBytes});
  EXPECT_EQ(Sum({at, kBytes}), kBytes * 'z');
  munmap(same, kBytes);
}

}  // namespace
}  // namespace llmc
