// CRC-32 as zlib computes it. Source of the rule: the checksum of gzip, RFC 1952.

#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace {

constexpr uint32_t kPolynomial = 0xedb88320;
constexpr int kSlices = 8;

struct ChecksumTable {
  uint32_t of[kSlices][256] = {};

  constexpr ChecksumTable() {
    for (uint32_t byte = 0; byte < 256; ++byte) {
      uint32_t value = byte;
      for (int bit = 0; bit < 8; ++bit) value = value & 1 ? kPolynomial ^ (value >> 1) : value >> 1;
      of[0][byte] = value;
    }
    for (int slice = 1; slice < kSlices; ++slice)
      for (int byte = 0; byte < 256; ++byte)
        of[slice][byte] = of[0][of[slice - 1][byte] & 255] ^ (of[slice - 1][byte] >> 8);
  }
};
constexpr ChecksumTable kTable;

inline uint32_t checksum_by_table(uint32_t state, const uint8_t* data, int64_t size) {
  for (; size >= kSlices; size -= kSlices, data += kSlices) {
    uint64_t word = 0;
    std::memcpy(&word, data, sizeof word);  // little-endian, as all of Parquet
    word ^= state;
    state = 0;
    for (int byte = 0; byte < kSlices; ++byte) state ^= kTable.of[kSlices - 1 - byte][word >> (8 * byte) & 255];
  }
  for (; size > 0; --size) state = kTable.of[0][(state ^ *data++) & 255] ^ (state >> 8);
  return state;
}

#if defined(__x86_64__)

constexpr int64_t kVector = 16, kFourVectors = 4 * kVector, kWide = 64, kFourWide = 4 * kWide;
constexpr int kMostLanes = kFourWide / kVector;

// Returns a power of x modulo the polynomial, with its bits reversed, as `folded` expects it.
constexpr int64_t power(int exponent) {
  uint32_t value = 0x80000000;
  for (; exponent > 0; --exponent) value = value & 1 ? kPolynomial ^ (value >> 1) : value >> 1;
  return static_cast<int64_t>(value) << 1;
}

// The powers that move the halves of a vector forward by a number of bytes.
constexpr int64_t low_power(int64_t bytes) { return power(static_cast<int>(8 * bytes + 32)); }
constexpr int64_t high_power(int64_t bytes) { return power(static_cast<int>(8 * bytes - 32)); }

// Multiplies both halves of `from` by the powers in `by`, which moves them forward, and adds the vector that is there.
__attribute__((target("pclmul,sse4.1"))) inline __m128i folded(__m128i from, __m128i by, __m128i there) {
  const __m128i low = _mm_clmulepi64_si128(from, by, 0x00), high = _mm_clmulepi64_si128(from, by, 0x11);
  return _mm_xor_si128(_mm_xor_si128(low, high), there);
}

__attribute__((target("pclmul,sse4.1"))) inline __m128i vector_at(const uint8_t* data) {
  return _mm_loadu_si128(reinterpret_cast<const __m128i*>(data));
}

// Folds all bytes except the last few into four vectors. Returns how many bytes it folded.
__attribute__((target("pclmul,sse4.1"))) inline int64_t fold(uint32_t state, const uint8_t* data, int64_t size,
                                                             __m128i* lanes) {
  constexpr int64_t kLow = low_power(kFourVectors), kHigh = high_power(kFourVectors);
  const __m128i by = _mm_set_epi64x(kHigh, kLow);
  for (int lane = 0; lane < 4; ++lane) lanes[lane] = vector_at(data + lane * kVector);
  lanes[0] = _mm_xor_si128(lanes[0], _mm_cvtsi32_si128(static_cast<int>(state)));
  int64_t at = kFourVectors;
  for (; size - at >= kFourVectors; at += kFourVectors)
    for (int lane = 0; lane < 4; ++lane) lanes[lane] = folded(lanes[lane], by, vector_at(data + at + lane * kVector));
  return at;
}

