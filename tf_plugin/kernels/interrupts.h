// Handles Ctrl-C while one of our waits blocks Python's main thread.
//
// Python records a signal at once, but runs its handler only between two lines of Python in the
// main thread, and that thread stays inside TensorFlow until an element arrives. So each wait
// watches for SIGINT itself. If Python would raise KeyboardInterrupt but does not get to it, the
// wait ends, and Python raises the exception when it continues.

#ifndef PARQUETRY_KERNELS_INTERRUPTS_H_
#define PARQUETRY_KERNELS_INTERRUPTS_H_

#include <chrono>

namespace parquetry {

// Watches for SIGINT during one wait. Works on any thread. Does nothing in a process without
// Python.
class InterruptWatch {
 public:
  InterruptWatch();
  ~InterruptWatch();
  InterruptWatch(const InterruptWatch&) = delete;
  InterruptWatch& operator=(const InterruptWatch&) = delete;

  // The timeout for poll between two calls of `Interrupted`.
  int slice_ms() const;

  // Returns true if SIGINT has come, Python has not handled it for a moment, and Python would raise
  // KeyboardInterrupt.
  bool Interrupted();

 private:
  const bool active_;
  bool asked_ = false;
  std::chrono::steady_clock::time_point until_;
};

}  // namespace parquetry

#endif  // PARQUETRY_KERNELS_INTERRUPTS_H_
