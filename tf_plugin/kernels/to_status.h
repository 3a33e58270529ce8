// Converts the errors of a sidecar to TensorFlow's. The class decides the code, and the message
// stays the same.

#ifndef PARQUETRY_KERNELS_TO_STATUS_H_
#define PARQUETRY_KERNELS_TO_STATUS_H_

#include <string>

#include "absl/status/status.h"
#include "sidecar_client.h"

namespace parquetry {

absl::Status ToStatus(const Error& error);

// Writes a line to TensorFlow's log.
void LogWarning(const std::string& text);

}  // namespace parquetry

#endif  // PARQUETRY_KERNELS_TO_STATUS_H_
