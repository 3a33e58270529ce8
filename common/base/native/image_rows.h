// Finishes an image row by row, as a decoder yields the rows: resizes it, mirrors it, normalizes its pixels, and puts
// them in their layout. The class allocates nothing and keeps no state between images.

#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>

#include "resample.h"

// The compiler makes a version for AVX2 too, and the C library chooses one when this library is loaded.
#if defined(__x86_64__) && defined(__GLIBC__) && defined(__GNUC__) && !defined(__clang__)
#define PARQUETRY_FOR_EVERY_CPU __attribute__((target_clones("avx2", "default")))
#else
#define PARQUETRY_FOR_EVERY_CPU
#endif

#if defined(__x86_64__) && defined(__GNUC__)
#define PARQUETRY_HAS_AVX2 1
#include <immintrin.h>
#else
#define PARQUETRY_HAS_AVX2 0
#endif

namespace parquetry {

#define PARQUETRY_INLINE __attribute__((always_inline)) inline

// Where pixels go. Strides are counted in values.
struct Place {
  void* pixels;
  int64_t row, pixel, channel;
};

// Factors for each channel: `value * multiply - subtract` as float32. Without them, pixels stay uint8.
struct Factors {
  const float* multiply;
  const float* subtract;
};

// Rounds after every step, because the library is compiled without fused multiply-add.
PARQUETRY_INLINE float normalized(uint8_t value, float multiply, float subtract) {
  return static_cast<float>(value) * multiply - subtract;
}

// One channel of one row. Pixels are `kFrom` values apart in the source, and `kTo` values apart in the target.
template <int kFrom, int kTo>
PARQUETRY_INLINE void normalize_line(const uint8_t* from, float* to, int64_t width, float multiply, float subtract) {
  for (int64_t x = 0; x < width; ++x) to[x * kTo] = normalized(from[x * kFrom], multiply, subtract);
}

template <int kFrom, int kTo>
PARQUETRY_INLINE void copy_line(const uint8_t* from, uint8_t* to, int64_t width) {
  for (int64_t x = 0; x < width; ++x) to[x * kTo] = from[x * kFrom];
}

template <int kFrom, int kTo>
PARQUETRY_INLINE void finish_line(const uint8_t* from, void* to, int64_t at, int64_t width, const Factors& factors,
                                  int64_t channel) {
  if (factors.multiply != nullptr) {
    normalize_line<kFrom, kTo>(from, static_cast<float*>(to) + at, width, factors.multiply[channel],
                               factors.subtract[channel]);
  } else {
    copy_line<kFrom, kTo>(from, static_cast<uint8_t*>(to) + at, width);
  }
}

// The general case, and the layouts for which the compiler can process several pixels at a time.
PARQUETRY_FOR_EVERY_CPU inline void finish_channel(const uint8_t* from, int64_t from_pixel, const Place& place,
                                                   int64_t at, int64_t width, const Factors& factors,
                                                   int64_t channel) {
  if (from_pixel == 1 && place.pixel == 1) {
    finish_line<1, 1>(from, place.pixels, at, width, factors, channel);
  } else if (from_pixel == 1 && place.pixel == 3) {
    finish_line<1, 3>(from, place.pixels, at, width, factors, channel);
  } else if (from_pixel == 3 && place.pixel == 1) {
    finish_line<3, 1>(from, place.pixels, at, width, factors, channel);
  } else if (from_pixel == 3 && place.pixel == 3) {
    finish_line<3, 3>(from, place.pixels, at, width, factors, channel);
  } else if (from_pixel == -3 && place.pixel == 1) {
    finish_line<-3, 1>(from, place.pixels, at, width, factors, channel);
  } else if (from_pixel == -3 && place.pixel == 3) {
    finish_line<-3, 3>(from, place.pixels, at, width, factors, channel);
  } else if (from_pixel == 4 && place.pixel == 1) {
    finish_line<4, 1>(from, place.pixels, at, width, factors, channel);
  } else {
    for (int64_t x = 0; x < width; ++x) {
      const uint8_t value = from[x * from_pixel];
      const int64_t to = at + x * place.pixel;
      if (factors.multiply == nullptr) {
        static_cast<uint8_t*>(place.pixels)[to] = value;
      } else {
        static_cast<float*>(place.pixels)[to] =
            normalized(value, factors.multiply[channel], factors.subtract[channel]);
      }
    }
  }
}

// Normalizes a row whose channels stay where they are.
template <int64_t kChannels>
PARQUETRY_INLINE void normalize_pixels(const uint8_t* from, float* to, int64_t width, const Factors& factors) {
  for (int64_t x = 0; x < width; ++x) {
    for (int64_t c = 0; c < kChannels; ++c) {
      const int64_t at = x * kChannels + c;
      to[at] = normalized(from[at], factors.multiply[c], factors.subtract[c]);
    }
  }
}

// Finishes a row whose channels keep their places. Returns false if the row is not of this kind.
PARQUETRY_FOR_EVERY_CPU inline bool finish_pixels(const uint8_t* from, const Place& place, int64_t at, int64_t width,
                                                  int64_t channels, const Factors& factors) {
  if (place.pixel != channels || place.channel != 1) return false;
  if (factors.multiply == nullptr) {
    __builtin_memcpy(static_cast<uint8_t*>(place.pixels) + at, from, static_cast<size_t>(width * channels));
  } else if (channels == 3) {
    normalize_pixels<3>(from, static_cast<float*>(place.pixels) + at, width, factors);
  } else if (channels == 4) {
    normalize_pixels<4>(from, static_cast<float*>(place.pixels) + at, width, factors);
  } else {
    return false;
  }
  return true;
}

class ImageRows {
 public:
  // How many bytes may be read beyond the end of each row that is given to `take`.
  static constexpr int64_t kSlack = 16;

