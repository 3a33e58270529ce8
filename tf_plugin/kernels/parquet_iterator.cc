#include "parquet_iterator.h"

#include <algorithm>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "dataset_registry.h"
#include "home.h"
#include "sidecar_pool.h"
#include "tensorflow/core/framework/device.h"
#include "tensorflow/core/framework/function.h"
#include "to_status.h"

namespace parquetry {

using tensorflow::Tensor;
using tensorflow::tstring;
using tensorflow::data::IteratorContext;
using tensorflow::data::IteratorStateReader;
using tensorflow::data::IteratorStateWriter;
using tensorflow::data::SerializationContext;

ParquetIterator::ParquetIterator(const Params& params)
    : DatasetIterator<ParquetDataset>(params),
      request_(dataset()->request().OnThisMachine()),
      key_(request_.dataset_key),
      builder_(&dataset()->form().components, &dataset()->form().field_names, dataset()->form().batched) {}

ParquetIterator::~ParquetIterator() {
  if (cancellation_ != nullptr) cancellation_->DeregisterCallback(cancellation_token_);
  builder_.Detach();
  if (sidecar_ != nullptr) ReturnSidecar(std::move(sidecar_));
}

absl::Status ParquetIterator::Initialize(IteratorContext* ctx) {
  if (tensorflow::CancellationManager* const manager = ctx->cancellation_manager()) {
    const tensorflow::CancellationToken token = manager->get_cancellation_token();
    if (!manager->RegisterCallback(token, [this] { canceller_.Cancel(); })) {
      return absl::CancelledError("iterator was cancelled before it began");
    }
    cancellation_ = manager;
    cancellation_token_ = token;
  }
  const auto providers = ctx->split_providers();
  if (providers.size() > 1) {
    return absl::FailedPreconditionError(
        absl::StrCat("splits of a Parquet dataset: expected one split provider, got ", providers.size(), "."));
  }
  restoring_ = ctx->is_restoring();
  // Workers of tf.data service that deal rows by position have to agree on the epoch. The resources
  // of an iterator are its own, those of its device are shared.
  tensorflow::ResourceMgr* const resources = ctx->flr() == nullptr ? nullptr : ctx->flr()->device()->resource_manager();
  if (!IsHome(resources) && absl::StrContains(prefix(), "::Shard")) key_ = dataset()->OwnKey();
  if (!providers.empty()) splits_ = providers[0];
  return absl::OkStatus();
}

absl::Status ParquetIterator::GetNextInternal(IteratorContext*, std::vector<Tensor>* out_tensors,
                                              bool* end_of_sequence) {
  std::lock_guard<std::mutex> lock(mutex_);
  if (ended_) {
    *end_of_sequence = true;
    return absl::OkStatus();
  }
  const double begin = Counters::Now();
  const absl::Status status = Advance(out_tensors, end_of_sequence);
  if (counters_ != nullptr && status.ok() && !*end_of_sequence) counters_->Given(rows_given_, bytes_given_, begin);
  if (!status.ok()) out_tensors->clear();
  if (!status.ok() && !absl::IsCancelled(status) && !std::exchange(element_failed_, false)) {
    // The iteration is over. It must not fail again, because tf.data's ignore_errors would then ask
    // forever.
    ended_ = true;
    EndIteration();
  }
  return status;
}

absl::Status ParquetIterator::SaveInternal(SerializationContext*, IteratorStateWriter* writer) {
  std::lock_guard<std::mutex> lock(mutex_);
  if (splits_ != nullptr) return SaveSplits(writer);
  // A symbolic checkpoint saves every new iterator, even one that is about to be restored. Saving
  // must not start such an iterator.
  if (restoring_) return writer->WriteScalar(full_name("state"), tstring());
  TF_RETURN_IF_ERROR(EnsureStarted());
  return writer->WriteScalar(full_name("state"), tstring(State()));
}

absl::Status ParquetIterator::RestoreInternal(IteratorContext*, IteratorStateReader* reader) {
  std::lock_guard<std::mutex> lock(mutex_);
  if (splits_ != nullptr) return RestoreSplits(reader);
  tstring state;
  TF_RETURN_IF_ERROR(reader->ReadScalar(full_name("state"), &state));
  restoring_ = false;
  if (!state.empty()) state_ = state;
  // Start now, so that a state from something else is rejected here and not at the first element.
  return EnsureStarted();
}

std::shared_ptr<tensorflow::data::model::Node> ParquetIterator::CreateNode(
    IteratorContext*, tensorflow::data::model::Node::Args args) const {
  return tensorflow::data::model::MakeSourceNode(std::move(args));
}

absl::Status ParquetIterator::Advance(std::vector<Tensor>* out, bool* end_of_sequence) {
  *end_of_sequence = false;
  while (true) {
    if (splits_ != nullptr && split_left_ == 0) {
      TF_RETURN_IF_ERROR(NextSplit(end_of_sequence));
      if (*end_of_sequence) return End();
    }
    if (builder_.attached()) return Take(out);
    TF_RETURN_IF_ERROR(EnsureStarted());
    std::shared_ptr<const Batch> batch;
    bool end = false;
    Error error = sidecar_->Next(&canceller_, &batch, &end);
    NoteStateEnds();
    if (error) {
      if (error.died) {
        TF_RETURN_IF_ERROR(BeginAgain(std::move(error)));
        continue;
      }
      if (error.kind == Error::Kind::kElement) Pass(error.position);
      return ToStatus(error);
    }
    if (end && split_left_ == kWholeIteration) {
      split_left_ = 0;
      continue;
    }
    if (end && splits_ != nullptr && split_left_ > 0) {
      return absl::InternalError(absl::StrCat("sidecar: the split ended ", split_left_, " elements early."));
    }
    if (end) {
      *end_of_sequence = true;
      return End();
    }
    TF_RETURN_IF_ERROR(Attach(std::move(batch)));
  }
}

// Records that the sidecar skipped rows. States mention these rows from then on.
void ParquetIterator::NoteStateEnds() {
  for (StateEnd& end : sidecar_->TakeStateEnds()) {
    if (splits_ == nullptr) DatasetRegistry::Get().EndStates(key_, start_, end);
    state_ends_.push_back(std::move(end));
  }
  while (state_ends_.size() > 1 && state_ends_[1].elements <= consumed_) state_ends_.pop_front();
}

std::string ParquetIterator::State() const {
  const auto after = std::find_if(state_ends_.begin(), state_ends_.end(),
                                  [this](const StateEnd& end) { return end.elements > consumed_; });
  return started_->State(consumed_, after == state_ends_.begin() ? nullptr : &*std::prev(after));
}

// One element failed. As in any dataset, the next call returns the element after it.
void ParquetIterator::Pass(int64_t position) {
  element_failed_ = true;
  if (counters_ != nullptr) counters_->Failed();
  if (splits_ != nullptr && split_left_ != kWholeIteration) --split_left_;
  if (position <= consumed_) return;
  consumed_ = position;
  if (splits_ == nullptr) DatasetRegistry::Get().Jump(key_, start_, given_, position);
}

absl::Status ParquetIterator::Attach(std::shared_ptr<const Batch> batch) {
  const int64_t first = batch->first_element();
  // Element numbers may jump ahead only where rows may have been skipped, that is, if the length is
  // unknown.
  if (first < consumed_ || (first > consumed_ && started_->remaining >= 0)) {
    return absl::InternalError(absl::StrCat("sidecar: expected element ", consumed_, ", got element ", first, "."));
  }
  if (first > consumed_ && splits_ == nullptr) {
    DatasetRegistry::Get().Jump(key_, start_, given_, first);
  }
  consumed_ = first;
  row_ = 0;
  if (batch->num_elements() == 0) return absl::OkStatus();
  TF_RETURN_IF_ERROR(builder_.Attach(std::move(batch)));
  return absl::OkStatus();
}

absl::Status ParquetIterator::Take(std::vector<Tensor>* out) {
  TF_RETURN_IF_ERROR(builder_.Build(row_, out));
  const double share = 1.0 / static_cast<double>(builder_.num_elements());
  rows_given_ = share * static_cast<double>(builder_.batch().num_rows());
  bytes_given_ = share * static_cast<double>(builder_.batch().num_bytes());
  ++row_;
  ++consumed_;
  ++given_;
  if (splits_ != nullptr && split_left_ != kWholeIteration) --split_left_;
  // A loop that counts its steps never asks for the end.
  if (splits_ == nullptr && consumed_ - started_->consumed == started_->remaining) {
    DatasetRegistry::Get().SetEnded(key_, start_);
  }
  if (row_ == builder_.num_elements()) builder_.Detach();
  return absl::OkStatus();
}

absl::Status ParquetIterator::EnsureStarted() {
  if (started_) return absl::OkStatus();
  Error error = Begin();
  const absl::Status status = error.died ? BeginAgain(std::move(error)) : ToStatus(error);
  if (!status.ok()) TryCardinalityAgain(dataset()->facts());
  return status;
}

Error ParquetIterator::Begin() {
  // The iteration begins now, so count from here.
  std::shared_ptr<Counters> counters = counters_ == nullptr ? Counters::Make() : nullptr;
  if (sidecar_ == nullptr) {
    if (Error error = AcquireSidecar(request_, &canceller_, &sidecar_)) return error;
    std::lock_guard<std::mutex> lock(dataset()->facts().mutex);
    dataset()->facts().cardinality = sidecar_->cardinality();
  }
  DatasetRegistry& registry = DatasetRegistry::Get();
  restoring_ = false;
  if (counters_ == nullptr) {
    counters_ = std::move(counters);
    std::lock_guard<std::mutex> lock(dataset()->facts().mutex);
    dataset()->facts().counters = counters_;
  }
  // Only take a number here, because Keras makes iterators that it never reads. They do not count
  // as epochs.
  if (iteration_ < 0 && !state_) {
    state_ = registry.TakeNextState(key_);
    if (!state_) iteration_ = registry.TakeIteration(key_);
    if (iteration_ == 0 && !dataset()->state().empty()) state_ = dataset()->state();
  }
  Started started;
  const std::string* const state = state_ ? &*state_ : nullptr;
  const bool merge = dataset()->form().batched && splits_ == nullptr;  // splits end at any batch
  const int counters_fd = counters_ == nullptr ? -1 : counters_->fd();
  if (Error error =
          sidecar_->Start(std::max<int64_t>(iteration_, 0), state, merge, &canceller_, &started, counters_fd)) {
    return error;
  }
  if (std::exchange(again_, false)) {  // the same iteration continues: keep what is known about it
    started_ = std::move(started);
    return {};
  }
  if (splits_ == nullptr) {
    bool lost_rest = false;
    start_ = registry.SetStarted(key_, started, state != nullptr, &lost_rest);
    // As in common/pipeline/resumes.py, which says it where Python iterates the dataset itself.
    if (lost_rest) {
      LOG(WARNING) << "The iterator that took a loaded state is not at its end, and another one begins, which is of "
                      "another epoch. Unless you go on with the first one, the rest of the resumed epoch is not read: "
                      "load the state again before this loop, load_state_dict(state). If your loop leaves every epoch "
                      "early, nothing is wrong.";
    }
  }
  consumed_ = started.consumed;
  given_ = 0;
  state_ends_.clear();
  started_ = std::move(started);
  return {};
}

// Replaces a sidecar that died, either at the next element or before the first one.
absl::Status ParquetIterator::BeginAgain(Error error) {
  const int64_t restarts = started_ ? sidecar_->restarts() : request_.Restarts();
  const std::optional<Started> before = started_;
  if (started_) state_ = State();
  started_.reset();
  if (std::exchange(died_at_, consumed_) != consumed_) restarted_ = 0;
  int64_t uncounted = 0;
  while (error.kind == Error::Kind::kBroken && restarted_ < restarts) {
    sidecar_.reset();
    ++restarted_;
    ++uncounted;
    LOG(WARNING) << error.message.substr(0, error.message.find('\n')) << " Starting another at element " << consumed_
                 << ", " << restarted_ << " of " << restarts << " in a row.";
    again_ = before.has_value();
    error = Begin();
    for (; counters_ != nullptr && uncounted > 0; --uncounted) counters_->Restarted();
  }
  if (!error) return absl::OkStatus();
  if (error.kind == Error::Kind::kCancelled) return ToStatus(error);  // the next call starts here
  if (error.kind == Error::Kind::kBroken && restarted_ > 0) {
    absl::StrAppend(&error.message, "\nIt was started again ", restarted_, " times at element ", consumed_, ".");
  }
  again_ = false;
  started_ = before;
  return ToStatus(error);
}

absl::Status ParquetIterator::End() {
  ended_ = true;
  if (splits_ == nullptr) DatasetRegistry::Get().SetEnded(key_, start_);
  EndIteration();
  return absl::OkStatus();
}

void ParquetIterator::EndIteration() {
  builder_.Detach();
  if (sidecar_ != nullptr) ReturnSidecar(std::move(sidecar_));
  sidecar_ = nullptr;
}

absl::Status ParquetIterator::NextSplit(bool* end_of_splits) {
  Tensor tensor;
  TF_RETURN_IF_ERROR(splits_->GetNext(&tensor, end_of_splits));
  if (*end_of_splits) return absl::OkStatus();
  Split split;
  TF_RETURN_IF_ERROR(Split::Parse(tensor, &split));
  BeginSplit(std::move(split));
  return absl::OkStatus();
}

void ParquetIterator::BeginSplit(Split split) {
  // The previous split may have ended inside a chunk. The START of this split ends it in the
  // sidecar too.
  builder_.Detach();
  started_.reset();
  state_ = std::move(split.state);
  split_left_ = split.elements;
}

absl::Status ParquetIterator::SaveSplits(IteratorStateWriter* writer) {
  TF_RETURN_IF_ERROR(splits_->Save([this](const std::string& key) { return full_name(key); }, writer));
  if (split_left_ > 0) TF_RETURN_IF_ERROR(EnsureStarted());
  const std::string state = split_left_ > 0 ? State() : "";
  TF_RETURN_IF_ERROR(writer->WriteScalar(full_name("state"), tstring(state)));
  return writer->WriteScalar(full_name("split_left"), split_left_);
}

absl::Status ParquetIterator::RestoreSplits(IteratorStateReader* reader) {
  TF_RETURN_IF_ERROR(splits_->Restore([this](const std::string& key) { return full_name(key); }, reader));
  tstring state;
  int64_t left = 0;
  TF_RETURN_IF_ERROR(reader->ReadScalar(full_name("state"), &state));
  TF_RETURN_IF_ERROR(reader->ReadScalar(full_name("split_left"), &left));
  if (left > 0) BeginSplit({left, state});
  return absl::OkStatus();
}

}  // namespace parquetry
