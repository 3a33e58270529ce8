// Checks Parquet footers, copies parts of them, and measures dictionaries. The bytes may be damaged, so every read is
// checked against the end. The functions keep no state, start no threads, and allocate only what their comments say.
// Source of the rules: parquet.thrift, and the Thrift compact protocol.

#include <cstdint>
#include <cstdlib>
#include <cstring>

#include "thrift.h"

namespace {

constexpr int64_t kTypes = 8, kCodecs = 8, kByteArray = 6, kFixed = 7;
constexpr int64_t kWidths[kTypes] = {1, 4, 8, 12, 4, 8, 0, 0};

struct Leaf {
  int64_t kind, width, repetition, definition;
};

// Returns whether a text is UTF-8 by the rules of Python.
bool is_text(const uint8_t* text, int64_t size) {
  for (int64_t at = 0; at < size;) {
    const uint8_t first = text[at++];
    if (first < 0x80) continue;
    const int more = first >= 0xc2 && first < 0xe0 ? 1 : (first & 0xf0) == 0xe0 ? 2 : first >= 0xf0 && first < 0xf5 ? 3 : 0;
    if (more == 0 || more > size - at) return false;
    if ((first == 0xe0 && text[at] < 0xa0) || (first == 0xed && text[at] > 0x9f)) return false;
    if ((first == 0xf0 && text[at] < 0x90) || (first == 0xf4 && text[at] > 0x8f)) return false;
    for (int each = 0; each < more; ++each)
      if ((text[at++] & 0xc0) != 0x80) return false;
  }
  return true;
}

struct Element {
  int64_t type = -1, length = 0, repetition = 0, children = 0;
  bool has_bounds = false;
};

Element read_element(Reader* from) {
  Element found;
  int64_t id = 0;
  for (int kind = from->field(&id); kind != kStop; kind = from->field(&id)) {
    if (id == 1 || id == 2 || id == 3 || id == 5 || id == 6) {
      const int64_t value = kind == kI32 ? from->number() : from->fail();  // readers leave out fields of other kinds
      if (id == 1) found.type = value;
      if (id == 2) found.length = value;
      if (id == 3) found.repetition = value;
      if (id == 5) found.children = value;
      if (id == 6 && value == 5) found.has_bounds = true;  // DECIMAL
    } else if (id == 4) {
      const int64_t length = kind == kBinary ? from->pass(from->unsigned_number()) : from->fail();
      if (from->ok && !is_text(from->data + from->at - length, length)) from->fail();
    } else if (id == 10) {  // the logical type, a union
      if (kind != kStruct) from->fail();
      int64_t member = 0;
      for (int inner = from->field(&member); inner != kStop; inner = from->field(&member)) {
        if (member == 5 || member == 15) found.has_bounds = true;  // DECIMAL, FLOAT16
        from->skip(inner, 2);
      }
    } else {
      from->skip(kind, 1);
    }
  }
  return found;
}

// Reads the elements below a group, and appends its leaves.
void read_group(Reader* from, int64_t children, int64_t* left, int64_t repetition, int64_t definition, int depth,
                Leaf* leaves, int64_t most, int64_t* count) {
  if (depth > kMostNested) from->fail();
  for (int64_t child = 0; from->ok && child < children; ++child) {
    if (--*left < 0) from->fail();
    const Element element = read_element(from);
    if (!from->ok) return;
    if (element.repetition < 0 || element.repetition > 2) {
      from->fail();
      return;
    }
    const int64_t down = repetition + (element.repetition == 2), def = definition + (element.repetition != 0);
    if (element.type < 0) {
      read_group(from, element.children, left, down, def, depth + 1, leaves, most, count);
      continue;
    }
    if (element.children > 0 || element.type >= kTypes || *count >= most) {
      from->fail();
      return;
    }
    const int64_t width = element.type != kFixed ? kWidths[element.type] : element.has_bounds ? element.length : 0;
    leaves[(*count)++] = {element.type, width, down, def};
  }
}

bool read_schema(Reader* from, Leaf* leaves, int64_t columns) {
  int kind = 0;
  int64_t left = from->list(&kind) - 1, count = 0;
  if (kind != kStruct || left < 0) return false;
  const Element root = read_element(from);
  read_group(from, root.children, &left, 0, 0, 0, leaves, columns, &count);
  return from->ok && left == 0 && count == columns;
}

bool check_statistics(Reader* from, const Leaf& leaf) {
  int64_t id = 0;
  for (int kind = from->field(&id); kind != kStop; kind = from->field(&id)) {
    if (id == 1 || id == 2 || id == 5 || id == 6) {
      if (kind != kBinary) return false;
      const int64_t length = from->pass(from->unsigned_number());
      if (leaf.width && length != leaf.width) return false;
    } else {
      from->skip(kind, 3);
    }
  }
  return from->ok;
}

bool check_sizes(Reader* from, const Leaf& leaf) {
  int64_t id = 0;
  for (int kind = from->field(&id); kind != kStop; kind = from->field(&id)) {
    if (id == 1 && leaf.kind != kByteArray) return false;
    const int64_t found = from->skip(kind, 3);
    if ((id == 2 || id == 3) && (kind != kList || (found != 0 && found != (id == 2 ? leaf.repetition : leaf.definition) + 1)))
      return false;
  }
  return from->ok;
}

bool check_metadata(Reader* from, const Leaf& leaf, bool here, int64_t limit, int64_t* most_values) {
  int64_t id = 0, type = -1, codec = -1, bytes = -1, data = -1, dictionary = 0;
  for (int kind = from->field(&id); kind != kStop; kind = from->field(&id)) {
    if (id == 1 || id == 4 || id == 5 || id == 7 || id == 9 || id == 11) {
      if (!is_integer(kind)) return false;
      const int64_t value = from->number();
      if (id == 1) type = value;
      if (id == 4) codec = value;
      if (id == 5 && leaf.repetition == 0 && value > *most_values) *most_values = value;
      if (id == 7) bytes = value;
      if (id == 9) data = value;
      if (id == 11) dictionary = value;
    } else if (id == 12 || id == 16) {
      if (kind != kStruct || !(id == 12 ? check_statistics(from, leaf) : check_sizes(from, leaf))) return false;
    } else {
      from->skip(kind, 2);
    }
  }
  if (!from->ok || type != leaf.kind || codec < 0 || codec >= kCodecs) return false;
  if (!here) return true;
  const int64_t begin = dictionary != 0 && dictionary < data ? dictionary : data;
  return begin >= 0 && bytes >= 0 && begin <= limit && bytes <= limit - begin;
}

bool check_chunk(Reader* from, const Leaf& leaf, int64_t limit, int64_t* most_values) {
  int64_t id = 0;
  bool found = false, here = true;
  for (int kind = from->field(&id); kind != kStop; kind = from->field(&id)) {
    if (id == 8) return false;  // encrypted
    if (id == 1) here = false;  // in another file
    if (id == 3) {
      if (kind != kStruct || found || !check_metadata(from, leaf, here, limit, most_values)) return false;
      found = true;
    } else {
      from->skip(kind, 1);
    }
  }
  return from->ok && found;
}

bool check_row_group(Reader* from, const Leaf* leaves, int64_t columns, int64_t limit) {
  int64_t id = 0, rows = 0, most_values = 0;  // values: of columns that are not repeated, which have one for each row
  bool found = false;
  for (int kind = from->field(&id); kind != kStop; kind = from->field(&id)) {
    if (id == 1) {
      int inner = 0;
      if (kind != kList || found || from->list(&inner) != columns || (columns && inner != kStruct)) return false;
      for (int64_t column = 0; column < columns; ++column)
        if (!check_chunk(from, leaves[column], limit, &most_values)) return false;
      found = true;
    } else if (id == 3) {
      rows = is_integer(kind) ? from->number() : from->fail();
    } else {
      from->skip(kind, 1);
    }
  }
  return from->ok && found && rows >= 0 && most_values <= rows;
}

bool check_all(Reader* from, Leaf* leaves, int64_t columns, int64_t limit) {
  int64_t id = 0;
  bool has_schema = false;
  for (int kind = from->field(&id); kind != kStop; kind = from->field(&id)) {
    if (id == 2) {
      if (kind != kList || has_schema || !read_schema(from, leaves, columns)) return false;
      has_schema = true;
    } else if (id == 4) {
      int inner = 0;
      if (kind != kList || !has_schema) return false;
      const int64_t groups = from->list(&inner);
      if (groups && inner != kStruct) return false;
      for (int64_t group = 0; group < groups; ++group)
        if (!check_row_group(from, leaves, columns, limit)) return false;
    } else {
      from->skip(kind, 1);
    }
  }
  return from->ok && has_schema;
}

constexpr int64_t kFooterFields = 10, kLastBare = 11;

// Writes the compact protocol into memory of a fixed size. After an error, `ok` is false and nothing is written.
struct Writer {
  uint8_t* to;
  int64_t capacity, at = 0;
  bool ok = true;

