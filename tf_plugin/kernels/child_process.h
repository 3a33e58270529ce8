// Starts and watches one child process that inherits one descriptor: forwards its stderr, reports
// how it ended, and reaps it.
//
// A sidecar asks the kernel to kill it when the thread that started it ends (prctl(2),
// PR_SET_PDEATHSIG), because a stopped process cannot notice the end of the trainer by itself. So
// the thread that watches a child also starts it, and lives as long as it does.

#ifndef PARQUETRY_KERNELS_CHILD_PROCESS_H_
#define PARQUETRY_KERNELS_CHILD_PROCESS_H_

#include <sys/types.h>

#include <chrono>
#include <condition_variable>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

namespace parquetry {

class ChildProcess {
 public:
  // Runs `command` + {"--fd", "3"}. Descriptor 3 of the child is a copy of `inherited_fd`. The
  // child has /dev/null as stdin and inherits no other descriptor from this process. It runs in its
  // own process group, so that Ctrl-C reaches only the trainer. If the child cannot be started,
  // returns null and stores the reason in `error`.
  static std::shared_ptr<ChildProcess> Spawn(const std::vector<std::string>& command, int inherited_fd,
                                             std::string* error);
  ~ChildProcess();

  // Becomes readable when the child ends, and stays readable. Use it with poll.
  int ended_fd() const { return ended_fd_; }
  pid_t pid() const { return pid_; }

  // Waits at most `limit`. Returns true if the child has ended and has been reaped.
  bool WaitEnded(std::chrono::milliseconds limit);

  // Returns "exit status 3", "signal 9 (Killed)", or "it is still running".
  std::string Ending();

  // Returns the last 8 KiB that the child wrote to its stderr.
  std::string StderrTail();

  // Call this after telling the child to end. Kills it if it still runs after `grace`.
  void KillAfter(std::chrono::milliseconds grace);

 private:
  explicit ChildProcess(int stderr_fd);
  void Watch();
  bool ReadStderr();

  pid_t pid_ = -1;  // set before anyone else has this object
  const int stderr_fd_;
  const int ended_fd_;
  const int wake_fd_;
  std::mutex mutex_;
  std::condition_variable changed_;
  bool ended_ = false;
  bool status_known_ = false;
  int status_ = 0;
  std::string tail_;
  std::chrono::steady_clock::time_point kill_at_ = std::chrono::steady_clock::time_point::max();
};

// Runs `body` on a new thread that never runs signal handlers. Returns false if there can be no
// more threads.
bool StartDetachedThread(void (*body)(void*), void* argument);

}  // namespace parquetry

#endif  // PARQUETRY_KERNELS_CHILD_PROCESS_H_
