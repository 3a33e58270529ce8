// Sidecars that are idle between two iterations, kept a while so that the next epoch starts in milliseconds.
//
// A sidecar is idle for at most PARQUETRY_SIDECAR_IDLE_S seconds (30 unless set) and is given to a request equal to its
// own, in the process that started it. When as many are idle as were in use at once lately, the oldest opens the next
// other request, or is dropped for one that is returned. Thread-safe.

#ifndef PARQUETRY_KERNELS_SIDECAR_POOL_H_
#define PARQUETRY_KERNELS_SIDECAR_POOL_H_

#include <memory>

#include "sidecar_client.h"

namespace parquetry {

// An idle sidecar for the request, or a new one.
Error AcquireSidecar(const Request& request, const Canceller* canceller, std::shared_ptr<Sidecar>* out);

// Ends the sidecar's iteration and keeps it for the next; drops it if it is broken or too many are idle.
void ReturnSidecar(std::shared_ptr<Sidecar> sidecar);

}  // namespace parquetry

#endif  // PARQUETRY_KERNELS_SIDECAR_POOL_H_
