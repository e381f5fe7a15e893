#include "tools/run_inputs.h"

#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "base/edit_distance.h"
#include "base/status_macros.h"
#include "frontend/formats/numpy_file.h"
#include "frontend/import_options.h"
#include "runtime/host/host_tensors.h"
#include "runtime/plan/plan.h"
#include "tools/commands.h"
#include "tools/tensor_files.h"

namespace llmc {
namespace {

void Note(absl::string_view text) { std::fprintf(stderr, "%s\n", std::string(text).c_str()); }

std::string NameList(const std::vector<std::string>& names) {
  constexpr size_t kShown = 16;
  const auto end = names.begin() + static_cast<int64_t>(std::min(names.size(), kShown));
  return absl::StrCat("'", absl::StrJoin(names.begin(), end, "', '"), "'", end == names.end() ? "" : ", …");
}

// --random without a value is the seed 0.
absl::StatusOr<uint64_t> ParseRandomSeed(const std::string& text) {
  uint64_t seed = 0;
  if (text == "any" || absl::SimpleAtoi(text, &seed)) return seed;
  return absl::InvalidArgumentError(absl::StrCat("'", text, "' is not a number from 0 to 2^64 - 1"));
}

absl::Status ParseInput(const std::string& text, InputOptions* options) {
  const std::pair<std::string, std::string> parts = absl::StrSplit(text, absl::MaxSplits('=', 1));
  if (parts.first.empty() || !absl::EndsWith(parts.second, ".npy")) {
    return absl::InvalidArgumentError(absl::StrCat("--input: '", text, "' is not NAME=FILE.npy"));
  }
  if (options->each.emplace(parts).second) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat("--input: ", parts.first, " is given twice"));
}

}  // namespace

void AddInputOptions(CLI::App* command, InputOptions* options) {
  command->add_option("--inputs", options->file, "file with the inputs: safetensors, .npz, or .npy for the only one");
  command
      ->add_option_function<std::vector<std::string>>(
          "--input",
          [options](const std::vector<std::string>& texts) {
            for (const std::string& text : texts) RequireUsage(ParseInput(text, options));
          },
          "NAME=FILE.npy: one input, also in place of one in the file of --inputs; repeatable")
      ->allow_extra_args(false);
  command
      ->add_flag("--random{any}", options->random,
                 "random numbers for inputs that are not given, of a seed (--random=7), in sizes that --dim names")
      ->check([](const std::string& text) { return std::string(ParseRandomSeed(text).status().message()); });
}

std::vector<std::string> InputFiles(const InputOptions& options) {
  std::vector<std::string> files;
  if (!options.file.empty()) files.push_back(options.file);
  for (const auto& [name, file] : options.each) files.push_back(file);
  return files;
}

DimEnv TakeInputSizes(ModelSource* source) {
  DimEnv sizes;
  const bool is_fixed = Plan::IsPlan(source->path) || std::filesystem::is_directory(source->path);
  if (is_fixed) sizes.swap(source->fixed.dims);
  return sizes;
}

absl::StatusOr<RunInputs> RunInputs::Read(const InputOptions& options) {
  RunInputs inputs;
  inputs.from_ = options.file.empty() ? "the inputs" : options.file;
  if (!options.random.empty()) {
    ASSIGN_OR_RETURN(uint64_t seed, ParseRandomSeed(options.random));
    inputs.random_ = seed;
  }
  if (!options.file.empty()) {
    ASSIGN_OR_RETURN(NamedTensors tensors, ReadTensorFile(options.file));
    inputs.tensors_ = std::move(tensors);
  }
  for (const auto& [name, file] : options.each) {
    ASSIGN_OR_RETURN(Tensor tensor, ReadNpy(file));
    inputs.tensors_[name] = std::move(tensor);
  }
  return inputs;
}

absl::Status RunInputs::Complete(const std::vector<TensorInfo>& inputs, const std::map<std::string, int64_t>& tables,
                                 const DimEnv& sizes) {
  if (auto nameless = tensors_.extract(""); !nameless.empty()) {
    std::vector<std::string> needed;
    for (const TensorInfo& info : inputs) {
      if (!info.optional && !tensors_.contains(info.name)) needed.push_back(info.name);
    }
    if (needed.size() != 1) {
      return absl::InvalidArgumentError(absl::StrCat(from_, ": is one array, and the model has the inputs ",
                                                     NameList(needed), "; give each with --input NAME=FILE.npy"));
    }
    nameless.key() = needed[0];
    tensors_.insert(std::move(nameless));
  }
  if (!random_.has_value()) return absl::OkStatus();
  std::vector<std::string> notes;
  ASSIGN_OR_RETURN(NamedTensors made,
                   MakeRandomInputs(inputs, tensors_, {.seed = *random_, .sizes = sizes, .tables = tables}, &notes));
  for (const std::string& note : notes) Note(absl::StrCat("random: ", note));
  tensors_.merge(made);
  return absl::OkStatus();
}

