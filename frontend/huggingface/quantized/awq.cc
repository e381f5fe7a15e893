// AWQ (arXiv:2306.00978) as AutoAWQ's "gemm" stores it (word_forms.h).
#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "files/path_check.h"
#include "frontend/huggingface/quantized/name_pattern.h"
#include "frontend/huggingface/quantized/scheme.h"
#include "frontend/huggingface/quantized/word_forms.h"

namespace llmc::hf {
namespace {

class Awq : public QuantizedScheme {
 public:
  AwqForm form;
  std::vector<std::string> excluded;
  bool has_head = false;

  bool Covers(const LinearModule& module) const override {
    return (has_head || !module.is_head) && !IsListed(module.name, excluded);
  }
  std::string CodesOf(const LinearModule&) const override { return form.codes; }
  bool HasSignedScales() const override { return true; }
  std::string Name() const override { return "AWQ, 4 bits"; }
  std::string EncodingOf(const LinearModule& module, DType scale) const override {
    return hf::EncodingOf(form, module, scale);
  }
  EncodedParts Read(const LinearModule& module, PartReader& reader) const override {
    return ReadAwqWords(form, module, reader);
  }
};

// What GPTQModel says beside the fields of AutoAWQ. Modules that `dynamic` leaves out are plain floats.
void ReadGptqModelFields(ConfigReader& config, Awq* scheme) {
  for (const char* key : {"checkpoint_format", "format"}) {
    const std::string format = absl::AsciiStrToLower(config.Text(key, "gemm"));
    if (format != "gemm") config.Refuse(absl::StrCat("AWQ ", key, " ", Quoted(format), " is not supported (gemm)"));
  }
  if (config.Text("pack_dtype", "int32") != "int32") config.Refuse("pack_dtype: only int32 is supported");
  scheme->has_head = config.Flag("lm_head", false);
  const nlohmann::json* rules = config.Find("dynamic");
  if (rules != nullptr && !rules->is_object()) config.Wrong("dynamic", "an object from patterns to settings");
  const nlohmann::json none = nlohmann::json::object();
  for (const auto& [key, value] : (rules != nullptr && rules->is_object() ? rules : &none)->items()) {
    if (absl::StartsWith(key, "-:")) continue;
    config.Refuse(
        absl::StrCat("dynamic: other settings of single modules (", Quoted(key), ") are not supported of AWQ"));
  }
  config.Ignore({"method", "meta", "sym", "desc_act"});
}

}  // namespace

std::unique_ptr<QuantizedScheme> ReadAwq(ConfigReader& config) {
  auto scheme = std::make_unique<Awq>();
  const int64_t bits = config.Int("bits", config.Int("w_bit", 4, 1, 64), 1, 64);
  if (bits != 4) config.Refuse(absl::StrCat("AWQ bits ", bits, " is not supported (4)"));
  scheme->form.group_size = config.Int("group_size", config.Int("q_group_size", 128, -1, kMaxSize), -1, kMaxSize);
  if (scheme->form.group_size == 0) config.Contradicts("group_size 0 is neither -1 nor a number of columns");
  if (scheme->form.group_size == 0) scheme->form.group_size = -1;
  scheme->form.has_zeros = config.Flag("zero_point", true);
  const std::string version = absl::AsciiStrToLower(config.Text("version", "gemm"));
  if (version != "gemm") {
    config.Refuse(absl::StrCat("AWQ version ", Quoted(version),
                               " is a layout of other kernels; supported: gemm (the layout of most checkpoints)"));
  }
  ReadGptqModelFields(config, scheme.get());
  scheme->excluded = ReadNames(config, "modules_to_not_convert");
  config.Ignore({"quant_method", "backend", "do_fuse", "fuse_max_seq_len", "modules_to_fuse", "exllama_config"});
  return scheme;
}

}  // namespace llmc::hf
