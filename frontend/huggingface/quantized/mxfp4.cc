// MXFP4 of gpt-oss: all experts of a layer in FUSED_blocks u8 [experts, out, in / 32, 16], with two codes of e2m1 in a
// byte, the first in its low half, and FUSED_scales u8 [experts, out, in / 32], exponents (OCP Microscaling formats).
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "frontend/huggingface/quantized/name_pattern.h"
#include "frontend/huggingface/quantized/part_reader.h"
#include "frontend/huggingface/quantized/scheme.h"

namespace llmc::hf {
namespace {

class Mxfp4 : public QuantizedScheme {
 public:
  std::vector<std::string> excluded;

  // Of layers that stand alone none is quantized.
  bool Covers(const LinearModule& module) const override {
    return !module.is_head && absl::StrContains(module.name, ".experts") && !IsListed(module.name, excluded);
  }
  std::string CodesOf(const LinearModule&) const override { return "weight_blocks"; }
  std::string Name() const override { return "MXFP4 of gpt-oss"; }
  std::string EncodingOf(const LinearModule&, DType) const override { return "mxfp4"; }
  EncodedParts Read(const LinearModule& module, PartReader& reader) const override {
    reader.Wrong("weight_blocks", absl::StrCat(" is missing: ", module.name,
                                               " is of quantization_config, which has all experts in one tensor"));
    return {};
  }

  static std::string PartOf(const std::string& fused, const PartReader& reader, const std::string& what) {
    return absl::StrCat(fused.substr(reader.module().size() + 1), what);
  }
  bool HasStacked(const std::string& fused, const PartReader& reader) const override {
    return reader.Has(PartOf(fused, reader, "_blocks")) || reader.Has(PartOf(fused, reader, "_scales"));
  }
  EncodedParts ReadStacked(const std::string& fused, int64_t experts, const LinearModule& m,
                           PartReader& reader) const override {
    const DType bytes[] = {DType::kU8};
    const int64_t groups = (m.in + 31) / 32;
    const std::string why = absl::StrCat(" = [experts, out, in ", m.in, " / 32");
    Value* blocks =
        reader.Part(PartOf(fused, reader, "_blocks"), bytes, {experts, m.out, groups, 16}, absl::StrCat(why, ", 16]"));
    Value* scales =
        reader.Exponents(PartOf(fused, reader, "_scales"), {experts, m.out, groups}, absl::StrCat(why, "]"));
    blocks = reader.in_rows(reader.Reshaped(blocks, {experts, m.out, groups * 16}));
    scales = reader.in_rows(scales);
    return {.as = "mxfp4", .components = {reader.Add(Unpack{.x = blocks, .axis = 2, .count = m.in}, "codes"), scales}};
  }
};

}  // namespace

std::unique_ptr<QuantizedScheme> ReadMxfp4(ConfigReader& config) {
  auto scheme = std::make_unique<Mxfp4>();
  scheme->excluded = ReadNames(config, "modules_to_not_convert");
  if (config.Flag("dequantize", false)) config.Refuse("dequantize true: the file is not what its configuration says");
  config.Ignore({"quant_method"});
  return scheme;
}

}  // namespace llmc::hf
