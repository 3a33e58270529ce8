// Fuzzes how the core finds the values of a column chunk. Three bytes say what the column is, and the chunk follows: the
// number of values, their width (-1: each follows its length), and whether they may be null and pages need checksums.

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
  if (!find_cells(cells)) return 0;
  for (int64_t value = 0; value < count; ++value) {
    if (starts[value] < 0 || starts[value] > ends[value] || ends[value] > cells.size) __builtin_trap();
  }
  return 0;
}