  // The size of an image, and of what is made of it.
  struct Size {
    int64_t height, width, channels, new_height, new_width;
    Filter filter;

    bool resizes() const { return height != new_height || width != new_width; }
  };

  // The memory that `begin` needs, aligned for numbers of eight bytes.
  static size_t memory_bytes(const Size& size) {
    const Axis across(size.width, size.new_width, size.filter), down(size.height, size.new_height, size.filter);
    return sizeof(double) * static_cast<size_t>(larger(across.most(), down.most())) +
           sizeof(const uint8_t*) * static_cast<size_t>(down.most() + 1) +
           sizeof(Span) * static_cast<size_t>(padded(size.new_width) + size.new_height) +
           sizeof(int16_t) * static_cast<size_t>((size.new_width + 4 * padded(size.new_width)) * quads(across.most()) +
                                                 size.new_height * quads(down.most())) +
           static_cast<size_t>(line_bytes(size) * (down.most() + 2));
  }

  // Describes the image. `memory` may be null if its size does not change.
  void begin(const Size& size, bool mirrored, bool upside_down, const Place& place, const Factors& factors,
             void* memory) {
    size_ = size;
    mirrored_ = mirrored, upside_down_ = upside_down, place_ = place, factors_ = factors;
    if (!size.resizes()) return;
    splits_ = place.pixel != size.channels || place.channel != 1;
    line_ = padded(size.new_width);
    const Axis across(size.width, size.new_width, size.filter), down(size.height, size.new_height, size.filter);
    auto* const exact = static_cast<double*>(memory);
    mixed_ = reinterpret_cast<const uint8_t**>(exact + larger(across.most(), down.most()));
    across_ = reinterpret_cast<Span*>(mixed_ + down.most() + 1);
    down_ = across_ + line_;
    across_step_ = quads(across.most()), down_step_ = quads(down.most());
    across_weights_ = reinterpret_cast<int16_t*>(down_ + size.new_height);
    down_weights_ = across_weights_ + size.new_width * across_step_;
    pair_weights_ = down_weights_ + size.new_height * down_step_;
    held_ = down.most();
    line_bytes_ = line_bytes(size);
    // Mixing fewer rows across is faster. Bicubic results depend on the order, and others begin across.
    down_first_ = size.new_height < size.height && !Axis::overshoots(size.filter);
    lines_ = reinterpret_cast<uint8_t*>(pair_weights_ + 4 * line_ * across_step_);
    std::memset(across_weights_, 0, sizeof(int16_t) * static_cast<size_t>(pair_weights_ - across_weights_));
    for (int64_t x = 0; x < size.new_width; ++x) {
      const int64_t to = mirrored ? size.new_width - 1 - x : x;
      across_[x] = across.weigh(to, exact, across_weights_ + x * across_step_);
    }
    for (int64_t y = 0; y < size.new_height; ++y) {
      down_[y] = down.weigh(y, exact, down_weights_ + y * down_step_);
    }
    pair_up_weights();
    next_ = 0;
  }

