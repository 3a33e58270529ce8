// The tf.data source op: a dataset whose elements come from a sidecar.
//
// In: the pipeline as the request of docs/protocol.md, and how each flat component is made of the pipeline's fields
// (element_builder.h). Out: a tf.data dataset with exact cardinality, exact checkpoints, and splits for tf.data
// service. Each iterator has a sidecar to itself; nothing of Python runs in this process.

#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "dataset_registry.h"
#include "element_builder.h"
#include "sidecar_client.h"
#include "sidecar_pool.h"
#include "split_provider.h"
#include "tensorflow/core/framework/cancellation.h"
#include "tensorflow/core/framework/dataset.h"
#include "tensorflow/core/framework/op.h"
#include "tensorflow/core/framework/op_kernel.h"
#include "tensorflow/core/framework/shape_inference.h"
#include "to_status.h"

namespace parquetry {
namespace {

using tensorflow::DataTypeVector;
using tensorflow::Node;
using tensorflow::OpKernel;
using tensorflow::OpKernelConstruction;
using tensorflow::OpKernelContext;
using tensorflow::PartialTensorShape;
using tensorflow::Tensor;
using tensorflow::tstring;
using tensorflow::data::DatasetBase;
using tensorflow::data::DatasetContext;
using tensorflow::data::IteratorBase;
using tensorflow::data::IteratorContext;
using tensorflow::data::IteratorStateReader;
using tensorflow::data::IteratorStateWriter;
using tensorflow::data::SerializationContext;
using tensorflow::data::SplitProvider;

constexpr char kShardAdvice[] =
    "A ParquetDataset cannot be sharded by files (AutoShardPolicy.FILE). Use dataset.shard(num_shards, index), which "
    "reads only its part, or AutoShardPolicy.DATA or OFF in options.experimental_distribute.auto_shard_policy; with "
    "tf.data service ShardingPolicy.DYNAMIC, DATA or OFF.";

// The Python to run: PARQUETRY_PYTHON, else the one that built the dataset, else (on another machine) python3.
std::vector<std::string> ResolveCommand(std::vector<std::string> command) {
  const char* const chosen = std::getenv("PARQUETRY_PYTHON");
  if (chosen != nullptr && *chosen != '\0') {
    command[0] = chosen;
  } else if (command[0].find('/') != std::string::npos && access(command[0].c_str(), X_OK) != 0) {
    command[0] = "python3";
  }
  return command;
}

// The elements of a whole iteration. Only what is known is kept in `facts` (may be null), never that it failed.
Error FindCardinality(const Request& request, DatasetFacts* facts, int64_t* cardinality) {
  std::unique_lock<std::mutex> lock;
  if (facts != nullptr) {
    lock = std::unique_lock<std::mutex>(facts->mutex);
    if (facts->cardinality) {
      *cardinality = *facts->cardinality;
      return {};
    }
  }
  std::shared_ptr<Sidecar> sidecar;
  if (Error error = AcquireSidecar(request, nullptr, &sidecar)) return error;
  *cardinality = sidecar->cardinality();
  if (facts != nullptr) facts->cardinality = *cardinality;
  ReturnSidecar(std::move(sidecar));
  return {};
}

class ParquetDatasetOp : public tensorflow::data::DatasetOpKernel {
 public:
  explicit ParquetDatasetOp(OpKernelConstruction* ctx) : DatasetOpKernel(ctx) {
    std::vector<std::string> components;
    OP_REQUIRES_OK(ctx, ctx->GetAttr("components", &components));
    OP_REQUIRES_OK(ctx, ctx->GetAttr("field_names", &field_names_));
    OP_REQUIRES_OK(ctx, ctx->GetAttr("batched", &batched_));
    OP_REQUIRES_OK(ctx, ctx->GetAttr("output_types", &dtypes_));
    OP_REQUIRES_OK(ctx, ctx->GetAttr("output_shapes", &shapes_));
    OP_REQUIRES(ctx, components.size() == dtypes_.size() && components.size() == shapes_.size(),
                absl::InvalidArgumentError("components, output_types and output_shapes must be of one length."));
    for (size_t i = 0; i < components.size(); ++i) {
      Component component;
      OP_REQUIRES_OK(ctx, Component::Parse(components[i], dtypes_[i], shapes_[i], &component));
      OP_REQUIRES(ctx, component.field < static_cast<int>(field_names_.size()),
                  absl::InvalidArgumentError(absl::StrCat("component '", components[i], "': no such field.")));
      components_.push_back(component);
    }
    component_texts_ = std::move(components);
  }

