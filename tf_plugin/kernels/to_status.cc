#include "to_status.h"

#include <string>

#include "tensorflow/core/platform/logging.h"

namespace parquetry {

absl::Status ToStatus(const Error& error) {
  if (!error) return absl::OkStatus();
  if (error.kind == Error::Kind::kCancelled) return absl::CancelledError(error.message);
  const std::string& name = error.error_class;
  if (name == "SchemaError" || name == "FieldNotFoundError" || name == "PipelineError" ||
      name == "EmptySelectionError" || name == "StateError" || name == "NullValueError" || name == "EncodeError") {
    return absl::InvalidArgumentError(error.message);
  }
  if (name == "DatasetError" || name == "CodecUnavailableError") return absl::FailedPreconditionError(error.message);
  if (name == "DecodeError") return absl::DataLossError(error.message);
  if (name == "ResourceError") return absl::ResourceExhaustedError(error.message);
  return absl::InternalError(error.message);
}

void LogWarning(const std::string& text) { LOG(WARNING) << text; }

}  // namespace parquetry
