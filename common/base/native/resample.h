// Which pixels of an image make up each pixel of a resized one, and with which weights, along one axis.
//
// `resample_weights_by_numpy` in images.py computes the same weights, step by step.

#pragma once

#include <cmath>
#include <cstdint>

namespace parquetry {

enum class Filter : int64_t {
  kBilinear = 0,
  kBicubic = 1,
  kArea = 2,
  kPlainBilinear = 3,  // "plain" ones do not widen when they shrink an image, so they skip pixels
  kPlainBicubic = 4,
};

// Weights are whole numbers out of `kOne`, so that products with pixels are summed in 32 bits.
constexpr int kWeightBits = 14;
constexpr int32_t kOne = 1 << kWeightBits;

// The weights of one pixel: of `count` pixels from `first` on.
struct Span {
  int32_t first, count;
};

class Axis {
 public:
  Axis(int64_t old_length, int64_t new_length, Filter filter)
      : old_(old_length), filter_(filter), scale_(static_cast<double>(old_length) / static_cast<double>(new_length)) {
    const bool plain = filter == Filter::kPlainBilinear || filter == Filter::kPlainBicubic;
    stretch_ = plain || scale_ < 1 ? 1 : scale_;
    if (filter == Filter::kArea && scale_ <= 1) filter_ = Filter::kBilinear;  // nothing merges
    radius_ = (filter_ == Filter::kBicubic || filter_ == Filter::kPlainBicubic ? 2 : 1) * stretch_;
  }

  // The largest number of pixels that make up one.
  int64_t most() const {
    const int64_t most = 2 * static_cast<int64_t>(std::ceil(radius_)) + 1;
    return most < old_ ? most : old_;
  }

  // Whether the results of a pass may lie outside the range of the pixels.
  static bool overshoots(Filter filter) { return filter == Filter::kBicubic || filter == Filter::kPlainBicubic; }

  // Computes the weights of pixel `to`, which add up to 1. `exact` has room for `most` values.
  Span weigh(int64_t to, double* exact) const {
    const Span span = filter_ == Filter::kArea ? covered(to, exact) : filtered(to, exact);
    double sum = 0;
    for (int32_t k = 0; k < span.count; ++k) sum += exact[k];
    for (int32_t k = 0; k < span.count; ++k) exact[k] /= sum;
    return span;
  }

  // Computes them out of `kOne`. Their sums are rounded, not each of them: so they add up to `kOne`, and thousands of
  // small ones are not all rounded in one direction.
  Span weigh(int64_t to, double* exact, int16_t* weights) const {
    const Span span = weigh(to, exact);
    double sum = 0;
    int64_t before = 0;
    for (int32_t k = 0; k < span.count; ++k) {
      sum += exact[k];
      const int64_t until = std::lrint(sum * kOne);
      weights[k] = static_cast<int16_t>(until - before);
      before = until;
    }
    return span;
  }

 private:
  Span covered(int64_t to, double* exact) const {
    const double begin = static_cast<double>(to) * scale_, end = begin + scale_;
    const int64_t first = static_cast<int64_t>(begin);
    int64_t last = static_cast<int64_t>(std::ceil(end));
    if (last > old_) last = old_;
    for (int64_t at = first; at < last; ++at) {
      const double left = static_cast<double>(at), right = left + 1;
      exact[at - first] = (right < end ? right : end) - (left > begin ? left : begin);
    }
    return {static_cast<int32_t>(first), static_cast<int32_t>(last - first)};
  }

  Span filtered(int64_t to, double* exact) const {
    const double center = (static_cast<double>(to) + 0.5) * scale_;
    int64_t first = static_cast<int64_t>(center - radius_ + 0.5), last = static_cast<int64_t>(center + radius_ + 0.5);
    if (first < 0) first = 0;
    if (last > old_) last = old_;
    for (int64_t at = first; at < last; ++at) {
      exact[at - first] = weight(std::fabs((static_cast<double>(at) - center + 0.5) / stretch_));
    }
    return {static_cast<int32_t>(first), static_cast<int32_t>(last - first)};
  }

  double weight(double x) const {
    switch (filter_) {
      case Filter::kBicubic:
        return cubic(x, -0.5);
      case Filter::kPlainBicubic:
        return cubic(x, -0.75);
      default:
        return x < 1 ? 1 - x : 0;
    }
  }

  static double cubic(double x, double a) {
    if (x < 1) return ((a + 2) * x - (a + 3)) * x * x + 1;
    if (x < 2) return (((x - 5) * x + 8) * x - 4) * a;
    return 0;
  }

  int64_t old_;
  Filter filter_;
  double scale_;
  double stretch_ = 1;  // how much wider the filter is than when it enlarges
  double radius_ = 1;
};

}  // namespace parquetry
