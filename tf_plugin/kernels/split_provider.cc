#include "split_provider.h"

#include <algorithm>
#include <memory>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "dataset_registry.h"
#include "sidecar_pool.h"
#include "to_status.h"

namespace parquetry {
namespace {

constexpr int64_t kSplits = 64;  // for a finite dataset: enough to even out a few slow workers
constexpr int64_t kElementsOfEndlessSplit = 1024;

}  // namespace

tensorflow::Tensor Split::ToTensor() const {
  return tensorflow::Tensor(tensorflow::tstring(absl::StrCat(elements, "|", state)));
}

absl::Status Split::Parse(const tensorflow::Tensor& tensor, Split* out) {
  const std::string text(tensor.dtype() == tensorflow::DT_STRING && tensor.NumElements() == 1
                             ? std::string(tensor.flat<tensorflow::tstring>()(0))
                             : "");
  const size_t bar = text.find('|');
  if (bar == std::string::npos || !absl::SimpleAtoi(text.substr(0, bar), &out->elements)) {
    return absl::InvalidArgumentError("split: expected '<elements>|<state>'. This is not a split from this dataset.");
  }
  out->state = text.substr(bar + 1);
  return absl::OkStatus();
}

absl::Status ParquetSplitProvider::GetNext(tensorflow::Tensor* split, bool* end_of_splits) {
  std::lock_guard<std::mutex> lock(mutex_);
  if (!started_) {
    const absl::Status status = Start();
    if (!status.ok()) return status;
  }
  if (started_->remaining == protocol::kUnknown) {
    // It is unknown where elements begin, so one worker reads all of them.
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

absl::Status ParquetSplitProvider::Reset() {
  std::lock_guard<std::mutex> lock(mutex_);
  started_.reset();
  given_ = 0;
  return absl::OkStatus();
}

absl::Status ParquetSplitProvider::Save(std::function<std::string(std::string)> full_name,
                                        tensorflow::data::IteratorStateWriter* writer) {
  std::lock_guard<std::mutex> lock(mutex_);
  absl::Status status = started_ ? absl::OkStatus() : Start();
  if (!status.ok()) return status;
  const tensorflow::tstring state = started_->State(started_->consumed);
  status = writer->WriteScalar(full_name("split_state"), state);
  if (status.ok()) status = writer->WriteScalar(full_name("splits_given"), given_);
  return status;
}

absl::Status ParquetSplitProvider::Restore(std::function<std::string(std::string)> full_name,
                                           tensorflow::data::IteratorStateReader* reader) {
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

absl::Status ParquetSplitProvider::Start(const std::string* state) {
  DatasetRegistry& registry = DatasetRegistry::Get();
  int64_t iteration = state == nullptr ? -1 : 0;
  Started started;
  const auto attempt = [&] {
    std::shared_ptr<Sidecar> sidecar;
    if (Error error = AcquireSidecar(request_, &canceller_, &sidecar)) return error;
    if (iteration < 0) iteration = registry.TakeIteration(request_.dataset_key);  // once it can begin
    Error error = sidecar->Start(iteration, state, false, &canceller_, &started);
    ReturnSidecar(std::move(sidecar));
    return error;
  };
  if (const Error error = TryWithRestarts(request_, attempt, LogWarning)) return ToStatus(error);
  registry.SetStarted(request_.dataset_key, started, state != nullptr, nullptr);
  started_ = started;
  return absl::OkStatus();
}

}  // namespace parquetry
