// Copies large values around the cache. Most processors otherwise read the target's memory before they overwrite it,
// which takes as long as the copy itself. The function keeps no state, starts no threads, and allocates nothing.

#include <cstdint>
#include <cstring>

#if defined(__SSE2__)
#include <emmintrin.h>
#endif

namespace {

[[maybe_unused]] constexpr int64_t kLine = 64;  // bytes of a cache line
constexpr int64_t kPart = 256 * kLine;          // bytes that stay in the first-level cache from row to row

void copy_around_cache(char* target, const char* source, int64_t bytes) {
#if defined(__SSE2__)
  int64_t head = (kLine - static_cast<int64_t>(reinterpret_cast<uintptr_t>(target) % kLine)) % kLine;
  if (head > bytes) head = bytes;
  std::memcpy(target, source, static_cast<size_t>(head));
  target += head;
  source += head;
  bytes -= head;
  for (; bytes >= kLine; bytes -= kLine, target += kLine, source += kLine) {
    __m128i parts[4];
    std::memcpy(parts, source, kLine);
    auto* const line = reinterpret_cast<__m128i*>(target);
    for (int part = 0; part < 4; ++part) _mm_stream_si128(line + part, parts[part]);
  }
#endif
  std::memcpy(target, source, static_cast<size_t>(bytes));
}

}  // namespace

// Copies a value to some rows of `target`, which are as long as the value and do not overlap it, and which nobody reads
// soon.
extern "C" __attribute__((visibility("default"))) void parquetry_copy_to_rows(char* target, const char* value,
                                                                              int64_t bytes, const int64_t* rows,
                                                                              int64_t count) {
  for (int64_t at = 0; at < bytes; at += kPart)
    for (int64_t each = 0; each < count; ++each)
      copy_around_cache(target + rows[each] * bytes + at, value + at, bytes - at < kPart ? bytes - at : kPart);
#if defined(__SSE2__)
  _mm_sfence();
#endif
}
