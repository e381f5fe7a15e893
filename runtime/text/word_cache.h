// The ids of words that a text has had already.
#ifndef LLMC_RUNTIME_TEXT_WORD_CACHE_H_
#define LLMC_RUNTIME_TEXT_WORD_CACHE_H_

#include <algorithm>
#include <array>
#include <cstdint>
#include <cstring>
#include <vector>

#include "absl/strings/string_view.h"

namespace llmc {

// Keeps words of less than `key_bytes` bytes and up to `max_ids` ids, each in the one place that its hash gives it; a
// later word takes the place over. For one text at a time: not thread safe.
template <size_t key_bytes, size_t max_ids>
class WordCacheOf {
 public:
  explicit WordCacheOf(size_t text_bytes) {
    size_t size = 16;
    while (size < kMaxEntries && size * 32 < text_bytes) size *= 2;
    entries_.resize(size);
  }

  // Appends the ids of text[begin, end), which `encode(word)` appends if they are not known yet.
  template <typename Encode>
  void Append(absl::string_view text, size_t begin, size_t end, std::vector<int32_t>* ids, Encode encode) {
    const size_t length = end - begin;
    if (length >= key_bytes) return encode(text.substr(begin, length));
    const Key key = MakeKey(text, begin, length);
    Entry& entry = entries_[Hash(key) & (entries_.size() - 1)];
    if (entry.key == key && entry.count > 0) {
      ids->insert(ids->end(), entry.ids, entry.ids + entry.count);
      return;
    }
    const size_t before = ids->size();
    encode(text.substr(begin, length));
    const size_t count = ids->size() - before;
    if (count == 0 || count > max_ids) return;
    entry.key = key;
    entry.count = static_cast<uint32_t>(count);
    std::copy(ids->end() - static_cast<std::ptrdiff_t>(count), ids->end(), entry.ids);
  }

 private:
  static constexpr size_t kMaxEntries = size_t{1} << 15;
  static constexpr size_t kLanes = key_bytes / 8;

  // The bytes of a word with zeros behind, and its length in the last byte.
  using Key = std::array<uint64_t, kLanes>;
  struct Entry {
    Key key = {};
    int32_t ids[max_ids] = {};
    uint32_t count = 0;
  };

  static Key MakeKey(absl::string_view text, size_t begin, size_t length) {
    Key key = {};
    if (begin + key_bytes <= text.size()) {
      std::memcpy(key.data(), text.data() + begin, key_bytes);
      // Bytes behind the word are cut off. A shift by 64 is undefined.
      for (size_t lane = 0; lane < kLanes; ++lane) {
        const size_t bytes = length > 8 * lane ? length - 8 * lane : 0;
        if (bytes < 8) key[lane] &= (uint64_t{1} << 8 * bytes) - 1;
      }
    } else {
      std::memcpy(key.data(), text.data() + begin, length);
    }
    key.back() |= static_cast<uint64_t>(length) << 56;
    return key;
  }
  static size_t Hash(const Key& key) {
    uint64_t hash = 0;
    for (size_t lane = kLanes; lane-- > 0;) hash = (hash ^ key[lane]) * 0x9E3779B97F4A7C15U;
    hash ^= hash >> 32;
    return static_cast<size_t>(hash * 0x94D049BB133111EBU >> 20);
  }

  std::vector<Entry> entries_;
};

using WordCache = WordCacheOf<16, 3>;
// Of words between white space, with the punctuation at their ends.
using LongWordCache = WordCacheOf<32, 7>;

}  // namespace llmc

#endif  // LLMC_RUNTIME_TEXT_WORD_CACHE_H_
