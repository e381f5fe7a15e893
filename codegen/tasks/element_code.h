// Arithmetic on elements as CUDA C++: the one place that makes up code. Nodes become lines of functions of kernels.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "codegen/tasks/kernel_call.h"
#include "codegen/tasks/strided.h"

namespace llmc {

// One or several functions of the struct that a kernel's function gets as C. Each takes one element of every operand of
// all of them.
class ElementCode {
 public:
  // What is read: a value, or the elements of it that a slice takes.
  struct Operand {
    const Value* value = nullptr;
    const Node* slice = nullptr;
  };

  // Begins a function. `first` is what its first parameter is, before the operands; or absent.
  void Begin(std::string name, const Value* first = nullptr);
  // A line for an elementwise op or a cast. Of a slice there is none: its elements are read where they lie.
  void Add(const Node& node);
  // Ends it; it returns an element of `result`.
  void End(const Value* result);

  // Of all functions, each once.
  const std::vector<Operand>& operands() const { return operands_; }
  // What values nodes of integers have no result for.
  const std::vector<KernelDeviceError>& device_errors() const { return device_errors_; }

  // Gives the call the functions, and what their lines are in the language.
  void Write(KernelCall* call) const;

 private:
  struct Function {
    std::string name;
    const Value *first = nullptr, *result = nullptr;
    std::vector<size_t> reads;                               // of operands_
    std::vector<std::pair<std::string, std::string>> lines;  // and what they are in the language
    std::string returned;
  };

  std::string NameOf(const Value* value);

  std::vector<Operand> operands_;
  absl::flat_hash_map<const Value*, size_t> index_;        // of operands_
  absl::flat_hash_map<const Value*, const Node*> slices_;  // by their results
  absl::flat_hash_map<const Value*, std::string> names_;   // in the function that is being made
  std::vector<Function> functions_;
  std::vector<KernelDeviceError> device_errors_;
};

// Where the elements of an operand lie under a result of shape `under`, whose shape that of a slice must be.
Place PlaceUnder(const ElementCode::Operand& operand, const Dims& under);

}  // namespace llmc