  // Takes row `y` of the image. Rows come in order, and each has `kSlack` readable bytes after its end.
  void take(const uint8_t* row, int64_t y) {
    if (!size_.resizes()) return finish_row(row, y);
    if (next_ == size_.new_height || y < down_[next_].first) return;
    const int64_t values = (down_first_ ? size_.width : line_) * size_.channels;
    if (down_first_) {
      std::memcpy(line(y), row, static_cast<size_t>(values));
    } else {
      mix_across(row, line(y));
    }
    for (; next_ < size_.new_height && down_[next_].first + down_[next_].count == y + 1; ++next_) {
      uint8_t* const made = lines_ + held_ * line_bytes_;
      for (int32_t k = 0; k < down_[next_].count; ++k) mixed_[k] = line(down_[next_].first + k);
      mixed_[down_[next_].count] = mixed_[0];  // its weight is 0
      mix_down(down_[next_].count, down_weights_ + next_ * down_step_, values, made);
      if (down_first_) mix_across(made, made + line_bytes_);
      finish_mixed(down_first_ ? made + line_bytes_ : made, next_);
    }
  }

 private:
  // Lays out the weights across as `mixed_colors` reads them, if it can be used: all pixels get equally many, and none
  // needs others beyond the end of the row.
  void pair_up_weights() {
    taps_ = 0;
#if PARQUETRY_HAS_AVX2
    int64_t most = 0;
    for (int64_t x = 0; x < size_.new_width; ++x) most = larger(most, across_[x].count);
    const int64_t taps = quads(most);
    const bool fits = (size_.channels == 3 || size_.channels == 4) && taps <= size_.width;
    if (!fits || !__builtin_cpu_supports("avx2")) return;
    taps_ = taps;
    std::memset(pair_weights_, 0, sizeof(int16_t) * static_cast<size_t>(4 * line_ * taps));
    for (int64_t x = 0; x < size_.new_width; ++x) {
      Span& span = across_[x];
      const int64_t end = size_.width - taps;
      const int64_t shift = span.first > end ? span.first - end : 0;
      for (int64_t k = 0; k < span.count; ++k) {
        // For two pixels at a time: the first two weights of each, four times over, and so on.
        int16_t* const place = pair_weights_ + (x / 2) * 8 * taps + (k + shift) / 2 * 16 + x % 2 * 8 + (k + shift) % 2;
        for (int64_t c = 0; c < 4; ++c) place[2 * c] = across_weights_[x * across_step_ + k];
      }
      span.first = static_cast<int32_t>(span.first - shift);
    }
    for (int64_t x = size_.new_width; x < line_; ++x) across_[x] = across_[x - 1];
#endif
  }

  static int64_t padded(int64_t width) { return (width + 31) / 32 * 32; }
  static int64_t quads(int64_t count) { return (count + 3) / 4 * 4; }
  static int64_t larger(int64_t one, int64_t other) { return one > other ? one : other; }
  static int64_t line_bytes(const Size& size) {
    return padded(larger(size.width, padded(size.new_width)) * size.channels) + 2 * kSlack;
  }

