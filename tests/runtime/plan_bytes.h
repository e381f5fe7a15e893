// Plan files with other contents but checksums that match: what an attacker would make.
#pragma once

#include <cstring>
#include <functional>
#include <string>
#include <vector>

#include "runtime/plan/plan.pb.h"
#include "runtime/plan/plan_format.h"

namespace llmc {

template <class T>
T Get(const std::string& bytes, size_t at) {
  T value;
  std::memcpy(&value, bytes.data() + at, sizeof(T));
  return value;
}
template <class T>
void Put(std::string* bytes, size_t at, const T& value) {
  std::memcpy(bytes->data() + at, &value, sizeof(T));
}

struct PlanPart {
  uint32_t kind;
  std::string contents;
};

inline std::vector<PlanPart> PartsOfFile(const std::string& bytes) {
  std::vector<PlanPart> parts;
  for (uint32_t i = 0; i < Get<uint32_t>(bytes, 12); ++i) {
    const size_t at = plan::kHeaderBytes + i * plan::kEntryBytes;
    parts.push_back(
        {Get<uint32_t>(bytes, at), bytes.substr(Get<uint64_t>(bytes, at + 8), Get<uint64_t>(bytes, at + 16))});
  }
  return parts;
}

inline void FixHeader(std::string* bytes) {
  const uint32_t count = Get<uint32_t>(*bytes, 12);
  plan::Sha256 hash;
  hash.Update(bytes->data(), plan::kDigestOffset);
  hash.Update(bytes->data() + plan::kHeaderBytes, count * plan::kEntryBytes);
  Put(bytes, plan::kDigestOffset, hash.Finish());
}

inline plan::Digest DigestOf(const PlanPart& part) {
  const bool weights = part.kind == static_cast<uint32_t>(plan::Section::kWeights);
  return weights ? plan::HashPieces(part.contents, plan::PieceDigest::kChecksum) : plan::HashBytes(part.contents);
}

inline std::string Assemble(const std::vector<PlanPart>& parts) {
  std::string bytes(plan::kHeaderBytes + parts.size() * plan::kEntryBytes, '\0');
  std::memcpy(bytes.data(), plan::kMagic, 8);
  Put(&bytes, 8, plan::kVersion);
  Put(&bytes, 12, static_cast<uint32_t>(parts.size()));
  for (size_t i = 0; i < parts.size(); ++i) {
    bytes.resize(plan::AlignUp(bytes.size(), plan::kPage));
    const size_t at = plan::kHeaderBytes + i * plan::kEntryBytes;
    Put(&bytes, at, parts[i].kind);
    Put(&bytes, at + 8, static_cast<uint64_t>(bytes.size()));
    Put(&bytes, at + 16, static_cast<uint64_t>(parts[i].contents.size()));
    Put(&bytes, at + plan::kDigestOffset, DigestOf(parts[i]));
    bytes += parts[i].contents;
  }
  bytes.resize(plan::AlignUp(bytes.size(), plan::kPage));
  Put(&bytes, 16, static_cast<uint64_t>(bytes.size()));
  FixHeader(&bytes);
  return bytes;
}

// `bytes` with another manifest.
inline std::string AlteredPlan(const std::string& bytes, const std::function<void(plan::Manifest*)>& change) {
  std::vector<PlanPart> parts = PartsOfFile(bytes);
  plan::Manifest manifest;
  manifest.ParseFromString(parts[0].contents);
  change(&manifest);
  parts[0].contents = manifest.SerializeAsString();
  return Assemble(parts);
}

}  // namespace llmc
