// Hugging Face folders: config.json to blocks, blocks and the checkpoint to a graph.
#include "frontend/import.h"

#include "absl/status/status.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"
#include "absl/strings/strip.h"
#include "base/status_macros.h"
#include "files/hub_cache.h"
#include "files/mapped_file.h"
#include "files/path_check.h"
#include "frontend/formats/json_file.h"
#include "frontend/formats/safetensors.h"
#include "frontend/huggingface/decoder_graph.h"
#include "frontend/huggingface/embedding_modules.h"
#include "frontend/huggingface/encoder_graph.h"
#include "frontend/huggingface/family.h"
#include "frontend/huggingface/gguf.h"
#include "frontend/huggingface/quantized/scheme.h"
#include "frontend/huggingface/sequence_graph.h"
#include "frontend/huggingface/weights.h"
#include "ir/verify.h"

namespace llmc {
namespace {

absl::Status NoConfig(const std::string& folder) {
  std::string hint;
  if (ExistsInside(folder, "adapter_config.json").value_or(false)) {
    hint = "; it holds an adapter (adapter_config.json): merge that into its base model first";
  }
  if (const std::vector<std::string> onnx = FilesEndingIn(folder, ".onnx"); !onnx.empty()) {
    absl::StrAppend(&hint, "; for its ONNX model give the file itself: ", folder, "/", onnx[0]);
  }
  return absl::NotFoundError(
      absl::StrCat(folder, ": not a Hugging Face model folder: no config.json", hint, DownloadHint(folder)));
}

// Where attention looks at nothing but the scores of queries and keys of a text, and nothing else at other tokens.
absl::Status SetPacked(const std::string& file, Packing packing, hf::ModelSpec* spec) {
  if (packing == Packing::kNone) return absl::OkStatus();
  auto* encoder = std::get_if<hf::EncoderSpec>(spec);
  const bool is_text = encoder != nullptr && encoder->text.has_value() && !encoder->image.has_value() &&
                       std::holds_alternative<hf::TextInput>(encoder->text->input);
  if (!is_text || encoder->text->disentangled.has_value() || encoder->text->relative_bias.has_value() ||
      encoder->text->convolution.has_value()) {
    if (packing == Packing::kWherePossible) return absl::OkStatus();
    return absl::UnimplementedError(absl::StrCat(
        file,
        ": packed texts are supported for encoders of text without relative positions in attention; leave out "
        "--packed"));
  }
  encoder->packed = true;
  return absl::OkStatus();
}

absl::Status CheckCausal(const hf::ModelSpec& spec, const std::string& file) {
  const auto* decoder = std::get_if<hf::DecoderSpec>(&spec);
  if (decoder == nullptr || decoder->is_causal) return absl::OkStatus();
  return absl::UnimplementedError(
      absl::StrCat(file,
                   ": its tokens see those behind them (use_bidirectional_attention), so it makes vectors of texts, "
                   "not text: say how with --pool of `llmc embed`"));
}

// An error of the configuration with what the tensors say against the number of bits that it has, if they do: words of
// GPTQ hold the codes of all columns, which g_idx counts.
absl::Status WithWordsOf(const Checkpoint& checkpoint, const nlohmann::json& config, const absl::Status& status) {
  if (!config.is_object()) return status;
  const nlohmann::json quantization = config.value("quantization_config", nlohmann::json());
  if (!quantization.is_object()) return status;
  const nlohmann::json number = quantization.value("bits", nlohmann::json());
  const int64_t bits = number.is_number_integer() ? number.get<int64_t>() : 0;
  if (bits < 1 || bits > 32) return status;
  constexpr absl::string_view kWords = ".qweight";
  for (const auto& [name, words] : checkpoint) {
    if (!absl::EndsWith(name, kWords)) continue;
    const std::string module(absl::StripSuffix(name, kWords));
    const auto order = checkpoint.find(module + ".g_idx");
    const bool is_known = order != checkpoint.end() && order->second.tensor.rank() == 1 && words.tensor.rank() == 2;
    if (!is_known) return status;
    const int64_t rows = words.tensor.shape()[0], needed = (order->second.tensor.size() * bits + 31) / 32;
    if (rows == needed) return status;
    return absl::Status(status.code(), absl::StrCat(status.message(), "; also qweight of ", module, " has ", rows,
                                                    " rows, ", bits, " bits would need ", needed));
  }
  return status;
}

absl::StatusOr<hf::ModelSpec> ReadSpec(const std::string& folder, const PoolingChoice& pooling,
                                       std::vector<std::string>* unread = nullptr) {
  ASSIGN_OR_RETURN(const std::string inside, hf::TransformerPath(folder));
  const std::string transformer = inside.empty() ? folder : absl::StrCat(folder, "/", inside);
  absl::StatusOr<nlohmann::json> json = ReadJsonFile(transformer, "config.json");
  if (absl::IsNotFound(json.status())) return NoConfig(transformer);
  if (!json.ok()) return json.status();
  RETURN_IF_ERROR(hf::AddQuantization(transformer, &*json).status());
  const std::string file = absl::StrCat(transformer, "/config.json");
  std::vector<std::string> notes;
  if (unread == nullptr) unread = &notes;
  ASSIGN_OR_RETURN(std::optional<hf::EmbeddingSpec> embedding, hf::ReadEmbedding(folder, pooling));
  if (!embedding.has_value()) {
    absl::StatusOr<hf::ModelSpec> read = hf::ReadModel(*json, file, hf::EncoderClass::kNamed, unread);
    if (!read.ok()) {
      const absl::StatusOr<Checkpoint> checkpoint = ReadCheckpoint(folder, inside);
      return checkpoint.ok() ? WithWordsOf(*checkpoint, *json, read.status()) : read.status();
    }
    hf::ModelSpec spec = *std::move(read);
    RETURN_IF_ERROR(CheckCausal(spec, file));
    RETURN_IF_ERROR(SetPacked(file, pooling.packing, &spec));
    return spec;
  }
  // A class with a head may be named, whatever the checkpoint holds: the modules take hidden states.
  ASSIGN_OR_RETURN(hf::ModelSpec spec, hf::ReadModel(*json, file, hf::EncoderClass::kBase, unread));
  RETURN_IF_ERROR(hf::SetEmbedding(*std::move(embedding), transformer, &spec));
  RETURN_IF_ERROR(SetPacked(file, pooling.packing, &spec));
  return spec;
}

// The weights of modules that are folders of their own.
absl::Status AddModules(const std::string& folder, const hf::ModelSpec& spec, Checkpoint* checkpoint) {
  const auto* encoder = std::get_if<hf::EncoderSpec>(&spec);
  if (encoder == nullptr || !encoder->embedding.has_value()) return absl::OkStatus();
  for (const std::string& module : hf::ModuleFolders(*encoder->embedding)) {
    ASSIGN_OR_RETURN(const Checkpoint own, ReadCheckpoint(folder, module));
    for (const auto& [name, tensor] : own) {
      checkpoint->emplace(absl::StrCat(module, "/", name), CheckpointTensor{tensor.tensor, tensor.file, name});
    }
  }
  return absl::OkStatus();
}

int64_t VocabularyOf(const hf::ModelSpec& spec) {
  if (const auto* decoder = std::get_if<hf::DecoderSpec>(&spec)) return decoder->vocab_size;
  const auto& encoder = std::get<hf::EncoderSpec>(spec);
  if (!encoder.text.has_value()) return 0;
  const auto* input = std::get_if<hf::TextInput>(&encoder.text->input);
  return input == nullptr ? 0 : input->vocab_size;
}

// A finding for each line of the message.
void AddLines(HfFinding::Kind kind, const std::string& file, const absl::Status& status, HfReport* report) {
  if (status.ok()) return;
  for (absl::string_view line : absl::StrSplit(status.message(), '\n')) {
    report->findings.push_back({.kind = kind, .file = file, .message = std::string(line)});
  }
  const bool is_worse = report->status.ok() || absl::IsUnimplemented(report->status);
  if (is_worse) report->status = status;
}

absl::Status CheckAsksForKv(const std::string& folder, const hf::QuantizedScheme* scheme) {
  if (scheme != nullptr && scheme->KvCache().has_value()) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat(folder, ": --kv=checkpoint: ", scheme == nullptr ? "it is not quantized" : scheme->Name(),
                   ", and says nothing of a cache of keys and values; --kv=f8e4m3 stores one with scales of its own"));
}

absl::StatusOr<std::unique_ptr<Model>> BuildModel(const std::string& folder, const hf::ModelSpec& spec,
                                                  std::unique_ptr<Model> model, HfWeights* account,
                                                  std::vector<IgnoredTensor>* ignored,
                                                  DecoderForm form = DecoderForm::kServed,
                                                  const QuantizedUse& use = {}) {
  const hf::QuantizedScheme* scheme = std::visit([](const auto& s) { return s.quantized.get(); }, spec);
  account->set_scheme(scheme);
  account->set_use(use);
  if (use.kv == QuantizedUse::Kv::kAsCheckpoint) RETURN_IF_ERROR(CheckAsksForKv(folder, scheme));
  const auto* decoder = std::get_if<hf::DecoderSpec>(&spec);
  if (decoder == nullptr && form != DecoderForm::kServed) {
    return absl::InvalidArgumentError(absl::StrCat(folder, ": --form is for decoders, and this is an encoder"));
  }
  if (decoder != nullptr) {
    account->SetPrefix(decoder->prefix);
    if (absl::Status s = hf::CheckForm(*decoder, *account, form); !s.ok()) {
      return absl::Status(s.code(), absl::StrCat(folder, ": ", s.message()));
    }
  }
  const absl::Status built = decoder != nullptr
                                 ? hf::BuildDecoder(*decoder, form, account, model.get())
                                 : hf::BuildEncoder(std::get<hf::EncoderSpec>(spec), account, model.get());
  // A weight that does not fit says more than the op that could not take it.
  RETURN_IF_ERROR(account->Finish(ignored));
  if (!built.ok()) return absl::Status(built.code(), absl::StrCat(folder, ": ", built.message()));
  if (use.activations && account->quantized_inputs() == 0) {
    return absl::InvalidArgumentError(absl::StrCat(
        folder, ": --quantize-activations: ", scheme == nullptr ? "the checkpoint is not quantized" : scheme->Name(),
        "; no inputs of layers can be quantized as it says"));
  }
  RETURN_IF_ERROR(Verify(*model, Phase::kImported));
  return model;
}

}  // namespace

