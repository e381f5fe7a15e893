// A kernel that is instantiated wrongly says what is wrong, when it is compiled.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "codegen/kernel_headers.h"
#include "cubins/nvrtc.h"

namespace llmc {
namespace {

using ::testing::HasSubstr;

// A kernel of kernels/HEADER.cuh: its Config, its parameters and the call of it.
struct Kernel {
  std::string header, config, params, call;
};
struct Mistake {
  std::string from, to;  // in the config
  std::string says;
};
struct ConfigCase {
  Kernel kernel;
  std::vector<Mistake> mistakes;
};

const Mistake kThreads = {"kThreads = 256", "kThreads = 200", "kThreads: whole warps, at most 1024 threads"};
const Mistake kManyThreads = {"kThreads = 256", "kThreads = 2048", "kThreads: whole warps, at most 1024 threads"};
const Mistake kTile = {"kThreads = 256", "kThreads = 128", "kThreads: 256"};
const Mistake kType = {"T = float", "T = double", "T: float, f16 or bf16"};
const Mistake kFloatSpelt = {"T = float", "T = llmc::i32", "T: floats"};
const Mistake kNumbers = {"T = float", "T = bool", "T: numbers"};

// Over 60 lines: a table.
std::vector<ConfigCase> Cases() {
  const std::string config = "using T = float; using Index = llmc::i32; INTS kThreads = 256;";
  const auto with = [&](const std::string& ints) {
    return absl::StrReplaceAll(config, {{"INTS", absl::StrCat("static constexpr int ", ints, ",")}});
  };
  const std::string kv =
      "kHeads = 4, kHeadDim = 64, kRotary = 64, kInterleaved = 0, kHeadThreads = 32, kEarly = 1, kPageSize = 16, "
      "kKvHeads = 2, kPageElements = 4096, kKeysAt = 0, kValuesAt = 2048, kValueDim = 64, kGroup = 2, kWindow = 0, "
      "kChunk = 0, kSoftcap = 0";
  const std::string rows = "Config::T* out, const Config::T* x, llmc::i64 n";
  const std::string body = " static __device__ T Apply(T a) { return a; }";
  const std::string strided = "llmc::Strided<const Config::T, 1>{x, {1}}", axes = "llmc::Axes<1>{{n}}";
  return {
      {{"norm/rms_norm", with("kDim = 64"), rows, "RmsNorm<Config>(out, x, x, 1e-5f)"},
       {kThreads, kManyThreads, kType, {"kDim = 64", "kDim = 0", "kDim: a row has elements"}}},
      {{"norm/add_rms_norm", with("kDim = 64"), rows, "AddRmsNorm<Config>(out, out, x, x, x, 1e-5f)"},
       {kThreads, kType}},
      {{"norm/layer_norm", with("kDim = 64, kBias = 1, kLanes = 32, kWeightFirst = 1"), rows,
        "LayerNorm<Config>(out, x, x, x, n, 1e-5f)"},
       {kThreads,
        kType,
        {"kDim = 64", "kDim = 0", "kDim: a row has elements"},
        {"kLanes = 32", "kLanes = 1", "kLanes: 32 or kThreads"}}},
      {{"elementwise/silu_mul", with("kDim = 64"), rows, "SiluMul<Config>(out, x, n)"}, {kThreads, kType}},
      {{"norm/row_norm", with("kCenter = 1, kBias = 1, kLanes = 32") + " using Weight = T; using Bias = T;", rows,
        "RowNorm<Config>(out, x, x, x, n, n, 1e-5f)"},
       {kThreads, kFloatSpelt, {"kLanes = 32", "kLanes = 1", "kLanes: 32 or kThreads"}}},
      {{"norm/softmax", with("kLog = 0, kLanes = 32"), rows, "Softmax<Config>(out, x, n, n, n)"},
       {kThreads, kFloatSpelt, {"kLanes = 32", "kLanes = 16", "kLanes: 1, 32 or kThreads"}}},
      {{"elementwise/cumsum", with("kExclusive = 0, kReverse = 0"), rows, "CumSum<Config>(out, x, n, n, n)"},
       {kThreads, kNumbers}},
      {{"elementwise/argsort", with("kDescending = 0"), "llmc::i64* out, const Config::T* x, llmc::i64 n",
        "ArgSort<Config>(out, x, out, n, n)"},
       {kThreads}},
      {{"linear/matmul", with("kTransposed = 0"), rows,
        absl::StrCat("MatMul<Config>(out, n, n, n, ", axes, ", ", strided, ", ", strided, ")")},
       {kTile}},
      {{"linear/gemv",
        with("kIn = 512, kOut = 64, kTokens = 2, kRows = 16, kWarpColumns = 2, kChunk = 0, kStages = 1, kInFlight = 1, "
             "kXInRing = 0, kSharedBytes = 0, kTransposed = 1, kScale = 3, kZero = 3, kBlock = 16, kBlockRows = 1, "
             "kExponents = 0, kOuter = 0") +
            " using Out = T; using Weight = llmc::EncodedWeight<Config>; using Q = llmc::u4; using Scale = T; using "
            "Zero = llmc::u4;",
        rows + ", const Config::Q* q", "Gemv<Config>(out, x, {q, x, q}, n)"},
       {{"kThreads = 256", "kThreads = 100", "4 warps or more multiply"},
        {"kTokens = 2", "kTokens = 9", "1 to 8 rows of x"},
        {"kBlock = 16", "kBlock = 4", "8 divides rows, and blocks"},
        {"kWarpColumns = 2", "kWarpColumns = 3", "kWarpColumns divides kRows"}}},
      {{"linear/gemv",
        with("kIn = 512, kOut = 64, kTokens = 2, kRows = 16, kChunk = 256, kStages = 2, kInFlight = 2, kXInRing = 0, "
             "kSharedBytes = 49152, kTransposed = 1, kScale = 3, kZero = 3, kBlock = 32, kBlockRows = 1, "
             "kExponents = 0, kOuter = 0") +
            " using Out = T; using Weight = llmc::EncodedWeight<Config>; using Q = llmc::u4; using Scale = T; using "
            "Zero = llmc::u4;",
        rows + ", const Config::Q* q", "Gemv<Config>(out, x, {q, x, q}, n)"},
       {{"kChunk = 256", "kChunk = 96", "a row is whole chunks"},
        {"kBlock = 32", "kBlock = 16", "whole blocks of them"},
        {"kSharedBytes = 49152", "kSharedBytes = 1024", "less than the stages and x take"}}},
      {{"linear/gemv",
        with("kIn = 512, kOut = 64, kTokens = 2, kRows = 16, kChunk = 256, kStages = 2, kInFlight = 2, kXInRing = 0, "
             "kSharedBytes = 49152, kTransposed = 1, kScale = 2, kZero = 0, kBlock = 1, kBlockRows = 1, "
             "kExponents = 0, kOuter = 0, kXScale = 3, kXBlock = 64") +
            " using Out = T; using Weight = llmc::EncodedWeight<Config>; using Q = llmc::f8e4m3; using Scale = T; "
            "using Zero = T; using XCodes = llmc::f8e5m2;",
        "Config::T* out, const Config::T* s, llmc::i64 n, const Config::XCodes* x, const Config::Q* q",
        "Gemv<Config>(out, x, {q, s, s, nullptr, s}, n)"},
       {{"kXBlock = 64", "kXBlock = 6", "kXBlock: whole vectors"},
        {"kXInRing = 0", "kXInRing = 1", "XCodes: become numbers beside a ring"},
        {"kChunk = 256", "kChunk = 0", "XCodes: become numbers beside a ring"}}},
      {{"linear/encoded_gemm",
        "using T = llmc::bf16; using Out = T; static constexpr int kThreads = 512, kIn = 512, kOut = 64, kFew = 1, "
        "kOrdered = 0, kHalves = 1, kSlabs = 1, kGrid = 264, kCluster = 1, kSharedBytes = 114688, kTransposed = 1, "
        "kScale = 3, kZero = 0, kBlock = 64, kBlockRows = 1, kExponents = 0, kOuter = 0; "
        "using Q = llmc::i4; using Scale = T; using Zero = T; using Weight = llmc::EncodedWeight<Config>;",
        "Config::T* out, const Config::T* x, const Config::Q* q, float* partials, llmc::i32* counters, llmc::i64 n",
        "EncodedGemm<Config>(out, x, {q, x, x}, n, partials, counters)"},
       {{"kThreads = 512", "kThreads = 256", "two warpgroups multiply, others copy"},
        {"kIn = 512", "kIn = 320", "kIn: whole stages"},
        {"T = llmc::bf16", "T = float", "T: f16 or bf16"},
        {"kBlock = 64", "kBlock = 96", "parts of a stage are whole words"},
        {"kHalves = 1", "kHalves = 3", "kHalves: 1 or 2"},
        {"kFew = 1", "kFew = 0", "kOrdered: more than few rows are"},
        {"kGrid = 264", "kGrid = 1024", "kGrid: blocks have counters"},
        {"kCluster = 1", "kCluster = 7", "kCluster: of few rows, whole ones"},
        {"kSharedBytes = 114688", "kSharedBytes = 30000", "kSharedBytes: two stages of weights"}}},
      {{"linear/encoded_x",
        "using T = llmc::bf16; static constexpr int kThreads = 256, kIn = 512, kTransposed = 1, kScale = 3, kZero = 0, "
        "kBlock = 64, kBlockRows = 1, kExponents = 0, kOuter = 0; "
        "using Q = llmc::i4; using Scale = T; using Zero = T;",
        "Config::T* out, const Config::T* x, const Config::Q* q, llmc::i64 n",
        "OrderEncodedX<Config>(out, x, {q, x, x}, n)"},
       {{"kIn = 512", "kIn = 320", "kIn: whole stages"}}},
      {{"linear/prompt_gemm",
        "using T = llmc::bf16; using Out = T; static constexpr int kThreads = 384, kIn = 512, kOut = 64, kGated = 1, "
        "kHalves = 1, kFew = 0, kGrid = 0, kMostTokens = 256, kSharedBytes = 228352, kTransposed = 1, kScale = 3, "
        "kZero = 0, kBlock = 64, kBlockRows = 1, "
        "kExponents = 0, kOuter = 0; "
        "using Q = llmc::i4; using Scale = T; using Zero = T; using Weight = llmc::EncodedWeight<Config>;",
        "Config::T* out, const __grid_constant__ llmc::TileMap x, const Config::T* s, const Config::Q* q, llmc::i64 n",
        "PromptGemmSiluMul<Config>(out, x, {q, s, s}, n)"},
       {{"kThreads = 384", "kThreads = 256", "two warpgroups multiply, one copies"},
        {"kIn = 512", "kIn = 320", "kIn: whole stages"},
        {"kHalves = 1", "kHalves = 4", "kHalves: 1 or 2"},
        {"kGrid = 0", "kGrid = 1024", "kGrid: blocks have counters"},
        {"kBlock = 64", "kBlock = 96", "parts of a stage are whole words"},
        {"kSharedBytes = 228352", "kSharedBytes = 60000", "two stages of weights, three slabs of x"}}},
      {{"linear/warpgroup_matmul",
        "using T = llmc::bf16; using A = llmc::f8e4m3; using B = A; using ScaleA = float; using Scale = llmc::bf16; "
        "static constexpr int kThreads = 384, kIn = 512, kOut = 64, kGated = 1, kScaleA = 3, kScale = 3, kWarpgroups = "
        "2, kHalves "
        "= 2, kStages = 4, kStreamK = 1, kCluster = 1, kWeightFirst = 1;",
        "Config::T* out, const __grid_constant__ llmc::TileMap x, const __grid_constant__ llmc::TileMap y, "
        "const llmc::bf16* s, const float* a, void* p, llmc::i32* c, llmc::i64 n",
        "WarpgroupMatMul<Config>(out, x, y, s, a, p, c, n)"},
       {{"kThreads = 384", "kThreads = 256", "warpgroups that multiply, and one that copies"},
        {"kScaleA = 3", "kScaleA = 2", "kScaleA: of blocks like kScale"},
        {"using B = A", "using B = llmc::i8", "A, B: both are floats or integers"},
        {"kCluster = 1", "kCluster = 2", "kCluster: each block has a tile in every turn"},
        {"kOut = 64", "kOut = 60", "results are stored by 16 bytes"}}},
      {{"linear/dense_gemm",
        "using T = llmc::bf16; static constexpr int kThreads = 384, kIn = 512, kOut = 64, kBias = 1, kAddend = 1, "
        "kActivation = 1, kColumns = 128, kWeightFirst = 1;",
        "Config::T* out, const __grid_constant__ llmc::TileMap x, const __grid_constant__ llmc::TileMap y, "
        "const Config::T* b, const Config::T* a, llmc::i64 n",
        "DenseGemm<Config>(out, x, y, b, a, n)"},
       {{"kThreads = 384", "kThreads = 256", "kThreads: two warpgroups multiply, one copies"},
        {"kOut = 64", "kOut = 60", "results are stored by 64 columns, and by 16 bytes"}}},
      {{"linear/gemv",
        with("kIn = 1280, kOut = 64, kTokens = 2, kRows = 16, kChunk = 640, kStages = 2, kInFlight = 2, kXInRing = 0, "
             "kSharedBytes = 49152") +
            " using Out = T; using Weight = llmc::SuperblockWeight<Config>; using Format = llmc::superblock::q8_0;",
        rows + ", const llmc::u8* blocks", "Gemv<Config>(out, x, {blocks}, n)"},
       {{"kIn = 1280", "kIn = 1296", "rows are whole blocks"},
        {"kChunk = 640", "kChunk = 80", "a row is whole chunks"},
        {"kSharedBytes = 49152", "kSharedBytes = 1024", "less than the stages and x take"}}},
      {{"linear/decode", with("kUnused = 0") + " using Format = llmc::superblock::q4_k;",
        "Config::T* out, const llmc::u8* blocks, llmc::i64 n", "DecodeSuperblocks<Config>(out, blocks, n)"},
       {kThreads, kManyThreads}},
      {{"linear/gemv",
        with("kIn = 512, kOut = 64, kTokens = 2, kRows = 16, kWarpColumns = 2, kChunk = 0, kStages = 1, kInFlight = 1, "
             "kXInRing = 0, kSharedBytes = 0, kZeroA = 1, kScaleA = 1, kScale = 2, kZero = 2") +
            " using Out = T; using Weight = llmc::ByteWeight<Config>; using A = llmc::u8; using Scale = T; using B = "
            "llmc::i8; using "
            "ZeroA = A; using ZeroB = B;",
        rows + ", const Config::A* a, const Config::B* b", "Gemv<Config>(out, a, {b, {x, b, x, a}}, n)"},
       {{"kIn = 512", "kIn = 514", "rows are whole words"},
        {"using ZeroA = A", "using ZeroA = B", "ZeroA: the type of the codes"},
        {"using ZeroB = B", "using ZeroB = A", "ZeroB: the type of the codes"},
        {"kIn = 512", "kIn = 65536", "32 bits hold the sum of so many products"}}},
      {{"linear/quantized_matmul",
        with("kZeroA = 1, kScaleA = 1, kScale = 2, kZero = 0, kWhole = 1, kTransposed = 1, kAligned = 1, kWarpsM = 2, "
             "kWarpsN = 4, "
             "kFragmentsM = 2, kFragmentsN = 4, kStages = 4, kHopper = 0") +
            " using A = llmc::u8; using B = llmc::i8; using Scale = T; using ZeroA = A; using ZeroB = B;",
        rows + ", const Config::A* a, const Config::B* b",
        absl::StrCat("QuantizedMatMul<Config>(out, n, n, n, {x, b, x, a}, ", axes,
                     ", llmc::Strided<const Config::A, 1>{a, {1}}, llmc::Strided<const Config::B, 1>{b, {1}})")},
       {{"kWarpsM = 2", "kWarpsM = 3", "kThreads: 32 for each warp"},
        {"kFragmentsN = 4", "kFragmentsN = 3", "columns are read 16 at a time"},
        {"kStages = 4", "kStages = 1", "one stage is read while another is filled"}}},
      {{"elementwise/reduce",
        "using Op = llmc::SumOf<float>; static __device__ float Element(float x) { return x; } "
        "static __device__ float Finish(float sum, float) { return sum; } " +
            with("kLanes = 32"),
        rows,
        absl::StrCat("Reduce<Config>(Config(), out, n, ", axes, ", ", axes,
                     ", llmc::RowOperand<const Config::T, 1, 1>{x, {1}, {1}})")},
       {kThreads, {"kLanes = 32", "kLanes = 8", "kLanes: 1, 32 or kThreads"}}},
      {{"linear/conv", with("kBias = 0"), rows,
        absl::StrCat("Conv<Config>(out, x, x, x, n, n, n, ", axes, ", ", axes, ", ", axes, ", ", axes, ", ", axes, ", ",
                     axes, ")")},
       {kTile}},
      {{"movement/transpose", with("kFast = 0"), rows,
        "Transpose<Config>(out, llmc::Axes<2>{{n, n}}, llmc::Strided<const Config::T, 2>{x, {1, n}})"},
       {kTile,
        {"kFast = 0", "kFast = 1", "the last axis is read with a stride"},
        {"kFast = 0", "kFast = -1", "an axis"}}},
      {{"common/random_weights", with("kAllBits = 0"), rows, "RandomWeights<Config>(out, n, 1, 0.0f, 1.0f)"},
       {kThreads, kType}},
      {{"common/read_stream", with("kLoads = 8"), "llmc::u32* out, const llmc::u32* x", "ReadStream<Config>(out, x)"},
       {kThreads, {"kLoads = 8", "kLoads = 0", "kLoads: what registers have room for"}}},
      {{"linear/unpack",
        with("kWordBits = 32, kBits = 4, kPlanes = 0, kAcross = 0, kOutBits = 4, kSigned = 0, kAdd = 0, kTransposed = "
             "0, kLast = 0, kIndexed = 0") +
            " static __device__ int OrderOf(int n) { return n; }",
        "llmc::u8* out, const llmc::u8* x, llmc::i64 n, const Config::Index* i, llmc::DeviceErrorRecord* f",
        "Unpack<Config>(out, x, i, n, n, n, n, n, n, {f, 0})"},
       {kThreads,
        {"kOutBits = 4", "kOutBits = 9", "kOutBits: 1 to 8"},
        {"kWordBits = 32", "kWordBits = 16", "kWordBits: 8 or 32"}}},
      {{"movement/gather", with("kVec = 4, kVectors = 32"),
        rows + ", const Config::Index* i, llmc::DeviceErrorRecord* f", "Gather<Config>(out, x, i, n, n, n, n, {f, 0})"},
       {kThreads,
        {"kVec = 4", "kVec = 8", "kVec: a power of two, at most 16 bytes"},
        {"kVectors = 32", "kVectors = 999", "kVectors: one for each thread, at the most"},
        {"Index = llmc::i32", "Index = float", "Index: i32 or i64"}}},
      {{"movement/index", with("kTuple = 1"), rows + ", const Config::Index* i, llmc::DeviceErrorRecord* f",
        absl::StrCat("GatherNd<Config>(out, x, i, n, n, n, n, ", axes, ", ", axes, ", {f, 0})")},
       {kThreads,
        {"kTuple = 1", "kTuple = 2", "kTuple: an index for each of the axes"},
        {"Index = llmc::i32", "Index = float", "indices are i32 or i64"}}},
      {{"movement/index", with("kTuple = 1, kJoin = 1"), rows + ", const Config::Index* i, llmc::DeviceErrorRecord* f",
        absl::StrCat("ScatterNd<Config>(out, x, i, n, n, ", axes, ", ", axes, ", {f, 0})")},
       {kThreads,
        {"kTuple = 1", "kTuple = 2", "kTuple: an index for each of the axes"},
        {"kJoin = 1", "kJoin = 5", "kJoin: a ScatterJoin"}}},
      {{"movement/index", with("kUnused = 1"), rows + ", const Config::Index* i, llmc::DeviceErrorRecord* f",
        absl::StrCat("GatherElements<Config>(out, i, n, ", axes, ", ", strided, ", n, n, {f, 0})")},
       {kThreads, {"Index = llmc::i32", "Index = float", "indices are i32 or i64"}}},
      {{"movement/fill", with("kUpper = 0"), rows, "Range<Config>(out, x, x, n)"}, {kThreads, kNumbers}},
      {{"movement/fill", with("kUpper = 0"), rows, "Triangle<Config>(out, x, n, n, n, n)"}, {kThreads}},
      {{"elementwise/elementwise", with("kVec = 4, kWhole = 1") + body, rows,
        absl::StrCat("Elementwise<Config>(Config(), n, ", axes, ", llmc::Strided<Config::T, 1>{out, {1}}, ", strided,
                     ")")},
       {kThreads,
        {"kVec = 4", "kVec = 3", "kVec: a power of two"},
        {"kVec = 4", "kVec = 8", "kVec: at most 16 bytes"},
        {"T = float", "T = llmc::i4", "kWhole: no elements of 4 bits"}}},
      {{"attention/rope", with(kv), rows + ", const llmc::i32* i, const float* f",
        "Rope<Config>(out, llmc::StridedRows<const Config::T>{x, 1, 1}, i, f, 1.0f)"},
       {kThreads,
        kType,
        {"kRotary = 64", "kRotary = 63", "kRotary: pairs of a head"},
        {"kRotary = 64", "kRotary = 128", "kRotary: pairs of a head"},
        {"kHeadThreads = 32", "kHeadThreads = 24", "kHeadThreads: a block is whole teams"}}},
      {{"attention/rope", with(kv), rows + ", const llmc::i32* i", "KvWrite<Config>(out, x, x, i)"},
       {kThreads, {"kPageSize = 16", "kPageSize = 0", "kPageSize, kKvHeads, kHeadDim: of the state"}}},
      {{"attention/paged_attention", with(absl::StrReplaceAll(kv, {{"kHeads = 4", "kHeads = 2"}})),
        rows + ", const llmc::i32* i", "PagedAttention<Config>(out, x, x, i, i, i, n, n, 1.0f, 0.0f)"},
       {kThreads,
        kType,
        {"kHeads = 2", "kHeads = 3", "kHeads: divides kGroup"},
        {"kWindow = 0", "kWindow = -1", "kWindow: positions that a token sees"},
        {"kChunk = 0", "kChunk = -1", "kChunk: positions of a chunk"},
        {"kWindow = 0, kChunk = 0", "kWindow = 8, kChunk = 8", "kChunk: positions of a chunk"}}},
      {{"attention/attention",
        "using Mask = bool; " + with("kMasked = 0, kCausal = 0, kSoftcap = 0, kDim = 8, kValueDim = 8"),
        rows + ", const bool* m",
        "Attention<Config>(out, x, x, x, llmc::Strided<const bool, 4>{m, {0, 0, 0, 0}}, n, n, n, n, n, 1.0f, 0.0f)"},
       {kThreads, {"kDim = 8", "kDim = 0", "kDim, kValueDim: sizes of heads"}}},
      {{"attention/packed_attention",
        with("kKvHeads = 2, kGroup = 2, kKeyDim = 8, kValueDim = 8, kWindow = 0, kCausal = 0, kSoftcap = 0"),
        rows + ", const llmc::i32* i, llmc::DeviceErrorRecord* f",
        "PackedAttention<Config>(out, x, x, x, i, n, n, 1.0f, 0.0f, {f, 0})"},
       {kThreads, {"kKeyDim = 8", "kKeyDim = 0", "kKeyDim, kValueDim: sizes of heads"}}},
      {{"attention/attention", with("kInterleaved = 0"), rows, "RotaryEmbedding<Config>(out, x, x, x, n, n, n, n, n)"},
       {kThreads}},
  };
}

std::string Source(const Kernel& kernel, const std::string& config) {
  const std::string call = absl::StrReplaceAll(kernel.call, {{"<Config>(", "<Config>(llmc::LaunchContext(), "}});
  return absl::StrCat("#include \"kernels/", kernel.header, ".cuh\"\nstruct Config {\n  ", config,
                      "\n};\nextern \"C\" __global__ void k(", kernel.params, ") {\n  llmc::", call, ";\n}\n");
}

TEST(KernelConfig, MistakesAreNamed) {
  if (!NvrtcVersion().ok()) GTEST_SKIP() << "there is no NVRTC on this machine";
  const auto compile = [](const std::string& source) {
    return CompileToCubin(source, "k.cu", "sm_90a", KernelHeaders(), {.fast_compile = true}).status();
  };
  for (const ConfigCase& c : Cases()) {
    SCOPED_TRACE(c.kernel.call);
    const absl::Status right = compile(Source(c.kernel, c.kernel.config));
    EXPECT_TRUE(right.ok()) << right;
    for (const Mistake& mistake : c.mistakes) {
      const std::string config = absl::StrReplaceAll(c.kernel.config, {{mistake.from, mistake.to}});
      ASSERT_NE(config, c.kernel.config) << mistake.from;
      EXPECT_THAT(std::string(compile(Source(c.kernel, config)).message()), HasSubstr(mistake.says)) << mistake.to;
    }
  }
}

// Where it is used, or by the sizes that are made from it.
TEST(KernelConfig, EveryConfigIsChecked) {
  for (const SourceFile& file : KernelHeaders()) {
    const bool has_config = absl::StrContains(file.text, "C::k") || absl::StrContains(file.text, "Config::k");
    const bool is_checked = absl::StrContains(file.text, "static_assert") || absl::StrContains(file.text, "Shape<C>");
    EXPECT_TRUE(!has_config || is_checked) << file.name;
  }
}

}  // namespace
}  // namespace llmc