 protected:
  void MakeDataset(OpKernelContext* ctx, DatasetBase** output) override;

 private:
  class Dataset;

  std::vector<std::string> component_texts_;
  std::vector<Component> components_;
  std::vector<std::string> field_names_;
  bool batched_ = false;
  DataTypeVector dtypes_;
  std::vector<PartialTensorShape> shapes_;
};

class ParquetDatasetOp::Dataset : public DatasetBase {
 public:
  Dataset(OpKernelContext* ctx, const ParquetDatasetOp& op, Request request, bool passing, std::string state)
      : DatasetBase(DatasetContext(ctx)),
        request_(std::move(request)),
        state_(std::move(state)),
        component_texts_(op.component_texts_),
        components_(op.components_),
        field_names_(op.field_names_),
        batched_(op.batched_),
        dtypes_(op.dtypes_),
        shapes_(op.shapes_),
        facts_(DatasetRegistry::Get().Facts(request_.dataset_key, passing)) {}

  std::unique_ptr<IteratorBase> MakeIteratorInternal(const std::string& prefix) const override;

  const DataTypeVector& output_dtypes() const override { return dtypes_; }
  const std::vector<PartialTensorShape>& output_shapes() const override { return shapes_; }
  std::string DebugString() const override { return "ParquetryParquetDatasetOp::Dataset"; }
  absl::Status CheckExternalState() const override { return absl::OkStatus(); }

  absl::Status InputDatasets(std::vector<const DatasetBase*>* inputs) const override {
    inputs->clear();
    return absl::OkStatus();
  }

  int64_t CardinalityInternal(tensorflow::data::CardinalityOptions) const override {
    int64_t cardinality = tensorflow::data::kUnknownCardinality;
    if (const Error error = FindCardinality(Resolved(), facts_.get(), &cardinality)) {
      // There is no way to return an error from here; an iterator will meet the same one. The next caller asks again.
      LOG(WARNING) << "cardinality of a Parquet dataset: " << error.message;
    }
    return cardinality;
  }

  absl::Status MakeSplitProviders(std::vector<std::unique_ptr<SplitProvider>>* split_providers) const override {
    split_providers->push_back(std::make_unique<ParquetSplitProvider>(Resolved()));
    return absl::OkStatus();
  }

 protected:
  absl::Status AsGraphDefInternal(SerializationContext*, DatasetGraphDefBuilder* b, Node** output) const override {
    Node *request, *key, *command, *state;
    const std::vector<tstring> program(request_.command.begin(), request_.command.end());
    TF_RETURN_IF_ERROR(b->AddScalar(tstring(request_.json), &request));
    TF_RETURN_IF_ERROR(b->AddScalar(tstring(request_.dataset_key), &key));
    TF_RETURN_IF_ERROR(b->AddVector(program, &command));
    TF_RETURN_IF_ERROR(b->AddScalar(tstring(state_), &state));
    tensorflow::AttrValue components, field_names, batched;
    b->BuildAttrValue(component_texts_, &components);
    b->BuildAttrValue(field_names_, &field_names);
    b->BuildAttrValue(batched_, &batched);
    // tf.data prints a source that it cannot shard, with its attributes, and says little else.
    tensorflow::AttrValue advice;
    b->BuildAttrValue(std::string(kShardAdvice), &advice);
    return b->AddDataset(this, {request, key, command, state},
                         {{"auto_shard_advice", advice},
                          {"components", components},
                          {"field_names", field_names},
                          {"batched", batched}},
                         output);
  }

 private:
  class Iterator;

  // The command is settled where it runs, which may be another machine than where the dataset was made.
  Request Resolved() const { return {ResolveCommand(request_.command), request_.json, request_.dataset_key}; }

