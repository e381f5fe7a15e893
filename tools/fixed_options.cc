#include "tools/fixed_options.h"

#include <algorithm>
#include <filesystem>
#include <set>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "base/status_macros.h"
#include "frontend/formats/numpy_file.h"
#include "passes/fix.h"
#include "tools/commands.h"

namespace llmc {
namespace {

constexpr int64_t kMaxDumpLiteral = 4096;  // elements that a dump may get as text

// Adds the size that "NAME=VALUE" gives. A name may hold '=', a number not.
absl::Status ParseDim(const std::string& text, ImportOptions* fixed) {
  const size_t at = text.rfind('=');
  int64_t size = 0;
  const bool parsed = at != std::string::npos && at > 0 && absl::SimpleAtoi(text.substr(at + 1), &size);
  if (!parsed || size < 0) {
    return absl::InvalidArgumentError(absl::StrCat("--dim: '", text, "' is not NAME=SIZE with a SIZE of at least 0"));
  }
  const std::string name = text.substr(0, at);
  if (fixed->dims.emplace(name, size).second) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat("--dim: ", name, " is given twice"));
}

absl::Status ParseSet(const std::string& text, ImportOptions* fixed) {
  const std::pair<std::string, std::string> parts = absl::StrSplit(text, absl::MaxSplits('=', 1));
  if (parts.first.empty() || parts.second.empty()) {
    return absl::InvalidArgumentError(
        absl::StrCat("--set: '", text, "' is not INPUT=VALUE, such as use_cache_branch=false or scale=0.5,2"));
  }
  if (fixed->inputs.emplace(parts.first, FixedInput{.text = parts.second}).second) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat("--set: ", parts.first, " is given twice"));
}

bool IsFile(const FixedInput& input) { return absl::EndsWith(input.text, ".npy"); }

// The type of a parameter, without its sigil; null if no step has it.
const TensorType* TypeOfParam(const Model& model, const std::string& name) {
  for (const auto& step : model.steps) {
    for (const Value* param : step->params) {
      if (param->name == absl::StrCat("%", name)) return &param->type;
    }
  }
  return nullptr;
}

absl::Status CheckNames(const ImportOptions& fixed, const Model& model) {
  const auto is_known = [&](const std::string& name) { return fixed.known != nullptr && fixed.known->contains(name); };
  for (const auto& [name, size] : fixed.dims) {
    const auto dim = model.dims.find(name);
    if (dim == model.dims.end() && !is_known(name)) {
      const std::string known = absl::StrJoin(model.dims, ", ", absl::PairFormatter(" <= "));
      return absl::InvalidArgumentError(
          absl::StrCat("--dim: the model has no dim ", name, "; it has ", known.empty() ? "none" : known));
    }
    if (dim != model.dims.end() && size > dim->second) {
      return absl::InvalidArgumentError(
          absl::StrCat("--dim: ", name, " is at most ", dim->second, ", so it cannot be ", size));
    }
  }
  for (const auto& [name, input] : fixed.inputs) {
    if (TypeOfParam(model, name) != nullptr || is_known(name)) continue;
    std::set<std::string> names;
    for (const auto& step : model.steps) {
      for (const Value* param : step->params) names.insert(param->name.substr(1));
    }
    return absl::InvalidArgumentError(
        absl::StrCat("--set: the model has no input ", name, "; it has ", absl::StrJoin(names, ", ")));
  }
  return absl::OkStatus();
}

}  // namespace

void AddFixedOptions(CLI::App* command, ImportOptions* fixed) {
  const auto add = [&](const char* name, absl::Status (*parse)(const std::string&, ImportOptions*), const char* what) {
    command
        ->add_option_function<std::vector<std::string>>(
            name,
            [fixed, parse](const std::vector<std::string>& texts) {
              for (const std::string& text : texts) RequireUsage(parse(text, fixed));
            },
            what)
        ->allow_extra_args(false);
  };
  add("--dim", ParseDim, "NAME=SIZE: fixes a dim of an ONNX file or a dump; repeatable");
  add("--set", ParseSet,
      "INPUT=VALUE: fixes an input of an ONNX file or a dump, so that it is none any more: a number, which fills the "
      "whole input, true or false, a list (1,2,3), or a file (x.npy); repeatable");
}

void AddQuantizedOption(CLI::App* command, QuantizedUse* use) {
  command->add_flag(
      "--quantize-activations", use->activations,
      "of a folder of a quantized checkpoint: quantize the inputs of its linear layers as it says; if not "
      "given they stay floats, which is more exact (`llmc check` tells what it says)");
}

