// Splits for tf.data service's dynamic sharding: positions in one iteration, handed to whichever
// worker asks.

#ifndef PARQUETRY_KERNELS_SPLIT_PROVIDER_H_
#define PARQUETRY_KERNELS_SPLIT_PROVIDER_H_

#include <functional>
#include <limits>
#include <mutex>
#include <optional>
#include <string>
#include <utility>

#include "sidecar_client.h"
#include "tensorflow/core/framework/dataset.h"
#include "tensorflow/core/framework/tensor.h"

namespace parquetry {

// A split with this number of elements goes to the end of the iteration.
inline constexpr int64_t kWholeIteration = std::numeric_limits<int64_t>::max();

// A part of one iteration: the state to begin from, and the number of elements to read from there.
struct Split {
  tensorflow::Tensor ToTensor() const;
  static absl::Status Parse(const tensorflow::Tensor& tensor, Split* out);

  int64_t elements = 0;
  std::string state;
};

// Cuts iterations into splits, one iteration after another. A split is a position, so every worker
// that gets it reads the same elements, in whatever order the splits are handed out.
class ParquetSplitProvider : public tensorflow::data::SplitProvider {
 public:
  explicit ParquetSplitProvider(Request request) : request_(std::move(request)) {}

  absl::Status GetNext(tensorflow::Tensor* split, bool* end_of_splits) override;
  absl::Status Reset() override;
  absl::Status Save(std::function<std::string(std::string)> full_name,
                    tensorflow::data::IteratorStateWriter* writer) override;
  absl::Status Restore(std::function<std::string(std::string)> full_name,
                       tensorflow::data::IteratorStateReader* reader) override;
  void Cancel() override { canceller_.Cancel(); }

 private:
  absl::Status Start(const std::string* state = nullptr);

  const Request request_;
  Canceller canceller_;
  std::mutex mutex_;
  std::optional<Started> started_;
  int64_t given_ = 0;
};

}  // namespace parquetry

#endif  // PARQUETRY_KERNELS_SPLIT_PROVIDER_H_
