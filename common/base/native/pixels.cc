// Normalizes the pixels of one image. The function keeps no state, starts no threads, and allocates nothing.

#include <cstdint>

#include "image_rows.h"

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

}  // namespace

// Writes `value * multiply[c] - subtract[c]` for each channel, in any layout.
extern "C" __attribute__((visibility("default"))) void parquetry_normalize(const Image* image, const float* multiply,
                                                                           const float* subtract) {
  const parquetry::Place place = {image->target, image->target_row, image->target_pixel, image->target_channel};
  parquetry::ImageRows rows;
  rows.begin(image->height, image->width, image->channels, image->height, image->width, false, false, place,
             {multiply, subtract}, nullptr);
  for (int64_t y = 0; y < image->height; ++y) rows.take(image->source + y * image->source_row, y);
}
