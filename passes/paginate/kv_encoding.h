// How the keys and values of a paged cache are stored: what --kv sets.
#pragma once

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "ir/graph.h"

namespace llmc::pagination {

// Stores the components that kv_write writes as `kv` says:
//   auto, or nothing   as the model has it
//   checkpoint   as well, but InvalidArgument if it has floats: the importer has set what a checkpoint says
//   none      floats of the model's type; scales that the model brought are left out
//   f8e4m3, f8e5m2, int8   a scale for each head of a token
//   int4      a scale for each 32 elements of such a head (groups as KIVI has them, arXiv:2402.02750, without zero
//             points: those are "uint4 group=32 scale=f16 zero=u8")
//   f8e4m3:tensor   the static scales that the model brings (k_scale and v_scale of its kv_writes), else 1
//   f8e4m3:head     the same, one for each head; an error if the model brings none
// or as an encoding that is written out (ir/encoding.h), such as "int4 group=64 scale=f16". InvalidArgument: an unknown
// name, no paged cache, heads that cannot be stored so. Unimplemented: keys and values that are one component
// (latents).
absl::Status SetKvEncoding(absl::string_view kv, Model* model);

// Whether SetKvEncoding knows the name.
absl::Status CheckKvName(absl::string_view kv);

}  // namespace llmc::pagination
