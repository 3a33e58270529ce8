// Fuzzes the core's parsers of footers and of dictionaries. Two bytes are the numbers of columns and row groups, and the
// footer or dictionary follows.

#include <vector>

#include "../../common/base/native/footers.cc"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t bytes) {
  constexpr size_t kOptions = 2;
  if (bytes < kOptions) return 0;
  const std::vector<uint8_t> footer(data + kOptions, data + bytes);
  const auto size = static_cast<int64_t>(footer.size());
  parquetry_check_footer(footer.data(), size, data[0], size);
  const int64_t groups = data[1];
  std::vector<int64_t> places(groups + 2);
  if (parquetry_row_groups(footer.data(), size, groups, places.data())) {
    int64_t before = 0;
    for (const int64_t place : places) {
      if (place < before || place > size) __builtin_trap();
      before = place;
    }
  }
  if (parquetry_longest_value(footer.data(), size) > size) __builtin_trap();
  return 0;
}
