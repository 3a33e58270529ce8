// Finishes one decoded image: of 8-bit values as `ImageRows` does, of others by resizing it. These functions keep no state
// and start no threads.

#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <cstring>

#include "image_rows.h"

namespace {

// Strides are counted in values. Pixels of the source lie next to each other in each row.
struct Image {
  const uint8_t* source;
  int64_t source_row;
  int64_t height, width, channels, new_height, new_width;
  int64_t filter;
  int64_t mirrored, upside_down;
  parquetry::Place place;  // of uint8, or of float32 if there are factors
};
static_assert(sizeof(Image) == 112, "Python describes images by the same layout");

inline void round_to(double value, float* to) { *to = static_cast<float>(value); }

inline void round_to(double value, uint16_t* to) {
  *to = static_cast<uint16_t>(std::lrint(value < 0 ? 0 : value > 65535 ? 65535 : value));
}

// The weights of all pixels along one axis. The memory is the caller's.
struct Weights {
  const parquetry::Axis axis;
  int64_t length;

  Weights(int64_t old_length, int64_t new_length, parquetry::Filter filter)
      : axis(old_length, new_length, filter), length(new_length) {}

  size_t bytes() const {
    return (sizeof(parquetry::Span) + sizeof(double) * static_cast<size_t>(axis.most())) * static_cast<size_t>(length);
  }
};

// Resizes the middle axis of `from` `[outer, old_length, inner]`. `memory` has room for the weights, and for `inner` sums
// after them.
template <class Value>
void resample(const Value* from, int64_t outer, int64_t old_length, int64_t inner, Value* to, const Weights& weights,
              void* memory) {
  auto* const spans = static_cast<parquetry::Span*>(memory);
  auto* const exact = reinterpret_cast<double*>(spans + weights.length);
  const int64_t step = weights.axis.most();
  double* const sums = exact + weights.length * step;
  for (int64_t x = 0; x < weights.length; ++x) spans[x] = weights.axis.weigh(x, exact + x * step);
  for (int64_t o = 0; o < outer; ++o, from += old_length * inner) {
    for (int64_t x = 0; x < weights.length; ++x, to += inner) {
      const Value* const first = from + spans[x].first * inner;
      const double* const weight = exact + x * step;
      if (inner == 1) {  // as below
        double sum = 0;
        for (int32_t k = 0; k < spans[x].count; ++k) sum += weight[k] == 0 ? 0 : first[k] * weight[k];
        round_to(sum, to);
        continue;
      }
      for (int64_t i = 0; i < inner; ++i) sums[i] = 0;
      for (int32_t k = 0; k < spans[x].count; ++k) {
        if (weight[k] == 0) continue;  // it hides NaN, too
        for (int64_t i = 0; i < inner; ++i) sums[i] += first[k * inner + i] * weight[k];
      }
      for (int64_t i = 0; i < inner; ++i) round_to(sums[i], to + i);
    }
  }
}

// Returns false if memory runs out.
template <class Value>
bool resize(const Value* from, int64_t height, int64_t width, int64_t channels, Value* to, int64_t new_height,
            int64_t new_width, parquetry::Filter filter) {
  const bool down_first = new_height < height && !parquetry::Axis::overshoots(filter);
  const Weights across(width, new_width, filter), down(height, new_height, filter);
  const size_t larger = across.bytes() > down.bytes() ? across.bytes() : down.bytes();
  const int64_t widest = (width > new_width ? width : new_width) * channels;
  const int64_t between = down_first ? new_height * width * channels : height * new_width * channels;
  const size_t room = larger + sizeof(double) * static_cast<size_t>(widest);
  void* const memory = std::malloc(room + sizeof(Value) * static_cast<size_t>(between));
  if (memory == nullptr) return false;
  auto* const half = reinterpret_cast<Value*>(static_cast<uint8_t*>(memory) + room);
  if (down_first) {
    resample(from, 1, height, width * channels, half, down, memory);
    resample(half, new_height, width, channels, to, across, memory);
  } else {
    resample(from, height, width, channels, half, across, memory);
    resample(half, 1, height, new_width * channels, to, down, memory);
  }
  std::free(memory);
  return true;
}

}  // namespace

// Resizes and mirrors an image, and writes `value * multiply[c] - subtract[c]` for each channel, if these are given, in
// any layout. Returns 0 if memory runs out.
extern "C" __attribute__((visibility("default"))) int64_t parquetry_finish_image(const Image* image,
                                                                                const float* multiply,
                                                                                const float* subtract) {
  const parquetry::ImageRows::Size size = {image->height,     image->width,     image->channels,
                                           image->new_height, image->new_width, parquetry::Filter{image->filter}};
  constexpr int64_t kSlack = parquetry::ImageRows::kSlack;
  const int64_t row_bytes = image->width * image->channels;
  void* memory = nullptr;
  uint8_t* line = nullptr;
  if (size.resizes()) {
    const size_t needed = (parquetry::ImageRows::memory_bytes(size) + 7) / 8 * 8;
    memory = std::malloc(needed + static_cast<size_t>(row_bytes + kSlack));
    if (memory == nullptr) return 0;
    line = static_cast<uint8_t*>(memory) + needed;
    std::memset(line + row_bytes, 0, static_cast<size_t>(kSlack));
  }
  parquetry::ImageRows rows;
  rows.begin(size, image->mirrored != 0, image->upside_down != 0, image->place, {multiply, subtract}, memory);
  for (int64_t y = 0; y < image->height; ++y) {
    const uint8_t* row = image->source + y * image->source_row;
    if (line != nullptr && (image->height - 1 - y) * image->source_row < kSlack) {  // nothing readable after its end
      std::memcpy(line, row, static_cast<size_t>(row_bytes));
      row = line;
    }
    rows.take(row, y);
  }
  std::free(memory);
  return 1;
}

// Resizes a contiguous image `[height, width, channels]` of uint16, or of float32 if `is_float`. Returns 0 if memory runs
// out.
extern "C" __attribute__((visibility("default"))) int64_t parquetry_resize_numbers(
    const void* from, int64_t height, int64_t width, int64_t channels, void* to, int64_t new_height, int64_t new_width,
    int64_t filter, int64_t is_float) {
  const auto kind = parquetry::Filter{filter};
  if (is_float) {
    return resize(static_cast<const float*>(from), height, width, channels, static_cast<float*>(to), new_height,
                  new_width, kind);
  }
  return resize(static_cast<const uint16_t*>(from), height, width, channels, static_cast<uint16_t*>(to), new_height,
                new_width, kind);
}
