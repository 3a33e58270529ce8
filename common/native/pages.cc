// Decodes column chunks of numbers: plain pages, or pages that refer to a dictionary, without nulls. Whatever is different
// or damaged is left to Arrow. The bytes may be damaged, so every claim is checked before it is used. The functions keep
// no state, start no threads, and allocate nothing.
// Source of the rules: parquet.thrift, and Encodings.md of the Parquet format.

#include <cstdint>
#include <cstring>

#include "checksum.h"
#include "snappy.h"
#include "thrift.h"

namespace {

enum Page { kData = 0, kDictionary = 2, kDataV2 = 3 };
enum Encoding { kPlain = 0, kPlainDictionary = 2, kRunLengths = 3, kDictionaryCodes = 8 };
constexpr int64_t kMostBits = 32;  // of a code
constexpr int64_t kPrefix = 4;     // bytes before the levels of a page, which hold their size

// A column chunk. `done` becomes 1 if all of its values are in `target`.
struct Chunk {
  const uint8_t* data;
  int64_t size;
  int64_t stored_bytes;  // of a value: 4 or 8
  int64_t value_bytes;   // of a value in `target`: the same, or 1 or 2 instead of 4
  int64_t compressed;    // with Snappy
  int64_t optional;      // values may be null, so pages have definition levels
  uint8_t* target;
  int64_t done;
};
static_assert(sizeof(Chunk) == 64, "Python describes chunks by the same layout");

// Memory for a decompressed page and for a dictionary. `8 more bytes than this may be read in each.
struct Scratch {
  uint8_t* page;
  int64_t page_bytes;
  uint8_t* dictionary;
  int64_t dictionary_bytes;
};

struct Header {
  int64_t type = -1, size = -1, stored_size = -1, values = -1, encoding = -1, levels_encoding = kRunLengths;
  int64_t nulls = 0, repetition_bytes = 0, definition_bytes = 0;
  int64_t checksum = -1;
  bool compressed = true;
};

int64_t integer(Reader* from, int kind) { return is_integer(kind) ? from->number() : from->fail(); }

void read_data_header(Reader* from, Header* header) {
  int64_t id = 0;
  for (int kind = from->field(&id); kind != kStop; kind = from->field(&id)) {
    if (id == 1) {
      header->values = integer(from, kind);
    } else if (id == 2) {
      header->encoding = integer(from, kind);
    } else if (id == 3 && header->type == kData) {
      header->levels_encoding = integer(from, kind);
    } else {
      from->skip(kind, 2);
    }
  }
}

void read_second_header(Reader* from, Header* header) {
  int64_t id = 0;
  for (int kind = from->field(&id); kind != kStop; kind = from->field(&id)) {
    if (id == 7) {
      header->compressed = kind == kTrue;
    } else if (id == 3 || id > 6) {
      from->skip(kind, 2);
    } else {
      const int64_t value = integer(from, kind);
      if (id == 1) header->values = value;
      if (id == 2) header->nulls = value;
      if (id == 4) header->encoding = value;
      if (id == 5) header->definition_bytes = value;
      if (id == 6) header->repetition_bytes = value;
    }
  }
}

Header read_header(Reader* from) {
  Header header;
  int64_t id = 0;
  for (int kind = from->field(&id); kind != kStop; kind = from->field(&id)) {
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
  return header;
}

// Copies values, which lose their upper bytes if the target's are narrower, as in Arrow.
void copy_values(const Chunk& chunk, const uint8_t* from, int64_t count, uint8_t* to) {
  if (chunk.value_bytes == chunk.stored_bytes) {
    std::memcpy(to, from, static_cast<size_t>(count * chunk.value_bytes));
  } else if (chunk.value_bytes == 2) {
    for (int64_t value = 0; value < count; ++value) std::memcpy(to + 2 * value, from + 4 * value, 2);
  } else {
    for (int64_t value = 0; value < count; ++value) to[value] = from[4 * value];
  }
}

// The hybrid of run lengths and bit-packed groups, in which levels and codes are stored.
struct Runs {
  Reader from;
  int64_t bits;
  int64_t left = 0;       // values of the current run
  bool packed = false;
  uint64_t value = 0;     // of a run of equal values
  const uint8_t* groups = nullptr;

  // Begins the next run. Returns false if there is none, or it does not fit.
  bool next() {
    const uint64_t head = from.unsigned_number();
    packed = head & 1;
    const uint64_t count = head >> 1, most = static_cast<uint64_t>(INT64_MAX) / 64;
    if (!from.ok || count == 0 || count > most) return false;
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
};

// Returns whether some levels of one bit are all 1: no value is null.
bool all_present(const uint8_t* levels, int64_t size, int64_t values) {
  Runs runs{{levels, size}, 1};
  while (values > 0) {
    if (!runs.next()) return false;
    const int64_t count = runs.left < values ? runs.left : values;
    if (runs.packed) {
      for (int64_t byte = 0; byte < count / 8; ++byte)
        if (runs.groups[byte] != 0xff) return false;
      const int last = (1 << count % 8) - 1;
      if (count % 8 && (runs.groups[count / 8] & last) != last) return false;
    } else if (runs.value != 1) {
      return false;
    }
    values -= count;
  }
  return true;
}

// Writes the values that codes stand for. Returns whether all codes are in the dictionary.
template <class Value>
bool look_up(Runs runs, int64_t values, const uint8_t* dictionary, uint64_t entries, uint8_t* to) {
  const auto* const table = reinterpret_cast<const Value*>(dictionary);
  const uint64_t mask = (uint64_t{1} << runs.bits) - 1;
  while (values > 0) {
    if (!runs.next()) return false;
    const int64_t count = runs.left < values ? runs.left : values;
    if (!runs.packed) {
      if (runs.value >= entries) return false;
      const Value found = table[runs.value];
      for (int64_t value = 0; value < count; ++value) std::memcpy(to + value * sizeof found, &found, sizeof found);
    } else {
      for (int64_t value = 0, bit = 0; value < count; ++value, bit += runs.bits) {
        uint64_t word = 0;
        std::memcpy(&word, runs.groups + (bit >> 3), sizeof word);  // may read up to 8 bytes too far
        const uint64_t code = word >> (bit & 7) & mask;
        if (code >= entries) return false;
        std::memcpy(to + value * sizeof(Value), table + code, sizeof(Value));
      }
    }
    values -= count;
    to += count * static_cast<int64_t>(sizeof(Value));
  }
  return true;
}

bool look_up_codes(const Chunk& chunk, const uint8_t* data, int64_t size, int64_t values, const Scratch& scratch,
                   int64_t entries, uint8_t* to) {
  if (size < 1 || data[0] > kMostBits || entries < 0) return false;
  const Runs runs{{data + 1, size - 1}, data[0]};
  const auto count = static_cast<uint64_t>(entries);
  if (chunk.value_bytes == 1) return look_up<uint8_t>(runs, values, scratch.dictionary, count, to);
  if (chunk.value_bytes == 2) return look_up<uint16_t>(runs, values, scratch.dictionary, count, to);
  if (chunk.value_bytes == 4) return look_up<uint32_t>(runs, values, scratch.dictionary, count, to);
  return look_up<uint64_t>(runs, values, scratch.dictionary, count, to);
}

// Decodes a data page after its levels.
bool decode_values(const Chunk& chunk, const Header& header, const uint8_t* data, int64_t size, const Scratch& scratch,
                   int64_t entries, uint8_t* to) {
  if (header.encoding == kPlain) {
    if (size != header.values * chunk.stored_bytes) return false;
    copy_values(chunk, data, header.values, to);
    return true;
  }
  if (header.encoding != kDictionaryCodes && header.encoding != kPlainDictionary) return false;
  return look_up_codes(chunk, data, size, header.values, scratch, entries, to);
}

// Decodes a page. Returns how many values of `room` it adds to the target, 0 for a dictionary, or -1.
int64_t decode_page(const Chunk& chunk, const Header& header, const uint8_t* data, const Scratch& scratch, int64_t room,
                    int64_t* entries, uint8_t* to) {
  int64_t size = header.stored_size, wanted = header.size;
  const uint8_t* levels = data;
  int64_t levels_bytes = 0;
  if (header.values < 0 || header.values > room || wanted < 0) return -1;
  if (header.type == kDataV2) {
    levels_bytes = header.definition_bytes;
    if (header.repetition_bytes || header.nulls || levels_bytes < 0 || levels_bytes > size || levels_bytes > wanted)
      return -1;
    data += levels_bytes;
    size -= levels_bytes;
    wanted -= levels_bytes;
  }
  if (chunk.compressed && header.compressed) {
    if (wanted > scratch.page_bytes || !decompress_snappy(data, size, scratch.page, wanted)) return -1;
    data = scratch.page;
    size = wanted;
  }
  if (size != wanted) return -1;
  if (header.type == kDictionary) {
    if (*entries >= 0 || (header.encoding != kPlain && header.encoding != kPlainDictionary)) return -1;
    if (header.values > scratch.dictionary_bytes / chunk.value_bytes || size != header.values * chunk.stored_bytes)
      return -1;
    copy_values(chunk, data, header.values, scratch.dictionary);
    *entries = header.values;
    return 0;
  }
  if (header.type == kData && chunk.optional) {
    if (header.levels_encoding != kRunLengths || size < kPrefix) return -1;
    levels_bytes = static_cast<int64_t>(little(data, kPrefix));
    if (levels_bytes > size - kPrefix) return -1;
    levels = data + kPrefix;
    data = levels + levels_bytes;
    size -= kPrefix + levels_bytes;
  }
  if (chunk.optional && !all_present(levels, levels_bytes, header.values)) return -1;
  return decode_values(chunk, header, data, size, scratch, *entries, to) ? header.values : -1;
}

bool decode_chunk(const Chunk& chunk, int64_t rows, bool checked, const Scratch& scratch) {
  Reader from{chunk.data, chunk.size};
  int64_t found = 0, entries = -1;
  while (from.at < from.size) {
    const Header header = read_header(&from);
    const uint8_t* const data = from.data + from.at;
    if (!from.ok || (header.type != kData && header.type != kDictionary && header.type != kDataV2)) return false;
    if (header.stored_size < 0 || from.pass(static_cast<uint64_t>(header.stored_size)) != header.stored_size) return false;
    if (checked && header.checksum >= 0 && checksum(data, header.stored_size) != header.checksum) return false;
    const int64_t room = header.type == kDictionary ? INT64_MAX / 8 : rows - found;
    const int64_t values = decode_page(chunk, header, data, scratch, room, &entries, chunk.target + found * chunk.value_bytes);
    if (values < 0) return false;
    found += values;
  }
  return found == rows;
}

}  // namespace

// Decodes column chunks of `rows` values each. Chunks that cannot be decoded are not `done`, and their targets hold
// anything. Up to 8 bytes after the data of a chunk may be read.
extern "C" __attribute__((visibility("default"))) void parquetry_decode_chunks(Chunk* chunks, int64_t count, int64_t rows,
                                                                               int64_t checked, const Scratch* scratch) {
  for (int64_t chunk = 0; chunk < count; ++chunk)
    chunks[chunk].done = decode_chunk(chunks[chunk], rows, checked != 0, *scratch);
}

// Returns the CRC-32 of some bytes.
extern "C" __attribute__((visibility("default"))) int64_t parquetry_checksum(const uint8_t* data, int64_t size) {
  return checksum(data, size);
}