// As `fold`, into `kMostLanes` vectors, three times as fast.
__attribute__((target("avx512f,vpclmulqdq"))) inline int64_t fold_wide(uint32_t state, const uint8_t* data,
                                                                       int64_t size, __m128i* lanes) {
  constexpr int64_t kLow = low_power(kFourWide), kHigh = high_power(kFourWide);
  const __m512i by = _mm512_set_epi64(kHigh, kLow, kHigh, kLow, kHigh, kLow, kHigh, kLow);
  __m512i parts[4];
  for (int part = 0; part < 4; ++part) parts[part] = _mm512_loadu_si512(data + part * kWide);
  parts[0] = _mm512_xor_si512(parts[0], _mm512_set_epi32(0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0,
                                                         static_cast<int>(state)));
  int64_t at = kFourWide;
  for (; size - at >= kFourWide; at += kFourWide) {
    for (int part = 0; part < 4; ++part) {
      const __m512i low = _mm512_clmulepi64_epi128(parts[part], by, 0x00);
      const __m512i high = _mm512_clmulepi64_epi128(parts[part], by, 0x11);
      const __m512i there = _mm512_loadu_si512(data + at + part * kWide);
      parts[part] = _mm512_xor_si512(_mm512_xor_si512(low, high), there);
    }
  }
  for (int part = 0; part < 4; ++part) _mm512_storeu_si512(lanes + part * (kWide / kVector), parts[part]);
  return at;
}

// Takes at least four vectors. Returns the state after all whole vectors; `*done` is their size in bytes.
__attribute__((target("pclmul,sse4.1"))) inline uint32_t checksum_by_vectors(uint32_t state, const uint8_t* data,
                                                                             int64_t size, int64_t* done) {
  const bool is_wide =
      size >= kFourWide && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("vpclmulqdq");
  __m128i lanes[kMostLanes];
  int64_t at = is_wide ? fold_wide(state, data, size, lanes) : fold(state, data, size, lanes);
  constexpr int64_t kLow = low_power(kVector), kHigh = high_power(kVector), kLast = power(64);
  const __m128i one = _mm_set_epi64x(kHigh, kLow);
  __m128i all = lanes[0];
  for (int lane = 1; lane < (is_wide ? kMostLanes : 4); ++lane) all = folded(all, one, lanes[lane]);
  for (; size - at >= kVector; at += kVector) all = folded(all, one, vector_at(data + at));
  *done = at;
  const __m128i word = _mm_setr_epi32(-1, 0, -1, 0);
  all = _mm_xor_si128(_mm_srli_si128(all, 8), _mm_clmulepi64_si128(all, one, 0x10));  // 128 to 96 bits
  const __m128i last = _mm_set_epi64x(0, kLast);
  all = _mm_xor_si128(_mm_srli_si128(all, 4), _mm_clmulepi64_si128(_mm_and_si128(all, word), last, 0x00));
  // The quotient of x^64 by the polynomial, and the polynomial, with their bits reversed, for Barrett's reduction.
  const __m128i barrett = _mm_set_epi64x(0x1f7011641, 0x1db710641);
  __m128i quotient = _mm_clmulepi64_si128(_mm_and_si128(all, word), barrett, 0x10);
  quotient = _mm_clmulepi64_si128(_mm_and_si128(quotient, word), barrett, 0x00);
  return static_cast<uint32_t>(_mm_extract_epi32(_mm_xor_si128(all, quotient), 1));
}

#endif

// Returns the CRC-32 of bytes; if they follow others, pass the CRC-32 of those.
inline uint32_t checksum(const uint8_t* data, int64_t size, uint32_t before = 0) {
  uint32_t state = ~before;
#if defined(__x86_64__)
  if (size >= kFourVectors && __builtin_cpu_supports("pclmul") && __builtin_cpu_supports("sse4.1")) {
    int64_t done = 0;
    state = checksum_by_vectors(state, data, size, &done);
    data += done;
    size -= done;
  }
#endif
  return ~checksum_by_table(state, data, size);
}

}  // namespace
