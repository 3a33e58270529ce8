// Copies rows of columns by number. The functions use only addresses, sizes and numbers; they keep no state between
// calls, start no threads, and allocate nothing. Each function checks row numbers before it uses them: if one is out of
// range, it returns the number's index and has written nothing.

#include <cstddef>
#include <cstdint>
#include <cstring>

namespace {

constexpr int64_t kAllInRange = -1;
constexpr int64_t kLine = 64;              // bytes of a cache line
constexpr int64_t kCached = 1 << 20;       // columns up to this size stay in the second-level cache
constexpr int64_t kAhead = 8;              // how many rows ahead to prefetch
constexpr int64_t kShort = 16;             // bytes that one move copies

// Returns the index of the first number that is not in [0, limit), or kAllInRange.
template <class Number>
int64_t first_outside(const Number* numbers, int64_t count, int64_t limit) {
  const uint64_t last = static_cast<uint64_t>(limit) - 1;
  uint64_t signs = 0;  // the sign bit is set if any number, or `last` minus it, is negative
  for (int64_t i = 0; i < count; ++i) {
    const uint64_t number = static_cast<uint64_t>(int64_t{numbers[i]});
    signs |= number | (last - number);
  }
  if (!(signs >> 63)) return kAllInRange;
  int64_t place = 0;
  while (numbers[place] >= 0 && numbers[place] < limit) ++place;
  return place;
}

// One column: row `rows[i]` of the source becomes row `i` of the target, or row `places[i]` if `places` is given.
struct Column {
  const char* source;
  char* target;
  int64_t row_bytes;
  int64_t source_stride;
  int64_t target_stride;
};
static_assert(sizeof(Column) == 40, "Python describes columns by the same layout");

template <int64_t kBytes, class Number>
void copy_rows(const Column& column, const Number* rows, const int64_t* places, int64_t count) {
  const int64_t bytes = kBytes ? kBytes : column.row_bytes;
  const int64_t from = column.source_stride;
  const int64_t to = column.target_stride;
  const char* source = column.source;
  char* target = column.target;
  if (kBytes && !places && from == kBytes && to == kBytes) {  // the usual case, with constant strides
    for (int64_t i = 0; i < count; ++i) std::memcpy(target + i * kBytes, source + int64_t{rows[i]} * kBytes, kBytes);
  } else if (!places) {
    for (int64_t i = 0; i < count; ++i) std::memcpy(target + i * to, source + int64_t{rows[i]} * from, bytes);
  } else {
    for (int64_t i = 0; i < count; ++i) std::memcpy(target + places[i] * to, source + int64_t{rows[i]} * from, bytes);
  }
}

template <class Number>
void copy_column(const Column& column, int64_t source_rows, const Number* rows, const int64_t* places, int64_t count) {
  const int64_t all_bytes = column.source_stride * source_rows;
  if (column.source_stride == column.row_bytes && all_bytes <= kCached && all_bytes <= 4 * count * column.row_bytes) {
    for (int64_t at = 0; at < all_bytes; at += kLine) __builtin_prefetch(column.source + at, 0, 2);
  }
  switch (column.row_bytes) {
    case 0: return;
    case 1: return copy_rows<1>(column, rows, places, count);
    case 2: return copy_rows<2>(column, rows, places, count);
    case 4: return copy_rows<4>(column, rows, places, count);
    case 8: return copy_rows<8>(column, rows, places, count);
    case 16: return copy_rows<16>(column, rows, places, count);
    default: return copy_rows<0>(column, rows, places, count);
  }
}

template <class Number>
int64_t copy_columns(const Column* columns, int64_t column_count, int64_t source_rows, const Number* rows,
                     const int64_t* places, int64_t count) {
  const int64_t wrong = first_outside(rows, count, source_rows);
  if (wrong != kAllInRange) return wrong;
  // Copy column by column: one column fits into the second-level cache, but all of them together do not.
  for (int64_t number = 0; number < column_count; ++number) {
    copy_column(columns[number], source_rows, rows, places, count);
  }
  return kAllInRange;
}

// Copies runs of items to rows of one length, and fills the rest of each row with `value`.
template <class Item>
void pad(const int64_t* ends, int64_t count, const char* data, const char* value, int64_t row_items, char* target) {
  Item filling;
  std::memcpy(&filling, value, sizeof(Item));
  constexpr auto kBytes = static_cast<int64_t>(sizeof(Item));
  for (int64_t i = 0; i < count; ++i) {
    const int64_t items = ends[i + 1] - ends[i];
    char* row = target + i * row_items * kBytes;
    if (items) std::memcpy(row, data + ends[i] * kBytes, static_cast<size_t>(items * kBytes));
    for (int64_t at = items; at < row_items; ++at) std::memcpy(row + at * kBytes, &filling, sizeof(Item));
  }
}

}  // namespace

