// A compiled model: one file, mapped and checked before use.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "files/mapped_file.h"
#include "runtime/plan/plan.pb.h"
#include "runtime/plan/plan_format.h"

namespace llmc {

struct PlanLoadOptions {
  // Read all weights once and compare their digests, on all cores: about a tenth of a second of processor time per GB
  // of weights in the plan, half a second (two on processors without instructions for SHA-256) per GB of external
  // files, plus what the disk takes. Without this, weights that changed go unnoticed.
  bool verify_weights = true;
  // Leave that to CopyWeights (runtime/device/weight_loader.h), which reads them anyway.
  bool verify_when_copied = false;
  // Without this, external weight files may be absent; no weights are verified, and WeightBytes may not be called.
  bool map_external_files = true;
  std::string external_folder;  // of external files; empty: the plan's
};

// Immutable after Load; threads may read it together. The file, and external weight files, must not change meanwhile.
class Plan {
 public:
  // Maps the file and checks all of it: the layout, the digest of every section, each field of the manifest, and that
  // external weight files are those that the plan was made from. Those are looked for by their recorded relative path
  // in the folder of the plan, and links that lead out of it are refused as in ResolveInside (files/path_check.h). Each
  // byte of theirs is compared by SHA-256: who trusts the plan may trust them.
  // Errors name the file and what is wrong: InvalidArgument for a file that is no whole plan, NotFound for a missing
  // one.
  static absl::StatusOr<std::unique_ptr<Plan>> Load(const std::string& path, const PlanLoadOptions& options = {});

  // Whether `path` is a file that begins as plans do.
  static bool IsPlan(const std::string& path);

  const std::string& path() const { return path_; }
  const plan::Manifest& manifest() const { return manifest_; }

  // Contents of sections; empty where the plan has none. They live as long as the plan.
  absl::string_view ir_text() const { return section(plan::Section::kIrText); }
  absl::string_view ledger() const { return section(plan::Section::kLedger); }
  absl::string_view tokenizer_config() const { return section(plan::Section::kTokenizerConfig); }
  absl::string_view chat_template() const { return section(plan::Section::kChatTemplate); }
  absl::string_view generation_config() const { return section(plan::Section::kGenerationConfig); }
  absl::string_view config_json() const { return section(plan::Section::kConfigJson); }
  absl::string_view plan_text() const { return section(plan::Section::kPlanText); }
  // InvalidArgument: it is damaged.
  absl::StatusOr<plan::TokenizerFiles> tokenizer() const;
  // How steps became kernels; empty for plans that run on the host only. InvalidArgument: it is damaged.
  absl::StatusOr<plan::Lowering> lowering() const;
  absl::string_view section(plan::Section section) const { return sections_[static_cast<size_t>(section) - 1]; }

  // The bytes of manifest().weights(index), weights(index).bytes() of them, in the mapped file, which they keep alive
  // beyond the plan. Those in the plan are 256-byte aligned. nullptr for weights of random numbers, which are nowhere.
  std::shared_ptr<const char> WeightBytes(int index) const;
  absl::string_view WeightView(int index) const;  // the same bytes; empty where there are none

  // Where weights lie: in the plan, and in each external file.
  struct WeightRegion {
    absl::string_view bytes;
    plan::PieceDigest kind = plan::PieceDigest::kChecksum;
    plan::Digest digest;  // of HashPieces
    int file = -1;        // of manifest().files(); -1: the plan itself
    const MappedFile* source = nullptr;
  };
  const std::vector<WeightRegion>& weight_regions() const { return regions_; }
  // Copies bytes of a region, read from its file and not through the map. Any thread may. The error names the file.
  absl::Status ReadRegion(const WeightRegion& region, size_t begin, size_t end, char* to) const;
  // The error of a region that has another digest.
  absl::Status RegionChanged(const WeightRegion& region) const;
  // Whether nobody checked them yet, and somebody should.
  bool must_verify_weights() const { return must_verify_weights_; }

 private:
  Plan() = default;
  template <typename Message>
  absl::StatusOr<Message> ParseSection(plan::Section section, absl::string_view of) const;
  absl::Status CheckLayout();
  absl::Status CheckSection(uint32_t index, uint64_t* end, plan::Section* previous);
  absl::Status ParseManifest();
  absl::Status CheckManifest();
  absl::Status MapExternalFiles();
  void FindRegions();
  absl::StatusOr<MappedFile> MapExternalFile(const plan::File& file) const;
  absl::Status VerifyWeights() const;
  absl::Status Wrong(absl::string_view what) const;

  std::string path_;
  std::string external_folder_;
  MappedFile file_;
  std::array<absl::string_view, plan::kNumSections> sections_;
  plan::Digest weights_digest_{};
  plan::Manifest manifest_;
  std::vector<WeightRegion> regions_;
  bool must_verify_weights_ = false;
  std::vector<MappedFile> external_;  // by index of manifest_.files; null where not external
};

}  // namespace llmc
