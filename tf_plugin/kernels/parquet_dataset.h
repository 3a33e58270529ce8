// The dataset of the source op. It defines what elements consist of, how many there are, and how to
// write the dataset to a graph.

#ifndef PARQUETRY_KERNELS_PARQUET_DATASET_H_
#define PARQUETRY_KERNELS_PARQUET_DATASET_H_

#include <atomic>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "dataset_registry.h"
#include "element_builder.h"
#include "sidecar_client.h"
#include "tensorflow/core/framework/dataset.h"

namespace parquetry {

// The attributes of the op. They say how to make each flat component of an element from the
// pipeline's fields.
struct ElementForm {
  std::vector<std::string> component_texts;  // as the graph holds them
  std::vector<Component> components;
  std::vector<std::string> field_names;
  bool batched = false;
  tensorflow::DataTypeVector dtypes;
  std::vector<tensorflow::PartialTensorShape> shapes;
};

class ParquetDataset : public tensorflow::data::DatasetBase {
 public:
  // If `passing` is true, everything known about the dataset is forgotten when its last object is
  // dropped. `state` is where the first iterator begins; if it is empty, the iterator begins at the
  // start.
  ParquetDataset(tensorflow::OpKernelContext* ctx, ElementForm form, Request request, bool passing, std::string state);

  const ElementForm& form() const { return form_; }
  const std::string& state() const { return state_; }
  DatasetFacts& facts() const { return *facts_; }
  const Request& request() const { return request_; }

  // Returns a key that only this object has. A tf.data service makes one object for each task, so
  // the workers of an iteration agree on a count under this key, whatever they served before.
  const std::string& OwnKey() const;

  std::unique_ptr<tensorflow::data::IteratorBase> MakeIteratorInternal(const std::string& prefix) const override;
  absl::Status MakeSplitProviders(
      std::vector<std::unique_ptr<tensorflow::data::SplitProvider>>* split_providers) const override;
  int64_t CardinalityInternal(tensorflow::data::CardinalityOptions options) const override;
  absl::Status InputDatasets(std::vector<const tensorflow::data::DatasetBase*>* inputs) const override;
  absl::Status CheckExternalState() const override { return absl::OkStatus(); }
  std::string DebugString() const override { return "ParquetryParquetDatasetOp::Dataset"; }
  const tensorflow::DataTypeVector& output_dtypes() const override { return form_.dtypes; }
  const std::vector<tensorflow::PartialTensorShape>& output_shapes() const override { return form_.shapes; }

 protected:
  absl::Status AsGraphDefInternal(tensorflow::data::SerializationContext* ctx, DatasetGraphDefBuilder* b,
                                  tensorflow::Node** output) const override;

 private:
  const ElementForm form_;
  const Request request_;
  const std::string state_;
  const std::shared_ptr<DatasetFacts> facts_;
  mutable std::once_flag own_key_made_;
  mutable std::string own_key_;
  mutable std::shared_ptr<DatasetFacts> own_facts_;  // the registry forgets the key with them
  mutable std::atomic<bool> written_{false};  // to a graph, for which tf.data asks for the cardinality next
};

}  // namespace parquetry

#endif  // PARQUETRY_KERNELS_PARQUET_DATASET_H_