  void byte(uint8_t value) {
    if (at >= capacity) ok = false;
    if (ok) to[at++] = value;
  }

  void copy(const uint8_t* from, int64_t bytes) {
    if (bytes > capacity - at) ok = false;
    if (!ok) return;
    std::memcpy(to + at, from, static_cast<size_t>(bytes));
    at += bytes;
  }

  void unsigned_number(uint64_t value) {
    for (; value > 127; value >>= 7) byte(static_cast<uint8_t>(value | 128));
    byte(static_cast<uint8_t>(value));
  }

  void number(int64_t value) {
    unsigned_number((static_cast<uint64_t>(value) << 1) ^ (value < 0 ? ~uint64_t{0} : 0));
  }
};

// Reads a column chunk. Returns where what reading needs ends in its metadata: before the first field after the places
// of its pages. Returns -1 if the fields do not ascend, so that it must be kept as a whole.
int64_t read_chunk(Reader* from, int64_t* unpacked) {
  int64_t id = 0, before = 0, end = -1;
  bool ascends = true;
  for (int kind = from->field(&id); kind != kStop; kind = from->field(&id)) {
    ascends = ascends && id > before && (end < 0 || id > 3);
    before = id;
    if (id != 3 || kind != kStruct) {
      from->skip(kind, 1);
      continue;
    }
    int64_t inner = 0, last = 0;
    end = from->at;
    for (int part = from->field(&inner); part != kStop; part = from->field(&inner)) {
      ascends = ascends && inner > last;
      last = inner;
      if (inner == 6 && is_integer(part)) {
        *unpacked = from->number();
      } else {
        from->skip(part, 2);
      }
      if (inner <= kLastBare) end = from->at;
    }
  }
  return ascends ? end : -1;
}

bool cut_row_group(Reader* from, int64_t columns, const uint8_t* wanted, int64_t count, bool bare, Writer* writer,
                   int64_t* rows) {
  int64_t id = 0, total = 0;
  bool has_chunks = false, has_rows = false;
  *rows = 0;
  for (int kind = from->field(&id); kind != kStop; kind = from->field(&id)) {
    if (id == 1) {
      int inner = 0;
      if (kind != kList || has_chunks || from->list(&inner) != columns || (columns && inner != kStruct)) return false;
      has_chunks = true;
      writer->byte(1 << 4 | kList);
      writer->byte(static_cast<uint8_t>((count < 15 ? count : 15) << 4 | kStruct));
      if (count >= 15) writer->unsigned_number(static_cast<uint64_t>(count));
      for (int64_t column = 0; from->ok && column < columns; ++column) {
        const int64_t begin = from->at;
        if (!wanted[column]) {
          from->skip(kStruct, 1);
          continue;
        }
        int64_t unpacked = 0;
        const int64_t end = read_chunk(from, &unpacked);
        if (unpacked > 0 && unpacked <= INT64_MAX - total) total += unpacked;
        if (!bare || end < 0) {
          writer->copy(from->data + begin, from->at - begin);
        } else {
          writer->copy(from->data + begin, end - begin);
          writer->byte(kStop);  // of the metadata
          writer->byte(kStop);
        }
      }
    } else if (id == 3) {
      if (!is_integer(kind) || has_rows) return false;
      *rows = from->number();
      has_rows = true;
    } else {
      from->skip(kind, 1);
    }
  }
  writer->byte(1 << 4 | kI64);
  writer->number(total);
  writer->byte(1 << 4 | kI64);
  writer->number(*rows);
  writer->byte(kStop);
  return from->ok && has_chunks && has_rows && writer->ok;
}

// What the footer says about a column chunk that is read; `CHUNK_FACTS` in parquet.py.
struct ChunkFacts {
  int64_t elsewhere = 0, type = -1, encodings = 0, codec = -1, values = -1, unpacked = -1, size = -1, data = -1,
          dictionary = -1, begin = -1, end = -1;
};

bool read_metadata(Reader* from, ChunkFacts* facts) {
  int64_t id = 0;
  for (int kind = from->field(&id); kind != kStop; kind = from->field(&id)) {
    if (id == 2) {
      int inner = 0;
      const int64_t count = kind == kList ? from->list(&inner) : from->fail();
      if (count && inner != kI32) return false;
      for (int64_t each = 0; from->ok && each < count; ++each) {
        const int64_t encoding = from->number();
        facts->encodings |= int64_t{1} << (encoding >= 0 && encoding < 62 ? encoding : 62);
      }
      continue;
    }
    int64_t* const number = id == 1    ? &facts->type
                            : id == 4  ? &facts->codec
                            : id == 5  ? &facts->values
                            : id == 6  ? &facts->unpacked
                            : id == 7  ? &facts->size
                            : id == 9  ? &facts->data
                            : id == 11 ? &facts->dictionary
                                       : nullptr;
    if (number == nullptr) {
      from->skip(kind, 2);
    } else if (is_integer(kind)) {
      *number = from->number();
    } else {
      return false;
    }
  }
  return from->ok;
}

}  // namespace

