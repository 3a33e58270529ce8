#include "home.h"

#include <string>

#include "absl/status/status.h"
#include "tensorflow/core/framework/common_shape_fns.h"
#include "tensorflow/core/framework/op.h"
#include "tensorflow/core/framework/op_kernel.h"

namespace parquetry {
namespace {

constexpr char kContainer[] = "parquetry";
constexpr char kHome[] = "home";

class Home : public tensorflow::ResourceBase {
 public:
  std::string DebugString() const override { return kHome; }
};

// Marks a device where a function may make datasets. The datasets cannot tell: a graph may hold the
// function.
class HomeOp : public tensorflow::OpKernel {
 public:
  using OpKernel::OpKernel;

  void Compute(tensorflow::OpKernelContext* ctx) override { MarkHome(ctx->resource_manager()); }
};

REGISTER_KERNEL_BUILDER(Name("Parquetry>ParquetHome").Device(tensorflow::DEVICE_CPU), HomeOp);

}  // namespace

REGISTER_OP("Parquetry>ParquetHome").SetIsStateful().SetShapeFn(tensorflow::shape_inference::NoOutputs);

void MarkHome(tensorflow::ResourceMgr* resources) {
  Home* home = nullptr;
  const absl::Status status = resources->LookupOrCreate<Home>(kContainer, kHome, &home, [](Home** made) {
    *made = new Home;
    return absl::OkStatus();
  });
  if (status.ok()) home->Unref();
}

bool IsHome(tensorflow::ResourceMgr* resources) {
  Home* home = nullptr;
  if (resources == nullptr) return true;
  if (!resources->Lookup<Home>(kContainer, kHome, &home).ok()) return false;
  home->Unref();
  return true;
}

}  // namespace parquetry