  // The latest rows take turns.
  uint8_t* line(int64_t y) const { return lines_ + line_bytes_ * (y % held_); }

  void finish(const uint8_t* from, int64_t step, int64_t y, int64_t channel) const {
    const int64_t to = upside_down_ ? size_.new_height - 1 - y : y;
    finish_channel(from, step, place_, to * place_.row + channel * place_.channel, size_.new_width, factors_, channel);
  }

  void finish_row(const uint8_t* row, int64_t y) const {
    const int64_t channels = size_.channels;
    const int64_t at = (upside_down_ ? size_.height - 1 - y : y) * place_.row;
    if (!mirrored_ && finish_pixels(row, place_, at, size_.width, channels, factors_)) return;
    const int64_t step = mirrored_ ? -channels : channels;
    const uint8_t* const first = mirrored_ ? row + (size_.width - 1) * channels : row;
    for (int64_t c = 0; c < channels; ++c) finish(first + c, step, y, c);
  }

  void finish_mixed(const uint8_t* made, int64_t y) const {
    const int64_t at = (upside_down_ ? size_.new_height - 1 - y : y) * place_.row;
    if (!splits_ && finish_pixels(made, place_, at, size_.new_width, size_.channels, factors_)) return;
    const int64_t step = splits_ ? 1 : size_.channels, channel = splits_ ? line_ : 1;
    for (int64_t c = 0; c < size_.channels; ++c) finish(made + c * channel, step, y, c);
  }

  static uint8_t as_pixel(int32_t sum) {
    const int32_t value = sum >> kWeightBits;
    return static_cast<uint8_t>(value < 0 ? 0 : value > 255 ? 255 : value);
  }

  // Mixes neighbors in a row. Splits its channels, unless the target stores them together too.
  void mix_across(const uint8_t* row, uint8_t* target) const {
#if PARQUETRY_HAS_AVX2
    if (taps_ && size_.channels == 3) return splits_ ? mix_colors<3, true>(row, target) : mix_colors<3, false>(row, target);
    if (taps_ && size_.channels == 4) return splits_ ? mix_colors<4, true>(row, target) : mix_colors<4, false>(row, target);
#endif
    switch (size_.channels) {
      case 1:
        return mix_pixels_across<1>(row, target);
      case 3:
        return mix_pixels_across<3>(row, target);
      default:
        return mix_pixels_across<0>(row, target);
    }
  }

  template <int64_t kChannels>
  void mix_pixels_across(const uint8_t* row, uint8_t* target) const {
    const int64_t channels = kChannels ? kChannels : size_.channels;
    for (int64_t x = 0; x < size_.new_width; ++x) {
      const Span span = across_[x];
      const int16_t* const weights = across_weights_ + x * across_step_;
      for (int64_t c = 0; c < channels; ++c) {
        const uint8_t* const first = row + span.first * channels + c;
        int32_t sum = kOne / 2;
        for (int32_t k = 0; k < span.count; ++k) sum += first[k * channels] * weights[k];
        target[splits_ ? c * line_ + x : x * channels + c] = as_pixel(sum);
      }
    }
  }

