// Copies large values around the cache. Most processors otherwise read the target's memory before they overwrite it,
// which takes as long as the copy itself. The function keeps no state, starts no threads, and allocates nothing.

#include <cstdint>
#include <cstring>

#if defined(__SSE2__)
#include <emmintrin.h>
#endif

namespace {

[[maybe_unused]] constexpr int64_t kLine = 64;  // bytes of a cache line

}  // namespace

// Copies bytes that do not overlap, and that nobody reads soon.
extern "C" __attribute__((visibility("default"))) void parquetry_copy_around_cache(char* target, const char* source,
                                                                                   int64_t bytes) {
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
  _mm_sfence();
#endif
  std::memcpy(target, source, static_cast<size_t>(bytes));
}
