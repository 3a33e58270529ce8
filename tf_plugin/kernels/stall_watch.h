// Looks after one wait for a sidecar, as common/transport/sidecar/stalls.py: after half a minute it is told who waits for
// what; with a limit, a sidecar that used no processor for so long is killed.

#ifndef PARQUETRY_KERNELS_STALL_WATCH_H_
#define PARQUETRY_KERNELS_STALL_WATCH_H_

#include <sys/types.h>

#include <chrono>
#include <cstdint>
#include <string>

namespace parquetry {

class StallWatch {
 public:
  // Waits for the processes of the group that `pid` leads. `timeout_ms`: how long they may do nothing; 0: for ever.
  StallWatch(pid_t pid, int64_t timeout_ms);

  // To be called from time to time: what the sidecar does if it is stalled; else nothing.
  std::string Look();

 private:
  using Clock = std::chrono::steady_clock;

  const pid_t pid_;
  const double timeout_s_;
  const Clock::time_point begin_ = Clock::now();
  Clock::time_point since_ = begin_;
  double used_s_ = -1;  // of processors, at `since_`; negative: not looked yet
  bool told_ = false;
};

}  // namespace parquetry

#endif  // PARQUETRY_KERNELS_STALL_WATCH_H_