  // Mixes the rows that make up one row of the result. May write up to 31 values too many.
  void mix_down(int32_t count, const int16_t* weights, int64_t values, uint8_t* target) const {
#if PARQUETRY_HAS_AVX2
    if (__builtin_cpu_supports("avx2")) return mix_down_wide(count, weights, values, target);
#endif
    for (int64_t at = 0; at < values; ++at) {
      int32_t sum = kOne / 2;
      for (int32_t k = 0; k < count; ++k) sum += mixed_[k][at] * weights[k];
      target[at] = as_pixel(sum);
    }
  }

#if PARQUETRY_HAS_AVX2
  // Adds up four neighbors of each of two pixels, whose sums stand in the two halves.
  template <int64_t kChannels>
  __attribute__((target("avx2"))) static __m256i mixed_colors(const uint8_t* row, const Span* spans,
                                                              const int16_t* pair_weights, int64_t taps) {
    // Words of two neighbors: red, red, green, green, blue, blue, and alpha, alpha.
    const __m128i pair = kChannels == 3 ? _mm_setr_epi8(0, -1, 3, -1, 1, -1, 4, -1, 2, -1, 5, -1, -1, -1, -1, -1)
                                        : _mm_setr_epi8(0, -1, 4, -1, 1, -1, 5, -1, 2, -1, 6, -1, 3, -1, 7, -1);
    const __m128i next = kChannels == 3 ? _mm_setr_epi8(6, -1, 9, -1, 7, -1, 10, -1, 8, -1, 11, -1, -1, -1, -1, -1)
                                        : _mm_setr_epi8(8, -1, 12, -1, 9, -1, 13, -1, 10, -1, 14, -1, 11, -1, 15, -1);
    const __m256i first_two = _mm256_broadcastsi128_si256(pair), last_two = _mm256_broadcastsi128_si256(next);
    const uint8_t* one = row + spans[0].first * kChannels;
    const uint8_t* two = row + spans[1].first * kChannels;
    const auto* weights = reinterpret_cast<const __m256i*>(pair_weights);
    __m256i sums = _mm256_set1_epi32(kOne / 2);
    for (int64_t k = 0; k < taps; k += 4, one += 4 * kChannels, two += 4 * kChannels, weights += 2) {
      const __m128i left = _mm_loadu_si128(reinterpret_cast<const __m128i*>(one));
      const __m128i right = _mm_loadu_si128(reinterpret_cast<const __m128i*>(two));
      const __m256i both = _mm256_inserti128_si256(_mm256_castsi128_si256(left), right, 1);
      const __m256i a = _mm256_madd_epi16(_mm256_shuffle_epi8(both, first_two), _mm256_loadu_si256(weights));
      const __m256i b = _mm256_madd_epi16(_mm256_shuffle_epi8(both, last_two), _mm256_loadu_si256(weights + 1));
      sums = _mm256_add_epi32(sums, _mm256_add_epi32(a, b));
    }
    return _mm256_srai_epi32(sums, kWeightBits);
  }

  template <int64_t kChannels, bool kSplits>
  __attribute__((target("avx2"))) void mix_colors(const uint8_t* row, uint8_t* target) const {
    const __m256i order = _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7);
    const __m128i together = kChannels == 3 ? _mm_setr_epi8(0, 1, 2, 4, 5, 6, 8, 9, 10, 12, 13, 14, -1, -1, -1, -1)
                                            : _mm_setr_epi8(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
    const __m256i apart = _mm256_broadcastsi128_si256(_mm_setr_epi8(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15));
    // The compiler cannot know that `target` does not point to members.
    const Span* span = across_;
    const int16_t* weights = pair_weights_;
    const int64_t taps = taps_, width = size_.new_width, line = line_;
    for (int64_t x = 0; x < width; x += 8, span += 8, weights += 32 * taps) {
      const __m256i a = mixed_colors<kChannels>(row, span, weights, taps);
      const __m256i b = mixed_colors<kChannels>(row, span + 2, weights + 8 * taps, taps);
      const __m256i c = mixed_colors<kChannels>(row, span + 4, weights + 16 * taps, taps);
      const __m256i d = mixed_colors<kChannels>(row, span + 6, weights + 24 * taps, taps);
      const __m256i packed = _mm256_packus_epi16(_mm256_packs_epi32(a, b), _mm256_packs_epi32(c, d));
      const __m256i pixels = _mm256_permutevar8x32_epi32(packed, order);
      if (!kSplits) {  // each store writes four bytes too many, which the next one or nothing needs
        const __m256i bytes = _mm256_shuffle_epi8(pixels, _mm256_broadcastsi128_si256(together));
        _mm_storeu_si128(reinterpret_cast<__m128i*>(target + kChannels * x), _mm256_castsi256_si128(bytes));
        _mm_storeu_si128(reinterpret_cast<__m128i*>(target + kChannels * (x + 4)), _mm256_extracti128_si256(bytes, 1));
        continue;
      }
      const __m256i split = _mm256_permutevar8x32_epi32(_mm256_shuffle_epi8(pixels, apart), order);
      alignas(32) int64_t channels[4];
      _mm256_store_si256(reinterpret_cast<__m256i*>(channels), split);
      for (int64_t i = 0; i < kChannels; ++i) std::memcpy(target + i * line + x, channels + i, sizeof(channels[i]));
    }
  }

