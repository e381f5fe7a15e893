#include "frontend/huggingface/architectures.h"

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "files/path_check.h"

namespace llmc {
namespace {

constexpr HfArchitecture kArchitectures[] = {
    {.name = "LlamaForCausalLM",
     .model = "llama",
     .qkv_bias = HfBias::kConfig,
     .o_bias = HfBias::kConfig,
     .mlp_bias = HfBias::kConfig},
    {.name = "MistralForCausalLM",
     .model = "mistral",
     .window = HfWindow::kAllLayers,
     .defaults = {.intermediate_size = 14336, .kv_heads = 8, .max_position_embeddings = 131072}},
    {.name = "MinistralForCausalLM",
     .model = "ministral",
     .window = HfWindow::kByType,
     .defaults = {.intermediate_size = 14336, .kv_heads = 8, .max_position_embeddings = 131072}},
    {.name = "Qwen2ForCausalLM",
     .model = "qwen2",
     .qkv_bias = HfBias::kAlways,
     .window = HfWindow::kSwitched,
     .defaults = {.vocab_size = 151936, .intermediate_size = 22016, .kv_heads = 32, .max_position_embeddings = 32768}},
    {.name = "Qwen3ForCausalLM",
     .model = "qwen3",
     .qkv_bias = HfBias::kConfig,
     .o_bias = HfBias::kConfig,
     .qk_norm = true,
     .window = HfWindow::kSwitched,
     .defaults = {.vocab_size = 151936,
                  .intermediate_size = 22016,
                  .kv_heads = 32,
                  .head_dim = 128,
                  .max_position_embeddings = 32768}},
};

}  // namespace

absl::Span<const HfArchitecture> HfArchitectures() { return kArchitectures; }

std::string KnownHfArchitectures() {
  return absl::StrJoin(kArchitectures, ", ",
                       [](std::string* out, const HfArchitecture& row) { absl::StrAppend(out, row.name); });
}

absl::StatusOr<const HfArchitecture*> FindHfArchitecture(absl::string_view name) {
  for (const HfArchitecture& row : kArchitectures) {
    if (row.name == name) return &row;
  }
  return absl::UnimplementedError(absl::StrCat("architecture ", Quoted(name), " is not supported; supported are ",
                                               KnownHfArchitectures(), "; others may be imported through ONNX"));
}

}  // namespace llmc
