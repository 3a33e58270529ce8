// Finds the values of column chunks of byte strings, which stay where they are, in memory or in their file: uncompressed
// plain pages without nulls.
// Reads some of the values of a page, and the page's checksum.
// The functions keep no state, start no threads, and allocate nothing.

#include <cstdint>

#include "checksum.h"
#include "chunk_bytes.h"
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

// A page with a checksum: where it begins and ends in its chunk.
struct CheckedPage {
  int64_t begin, end, checksum;
};
static_assert(sizeof(CheckedPage) == 24, "Python describes pages by the same layout");

// A chunk of byte strings, and where each begins and ends in it.
struct Cells {
  uint8_t* data;        // null for a chunk that stays in its file
  int64_t begin;        // where the chunk is in its file
  int64_t size;
  int64_t count;        // of values
  int64_t width;        // of each value; -1 if each follows its length
  int64_t nullable;     // whether there are definition levels
  int64_t checked;      // whether pages must match their checksums
  int64_t required;     // whether each page must have one
  int64_t* starts;
  int64_t* ends;
  CheckedPage* pages;   // those of a chunk in its file, to be compared with their checksums when they are read
  int64_t capacity;     // how many pages fit
};
static_assert(sizeof(Cells) == 96, "Python describes cells by the same layout");

constexpr int64_t kWindow = 16 << 10;  // bytes of a header, or of levels, that are read from a file

// Finds the values of a page that begins at `place`. They are its last bytes.
bool find_in_page(const Cells& cells, ChunkBytes* bytes, const Header& header, int64_t place, int64_t found) {
  const int64_t end = place + header.stored_size;
  int64_t levels = 0;
  if (header.type != kData && header.type != kDataV2) return false;
  if (header.encoding != kPlain || header.nulls || header.stored_size != header.size) return false;
  if (header.values < 0 || header.values > cells.count - found) return false;
  if (header.type == kDataV2) {
    if (header.repetition_bytes) return false;
    levels = header.definition_bytes;
  } else if (cells.nullable) {
    const uint8_t* const data = bytes->at(place, kPrefix);
    if (!data || header.levels_encoding != kRunLengths) return false;
    levels = static_cast<int64_t>(little(data, kPrefix));
    place += kPrefix;
  }
  if (levels > end - place) return false;
  if (cells.nullable) {
    const uint8_t* const data = bytes->at(place, levels);
    if (!data || !all_defined({{data, levels}, 1}, header.values)) return false;
  }
  place += levels;
  int64_t* const starts = cells.starts + found;
  int64_t* const ends = cells.ends + found;
  for (int64_t value = 0; value < header.values; ++value) {
    int64_t size = cells.width;
    if (size < 0) {
      const uint8_t* const data = kPrefix <= end - place ? bytes->at(place, kPrefix) : nullptr;
      if (!data) return false;
      size = static_cast<int64_t>(little(data, kPrefix));
      place += kPrefix;
    }
    if (size > end - place) return false;
    starts[value] = place;
    ends[value] = place += size;
  }
  return place == end;
}

// Finds the values of all pages, and checks those in memory. Returns how many pages are left to be checked, or -1.
int64_t find_cells(const Cells& cells, ChunkBytes bytes) {
  int64_t found = 0, pages = 0;
  for (int64_t place = 0; place < cells.size;) {
    Header header;
    if (!bytes.header_at(&place, &header)) return -1;
    if (!find_in_page(cells, &bytes, header, place, found)) return -1;
    const int64_t end = place + header.stored_size;
    if (cells.checked && header.checksum < 0 && cells.required) return -1;
    if (cells.checked && header.checksum >= 0) {
      if (cells.data) {
        if (checksum(cells.data + place, header.stored_size) != header.checksum) return -1;
      } else {
        if (pages == cells.capacity) return -1;
        cells.pages[pages++] = {place, end, header.checksum};
      }
    }
    found += header.values;
    place = end;
  }
  return found == cells.count ? pages : -1;
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
  return read && find_cells(*cells, {cells->data, cells->size}) >= 0;
}

// Finds the values of such a chunk in an open file, where they stay. Returns the number of pages with a checksum, or -1.
extern "C" __attribute__((visibility("default"))) int64_t parquetry_locate_cells(const Cells* cells, int64_t descriptor) {
  uint8_t window[kWindow];
  return find_cells(*cells, {nullptr, cells->size, static_cast<int>(descriptor), cells->begin, window, kWindow});
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
