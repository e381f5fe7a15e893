// Writes a compiled model to one file; see runtime/plan/plan_format.h for its layout.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "codegen/device_plan.h"
#include "cubins/compile.h"
#include "cubins/targets.h"
#include "files/side_files.h"
#include "ir/graph.h"
#include "runtime/plan/plan.pb.h"

namespace llmc {

// A file that the model was read from; its size and SHA-256 go into the plan.
struct PlanInputFile {
  std::string recorded_path;  // relative, without ".."
  std::string path;           // where it is now
  bool external = false;      // weights stay in it; recorded_path is then relative to the folder of the plan
};

struct ExternalWeight {
  std::string recorded_path;  // of an input file that is external
  int64_t offset = 0;
};

struct PlanOptions {
  std::string compiler_version;
  std::vector<std::string> flags;
  std::vector<Target> targets;  // GPUs to compile for; none: the plan runs on the host only
  CompileOptions compile;       // of kernels
  // Of plans with code for a GPU, if set: what is known of its products, found on a machine that has one.
  std::function<absl::StatusOr<plan::TunedProducts>(const plan::Manifest& manifest)> tune;
  // Where it is set, a model that no GPU can run, or a machine that cannot compile for one, gives a plan for the host,
  // and this is called with the reason; else that is an error.
  std::function<void(const absl::Status& reason)> on_host_only;
  // A folder for plan.txt, kernels/ENTRY.cu and lowered/PROGRAM.lir; empty: none is written.
  std::string dump_dir;
  std::vector<std::string> weight_flags = {};  // with which a dump finds its weights again
  DevicePlanOptions device;                    // of plans with code for a GPU
  std::vector<PlanInputFile> files;
  bool hash_files = true;  // without, the plan cannot tell whether they change
  // Side files and reports; empty ones are left out.
  std::vector<SideFile> tokenizer;
  std::string ledger, tokenizer_config, chat_template, generation_config, config_json;
  std::optional<plan::LanguageModel> language_model;
  // Weights by name that stay in their file, at these places; all others are copied into the plan.
  std::map<std::string, ExternalWeight> external_weights;
  std::function<void(int64_t done, int64_t total)> on_weight;  // called after each weight is written, if set
};

// Writes with FileWriter (files/file_writer.h), so that no reader sees half a file. Every weight must have data of its
// type, or be of random numbers (files/random_source.h). The same model and options give the same bytes. Weights are
// streamed from where they are, equal views once.
absl::Status WritePlan(const Model& model, const PlanOptions& options, const std::string& path);

// How a plan lists a state of a model.
void DescribeState(const Value& state, plan::State* to);

// The manifest of that plan with its kernels not compiled: they have no cubins, all else is the same. Their sources go
// to `sources`, and what became of steps to `lowering`, if they are not null.
absl::StatusOr<plan::Manifest> MakeManifest(const Model& model, const PlanOptions& options,
                                            std::string* sources = nullptr, plan::Lowering* lowering = nullptr);

}  // namespace llmc
