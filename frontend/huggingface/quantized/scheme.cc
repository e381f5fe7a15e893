#include "frontend/huggingface/quantized/scheme.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/status_macros.h"
#include "files/path_check.h"
#include "frontend/formats/json_file.h"

namespace llmc::hf {
namespace {

using nlohmann::json;

struct Method {
  absl::string_view name;  // quant_method
  ReadScheme read;
};

constexpr Method kMethods[] = {
    {"gptq", ReadGptq},
    {"auto-round", ReadAutoRound},
    {"awq", ReadAwq},
    {"compressed-tensors", ReadCompressedTensors},
    {"fp8", ReadFp8},
    {"fbgemm_fp8", ReadFbgemmFp8},
    {"modelopt", ReadModelopt},
    {"modelopt_fp4", ReadModelopt},  // as servers name NVFP4's kernels
    {"bitsandbytes", ReadBitsAndBytes},
    {"mxfp4", ReadMxfp4},
    {"hqq", ReadHqq},
    {"torchao", ReadTorchao},
    {"mlx", ReadMlx},
    {"quark", ReadQuark},
};

// Known to the field, and not supported here: with a remedy.
constexpr std::pair<absl::string_view, absl::string_view> kOthers[] = {
    {"aqlm", "codebooks of vectors"},      {"quip", "codebooks of vectors"},
    {"vptq", "codebooks of vectors"},      {"higgs", "codebooks of vectors"},
    {"spqr", "sparse outliers"},           {"eetq", "it is quantized at load"},
    {"quanto", "it is quantized at load"}, {"bitnet", "ternary weights"},
    {"exl2", "mixed bits in one matrix"},  {"exl3", "trellis codes"},
    {"fp_quant", "rotated weights"},       {"sinq", "scales of rows and columns"},
};

bool SaysNothing(const json& value) {
  if (value.is_null() || value == false) return true;
  return (value.is_string() || value.is_array() || value.is_object()) && value.empty();
}

void RefuseUnread(ConfigReader& config) {
  for (const std::string& key : config.fields().Unread()) {
    const json* value = config.Find(key);
    if (value == nullptr || SaysNothing(*value)) continue;
    config.Refuse(absl::StrCat(Quoted(key), " with the value ", value->dump().substr(0, 80),
                               " is not known, and may change what the weights are: remove it if it does not"));
  }
}

}  // namespace

InnerConfig::InnerConfig(ConfigReader& outer, const json* object, const std::string& path)
    : outer_(outer), inner_(object, absl::StrCat(outer.file(), ": ", path)) {}

InnerConfig::~InnerConfig() {
  RefuseUnread(inner_);
  outer_.Keep(inner_.Finish());
}

std::vector<std::string> ReadNames(ConfigReader& config, const std::string& key) {
  const json* list = config.Find(key);
  std::vector<std::string> names;
  if (list == nullptr) return names;
  const auto is_text = [](const json& item) { return item.is_string(); };
  if (!list->is_array() || !std::all_of(list->begin(), list->end(), is_text)) {
    config.Wrong(key, "a list of strings");
    return names;
  }
  for (const json& item : *list) names.push_back(item.get<std::string>());
  return names;
}

std::shared_ptr<const QuantizedScheme> ReadQuantization(ConfigReader& config) {
  const std::string key = "quantization_config";
  const json* object = config.Find(key);
  if (object == nullptr) return nullptr;
  if (!object->is_object()) {
    config.Wrong(key, "an object");
    return nullptr;
  }
  InnerConfig inner(config, object, key);
  // bitsandbytes has not always said what it is.
  const bool is_old =
      !object->contains("quant_method") && (object->contains("load_in_4bit") || object->contains("load_in_8bit"));
  const std::string name = inner->Text("quant_method", is_old ? "bitsandbytes" : "");
  for (const Method& method : kMethods) {
    if (method.name == name) return method.read(*inner);
  }
  for (const std::string& unread : inner->fields().Unread()) inner->Find(unread);
  std::string known;
  for (const Method& method : kMethods) absl::StrAppend(&known, known.empty() ? "" : ", ", method.name);
  std::string why;
  for (const auto& [other, reason] : kOthers) {
    if (other == name) why = absl::StrCat(" (", reason, ")");
  }
  inner->Refuse(absl::StrCat("quant_method ", Quoted(name), " is not supported", why, "; supported: ", known));
  return nullptr;
}

namespace {

// The object in a file beside config.json; null if there is none.
absl::StatusOr<json> ReadQuantizationFile(const std::string& folder, const char* file) {
  absl::StatusOr<json> found = ReadJsonFile(folder, file);
  if (absl::IsNotFound(found.status())) return json();
  if (found.ok() && !found->is_object()) {
    return absl::InvalidArgumentError(absl::StrCat(folder, "/", file, ": must be a JSON object"));
  }
  return found;
}

void AddMethod(const char* method, json* quantization) {
  if (!quantization->contains("quant_method")) (*quantization)["quant_method"] = method;
}

// What mlx-lm writes under "quantization", and mostly again under "quantization_config".
absl::Status AddMlx(const std::string& folder, json* config) {
  const auto mlx = config->find("quantization");
  if (mlx == config->end() || !mlx->is_object() || !mlx->contains("group_size")) return absl::OkStatus();
  json& own = (*config)["quantization_config"];
  if (own.is_object() && own.contains("quant_method") && own["quant_method"] != "mlx") {
    return absl::InvalidArgumentError(
        absl::StrCat(folder, "/config.json: \"quantization\" is of MLX, but quantization_config has quant_method ",
                     own["quant_method"].dump(), "; delete the one that the tensors are not of"));
  }
  own = *mlx;
  own["quant_method"] = "mlx";
  return absl::OkStatus();
}

// What older versions of compressed-tensors wrote: under another name, or beside a sparsity_config in one object.
void AddOldCompressedTensors(json* config) {
  const json old = config->value("compression_config", json());
  if (old.is_object() && config->value("quantization_config", json()).is_null()) {
    json& moved = (*config)["quantization_config"] = old;
    AddMethod("compressed-tensors", &moved);
    config->erase("compression_config");
  }
  const auto own = config->find("quantization_config");
  if (own == config->end() || !own->is_object() || own->value("quant_method", json()) != "compressed-tensors") return;
  const json inner = own->value("quantization_config", json());
  if (!inner.is_object()) return;
  own->erase("quantization_config");
  own->update(inner);
}

// That quantization_config and hf_quant_config.json, if both are there, are of the same method and algorithm.
absl::Status CheckModeloptFile(const std::string& folder, const json& own, const json& modelopt) {
  if (!own.is_object() || modelopt.is_null()) return absl::OkStatus();
  const json of_file = modelopt.value("quantization", json::object());
  const json in_file = of_file.is_object() ? of_file.value("quant_algo", json()) : json();
  const json method = own.value("quant_method", json()), algorithm = own.value("quant_algo", json());
  const bool is_modelopt = method == "modelopt" || method == "modelopt_fp4";
  const bool is_same = is_modelopt && (in_file.is_null() || algorithm.is_null() || in_file == algorithm);
  if (is_same) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(folder, ": hf_quant_config.json is of modelopt, ", in_file.dump(),
                                                 ", but quantization_config of config.json of ", method.dump(),
                                                 algorithm.is_null() ? "" : absl::StrCat(", ", algorithm.dump()),
                                                 "; delete the one that the tensors are not of"));
}

}  // namespace

