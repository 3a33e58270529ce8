// Finishes an image row by row, as a decoder yields the rows: resizes it, mirrors it, normalizes its pixels, and puts
// them in their layout. The class allocates nothing and keeps no state between images.

#pragma once

#include <cmath>
#include <cstddef>
#include <cstdint>

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

// As in OpenCV's INTER_LINEAR for uint8, bilinear weights are whole numbers out of 2,048, and results are rounded.
constexpr float kOne = 2048.0F;

struct Mix {
  int32_t first, second;          // the positions whose values are mixed
  int16_t of_first, of_second;    // their weights
};

// Returns which two of `old_length` positions make up position `to` of `new_length`, and their weights.
inline Mix mix_of(int64_t to, int64_t new_length, int64_t old_length, bool edges) {
  const double scale = 1.0 / (static_cast<double>(new_length) / static_cast<double>(old_length));
  const float exact = static_cast<float>((static_cast<double>(to) + 0.5) * scale - 0.5);
  const float whole = std::floor(exact);
  float rest = exact - whole;
  int64_t first = static_cast<int64_t>(whole);
  const int64_t last = old_length - 1;
  if (edges && first < 0) first = 0, rest = 0;
  if (edges && first >= last) first = last, rest = 0;
  const int64_t second = first + 1;
  Mix mix;
  mix.of_first = static_cast<int16_t>(std::lrintf((1.0F - rest) * kOne));
  mix.of_second = static_cast<int16_t>(std::lrintf(rest * kOne));
  mix.first = static_cast<int32_t>(first < 0 ? 0 : first > last ? last : first);
  mix.second = static_cast<int32_t>(second < 0 ? 0 : second > last ? last : second);
  return mix;
}

// When both axes are halved exactly, OpenCV takes the mean of four pixels instead.
inline bool halves(int64_t height, int64_t width, int64_t new_height, int64_t new_width) {
  return height == 2 * new_height && width == 2 * new_width;
}

class ImageRows {
 public:
  // How many bytes may be read beyond the end of each row that is given to `take`.
  static constexpr int64_t kSlack = 16;

  // The memory that `begin` needs, aligned for numbers of eight bytes.
  static size_t memory_bytes(int64_t channels, int64_t new_height, int64_t new_width) {
    const size_t line = static_cast<size_t>(padded(new_width) * channels + kSlack);
    return sizeof(Mix) * static_cast<size_t>(new_height + padded(new_width)) + 5 * line;
  }

  // Describes the image. `memory` may be null if its size does not change.
  void begin(int64_t height, int64_t width, int64_t channels, int64_t new_height, int64_t new_width, bool mirrored,
             bool upside_down, const Place& place, const Factors& factors, void* memory) {
    height_ = height, width_ = width, channels_ = channels, new_height_ = new_height, new_width_ = new_width;
    mirrored_ = mirrored, upside_down_ = upside_down, place_ = place, factors_ = factors;
    resizes_ = height != new_height || width != new_width;
    if (!resizes_) return;
    down_ = static_cast<Mix*>(memory);
    across_ = down_ + new_height;
    splits_ = place.pixel != channels || place.channel != 1;
    line_ = padded(new_width);
    mixed_[0] = reinterpret_cast<int16_t*>(across_ + line_);
    mixed_[1] = mixed_[0] + line_ * channels + kSlack;
    made_ = reinterpret_cast<uint8_t*>(mixed_[1] + line_ * channels + kSlack);
    for (int64_t y = 0; y < new_height; ++y) down_[y] = mix_of(y, new_height, height, false);
    for (int64_t x = 0; x < line_; ++x) {
      const int64_t to = x < new_width ? x : new_width - 1;
      across_[x] = mix_of(mirrored ? new_width - 1 - to : to, new_width, width, true);
      across_[x].first *= static_cast<int32_t>(channels);
    }
    next_ = 0;
  }

  // Takes row `y` of the image. Rows come in order, and each has `kSlack` readable bytes after its end.
  void take(const uint8_t* row, int64_t y) {
    if (!resizes_) {
      const int64_t at = (upside_down_ ? new_height_ - 1 - y : y) * place_.row;
      if (!mirrored_ && finish_pixels(row, place_, at, width_, channels_, factors_)) return;
      const int64_t step = mirrored_ ? -channels_ : channels_;
      const uint8_t* const first = mirrored_ ? row + (width_ - 1) * channels_ : row;
      for (int64_t c = 0; c < channels_; ++c) finish(first + c, step, y, c);
      return;
    }
    if (next_ == new_height_ || (down_[next_].first != y && down_[next_].second != y)) return;
    mix_across(row, mixed_[y & 1]);
    for (; next_ < new_height_ && down_[next_].second == y; ++next_) {
      const Mix& mix = down_[next_];
      mix_down(mixed_[mix.first & 1], mixed_[y & 1], mix, made_);
      finish_mixed(next_);
    }
  }

 private:
  static int64_t padded(int64_t width) { return (width + 31) / 32 * 32; }

  void finish(const uint8_t* from, int64_t step, int64_t y, int64_t channel) const {
    const int64_t to = upside_down_ ? new_height_ - 1 - y : y;
    finish_channel(from, step, place_, to * place_.row + channel * place_.channel, new_width_, factors_, channel);
  }

  void finish_mixed(int64_t y) const {
    const int64_t at = (upside_down_ ? new_height_ - 1 - y : y) * place_.row;
    if (!splits_ && finish_pixels(made_, place_, at, new_width_, channels_, factors_)) return;
    const int64_t step = splits_ ? 1 : channels_, channel = splits_ ? line_ : 1;
    for (int64_t c = 0; c < channels_; ++c) finish(made_ + c * channel, step, y, c);
  }

