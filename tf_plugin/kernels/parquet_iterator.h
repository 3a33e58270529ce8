// One iteration over a `ParquetDataset`. The elements come from its sidecar, or from the splits
// that tf.data service hands out. You can save and restore an iterator exactly.

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
  std::string key_;  // counts iterators in the registry
  Canceller canceller_;
  tensorflow::CancellationManager* cancellation_ = nullptr;
  tensorflow::CancellationToken cancellation_token_{};

  std::mutex mutex_;
  std::shared_ptr<tensorflow::data::SplitProvider> splits_;
  int64_t split_left_ = 0;
  int64_t iteration_ = -1;
  bool restoring_ = false;            // made in order to be restored, but not restored yet
  std::optional<std::string> state_;  // where to begin
  std::shared_ptr<Sidecar> sidecar_;
  std::optional<Started> started_;
  std::shared_ptr<Counters> counters_;  // null: nothing is counted
  ElementBuilder builder_;
  int64_t row_ = 0;       // next row of the attached message
  std::deque<StateEnd> state_ends_;  // only the first may apply to the current position
  int64_t consumed_ = 0;  // elements since the very start of the iteration, including skipped ones
  int64_t given_ = 0;     // elements since START
  int64_t start_ = 0;     // number of this START in the registry
  double rows_given_ = 0;   // of the latest element
  double bytes_given_ = 0;  // of its tensors
  int64_t died_at_ = -1;    // value of consumed_ when a sidecar last died
  int64_t restarted_ = 0;   // sidecars in a row, at that element
  bool again_ = false;      // the next start continues an iteration whose sidecar died
  bool ended_ = false;
  bool element_failed_ = false;  // the error being returned is about one element
};

}  // namespace parquetry

#endif  // PARQUETRY_KERNELS_PARQUET_ITERATOR_H_