  const Request request_;
  const std::string state_;  // where the first iterator begins; empty: at the start
  const std::vector<std::string> component_texts_;
  const std::vector<Component> components_;
  const std::vector<std::string> field_names_;
  const bool batched_;
  const DataTypeVector dtypes_;
  const std::vector<PartialTensorShape> shapes_;
  const std::shared_ptr<DatasetFacts> facts_;
};

class ParquetDatasetOp::Dataset::Iterator : public tensorflow::data::DatasetIterator<Dataset> {
 public:
  explicit Iterator(const Params& params)
      : DatasetIterator<Dataset>(params),
        request_(dataset()->Resolved()),
        builder_(&dataset()->components_, &dataset()->field_names_, dataset()->batched_) {}

  ~Iterator() override {
    if (cancellation_ != nullptr) cancellation_->DeregisterCallback(cancellation_token_);
    builder_.Detach();
    if (sidecar_ != nullptr) ReturnSidecar(std::move(sidecar_));
  }

  bool SymbolicCheckpointCompatible() const override { return true; }

  absl::Status Initialize(IteratorContext* ctx) override {
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
    if (!providers.empty()) splits_ = providers[0];
    return absl::OkStatus();
  }

 protected:
  absl::Status GetNextInternal(IteratorContext*, std::vector<Tensor>* out_tensors, bool* end_of_sequence) override {
    std::lock_guard<std::mutex> lock(mutex_);
    if (ended_) {
      *end_of_sequence = true;
      return absl::OkStatus();
    }
    const absl::Status status = Advance(out_tensors, end_of_sequence);
    if (!status.ok()) out_tensors->clear();
    if (!status.ok() && !absl::IsCancelled(status) && !std::exchange(element_failed_, false)) {
      // The iteration is over. It must not fail again: tf.data's ignore_errors would ask for ever.
      ended_ = true;
      EndIteration();
    }
    return status;
  }

  absl::Status SaveInternal(SerializationContext*, IteratorStateWriter* writer) override {
    std::lock_guard<std::mutex> lock(mutex_);
    if (splits_ != nullptr) return SaveSplits(writer);
    // A symbolic checkpoint saves every new iterator, also one that is about to be restored: it must not begin for
    // that.
    if (restoring_) return writer->WriteScalar(full_name("state"), tstring());
    TF_RETURN_IF_ERROR(EnsureStarted());
    return writer->WriteScalar(full_name("state"), tstring(started_->State(consumed_)));
  }

  absl::Status RestoreInternal(IteratorContext*, IteratorStateReader* reader) override {
    std::lock_guard<std::mutex> lock(mutex_);
    if (splits_ != nullptr) return RestoreSplits(reader);
    tstring state;
    TF_RETURN_IF_ERROR(reader->ReadScalar(full_name("state"), &state));
    restoring_ = false;
    if (!state.empty()) state_ = state;
    // At once, so that a state of something else is refused here and not at the first element.
    return EnsureStarted();
  }

  std::shared_ptr<tensorflow::data::model::Node> CreateNode(
      IteratorContext*, tensorflow::data::model::Node::Args args) const override {
    return tensorflow::data::model::MakeSourceNode(std::move(args));
  }

