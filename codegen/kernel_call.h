// A kernel as codegen chooses it: which template of kernels/, with which constants, on what. select.cc makes these,
// emit.cc turns one into source.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "ir/graph.h"

namespace llmc {

// What a parameter is at run time.
struct KernelArg {
  const Value* value = nullptr;  // an operand or result; else one of:
  bool is_dim = false;
  Dim dim;            // passed as i64
  double number = 0;  // passed as f32

  static KernelArg Of(const Value* value) { return {.value = value}; }
  static KernelArg OfDim(Dim dim) { return {.is_dim = true, .dim = std::move(dim)}; }
  static KernelArg OfNumber(double number) { return {.number = number}; }
};

struct KernelParam {
  std::string type;  // in the source: "const llmc::bf16*", "llmc::i64", "float"
  std::string name;
  KernelArg arg;
};

struct KernelCall {
  std::string header;                                      // in kernels/, without .cuh: "rms_norm"
  std::string function;                                    // "RmsNorm"
  std::vector<std::pair<std::string, std::string>> types;  // {"T", "llmc::bf16"}
  std::vector<std::pair<std::string, int64_t>> constants;  // {"kDim", 4096}
  std::string apply;                                       // the body of elementwise kernels, a whole function
  std::vector<KernelParam> params;
  std::array<Dim, 3> grid = {Dim(1), Dim(1), Dim(1)};  // blocks
  int threads = 256;                                   // of a block; becomes kThreads
};

// Matrix product through cuBLASLt: out[m, n] = x[m, k] * weight[n, k]^T.
struct GemmCall {
  const Value* out = nullptr;
  const Value* x = nullptr;
  const Value* weight = nullptr;
  Dim m;
  int64_t n = 0, k = 0;
};

struct CopyCall {
  const Value* to = nullptr;
  const Value* from = nullptr;
  Dim to_offset, bytes;
};

// The complete source of one kernel, for NVRTC or nvcc: nothing in it but `entry` says where it is used, so that calls
// that need the same kernel have the same text.
std::string EmitKernel(const KernelCall& call, const std::string& entry);

// "llmc::bf16", "float", "bool", …
std::string DeviceType(DType dtype);

}  // namespace llmc
