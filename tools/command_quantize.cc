#include <algorithm>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <system_error>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/status_macros.h"
#include "files/temporary_folder.h"
#include "nlohmann/json.hpp"
#include "quantize/quantize.h"
#include "runtime/device/device_choice.h"
#include "runtime/engine/generation_config.h"
#include "runtime/engine/perplexity.h"
#include "runtime/text/tokenizer.h"
#include "tools/commands.h"
#include "tools/compile_model.h"
#include "tools/device_steps.h"
#include "tools/interrupt.h"
#include "tools/model_folder.h"
#include "tools/model_source.h"
#include "tools/output.h"
#include "tools/progress.h"
#include "tools/summary.h"

namespace llmc {
namespace quantize_command {
namespace {

using Json = nlohmann::ordered_json;

constexpr char kSummary[] = "Quantizes the weights of a Hugging Face folder.";

std::string Details() {
  return absl::StrCat(
      "--scheme is FORMAT[:OPTION…], one for all linear layers, or PATTERN=SCHEME,… where the first pattern that "
      "matches\n"
      "a layer decides: 'q_proj|k_proj=fp8,layers.0.*=none,*=int4:g64'.\n",
      SchemeHelp(),
      "Examples:\n"
      "  llmc quantize model-folder -o model-int4 --scheme=int4:g128\n"
      "  llmc quantize model-folder -o model-fp8 --scheme=fp8\n"
      "  llmc quantize model-folder -o plan.bin --scheme=int8 --target=sm_80,sm_90a\n"
      "  llmc quantize model-folder -o model-gptq --scheme=gptq --calibration=text.txt\n"
      "  llmc quantize model-folder -o model-mixed --scheme='q_proj|k_proj=fp8,*=awq' --calibration=text.txt\n"
      "  llmc quantize model-folder -o model-as-if --scheme=nf4 --decoded=bf16     to study what is lost");
}

struct Options {
  std::string given_folder;  // of AddModelPath
  QuantizeRequest request;
  CompileRequest compile;              // of a plan
  std::vector<std::string> of_a_plan;  // names of given options that say how it is compiled
  std::string decoded, calibration, kv, device = "host";
  int64_t samples = 64, sample_tokens = 512;
  bool json = false;
};

// Samples of the calibration text: windows of equal length that are spread evenly over it.
absl::StatusOr<std::vector<std::vector<int32_t>>> ReadSamples(const Options& options) {
  const std::string& folder = options.request.folder;
  const SideFiles files = SideFilesOf(folder);
  absl::StatusOr<std::unique_ptr<Tokenizer>> tokenizer = ReadTokenizer(files);
  if (!tokenizer.ok()) {
    return absl::Status(tokenizer.status().code(),
                        absl::StrCat(folder, ": has no tokenizer that can be used: ", tokenizer.status().message()));
  }
  ASSIGN_OR_RETURN(const std::string text, ReadCorpus(options.calibration));
  ASSIGN_OR_RETURN(const std::vector<int32_t> ids, EncodeCorpus(**tokenizer, text));
  const int64_t length = options.sample_tokens, windows = static_cast<int64_t>(ids.size()) / length;
  if (windows == 0) {
    return absl::InvalidArgumentError(absl::StrCat(options.calibration, ": has ", ids.size(), " tokens, and a sample ",
                                                   length, "; give a longer text, or --sample-tokens"));
  }
  const int64_t count = std::min(options.samples, windows);
  std::vector<std::vector<int32_t>> samples;
  for (int64_t i = 0; i < count; ++i) {
    const auto begin = ids.begin() + i * windows / count * length;
    samples.emplace_back(begin, begin + length);
  }
  return samples;
}

Json ReportJson(const QuantizeReport& report, const Options& options) {
  Json json = {{"folder", options.request.output},
               {"bytes", report.bytes_after},
               {"bytes_before", report.bytes_before},
               {"modules", Json::array()},
               {"left_out", Json::array()}};
  for (const QuantizedModule& module : report.modules) {
    json["modules"].push_back({{"name", module.name},
                               {"scheme", module.scheme},
                               {"bits", module.bits},
                               {"weight_error", module.weight_error}});
    Json& json_module = json["modules"].back();
    if (module.nearest_error.has_value()) json_module["nearest_output_error"] = *module.nearest_error;
    if (module.output_error.has_value()) json_module["output_error"] = *module.output_error;
    if (!module.note.empty()) json_module["note"] = module.note;
  }
  for (const auto& [name, why] : report.left_out) json["left_out"].push_back({{"name", name}, {"reason", why}});
  return json;
}

std::string PercentText(const std::optional<double>& part) {
  return part.has_value() ? absl::StrFormat("%9.3f%%", 100 * *part) : std::string(10, ' ');
}

std::string ReportText(const QuantizeReport& report, const Options& options) {
  const bool is_calibrated = !options.calibration.empty();
  std::string text = absl::StrFormat("%-40s %-28s %6s %10s%s\n", "layer", "scheme", "bits", "weights",
                                     is_calibrated ? "  by nearest  by scheme" : "");
  for (const QuantizedModule& module : report.modules) {
    absl::StrAppendFormat(&text, "%-40s %-28s %6.3f %s", module.name, module.scheme, module.bits,
                          PercentText(module.weight_error));
    if (is_calibrated) {
      absl::StrAppend(&text, "  ", PercentText(module.nearest_error), " ", PercentText(module.output_error));
    }
    absl::StrAppend(&text, module.note.empty() ? "" : "  ", module.note, "\n");
  }
  for (const auto& [name, why] : report.left_out) absl::StrAppendFormat(&text, "%-40s as it was: %s\n", name, why);
  if (is_calibrated) {
    absl::StrAppend(&text, "errors of weights, and of outputs with weights rounded to nearest and by the scheme\n");
  }
  absl::StrAppend(&text, options.request.output, ": ", HumanBytes(report.bytes_after), " of weights, ",
                  HumanBytes(report.bytes_before), " before\n");
  return text;
}

bool IsPlanName(const std::string& output) { return absl::EndsWith(output, ".bin"); }

// The folder goes away again.
absl::StatusOr<QuantizeReport> QuantizePlanFile(QuantizeRequest request, CompileRequest compile, Progress* progress) {
  const std::string plan = request.output;
  RETURN_IF_ERROR(CheckOutput(plan, {request.folder}));
  ASSIGN_OR_RETURN(const TemporaryFolder folder, TemporaryFolder::CreateBeside(plan));
  request.output = folder.PathOf("model");
  ASSIGN_OR_RETURN(QuantizeReport report, QuantizeFolder(request));
  compile.plan.output = plan;
  RETURN_IF_ERROR(CompileModel({.path = request.output, .output = plan}, compile, progress).status());
  return report;
}

// Such a folder would become part of the model that it is made of.
absl::Status CheckIsOutside(const std::string& output, const std::string& folder) {
  namespace fs = std::filesystem;
  std::error_code error;
  // A path of which nothing exists stays relative unless it is made absolute.
  const fs::path inner = fs::weakly_canonical(fs::absolute(output, error), error);
  const fs::path outer = fs::weakly_canonical(fs::absolute(folder, error), error);
  const auto [end, at] = std::mismatch(outer.begin(), outer.end(), inner.begin(), inner.end());
  if (error || end != outer.end() || at == inner.end()) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat(output, ": is inside of the model's folder, ", folder, "; give a folder elsewhere"));
}

absl::Status Run(const Options& options) {
  const InterruptCleanup cleanup;
  if (!IsHuggingFaceFolder(options.request.folder)) {
    return absl::InvalidArgumentError(absl::StrCat(
        options.request.folder,
        ": is no Hugging Face folder; only weights in such a one, with config.json and safetensors, are quantized"));
  }
  if (!IsPlanName(options.request.output)) {
    RETURN_IF_ERROR(CheckIsOutside(options.request.output, options.request.folder));
    if (!options.of_a_plan.empty()) {
      return absl::InvalidArgumentError(absl::StrCat(options.of_a_plan[0], " says how a plan is compiled, and ",
                                                     options.request.output,
                                                     " is to be a folder: give -o NAME.bin, or leave it away"));
    }
  }
  Progress progress;
  progress.Stage("import");
  QuantizeRequest request = options.request;
  std::string stage;
  request.on_progress = [&](absl::string_view now, int64_t done, int64_t total) {
    if (now != stage) progress.Stage(now);
    stage = std::string(now);
    progress.Count(done, total);
  };
  if (!options.decoded.empty()) {
    ASSIGN_OR_RETURN(request.decoded, ParseDType(options.decoded));
  }
  if (request.ignore == std::vector<std::string>{"none"}) request.ignore.clear();
  request.kv_scales = !options.kv.empty();
  ASSIGN_OR_RETURN(const DeviceChoice device, ParseDevice(options.device));
  std::unique_ptr<DeviceSteps> steps;
  if (device.is_gpu) {
    if (options.calibration.empty()) {
      return absl::InvalidArgumentError(
          "--device says where the calibration text runs, and there is none: give --calibration=FILE, or leave "
          "--device "
          "away");
    }
    ASSIGN_OR_RETURN(steps, DeviceSteps::Create(device.index));
    request.device = steps.get();
  }
  if (!options.calibration.empty()) {
    progress.Stage("tokenize");
    ASSIGN_OR_RETURN(request.samples, ReadSamples(options));
    progress.Stage("import");
  }
  ASSIGN_OR_RETURN(const QuantizeReport report, IsPlanName(request.output)
                                                    ? QuantizePlanFile(request, options.compile, &progress)
                                                    : QuantizeFolder(request));
  progress.Clear();
  if (options.json) {
    PrintJson(ReportJson(report, options));
  } else {
    PrintText(ReportText(report, options));
  }
  return absl::OkStatus();
}

// Declares and gives the options that say how a plan is compiled.
std::vector<CLI::Option*> AddPlanOptions(CLI::App* command, Options* options) {
  const size_t others = command->get_options().size();
  AddTargetOptions(command, &options->compile);
  std::vector<CLI::Option*> all = command->get_options();
  all.erase(all.begin(), all.begin() + static_cast<ptrdiff_t>(others));
  return all;
}

// Names of those that the command line has.
std::vector<std::string> GivenOf(const std::vector<CLI::Option*>& options) {
  std::vector<std::string> given;
  for (const CLI::Option* option : options) {
    if (option->count() > 0) given.push_back(option->get_name());
  }
  return given;
}

}  // namespace
}  // namespace quantize_command

