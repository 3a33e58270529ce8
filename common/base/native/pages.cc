// Decodes column chunks of numbers, of byte strings, and of lists of numbers without nulls: plain pages, or pages that
// refer to a dictionary. Anything else, and anything damaged, is left to Arrow. The bytes may be damaged, so every
// claim is checked before it is used. The functions keep no state, start no threads, and allocate nothing. Source of
// the rules: parquet.thrift, and Encodings.md of the Parquet format.

#include <algorithm>
#include <cstdint>
#include <cstring>

#include "checksum.h"
#include "chunk_bytes.h"
#include "local_file.h"
#include "pages.h"
#include "snappy.h"

#if defined(__SSE2__)
#include <emmintrin.h>
#endif

namespace {

enum Compression { kUncompressed = 0, kSnappy = 1, kZstd = 2 };
constexpr int64_t kMostBits = 32;  // of a code
constexpr int64_t kUndecoded = -1;
constexpr int64_t kLine = 64;             // bytes of a cache line
constexpr int64_t kStored = 16;           // bytes of a store around the cache
constexpr int64_t kCached = 1 << 20;      // so many bytes in order stay in the cache
constexpr int64_t kWhole = 256 << 10;     // bytes of a chunk that is read whole, whatever rows are wanted
constexpr int64_t kFrameMagic = 4;        // bytes
constexpr uint64_t kFrame = 0xfd2fb528;   // of Zstandard (RFC 8878, 3.1.1); some libraries read older formats as well

// A column chunk, and where its values go.
struct Chunk {
  const uint8_t* data;   // unless it is in a file
  int64_t begin;         // where it is in the file
  int64_t size;
  int64_t stored_bytes;  // of a number: 4 or 8; 0 for byte strings
  int64_t value_bytes;   // of a number in `target`: the same, or 1 or 2 instead of 4; 1 for byte strings
  int64_t compressed;    // a `Compression`
  int64_t definition;    // the highest definition level, which all values have
  int64_t empty;         // the definition level of empty lists; -1 if there are no lists
  uint8_t* target;
  int64_t capacity;      // how many numbers, or bytes of strings, fit into the target
  uint8_t* offsets;      // of strings and lists; room for one more than there are rows
  int64_t offset_bytes;  // 4 or 8; 0 if there are no offsets
  uint8_t* validity;     // one bit for each row, if values may be null
  int64_t nulls;         // how many values are null
  int64_t in_order;      // whether the numbers are put in the order of the items; the validity is not
  int64_t found;         // how many numbers or bytes there are; more than `capacity` if they do not fit; or kUndecoded
};
static_assert(sizeof(Chunk) == 128, "Python describes chunks by the same layout");

// Memory for a chunk of a file (of a larger one, for a page), a decompressed page, a dictionary, and a column that is put
// in order. Up to 8 bytes after a chunk or page may be read. `items` has the row of each item. `wanted` has the rows that
// are wanted, ascending; null for all. `unread` is how many bytes of chunks in the file were left out. Python finds the
// Zstandard library.
struct Scratch {
  uint8_t* chunk;
  int64_t chunk_bytes;
  uint8_t* page;
  int64_t page_bytes;
  uint8_t* dictionary;
  int64_t dictionary_bytes;
  uint8_t* column;
  int64_t column_bytes;
  const int32_t* items;
  int64_t item_count;
  const int64_t* wanted;
  int64_t wanted_count;
  int64_t unread;
  size_t (*zstd)(void* to, size_t capacity, const void* from, size_t size);  // ZSTD_decompress; may be null
  size_t (*zstd_frame)(const void* from, size_t size);                       // ZSTD_findFrameCompressedSize
};

// How far the decoding of a chunk is.
struct Progress {
  int64_t rows = 0;
  int64_t values = 0;    // numbers, or bytes of strings
  int64_t nulls = 0;
  int64_t entries = -1;  // of the dictionary
  int64_t passed = 0;    // how many wanted rows come before the current page
  int64_t unread = 0;    // bytes of pages that were left out
  bool has_pages = false;
  const uint8_t* whole = nullptr;  // the only page's numbers, as they are in the target; only for numbers to put in order
};

// Copies values. If the target's are narrower, values lose their upper bytes, as in Arrow.
void copy_values(const Chunk& chunk, const uint8_t* from, int64_t count, uint8_t* to) {
  if (chunk.value_bytes == chunk.stored_bytes) {
    std::memcpy(to, from, static_cast<size_t>(count * chunk.value_bytes));
  } else if (chunk.value_bytes == 2) {
    for (int64_t value = 0; value < count; ++value) std::memcpy(to + 2 * value, from + 4 * value, 2);
  } else {
    for (int64_t value = 0; value < count; ++value) to[value] = from[4 * value];
  }
}

void set_offset(const Chunk& chunk, int64_t row, int64_t value) {
  std::memcpy(chunk.offsets + row * chunk.offset_bytes, &value, static_cast<size_t>(chunk.offset_bytes));
}

bool is_valid(const Chunk& chunk, int64_t row) { return chunk.validity[row >> 3] >> (row & 7) & 1; }

// Returns how many of 8 bits are 1.
unsigned ones_in(unsigned bits) {
  bits -= bits >> 1 & 0x55;
  bits = (bits & 0x33) + (bits >> 2 & 0x33);
  return (bits + (bits >> 4)) & 0x0f;
}

void set_valid(const Chunk& chunk, int64_t row, int64_t count) {
  for (; count > 0 && row & 7; ++row, --count) chunk.validity[row >> 3] |= static_cast<uint8_t>(1 << (row & 7));
  std::memset(chunk.validity + (row >> 3), 0xff, static_cast<size_t>(count >> 3));
  if (count & 7) chunk.validity[(row + count) >> 3] |= static_cast<uint8_t>((1 << (count & 7)) - 1);
}

// Sets the validity of consecutive rows, which is still 0, to `count` bits. Returns how many bits are 1.
int64_t set_validity(const Chunk& chunk, int64_t row, const uint8_t* bits, int64_t count) {
  int64_t valid = 0;
  for (int64_t byte = 0; 8 * byte < count; ++byte, row += 8) {
    const int64_t left = count - 8 * byte;
    const unsigned found = left < 8 ? bits[byte] & ((1u << left) - 1) : bits[byte];
    chunk.validity[row >> 3] |= static_cast<uint8_t>(found << (row & 7));
    if (row & 7 && found >> (8 - (row & 7))) chunk.validity[(row >> 3) + 1] |= static_cast<uint8_t>(found >> (8 - (row & 7)));
    valid += ones_in(found);
  }
  return valid;
}

// Sets the validity of a page's rows from their definition levels. Returns how many are valid, or -1.
int64_t read_validity(const Chunk& chunk, Runs levels, int64_t row, int64_t rows) {
  int64_t valid = 0;
  for (int64_t count = 0; rows > 0; rows -= count, row += count) {
    if (!levels.has_more()) return -1;
    count = levels.left < rows ? levels.left : rows;
    levels.take(count);
    if (levels.packed) {
      valid += set_validity(chunk, row, levels.groups, count);
    } else if (levels.value == 1) {
      set_valid(chunk, row, count);
      valid += count;
    } else if (levels.value != 0) {
      return -1;
    }
  }
  return valid;
}

// Moves the valid values of a page, which lie next to each other, to their rows. Nulls become 0.
template <class Value>
void spread(const Chunk& chunk, int64_t row, int64_t rows, int64_t valid) {
  uint8_t* const values = chunk.target + row * static_cast<int64_t>(sizeof(Value));
  for (int64_t to = rows - 1; to >= valid; --to) {  // without branches, which nulls would make unpredictable
    const int64_t here = is_valid(chunk, row + to), from = valid - (valid > 0);
    Value value = 0;
    std::memcpy(&value, values + from * static_cast<int64_t>(sizeof value), sizeof value);
    value = static_cast<Value>(value & static_cast<Value>(-here));
    std::memcpy(values + to * static_cast<int64_t>(sizeof value), &value, sizeof value);
    valid -= here;
  }
}

// Begins the next row. Returns false if all rows have begun.
bool begin_row(const Chunk& chunk, int64_t rows, Progress* so_far) {
  if (so_far->rows >= rows) return false;
  set_offset(chunk, so_far->rows++, so_far->values);
  return true;
}

// Sets the offsets of the lists that begin in a page, and counts its numbers. Returns false if there is a null.
bool read_lists(const Chunk& chunk, int64_t rows, Runs repetition, Runs definition, int64_t levels, Progress* so_far) {
  const auto present = static_cast<uint64_t>(chunk.definition), empty = static_cast<uint64_t>(chunk.empty);
  while (levels > 0) {
    if (!repetition.has_more() || !definition.has_more()) return false;
    int64_t count = repetition.left < definition.left ? repetition.left : definition.left;
    if (levels < count) count = levels;
    const bool all_present = !definition.packed && definition.value == present;
    if (all_present && !repetition.packed && repetition.value) {  // a list goes on
      if (so_far->rows == 0) return false;
      so_far->values += count;
    } else {
      for (int64_t level = 0; level < count; ++level) {
        const uint64_t defined = all_present ? present : definition.peek(level);
        if (!repetition.peek(level)) {
          if (!begin_row(chunk, rows, so_far)) return false;
          if (defined == empty) continue;
        }
        if (defined != present || so_far->rows == 0) return false;
        ++so_far->values;
      }
    }
    repetition.take(count);
    definition.take(count);
    levels -= count;
  }
  return true;
}

// Calls a function with the code of each value. Returns whether all codes are in the dictionary.
template <class Use>
bool for_codes(const uint8_t* data, int64_t size, int64_t values, int64_t entries, Use use) {
  if (values == 0 && size == 0) return true;
  if (size < 1 || data[0] > kMostBits || entries < 0) return false;
  Runs runs{{data + 1, size - 1}, data[0]};
  const uint64_t mask = (uint64_t{1} << runs.bits) - 1, most = static_cast<uint64_t>(entries);
  while (values > 0) {
    if (!runs.has_more()) return false;
    const int64_t count = runs.left < values ? runs.left : values;
    if (!runs.packed && runs.value >= most) return false;
    for (int64_t value = 0, bit = 0; value < count; ++value, bit += runs.bits) {
      uint64_t code = runs.value;
      if (runs.packed) {
        std::memcpy(&code, runs.groups + (bit >> 3), sizeof code);  // may read up to 8 bytes too far
        code = code >> (bit & 7) & mask;
        if (code >= most) return false;
      }
      use(code);
    }
    runs.take(count);
    values -= count;
  }
  return true;
}

template <class Value>
bool look_up(const uint8_t* data, int64_t size, int64_t values, const Scratch& scratch, int64_t entries, uint8_t* to) {
  return for_codes(data, size, values, entries, [&](uint64_t code) {
    std::memcpy(to, scratch.dictionary + code * sizeof(Value), sizeof(Value));
    to += sizeof(Value);
  });
}

// Decodes the numbers of a page, which follow its levels. The first number goes to place `first`.
bool decode_numbers(const Chunk& chunk, const Header& header, const uint8_t* data, int64_t size, int64_t first,
                    int64_t values, const Scratch& scratch, int64_t entries) {
  if (values > chunk.capacity - first) return false;
  uint8_t* const to = chunk.target + first * chunk.value_bytes;
  if (header.encoding == kPlain) {
    if (size != values * chunk.stored_bytes) return false;
    copy_values(chunk, data, values, to);
    return true;
  }
  if (chunk.value_bytes == 1) return look_up<uint8_t>(data, size, values, scratch, entries, to);
  if (chunk.value_bytes == 2) return look_up<uint16_t>(data, size, values, scratch, entries, to);
  if (chunk.value_bytes == 4) return look_up<uint32_t>(data, size, values, scratch, entries, to);
  return look_up<uint64_t>(data, size, values, scratch, entries, to);
}

void spread_numbers(const Chunk& chunk, int64_t row, int64_t rows, int64_t valid) {
  if (chunk.value_bytes == 1) return spread<uint8_t>(chunk, row, rows, valid);
  if (chunk.value_bytes == 2) return spread<uint16_t>(chunk, row, rows, valid);
  if (chunk.value_bytes == 4) return spread<uint32_t>(chunk, row, rows, valid);
  return spread<uint64_t>(chunk, row, rows, valid);
}

// Adds a byte string to the target. If the string does not fit, it is only counted.
void add_text(const Chunk& chunk, const Text& text, Progress* so_far) {
  set_offset(chunk, so_far->rows++, so_far->values);
  if (text.size <= chunk.capacity - so_far->values)
    std::memcpy(chunk.target + so_far->values, text.begin, static_cast<size_t>(text.size));
  so_far->values += text.size;
}

// Adds an empty string for each null row before the next row that is not null.
void add_nulls(const Chunk& chunk, int64_t end, Progress* so_far) {
  while (so_far->rows < end && !is_valid(chunk, so_far->rows)) set_offset(chunk, so_far->rows++, so_far->values);
}

// Decodes the byte strings of a page, which follow its levels. `valid` of its rows are not null.
bool decode_texts(const Chunk& chunk, const Header& header, const uint8_t* data, int64_t size, int64_t valid,
                  const Scratch& scratch, Progress* so_far) {
  const int64_t end = so_far->rows + header.values;
  const bool has_nulls = valid < header.values;
  const auto add = [&](const Text& text) {
    if (has_nulls) add_nulls(chunk, end, so_far);
    add_text(chunk, text, so_far);
  };
  const auto* const texts = reinterpret_cast<const Text*>(scratch.dictionary);
  const bool decoded = header.encoding == kPlain
                           ? for_texts(data, size, valid, add)
                           : for_codes(data, size, valid, so_far->entries, [&](uint64_t code) { add(texts[code]); });
  if (decoded && has_nulls) add_nulls(chunk, end, so_far);
  return decoded && so_far->rows == end;
}

// Keeps a dictionary: numbers as in the target, or where byte strings are. The bytes of these follow.
bool keep_dictionary(const Chunk& chunk, const Header& header, const uint8_t* data, int64_t size, const Scratch& scratch,
                     Progress* so_far) {
  if (so_far->has_pages || (header.encoding != kPlain && header.encoding != kPlainDictionary)) return false;
  const int64_t entry_bytes = chunk.stored_bytes ? chunk.value_bytes : static_cast<int64_t>(sizeof(Text));
  if (header.values > scratch.dictionary_bytes / entry_bytes) return false;
  if (chunk.stored_bytes) {
    if (size != header.values * chunk.stored_bytes) return false;
    copy_values(chunk, data, header.values, scratch.dictionary);
  } else {
    uint8_t* const bytes = scratch.dictionary + header.values * entry_bytes;
    if (size > scratch.dictionary_bytes - header.values * entry_bytes) return false;
    std::memcpy(bytes, data, static_cast<size_t>(size));  // the memory of a page is used again for the next one
    auto* text = reinterpret_cast<Text*>(scratch.dictionary);
    if (!for_texts(bytes, size, header.values, [&](const Text& each) { *text++ = each; })) return false;
  }
  so_far->entries = header.values;
  return true;
}

// Returns whether the bytes decompress to exactly `wanted` bytes. If so, the memory of a page holds these.
bool decompress(const Chunk& chunk, const uint8_t* from, int64_t size, int64_t wanted, const Scratch& scratch) {
  if (wanted < 0 || wanted > scratch.page_bytes) return false;
  if (chunk.compressed == kSnappy) return decompress_snappy(from, size, scratch.page, wanted);
  if (!scratch.zstd || size < kFrameMagic || little(from, kFrameMagic) != kFrame) return false;
  const auto bytes = static_cast<size_t>(size), capacity = static_cast<size_t>(wanted);
  if (scratch.zstd_frame(from, bytes) != bytes) return false;
  return scratch.zstd(scratch.page, capacity, from, bytes) == capacity;  // else more, or an error
}

bool decode_page(const Chunk& chunk, const Header& header, const uint8_t* data, int64_t rows, const Scratch& scratch,
                 Progress* so_far) {
  int64_t size = header.stored_size, wanted = header.size;
  Reader repetition{data, 0}, definition{data, 0};
  if (header.values < 0 || header.values > INT32_MAX) return false;
  if (header.type == kDataV2) {  // its levels come first, and are not compressed
    const int64_t first = header.repetition_bytes, second = header.definition_bytes;
    if (first < 0 || second < 0 || first > size || second > size - first || first + second > wanted) return false;
    repetition.size = first;
    definition = {data + first, second};
    data += first + second;
    size -= first + second;
    wanted -= first + second;
  }
  if (chunk.compressed && header.compressed) {
    if (!decompress(chunk, data, size, wanted, scratch)) return false;
    data = scratch.page;
    size = wanted;
  }
  if (size != wanted) return false;
  if (header.type == kDictionary) return keep_dictionary(chunk, header, data, size, scratch, so_far);
  if (header.encoding != kPlain && header.encoding != kDictionaryCodes && header.encoding != kPlainDictionary) return false;
  if (header.type == kData) {
    if (chunk.definition && header.levels_encoding != kRunLengths) return false;
    if (chunk.empty >= 0 && header.repetition_encoding != kRunLengths) return false;
    if (chunk.empty >= 0 && !take_levels(&data, &size, &repetition)) return false;
    if (chunk.definition && !take_levels(&data, &size, &definition)) return false;
  }
  const Runs defined{definition, chunk.definition > 1 ? 2 : 1};
  if (chunk.empty >= 0) {
    const int64_t first = so_far->values;
    return read_lists(chunk, rows, {repetition, 1}, defined, header.values, so_far) &&
           decode_numbers(chunk, header, data, size, first, so_far->values - first, scratch, so_far->entries);
  }
  const int64_t first = so_far->rows;
  if (header.values > rows - first) return false;
  const int64_t valid = chunk.definition ? read_validity(chunk, defined, first, header.values) : header.values;
  if (valid < 0) return false;
  so_far->nulls += header.values - valid;
  if (!chunk.stored_bytes) return decode_texts(chunk, header, data, size, valid, scratch, so_far);
  so_far->rows += header.values;
  so_far->values += header.values;
  if (chunk.in_order && header.encoding == kPlain && valid == rows && chunk.value_bytes == chunk.stored_bytes) {
    so_far->whole = data;
    return size == valid * chunk.stored_bytes;
  }
  if (header.values > chunk.capacity - first) return false;  // nulls take a place, too
  if (!decode_numbers(chunk, header, data, size, first, valid, scratch, so_far->entries)) return false;
  if (valid < header.values) spread_numbers(chunk, first, header.values, valid);
  return true;
}

// Returns whether a page has none of the wanted rows. Which rows a page of lists has says only the page itself.
bool is_unwanted(const Chunk& chunk, const Header& header, int64_t rows, const Scratch& scratch, Progress* so_far) {
  if (!scratch.wanted || chunk.empty >= 0 || (header.type != kData && header.type != kDataV2)) return false;
  if (header.values < 0 || header.values > rows - so_far->rows) return false;
  const int64_t* const end = scratch.wanted + scratch.wanted_count;
  const int64_t* const next = std::lower_bound(scratch.wanted + so_far->passed, end, so_far->rows);
  so_far->passed = next - scratch.wanted;
  return next == end || *next >= so_far->rows + header.values;
}

// Leaves the rows of a page out: numbers are then anything, and byte strings empty. No row is null.
void leave_out(const Chunk& chunk, const Header& header, Progress* so_far) {
  so_far->unread += header.stored_size;
  if (chunk.definition) set_valid(chunk, so_far->rows, header.values);
  if (chunk.stored_bytes) {
    so_far->values += header.values;
    so_far->rows += header.values;
  } else {
    for (const int64_t end = so_far->rows + header.values; so_far->rows < end; ++so_far->rows)
      set_offset(chunk, so_far->rows, so_far->values);
  }
}

// Returns the number of numbers or bytes, or kUndecoded, and how far it got.
int64_t decode_chunk(const Chunk& chunk, int64_t rows, bool checked, const Scratch& scratch, ChunkBytes bytes,
                     Progress* progress) {
  Progress& so_far = *progress;
  if (chunk.definition && chunk.empty < 0) std::memset(chunk.validity, 0, static_cast<size_t>((rows + 7) / 8));
  for (int64_t place = 0; place < chunk.size;) {
    Header header;
    if (!bytes.header_at(&place, &header) || so_far.whole) return kUndecoded;
    if (header.type != kData && header.type != kDictionary && header.type != kDataV2) return kUndecoded;
    if (is_unwanted(chunk, header, rows, scratch, &so_far)) {
      leave_out(chunk, header, &so_far);
    } else {
      const uint8_t* const data = bytes.at(place, header.stored_size);
      if (!data) return kUndecoded;
      if (checked && header.checksum >= 0 && checksum(data, header.stored_size) != header.checksum) return kUndecoded;
      if (!decode_page(chunk, header, data, rows, scratch, &so_far)) return kUndecoded;
    }
    so_far.has_pages = true;
    place += header.stored_size;
  }
  if (so_far.rows != rows) return kUndecoded;
  if (chunk.offset_bytes) set_offset(chunk, rows, so_far.values);
  return so_far.values;
}

// Returns whether each item takes one of the rows.
bool are_inside(const Scratch& scratch, int64_t rows) {
  uint32_t largest = 0;
  for (int64_t item = 0; item < scratch.item_count; ++item) {
    const auto row = static_cast<uint32_t>(scratch.items[item]);
    if (row > largest) largest = row;
  }
  return scratch.item_count == 0 || (rows <= INT32_MAX && largest < rows);
}

// Copies the number of each item's row to the target, which nobody reads soon if `streams`.
template <class Value>
void take(const uint8_t* column, const Scratch& scratch, uint8_t* target, bool streams) {
  constexpr int64_t kBytes = sizeof(Value), kValues = kLine / kBytes;
  int64_t item = 0;
#if defined(__SSE2__)
  if (streams && reinterpret_cast<uintptr_t>(target) % kStored == 0) {
    for (; item + kValues <= scratch.item_count; item += kValues) {
      alignas(kLine) uint8_t line[kLine];
      for (int64_t value = 0; value < kValues; ++value)
        std::memcpy(line + value * kBytes, column + scratch.items[item + value] * kBytes, kBytes);
      for (int64_t at = 0; at < kLine; at += kStored)
        _mm_stream_si128(reinterpret_cast<__m128i*>(target + item * kBytes + at),
                         _mm_load_si128(reinterpret_cast<const __m128i*>(line + at)));
    }
    _mm_sfence();
  }
#endif
  for (; item < scratch.item_count; ++item)
    std::memcpy(target + item * kBytes, column + scratch.items[item] * kBytes, kBytes);
}

void take_numbers(const uint8_t* column, const Chunk& chunk, const Scratch& scratch, bool streams) {
  switch (chunk.value_bytes) {
    case 1: return take<uint8_t>(column, scratch, chunk.target, streams);
    case 2: return take<uint16_t>(column, scratch, chunk.target, streams);
    case 4: return take<uint32_t>(column, scratch, chunk.target, streams);
    default: return take<uint64_t>(column, scratch, chunk.target, streams);
  }
}

// Decodes a chunk to memory that stays in the processor's cache, and takes the number of each item from there.
int64_t decode_in_order(const Chunk& chunk, int64_t rows, bool checked, const Scratch& scratch, bool streams,
                        const ChunkBytes& bytes, Progress* so_far) {
  if (rows > scratch.column_bytes / chunk.value_bytes) return kUndecoded;
  Chunk here = chunk;
  here.target = scratch.column;
  here.capacity = rows;
  const int64_t found = decode_chunk(here, rows, checked, scratch, bytes, so_far);
  if (found == rows) take_numbers(so_far->whole ? so_far->whole : scratch.column, chunk, scratch, streams);
  return found;
}

}  // namespace

