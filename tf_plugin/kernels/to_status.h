// The errors of a sidecar as TensorFlow's: the class decides the code, the message stays as it is.

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
