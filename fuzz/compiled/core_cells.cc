// Fuzzes how the core finds the values of a column chunk, in memory and in a file, where they must be the same. Three
// bytes say what the column is, and the chunk follows: the number of values, their width (-1: each follows its length),
// and whether they may be null and pages need checksums.

#include <cstdio>
#include <vector>

#include "../../common/base/native/cells.cc"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t bytes) {
  constexpr size_t kOptions = 3;
  if (bytes < kOptions) return 0;
  const int64_t count = data[0];
  std::vector<uint8_t> chunk(data + kOptions, data + bytes);
  std::vector<int64_t> starts(count), ends(count);
  Cells cells{};
  cells.data = chunk.data();
  cells.size = static_cast<int64_t>(chunk.size());
  cells.count = count;
  cells.width = static_cast<int8_t>(data[1]) < 0 ? -1 : data[1];
  cells.nullable = data[2] & 1;
  cells.checked = data[2] >> 1 & 1;
  cells.required = data[2] >> 2 & 1;
  cells.starts = starts.data();
  cells.ends = ends.data();
  const bool in_memory = find_cells(cells, {cells.data, cells.size}) >= 0;

  static FILE* const file = std::tmpfile();
  if (!file || ftruncate(fileno(file), 0) != 0) __builtin_trap();
  if (pwrite(fileno(file), chunk.data(), chunk.size(), 0) != static_cast<ssize_t>(chunk.size())) __builtin_trap();
  const std::vector<int64_t> starts_there = starts, ends_there = ends;
  std::vector<CheckedPage> pages(count + 1);
  cells.data = nullptr;
  cells.pages = pages.data();
  cells.capacity = static_cast<int64_t>(pages.size());
  std::vector<uint8_t> window(kWindow);
  const int64_t left = find_cells(cells, {nullptr, cells.size, fileno(file), 0, window.data(), kWindow});
  if (!in_memory && left < 0) return 0;  // of damaged pages, only those in memory are compared with their checksums
  if (in_memory && left >= 0 && (starts != starts_there || ends != ends_there)) __builtin_trap();
  if (left < 0) starts = starts_there, ends = ends_there;
  for (int64_t page = 0; page < left; ++page) {
    if (pages[page].begin < 0 || pages[page].begin > pages[page].end || pages[page].end > cells.size) __builtin_trap();
  }
  for (int64_t value = 0; value < count; ++value) {
    if (starts[value] < 0 || starts[value] > ends[value] || ends[value] > cells.size) __builtin_trap();
  }
  return 0;
}
