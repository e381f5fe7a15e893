// AWQ (arXiv:2306.00978) as AutoAWQ's "gemm" stores it: codes of 4 bits along the outputs, eight in a word of 32 in the
// order 0, 2, 4, 6, 1, 3, 5, 7 from its lowest bits on: MODULE.qweight [in, out / 8], qzeros [groups, out / 8],
// scales [groups, out]. A number is (code - zero) * scale.
#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "files/path_check.h"
#include "frontend/huggingface/quantized/name_pattern.h"
#include "frontend/huggingface/quantized/part_reader.h"
#include "frontend/huggingface/quantized/scheme.h"

namespace llmc::hf {
namespace {

// Where the n-th code of a word is.
const std::vector<int64_t> kAwqOrder = {0, 4, 1, 5, 2, 6, 3, 7};

class Awq : public QuantizedScheme {
 public:
  int64_t group_size = 128;
  bool has_zeros = true;
  std::vector<std::string> excluded;

  bool Covers(const LinearModule& module) const override { return !module.is_head && !IsListed(module.name, excluded); }
  std::string CodesOf(const LinearModule&) const override { return "qweight"; }
  std::string Name() const override { return "AWQ, 4 bits"; }
  std::string EncodingOf(const LinearModule& module, DType scale) const override {
    const int64_t group = GroupOf(module);
    return Text(module, group, DTypeName(scale));
  }

  EncodedParts Read(const LinearModule& module, PartReader& reader) const override {
    const int64_t group = GroupOf(module), groups = (module.in + group - 1) / group;
    if (!reader.FillsWords("qweight", module.out, 8)) return {};
    const DType words[] = {DType::kI32};
    const std::string of_groups = absl::StrCat(" = [in ", module.in, " / group ", group, ", out ", module.out);
    Value* packed = reader.Part("qweight", words, {module.in, module.out / 8},
                                absl::StrCat(" = [in ", module.in, ", out ", module.out, " / 8]"));
    Value* scales = reader.Scale("scales", {groups, module.out}, of_groups + "]");
    EncodedParts parts;
    const auto unpacked = [&](Value* x, const std::string& zero, const std::string& name) {
      Unpack op = {.x = x, .bits = 4, .axis = 1, .order = kAwqOrder, .transpose = true};
      if (!has_zeros) op.add = 8;
      op.to = !has_zeros ? DType::kI4 : zero == "u8" ? DType::kU8 : DType::kU4;
      return reader.Add(op, name);
    };
    parts.components = {unpacked(packed, "u4", "codes"), reader.Add(Transpose{.x = scales, .perm = {1, 0}}, "scale")};
    if (has_zeros) {
      Value* zeros = reader.Part("qzeros", words, {groups, module.out / 8}, of_groups + " / 8]");
      parts.components.push_back(unpacked(zeros, ZeroType(groups), "zero"));
    }
    parts.as = Text(module, group, DTypeName(scales->type.dtype));
    return parts;
  }

 private:
  int64_t GroupOf(const LinearModule& module) const { return group_size < 0 ? module.in : group_size; }
  static std::string ZeroType(int64_t groups) { return groups % 2 == 0 ? "u4" : "u8"; }
  std::string Text(const LinearModule& module, int64_t group, absl::string_view scale) const {
    const int64_t groups = (module.in + group - 1) / group;
    return absl::StrCat(has_zeros ? "uint4" : "int4", " group=", group, " scale=", scale, has_zeros ? " zero=" : "",
                        has_zeros ? ZeroType(groups) : "");
  }
};

}  // namespace

std::unique_ptr<QuantizedScheme> ReadAwq(ConfigReader& config) {
  auto scheme = std::make_unique<Awq>();
  const int64_t bits = config.Int("bits", config.Int("w_bit", 4, 1, 64), 1, 64);
  if (bits != 4) config.Refuse(absl::StrCat("AWQ bits ", bits, " is not supported (4)"));
  scheme->group_size = config.Int("group_size", config.Int("q_group_size", 128, -1, kMaxSize), -1, kMaxSize);
  if (scheme->group_size == 0) config.Contradicts("group_size 0 is neither -1 nor a number of columns");
  if (scheme->group_size == 0) scheme->group_size = -1;
  scheme->has_zeros = config.Flag("zero_point", true);
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
