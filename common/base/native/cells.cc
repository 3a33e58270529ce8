// Finds the values of column chunks of byte strings, which stay where they are: uncompressed plain pages without nulls.
// Reads some of the values of a page, and the page's checksum.
// The functions keep no state, start no threads, and allocate nothing.

#include <cstdint>

#include "checksum.h"
#include "local_file.h"
#include "pages.h"

namespace {

// Returns whether all values are defined, by levels of one bit.
bool all_defined(Runs levels, int64_t values) {
  for (int64_t count = 0; values > 0; values -= count) {
    if (!levels.has_more()) return false;
    count = levels.left < values ? levels.left : values;
    for (int64_t value = 0; value < (levels.packed ? count : 1); ++value) {
      if (levels.peek(value) != 1) return false;
    }
    levels.take(count);
  }
  return true;
}

// A chunk of byte strings, and where each begins and ends in it.
struct Cells {
  uint8_t* data;
  int64_t begin;     // where the chunk is in its file
  int64_t size;
  int64_t count;     // of values
  int64_t width;     // of each value; -1 if each follows its length
  int64_t nullable;  // whether there are definition levels
  int64_t checked;   // whether pages must match their checksums
  int64_t required;  // whether each page must have one
  int64_t* starts;
  int64_t* ends;
};
static_assert(sizeof(Cells) == 80, "Python describes cells by the same layout");

// Finds the values of a page. They are its last bytes.
bool find_in_page(const Cells& cells, const Header& header, const uint8_t* data, int64_t found) {
  int64_t size = header.stored_size;
  Reader levels{data, 0};
  if (header.type != kData && header.type != kDataV2) return false;
  if (header.encoding != kPlain || header.nulls || size != header.size) return false;
  if (header.values < 0 || header.values > cells.count - found) return false;
  if (header.type == kDataV2) {
    if (header.repetition_bytes || header.definition_bytes > size) return false;
    levels.size = header.definition_bytes;
    data += header.definition_bytes;
    size -= header.definition_bytes;
  } else if (cells.nullable && (header.levels_encoding != kRunLengths || !take_levels(&data, &size, &levels))) {
    return false;
  }
  if (cells.nullable && !all_defined({levels, 1}, header.values)) return false;
  const int64_t begin = data - cells.data;
  int64_t* starts = cells.starts + found;
  int64_t* ends = cells.ends + found;
  if (cells.width < 0) {
    return for_texts(data, size, header.values, [&](const Text& text) {
      *starts++ = text.begin - cells.data;
      *ends++ = text.begin - cells.data + text.size;
    });
  }
  if (header.values > 0 && cells.width > size / header.values) return false;
  if (size != header.values * cells.width) return false;
  for (int64_t value = 0; value < header.values; ++value) {
    starts[value] = begin + value * cells.width;
    ends[value] = starts[value] + cells.width;
  }
  return true;
}

bool find_cells(const Cells& cells) {
  Reader from{cells.data, cells.size};
  int64_t found = 0;
  while (from.at < from.size) {
    const Header header = read_header(&from);
    const uint8_t* const data = from.data + from.at;
    if (!from.ok || header.stored_size < 0) return false;
    if (from.pass(static_cast<uint64_t>(header.stored_size)) != header.stored_size || !from.ok) return false;
    if (!find_in_page(cells, header, data, found)) return false;
    if (cells.checked && header.checksum < 0 && cells.required) return false;
    if (cells.checked && header.checksum >= 0 && checksum(data, header.stored_size) != header.checksum) return false;
    found += header.values;
  }
  return found == cells.count;
}

// A value of a page: its place in the file, and where to copy it.
struct Place {
  int64_t begin, size;
  uint8_t* target;
};
static_assert(sizeof(Place) == 24, "Python describes places by the same layout");

// A page: its place in the file, and how many of its values are wanted.
struct WantedPage {
  int64_t begin, end, count, checksum;
};
static_assert(sizeof(WantedPage) == 32, "Python describes pages by the same layout");

// Reads a part of a file in pieces, so that each piece is still in the processor's cache when it is added to the
// checksum. If `target` is null, each piece overwrites the one before.
bool read_and_check(int descriptor, int64_t begin, int64_t size, uint8_t* target, uint8_t* spare, int64_t spare_size,
                    uint32_t* state) {
  for (int64_t done = 0; done < size;) {
    const int64_t step = size - done < spare_size ? size - done : spare_size;
    uint8_t* const to = target ? target + done : spare;
    if (!read_file(descriptor, begin + done, step, to)) return false;
    *state = checksum(to, step, *state);
    done += step;
  }
  return true;
}

// Reads the wanted values of a page. Returns its checksum, or -1 if it cannot be read.
int64_t read_page(int descriptor, const WantedPage& page, const Place* places, uint8_t* spare, int64_t spare_size) {
  int64_t begin = page.begin;
  uint32_t state = 0;
  const auto read = [&](int64_t size, uint8_t* target) {
    const bool done = read_and_check(descriptor, begin, size, target, spare, spare_size, &state);
    begin += size;
    return done;
  };
  for (int64_t number = 0; number < page.count; ++number) {
    const Place& place = places[number];
    if (place.begin < begin || place.size > page.end - place.begin) return -1;
    if (!read(place.begin - begin, nullptr) || !read(place.size, place.target)) return -1;
  }
  return read(page.end - begin, nullptr) ? int64_t{state} : -1;
}

}  // namespace

// Reads a chunk of byte strings from a file into memory, and finds its values. Returns whether it succeeded, and sets
// which file is at the path afterwards. The chunk must be uncompressed, without a dictionary, and without nulls.
extern "C" __attribute__((visibility("default"))) int64_t parquetry_find_cells(const Cells* cells, const char* path,
                                                                               FileStatus* status) {
  const int descriptor = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  const bool read = descriptor >= 0 && read_file(descriptor, cells->begin, cells->size, cells->data);
  if (descriptor >= 0) close(descriptor);
  *status = status_of(path);
  return read && find_cells(*cells);
}

// Reads the wanted values of pages, in the order of the file. Sets the checksum of each page; -1 if it cannot be read.
extern "C" __attribute__((visibility("default"))) void parquetry_read_pages(int64_t descriptor, WantedPage* pages,
                                                                            int64_t count, const Place* places,
                                                                            uint8_t* spare, int64_t spare_size) {
  for (int64_t number = 0; number < count; ++number) {
    WantedPage& page = pages[number];
    page.checksum = read_page(static_cast<int>(descriptor), page, places, spare, spare_size);
    places += page.count;
  }
}
