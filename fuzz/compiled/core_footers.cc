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
  std::vector<int64_t> places(2 * kFooterFields), ends(groups), rows(groups);
  std::vector<ChunkFacts> facts(data[0]);
  if (parquetry_footer_fields(footer.data(), size, places.data()) > size) __builtin_trap();
  std::vector<uint8_t> wanted(data[0], 1), to(size + 16 * groups);
  const int64_t begin = places[2 * 4];
  for (const int64_t bare : {0, 1}) {
    const int64_t written =
        parquetry_cut_row_groups(footer.data(), size, begin, groups, data[0], wanted.data(), bare, to.data(),
                                 static_cast<int64_t>(to.size()), ends.data(), rows.data());
    if (written > static_cast<int64_t>(to.size())) __builtin_trap();
    int64_t before = 0;
    for (int64_t group = 0; written >= 0 && group < groups; ++group) {
      if (ends[group] < before || ends[group] > written) __builtin_trap();
      parquetry_chunk_facts(to.data() + before, ends[group] - before, data[0], reinterpret_cast<int64_t*>(facts.data()));
      before = ends[group];
    }
  }
  if (parquetry_longest_value(footer.data(), size) > size) __builtin_trap();
  return 0;
}
