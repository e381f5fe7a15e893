// Products of 16-bit floats with an activation, as calls of kernels/linear/dense_gemm.cuh.
#include "codegen/tasks/select_internal.h"
#include "kernels/layout/linear.h"

namespace llmc {
namespace {

using Layout = DenseGemmLayout;

std::optional<Misfit> CallMisfit(const GemmCall& call) {
  const DType dtype = call.out->type.dtype;
  if (dtype != DType::kF16 && dtype != DType::kBF16) return Misfit{std::string(DTypeName(dtype)), "f16 or bf16"};
  if (call.x->type.dtype != dtype || call.weight->type.dtype != dtype) return Misfit{"other factors", "of one type"};
  if (!call.transposed || !(call.batch == Dim(1))) return Misfit{"other factors", "one product with a weight [n, k]"};
  const bool is_whole = call.n.is_constant() && call.k.is_constant() && call.n.value() % 8 == 0 &&
                        call.k.value() % 8 == 0 && call.k.value() > 0 && call.n.value() >= 64;
  return is_whole ? std::nullopt : std::optional(Misfit{"other sizes", "n and k that 8 divides, and 64 columns"});
}

}  // namespace

Calls SelectDenseGemm(const KernelBody& body, const ProgramScope& scope) {
  if (!scope.target.wgmma) return Misfit{"a GPU without products of warpgroups", "sm_90a"};
  // What few rows of a step take is the time in which the weight comes, for which there are other kernels.
  if (scope.decode > 0 || scope.tokens > 0) return Misfit{"a step of few tokens", "any number"};
  GemmCall gemm;
  if (std::optional<Misfit> misfit = ReadGemm(body, /*takes_gelu=*/true, &gemm)) return *misfit;
  if (std::optional<Misfit> misfit = CallMisfit(gemm)) return *misfit;
  KernelCall call{.header = "linear/dense_gemm", .function = "DenseGemm", .pdl = true};
  call.types = {{"T", DeviceType(gemm.out)}};
  call.constants = {{"kIn", gemm.k.value()},
                    {"kOut", gemm.n.value()},
                    {"kBias", gemm.bias != nullptr},
                    {"kAddend", gemm.residual != nullptr},
                    {"kActivation", gemm.gelu        ? kDenseGelu
                                    : gemm.gelu_tanh ? kDenseGeluTanh
                                                     : kDenseNone},
                    {"kColumns", Layout::ColumnsOf(gemm.n.value())},
                    {"kWeightFirst", IsThereBeforeStep(gemm.weight)}};
  const std::string map = "const __grid_constant__ llmc::TileMap";
  const int64_t row_bytes = gemm.k.value() * 2;
  call.params = {Out(gemm.out, "out"),
                 {map, "x", KernelArg::OfTiles(gemm.x, Size(gemm.m), row_bytes, Layout::kBoxRows)},
                 {map, "weight", KernelArg::OfTiles(gemm.weight, Size(gemm.n), row_bytes, Layout::kBoxRows)}};
  if (gemm.bias != nullptr) call.params.push_back(In(gemm.bias, "bias"));
  if (gemm.residual != nullptr) call.params.push_back(In(gemm.residual, "addend"));
  call.params.push_back(Count(gemm.m, "m"));
  call.arguments = std::string("out, x, weight, ") + (gemm.bias != nullptr ? "bias, " : "nullptr, ") +
                   (gemm.residual != nullptr ? "addend, " : "nullptr, ") + "m";
  call.threads = Layout::kThreads;
  call.shared_bytes = Layout::kSharedBytes;
  call.blocks_of_sm = 1;
  call.grid[0] = Dim(scope.target.sms);
  return std::vector<DeviceCall>{call};
}

}  // namespace llmc
