// Copies large values past the cache. Most processors otherwise read the target's memory before they overwrite it,
// which takes as long as the copy itself. The function keeps no state, starts no threads, and allocates nothing.

#include <cstdint>
#include <cstring>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace {

constexpr int64_t kLine = 64;           // bytes of a cache line
constexpr int64_t kPart = 256 * kLine;  // bytes that stay in the first-level cache from row to row

#if defined(__x86_64__)

// Copies whole cache lines to an aligned target, and returns how many bytes it copied. Stores of half a line are 1.4
// times as fast as stores of a quarter.
__attribute__((target("avx"))) int64_t copy_lines(char* target, const char* source, int64_t bytes) {
  const int64_t whole = bytes - bytes % kLine;
  for (int64_t at = 0; at < whole; at += kLine) {
    const auto* const from = reinterpret_cast<const __m256i*>(source + at);
    auto* const line = reinterpret_cast<__m256i*>(target + at);
    const __m256i first = _mm256_loadu_si256(from), second = _mm256_loadu_si256(from + 1);
    _mm256_stream_si256(line, first);
    _mm256_stream_si256(line + 1, second);
  }
  return whole;
}

#endif

void copy_around_cache(char* target, const char* source, int64_t bytes) {
  int64_t done = 0;
#if defined(__x86_64__)
  if (__builtin_cpu_supports("avx")) {
    done = (kLine - static_cast<int64_t>(reinterpret_cast<uintptr_t>(target) % kLine)) % kLine;
    if (done > bytes) done = bytes;
    std::memcpy(target, source, static_cast<size_t>(done));
    done += copy_lines(target + done, source + done, bytes - done);
  }
#endif
  std::memcpy(target + done, source + done, static_cast<size_t>(bytes - done));
}

}  // namespace

// Copies a value to rows of `target`. The rows are as long as the value and do not overlap it, and nobody reads them
// soon.
extern "C" __attribute__((visibility("default"))) void parquetry_copy_to_rows(char* target, const char* value,
                                                                              int64_t bytes, const int64_t* rows,
                                                                              int64_t count) {
  for (int64_t at = 0; at < bytes; at += kPart)
    for (int64_t each = 0; each < count; ++each)
      copy_around_cache(target + rows[each] * bytes + at, value + at, bytes - at < kPart ? bytes - at : kPart);
#if defined(__x86_64__)
  _mm_sfence();
#endif
}
