#include "runtime/device/weight_loader.h"

#include <algorithm>
#include <atomic>
#include <cstring>
#include <memory>
#include <mutex>
#include <system_error>
#include <thread>
#include <utility>
#include <vector>

#include "base/status_macros.h"
#include "runtime/plan/plan_format.h"

namespace llmc {
namespace {

constexpr size_t kBufferBytes = size_t{1} << 20;   // pinned; each thread has two
constexpr size_t kBlockBytes = size_t{128} << 10;  // hashed while what was read is in the cache

// Some bytes of a region and where they go.
struct Range {
  size_t begin = 0, end = 0;
  DevicePointer to = 0;
};

// One region of the files, in pieces that threads take one after the other.
struct Region {
  const Plan::WeightRegion* source = nullptr;
  std::vector<Range> ranges;
  std::vector<plan::Digest> digests;  // of pieces, if they are verified

  size_t pieces() const { return (source->bytes.size() + plan::kPieceBytes - 1) / plan::kPieceBytes; }
};

class Loader {
 public:
  Loader(const Plan& plan, bool verify, Device* device, const std::atomic<bool>* stop)
      : plan_(plan), verify_(verify), device_(device), stop_(stop) {}

  absl::Status Run(absl::Span<const WeightCopy> copies) {
    FindWork(copies);
    if (work_.empty()) return absl::OkStatus();
    // One core is left to who loads kernels meanwhile.
    const size_t most = std::max(2u, std::thread::hardware_concurrency()) - 1;
    std::vector<std::thread> threads;
    try {
      for (size_t i = 1; i < std::min(most, work_.size()); ++i) threads.emplace_back([this] { Work(); });
    } catch (const std::system_error&) {
      // No more threads: those that run do the work.
    }
    Work();
    for (std::thread& thread : threads) thread.join();
    if (status_.ok() && Stops()) return absl::CancelledError("loading was given up");
    if (!status_.ok() || !verify_) return status_;
    for (const Region& region : regions_) {
      if (plan::CombinePieces(region.digests) != region.source->digest) return plan_.RegionChanged(*region.source);
    }
    return absl::OkStatus();
  }

 private:
  void FindWork(absl::Span<const WeightCopy> copies) {
    for (const Plan::WeightRegion& source : plan_.weight_regions()) regions_.push_back({.source = &source});
    for (const WeightCopy& copy : copies) {
      const absl::string_view bytes = plan_.WeightView(copy.weight);
      if (bytes.empty()) continue;
      for (Region& region : regions_) {
        const absl::string_view whole = region.source->bytes;
        if (bytes.data() < whole.data() || bytes.data() >= whole.data() + whole.size()) continue;
        const size_t begin = static_cast<size_t>(bytes.data() - whole.data());
        region.ranges.push_back({begin, begin + bytes.size(), copy.to});
      }
    }
    for (size_t r = 0; r < regions_.size(); ++r) {
      Region& region = regions_[r];
      if (verify_) region.digests.resize(region.pieces());
      for (size_t piece = 0; piece < region.pieces(); ++piece) {
        if (verify_ || IsRead(region, piece * plan::kPieceBytes, (piece + 1) * plan::kPieceBytes)) {
          work_.push_back({r, piece});
        }
      }
    }
  }

  static bool IsRead(const Region& region, size_t begin, size_t end) {
    return std::any_of(region.ranges.begin(), region.ranges.end(),
                       [&](const Range& range) { return range.begin < end && range.end > begin; });
  }

  bool Stops() const { return stop_ != nullptr && *stop_; }

  void Work() {
    absl::StatusOr<std::unique_ptr<DeviceUpload>> upload = DeviceUpload::Create(device_, kBufferBytes);
    absl::Status status = upload.status();
    for (size_t i = next_++; status.ok() && !failed_ && !Stops() && i < work_.size(); i = next_++) {
      status = LoadPiece(&regions_[work_[i].region], work_[i].piece, upload->get());
    }
    if (status.ok()) status = (*upload)->Finish();
    if (status.ok()) return;
    failed_ = true;
    const std::lock_guard<std::mutex> lock(mutex_);
    status_.Update(status);
  }

  absl::Status LoadPiece(Region* region, size_t piece, DeviceUpload* upload) {
    const size_t end = std::min((piece + 1) * plan::kPieceBytes, region->source->bytes.size());
    plan::PieceHash hash(region->source->kind);
    for (size_t begin = piece * plan::kPieceBytes; begin < end; begin += kBufferBytes) {
      const absl::Status status = LoadPart(*region, begin, std::min(begin + kBufferBytes, end), upload, &hash);
      if (!status.ok()) return status;
    }
    if (verify_) region->digests[piece] = hash.Finish();
    return absl::OkStatus();
  }

  absl::Status LoadPart(const Region& region, size_t begin, size_t end, DeviceUpload* upload, plan::PieceHash* hash) {
    if (!verify_ && !IsRead(region, begin, end)) return absl::OkStatus();
    ASSIGN_OR_RETURN(char* const buffer, upload->NextBuffer());
    for (size_t at = begin; at < end; at += kBlockBytes) {
      const size_t size = std::min(kBlockBytes, end - at);
      char* const to = buffer + (at - begin);
      if (verify_ && region.source->kind == plan::PieceDigest::kSha256) {
        // SHA-256 takes longer than memory, which the map hides better than reading does.
        std::memcpy(to, region.source->bytes.data() + at, size);
      } else {
        RETURN_IF_ERROR(plan_.ReadRegion(*region.source, at, at + size, to));
      }
      if (verify_) hash->Update(to, size);
    }
    for (const Range& range : region.ranges) {
      const size_t from = std::max(range.begin, begin), until = std::min(range.end, end);
      if (from >= until) continue;
      const absl::Status status =
          upload->Copy(range.to + (from - range.begin), buffer + (from - begin), static_cast<int64_t>(until - from));
      if (!status.ok()) return status;
    }
    return absl::OkStatus();
  }

  struct Piece {
    size_t region, piece;
  };
  const Plan& plan_;
  const bool verify_;
  Device* device_;
  const std::atomic<bool>* stop_;
  std::vector<Region> regions_;
  std::vector<Piece> work_;
  std::atomic<size_t> next_ = 0;
  std::atomic<bool> failed_ = false;
  std::mutex mutex_;
  absl::Status status_;
};

}  // namespace

absl::Status CopyWeights(const Plan& plan, absl::Span<const WeightCopy> copies, bool verify, Device* device,
                         const std::atomic<bool>* stop) {
  return Loader(plan, verify, device, stop).Run(copies);
}

WeightCopying::WeightCopying(const Plan& plan, std::vector<WeightCopy> copies, bool verify, Device* device) {
  const auto copy = [this, &plan, copies = std::move(copies), verify, device] {
    status_ = CopyWeights(plan, copies, verify, device, &stop_);
  };
  try {
    thread_ = std::thread(copy);
  } catch (const std::system_error&) {
    copy();  // no more threads
  }
}

WeightCopying::~WeightCopying() {
  stop_ = true;
  Wait().IgnoreError();
}

absl::Status WeightCopying::Wait() {
  if (thread_.joinable()) thread_.join();
  return status_;
}

}  // namespace llmc
