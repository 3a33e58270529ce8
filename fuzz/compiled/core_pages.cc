// Fuzzes the core's decoder of column chunks, of all rows or of every seventh. Five bytes say what the column is, and the chunk follows:
//   its kind (of `kKinds`), a bit for each of `Options`, the number of rows, how many numbers or bytes fit, and how large
//   pages and dictionaries may be, in units of 16 bytes.
// Each buffer has its exact size on the heap, so that the sanitizer notices every access outside it.

#include <cstring>
#include <iterator>
#include <memory>

#include "../../common/base/native/pages.cc"

namespace {

constexpr int64_t kOptions = 5, kSlack = 8;
enum Options { kPacked = 1, kNullable = 4, kNullLists = 8, kChecked = 16, kInOrder = 32, kItemOutside = 64, kWanted = 128 };

struct Type {
  int64_t stored_bytes, value_bytes, offset_bytes;
  bool lists;
};
constexpr Type kKinds[] = {{4, 4, 0, false}, {8, 8, 0, false}, {4, 1, 0, false}, {4, 2, 0, false}, {0, 1, 4, false},
                           {0, 1, 8, false}, {4, 4, 4, true},  {8, 8, 8, true},  {4, 2, 4, true}};

std::unique_ptr<uint8_t[]> memory_of(int64_t bytes) { return std::make_unique<uint8_t[]>(static_cast<size_t>(bytes)); }

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t bytes) {
  const auto size = static_cast<int64_t>(bytes) - kOptions;
  if (size < 0) return 0;
  const Type& type = kKinds[data[0] % std::size(kKinds)];
  const int64_t nullable = data[1] & kNullable ? 1 : 0, rows = data[2], capacity = data[3], most = 16 * data[4];
  const bool in_order = data[1] & kInOrder && type.offset_bytes == 0 && rows;
  const bool has_outside = in_order && data[1] & kItemOutside;
  const int64_t items = in_order ? rows + rows / 2 + 1 : 0;
  const auto stored = memory_of(size + kSlack), page = memory_of(most + kSlack), dictionary = memory_of(most);
  const auto target = memory_of((in_order ? items : capacity) * type.value_bytes);
  const auto column = memory_of(capacity * type.value_bytes), offsets = memory_of((rows + 1) * type.offset_bytes);
  const auto validity = memory_of((rows + 7) / 8);
  const auto item_rows = std::make_unique<int32_t[]>(static_cast<size_t>(items));
  for (int64_t item = 0; item < items; ++item) item_rows[item] = static_cast<int32_t>(item * 7 % rows);
  if (has_outside) item_rows[items - 1] = static_cast<int32_t>(rows);
  const int64_t wanted_count = data[1] & kWanted ? (rows + 6) / 7 : 0;
  const auto wanted = std::make_unique<int64_t[]>(static_cast<size_t>(wanted_count));
  for (int64_t number = 0; number < wanted_count; ++number) wanted[number] = 7 * number;
  std::memcpy(stored.get(), data + kOptions, static_cast<size_t>(size));

  Chunk chunk{};
  chunk.data = stored.get();
  chunk.size = size;
  chunk.stored_bytes = type.stored_bytes;
  chunk.value_bytes = type.value_bytes;
  chunk.compressed = data[1] & kPacked ? kSnappy : kUncompressed;  // Zstandard is a library
  chunk.definition = nullable + (type.lists ? 1 + (data[1] & kNullLists ? 1 : 0) : 0);
  chunk.empty = type.lists ? nullable : -1;
  chunk.target = target.get();
  chunk.capacity = capacity;
  chunk.offsets = offsets.get();
  chunk.offset_bytes = type.offset_bytes;
  chunk.validity = validity.get();
  chunk.in_order = in_order;
  Scratch scratch{};
  scratch.page = page.get();
  scratch.page_bytes = most;
  scratch.dictionary = dictionary.get();
  scratch.dictionary_bytes = most;
  scratch.column = column.get();
  scratch.column_bytes = capacity * type.value_bytes;
  scratch.items = item_rows.get();
  scratch.item_count = items;
  scratch.wanted = data[1] & kWanted ? wanted.get() : nullptr;
  scratch.wanted_count = wanted_count;
  parquetry_decode_chunks(&chunk, 1, rows, data[1] & kChecked, nullptr, nullptr, &scratch);

  if (chunk.found == kUndecoded || chunk.found > capacity) return 0;
  if (has_outside) __builtin_trap();
  if (chunk.found < 0 || chunk.nulls < 0 || chunk.nulls > rows) __builtin_trap();
  int64_t before = 0;
  for (int64_t row = 0; type.offset_bytes && row <= rows; ++row) {
    const auto offset = static_cast<int64_t>(little(chunk.offsets + row * type.offset_bytes, type.offset_bytes));
    if (offset < before || offset > chunk.found || (row == rows && offset != chunk.found)) __builtin_trap();
    before = offset;
  }
  return 0;
}
