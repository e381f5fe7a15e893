// The safetensors format: an 8-byte little-endian length N, N bytes of JSON, then the tensors' bytes.
#pragma once

#include <map>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "files/file_writer.h"
#include "files/mapped_file.h"
#include "ir/encoding.h"
#include "ir/eval.h"

namespace llmc {

// Reads a file strictly: a header of at most 100 MB that is one JSON object (white space around it is allowed), no
// duplicate keys, every byte of the data belongs to exactly one tensor, sizes match shapes, `__metadata__` holds
// strings only. Errors name the file and the tensor. The tensors are views of the mapped file, except those that the
// file leaves unaligned, which are copied. Time is linear in the header, but for one sort of the entries.
absl::StatusOr<NamedTensors> ReadSafetensors(const std::string& path);
// The same of a file that is mapped already; `path` is used in errors only. With `takes_words` U32 is read as I32, of
// the same bits: the words of packed codes in checkpoints.
absl::StatusOr<NamedTensors> ReadSafetensors(const std::string& path, const MappedFile& file, bool takes_words = false);

// Where the bytes of each tensor begin in a file that ReadSafetensors accepts.
absl::StatusOr<std::map<std::string, int64_t>> SafetensorsOffsets(const std::string& path);

// Writes with FileWriter (files/file_writer.h), so that no reader sees half a file. Names are sorted in the header;
// data is in order of falling element size, then name, which aligns every tensor. Types that the format lacks are an
// error.
absl::Status WriteSafetensors(const std::string& path, const NamedTensors& tensors);

// Writes a file of tensors that come one after the other, in any order, so that they need not be in memory together.
// The file is as of WriteSafetensors, with the metadata {"format": "pt"} that transformers asks for. No pipes.
class SafetensorsWriter {
 public:
  struct Entry {
    DType dtype = DType::kF32;
    Shape shape;
  };
  // InvalidArgument: a type that the format lacks.
  static absl::StatusOr<std::unique_ptr<SafetensorsWriter>> Create(const std::string& path,
                                                                   const std::map<std::string, Entry>& entries);
  // Internal: no entry of this name, type and shape, or it was written already.
  absl::Status Write(const std::string& name, const Tensor& tensor);
  // Internal: an entry was not written.
  absl::Status Commit();

 private:
  struct Place {
    Entry entry;
    uint64_t offset = 0;
    bool is_written = false;
  };
  SafetensorsWriter() = default;

  std::string path_;
  std::map<std::string, Place> places_;
  std::unique_ptr<FileWriter> file_;
};

// A checkpoint's tensors with the file of each, relative to the folder.
struct CheckpointTensor {
  Tensor tensor;
  std::string file;
  std::string name = {};  // there; empty: as in the checkpoint
  // Of a tensor that is stored in superblocks: `tensor` has their bytes, which stand for numbers of `dtype`.
  const Encoding* encoding = nullptr;
  DType dtype = DType::kF32;
};
using Checkpoint = std::map<std::string, CheckpointTensor>;

// Reads `model.safetensors`, or the shards that `model.safetensors.index.json` names: they must be inside the folder,
// and each must hold exactly the tensors that the index says. The error has a line for each shard that is wrong. With a
// `module` those files are in that folder inside the other, and files are still relative to the latter.
absl::StatusOr<Checkpoint> ReadCheckpoint(const std::string& folder, const std::string& module = "");

}  // namespace llmc