absl::StatusOr<std::string> FindQuantization(const std::string& folder) {
  ASSIGN_OR_RETURN(nlohmann::json config, ReadJsonFile(folder, "config.json"));
  return hf::AddQuantization(folder, &config);
}

std::string TransformerFolder(const std::string& folder) {
  const absl::StatusOr<std::string> inside = hf::TransformerPath(folder);
  return inside.ok() && !inside->empty() ? absl::StrCat(folder, "/", *inside) : folder;
}

absl::StatusOr<std::unique_ptr<Model>> ImportHuggingFace(const std::string& folder, std::vector<IgnoredTensor>* ignored,
                                                         const PoolingChoice& pooling, DecoderForm form,
                                                         const QuantizedUse& use) {
  ASSIGN_OR_RETURN(const hf::ModelSpec spec, ReadSpec(folder, pooling));
  ASSIGN_OR_RETURN(const std::string transformer, hf::TransformerPath(folder));
  ASSIGN_OR_RETURN(Checkpoint checkpoint, ReadCheckpoint(folder, transformer));
  RETURN_IF_ERROR(AddModules(folder, spec, &checkpoint));
  auto model = std::make_unique<Model>();
  HfWeights account(folder, &checkpoint, model.get());
  return BuildModel(folder, spec, std::move(model), &account, ignored, form, use);
}

