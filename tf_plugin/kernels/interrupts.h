// Ctrl-C while a wait of ours keeps Python's main thread from serving it.
//
// Python notes a signal at once, but runs its handler only between two lines of Python in the main thread, and that
// thread sits inside TensorFlow until an element is there. So waits look out for SIGINT themselves: where Python would
// answer it with KeyboardInterrupt, and does not get to it, the wait ends, and Python raises it as it goes on.

#ifndef PARQUETRY_KERNELS_INTERRUPTS_H_
#define PARQUETRY_KERNELS_INTERRUPTS_H_

#include <chrono>

namespace parquetry {

// Looks out for SIGINTs that come during one wait. On any thread; free of effect in a process without Python.
class InterruptWatch {
 public:
  InterruptWatch();
  ~InterruptWatch();
  InterruptWatch(const InterruptWatch&) = delete;
  InterruptWatch& operator=(const InterruptWatch&) = delete;

  // For poll: how long to wait before `Interrupted` is asked again.
  int slice_ms() const;

  // True once SIGINT has come, Python has not got to it for a moment, and it would raise KeyboardInterrupt.
  bool Interrupted();

 private:
  const bool active_;
  bool asked_ = false;
  std::chrono::steady_clock::time_point until_;
};

}  // namespace parquetry

#endif  // PARQUETRY_KERNELS_INTERRUPTS_H_
