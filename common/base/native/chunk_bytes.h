// The bytes of a column chunk, in memory or in a file of which a window at a time is read, and the headers of its pages.

#pragma once

#include <cstdint>

#include "local_file.h"
#include "pages.h"

namespace {

constexpr int64_t kUsual = 512;  // bytes that hold most page headers

struct ChunkBytes {
  const uint8_t* data;  // null for a chunk in a file
  int64_t size;
  int descriptor = -1;
  int64_t begin = 0;  // where the chunk is in the file
  uint8_t* window = nullptr;
  int64_t capacity = 0;  // of the window
  int64_t first = 0, last = 0;  // what the window holds

  // Returns some bytes of the chunk, which are valid until the next call, or null if it does not have them, they cannot
  // be read, or do not fit into the window.
  const uint8_t* at(int64_t from, int64_t bytes) {
    if (bytes < 0 || bytes > size - from) return nullptr;
    if (data) return data + from;
    if (from < first || bytes > last - from) {
      if (bytes > capacity) return nullptr;
      int64_t read = bytes < kUsual ? kUsual : bytes;
      if (read > size - from) read = size - from;
      if (read > capacity) read = capacity;
      first = last = from;
      if (!read_file(descriptor, begin + from, read, window)) return nullptr;
      last = from + read;
    }
    return window + (from - first);
  }

  // Reads the header of the page at a place. Moves the place to the first byte after it.
  bool header_at(int64_t* place, Header* header) {
    const int64_t left = size - *place, most = data || left < capacity ? left : capacity;
    for (int64_t bytes = kUsual < most ? kUsual : most;; bytes = most) {
      const uint8_t* const from = at(*place, bytes);
      if (!from) return false;
      Reader reader{from, bytes};
      *header = read_header(&reader);
      if (reader.ok) {
        *place += reader.at;
        return header->stored_size >= 0 && header->stored_size <= size - *place;
      }
      if (bytes == most) return false;
    }
  }
};

}  // namespace
