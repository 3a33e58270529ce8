// Watches one wait for a sidecar, as common/transport/stalls.py does. After half a minute,
// it prints who waits for what. With a limit, a sidecar that made no progress for that long is
// killed.

#ifndef PARQUETRY_KERNELS_STALL_WATCH_H_
#define PARQUETRY_KERNELS_STALL_WATCH_H_

#include <sys/types.h>

#include <chrono>
#include <cstdint>
#include <map>
#include <string>

namespace parquetry {

// What a sidecar and its workers have done so far.
struct Activity {
  double seconds = 0;        // of processor time
  int64_t worker_waits = 0;  // how often the main threads of the workers began to wait
  // How often each of the sidecar's threads did, apart from its main thread, by its ID.
  std::map<std::string, int64_t> other_waits;
};

class StallWatch {
 public:
  // Watches the processes in the group that `pid` leads. `timeout_ms` is how long they may make no
  // progress; 0 means forever.
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
  Activity done_;  // until `since_`
  bool checked_ = false;
  bool told_ = false;
};

}  // namespace parquetry

#endif  // PARQUETRY_KERNELS_STALL_WATCH_H_