HfReport CheckHuggingFace(const std::string& folder, std::unique_ptr<Model>* model) {
  HfReport report;
  const absl::StatusOr<hf::ModelSpec> spec = ReadSpec(folder, {}, &report.unread_keys);
  absl::StatusOr<Checkpoint> checkpoint = ReadCheckpoint(folder, hf::TransformerPath(folder).value_or(""));
  AddLines(HfFinding::Kind::kConfig, "config.json", spec.status(), &report);
  AddLines(HfFinding::Kind::kCheckpoint, "", checkpoint.status(), &report);
  if (!spec.ok()) return report;
  if (const auto* scheme = std::visit([](const auto& s) { return s.quantized.get(); }, *spec)) {
    report.quantization = scheme->Name();
    report.has_signed_scales = scheme->HasSignedScales();
  }
  report.is_decoder = std::holds_alternative<hf::DecoderSpec>(*spec);
  report.vocab_size = VocabularyOf(*spec);
  if (checkpoint.ok()) {
    const absl::Status modules = AddModules(folder, *spec, &*checkpoint);
    AddLines(HfFinding::Kind::kCheckpoint, "", modules, &report);
  }
  if (!checkpoint.ok()) return report;
  auto built = std::make_unique<Model>();
  HfWeights account(folder, &*checkpoint, built.get());
  absl::StatusOr<std::unique_ptr<Model>> result =
      BuildModel(folder, *spec, std::move(built), &account, &report.ignored);
  report.findings = account.findings();
  report.warnings = account.warnings();
  report.asked.assign(account.asked().begin(), account.asked().end());
  if (!result.ok() && !report.findings.empty()) {
    report.status = result.status();
  } else if (!result.ok()) {
    AddLines(HfFinding::Kind::kConfig, "config.json", result.status(), &report);
  } else {
    *model = *std::move(result);
  }
  return report;
}