void AddPoolingOptions(CLI::App* command, PoolingChoice* pooling) {
  CLI::Option* pool = command
                          ->add_option("--pool", pooling->pool,
                                       "of a folder of an encoder without modules.json: how the vectors of tokens "
                                       "become one for each text: mean, cls (the first), last or max")
                          ->check(CLI::IsMember({"mean", "cls", "last", "max"}));
  command->add_flag("--normalize", pooling->normalize, "with --pool: divide vectors by their lengths")->needs(pool);
  // What is the default where neither is said, the command sets.
  const bool is_default = pooling->packing == Packing::kWherePossible;
  command
      ->add_flag_function(
          "--packed,!--no-packed",
          [pooling](int64_t count) { pooling->packing = count > 0 ? Packing::kAlways : Packing::kNone; },
          absl::StrCat("of a folder of an encoder of text: texts go in one after the other, without padding",
                       is_default ? "; this is so where the model can, if nothing else is said" : ""))
      ->take_last();
}

namespace {

constexpr std::pair<absl::string_view, DecoderForm> kForms[] = {{"served", DecoderForm::kServed},
                                                                {"hidden-states", DecoderForm::kHiddenStates},
                                                                {"predictor", DecoderForm::kPredictor}};

}  // namespace

void AddFormOption(CLI::App* command, DecoderForm* form) {
  std::vector<std::string> names;
  for (const auto& [name, value] : kForms) names.emplace_back(name);
  command
      ->add_option_function<std::string>(
          "--form",
          [form](const std::string& text) {
            for (const auto& [name, value] : kForms) {
              if (name == text) *form = value;
            }
          },
          "of a decoder in a Hugging Face folder: served, with a paged cache; hidden-states, whole sequences to logits "
          "and hidden states; predictor, its layer that predicts one token further, of hidden_states and next tokens")
      ->check(CLI::IsMember(names));
}

std::string FormName(DecoderForm form) {
  for (const auto& [name, value] : kForms) {
    if (value == form) return std::string(name);
  }
  return "";
}

absl::StatusOr<ImportOptions> WithFiles(ImportOptions fixed) {
  for (auto& [name, input] : fixed.inputs) {
    if (!IsFile(input)) continue;
    ASSIGN_OR_RETURN(Tensor tensor, ReadNpy(input.text));
    if (tensor.size() > kMaxFixedElements) {
      return absl::InvalidArgumentError(absl::StrCat(input.text, ": more than ", kMaxFixedElements, " elements"));
    }
    input.tensor = std::move(tensor);
  }
  return fixed;
}

std::vector<std::string> FixedFlags(const ImportOptions& fixed, bool with_paths) {
  std::vector<std::string> flags;
  for (const auto& [name, size] : fixed.dims) flags.push_back(absl::StrCat("--dim=", name, "=", size));
  for (const auto& [name, input] : fixed.inputs) {
    const bool is_name = IsFile(input) && !with_paths;
    flags.push_back(absl::StrCat("--set=", name, "=",
                                 is_name ? std::filesystem::path(input.text).filename().string() : input.text));
  }
  return flags;
}

absl::Status FixDump(const ImportOptions& fixed, Model* model) {
  if (fixed.empty()) return absl::OkStatus();
  if (!model->states.empty()) {
    return absl::InvalidArgumentError(
        "--dim and --set: the program has a cache, and the sizes of its steps are chosen by the engine");
  }
  RETURN_IF_ERROR(CheckNames(fixed, *model));
  DimEnv sizes;
  for (const auto& [name, size] : fixed.dims) {
    if (model->dims.contains(name)) sizes.emplace(name, size);
  }
  std::map<std::string, Tensor> contents;
  for (const bool tells : {true, false}) {
    for (const auto& [name, input] : fixed.inputs) {
      const TensorType* type = TypeOfParam(*model, name);
      if (type == nullptr || TellsSizes(input) != tells) continue;
      ASSIGN_OR_RETURN(Tensor tensor, FixedContents(name, input, *type, &sizes));
      if (tensor.size() > kMaxDumpLiteral) {
        return absl::InvalidArgumentError(absl::StrCat("--set ", name, ": more than ", kMaxDumpLiteral,
                                                       " elements; give it where the ONNX file is imported"));
      }
      contents.emplace(name, std::move(tensor));
    }
  }
  RETURN_IF_ERROR(FixDims(model, sizes));
  for (const auto& [name, tensor] : contents) {
    RETURN_IF_ERROR(FixInput(model, absl::StrCat("%", name), tensor));
  }
  return absl::OkStatus();
}

absl::Status CheckNothingFixed(const std::string& plan, const ImportOptions& fixed) {
  if (!fixed.pooling.pool.empty()) {
    return absl::InvalidArgumentError(
        absl::StrCat(plan, ": is a plan, which pools as it was compiled; --pool is for `llmc compile`"));
  }
  if (fixed.form != DecoderForm::kServed) {
    return absl::InvalidArgumentError(
        absl::StrCat(plan, ": is a plan, whose form is as it was compiled; --form is for `llmc compile`"));
  }
  if (fixed.quantized.activations) {
    return absl::InvalidArgumentError(absl::StrCat(
        plan, ": is a plan, whose products are as they were compiled; --quantize-activations is for `llmc compile`"));
  }
  if (fixed.empty()) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(
      plan, ": is a plan, whose dims and inputs are as they were compiled; --dim and --set are for `llmc compile`"));
}

}  // namespace llmc