// Returns whether a footer passes. After a 0, the caller runs the slow check, which also says what is wrong. `limit` is
// the number of bytes before the footer. Allocates 32 bytes for each column.
extern "C" __attribute__((visibility("default"))) int64_t parquetry_check_footer(const uint8_t* data, int64_t size,
                                                                                 int64_t columns, int64_t limit) {
  if (columns < 0 || columns > size) return 0;
  auto* const leaves = static_cast<Leaf*>(std::malloc(static_cast<size_t>(columns + 1) * sizeof(Leaf)));
  if (leaves == nullptr) return 0;
  Reader from{data, size};
  const bool passes = check_all(&from, leaves, columns, limit);
  std::free(leaves);
  return passes ? 1 : 0;
}

// Writes where the value of each field of a footer begins and ends, by its number (1 to 9): 20 numbers, and both 0 for a
// field that it does not have. Returns the number of bytes of the footer, or -1 if it is malformed.
extern "C" __attribute__((visibility("default"))) int64_t parquetry_footer_fields(const uint8_t* data, int64_t size,
                                                                                  int64_t* places) {
  Reader from{data, size};
  int64_t id = 0;
  for (int number = 0; number < 2 * kFooterFields; ++number) places[number] = 0;
  for (int kind = from.field(&id); kind != kStop; kind = from.field(&id)) {
    const int64_t begin = from.at;
    from.skip(kind, 1);
    if (id < 1 || id >= kFooterFields) continue;
    if (places[2 * id + 1] != 0) return -1;
    places[2 * id] = begin;
    places[2 * id + 1] = from.at;
  }
  return from.ok ? from.at : -1;
}