// Decodes column chunks of `rows` rows each. What is `found` says which of them, and the targets of the others hold
// anything. All in one call, because each call waits for the interpreter lock.
// Unless `path` is null, the chunks are in that file. The call then opens it, and tells what is at the path afterwards.
extern "C" __attribute__((visibility("default"))) void parquetry_decode_chunks(Chunk* chunks, int64_t count, int64_t rows,
                                                                               int64_t checked, const char* path,
                                                                               FileStatus* status,
                                                                               Scratch* scratch) {
  const int descriptor = path ? open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK) : -1;
  const bool has_items = are_inside(*scratch, rows);
  int64_t item_bytes = 0;
  for (int64_t number = 0; number < count; ++number)
    if (chunks[number].in_order) item_bytes += chunks[number].value_bytes * scratch->item_count;
  for (Chunk* chunk = chunks; chunk < chunks + count; ++chunk) {
    chunk->found = kUndecoded;
    if (path && descriptor < 0) continue;
    ChunkBytes bytes{path ? nullptr : chunk->data, chunk->size,    descriptor,
                     chunk->begin,                 scratch->chunk, scratch->chunk_bytes};
    const bool fits = chunk->size <= scratch->chunk_bytes, is_whole = !scratch->wanted || chunk->size <= kWhole;
    if (path && fits && is_whole && !bytes.at(0, chunk->size)) continue;
    Progress so_far;
    if (!chunk->in_order)
      chunk->found = decode_chunk(*chunk, rows, checked != 0, *scratch, bytes, &so_far);
    else if (has_items)
      chunk->found = decode_in_order(*chunk, rows, checked != 0, *scratch, item_bytes > kCached, bytes, &so_far);
    if (chunk->found >= 0 && !(fits && is_whole)) scratch->unread += so_far.unread;
    chunk->nulls = so_far.nulls;
  }
  if (path) *status = status_of(path);
  if (descriptor >= 0) close(descriptor);
}

// Returns the CRC-32 of some bytes; if they follow others, `before` is the CRC-32 of those.
extern "C" __attribute__((visibility("default"))) int64_t parquetry_checksum(const uint8_t* data, int64_t size,
                                                                             int64_t before) {
  return checksum(data, size, static_cast<uint32_t>(before));
}
