// The ops that take the state of a dataset's latest iterator, and that set where its next one
// begins.

#include <optional>

#include "absl/strings/str_cat.h"
#include "dataset_registry.h"
#include "tensorflow/core/framework/common_shape_fns.h"
#include "tensorflow/core/framework/op.h"
#include "tensorflow/core/framework/op_kernel.h"

namespace parquetry {
namespace {

using tensorflow::OpKernel;
using tensorflow::OpKernelConstruction;
using tensorflow::OpKernelContext;
using tensorflow::Tensor;
using tensorflow::tstring;

// Returns the state after a number of elements of the dataset's latest iterator. Also returns how many
// elements the iteration had left when that iterator began; -1: endless, -2: unknown.
class DatasetStateOp : public OpKernel {
 public:
  using OpKernel::OpKernel;

  void Compute(OpKernelContext* ctx) override {
    const Tensor *key, *elements;
    OP_REQUIRES_OK(ctx, ctx->input("dataset_key", &key));
    OP_REQUIRES_OK(ctx, ctx->input("elements", &elements));
    const std::optional<Progress> latest = DatasetRegistry::Get().Latest(key->scalar<tstring>()());
    OP_REQUIRES(ctx, latest.has_value(),
                absl::FailedPreconditionError("state of a Parquet dataset: expected an iterator that has begun, got "
                                              "none. Take the state after the first element."));
    const int64_t given = elements->scalar<int64_t>()();
    const std::optional<int64_t> position = latest->PositionAfter(given);
    const std::optional<std::string> text = position ? latest->StateAt(*position) : std::nullopt;
    OP_REQUIRES(ctx, text.has_value(),
                absl::FailedPreconditionError(absl::StrCat("state of a Parquet dataset: expected one of the latest ",
                                                           Progress::kMostJumps, " elements, got element ", given,
                                                           ". Take the state earlier.")));
    Tensor *state = nullptr, *remaining = nullptr;
    OP_REQUIRES_OK(ctx, ctx->allocate_output(0, tensorflow::TensorShape({}), &state));
    OP_REQUIRES_OK(ctx, ctx->allocate_output(1, tensorflow::TensorShape({}), &remaining));
    state->scalar<tstring>()() = *text;
    remaining->scalar<int64_t>()() = latest->started().remaining;
  }
};

// Makes the next new iterator of a dataset begin at this state and continue the iteration that the
// state comes from.
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

// Before an iteration begins: announces the question, see `DatasetRegistry::WillAsk`. After that: returns whether the
// rest of a resumed iteration was lost; see `DatasetRegistry::TakeLostRest`.
class DatasetLostRestOp : public OpKernel {
 public:
  explicit DatasetLostRestOp(OpKernelConstruction* ctx) : OpKernel(ctx) {
    OP_REQUIRES_OK(ctx, ctx->GetAttr("begins", &begins_));
  }

  void Compute(OpKernelContext* ctx) override {
    const Tensor* key;
    OP_REQUIRES_OK(ctx, ctx->input("dataset_key", &key));
    Tensor* lost = nullptr;
    OP_REQUIRES_OK(ctx, ctx->allocate_output(0, tensorflow::TensorShape({}), &lost));
    DatasetRegistry& registry = DatasetRegistry::Get();
    const std::string text = key->scalar<tstring>()();
    if (begins_) registry.WillAsk(text);
    lost->scalar<bool>()() = !begins_ && registry.TakeLostRest(text);
  }

 private:
  bool begins_ = false;
};

// Returns a descriptor for the counters of a dataset's latest iteration, which the caller must
// close; -1 if there is none.
class DatasetCountersOp : public OpKernel {
 public:
  using OpKernel::OpKernel;

  void Compute(OpKernelContext* ctx) override {
    const Tensor* key;
    OP_REQUIRES_OK(ctx, ctx->input("dataset_key", &key));
    const auto counters = DatasetRegistry::Get().LatestCounters(key->scalar<tstring>()());
    Tensor* descriptor = nullptr;
    OP_REQUIRES_OK(ctx, ctx->allocate_output(0, tensorflow::TensorShape({}), &descriptor));
    descriptor->scalar<int64_t>()() = counters == nullptr ? -1 : counters->Duplicate();
  }
};

REGISTER_KERNEL_BUILDER(Name("Parquetry>ParquetDatasetCounters").Device(tensorflow::DEVICE_CPU), DatasetCountersOp);
REGISTER_KERNEL_BUILDER(Name("Parquetry>ParquetDatasetLostRest").Device(tensorflow::DEVICE_CPU), DatasetLostRestOp);
REGISTER_KERNEL_BUILDER(Name("Parquetry>ParquetDatasetState").Device(tensorflow::DEVICE_CPU), DatasetStateOp);
REGISTER_KERNEL_BUILDER(Name("Parquetry>ParquetDatasetSetState").Device(tensorflow::DEVICE_CPU), DatasetSetStateOp);

}  // namespace

REGISTER_OP("Parquetry>ParquetDatasetCounters")
    .Input("dataset_key: string")
    .Output("descriptor: int64")
    .SetIsStateful()
    .SetShapeFn(tensorflow::shape_inference::ScalarShape);

REGISTER_OP("Parquetry>ParquetDatasetLostRest")
    .Input("dataset_key: string")
    .Attr("begins: bool")
    .Output("lost: bool")
    .SetIsStateful()
    .SetShapeFn(tensorflow::shape_inference::ScalarShape);

REGISTER_OP("Parquetry>ParquetDatasetState")
    .Input("dataset_key: string")
    .Input("elements: int64")
    .Output("state: string")
    .Output("remaining: int64")
    .SetIsStateful()
    .SetShapeFn([](tensorflow::shape_inference::InferenceContext* context) {
      for (int i = 0; i < 2; ++i) context->set_output(i, context->Scalar());
      return absl::OkStatus();
    });

REGISTER_OP("Parquetry>ParquetDatasetSetState")
    .Input("dataset_key: string")
    .Input("state: string")
    .Input("iteration: int64")
    .SetIsStateful()
    .SetShapeFn(tensorflow::shape_inference::NoOutputs);

}  // namespace parquetry
