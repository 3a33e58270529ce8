// Normalises the pixels of one image. The function keeps no state, starts no threads, and allocates nothing.

#include <cstdint>

// The compiler makes one version for AVX2, and the C library chooses one when this library is loaded.
#if defined(__x86_64__) && defined(__GLIBC__) && defined(__GNUC__) && !defined(__clang__)
#define PARQUETRY_FOR_EVERY_CPU __attribute__((target_clones("avx2", "default")))
#else
#define PARQUETRY_FOR_EVERY_CPU
#endif

namespace {

// Strides are counted in values. Pixels of the source lie next to each other in each row.
struct Image {
  const uint8_t* source;
  float* target;
  int64_t height, width, channels;
  int64_t source_row;
  int64_t target_row, target_pixel, target_channel;
};
static_assert(sizeof(Image) == 72, "Python describes images by the same layout");

// Every step is rounded: this file is compiled without fused multiply-add.
__attribute__((always_inline)) inline float normalised(uint8_t value, float multiply, float subtract) {
  return static_cast<float>(value) * multiply - subtract;
}

template <int64_t kChannels>
__attribute__((always_inline)) inline void planes(const Image& image, const float* multiply, const float* subtract) {
  for (int64_t y = 0; y < image.height; ++y) {
    const uint8_t* const source = image.source + y * image.source_row;
    for (int64_t c = 0; c < kChannels; ++c) {
      float* const target = image.target + y * image.target_row + c * image.target_channel;
      const float factor = multiply[c], shift = subtract[c];
      for (int64_t x = 0; x < image.width; ++x) target[x] = normalised(source[x * kChannels + c], factor, shift);
    }
  }
}

template <int64_t kChannels>
__attribute__((always_inline)) inline void pixels(const Image& image, const float* multiply, const float* subtract) {
  for (int64_t y = 0; y < image.height; ++y) {
    const uint8_t* const source = image.source + y * image.source_row;
    float* const target = image.target + y * image.target_row;
    for (int64_t x = 0; x < image.width; ++x) {
      for (int64_t c = 0; c < kChannels; ++c) {
        const int64_t at = x * kChannels + c;
        target[at] = normalised(source[at], multiply[c], subtract[c]);
      }
    }
  }
}

}  // namespace

// Writes `value * multiply[c] - subtract[c]` for 1, 3 or 4 channels, channels first or last. Returns whether it has.
extern "C" PARQUETRY_FOR_EVERY_CPU __attribute__((visibility("default"))) int64_t parquetry_normalise(
    const Image* image, const float* multiply, const float* subtract) {
  const bool first = image->target_pixel == 1;
  const bool last = image->target_channel == 1 && image->target_pixel == image->channels;
  if (!first && !last) return 0;
  switch (image->channels) {
    case 1: planes<1>(*image, multiply, subtract); return 1;
    case 3: first ? planes<3>(*image, multiply, subtract) : pixels<3>(*image, multiply, subtract); return 1;
    case 4: first ? planes<4>(*image, multiply, subtract) : pixels<4>(*image, multiply, subtract); return 1;
    default: return 0;
  }
}
