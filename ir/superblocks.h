// The superblocks of GGUF: their scales and minima lie among their codes. Each function decodes one, as ggml-quants.c
// of llama.cpp defines it.
#pragma once

#include <cstdint>

namespace llmc {

void DecodeQ4_0(const uint8_t* block, float* out);  // 32 elements in 18 bytes
void DecodeQ8_0(const uint8_t* block, float* out);  // 32 in 34
void DecodeQ4K(const uint8_t* block, float* out);   // 256 in 144
void DecodeQ6K(const uint8_t* block, float* out);   // 256 in 210

}  // namespace llmc