  // Mixes neighbors in a row. Splits its channels, unless the target stores them together too. The results are pixels
  // times 128.
  void mix_across(const uint8_t* row, int16_t* target) const {
#if PARQUETRY_HAS_AVX2
    if (channels_ == 3 && __builtin_cpu_supports("avx2")) return mix_colors_across(row, target);
#endif
    for (int64_t x = 0; x < line_; ++x) {
      const Mix& mix = across_[x];
      for (int64_t c = 0; c < channels_; ++c) {
        const int32_t value = row[mix.first + c] * mix.of_first + row[mix.first + channels_ + c] * mix.of_second;
        target[splits_ ? c * line_ + x : x * channels_ + c] = static_cast<int16_t>(value >> 4);
      }
    }
  }

  void mix_down(const int16_t* first, const int16_t* second, const Mix& mix, uint8_t* target) const {
#if PARQUETRY_HAS_AVX2
    if (__builtin_cpu_supports("avx2")) return mix_down_wide(first, second, mix, target);
#endif
    for (int64_t at = 0; at < line_ * channels_; ++at) {
      const int32_t value = (first[at] * mix.of_first >> 16) + (second[at] * mix.of_second >> 16);
      target[at] = static_cast<uint8_t>((value + 2) >> 2);
    }
  }

#if PARQUETRY_HAS_AVX2
  __attribute__((target("avx2"))) __m128i mix_colors(const uint8_t* row, const Mix& mix, __m128i order) const {
    const __m128i bytes = _mm_loadl_epi64(reinterpret_cast<const __m128i*>(row + mix.first));
    int32_t weights;
    __builtin_memcpy(&weights, &mix.of_first, sizeof(weights));
    return _mm_srai_epi32(_mm_madd_epi16(_mm_shuffle_epi8(bytes, order), _mm_set1_epi32(weights)), 4);
  }

  __attribute__((target("avx2"))) void mix_colors_across(const uint8_t* row, int16_t* target) const {
    // Words of red, the neighbor's red, green, the neighbor's green, blue, the neighbor's blue.
    const __m128i order = _mm_setr_epi8(0, -1, 3, -1, 1, -1, 4, -1, 2, -1, 5, -1, -1, -1, -1, -1);
    const __m128i together = _mm_setr_epi8(0, 1, 2, 3, 4, 5, 8, 9, 10, 11, 12, 13, -1, -1, -1, -1);
    for (int64_t x = 0; x < line_; x += 4) {
      const Mix* const mix = across_ + x;
      const __m128i p = _mm_packs_epi32(mix_colors(row, mix[0], order), mix_colors(row, mix[1], order));
      const __m128i q = _mm_packs_epi32(mix_colors(row, mix[2], order), mix_colors(row, mix[3], order));
      if (!splits_) {  // each store writes four bytes too many, which the next one or nothing needs
        _mm_storeu_si128(reinterpret_cast<__m128i*>(target + 3 * x), _mm_shuffle_epi8(p, together));
        _mm_storeu_si128(reinterpret_cast<__m128i*>(target + 3 * x + 6), _mm_shuffle_epi8(q, together));
        continue;
      }
      const __m128i even = _mm_unpacklo_epi16(p, q), odd = _mm_unpackhi_epi16(p, q);
      const __m128i red_green = _mm_unpacklo_epi16(even, odd), blue = _mm_unpackhi_epi16(even, odd);
      _mm_storel_epi64(reinterpret_cast<__m128i*>(target + x), red_green);
      _mm_storel_epi64(reinterpret_cast<__m128i*>(target + line_ + x), _mm_srli_si128(red_green, 8));
      _mm_storel_epi64(reinterpret_cast<__m128i*>(target + 2 * line_ + x), blue);
    }
  }

  __attribute__((target("avx2"))) void mix_down_wide(const int16_t* first, const int16_t* second, const Mix& mix,
                                                     uint8_t* target) const {
    const __m256i of_first = _mm256_set1_epi16(mix.of_first), of_second = _mm256_set1_epi16(mix.of_second);
    const __m256i half = _mm256_set1_epi16(2);
    for (int64_t at = 0; at < line_ * channels_; at += 32) {
      __m256i sums[2];
      for (int part = 0; part < 2; ++part) {
        const auto* const a = reinterpret_cast<const __m256i*>(first + at + 16 * part);
        const auto* const b = reinterpret_cast<const __m256i*>(second + at + 16 * part);
        const __m256i sum = _mm256_add_epi16(_mm256_mulhi_epi16(_mm256_loadu_si256(a), of_first),
                                             _mm256_mulhi_epi16(_mm256_loadu_si256(b), of_second));
        sums[part] = _mm256_srai_epi16(_mm256_add_epi16(sum, half), 2);
      }
      const __m256i packed = _mm256_permute4x64_epi64(_mm256_packus_epi16(sums[0], sums[1]), 0xD8);
      _mm256_storeu_si256(reinterpret_cast<__m256i*>(target + at), packed);
    }
  }
#endif

  int64_t height_ = 0, width_ = 0, channels_ = 0, new_height_ = 0, new_width_ = 0;
  bool mirrored_ = false, upside_down_ = false, resizes_ = false;
  bool splits_ = false;  // whether mixed rows hold one channel after another
  Place place_ = {};
  Factors factors_ = {};
  Mix* down_ = nullptr;
  Mix* across_ = nullptr;
  int64_t line_ = 0;  // values of one channel of a mixed row
  int16_t* mixed_[2] = {nullptr, nullptr};  // rows mixed across: the latest even one and the latest odd one
  uint8_t* made_ = nullptr;
  int64_t next_ = 0;
};

}  // namespace parquetry