// Copies the row groups of a footer with only the `wanted` columns, one byte for each. Their total sizes become those of
// these columns.
//
// `begin` is where the list of row groups begins. If `bare`, statistics and all else that reading does not need are left
// out. Writes where each row group ends in `to`, and how many rows it has. Returns how many bytes were written, which
// are at most 16 more for each row group than there were; -1 if the footer is not as expected.
extern "C" __attribute__((visibility("default"))) int64_t parquetry_cut_row_groups(
    const uint8_t* data, int64_t size, int64_t begin, int64_t groups, int64_t columns, const uint8_t* wanted,
    int64_t bare, uint8_t* to, int64_t capacity, int64_t* ends, int64_t* rows) {
  Reader from{data, size, begin};
  int kind = 0;
  int64_t count = 0;
  for (int64_t column = 0; column < columns; ++column) count += wanted[column] != 0;
  if (from.list(&kind) != groups || (groups && kind != kStruct)) return -1;
  Writer writer{to, capacity};
  for (int64_t group = 0; group < groups; ++group) {
    if (!cut_row_group(&from, columns, wanted, count, bare != 0, &writer, rows + group)) return -1;
    ends[group] = writer.at;
  }
  return from.ok && writer.ok ? writer.at : -1;
}

// Writes what a row group says about each of its columns. Returns 0 if it is not as expected.
extern "C" __attribute__((visibility("default"))) int64_t parquetry_chunk_facts(const uint8_t* data, int64_t size,
                                                                                int64_t columns, int64_t* to) {
  Reader from{data, size};
  int64_t id = 0;
  int kind = from.field(&id), inner = 0;
  if (kind != kList || id != 1 || from.list(&inner) != columns || (columns && inner != kStruct)) return 0;
  for (int64_t column = 0; column < columns; ++column) {
    ChunkFacts facts;
    facts.begin = from.at;
    bool found = false;
    id = 0;
    for (kind = from.field(&id); kind != kStop; kind = from.field(&id)) {
      if (id == 3 && kind == kStruct && !found) {
        if (!read_metadata(&from, &facts)) return 0;
        found = true;
        continue;
      }
      if (id == 1) facts.elsewhere = 1;
      from.skip(kind, 1);
    }
    if (!from.ok || !found) return 0;
    facts.end = from.at;
    std::memcpy(to, &facts, sizeof facts);
    to += sizeof facts / sizeof(int64_t);
  }
  return 1;
}

// Returns the length of the longest value. Each value follows its length (4 bytes, little-endian). Returns -1 if the
// values do not fill the bytes exactly.
extern "C" __attribute__((visibility("default"))) int64_t parquetry_longest_value(const uint8_t* data, int64_t size) {
  int64_t at = 0, longest = 0;
  while (at < size) {
    uint32_t length = 0;
    if (size - at < 4) return -1;
    for (int byte = 0; byte < 4; ++byte) length |= static_cast<uint32_t>(data[at + byte]) << (8 * byte);
    at += 4;
    if (length > static_cast<uint64_t>(size - at)) return -1;
    at += length;
    if (length > longest) longest = length;
  }
  return longest;
}
