// CRC-32 as zlib computes it. Source of the rule: the checksum of gzip, RFC 1952. The constants for whole vectors are
// powers of x modulo the polynomial, bits reversed, for the distances that a step skips.

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

constexpr int64_t kVector = 16, kFourVectors = 64;

// Multiplies both halves of `from` by the powers in `by`, which moves them forward, and adds the vector found there.
__attribute__((target("pclmul,sse4.1"))) inline __m128i folded(__m128i from, __m128i by, __m128i there) {
  const __m128i low = _mm_clmulepi64_si128(from, by, 0x00), high = _mm_clmulepi64_si128(from, by, 0x11);
  return _mm_xor_si128(_mm_xor_si128(low, high), there);
}

__attribute__((target("pclmul,sse4.1"))) inline __m128i vector_at(const uint8_t* data) {
  return _mm_loadu_si128(reinterpret_cast<const __m128i*>(data));
}

// Takes at least four vectors. Returns the state after all whole vectors; `*done` is how many bytes these are.
__attribute__((target("pclmul,sse4.1"))) inline uint32_t checksum_by_vectors(uint32_t state, const uint8_t* data,
                                                                             int64_t size, int64_t* done) {
  const __m128i four = _mm_set_epi64x(0x1c6e41596, 0x154442bd4), one = _mm_set_epi64x(0xccaa009e, 0x1751997d0);
  __m128i parts[4];
  for (int part = 0; part < 4; ++part) parts[part] = vector_at(data + part * kVector);
  parts[0] = _mm_xor_si128(parts[0], _mm_cvtsi32_si128(static_cast<int>(state)));
  int64_t at = kFourVectors;
  for (; size - at >= kFourVectors; at += kFourVectors)
    for (int part = 0; part < 4; ++part) parts[part] = folded(parts[part], four, vector_at(data + at + part * kVector));
  __m128i all = parts[0];
  for (int part = 1; part < 4; ++part) all = folded(all, one, parts[part]);
  for (; size - at >= kVector; at += kVector) all = folded(all, one, vector_at(data + at));
  *done = at;
  const __m128i word = _mm_setr_epi32(-1, 0, -1, 0);
  all = _mm_xor_si128(_mm_srli_si128(all, 8), _mm_clmulepi64_si128(all, one, 0x10));  // 128 to 96 bits
  const __m128i last = _mm_set_epi64x(0, 0x163cd6124);
  all = _mm_xor_si128(_mm_srli_si128(all, 4), _mm_clmulepi64_si128(_mm_and_si128(all, word), last, 0x00));
  const __m128i barrett = _mm_set_epi64x(0x1f7011641, 0x1db710641);
  __m128i quotient = _mm_clmulepi64_si128(_mm_and_si128(all, word), barrett, 0x10);
  quotient = _mm_clmulepi64_si128(_mm_and_si128(quotient, word), barrett, 0x00);
  return static_cast<uint32_t>(_mm_extract_epi32(_mm_xor_si128(all, quotient), 1));
}

#endif

// Returns the CRC-32 of some bytes.
inline uint32_t checksum(const uint8_t* data, int64_t size) {
  uint32_t state = 0xffffffff;
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
