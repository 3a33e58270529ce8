// Splits for tf.data service's dynamic sharding: positions in one iteration, dealt to whichever worker asks.

#ifndef PARQUETRY_KERNELS_SPLIT_PROVIDER_H_
#define PARQUETRY_KERNELS_SPLIT_PROVIDER_H_

#include <algorithm>
#include <functional>
#include <limits>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "dataset_registry.h"
#include "sidecar_client.h"
#include "sidecar_pool.h"
#include "tensorflow/core/framework/dataset.h"
#include "tensorflow/core/framework/tensor.h"
#include "to_status.h"

namespace parquetry {

inline constexpr int64_t kSplits = 64;  // of a finite dataset: enough to even out a few slow workers
inline constexpr int64_t kElementsOfEndlessSplit = 1024;
inline constexpr int64_t kWholeIteration = std::numeric_limits<int64_t>::max();  // elements of a split up to the end

// A piece of one iteration: a state to begin from, and how many elements to read from there.
struct Split {
  tensorflow::Tensor ToTensor() const {
    return tensorflow::Tensor(tensorflow::tstring(absl::StrCat(elements, "|", state)));
  }

  static absl::Status Parse(const tensorflow::Tensor& tensor, Split* out) {
    const std::string text(tensor.dtype() == tensorflow::DT_STRING && tensor.NumElements() == 1
                               ? std::string(tensor.flat<tensorflow::tstring>()(0))
                               : "");
    const size_t bar = text.find('|');
    if (bar == std::string::npos || !absl::SimpleAtoi(text.substr(0, bar), &out->elements)) {
      return absl::InvalidArgumentError("split: expected '<elements>|<state>'. It is not a split of this dataset.");
    }
    out->state = text.substr(bar + 1);
    return absl::OkStatus();
  }

  int64_t elements = 0;
  std::string state;
};

// Cuts one iteration after the other into splits. A split is a position, so every worker that is given one reads the
// same elements for it, in whatever order the splits are dealt.
class ParquetSplitProvider : public tensorflow::data::SplitProvider {
 public:
  explicit ParquetSplitProvider(Request request) : request_(std::move(request)) {}

  absl::Status GetNext(tensorflow::Tensor* split, bool* end_of_splits) override {
    std::lock_guard<std::mutex> lock(mutex_);
    if (!started_) {
      const absl::Status status = Start();
      if (!status.ok()) return status;
    }
    if (started_->remaining == protocol::kUnknown) {
      // Nobody knows where elements begin, so one worker reads all of them.
      *end_of_splits = given_ > 0;
      if (!*end_of_splits) *split = Split{kWholeIteration, started_->State(started_->consumed)}.ToTensor();
      given_ = 1;
      return absl::OkStatus();
    }
    const bool endless = started_->remaining < 0;
    const int64_t wanted = endless ? kElementsOfEndlessSplit : (started_->remaining + kSplits - 1) / kSplits;
    const int64_t elements = endless ? wanted : std::min(wanted, started_->remaining - given_);
    *end_of_splits = elements <= 0;
    if (*end_of_splits) return absl::OkStatus();
    *split = Split{elements, started_->State(started_->consumed + given_)}.ToTensor();
    given_ += elements;
    return absl::OkStatus();
  }

  absl::Status Reset() override {
    std::lock_guard<std::mutex> lock(mutex_);
    started_.reset();
    given_ = 0;
    return absl::OkStatus();
  }

  absl::Status Save(std::function<std::string(std::string)> full_name,
                    tensorflow::data::IteratorStateWriter* writer) override {
    std::lock_guard<std::mutex> lock(mutex_);
    absl::Status status = started_ ? absl::OkStatus() : Start();
    if (!status.ok()) return status;
    const tensorflow::tstring state = started_->State(started_->consumed);
    status = writer->WriteScalar(full_name("split_state"), state);
    if (status.ok()) status = writer->WriteScalar(full_name("splits_given"), given_);
    return status;
  }

  absl::Status Restore(std::function<std::string(std::string)> full_name,
                       tensorflow::data::IteratorStateReader* reader) override {
    std::lock_guard<std::mutex> lock(mutex_);
    tensorflow::tstring state;
    absl::Status status = reader->ReadScalar(full_name("split_state"), &state);
    if (status.ok()) status = reader->ReadScalar(full_name("splits_given"), &given_);
    if (status.ok()) {
      const std::string text(state);
      status = Start(&text);
    }
    return status;
  }

  void Cancel() override { canceller_.Cancel(); }

 private:
  absl::Status Start(const std::string* state = nullptr) {
    std::shared_ptr<Sidecar> sidecar;
    if (Error error = AcquireSidecar(request_, &canceller_, &sidecar)) return ToStatus(error);
    DatasetRegistry& registry = DatasetRegistry::Get();
    const int64_t iteration = state == nullptr ? registry.TakeIteration(request_.dataset_key) : 0;
    Started started;
    const Error error = sidecar->Start(iteration, state, false, &canceller_, &started);
    ReturnSidecar(std::move(sidecar));
    if (error) return ToStatus(error);
    registry.SetStarted(request_.dataset_key, started, state != nullptr);
    started_ = started;
    return absl::OkStatus();
  }

  const Request request_;
  Canceller canceller_;
  std::mutex mutex_;
  std::optional<Started> started_;
  int64_t given_ = 0;
};

}  // namespace parquetry

#endif  // PARQUETRY_KERNELS_SPLIT_PROVIDER_H_