absl::StatusOr<std::string> AddQuantization(const std::string& folder, json* config) {
  const std::string key = "quantization_config";
  if (!config->is_object()) return "";
  RETURN_IF_ERROR(AddMlx(folder, config));
  AddOldCompressedTensors(config);
  const auto is_there = [&](const std::string& name) { return config->contains(name) && !(*config)[name].is_null(); };
  ASSIGN_OR_RETURN(json modelopt, ReadQuantizationFile(folder, "hf_quant_config.json"));
  if (is_there(key)) {
    RETURN_IF_ERROR(CheckModeloptFile(folder, (*config)[key], modelopt));
    return absl::StrCat("config.json: ", key);
  }
  if (modelopt.is_object()) {
    json& made = (*config)[key];
    made = modelopt.contains("quantization") && modelopt["quantization"].is_object() ? modelopt["quantization"]
                                                                                     : json::object();
    made["quant_method"] = "modelopt";
    return "hf_quant_config.json";
  }
  constexpr std::pair<const char*, const char*> kFiles[] = {{"quantize_config.json", "gptq"},
                                                            {"quant_config.json", "awq"}};
  for (const auto& [file, method] : kFiles) {
    ASSIGN_OR_RETURN(json found, ReadQuantizationFile(folder, file));
    if (!found.is_object()) continue;
    AddMethod(method, &found);
    (*config)[key] = std::move(found);
    return file;
  }
  return "";
}

}  // namespace llmc::hf
