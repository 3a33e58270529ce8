// Keeps idle sidecars for a while between iterations, so that the next epoch starts in
// milliseconds.
//
// A sidecar stays idle for at most PARQUETRY_SIDECAR_IDLE_S seconds (default 30). The process that
// started it reuses it for a request equal to its own. When as many sidecars are idle as were
// recently in use at once, the oldest one opens the next different request, or is dropped to make
// room for a sidecar that is returned. Thread-safe.

#ifndef PARQUETRY_KERNELS_SIDECAR_POOL_H_
#define PARQUETRY_KERNELS_SIDECAR_POOL_H_

#include <functional>
#include <memory>
#include <string>

#include "sidecar_client.h"

namespace parquetry {

// Gets an idle sidecar for the request, or starts a new one.
Error AcquireSidecar(const Request& request, const Canceller* canceller, std::shared_ptr<Sidecar>* out);

// Calls `attempt`, and calls it again whenever a sidecar died in it, as often as the request allows restarts. Calls
// `warn` each time.
Error TryWithRestarts(const Request& request, const std::function<Error()>& attempt,
                      const std::function<void(const std::string&)>& warn);

// Ends the sidecar's iteration and keeps it for the next. Drops a sidecar that is broken, and drops
// the oldest ones if too many are idle.
void ReturnSidecar(std::shared_ptr<Sidecar> sidecar);

}  // namespace parquetry

#endif  // PARQUETRY_KERNELS_SIDECAR_POOL_H_
