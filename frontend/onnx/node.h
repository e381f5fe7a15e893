// One ONNX node under import: its inputs as values of the language, its attributes, and the ops that it becomes.
#pragma once

#include <onnx/onnx_pb.h>

#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/container/flat_hash_set.h"
#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "frontend/onnx/file.h"
#include "ir/ops.h"

namespace llmc {

// Letters, digits and _.$/- only; never empty.
std::string SanitizedName(absl::string_view name);

// A tensor as a value: up to 64 elements as a `constant` in the builder's block, else as a weight "@name" whose source
// is "file#name" and whose contents are in Model::data.
Value* AddOnnxConstant(Builder* builder, const OnnxFile& file, const std::string& name, Tensor tensor);

// Attributes of the call under which a local function's nodes are imported.
using OnnxAttributes = absl::flat_hash_map<std::string, const onnx::AttributeProto*>;

// Of values that an earlier error may have left out.
inline int RankOf(const Value* x) { return x == nullptr ? 0 : x->type.rank(); }
inline Dims DimsOfValue(const Value* x) { return x == nullptr ? Dims{} : x->type.shape; }
inline DType DTypeOf(const Value* x) { return x == nullptr ? DType::kF32 : x->type.dtype; }

// Handlers report errors through a status that keeps the first one: after it, every call is harmless and gives nullptr,
// 0 or an empty value, so a handler need not look at each step.
class OnnxNode {
 public:
  OnnxNode(const onnx::NodeProto& proto, int opset, std::vector<Value*> inputs, const OnnxAttributes* caller,
           OnnxFile* file, Model* model, Block* block, std::string prefix, std::string loc);

  int opset() const { return opset_; }

  // Values of uint16, a type that the language lacks: they are of i32 there, and only some ops may meet them.
  void KeepU16In(absl::flat_hash_set<const Value*>* values) { u16_ = values; }
  bool IsU16(size_t i) const { return has(i) && u16_ != nullptr && u16_->contains(inputs_[i]); }
  void MarkU16(int output);

  // ---- inputs: nullptr for an absent one ----
  bool has(size_t i) const { return i < inputs_.size() && inputs_[i] != nullptr; }
  // Whether an input is there that the op has since opset `since`; an error if it is there before.
  bool HasSince(size_t i, int since);
  Value* in(size_t i) const { return i < inputs_.size() ? inputs_[i] : nullptr; }
  // All inputs; an error if one is absent.
  std::vector<Value*> AllInputs();
  // The contents of an integer input, which must be known at import.
  std::vector<int64_t> StaticInts(size_t i, absl::string_view what);
  int64_t StaticInt(size_t i, absl::string_view what);
  // Whether the elements of an integer input are numbers that are known at import.
  bool IsKnown(size_t i) const;
  // The tensor of an input that a constant makes; nullptr if none does.
  const Tensor* Literal(size_t i) const;
  // Other contents in place of those of an input that Literal() knows: the same bytes under another type, say. They are
  // a value of their own from the same place of the file.
  Value* Retyped(size_t i, Tensor tensor);
  // An integer input as i64.
  Value* AsI64(size_t i);

  // ---- attributes; reading one marks it as understood ----
  bool HasAttr(absl::string_view name);
  int64_t Int(absl::string_view name, int64_t fallback);
  double Float(absl::string_view name, double fallback);
  std::string String(absl::string_view name, absl::string_view fallback);
  std::vector<int64_t> Ints(absl::string_view name);
  std::vector<double> Floats(absl::string_view name);
  std::vector<std::string> Strings(absl::string_view name);
  const onnx::TensorProto* TensorAttr(absl::string_view name);
  // An attribute that means an axis of `rank` axes, made non-negative. With `inclusive` it may equal the rank.
  int64_t Axis(absl::string_view name, int64_t fallback, int rank, bool inclusive = false);
  int64_t NormalizeAxis(int64_t axis, int rank, bool inclusive = false);
  // Sorted and non-negative; an axis given twice is an error.
  std::vector<int64_t> NormalizeAxes(std::vector<int64_t> axes, int rank);
  // Unimplemented, if an attribute of the node was not read.
  absl::Status CheckAttrsRead();

  // ---- outputs ----
  int num_outputs() const { return proto_.output_size(); }
  bool wants(int i) const { return i < proto_.output_size() && !proto_.output(i).empty(); }
  void Set(int i, Value* value);
  // The shape that the graph declares for an output of its own that this node makes, to be compared only: its dims are
  // unknown where the graph leaves them open, and may be symbols that the model lacks.
  void Declare(int i, Dims shape) { declared_[i] = std::move(shape); }
  std::optional<Dims> Declared(int i) const;
  const std::vector<Value*>& outputs() const { return outputs_; }
  // In every run that does not fail, `dim` is `size`: told if the first is a symbol of an input and the second a
  // number.
  void Learn(const Dim& dim, const Dim& size);
  const std::map<std::string, int64_t>& learned() const { return learned_; }

  // ---- making ops ----
  template <class Op>
  Value* Emit(const Op& op) {
    if (!ok()) return nullptr;
    Node* node = builder_.AddNode(op);
    if (node == nullptr || node->results.empty()) return nullptr;
    created_.push_back(node);
    return node->results[0];
  }
  Value* Scalar(DType dtype, double value);
  Value* Ints64(const std::vector<int64_t>& values);
  Value* Literal(Tensor tensor);
  Value* NamedConstant(Tensor tensor);     // named after output 0
  Value* ReshapeTo(Value* x, Dims shape);  // x itself if it has that shape
  Value* CastTo(Value* x, DType dtype);    // x itself if it has that type
  Value* TransposeBy(Value* x, std::vector<int64_t> perm);
  Value* SliceOf(Value* x, int64_t axis, Dim start, Dim end);  // x itself if it is all of x
  absl::StatusOr<Tensor> Load(const onnx::TensorProto& tensor) { return file_->Literal(tensor); }
  int64_t OpsSoFar() const;             // of the whole model
  bool Made(const Value* value) const;  // whether this node's ops define it

  // ---- errors ----
  bool ok() const { return status_.ok() && builder_.status().ok(); }
  absl::Status status() const { return status_.ok() ? builder_.status() : status_; }
  void Fail(absl::Status status);
  void Invalid(absl::string_view message) { Fail(absl::InvalidArgumentError(message)); }
  void Unsupported(absl::string_view message) { Fail(absl::UnimplementedError(message)); }

 private:
  const onnx::AttributeProto* Find(absl::string_view name, onnx::AttributeProto::AttributeType type);

  const onnx::NodeProto& proto_;
  int opset_;
  std::vector<Value*> inputs_;
  std::vector<Value*> outputs_;
  OnnxFile* file_;
  std::string prefix_;
  Builder builder_;
  std::vector<const Node*> created_;
  std::map<int, Dims> declared_;  // by output
  std::map<std::string, int64_t> learned_;
  absl::flat_hash_set<const Value*>* u16_ = nullptr;
  OnnxAttributes attrs_;
  std::set<std::string, std::less<>> read_;
  absl::Status status_;
};

}  // namespace llmc