absl::StatusOr<std::unique_ptr<Model>> ImportGguf(const std::string& path, std::vector<IgnoredTensor>* ignored) {
  ASSIGN_OR_RETURN(const GgufFile file, ReadGgufModelFiles(path));
  ASSIGN_OR_RETURN(const hf::GgufModel gguf, hf::ReadGgufModel(path, file));
  auto model = std::make_unique<Model>();
  HfWeights account(path, &gguf.checkpoint, model.get());
  account.set_stored_names(gguf.stored_name);
  return BuildModel(path, gguf.spec, std::move(model), &account, ignored);
}

SideFiles GgufSideFiles(const std::string& path) {
  SideFiles files{.prefix = path + ": "};
  const auto fill = [&]() -> absl::Status {
    ASSIGN_OR_RETURN(const GgufFile file, ReadGgufModelFiles(path));
    ASSIGN_OR_RETURN(const hf::GgufModel model, hf::ReadGgufModel(path, file));
    files.config = model.config.dump(-1, ' ', true, nlohmann::json::error_handler_t::replace);
    nlohmann::json generation = nlohmann::json::object();
    for (const char* key : {"bos_token_id", "eos_token_id"}) {
      const auto id = file.metadata.find(absl::StrCat("tokenizer.ggml.", key));
      if (id != file.metadata.end()) generation[key] = *id;
    }
    files.generation_config = generation.dump(-1, ' ', true, nlohmann::json::error_handler_t::replace);
    absl::StatusOr<hf::GgufTokenizer> tokenizer = hf::ReadGgufTokenizer(path, file);
    if (!tokenizer.ok()) {
      files.tokenizer = tokenizer.status();
      return absl::OkStatus();
    }
    if (!tokenizer->tokenizer.empty()) {
      files.tokenizer = std::vector<SideFile>{{"tokenizer.json", std::move(tokenizer->tokenizer)}};
    }
    files.tokenizer_config = std::move(tokenizer->config);
    return absl::OkStatus();
  };
  if (const absl::Status status = fill(); !status.ok()) {
    files.config = status;
    files.tokenizer = status;
  }
  return files;
}

absl::StatusOr<std::unique_ptr<Model>> ImportHuggingFaceConfig(const std::string& folder, const RandomWeights& random,
                                                               const PoolingChoice& pooling, DecoderForm form,
                                                               const QuantizedUse& use) {
  ASSIGN_OR_RETURN(const hf::ModelSpec spec, ReadSpec(folder, pooling));
  auto model = std::make_unique<Model>();
  HfWeights account(random.seed, random.dtype.value_or(std::visit([](const auto& s) { return s.dtype; }, spec)),
                    model.get());
  return BuildModel(folder, spec, std::move(model), &account, nullptr, form, use);
}

}  // namespace llmc
