// Checks Parquet footers, finds their row groups, and measures dictionaries. The bytes may be damaged, so every read is
// checked against the end. The functions keep no state, start no threads, and allocate only what their comments say.
// Source of the rules: parquet.thrift, and the Thrift compact protocol.

#include <cstdint>
#include <cstdlib>

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

// Writes where the list of row groups begins, where each row group begins, and where the last one ends: `groups` + 2
// numbers. Returns 0 if the footer has another number of row groups.
extern "C" __attribute__((visibility("default"))) int64_t parquetry_row_groups(const uint8_t* data, int64_t size,
                                                                               int64_t groups, int64_t* places) {
  Reader from{data, size};
  int64_t id = 0;
  bool found = false;
  for (int kind = from.field(&id); kind != kStop; kind = from.field(&id)) {
    if (id != 4) {
      from.skip(kind, 1);
      continue;
    }
    int inner = 0;
    const int64_t begin = from.at;
    if (kind != kList || found || from.list(&inner) != groups || (groups && inner != kStruct)) return 0;
    *places++ = begin;
    for (int64_t group = 0; from.ok && group < groups; ++group) {
      *places++ = from.at;
      from.skip(kStruct, 1);
    }
    if (!from.ok) return 0;
    *places++ = from.at;
    found = true;
  }
  return from.ok && found ? 1 : 0;
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
