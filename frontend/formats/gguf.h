// GGUF, versions 2 and 3 (https://github.com/ggml-org/ggml/blob/master/docs/gguf.md): metadata, the list of tensors,
// then their bytes, aligned; all little-endian.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "files/mapped_file.h"
#include "ir/encoding.h"
#include "ir/eval.h"

namespace llmc {

// Tensors that are the same of each layer, and of one type: for reports.
struct GgufTensorGroup {
  std::string name;  // "blk.*.attn_q.weight"
  std::string type;  // "Q4_K"
  int64_t tensors = 0, elements = 0, bytes = 0;
};

struct GgufFile {
  int64_t version = 0;
  nlohmann::json metadata;  // an object: every value by its whole key ("llama.block_count"); arrays are lists
  NamedTensors tensors;     // shapes as elsewhere, the last dim varies fastest: the reverse of what the file says
  // Of the tensors that are stored in blocks, by name: `tensors` has their bytes, u8, as `encode` takes them. Blocks
  // lie along the last dim.
  std::map<std::string, const Encoding*> encodings;
  std::vector<GgufTensorGroup> groups;  // by name, then by type
  // The names of files without their folder: of each tensor, and of each file the bytes that tensors are views of.
  std::map<std::string, std::string> file_of;
  std::map<std::string, std::shared_ptr<const char>> files;
};

// Reads a file strictly. Bounded: 2^16 entries of metadata, 2^22 elements of their arrays together, arrays in arrays to
// a depth of 4, keys and names of 1 KiB, 2^20 tensors of 1 to 4 dims; no key and no name twice, no tensor of which a
// byte is outside of the file or part of another, no row that is not whole blocks. InvalidArgument names the file, and
// the key or the tensor. Unimplemented: tensors of types that are neither F32, F16, BF16 nor stored as a row of
// superblocks.h, which it names with how many there are of each; another version; a big-endian file. The tensors are
// views of the mapped file.
absl::StatusOr<GgufFile> ReadGguf(const std::string& path, const MappedFile& file);

// Maps and reads the model of which `path` is the file, or one of several files NAME-0000I-of-0000N.gguf of the same
// folder (metadata split.no, split.count, split.tensors.count): the tensors of all, with the metadata of the first.
// InvalidArgument or NotFound names the part that is missing, is of another model, or has a tensor that another one
// has.
absl::StatusOr<GgufFile> ReadGgufModelFiles(const std::string& path);
// The same of a file that was mapped from `path`; of a model in several files all are mapped there, this one again.
absl::StatusOr<GgufFile> ReadGgufModelFiles(const std::string& path, const MappedFile& mapped);

}  // namespace llmc
