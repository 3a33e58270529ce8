// Reads what all column chunks have: page headers, levels, and byte strings. The bytes may be damaged, so every claim
// is checked before it is used. Source of the rules: parquet.thrift, and Encodings.md of the Parquet format.

#pragma once

#include <cstdint>

#include "snappy.h"
#include "thrift.h"

namespace {

enum Page { kData = 0, kDictionary = 2, kDataV2 = 3 };
enum Encoding { kPlain = 0, kPlainDictionary = 2, kRunLengths = 3, kDictionaryCodes = 8 };
constexpr int64_t kPrefix = 4;  // bytes before levels and byte strings, which hold their size

struct Header {
  int64_t type = -1, size = -1, stored_size = -1, values = -1, encoding = -1;
  int64_t levels_encoding = kRunLengths, repetition_encoding = kRunLengths;
  int64_t repetition_bytes = 0, definition_bytes = 0, nulls = 0;
  int64_t checksum = -1;
  bool compressed = true;
};

int64_t integer(Reader* from, int kind) { return is_integer(kind) ? from->number() : from->fail(); }

// The fields that the header has. All fields that parquet.thrift requires must be there.
struct Seen {
  uint32_t ids = 0;

  void note(int64_t id) {
    if (id > 0 && id < 32) ids |= uint32_t{1} << id;
  }
  void need(Reader* from, int64_t last) const {  // all ids from 1 to the last one
    const uint32_t wanted = (uint32_t{2} << last) - 2;
    if ((ids & wanted) != wanted) from->fail();
  }
};

void read_data_header(Reader* from, Header* header) {
  Seen seen;
  int64_t id = 0;
  for (int kind = from->field(&id); kind != kStop; kind = from->field(&id)) {
    seen.note(id);
    if (id == 1) {
      header->values = integer(from, kind);
    } else if (id == 2) {
      header->encoding = integer(from, kind);
    } else if (id == 3 && header->type == kData) {
      header->levels_encoding = integer(from, kind);
    } else if (id == 4 && header->type == kData) {
      header->repetition_encoding = integer(from, kind);
    } else {
      from->skip(kind, 2);
    }
  }
  seen.need(from, header->type == kData ? 4 : 2);
}

void read_second_header(Reader* from, Header* header) {
  Seen seen;
  int64_t id = 0;
  for (int kind = from->field(&id); kind != kStop; kind = from->field(&id)) {
    seen.note(id);
    if (id == 7) {
      if (kind != kTrue && kind != kFalse) from->fail();
      header->compressed = kind == kTrue;
    } else if (id > 6) {
      from->skip(kind, 2);
    } else {
      const int64_t value = integer(from, kind);
      if (value < 0) from->fail();
      if (id == 1) header->values = value;
      if (id == 2) header->nulls = value;
      if (id == 4) header->encoding = value;
      if (id == 5) header->definition_bytes = value;
      if (id == 6) header->repetition_bytes = value;
    }
  }
  seen.need(from, 6);
}

Header read_header(Reader* from) {
  Header header;
  Seen seen;
  int64_t id = 0;
  for (int kind = from->field(&id); kind != kStop; kind = from->field(&id)) {
    seen.note(id);
    if (id >= 1 && id <= 4) {
      const int64_t value = integer(from, kind);
      if (id == 1) header.type = value;
      if (id == 2) header.size = value;
      if (id == 3) header.stored_size = value;
      if (id == 4) header.checksum = value & 0xffffffff;
    } else if (kind == kStruct && ((id == 5 && header.type == kData) || (id == 7 && header.type == kDictionary))) {
      read_data_header(from, &header);
    } else if (kind == kStruct && id == 8 && header.type == kDataV2) {
      read_second_header(from, &header);
    } else {
      from->skip(kind, 1);
    }
  }
  seen.need(from, 3);
  return header;
}

// The hybrid of run lengths and bit-packed groups that stores levels and codes.
struct Runs {
  Reader from;
  int64_t bits;
  int64_t left = 0;  // values of the current run that were not taken yet
  int64_t taken = 0;
  bool packed = false;
  uint64_t value = 0;  // of a run of equal values
  const uint8_t* groups = nullptr;

  // Makes sure that a value is left. Returns false if no value is left, or if a run does not fit.
  bool has_more() {
    if (left > 0) return true;
    const uint64_t head = from.unsigned_number();
    const uint64_t count = head >> 1, most = static_cast<uint64_t>(INT64_MAX) / 64;
    if (!from.ok || count == 0 || count > most) return false;
    packed = head & 1;
    taken = 0;
    if (packed) {
      groups = from.data + from.at;
      left = static_cast<int64_t>(count) * 8;
      from.pass(count * static_cast<uint64_t>(bits));
    } else {
      const int64_t bytes = (bits + 7) / 8;
      left = static_cast<int64_t>(count);
      if (from.pass(static_cast<uint64_t>(bytes)) == bytes) value = little(from.data + from.at - bytes, bytes);
    }
    return from.ok;
  }

  // Returns the value `after` places further in the current run, for values of 1, 2, 4 or 8 bits.
  uint64_t peek(int64_t after) const {
    if (!packed) return value;
    const int64_t bit = (taken + after) * bits;
    return groups[bit >> 3] >> (bit & 7) & ((1 << bits) - 1);
  }

  void take(int64_t count) {
    taken += count;
    left -= count;
  }
};

// A byte string of a page or dictionary.
struct Text {
  const uint8_t* begin;
  int64_t size;
};

// Calls a function with each byte string. Returns false if the strings do not fill the bytes exactly.
template <class Use>
bool for_texts(const uint8_t* data, int64_t size, int64_t values, Use use) {
  int64_t at = 0;
  for (int64_t value = 0; value < values; ++value) {
    if (size - at < kPrefix) return false;
    const auto length = static_cast<int64_t>(little(data + at, kPrefix));
    at += kPrefix;
    if (length > size - at) return false;
    use(Text{data + at, length});
    at += length;
  }
  return at == size;
}

// Takes levels from the front of a page, after their size. Returns false if they do not fit.
bool take_levels(const uint8_t** data, int64_t* size, Reader* levels) {
  if (*size < kPrefix) return false;
  const auto bytes = static_cast<int64_t>(little(*data, kPrefix));
  if (bytes > *size - kPrefix) return false;
  *levels = {*data + kPrefix, bytes};
  *data += kPrefix + bytes;
  *size -= kPrefix + bytes;
  return true;
}

}  // namespace
