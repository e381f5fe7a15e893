// Tensors of other libraries, in host memory or on a GPU, without a copy: DLPack (https://dmlc.github.io/dlpack), whose
// DLManagedTensor (that of versions before 1, which later libraries take, too) is what PyTorch, JAX, CuPy and others
// make and take.
//
//   absl::StatusOr<llmc::AnyTensor> ids = llmc::FromDlpack(managed);   // `managed` is the tensor's from now on
//   auto outputs = (*plan)->RunOnDevice({{"input_ids", *ids}});
//   absl::StatusOr<DLManagedTensor*> logits = llmc::ToDlpack(outputs->at("logits"));
#pragma once

#include "absl/status/statusor.h"
#include "runtime/device_tensor.h"

struct DLManagedTensor;  // <dlpack/dlpack.h>

namespace llmc {

// Shares the bytes, which must not be written, until the caller, or whom the caller gives it to, calls the result's
// deleter, on any thread; of a GPU that waits until all that was given to the GPU is done.
// InvalidArgument: Check() fails. Unimplemented: its type is f8 or an integer of 4 bits.
absl::StatusOr<DLManagedTensor*> ToDlpack(const HostTensor& tensor);
absl::StatusOr<DLManagedTensor*> ToDlpack(const DeviceTensor& tensor);

// Takes the tensor over: its deleter is called when the last copy of the result is gone, on the thread that lets go of
// it. Its bytes must be written when a run takes them: no stream is waited for. If there is an error it is still the
// caller's. InvalidArgument: it is not one piece of row-major memory, or has dimensions or addresses that cannot be.
// Unimplemented: its memory is neither the host's nor a GPU's of CUDA, or its type is none of ours.
absl::StatusOr<AnyTensor> FromDlpack(DLManagedTensor* tensor);

}  // namespace llmc
