// Runs libFuzzer on a target that g++ has compiled with -fsanitize-coverage=trace-pc. libFuzzer itself counts only what
// clang's instrumentation reports, so the counts are kept here: one byte for each address that a jump leads to, modulo
// the number of bytes. This file is compiled without that flag.

#include <cstddef>
#include <cstdint>

extern "C" {

extern char __executable_start;
void __sanitizer_cov_8bit_counters_init(uint8_t* begin, uint8_t* end);
int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size);
int LLVMFuzzerRunDriver(int* argc, char*** argv, int (*target)(const uint8_t*, size_t));

}  // extern "C"

namespace {

constexpr int kBits = 14;
uint8_t counts[1 << kBits];

}  // namespace

extern "C" void __sanitizer_cov_trace_pc() {
  const auto address = reinterpret_cast<uintptr_t>(__builtin_return_address(0));
  const uint64_t place = address - reinterpret_cast<uintptr_t>(&__executable_start);  // the same in each run
  uint8_t& count = counts[place * 0x9e3779b97f4a7c15 >> (64 - kBits)];
  if (count < UINT8_MAX) ++count;
}

int main(int argc, char** argv) {
  __sanitizer_cov_8bit_counters_init(counts, counts + sizeof counts);
  return LLVMFuzzerRunDriver(&argc, &argv, LLVMFuzzerTestOneInput);
}
