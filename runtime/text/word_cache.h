// The ids of words that a text has had already.
#ifndef LLMC_RUNTIME_TEXT_WORD_CACHE_H_
#define LLMC_RUNTIME_TEXT_WORD_CACHE_H_

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <vector>

#include "absl/strings/string_view.h"

namespace llmc {

// Keeps short words of few ids, each in the one place that its hash gives it; a later word takes the place over. For
// one text at a time: not thread safe.
class WordCache {
 public:
  explicit WordCache(size_t text_bytes) {
    size_t size = 16;
    while (size < kMaxEntries && size * 16 < text_bytes) size *= 2;
    entries_.resize(size);
  }

  // Appends the ids of text[begin, end), which `encode(word)` appends if they are not known yet.
  template <typename Encode>
  void Append(absl::string_view text, size_t begin, size_t end, std::vector<int32_t>* ids, Encode encode) {
    const size_t length = end - begin;
    if (length > kMaxBytes) return encode(text.substr(begin, length));
    const Key key = MakeKey(text, begin, length);
    Entry& entry = entries_[Hash(key) & (entries_.size() - 1)];
    if (entry.key.low == key.low && entry.key.high == key.high && entry.count > 0) {
      ids->insert(ids->end(), entry.ids, entry.ids + entry.count);
      return;
    }
    const size_t before = ids->size();
    encode(text.substr(begin, length));
    const size_t count = ids->size() - before;
    if (count == 0 || count > kMaxIds) return;
    entry.key = key;
    entry.count = static_cast<uint32_t>(count);
    std::copy(ids->end() - static_cast<std::ptrdiff_t>(count), ids->end(), entry.ids);
  }

 private:
  static constexpr size_t kMaxEntries = size_t{1} << 15;
  static constexpr size_t kMaxBytes = 15;
  static constexpr size_t kMaxIds = 3;

  // The bytes of a word with zeros behind, and its length in the last byte.
  struct Key {
    uint64_t low = 0, high = 0;
  };
  struct Entry {
    Key key;
    int32_t ids[kMaxIds] = {};
    uint32_t count = 0;
  };

  static Key MakeKey(absl::string_view text, size_t begin, size_t length) {
    Key key;
    if (begin + 16 <= text.size()) {
      std::memcpy(&key.low, text.data() + begin, 8);
      std::memcpy(&key.high, text.data() + begin + 8, 8);
      // Bytes behind the word are cut off. A shift by 64 is undefined.
      if (length < 8) key.low &= (uint64_t{1} << 8 * length) - 1;
      key.high = length > 8 ? key.high & ((uint64_t{1} << 8 * (length - 8)) - 1) : 0;
    } else {
      char bytes[16] = {};
      std::memcpy(bytes, text.data() + begin, length);
      std::memcpy(&key.low, bytes, 8);
      std::memcpy(&key.high, bytes + 8, 8);
    }
    key.high |= static_cast<uint64_t>(length) << 56;
    return key;
  }
  static size_t Hash(const Key& key) {
    uint64_t hash = (key.low ^ key.high * 0x9E3779B97F4A7C15U) * 0xBF58476D1CE4E5B9U;
    hash ^= hash >> 32;
    return static_cast<size_t>(hash * 0x94D049BB133111EBU >> 20);
  }

  std::vector<Entry> entries_;
};

}  // namespace llmc

#endif  // LLMC_RUNTIME_TEXT_WORD_CACHE_H_
