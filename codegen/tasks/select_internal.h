// What the selectors of the op families share: a kernel, or its only node, and the program's scope in, calls out.
#pragma once

#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "codegen/tasks/select.h"
#include "codegen/tasks/strided.h"
#include "ir/kv_components.h"
#include "ir/ops.h"

namespace llmc {

// The calls that compute a kernel, in their order, or why a backend has none for it. Where nothing is expected in place
// of what is there, `actual` is the whole message.
using Calls = std::variant<std::vector<DeviceCall>, Misfit>;

// Such a message: "there is no GPU kernel for this op " and why.
Misfit NoKernel(const Node& node, absl::string_view why);

bool Is16BitOrF32(DType dtype);

// As pointers to elements of a type, that of the value if none is given.
KernelParam In(const Value* value, const std::string& name, std::string type = "");
KernelParam Out(const Value* value, const std::string& name, std::string type = "");
KernelParam Count(const Size& size, const std::string& name);
KernelParam Float(double number, const std::string& name);
// Parameters for what may go wrong; as an argument of the function, `{device_error, first_device_error}` is the
// llmc::DeviceErrorSite.
void AddDeviceErrors(std::vector<KernelDeviceError> device_errors, KernelCall* call);

// A number in emitted code, as float or double.
std::string FloatLiteral(double value, bool is_double);
// How a kernel's arguments name a number that it takes in the type it computes elements of `dtype` in: a parameter of
// the call, which is added, or for f64, which parameters are too narrow for, a literal.
std::string NumberText(double value, const std::string& name, DType dtype, KernelCall* call);
// Blocks of `per_block` threads that give at least `threads`.
Size Blocks(const Size& threads, int64_t per_block);
// All dims but the last.
Size RowsOf(const TensorType& type);
bool ConstantLast(const Value* value);
// The most elements, at most 16 bytes, that divide `columns`.
int64_t VectorOf(int64_t columns, DType dtype);
// Whole warps, enough for one vector each, at most `most`.
int ThreadsForRow(int64_t columns, DType dtype, int64_t most);

// The keys and values of a paged state, and where they lie in a page (kernels/attention/paged_kv.cuh).
struct KvPages : ops::KvComponents {
  const Value* state = nullptr;

