// What a fork of the trainer must not break: a child process holds copies of the parent's sockets, and of mutexes that
// another thread of the parent may have held at that moment.
//
// A forked child closes its copies at once (else the sidecar would outlive its trainer for as long as the child does),
// and nothing made before the fork sends, closes or waits from the child.

#ifndef PARQUETRY_KERNELS_FORK_GUARD_H_
#define PARQUETRY_KERNELS_FORK_GUARD_H_

#include <cstdint>
#include <mutex>

namespace parquetry {

// Counts the forks between the first process and this one; what is kept beside an object tells whose it is.
uint64_t ForkGeneration();

// A mutex that is free in a forked child, whoever held it in the parent. It is never destroyed.
std::mutex& ForkSafeMutex();

// A descriptor that belongs to the process that made it: closed by the destructor there, and by the fork in a child.
class OwnedFd {
 public:
  explicit OwnedFd(int fd);
  ~OwnedFd();
  OwnedFd(const OwnedFd&) = delete;
  OwnedFd& operator=(const OwnedFd&) = delete;

  // The descriptor, or -1 in a process other than the one that made it.
  int get() const { return generation_ == ForkGeneration() ? fd_ : -1; }

 private:
  const int fd_;
  const uint64_t generation_;
};

}  // namespace parquetry

#endif  // PARQUETRY_KERNELS_FORK_GUARD_H_
