// The op that returns the number of elements in a dataset.

#include <string>
#include <vector>

#include "dataset_registry.h"
#include "sidecar_client.h"
#include "tensorflow/core/framework/common_shape_fns.h"
#include "tensorflow/core/framework/dataset.h"
#include "tensorflow/core/framework/op.h"
#include "tensorflow/core/framework/op_kernel.h"
#include "to_status.h"

namespace parquetry {
namespace {

using tensorflow::OpKernel;
using tensorflow::OpKernelContext;
using tensorflow::tstring;

// Returns the number of elements in a whole iteration, or an error if it cannot be found.
class DatasetCardinalityOp : public OpKernel {
 public:
  using OpKernel::OpKernel;

  void Compute(OpKernelContext* ctx) override {
    tstring json, key;
    std::vector<tstring> command;
    OP_REQUIRES_OK(ctx, tensorflow::data::ParseScalarArgument<tstring>(ctx, "request", &json));
    OP_REQUIRES_OK(ctx, tensorflow::data::ParseScalarArgument<tstring>(ctx, "dataset_key", &key));
    OP_REQUIRES_OK(ctx, tensorflow::data::ParseVectorArgument<tstring>(ctx, "command", &command));
    const Request request{{command.begin(), command.end()}, json, key};
    const auto facts = key.empty() ? nullptr : DatasetRegistry::Get().Facts(key, false);
    int64_t cardinality = 0;
    OP_REQUIRES_OK(ctx, ToStatus(FindCardinality(request.OnThisMachine(), facts.get(), LogWarning, &cardinality)));
    tensorflow::Tensor* output = nullptr;
    OP_REQUIRES_OK(ctx, ctx->allocate_output(0, tensorflow::TensorShape({}), &output));
    output->scalar<int64_t>()() = cardinality;
  }
};

REGISTER_KERNEL_BUILDER(Name("Parquetry>ParquetDatasetCardinality").Device(tensorflow::DEVICE_CPU),
                        DatasetCardinalityOp);

}  // namespace

REGISTER_OP("Parquetry>ParquetDatasetCardinality")
    .Input("request: string")
    .Input("dataset_key: string")
    .Input("command: string")
    .Output("cardinality: int64")
    .SetIsStateful()
    .SetShapeFn(tensorflow::shape_inference::ScalarShape);

}  // namespace parquetry
