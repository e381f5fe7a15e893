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
#include "runtime/plan.pb.h"
#include "runtime/plan_format.h"

namespace llmc {

struct PlanLoadOptions {
  // Read all weights once and compare their digests, on all cores: about half a second of processor time per GB
  // where the processor has SHA instructions, plus what the disk takes. Without this, weights that changed go
  // unnoticed.
  bool verify_weights = true;
  // Without this, external weight files may be absent; no weights are verified, and WeightBytes may not be called.
  bool map_external_files = true;
};

// Immutable after Load; threads may read it together. The file, and external weight files, must not change meanwhile.
class Plan {
 public:
  // Maps the file and checks all of it: the layout, the digest of every section, each field of the manifest, and that
  // external weight files are those that the plan was made from. Those are looked for by their recorded relative path
  // in the folder of the plan, and links that lead out of it are refused as in ResolveInside (files/path_check.h).
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
  absl::string_view tokenizer_json() const { return section(plan::Section::kTokenizerJson); }
  absl::string_view tokenizer_config() const { return section(plan::Section::kTokenizerConfig); }
  absl::string_view chat_template() const { return section(plan::Section::kChatTemplate); }
  absl::string_view generation_config() const { return section(plan::Section::kGenerationConfig); }
  absl::string_view config_json() const { return section(plan::Section::kConfigJson); }
  absl::string_view plan_text() const { return section(plan::Section::kPlanText); }
  absl::string_view section(plan::Section section) const { return sections_[static_cast<size_t>(section) - 1]; }

  // The bytes of manifest().weights(index), weights(index).bytes() of them, in the mapped file, which they keep alive
  // beyond the plan. Those in the plan are 256-byte aligned.
  std::shared_ptr<const char> WeightBytes(int index) const;

 private:
  Plan() = default;
  absl::Status CheckLayout();
  absl::Status CheckSection(uint32_t index, uint64_t* end, plan::Section* previous);
  absl::Status ParseManifest();
  absl::Status CheckManifest();
  absl::Status MapExternalFiles();
  absl::StatusOr<MappedFile> MapExternalFile(const plan::File& file) const;
  absl::Status VerifyWeights() const;
  absl::Status Wrong(absl::string_view what) const;

  std::string path_;
  MappedFile file_;
  std::array<absl::string_view, plan::kNumSections> sections_;
  plan::Digest weights_digest_{};
  plan::Manifest manifest_;
  std::vector<MappedFile> external_;  // by index of manifest_.files; null where not external
};

}  // namespace llmc
