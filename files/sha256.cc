#include "files/sha256.h"

#include <openssl/crypto.h>
#include <openssl/evp.h>
#include <openssl/opensslv.h>

#include <new>

namespace llmc {
namespace {

// Looked up once: since OpenSSL 3 that costs more than to hash a hundred bytes. Without the machine's configuration of
// OpenSSL: to read it takes longer than a small plan does, and nothing in it may change what a digest is.
const EVP_MD* Sha256Algorithm() {
#if OPENSSL_VERSION_NUMBER >= 0x30000000L
  static const EVP_MD* const algorithm = [] {
    OPENSSL_init_crypto(OPENSSL_INIT_NO_LOAD_CONFIG, nullptr);
    return EVP_MD_fetch(nullptr, "SHA256", nullptr);
  }();
  return algorithm;
#else
  return EVP_sha256();
#endif
}

}  // namespace

Sha256::Sha256() : context_(EVP_MD_CTX_new()) {
  if (context_ == nullptr || EVP_DigestInit_ex(static_cast<EVP_MD_CTX*>(context_), Sha256Algorithm(), nullptr) != 1) {
    throw std::bad_alloc();
  }
}
Sha256::~Sha256() { EVP_MD_CTX_free(static_cast<EVP_MD_CTX*>(context_)); }
void Sha256::Update(const void* data, size_t bytes) {
  EVP_DigestUpdate(static_cast<EVP_MD_CTX*>(context_), data, bytes);
}
Digest Sha256::Finish() {
  Digest digest{};
  EVP_DigestFinal_ex(static_cast<EVP_MD_CTX*>(context_), digest.data(), nullptr);
  return digest;
}

Digest HashBytes(absl::string_view bytes) {
  Sha256 hash;
  hash.Update(bytes.data(), bytes.size());
  return hash.Finish();
}

}  // namespace llmc
