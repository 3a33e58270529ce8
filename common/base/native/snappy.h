// Decompresses Snappy. Source of the rules: the format description of Snappy. The bytes may be damaged, so nothing is
// read or written outside the two buffers.

#pragma once

#include <cstdint>
#include <cstring>

#include "thrift.h"

namespace {

constexpr int64_t kStep = 8;  // bytes that one move copies

// Reads some bytes as a little-endian number.
inline uint64_t little(const uint8_t* from, int64_t bytes) {
  uint64_t value = 0;
  for (int64_t byte = 0; byte < bytes; ++byte) value |= static_cast<uint64_t>(from[byte]) << (8 * byte);
  return value;
}

// Returns whether the bytes decompress to exactly `wanted` bytes, which are then in `out`. Not inlined: inside a larger
// function, its loops are up to a tenth slower.
__attribute__((noinline)) inline bool decompress_snappy(const uint8_t* from, int64_t size, uint8_t* out, int64_t wanted) {
  Reader head{from, size};
  if (head.unsigned_number() != static_cast<uint64_t>(wanted) || !head.ok) return false;
  int64_t at = head.at, done = 0;
  while (at < size) {
    const uint8_t tag = from[at++];
    int64_t length = 0, distance = 0;
    if ((tag & 3) == 0) {  // a literal: up to 60 bytes, or their number follows
      length = tag >> 2;
      if (length >= 60) {
        const int64_t bytes = length - 59;
        if (bytes > size - at) return false;
        length = static_cast<int64_t>(little(from + at, bytes));
        at += bytes;
      }
      if (++length > size - at || length > wanted - done) return false;
      std::memcpy(out + done, from + at, static_cast<size_t>(length));
      at += length;
      done += length;
      continue;
    }
    const int64_t bytes = (tag & 3) == 3 ? 4 : tag & 3;  // of the distance
    if (bytes > size - at) return false;
    distance = static_cast<int64_t>(little(from + at, bytes));
    at += bytes;
    if ((tag & 3) == 1) {
      length = (tag >> 2 & 7) + 4;
      distance |= (tag >> 5) << 8;
    } else {
      length = (tag >> 2) + 1;
    }
    if (distance == 0 || distance > done || length > wanted - done) return false;
    uint8_t* const to = out + done;
    const uint8_t* const earlier = to - distance;
    if (distance >= kStep && wanted - done - length >= kStep) {  // the last step may write too much
      for (int64_t copied = 0; copied < length; copied += kStep) std::memcpy(to + copied, earlier + copied, kStep);
    } else {
      for (int64_t copied = 0; copied < length; ++copied) to[copied] = earlier[copied];
    }
    done += length;
  }
  return done == wanted;
}

}  // namespace