void AddQuantize(CLI::App& app, Command* chosen) {
  using namespace quantize_command;
  CLI::App* command = AddCommand(app, "quantize", kSummary, Details());
  auto options = std::make_shared<Options>();
  AddModelPath(command, &options->request.folder, &options->given_folder,
               "a Hugging Face folder, or the name of one in its cache (org/name)");
  command
      ->add_option(
          "-o,--output", options->request.output,
          "the folder to write, which must not be there or be empty; or NAME.bin, a plan as of `llmc compile`, which "
          "replaces a file of that name when it is whole")
      ->required();
  command
      ->add_option_function<std::string>(
          "--scheme",
          [options](const std::string& text) {
            absl::StatusOr<std::vector<SchemeRule>> rules = ParseSchemeRules(text);
            RequireUsage(rules.status());
            options->request.rules = *std::move(rules);
          },
          "what weights become; see below")
      ->required();
  command
      ->add_option(
          "--ignore", options->request.ignore,
          "patterns of layers that stay as they are, as in --scheme; repeatable; lm_head is the head, whatever "
          "it is called; none: no layer")
      ->allow_extra_args(false)
      ->capture_default_str();
  command
      ->add_option("--decoded", options->decoded,
                   "write what the codes stand for, in f32, f16 or bf16, as a folder that is not quantized")
      ->check(CLI::IsMember({"f32", "f16", "bf16"}));
  CLI::Option* calibration = command->add_option(
      "--calibration", options->calibration,
      "UTF-8 text like what the model will read, from which schemes learn what inputs of layers are like");
  command->add_option("--samples", options->samples, "of the calibration text, evenly spread over it")
      ->needs(calibration)
      ->check(CLI::Range(int64_t{1}, int64_t{1} << 20))
      ->capture_default_str();
  command->add_option("--sample-tokens", options->sample_tokens, "tokens of a sample")
      ->needs(calibration)
      ->check(CLI::Range(int64_t{2}, int64_t{1} << 20))
      ->capture_default_str();
  command
      ->add_option("--device", options->device,
                   "where the calibration text runs: host, cuda (the first GPU) or cuda:N (GPU number N)")
      ->check([](const std::string& text) { return std::string(ParseDevice(text).status().message()); })
      ->capture_default_str();
  command->add_option("--kv", options->kv, "write scales for a cache of keys and values in this type: fp8")
      ->check(CLI::IsMember({"fp8"}));
  command->add_flag("--json", options->json, "report as JSON");
  const std::vector<CLI::Option*> of_a_plan = AddPlanOptions(command, options.get());
  command->callback([command, options, of_a_plan, chosen] {
    options->of_a_plan = GivenOf(of_a_plan);
    if (command->count("--target") == 0) SetDefaultTarget(&options->compile.plan);
    *chosen = [options] { return Run(*options); };
  });
}

}  // namespace llmc