 private:
  absl::Status Advance(std::vector<Tensor>* out, bool* end_of_sequence) {
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
      if (Error error = sidecar_->Next(&canceller_, &batch, &end)) {
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

  // One element failed, as in any dataset: the next call gives the one behind it.
  void Pass(int64_t position) {
    element_failed_ = true;
    if (splits_ != nullptr && split_left_ != kWholeIteration) --split_left_;
    if (position <= consumed_) return;
    consumed_ = position;
    if (splits_ == nullptr) DatasetRegistry::Get().Jump(request_.dataset_key, start_, given_, position);
  }

  absl::Status Attach(std::shared_ptr<const Batch> batch) {
    const int64_t first = batch->first_element();
    // Where rows may have been left out, which is where nobody knows the length, numbers may jump ahead.
    if (first < consumed_ || (first > consumed_ && started_->remaining >= 0)) {
      return absl::InternalError(absl::StrCat("sidecar: expected element ", consumed_, ", got element ", first, "."));
    }
    if (first > consumed_ && splits_ == nullptr) {
      DatasetRegistry::Get().Jump(request_.dataset_key, start_, given_, first);
    }
    consumed_ = first;
    row_ = 0;
    if (batch->num_elements() == 0) return absl::OkStatus();
    TF_RETURN_IF_ERROR(builder_.Attach(std::move(batch)));
    return absl::OkStatus();
  }

  absl::Status Take(std::vector<Tensor>* out) {
    TF_RETURN_IF_ERROR(builder_.Build(row_, out));
    ++row_;
    ++consumed_;
    ++given_;
    if (splits_ != nullptr && split_left_ != kWholeIteration) --split_left_;
    if (row_ == builder_.num_elements()) builder_.Detach();
    return absl::OkStatus();
  }

  absl::Status EnsureStarted() {
    if (started_) return absl::OkStatus();
    if (sidecar_ == nullptr) {
      if (Error error = AcquireSidecar(request_, &canceller_, &sidecar_)) return ToStatus(error);
      std::lock_guard<std::mutex> lock(dataset()->facts_->mutex);
      dataset()->facts_->cardinality = sidecar_->cardinality();
    }
    DatasetRegistry& registry = DatasetRegistry::Get();
    restoring_ = false;
    // Only now, because Keras makes iterators that it never reads: they are no epochs.
    if (iteration_ < 0 && !state_) {
      state_ = registry.TakeNextState(request_.dataset_key);
      if (!state_) iteration_ = registry.TakeIteration(request_.dataset_key);
      if (iteration_ == 0 && !dataset()->state_.empty()) state_ = dataset()->state_;
    }
    Started started;
    const std::string* const state = state_ ? &*state_ : nullptr;
    const bool merge = dataset()->batched_ && splits_ == nullptr;  // a split ends at any batch
    if (Error error = sidecar_->Start(std::max<int64_t>(iteration_, 0), state, merge, &canceller_, &started)) {
      return ToStatus(error);
    }
    if (splits_ == nullptr) start_ = registry.SetStarted(request_.dataset_key, started, state != nullptr);
    consumed_ = started.consumed;
    given_ = 0;
    started_ = std::move(started);
    return absl::OkStatus();
  }

  absl::Status End() {
    ended_ = true;
    EndIteration();
    return absl::OkStatus();
  }

  void EndIteration() {
    builder_.Detach();
    if (sidecar_ != nullptr) ReturnSidecar(std::move(sidecar_));
    sidecar_ = nullptr;
  }

  absl::Status NextSplit(bool* end_of_splits) {
    Tensor tensor;
    TF_RETURN_IF_ERROR(splits_->GetNext(&tensor, end_of_splits));
    if (*end_of_splits) return absl::OkStatus();
    Split split;
    TF_RETURN_IF_ERROR(Split::Parse(tensor, &split));
    BeginSplit(std::move(split));
    return absl::OkStatus();
  }

  void BeginSplit(Split split) {
    // The split before it may have ended inside a chunk; the START of this one ends it in the sidecar as well.
    builder_.Detach();
    started_.reset();
    state_ = std::move(split.state);
    split_left_ = split.elements;
  }

  absl::Status SaveSplits(IteratorStateWriter* writer) {
    TF_RETURN_IF_ERROR(splits_->Save([this](const std::string& key) { return full_name(key); }, writer));
    if (split_left_ > 0) TF_RETURN_IF_ERROR(EnsureStarted());
    const std::string state = split_left_ > 0 ? started_->State(consumed_) : "";
    TF_RETURN_IF_ERROR(writer->WriteScalar(full_name("state"), tstring(state)));
    return writer->WriteScalar(full_name("split_left"), split_left_);
  }

  absl::Status RestoreSplits(IteratorStateReader* reader) {
    TF_RETURN_IF_ERROR(splits_->Restore([this](const std::string& key) { return full_name(key); }, reader));
    tstring state;
    int64_t left = 0;
    TF_RETURN_IF_ERROR(reader->ReadScalar(full_name("state"), &state));
    TF_RETURN_IF_ERROR(reader->ReadScalar(full_name("split_left"), &left));
    if (left > 0) BeginSplit({left, state});
    return absl::OkStatus();
  }

  const Request request_;
  Canceller canceller_;
  tensorflow::CancellationManager* cancellation_ = nullptr;
  tensorflow::CancellationToken cancellation_token_{};

  std::mutex mutex_;
  std::shared_ptr<SplitProvider> splits_;
  int64_t split_left_ = 0;
  int64_t iteration_ = -1;
  bool restoring_ = false;  // made to be restored, which has not happened yet
  std::optional<std::string> state_;  // to begin from
  std::shared_ptr<Sidecar> sidecar_;
  std::optional<Started> started_;
  ElementBuilder builder_;
  int64_t row_ = 0;       // of the message that is attached
  int64_t consumed_ = 0;  // elements, counted from the iteration's very start, with those that were left out
  int64_t given_ = 0;     // elements, counted from the START
  int64_t start_ = 0;     // its number in the registry
  bool ended_ = false;
  bool element_failed_ = false;  // the error that is being returned is that of one element
};

void ParquetDatasetOp::MakeDataset(OpKernelContext* ctx, DatasetBase** output) {
  tstring json, key, state;
  std::vector<tstring> command;
  OP_REQUIRES_OK(ctx, tensorflow::data::ParseScalarArgument<tstring>(ctx, "request", &json));
  OP_REQUIRES_OK(ctx, tensorflow::data::ParseScalarArgument<tstring>(ctx, "dataset_key", &key));
  OP_REQUIRES_OK(ctx, tensorflow::data::ParseScalarArgument<tstring>(ctx, "state", &state));
  OP_REQUIRES_OK(ctx, tensorflow::data::ParseVectorArgument<tstring>(ctx, "command", &command));
  OP_REQUIRES(ctx, !command.empty(), absl::InvalidArgumentError("command: expected a program, got nothing."));
  // A new key goes into the graph with the dataset, so that whatever tf.data makes of this very dataset counts with it.
  const bool passing = key.empty();
  if (passing) key = DatasetRegistry::Get().NewKey();
  Request request{{command.begin(), command.end()}, json, key};
  *output = new Dataset(ctx, *this, std::move(request), passing, state);
}

std::unique_ptr<IteratorBase> ParquetDatasetOp::Dataset::MakeIteratorInternal(const std::string& prefix) const {
  return std::make_unique<Iterator>(Iterator::Params{this, absl::StrCat(prefix, "::ParquetryParquet")});
}

// The elements of a whole iteration, or the error for which nobody knows them.
class DatasetCardinalityOp : public OpKernel {
 public:
  using OpKernel::OpKernel;

  void Compute(OpKernelContext* ctx) override {
    tstring json, key;
    std::vector<tstring> command;
    OP_REQUIRES_OK(ctx, tensorflow::data::ParseScalarArgument<tstring>(ctx, "request", &json));
    OP_REQUIRES_OK(ctx, tensorflow::data::ParseScalarArgument<tstring>(ctx, "dataset_key", &key));
    OP_REQUIRES_OK(ctx, tensorflow::data::ParseVectorArgument<tstring>(ctx, "command", &command));
    const Request request{ResolveCommand({command.begin(), command.end()}), json, key};
    const auto facts = key.empty() ? nullptr : DatasetRegistry::Get().Facts(key, false);
    int64_t cardinality = 0;
    OP_REQUIRES_OK(ctx, ToStatus(FindCardinality(request, facts.get(), &cardinality)));
    Tensor* output = nullptr;
    OP_REQUIRES_OK(ctx, ctx->allocate_output(0, tensorflow::TensorShape({}), &output));
    output->scalar<int64_t>()() = cardinality;
  }
};

// The state after so many elements of the iteration that the dataset's latest iterator began, and how many elements it
// had left when it began; -1 endless, -2 unknown.
class DatasetStateOp : public OpKernel {
 public:
  explicit DatasetStateOp(OpKernelConstruction* ctx) : OpKernel(ctx) {
    OP_REQUIRES_OK(ctx, ctx->GetAttr("since_restart", &since_restart_));
  }

  void Compute(OpKernelContext* ctx) override {
    const Tensor *key, *elements;
    OP_REQUIRES_OK(ctx, ctx->input("dataset_key", &key));
    OP_REQUIRES_OK(ctx, ctx->input("elements", &elements));
    const std::optional<Progress> latest = DatasetRegistry::Get().Latest(key->scalar<tstring>()());
    OP_REQUIRES(ctx, latest.has_value(),
                absl::FailedPreconditionError("state of a Parquet dataset: expected an iterator that has begun, got "
                                              "none. Take the state after the first element."));
    const Started& started = latest->started();
    const int64_t given = elements->scalar<int64_t>()() - (since_restart_ ? 0 : started.consumed);
    const std::optional<int64_t> position = latest->PositionAfter(given);
    OP_REQUIRES(ctx, position.has_value(),
                absl::FailedPreconditionError(absl::StrCat("state of a Parquet dataset: expected one of the latest ",
                                                           Progress::kMostJumps, " elements, got element ", given,
                                                           ". Take states earlier.")));
    Tensor *state = nullptr, *remaining = nullptr;
    OP_REQUIRES_OK(ctx, ctx->allocate_output(0, tensorflow::TensorShape({}), &state));
    OP_REQUIRES_OK(ctx, ctx->allocate_output(1, tensorflow::TensorShape({}), &remaining));
    state->scalar<tstring>()() = started.State(*position);
    remaining->scalar<int64_t>()() = started.remaining;
  }

 private:
  bool since_restart_ = false;
};

// The next new iterator of a dataset begins at this state, and goes on with the iteration that it was taken from.
class DatasetSetStateOp : public OpKernel {
 public:
  using OpKernel::OpKernel;

  void Compute(OpKernelContext* ctx) override {
    const Tensor *key, *state, *iteration;
    OP_REQUIRES_OK(ctx, ctx->input("dataset_key", &key));
    OP_REQUIRES_OK(ctx, ctx->input("state", &state));
    OP_REQUIRES_OK(ctx, ctx->input("iteration", &iteration));
    DatasetRegistry::Get().SetNextState(key->scalar<tstring>()(), state->scalar<tstring>()(),
                                        iteration->scalar<int64_t>()());
  }
};

REGISTER_KERNEL_BUILDER(Name("Parquetry>ParquetDataset").Device(tensorflow::DEVICE_CPU), ParquetDatasetOp);
REGISTER_KERNEL_BUILDER(Name("Parquetry>ParquetDatasetCardinality").Device(tensorflow::DEVICE_CPU),
                        DatasetCardinalityOp);
REGISTER_KERNEL_BUILDER(Name("Parquetry>ParquetDatasetState").Device(tensorflow::DEVICE_CPU), DatasetStateOp);
REGISTER_KERNEL_BUILDER(Name("Parquetry>ParquetDatasetSetState").Device(tensorflow::DEVICE_CPU), DatasetSetStateOp);

absl::Status ScalarOutputs(tensorflow::shape_inference::InferenceContext* context) {
  for (int i = 0; i < context->num_outputs(); ++i) context->set_output(i, context->Scalar());
  return absl::OkStatus();
}

}  // namespace

// Stateful, as every source dataset: its result must not be folded into a constant.
REGISTER_OP("Parquetry>ParquetDataset")
    .Input("request: string")
    .Input("dataset_key: string")
    .Input("command: string")
    .Input("state: string")
    .Output("handle: variant")
    .Attr("components: list(string) >= 1")
    .Attr("field_names: list(string) >= 1")
    .Attr("batched: bool")
    .Attr("auto_shard_advice: string = ''")
    .Attr("output_types: list(type) >= 1")
    .Attr("output_shapes: list(shape) >= 1")
    .Attr("metadata: string = ''")
    .SetIsStateful()
    .SetShapeFn(ScalarOutputs);

REGISTER_OP("Parquetry>ParquetDatasetCardinality")
    .Input("request: string")
    .Input("dataset_key: string")
    .Input("command: string")
    .Output("cardinality: int64")
    .SetIsStateful()
    .SetShapeFn(ScalarOutputs);

REGISTER_OP("Parquetry>ParquetDatasetState")
    .Input("dataset_key: string")
    .Input("elements: int64")
    .Attr("since_restart: bool = false")
    .Output("state: string")
    .Output("remaining: int64")
    .SetIsStateful()
    .SetShapeFn(ScalarOutputs);

REGISTER_OP("Parquetry>ParquetDatasetSetState")
    .Input("dataset_key: string")
    .Input("state: string")
    .Input("iteration: int64")
    .SetIsStateful()
    .SetShapeFn(ScalarOutputs);

}  // namespace parquetry
