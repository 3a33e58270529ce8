// Finishes one decoded image as `ImageRows` does. The function keeps no state and starts no threads.

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
