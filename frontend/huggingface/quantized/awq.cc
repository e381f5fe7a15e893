// AWQ (arXiv:2306.00978) as AutoAWQ's "gemm" stores it (word_forms.h).
#include "absl/strings/ascii.h"
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

  bool Covers(const LinearModule& module) const override { return !module.is_head && !IsListed(module.name, excluded); }
  std::string CodesOf(const LinearModule&) const override { return form.codes; }
  std::string Name() const override { return "AWQ, 4 bits"; }
  std::string EncodingOf(const LinearModule& module, DType scale) const override {
    return hf::EncodingOf(form, module, scale);
  }
  EncodedParts Read(const LinearModule& module, PartReader& reader) const override {
    return ReadAwqWords(form, module, reader);
  }
};

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
  scheme->excluded = ReadNames(config, "modules_to_not_convert");
  config.Ignore({"quant_method", "backend", "do_fuse", "fuse_max_seq_len", "modules_to_fuse", "exllama_config"});
  return scheme;
}

}  // namespace llmc::hf
