#include <algorithm>
#include <cmath>
#include <cstdio>
#include <filesystem>
#include <memory>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "frontend/safetensors.h"
#include "nlohmann/json.hpp"
#include "runtime/host/host_tensors.h"
#include "runtime/plan.h"
#include "tools/commands.h"
#include "tools/compare.h"
#include "tools/output.h"
#include "tools/runnable.h"

namespace llmc {
namespace {

using Json = nlohmann::ordered_json;

constexpr char kSummary[] = "Runs a model or a plan once over named tensors.";
constexpr char kDetails[] =
    "Inputs are taken from the file by name; its other tensors are\n"
    "ignored, and floating-point inputs are converted to the type that the model wants. A Hugging Face language model\n"
    "takes input_ids [S] or [B, S] (and attention_mask) and gives logits [.., V]; names may end in _0, _1, … for "
    "several.\n"
    "Examples:\n"
    "  llmc run model.onnx --inputs in.safetensors --outputs out.safetensors\n"
    "  llmc run plan.bin --inputs in.safetensors --compare expected.safetensors --rtol 1e-3 --atol 1e-4";

struct Options {
  ModelSource source;
  std::string inputs, outputs, compare;
  double rtol = 1e-3, atol = 1e-5;
  bool json = false;
};

HostTensor Converted(const Tensor& tensor, ElementType wanted) {
  const DType dtype = static_cast<DType>(wanted);
  const bool convert = tensor.dtype() != dtype && IsFloat(dtype) && IsFloat(tensor.dtype());
  return ToHostTensor(convert ? Tensor::FromValues(dtype, tensor.shape(), tensor.ToDoubles()) : tensor);
}

// The model's inputs, each under its name with `suffix`.
absl::StatusOr<NamedHostTensors> PickInputs(const LoadedPlan& model, const NamedTensors& file, const std::string& path,
                                            const std::string& suffix) {
  NamedHostTensors inputs;
  std::vector<std::string> missing;
  for (const TensorInfo& info : model.inputs()) {
    const auto it = file.find(info.name + suffix);
    if (it != file.end()) {
      inputs[info.name] = Converted(it->second, info.type);
    } else if (!info.optional) {
      missing.push_back(
          absl::StrCat("'", info.name, "' ", ElementTypeName(info.type), "[", absl::StrJoin(info.shape, ", "), "]"));
    }
  }
  if (missing.empty()) return inputs;
  std::vector<std::string> present;
  for (const auto& [name, tensor] : file) present.push_back(name);
  return absl::InvalidArgumentError(absl::StrCat(path, ": lacks the inputs ", absl::StrJoin(missing, ", "),
                                                 "; it holds ", absl::StrJoin(present, ", ")));
}

absl::Status RunOnce(LoadedPlan* model, const NamedHostTensors& inputs, const std::string& suffix,
                     NamedTensors* outputs) {
  const absl::StatusOr<NamedHostTensors> results = model->Run(inputs);
  if (!results.ok()) return results.status();
  for (const auto& [name, result] : *results) {
    absl::StatusOr<Tensor> tensor = FromHostTensor(result);
    if (!tensor.ok()) return tensor.status();
    (*outputs)[name + suffix] = *std::move(tensor);
  }
  return absl::OkStatus();
}

// Hugging Face's models take a batch; a row alone is one of a single sequence.
absl::Status ScoreOnce(LoadedPlan* model, NamedHostTensors inputs, const std::string& suffix, NamedTensors* outputs) {
  const bool is_row = inputs.at("input_ids").shape.size() == 1;
  for (auto& [name, tensor] : inputs) {
    if (is_row && tensor.shape.size() == 1) tensor.shape.insert(tensor.shape.begin(), 1);
  }
  if (absl::Status status = RunOnce(model, inputs, suffix, outputs); !status.ok()) return status;
  Tensor& logits = outputs->at("logits" + suffix);
  if (is_row) logits = logits.Reshaped({logits.shape()[1], logits.shape()[2]});
  return absl::OkStatus();
}

absl::StatusOr<NamedTensors> RunPlain(LoadedPlan* model, const NamedTensors& file, const std::string& path) {
  const absl::StatusOr<NamedHostTensors> inputs = PickInputs(*model, file, path, "");
  if (!inputs.ok()) return inputs.status();
  NamedTensors outputs;
  if (absl::Status status = RunOnce(model, *inputs, "", &outputs); !status.ok()) return status;
  return outputs;
}

// A cache that is left out would change what follows without a word.
absl::Status CheckHasNoCache(const NamedTensors& file, const std::string& path) {
  for (const auto& [name, tensor] : file) {
    if (!absl::StartsWith(name, "past") || tensor.size() == 0) continue;
    return absl::InvalidArgumentError(
        absl::StrCat(path, ": holds '", name, "', but the plan keeps its cache itself and begins with an empty one; ",
                     "run the ONNX file, or compile it with --no-promote, to feed a cache"));
  }
  return absl::OkStatus();
}

// One run for each tensor input_ids or input_ids_N.
absl::StatusOr<NamedTensors> RunLanguageModel(LoadedPlan* model, const NamedTensors& file, const std::string& path) {
  if (absl::Status status = CheckHasNoCache(file, path); !status.ok()) return status;
  NamedTensors outputs;
  for (const auto& [name, ids] : file) {
    if (!absl::StartsWith(name, "input_ids")) continue;
    const std::string suffix = name.substr(9);
    const absl::StatusOr<NamedHostTensors> inputs = PickInputs(*model, file, path, suffix);
    if (!inputs.ok()) return inputs.status();
    if (absl::Status status = ScoreOnce(model, *inputs, suffix, &outputs); !status.ok()) {
      return absl::Status(status.code(), absl::StrCat(path, ": ", name, ": ", status.message()));
    }
  }
  if (outputs.empty()) return absl::InvalidArgumentError(absl::StrCat(path, ": has no tensor 'input_ids'"));
  return outputs;
}

void PrintOutputs(const NamedTensors& outputs, bool json) {
  Json list = Json::array();
  for (const auto& [name, tensor] : outputs) {
    list.push_back({{"name", name}, {"dtype", DTypeName(tensor.dtype())}, {"shape", tensor.shape()}});
    if (!json)
      std::printf("%s  %s%s\n", name.c_str(), std::string(DTypeName(tensor.dtype())).c_str(),
                  ShapeToString(tensor.shape()).c_str());
  }
  if (json) PrintJson({{"outputs", list}});
}

Json ToJson(const Number& number) {
  return std::visit([](auto value) { return Json(value); }, number);
}

std::string ToText(const Number& number) {
  if (const auto* integer = std::get_if<int64_t>(&number)) return absl::StrCat(*integer);
  return absl::StrFormat("%.9g", std::get<double>(number));
}

Json ToJson(const Comparison& c) {
  return {{"name", c.name},   {"elements", c.elements}, {"max_abs", c.max_abs},   {"max_rel", c.max_rel},
          {"where", c.where}, {"got", ToJson(c.got)},   {"want", ToJson(c.want)}, {"past_tolerance", c.past_tolerance}};
}

void PrintComparison(const Comparison& c) {
  std::printf("%-4s %s  max abs %.3g  max rel %.3g  worst at [%s]: %s, expected %s\n", c.ok() ? "ok" : "FAIL",
              c.name.c_str(), c.max_abs, c.max_rel, absl::StrJoin(c.where, ", ").c_str(), ToText(c.got).c_str(),
              ToText(c.want).c_str());
}

absl::Status ComparisonError(const Options& options, int64_t past, const std::vector<std::string>& missing) {
  if (!missing.empty()) {
    return absl::InvalidArgumentError(
        absl::StrCat(options.compare, ": lacks the outputs '", absl::StrJoin(missing, "', '"), "'"));
  }
  if (past == 0) return absl::OkStatus();
  return absl::FailedPreconditionError(
      absl::StrFormat("%d elements differ by more than %g + %g * |expected|", past, options.atol, options.rtol));
}

// Prints one line per output. Expected tensors that are no outputs are ignored: the file may hold inputs too.
absl::Status Compare(const NamedTensors& outputs, const NamedTensors& expected, const Options& options) {
  Json list = Json::array();
  std::vector<std::string> missing;
  int64_t past = 0;
  for (const auto& [name, got] : outputs) {
    auto want = expected.find(name);
    if (want == expected.end()) {
      missing.push_back(name);
      continue;
    }
    absl::StatusOr<Comparison> c = CompareTensors(name, got, want->second, options.rtol, options.atol);
    if (!c.ok()) return c.status();
    past += c->past_tolerance;
    list.push_back(ToJson(*c));
    if (!options.json) PrintComparison(*c);
  }
  if (options.json) PrintJson({{"ok", past == 0 && missing.empty()}, {"missing", missing}, {"outputs", list}});
  return ComparisonError(options, past, missing);
}

absl::StatusOr<NamedTensors> ComputeOutputs(const Options& options) {
  absl::StatusOr<NamedTensors> inputs = ReadSafetensors(options.inputs);
  if (!inputs.ok()) return inputs;
  Progress progress;
  ModelSource source = options.source;
  // What goes in and out of a model is what its file says.
  if (!Plan::IsPlan(source.path)) source.promotion = Promotion::kNever;
  absl::StatusOr<std::unique_ptr<LoadedPlan>> model = LoadRunnable(source, "", &progress);
  if (!model.ok()) return model.status();
  progress.Stage("run");
  return (*model)->has_paged_cache() ? RunLanguageModel(model->get(), *inputs, options.inputs)
                                     : RunPlain(model->get(), *inputs, options.inputs);
}

absl::Status Run(const Options& options) {
  if (absl::Status status = CheckOutput(options.outputs, {options.inputs, options.compare}); !status.ok()) {
    return status;
  }
  absl::StatusOr<NamedTensors> expected = NamedTensors();
  if (!options.compare.empty()) expected = ReadSafetensors(options.compare);
  if (!expected.ok()) return expected.status();
  absl::StatusOr<NamedTensors> outputs = ComputeOutputs(options);
  if (!outputs.ok()) return outputs.status();
  if (!options.outputs.empty()) {
    if (absl::Status status = WriteSafetensors(options.outputs, *outputs); !status.ok()) return status;
  }
  if (!options.compare.empty()) return Compare(*outputs, *expected, options);
  PrintOutputs(*outputs, options.json);
  return absl::OkStatus();
}

std::string CheckTolerance(const std::string& text) {
  double value = 0;
  return absl::SimpleAtod(text, &value) && std::isfinite(value) && value >= 0
             ? ""
             : absl::StrCat("'", text, "' is not a finite number of at least 0");
}

}  // namespace

void AddRun(CLI::App& app, Command* chosen) {
  CLI::App* command = AddCommand(app, "run", kSummary, kDetails);
  auto options = std::make_shared<Options>();
  AddRunnableOptions(command, &options->source);
  command->add_option("--inputs", options->inputs, "safetensors file with the inputs")->required();
  command->add_option("--outputs", options->outputs, "safetensors file to write");
  command->add_option("--compare", options->compare,
                      "safetensors file with expected outputs; exit 1 past the tolerance");
  command->add_option("--rtol", options->rtol, "relative tolerance")->capture_default_str()->check(CheckTolerance);
  command->add_option("--atol", options->atol, "absolute tolerance")->capture_default_str()->check(CheckTolerance);
  command->add_flag("--json", options->json, "results as JSON");
  command->callback([options, chosen] {
    options->source.output = options->outputs;
    *chosen = [options] { return Run(*options); };
  });
}

}  // namespace llmc