extern "C" {

// Copies many columns of `source_rows` rows with the same row numbers. `places` may be null; otherwise they must be in
// [0, target_rows). Returns -1 on success, the index `i` of the first row out of range, or `-2 - i` for the first place
// out of range.
__attribute__((visibility("default"))) int64_t parquetry_gather(
    const Column* columns, int64_t column_count, int64_t source_rows, const void* rows, int64_t number_bytes,
    const int64_t* places, int64_t target_rows, int64_t count) {
  if (places) {
    const int64_t wrong = first_outside(places, count, target_rows);
    if (wrong != kAllInRange) return -2 - wrong;
  }
  if (number_bytes == 4) {
    return copy_columns(columns, column_count, source_rows, static_cast<const int32_t*>(rows), places, count);
  }
  return copy_columns(columns, column_count, source_rows, static_cast<const int64_t*>(rows), places, count);
}

// Copies row numbers as 32-bit numbers. Returns -1, or the index of the first number that is not in [0, source_rows), which
// is at most 2^31; then nothing is copied.
__attribute__((visibility("default"))) int64_t parquetry_narrow(const int64_t* rows, int64_t count, int64_t source_rows,
                                                                int32_t* target) {
  const int64_t wrong = first_outside(rows, count, source_rows);
  if (wrong != kAllInRange) return wrong;
  for (int64_t i = 0; i < count; ++i) target[i] = static_cast<int32_t>(rows[i]);
  return kAllInRange;
}

// Computes where the runs of the given rows end when laid end to end: `ends[0 .. count]`. Run `r` of the data is the
// bytes [offsets[r], offsets[r + 1]). Returns -1, or the index of the first row that is out of range or whose run lies
// outside the data.
__attribute__((visibility("default"))) int64_t parquetry_run_ends(const int64_t* offsets, int64_t source_rows,
                                                                  int64_t data_bytes, const int64_t* rows,
                                                                  int64_t count, int64_t* ends) {
  const int64_t wrong = first_outside(rows, count, source_rows);
  if (wrong != kAllInRange) return wrong;
  int64_t end = 0;
  ends[0] = 0;
  for (int64_t i = 0; i < count; ++i) {
    if (i + kAhead < count) __builtin_prefetch(offsets + rows[i + kAhead]);
    const int64_t begins = offsets[rows[i]];
    const int64_t stops = offsets[rows[i] + 1];
    if (begins < 0 || stops < begins || stops > data_bytes) return i;
    end += stops - begins;
    ends[i + 1] = end;
  }
  return kAllInRange;
}

// Copies the runs that `parquetry_run_ends` has checked. `ends` is its output; `target` has `ends[count]` bytes.
__attribute__((visibility("default"))) void parquetry_runs(const int64_t* offsets, const char* data, int64_t data_bytes,
                                                           const int64_t* rows, int64_t count, const int64_t* ends,
                                                           char* target) {
  for (int64_t i = 0; i < count; ++i) {
    if (i + kAhead < count) __builtin_prefetch(data + offsets[rows[i + kAhead]]);
    const int64_t from = offsets[rows[i]];
    const int64_t bytes = ends[i + 1] - ends[i];
    if (bytes <= kShort && from + kShort <= data_bytes && ends[i] + kShort <= ends[count]) {
      std::memcpy(target + ends[i], data + from, kShort);  // the following runs overwrite the excess bytes
    } else if (bytes) {
      std::memcpy(target + ends[i], data + from, static_cast<size_t>(bytes));
    }
  }
}

// Copies piece `i`, which is `items[i]` items of the data from `begins[i]` on, to the items of the target from `places[i]`
// on. Returns -1, or the index of the first piece that does not lie in the data or in the target; then nothing is copied.
__attribute__((visibility("default"))) int64_t parquetry_pieces(const int64_t* begins, const int64_t* items,
                                                                const int64_t* places, int64_t count, const char* data,
                                                                int64_t data_items, char* target, int64_t target_items,
                                                                int64_t item_bytes) {
  for (int64_t i = 0; i < count; ++i) {
    const int64_t size = items[i];
    if (size < 0 || begins[i] < 0 || begins[i] > data_items - size || places[i] < 0 || places[i] > target_items - size) {
      return i;
    }
  }
  for (int64_t i = 0; i < count; ++i) {
    if (i + kAhead < count) __builtin_prefetch(data + begins[i + kAhead] * item_bytes);
    if (items[i]) {
      std::memcpy(target + places[i] * item_bytes, data + begins[i] * item_bytes, static_cast<size_t>(items[i] * item_bytes));
    }
  }
  return kAllInRange;
}

// Copies runs of the data to rows. Run `i` is items [ends[i], ends[i + 1]) of 1, 2, 4 or 8 bytes. Batch `b` is the runs
// [bounds[b], bounds[b + 1]), whose rows have `widths[b]` items and are in `targets[b]`. Returns -1, or the index of the
// first run that is longer or does not lie in the data.
__attribute__((visibility("default"))) int64_t parquetry_pad(const int64_t* ends, const int64_t* bounds,
                                                             const int64_t* widths, int64_t batches, const char* data,
                                                             int64_t data_items, int64_t item_bytes, const char* value,
                                                             char* const* targets) {
  for (int64_t batch = 0; batch < batches; ++batch) {
    for (int64_t i = bounds[batch]; i < bounds[batch + 1]; ++i) {
      const int64_t items = ends[i + 1] - ends[i];
      if (ends[i] < 0 || items < 0 || items > widths[batch] || ends[i + 1] > data_items) return i;
    }
  }
  for (int64_t batch = 0; batch < batches; ++batch) {
    const int64_t* const begins = ends + bounds[batch];
    const int64_t count = bounds[batch + 1] - bounds[batch];
    char* const target = targets[batch];
    switch (item_bytes) {
      case 1: pad<uint8_t>(begins, count, data, value, widths[batch], target); break;
      case 2: pad<uint16_t>(begins, count, data, value, widths[batch], target); break;
      case 4: pad<uint32_t>(begins, count, data, value, widths[batch], target); break;
      default: pad<uint64_t>(begins, count, data, value, widths[batch], target);
    }
  }
  return kAllInRange;
}

}  // extern "C"
