#include "runtime/device/cublaslt.h"

#include <dlfcn.h>

#include <algorithm>
#include <array>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"

namespace llmc {

// By the documented binary interface of cuBLASLt 12 and 13.
struct CublasLt {
  size_t (*version)();
  int (*create)(void**);
  int (*destroy)(void*);
  int (*desc_create)(void**, int compute, int scale);
  int (*desc_destroy)(void*);
  int (*desc_set)(void*, int, const void*, size_t);
  int (*layout_create)(void**, int type, uint64_t rows, uint64_t columns, int64_t stride);
  int (*layout_destroy)(void*);
  int (*layout_set)(void*, int, const void*, size_t);
  int (*preference_create)(void**);
  int (*preference_destroy)(void*);
  int (*preference_set)(void*, int, const void*, size_t);
  int (*heuristic)(void*, void*, void*, void*, void*, void*, void*, int, void*, int*);
  int (*matmul)(void*, void*, const void*, const void*, void*, const void*, void*, const void*, const void*, void*,
                void*, void*, const void*, void*, size_t, void*);
};

namespace {

// Shapes whose algorithm is kept: more than a program has, or GPTQ needs for a model (641 for 4,096 and 14,336
// inputs in blocks of 128), and a bound on what prompts of every length leave behind.
constexpr size_t kMaxPrepared = 1024;
constexpr int kCompute32F = 68, kCompute32FOfTf32 = 77;
constexpr int kDescTransA = 3;
constexpr int kTranspose = 1;
constexpr int kLayoutBatchCount = 5;
constexpr int kLayoutBatchStride = 6;
constexpr int kDescEpilogue = 7, kDescBias = 8;
constexpr int kDescScaleA = 17, kDescScaleB = 18, kDescScaleModeA = 31, kDescScaleModeB = 32;
constexpr int32_t kScaleOfAll = 0, kScalesOfRows = 3;
constexpr int kPreferenceMaxWorkspace = 1, kPreferenceReductions = 3;
constexpr uint32_t kReduceInComputeType = 2;  // parts of a sum are added in f32, wherever they were computed

struct Algorithm {
  uint64_t data[8];
};
struct Heuristic {
  Algorithm algorithm;
  size_t workspace_bytes;
  int state;
  float waves;
  int reserved[4];
};

int CudaType(DType type) {
  switch (type) {
    case DType::kF32:
      return 0;
    case DType::kF16:
      return 2;
    case DType::kF8E4M3:
      return 28;
    case DType::kF8E5M2:
      return 29;
    default:
      return 14;
  }
}

template <class F>
bool FindIn(void* library, const char* name, F* function) {
  *function = reinterpret_cast<F>(dlsym(library, name));
  return *function != nullptr;
}

absl::StatusOr<CublasLt> OpenLibrary() {
  for (const char* name : {"libcublasLt.so.13", "libcublasLt.so.12", "/usr/local/cuda/lib64/libcublasLt.so.13",
                           "/usr/local/cuda/lib64/libcublasLt.so.12"}) {
    void* library = dlopen(name, RTLD_NOW | RTLD_LOCAL);
    if (library == nullptr) continue;
    CublasLt l = {};
    const bool whole =
        FindIn(library, "cublasLtGetVersion", &l.version) && FindIn(library, "cublasLtCreate", &l.create) &&
        FindIn(library, "cublasLtDestroy", &l.destroy) && FindIn(library, "cublasLtMatmulDescCreate", &l.desc_create) &&
        FindIn(library, "cublasLtMatmulDescDestroy", &l.desc_destroy) &&
        FindIn(library, "cublasLtMatmulDescSetAttribute", &l.desc_set) &&
        FindIn(library, "cublasLtMatrixLayoutCreate", &l.layout_create) &&
        FindIn(library, "cublasLtMatrixLayoutDestroy", &l.layout_destroy) &&
        FindIn(library, "cublasLtMatrixLayoutSetAttribute", &l.layout_set) &&
        FindIn(library, "cublasLtMatmulPreferenceCreate", &l.preference_create) &&
        FindIn(library, "cublasLtMatmulPreferenceDestroy", &l.preference_destroy) &&
        FindIn(library, "cublasLtMatmulPreferenceSetAttribute", &l.preference_set) &&
        FindIn(library, "cublasLtMatmulAlgoGetHeuristic", &l.heuristic) && FindIn(library, "cublasLtMatmul", &l.matmul);
    if (whole) return l;
  }
  return absl::NotFoundError(
      "running on a GPU needs cuBLASLt (libcublasLt.so.13 or .12): install the CUDA toolkit or its runtime libraries");
}

// Opened once and never closed.
absl::StatusOr<const CublasLt*> Library() {
  static const absl::StatusOr<CublasLt>* library = new absl::StatusOr<CublasLt>(OpenLibrary());
  if (!library->ok()) return library->status();
  return &**library;
}

uint32_t EpilogueOf(const MatrixProducts::Shape& shape) {
  constexpr uint32_t kPlain = 1, kBias = 4, kGelu = 32;  // cublasLtEpilogue_t; its GELU is the tanh form
  const uint32_t epilogue = (shape.bias ? kBias : 0) | (shape.gelu_tanh ? kGelu : 0);
  return epilogue == 0 ? kPlain : epilogue;
}

void* Pointer(DevicePointer at) { return reinterpret_cast<void*>(at); }

absl::Status Check(int result, absl::string_view what) {
  if (result == 0) return absl::OkStatus();
  return absl::InternalError(absl::StrCat("cuBLASLt: ", what, ": status ", result));
}

}  // namespace

// cuBLAS thinks in columns: the row-major out[m, n] is its n x m matrix weight^T' * x'.
struct MatrixProducts::Prepared {
  const CublasLt* library = nullptr;
  void *desc = nullptr, *weight = nullptr, *x = nullptr, *out = nullptr;
  Algorithm algorithm = {};
  int proposals = 0;  // that were asked for and found
  int proposal = 0;   // the number of `algorithm`
  ~Prepared() {
    if (out != nullptr) library->layout_destroy(out);
    if (x != nullptr) library->layout_destroy(x);
    if (weight != nullptr) library->layout_destroy(weight);
    if (desc != nullptr) library->desc_destroy(desc);
  }
};

absl::Status MatrixProducts::Find() { return Library().status(); }

absl::StatusOr<std::unique_ptr<MatrixProducts>> MatrixProducts::Create(Device* device) {
  ASSIGN_OR_RETURN(const CublasLt* library, Library());
  auto products = std::unique_ptr<MatrixProducts>(new MatrixProducts());
  products->device_ = device;
  products->library_ = library;
  ASSIGN_OR_RETURN(DeviceMemory workspace, device->Allocate(kProductWorkspaceBytes));
  products->workspace_ = std::move(workspace);
  RETURN_IF_ERROR(Check(library->create(&products->handle_), "start"));
  return products;
}

MatrixProducts::~MatrixProducts() {
  prepared_.clear();
  if (handle_ != nullptr) library_->destroy(handle_);
}

absl::Status MatrixProducts::Describe(const Shape& s, Prepared* prepared) const {
  const CublasLt& l = *library_;
  const uint64_t m = static_cast<uint64_t>(s.m), n = static_cast<uint64_t>(s.n), k = static_cast<uint64_t>(s.k);
  const int compute = s.tf32 ? kCompute32FOfTf32 : kCompute32F;
  absl::Status status = Check(l.desc_create(&prepared->desc, compute, CudaType(DType::kF32)), "describe");
  const auto row = [](int64_t given, int64_t width) { return given == 0 ? width : given; };
  if (s.transposed) {
    status.Update(Check(l.desc_set(prepared->desc, kDescTransA, &kTranspose, sizeof(kTranspose)), "transpose"));
    status.Update(
        Check(l.layout_create(&prepared->weight, CudaType(s.in), k, n, row(s.weight_row, s.k)), "describe the weight"));
  } else {
    status.Update(
        Check(l.layout_create(&prepared->weight, CudaType(s.in), n, k, row(s.weight_row, s.n)), "describe the weight"));
  }
  status.Update(Check(l.layout_create(&prepared->x, CudaType(s.in), k, m, row(s.x_row, s.k)), "describe x"));
  status.Update(
      Check(l.layout_create(&prepared->out, CudaType(s.out), n, m, row(s.out_row, s.n)), "describe the result"));
  const auto repeat = [&](void* layout, int64_t stride) {
    const int32_t count = static_cast<int32_t>(s.batch);
    status.Update(Check(l.layout_set(layout, kLayoutBatchCount, &count, sizeof(count)), "describe the batch"));
    status.Update(Check(l.layout_set(layout, kLayoutBatchStride, &stride, sizeof(stride)), "describe the batch"));
  };
  if (s.batch > 1 && status.ok()) {
    repeat(prepared->x, s.x_stride);
    repeat(prepared->weight, s.weight_stride);
    repeat(prepared->out, s.m * s.n);
  }
  if (const uint32_t epilogue = EpilogueOf(s); status.ok()) {
    status = Check(l.desc_set(prepared->desc, kDescEpilogue, &epilogue, sizeof(epilogue)), "describe what follows");
  }
  return status;
}

// The weight is cuBLAS's A, x its B.
absl::Status MatrixProducts::SetScales(const Shape& shape, const Operands& operands, const Prepared& prepared) const {
  if (shape.scales == Shape::Scales::kNone) return absl::OkStatus();
  const int32_t mode = shape.scales == Shape::Scales::kOfAll ? kScaleOfAll : kScalesOfRows;
  absl::Status status;
  for (const auto& [mode_of, pointer_of, scale] : {std::tuple(kDescScaleModeA, kDescScaleA, operands.weight_scale),
                                                   std::tuple(kDescScaleModeB, kDescScaleB, operands.x_scale)}) {
    const void* at = Pointer(scale);
    status.Update(Check(library_->desc_set(prepared.desc, mode_of, &mode, sizeof(mode)), "set how many scales"));
    status.Update(Check(library_->desc_set(prepared.desc, pointer_of, &at, sizeof(at)), "set the scales"));
  }
  return status;
}

absl::Status MatrixProducts::FindAlgorithm(const Shape& s, Prepared* prepared) const {
  const CublasLt& l = *library_;
  void* preference = nullptr;
  RETURN_IF_ERROR(Check(l.preference_create(&preference), "prefer"));
  const size_t workspace = kProductWorkspaceBytes;
  absl::Status status =
      Check(l.preference_set(preference, kPreferenceMaxWorkspace, &workspace, sizeof(workspace)), "prefer");
  status.Update(
      Check(l.preference_set(preference, kPreferenceReductions, &kReduceInComputeType, sizeof(kReduceInComputeType)),
            "prefer"));
  if (s.bias) {  // any pointer that is aligned as a buffer is
    const void* bias = Pointer(workspace_.data());
    status.Update(Check(l.desc_set(prepared->desc, kDescBias, &bias, sizeof(bias)), "set the bias"));
  }
  status.Update(SetScales(s, {.x_scale = workspace_.data(), .weight_scale = workspace_.data()}, *prepared));
  const auto choice = choices_.find(s);
  const int wanted = choice == choices_.end() ? 0 : choice->second;
  std::array<Heuristic, kMaxProposals> found = {};
  int count = 0;
  if (status.ok()) {
    status = Check(l.heuristic(handle_, prepared->desc, prepared->weight, prepared->x, prepared->out, prepared->out,
                               preference, choice == choices_.end() ? 1 : kMaxProposals, found.data(), &count),
                   absl::StrCat("find an algorithm for ", s.m, " x ", s.n, " x ", s.k));
  }
  l.preference_destroy(preference);
  if (status.ok() && count == 0) status = absl::InternalError("cuBLASLt: there is no algorithm");
  prepared->proposal = wanted < count && found[static_cast<size_t>(wanted)].state == 0 ? wanted : 0;
  prepared->algorithm = found[static_cast<size_t>(prepared->proposal)].algorithm;
  prepared->proposals = std::clamp(count, 0, kMaxProposals);
  return status;
}

absl::StatusOr<MatrixProducts::Prepared*> MatrixProducts::Prepare(const Shape& s) {
  if (const auto known = prepared_.find(s); known != prepared_.end()) return known->second.get();
  auto prepared = std::make_unique<Prepared>();
  prepared->library = library_;
  absl::Status status = Describe(s, prepared.get());
  if (status.ok()) status = FindAlgorithm(s, prepared.get());
  if (!status.ok()) return status;
  if (prepared_.size() == kMaxPrepared) {
    prepared_.erase(prepared_order_.front());
    prepared_order_.pop_front();
  }
  prepared_order_.push_back(s);
  return (prepared_[s] = std::move(prepared)).get();
}

absl::StatusOr<int> MatrixProducts::CountProposals(const Shape& shape) {
  Choose(shape, choices_[shape]);
  ASSIGN_OR_RETURN(Prepared * prepared, Prepare(shape));
  return prepared->proposals;
}

absl::StatusOr<int> MatrixProducts::ProposalOf(const Shape& shape) {
  ASSIGN_OR_RETURN(Prepared * prepared, Prepare(shape));
  return prepared->proposal;
}

void MatrixProducts::Choose(const Shape& shape, int proposal) {
  choices_[shape] = std::clamp(proposal, 0, kMaxProposals - 1);
  if (prepared_.erase(shape) > 0) std::erase(prepared_order_, shape);
}

uint64_t MatrixProducts::version() const { return library_->version(); }

absl::Status MatrixProducts::Multiply(const Shape& shape, const Operands& operands) {
  if (shape.m == 0 || shape.n == 0 || shape.batch == 0) return absl::OkStatus();
  const bool plain = !shape.bias && !shape.residual && !shape.gelu_tanh;
  if (!plain && (shape.batch != 1 || shape.k == 0)) {
    return absl::InvalidArgumentError("only a single product of matrices that are not empty can have more parts");
  }
  if (shape.k == 0) {
    int64_t elements = 0;
    if (__builtin_mul_overflow(shape.batch, shape.m, &elements) ||
        __builtin_mul_overflow(elements, shape.n, &elements) || elements > (int64_t{1} << 48)) {
      return absl::InvalidArgumentError("a product is too large");
    }
    return device_->FillBytes(operands.out, 0, elements * DTypeBits(shape.out) / 8);
  }
  ASSIGN_OR_RETURN(Prepared * prepared, Prepare(shape));
  const Prepared& p = *prepared;
  const CublasLt& l = *library_;
  if (shape.bias) {
    const void* bias = Pointer(operands.bias);
    absl::Status status = Check(l.desc_set(p.desc, kDescBias, &bias, sizeof(bias)), "set the bias");
    if (!status.ok()) return status;
  }
  RETURN_IF_ERROR(SetScales(shape, operands, p));
  const float one = 1, zero = 0;
  void* out = Pointer(operands.out);
  return Check(l.matmul(handle_, p.desc, &one, Pointer(operands.weight), p.weight, Pointer(operands.x), p.x,
                        shape.residual ? &one : &zero, shape.residual ? Pointer(operands.residual) : out, p.out, out,
                        p.out, &p.algorithm, Pointer(workspace_.data()), kProductWorkspaceBytes, device_->stream()),
               absl::StrCat("multiply ", shape.m, " x ", shape.n, " x ", shape.k));
}

}  // namespace llmc
