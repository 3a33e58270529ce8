// The errors of a sidecar as TensorFlow's: the class decides the code, the message stays as it is.

#ifndef PARQUETRY_KERNELS_TO_STATUS_H_
#define PARQUETRY_KERNELS_TO_STATUS_H_

#include <string>

#include "sidecar_client.h"
#include "tensorflow/core/platform/errors.h"

namespace parquetry {

inline absl::Status ToStatus(const Error& error) {
  if (!error) return absl::OkStatus();
  if (error.kind == Error::Kind::kCancelled) return absl::CancelledError(error.message);
  const std::string& name = error.error_class;
  if (name == "SchemaError" || name == "FieldNotFoundError" || name == "PipelineError" ||
      name == "EmptySelectionError" || name == "StateError" || name == "NullValueError" || name == "EncodeError") {
    return absl::InvalidArgumentError(error.message);
  }
  if (name == "DatasetError" || name == "CodecUnavailableError") return absl::FailedPreconditionError(error.message);
  if (name == "DecodeError") return absl::DataLossError(error.message);
  return absl::InternalError(error.message);
}

}  // namespace parquetry

#endif  // PARQUETRY_KERNELS_TO_STATUS_H_
