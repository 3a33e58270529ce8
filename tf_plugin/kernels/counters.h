// Counts what happens in an iteration. The memory is shared with its sidecar and with Python;
// docs/protocol.md describes the layout.

#ifndef PARQUETRY_KERNELS_COUNTERS_H_
#define PARQUETRY_KERNELS_COUNTERS_H_

#include <array>
#include <cstdint>
#include <memory>

#include "fork_guard.h"

namespace parquetry {

// The counters of one iteration, and the consumer's row in them. Only one thread may count at a
// time.
class Counters {
 public:
  // Returns null if the system has no such memory. Then nothing is counted.
  static std::shared_ptr<Counters> Make();
  ~Counters();
  Counters(const Counters&) = delete;
  Counters& operator=(const Counters&) = delete;

  // Returns the monotonic clock, in seconds.
  static double Now();

  // The descriptor to send to the sidecar; -1 in a forked child.
  int fd() const { return file_.get(); }

  // Returns a new descriptor for the same memory, which the caller owns; -1 in a forked child.
  int Duplicate() const;

  // Counts an element that arrived after a wait since `begin`, and splits the wait by cause. The wait
  // for the first element counts as startup.
  void Given(double rows, double bytes, double begin);

  // Counts an element that failed.
  void Failed();

  // Counts a restart after a sidecar died.
  void Restarted();

 private:
  Counters(int fd, double* memory);
  using Stages = std::array<double, 6>;

  void Trace(double begin, double end) const;
  Stages SecondsOfStages() const;

  // Divides the waits since the last call among their causes, by what the stages did since then.
  void Split(double now);

  const OwnedFd file_;
  double* const memory_;
  double* const row_;
  Stages worked_{};  // seconds of stages when waits were last split
  double unsplit_ = 0;
  double split_at_ = 0;
};

}  // namespace parquetry

#endif  // PARQUETRY_KERNELS_COUNTERS_H_
