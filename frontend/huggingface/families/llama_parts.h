// What families with the structure of Llama share.
#pragma once

#include <vector>

#include "frontend/huggingface/family.h"

namespace llmc::hf {

void SetBias(bool qkv, bool o, DecoderSpec* spec);
void SetMlpBias(bool bias, DecoderSpec* spec);
// self_attn.q_norm and k_norm.
void AddHeadNorms(HeadNorm over, double eps, DecoderSpec* spec);
// Norms of what comes out of attention and MLP instead of what goes in (OLMo 2, arXiv:2501.00656, section 3.2).
void NormWhatComesOut(DecoderSpec* spec);
// Which layers rotate, by `no_rope_layers` (1: rotates), else all but each `no_rope_layer_interval`-th.
std::vector<bool> RotatedLayers(ConfigReader& config, size_t layers);
std::vector<bool> All(const DecoderSpec& spec, bool value);
// That layer_types, if they are there, say what other keys say.
void NeedsTypes(ConfigReader& config, const std::vector<bool>& windowed);
// Keys that other engines read and transformers ignores: refuse rather than guess.
void NeedsNoWindow(ConfigReader& config, const DecoderSpec& spec);
// Windows of layers by their types; `use` says whether there are any, `switches` names the keys that say so.
void SetWindowsByType(ConfigReader& config, bool use, int64_t window_absent, const std::vector<bool>& otherwise,
                      absl::string_view switches, DecoderSpec* spec);

}  // namespace llmc::hf