  __attribute__((target("avx2"))) void mix_down_wide(int32_t count, const int16_t* weights, int64_t values,
                                                     uint8_t* target) const {
    const uint8_t* const* const rows = mixed_;
    const __m256i half = _mm256_set1_epi32(kOne / 2);
    for (int64_t at = 0; at < values; at += 32) {
      __m256i sums[4] = {half, half, half, half};
      for (int32_t k = 0; k < count; k += 2) {
        int32_t pair;  // the weight after the last one is 0
        std::memcpy(&pair, weights + k, sizeof(pair));
        const __m256i factors = _mm256_set1_epi32(pair);
        const uint8_t* const one = rows[k] + at;
        const uint8_t* const two = rows[k + 1] + at;
        for (int part = 0; part < 2; ++part) {
          const __m128i a = _mm_loadu_si128(reinterpret_cast<const __m128i*>(one + 16 * part));
          const __m128i b = _mm_loadu_si128(reinterpret_cast<const __m128i*>(two + 16 * part));
          const __m256i low = _mm256_cvtepu8_epi16(_mm_unpacklo_epi8(a, b));
          const __m256i high = _mm256_cvtepu8_epi16(_mm_unpackhi_epi8(a, b));
          sums[2 * part] = _mm256_add_epi32(sums[2 * part], _mm256_madd_epi16(low, factors));
          sums[2 * part + 1] = _mm256_add_epi32(sums[2 * part + 1], _mm256_madd_epi16(high, factors));
        }
      }
      for (__m256i& sum : sums) sum = _mm256_srai_epi32(sum, kWeightBits);
      // Packing mixes the lanes of two registers; the permutation puts them in order.
      const __m256i packed =
          _mm256_packus_epi16(_mm256_packs_epi32(sums[0], sums[1]), _mm256_packs_epi32(sums[2], sums[3]));
      const __m256i order = _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7);
      _mm256_storeu_si256(reinterpret_cast<__m256i*>(target + at), _mm256_permutevar8x32_epi32(packed, order));
    }
  }
#endif

  Size size_ = {};
  bool mirrored_ = false, upside_down_ = false;
  bool splits_ = false;  // whether mixed rows hold one channel after another
  Place place_ = {};
  Factors factors_ = {};
  const uint8_t** mixed_ = nullptr;  // the rows that make up one row of the result
  Span* across_ = nullptr;
  Span* down_ = nullptr;
  int16_t* across_weights_ = nullptr;
  int16_t* down_weights_ = nullptr;
  int16_t* pair_weights_ = nullptr;
  int64_t taps_ = 0;  // how many weights each pixel has there; 0 if they are not used
  int64_t across_step_ = 0, down_step_ = 0;  // between the weights of one pixel and those of the next
  int64_t line_ = 0;                         // values of one channel of a mixed row
  bool down_first_ = false;                  // whether rows are mixed with each other before neighbors in a row
  int64_t held_ = 0;                         // how many rows are held
  int64_t line_bytes_ = 0;
  uint8_t* lines_ = nullptr;
  int64_t next_ = 0;
};

}  // namespace parquetry
