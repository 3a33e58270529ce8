// The tf.data source op: a dataset whose elements come from a sidecar.
//
// Input: the pipeline as the request in docs/protocol.md, and how to make each flat component from
// the pipeline's fields (element_builder.h). Output: a tf.data dataset with exact cardinality,
// exact checkpoints, and splits for tf.data service. Each iterator has its own sidecar. No Python
// runs in this process.

#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "dataset_registry.h"
#include "home.h"
#include "parquet_dataset.h"
#include "tensorflow/core/framework/common_shape_fns.h"
#include "tensorflow/core/framework/dataset.h"
#include "tensorflow/core/framework/op.h"
#include "tensorflow/core/framework/op_kernel.h"

namespace parquetry {
namespace {

using tensorflow::OpKernelConstruction;
using tensorflow::OpKernelContext;
using tensorflow::tstring;
using tensorflow::data::DatasetBase;

class ParquetDatasetOp : public tensorflow::data::DatasetOpKernel {
 public:
  explicit ParquetDatasetOp(OpKernelConstruction* ctx) : DatasetOpKernel(ctx) {
    std::vector<std::string>& components = form_.component_texts;
    OP_REQUIRES_OK(ctx, ctx->GetAttr("components", &components));
    OP_REQUIRES_OK(ctx, ctx->GetAttr("field_names", &form_.field_names));
    OP_REQUIRES_OK(ctx, ctx->GetAttr("batched", &form_.batched));
    OP_REQUIRES_OK(ctx, ctx->GetAttr("from_python", &from_python_));
    OP_REQUIRES_OK(ctx, ctx->GetAttr("output_types", &form_.dtypes));
    OP_REQUIRES_OK(ctx, ctx->GetAttr("output_shapes", &form_.shapes));
    OP_REQUIRES(ctx, components.size() == form_.dtypes.size() && components.size() == form_.shapes.size(),
                absl::InvalidArgumentError("components, output_types and output_shapes must have the same length."));
    for (size_t i = 0; i < components.size(); ++i) {
      Component component;
      OP_REQUIRES_OK(ctx, Component::Parse(components[i], form_.dtypes[i], form_.shapes[i], &component));
      OP_REQUIRES(ctx, component.field < static_cast<int>(form_.field_names.size()),
                  absl::InvalidArgumentError(absl::StrCat("component '", components[i], "': no such field.")));
      form_.components.push_back(component);
    }
  }

 protected:
  void MakeDataset(OpKernelContext* ctx, DatasetBase** output) override {
    tstring json, key, state;
    std::vector<tstring> command;
    OP_REQUIRES_OK(ctx, tensorflow::data::ParseScalarArgument<tstring>(ctx, "request", &json));
    OP_REQUIRES_OK(ctx, tensorflow::data::ParseScalarArgument<tstring>(ctx, "dataset_key", &key));
    OP_REQUIRES_OK(ctx, tensorflow::data::ParseScalarArgument<tstring>(ctx, "state", &state));
    OP_REQUIRES_OK(ctx, tensorflow::data::ParseVectorArgument<tstring>(ctx, "command", &command));
    OP_REQUIRES(ctx, !command.empty(), absl::InvalidArgumentError("command: expected a program, got nothing."));
    // A new key goes into the graph together with the dataset, so that everything tf.data makes
    // from this dataset shares its iterator count.
    const bool passing = key.empty();
    if (from_python_ && !passing) MarkHome(ctx->resource_manager());
    if (passing) key = DatasetRegistry::Get().NewKey();
    Request request{{command.begin(), command.end()}, json, key};
    *output = new ParquetDataset(ctx, form_, std::move(request), passing, state);
  }

 private:
  ElementForm form_;
  bool from_python_ = false;
};

REGISTER_KERNEL_BUILDER(Name("Parquetry>ParquetDataset").Device(tensorflow::DEVICE_CPU), ParquetDatasetOp);

}  // namespace

// Stateful, like every source dataset: its result must not be folded into a constant.
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
    .Attr("from_python: bool = false")
    .Attr("output_types: list(type) >= 1")
    .Attr("output_shapes: list(shape) >= 1")
    .Attr("metadata: string = ''")
    .SetIsStateful()
    .SetShapeFn(tensorflow::shape_inference::ScalarShape);

}  // namespace parquetry
