// One iteration over a `ParquetDataset`: elements of its sidecar, or of the splits that tf.data service deals. It is
// saved and restored exactly.

#ifndef PARQUETRY_KERNELS_PARQUET_ITERATOR_H_
#define PARQUETRY_KERNELS_PARQUET_ITERATOR_H_

#include <deque>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "counters.h"
#include "element_builder.h"
#include "parquet_dataset.h"
#include "sidecar_client.h"
#include "split_provider.h"
#include "tensorflow/core/framework/cancellation.h"
#include "tensorflow/core/framework/dataset.h"

namespace parquetry {

class ParquetIterator : public tensorflow::data::DatasetIterator<ParquetDataset> {
 public:
  explicit ParquetIterator(const Params& params);
  ~ParquetIterator() override;

  bool SymbolicCheckpointCompatible() const override { return true; }
  absl::Status Initialize(tensorflow::data::IteratorContext* ctx) override;

 protected:
  absl::Status GetNextInternal(tensorflow::data::IteratorContext* ctx, std::vector<tensorflow::Tensor>* out_tensors,
                               bool* end_of_sequence) override;
  absl::Status SaveInternal(tensorflow::data::SerializationContext* ctx,
                            tensorflow::data::IteratorStateWriter* writer) override;
  absl::Status RestoreInternal(tensorflow::data::IteratorContext* ctx,
                               tensorflow::data::IteratorStateReader* reader) override;
  std::shared_ptr<tensorflow::data::model::Node> CreateNode(
      tensorflow::data::IteratorContext* ctx, tensorflow::data::model::Node::Args args) const override;

 private:
  absl::Status Advance(std::vector<tensorflow::Tensor>* out, bool* end_of_sequence);
  void Pass(int64_t position);
  void NoteStateEnds();
  std::string State() const;
  absl::Status Attach(std::shared_ptr<const Batch> batch);
  absl::Status Take(std::vector<tensorflow::Tensor>* out);
  absl::Status EnsureStarted();
  Error Begin();
  absl::Status BeginAgain(Error error);
  absl::Status End();
  void EndIteration();
  absl::Status NextSplit(bool* end_of_splits);
  void BeginSplit(Split split);
  absl::Status SaveSplits(tensorflow::data::IteratorStateWriter* writer);
  absl::Status RestoreSplits(tensorflow::data::IteratorStateReader* reader);

  const Request request_;
  Canceller canceller_;
  tensorflow::CancellationManager* cancellation_ = nullptr;
  tensorflow::CancellationToken cancellation_token_{};

  std::mutex mutex_;
  std::shared_ptr<tensorflow::data::SplitProvider> splits_;
  int64_t split_left_ = 0;
  int64_t iteration_ = -1;
  bool restoring_ = false;            // made to be restored, which has not happened yet
  std::optional<std::string> state_;  // to begin from
  std::shared_ptr<Sidecar> sidecar_;
  std::optional<Started> started_;
  std::shared_ptr<Counters> counters_;  // null: nothing is counted
  ElementBuilder builder_;
  int64_t row_ = 0;       // of the message that is attached
  std::deque<StateEnd> state_ends_;  // of which the first may hold here
  int64_t consumed_ = 0;  // elements, counted from the iteration's very start, with those that were left out
  int64_t given_ = 0;     // elements, counted from the START
  int64_t start_ = 0;     // its number in the registry
  double rows_given_ = 0;   // of the latest element
  double bytes_given_ = 0;  // of its tensors
  int64_t died_at_ = -1;    // consumed when a sidecar died last
  int64_t restarted_ = 0;   // sidecars, in a row, at that element
  bool again_ = false;      // what begins is the rest of an iteration whose sidecar died
  bool ended_ = false;
  bool element_failed_ = false;  // the error that is being returned is that of one element
};

}  // namespace parquetry

#endif  // PARQUETRY_KERNELS_PARQUET_ITERATOR_H_
