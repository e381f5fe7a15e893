// .npz files, by libzip.
#include <zip.h>

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "base/status_macros.h"
#include "files/file_writer.h"
#include "files/mapped_file.h"
#include "files/path_check.h"
#include "frontend/formats/numpy_file.h"
#include "frontend/formats/numpy_format.h"

namespace llmc {
namespace {

constexpr int64_t kMaxNpzMembers = 1 << 16;
constexpr uint64_t kMaxNpzBytes = uint64_t{64} << 30;
constexpr uint64_t kMaxDeflation = 1040;  // no deflated stream grows by more

class ZipError {
 public:
  ZipError() { zip_error_init(&error_); }
  ~ZipError() { zip_error_fini(&error_); }
  ZipError(const ZipError&) = delete;
  ZipError& operator=(const ZipError&) = delete;
  zip_error_t* get() { return &error_; }
  absl::Status Status() { return absl::InvalidArgumentError(zip_error_strerror(&error_)); }

 private:
  zip_error_t error_;
};

// An archive that is thrown away; what is to be kept is closed by hand.
struct Discard {
  void operator()(zip_t* zip) const { zip_discard(zip); }
  void operator()(zip_file_t* file) const { zip_fclose(file); }
};
using Zip = std::unique_ptr<zip_t, Discard>;
using ZipMember = std::unique_ptr<zip_file_t, Discard>;

absl::Status CheckZipMember(const zip_stat_t& stat, uint64_t file_size, uint64_t* total) {
  constexpr zip_uint64_t kNeeded = ZIP_STAT_NAME | ZIP_STAT_SIZE | ZIP_STAT_COMP_SIZE | ZIP_STAT_COMP_METHOD;
  if ((stat.valid & kNeeded) != kNeeded) return absl::InvalidArgumentError("a member lacks its name or size");
  if ((stat.valid & ZIP_STAT_ENCRYPTION_METHOD) != 0 && stat.encryption_method != ZIP_EM_NONE) {
    return absl::UnimplementedError("is encrypted");
  }
  if (stat.comp_method != ZIP_CM_STORE && stat.comp_method != ZIP_CM_DEFLATE) {
    return absl::UnimplementedError("is packed in a way that is not read; numpy.savez and savez_compressed do not");
  }
  if (stat.comp_size > file_size || stat.size / kMaxDeflation > stat.comp_size) {
    return absl::InvalidArgumentError("has a size that cannot be");
  }
  if (stat.size > kMaxNpzBytes || (*total += stat.size) > kMaxNpzBytes) {
    return absl::ResourceExhaustedError("is one too many: more than 64 GiB of arrays");
  }
  return absl::OkStatus();
}

absl::StatusOr<Tensor> ReadMember(zip_t* zip, zip_uint64_t index, uint64_t size) {
  const ZipMember member(zip_fopen_index(zip, index, 0));
  if (member == nullptr) return absl::InvalidArgumentError(zip_strerror(zip));
  // Aligned as whatever is new.
  const std::shared_ptr<char> bytes(new char[size + 1], std::default_delete<char[]>());
  uint64_t read = 0;
  // One byte more than there may be, so that the end is met and the checksum looked at.
  while (read <= size) {
    const zip_int64_t more = zip_fread(member.get(), bytes.get() + read, size + 1 - read);
    if (more < 0) return absl::InvalidArgumentError(zip_error_strerror(zip_file_get_error(member.get())));
    if (more == 0) break;
    read += static_cast<uint64_t>(more);
  }
  if (read != size) return absl::InvalidArgumentError("has another size than the archive says");
  return ParseNpy({bytes.get(), size}, bytes);
}

absl::StatusOr<NamedTensors> ReadMembers(zip_t* zip, uint64_t file_size) {
  const zip_int64_t count = zip_get_num_entries(zip, 0);
  if (count > kMaxNpzMembers)
    return absl::InvalidArgumentError(absl::StrCat("has more than ", kMaxNpzMembers, " members"));
  NamedTensors tensors;
  uint64_t total = 0;
  for (zip_int64_t i = 0; i < count; ++i) {
    const auto index = static_cast<zip_uint64_t>(i);
    zip_stat_t stat;
    if (zip_stat_index(zip, index, 0, &stat) != 0) return absl::InvalidArgumentError(zip_strerror(zip));
    const std::string member = (stat.valid & ZIP_STAT_NAME) != 0 ? stat.name : "";
    const auto refuse = [&](const absl::Status& s) {
      return absl::Status(s.code(), absl::StrCat("the member ", Quoted(member), " ", s.message()));
    };
    absl::string_view name = member;
    if (!absl::ConsumeSuffix(&name, ".npy")) return refuse(absl::InvalidArgumentError("is no .npy file"));
    if (absl::Status status = CheckZipMember(stat, file_size, &total); !status.ok()) return refuse(status);
    absl::StatusOr<Tensor> tensor = ReadMember(zip, index, stat.size);
    if (!tensor.ok()) return refuse(tensor.status());
    if (!tensors.emplace(std::string(name), *std::move(tensor)).second) {
      return refuse(absl::InvalidArgumentError("is there twice"));
    }
  }
  return tensors;
}

// The bytes that an archive in memory has come to.
absl::StatusOr<std::string> BytesOfZip(zip_source_t* source, ZipError* error) {
  if (zip_source_open(source) != 0) return absl::InternalError("the archive cannot be read back");
  zip_source_seek(source, 0, SEEK_END);
  const zip_int64_t size = zip_source_tell(source);
  zip_source_seek(source, 0, SEEK_SET);
  std::string bytes(static_cast<size_t>(std::max<zip_int64_t>(size, 0)), '\0');
  const zip_int64_t read = zip_source_read(source, bytes.data(), bytes.size());
  zip_source_close(source);
  if (size < 0 || read != size) return error->Status();
  return bytes;
}

absl::Status AddMember(zip_t* zip, const std::string& name, const std::string& bytes) {
  zip_source_t* source = zip_source_buffer(zip, bytes.data(), bytes.size(), 0);
  if (source == nullptr) return absl::ResourceExhaustedError(zip_strerror(zip));
  const zip_int64_t index = zip_file_add(zip, absl::StrCat(name, ".npy").c_str(), source, ZIP_FL_ENC_UTF_8);
  if (index < 0) {
    zip_source_free(source);
    return absl::InvalidArgumentError(absl::StrCat(Quoted(name), ": ", zip_strerror(zip)));
  }
  const auto at = static_cast<zip_uint64_t>(index);
  // The first day that the format knows: the same tensors give the same file.
  const bool ok =
      zip_set_file_compression(zip, at, ZIP_CM_STORE, 0) == 0 && zip_file_set_dostime(zip, at, 0, (1 << 5) | 1, 0) == 0;
  return ok ? absl::OkStatus() : absl::InternalError(zip_strerror(zip));
}

absl::StatusOr<std::string> MakeZip(const NamedTensors& tensors) {
  ZipError error;
  zip_source_t* source = zip_source_buffer_create(nullptr, 0, 0, error.get());
  if (source == nullptr) return error.Status();
  zip_t* opened = zip_open_from_source(source, ZIP_CREATE | ZIP_TRUNCATE, error.get());
  if (opened == nullptr) {
    zip_source_free(source);
    return error.Status();
  }
  zip_source_keep(source);
  const std::unique_ptr<zip_source_t, void (*)(zip_source_t*)> kept(source, zip_source_free);
  Zip zip(opened);
  std::vector<std::string> members;  // until the archive is made
  members.reserve(tensors.size());
  for (const auto& [name, tensor] : tensors) {
    const Tensor written = WithNumpyType(tensor);
    members.push_back(NpyHeader(written));
    members.back().append(written.raw(), static_cast<size_t>(written.bytes()));
    RETURN_IF_ERROR(AddMember(zip.get(), name, members.back()));
  }
  if (zip_close(zip.get()) != 0) return absl::InternalError(zip_strerror(zip.get()));
  zip.release();  // closed
  return BytesOfZip(kept.get(), &error);
}

}  // namespace

absl::StatusOr<NamedTensors> ReadNpz(const std::string& path) {
  ASSIGN_OR_RETURN(const MappedFile file, MapFile(path));
  const auto refuse = [&](const absl::Status& s) {
    return absl::Status(s.code(), absl::StrCat(path, ": ", s.message()));
  };
  const auto size = static_cast<uint64_t>(file.size);
  // The library takes nothing at all for an archive of nothing.
  if (size == 0) return refuse(absl::InvalidArgumentError("is no .npz file: it is empty"));
  ZipError error;
  zip_source_t* source = zip_source_buffer_create(file.data.get(), size, 0, error.get());
  if (source == nullptr) return refuse(error.Status());
  const Zip zip(zip_open_from_source(source, ZIP_RDONLY | ZIP_CHECKCONS, error.get()));
  if (zip == nullptr) {
    zip_source_free(source);
    return refuse(absl::InvalidArgumentError(absl::StrCat("is no .npz file: ", error.Status().message())));
  }
  absl::StatusOr<NamedTensors> tensors = ReadMembers(zip.get(), size);
  return tensors.ok() ? tensors : refuse(tensors.status());
}

absl::Status WriteNpz(const std::string& path, const NamedTensors& tensors) {
  absl::StatusOr<std::string> bytes = MakeZip(tensors);
  if (!bytes.ok()) return absl::Status(bytes.status().code(), absl::StrCat(path, ": ", bytes.status().message()));
  return WriteWholeFile(path, *bytes);
}

}  // namespace llmc
