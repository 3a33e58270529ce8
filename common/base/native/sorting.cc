// Sorts the numbers of uniform random words. The function keeps no state, starts no threads, and allocates nothing.

#include <cstdint>
#include <cstring>

namespace {

constexpr uint32_t kMostInBucket = 64;  // uniform words come nowhere near this, and inserting takes quadratic time
constexpr int64_t kWordBits = 64;

}  // namespace

// Sorts `count` words and writes their numbers in the order of the words to `numbered`. The highest `bits` bits of a word
// are its bucket; a word's lowest bits are replaced by its number, so that one array holds both while it is sorted.
// `ends` has `2^bits` elements and is overwritten. Returns whether the numbers are in order: if not, the words are not
// uniform, or two of them differ only in the bits that were replaced.
extern "C" __attribute__((visibility("default"))) int64_t parquetry_word_order(const uint64_t* words, int64_t count,
                                                                               int64_t bits, uint32_t* ends,
                                                                               uint64_t* numbered) {
  if (!count) return 1;
  const int64_t shift = kWordBits - bits;
  const int64_t buckets = int64_t{1} << bits;
  uint64_t low = 0;
  while (low < static_cast<uint64_t>(count) - 1) low = low << 1 | 1;
  std::memset(ends, 0, static_cast<size_t>(buckets) * sizeof(uint32_t));
  for (int64_t i = 0; i < count; ++i) ++ends[words[i] >> shift];
  uint32_t total = 0;
  for (int64_t bucket = 0; bucket < buckets; ++bucket) {
    const uint32_t size = ends[bucket];
    if (size > kMostInBucket) return 0;
    ends[bucket] = total;
    total += size;
  }
  for (int64_t i = 0; i < count; ++i) {
    numbered[ends[words[i] >> shift]++] = (words[i] & ~low) | static_cast<uint64_t>(i);
  }
  for (int64_t i = 1; i < count; ++i) {  // a word moves inside its bucket only
    const uint64_t word = numbered[i];
    int64_t place = i;
    for (; place > 0 && numbered[place - 1] > word; --place) numbered[place] = numbered[place - 1];
    numbered[place] = word;
  }
  uint64_t before = numbered[0];
  numbered[0] &= low;
  for (int64_t i = 1; i < count; ++i) {
    const uint64_t word = numbered[i];
    if ((word ^ before) <= low) return 0;
    before = word;
    numbered[i] = word & low;
  }
  return 1;
}