  // To elements, or to bytes if they are encoded.
  std::string PointedType() const { return is_encoded() ? "llmc::u8" : DeviceType(dtype()); }
  KernelParam In() const { return llmc::In(state, "kv", PointedType()); }
  KernelParam Out() const { return llmc::Out(state, "kv", PointedType()); }
};
KvPages KvPagesOf(const Value* state, const std::string& keys = "k", const std::string& values = "v");
// Its sizes but those of heads, as constants; types of codes and scales.
void AddKv(const KvPages& kv, KernelCall* call);
// Why kernels that take an encoded cache take none of this one; nullopt also if it is not encoded.
std::optional<Misfit> KvMisfit(const KvPages& kv);
// Static scales of keys and values, where there are some: parameters, and the last argument of the kernel's function.
// `before`: arguments that the function has a default for, which come before it.
void AddStaticScales(const Value* k_scale, const Value* v_scale, KernelCall* call, absl::string_view before = "");
// Whether no task of a step makes the value: an input, a weight, a constant, or of `prepare`.
bool IsThereBeforeStep(const Value* value);

// A selector takes a kernel, or its only node; backends.cc has the table of them.

// backends.cc: what each backend that can run the kernel calls, the one that takes the least time first.
std::vector<std::vector<DeviceCall>> CallsOfAll(const KernelBody& body, const ProgramScope& scope);
// select_matmul.cc
// A product as matrices: a vector stands for a matrix of one row or column. One rhs for all makes the rows of all
// batches rows of one product, a single one.
struct ProductMatrices {
  Dims lead, lhs_lead, rhs_lead;  // the axes of batches: of the result and of each factor
  Dim m, n, k;
  bool is_single = false;
};
ProductMatrices MatricesOf(const Linear& op, const TensorType& out);
// A product of elements with what is made of its sums in one kernel, as cuBLASLt takes it, or also gelu; `out` and
// factors stand for what the kernel reads and gives.
std::optional<Misfit> ReadGemm(const KernelBody& body, bool takes_gelu, GemmCall* call);
Space BatchesOf(const ProductMatrices& p);  // where the matrices of each batch lie: of the left and the right factor
struct WeightParts;
// select_quantized_matmul.cc: whether cuBLASLt takes both factors as they are, floats of 8 bits.
bool MultipliesFloat8(const Linear& op, const Value* out, const ProgramScope& scope);
// select_decode.cc: writes the numbers of an encoded value, rounded to `to`. Nothing of what encode has not made.
std::optional<KernelCall> DecodeCall(const Value* encoded, DType to, KernelArg out);
// select_quantize.cc: what nodes make of rows that a kernel has in registers, behind what makes them: scales and codes.
struct QuantizedRows {
  const Value* rows = nullptr;   // that are quantized
  const Value* scale = nullptr;  // made, or given
  const Value* codes = nullptr;
  bool inverse = false;  // as in Quantize
  bool is_dynamic = false;
  double limit = 1;
  int64_t group = 0;  // neighbours that share a scale; 0: a row
};
// Of the last one or two nodes: quantize, after dynamic_scale or alone. An error if kernels of rows cannot make them.
std::variant<QuantizedRows, Misfit> ReadQuantizedRows(absl::Span<const Node* const> nodes);
// What a Config says of the sink, and parameters; the argument is a sink (kernels/norm/row_sink.cuh).
std::string AddQuantizedSink(const QuantizedRows& q, bool stores, KernelCall* call);
// A call with a block for each row of a kernel of rows, `rows` of type T.
KernelCall RowsCall(const std::string& header, const std::string& function, const Value* rows);
// Of a body that needs what its call says, and has nothing in shared memory by type.
inline KernelCall::Task AsTask(const KernelCall& call) {
  KernelCall::Task task;
  task.forms = {{.threads = call.threads, .arena_bytes = call.shared_bytes}};
  return task;
}
// select_attention.cc: adds the constants of those kernels, threads and shared memory; true if blocks are persistent,
// one for each multiprocessor. `mask_bytes`: of an element of a mask in memory, 0 without one. `by_maps`: keys and
// values can be copied by maps of tiles, and are where blocks are persistent.
bool AddFlashBlocks(int64_t key_dim, int64_t value_dim, int64_t mask_bytes, bool by_maps, const Target& target,
                    KernelCall* call);
// select_batched_gemv.cc: of several products.
Calls SelectBatchedGemv(const KernelBody& body, const ProgramScope& scope);
// select_latent_attention.cc: of rows of the cache that are keys and values at once.
Calls SelectLatentAttention(const KernelBody& body, const ProgramScope& scope);
// select_rope.cc: adds the constants of kernels that rotate, and threads. `beside`: what they read besides heads.
void AddRope(const Value* inv_freq, int64_t head_dim, bool interleaved, const std::vector<const Value*>& beside,
             KernelCall* call);
// Of a call that rotates queries, and beside them keys, which it writes to the cache with values: the task of heads
// that turn.
void AddTurningOfHeads(const KernelCall& call, KernelCall::Task* task);
// select_experts.cc: of kernels that route.
std::optional<Misfit> RouteMisfit(const Node& route);
void AddRouteConstants(const Node& route, KernelCall* call);
// select_reduce.cc: out = x / sqrt(mean(x^2) + eps) * weight for any float types and widths.
KernelCall AnyRmsNorm(const Value* out, const Value* x, const Value* weight, double eps);
// select_elementwise.cc
KernelCall AddCall(const Value* sum, const Value* a, const Value* b);  // of the same type and shape
// out = the elements of `from`, both at their places in an iteration space.
Calls SelectCopy(const Node& node, const Value* out, const Value* from, const SizeList& sizes, const Place& to,
                 const Place& at);

}  // namespace llmc
