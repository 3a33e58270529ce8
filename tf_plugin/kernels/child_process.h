// One child process with one inherited descriptor: started, watched, its stderr forwarded, its end reported, reaped.

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
  // Runs `command` + {"--fd", "3"}, where descriptor 3 of the child is a copy of `inherited_fd`. The child has
  // /dev/null as stdin and no other descriptor of ours; it is in a process group of its own, so that Ctrl-C reaches
  // the trainer alone. Returns nothing and says why in `error` if it cannot be started.
  static std::shared_ptr<ChildProcess> Spawn(const std::vector<std::string>& command, int inherited_fd,
                                             std::string* error);
  ~ChildProcess();

  // Readable from the child's end on; for poll.
  int ended_fd() const { return ended_fd_; }
  pid_t pid() const { return pid_; }

  // True once the child has ended and is reaped; waits for that at most `limit`.
  bool WaitEnded(std::chrono::milliseconds limit);

  // "exit status 3", "signal 9 (Killed)", or "it is still running".
  std::string Ending();

  // The last 8 KiB that the child wrote to its stderr.
  std::string StderrTail();

  // To be called after the child has been told to end: kills it if it is still there after `grace`.
  void KillAfter(std::chrono::milliseconds grace);

 private:
  ChildProcess(pid_t pid, int stderr_fd);
  void Watch();
  bool ReadStderr();

  const pid_t pid_;
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

// Starts `body` on a thread of its own that no signal handler runs on.
void StartDetachedThread(void (*body)(void*), void* argument);

}  // namespace parquetry

#endif  // PARQUETRY_KERNELS_CHILD_PROCESS_H_