absl::StatusOr<Tensor> RunInputs::Converted(const std::string& name, const Tensor& tensor, DType wanted) {
  if (tensor.dtype() == wanted) return tensor;
  absl::StatusOr<Tensor> converted = ConvertedTensor(tensor, wanted);
  if (!converted.ok()) {
    return absl::InvalidArgumentError(absl::StrCat(from_, ": '", name, "': ", converted.status().message()));
  }
  if (!IsFloat(wanted)) {
    Note(absl::StrCat("note: '", name, "' is converted from ", DTypeName(tensor.dtype()), " to ", DTypeName(wanted)));
  }
  return converted;
}

// What models of texts take where it is not given, as in transformers: all tokens are there, and of the first kind.
std::optional<Tensor> RunInputs::StandIn(const TensorInfo& info, const std::string& suffix) const {
  const bool is_mask = info.name == "attention_mask";
  const auto ids = tensors_.find("input_ids" + suffix);
  if (ids == tensors_.end() || (!is_mask && info.name != "token_type_ids")) return std::nullopt;
  Tensor all(static_cast<DType>(info.type), ids->second.shape());
  for (int64_t i = 0; i < all.size(); ++i) all.SetInt(i, is_mask ? 1 : 0);
  std::cerr << absl::StrCat("note: ", info.name, suffix, " is not given: ", is_mask ? "ones" : "zeros", "\n");
  return all;
}

absl::StatusOr<NamedHostTensors> RunInputs::Pick(const std::vector<TensorInfo>& inputs, const std::string& suffix) {
  NamedHostTensors picked;
  std::vector<const TensorInfo*> missing;
  for (const TensorInfo& info : inputs) {
    const auto it = tensors_.find(info.name + suffix);
    if (it != tensors_.end()) {
      absl::StatusOr<Tensor> tensor = Converted(it->first, it->second, static_cast<DType>(info.type));
      if (!tensor.ok() && info.optional) tensor = it->second;  // the model refuses it, and says what to do instead
      if (!tensor.ok()) return tensor.status();
      used_.insert(it->first);
      picked[info.name] = ToHostTensor(*tensor);
    } else if (!info.optional) {
      if (const std::optional<Tensor> all = StandIn(info, suffix); all.has_value()) {
        picked[info.name] = ToHostTensor(*all);
        continue;
      }
      missing.push_back(&info);
    }
  }
  if (missing.empty()) return picked;
  return MissingError(missing, suffix);
}

absl::Status RunInputs::MissingError(const std::vector<const TensorInfo*>& missing, const std::string& suffix) const {
  std::vector<std::string> texts, unused, meant;
  for (const auto& [name, tensor] : tensors_) {
    if (!used_.contains(name)) unused.push_back(name);
  }
  for (const TensorInfo* info : missing) {
    const std::string name = info->name + suffix;
    texts.push_back(absl::StrCat("'", name, "' ", DTypeName(info->type), "[", absl::StrJoin(info->shape, ", "), "]"));
    const auto nearest = std::min_element(unused.begin(), unused.end(), [&](const auto& a, const auto& b) {
      return EditDistance(a, name) < EditDistance(b, name);
    });
    if (nearest != unused.end() && EditDistance(*nearest, name) * 3 <= name.size()) {
      meant.push_back(absl::StrCat("'", *nearest, "' may be '", name, "'"));
    }
  }
  return absl::InvalidArgumentError(
      absl::StrCat(from_, ": lacks the inputs ", absl::StrJoin(texts, ", "),
                   unused.empty() ? "" : absl::StrCat("; not used: ", NameList(unused)),
                   meant.empty() ? "" : absl::StrCat(" (", absl::StrJoin(meant, ", "), ")"),
                   tensors_.empty() ? "; give --inputs FILE, --input NAME=FILE.npy, or --random" : ""));
}

void RunInputs::NoteUnused(const NamedTensors& outputs) const {
  std::vector<std::string> unused;
  for (const auto& [name, tensor] : tensors_) {
    if (!used_.contains(name) && !outputs.contains(name)) unused.push_back(name);
  }
  if (!unused.empty()) Note(absl::StrCat("note: ", from_, ": not used, as no input has the name: ", NameList(unused)));
}

}  // namespace llmc
