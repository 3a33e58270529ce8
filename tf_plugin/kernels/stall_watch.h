// Watches one wait for a sidecar, as common/transport/sidecar/stalls.py does. After half a minute,
// it prints who waits for what. With a limit, a sidecar that used no processor time for that long
// is killed.

#ifndef PARQUETRY_KERNELS_STALL_WATCH_H_
#define PARQUETRY_KERNELS_STALL_WATCH_H_

#include <sys/types.h>

#include <chrono>
#include <cstdint>
#include <string>

namespace parquetry {

class StallWatch {
 public:
  // Watches the processes in the group that `pid` leads. `timeout_ms` is how long they may stay
  // inactive; 0 means forever.
  StallWatch(pid_t pid, int64_t timeout_ms);

  // Call this regularly. If the sidecar is stalled, returns what it is doing; otherwise an empty
  // string.
  std::string Look();

 private:
  using Clock = std::chrono::steady_clock;

  const pid_t pid_;
  const double timeout_s_;
  const Clock::time_point begin_ = Clock::now();
  Clock::time_point since_ = begin_;
  double used_s_ = -1;  // processor seconds used until `since_`; negative: not checked yet
  bool told_ = false;
};

}  // namespace parquetry

#endif  // PARQUETRY_KERNELS_STALL_WATCH_H_
