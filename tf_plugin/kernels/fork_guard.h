// Keeps a fork of the trainer from breaking things. A child process gets copies of the parent's
// sockets, and of mutexes that other threads of the parent may hold at that moment.
//
// A forked child closes its copies at once. Otherwise the sidecar would run for as long as the
// child lives, even after its trainer has ended. In the child, objects made before the fork never
// send, close or wait.

#ifndef PARQUETRY_KERNELS_FORK_GUARD_H_
#define PARQUETRY_KERNELS_FORK_GUARD_H_

#include <cstdint>
#include <mutex>

namespace parquetry {

// Returns the number of forks between the first process and this one. Store it with an object to
// tell which process made the object.
uint64_t ForkGeneration();

// A mutex that is free in a forked child, even if the parent held it. It is never destroyed.
std::mutex& ForkSafeMutex();

// A descriptor that belongs to the process that made it. The destructor closes it in that process,
// and a fork closes it in the child.
class OwnedFd {
 public:
  explicit OwnedFd(int fd);
  ~OwnedFd();
  OwnedFd(const OwnedFd&) = delete;
  OwnedFd& operator=(const OwnedFd&) = delete;

  // Returns the descriptor, or -1 in any process that did not make it.
  int get() const { return generation_ == ForkGeneration() ? fd_ : -1; }

 private:
  const int fd_;
  const uint64_t generation_;
};

}  // namespace parquetry

#endif  // PARQUETRY_KERNELS_FORK_GUARD_H_
