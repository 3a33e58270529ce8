// What an iteration counts, in memory that it shares with its sidecar and with Python; docs/protocol.md has the layout.

#ifndef PARQUETRY_KERNELS_COUNTERS_H_
#define PARQUETRY_KERNELS_COUNTERS_H_

#include <cstdint>
#include <memory>

#include "fork_guard.h"

namespace parquetry {

// The counters of one iteration, and the consumer's row in them. One thread at a time may count.
class Counters {
 public:
  // Null if the system has no such memory: then nothing is counted.
  static std::shared_ptr<Counters> Make();
  ~Counters();
  Counters(const Counters&) = delete;
  Counters& operator=(const Counters&) = delete;

  // Seconds of the monotonic clock.
  static double Now();

  // For the sidecar; -1 in a forked child.
  int fd() const { return file_.get(); }

  // A descriptor of the same memory that is the caller's; -1 in a forked child.
  int Duplicate() const;

  // An element came, which was waited for since `begin`. The first one was the startup.
  void Given(double rows, double bytes, double begin);

  // An element failed.
  void Failed();

  // A sidecar that died was started again.
  void Restarted();

 private:
  Counters(int fd, double* memory);
  void Trace(double begin, double end) const;

  const OwnedFd file_;
  double* const memory_;
  double* const row_;
};

}  // namespace parquetry

#endif  // PARQUETRY_KERNELS_COUNTERS_H_
