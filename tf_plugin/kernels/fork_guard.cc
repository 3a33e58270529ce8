#include "fork_guard.h"

#include <pthread.h>
#include <unistd.h>

#include <atomic>
#include <set>

namespace parquetry {
namespace {

std::atomic<uint64_t> generation{0};
uint64_t fds_generation = 0;  // of the process that the descriptors are open in

struct Guard {
  std::mutex fds_mutex;
  std::set<int> fds;
  std::mutex shared_mutex;
};

Guard* MakeGuard();

// Made while the library loads, not at first use: a fork in the middle of that would leave the child waiting for it for
// ever. Leaked on purpose: threads of ours may still run while the process exits.
Guard* const guard = MakeGuard();

Guard* MakeGuard() {
  pthread_atfork(
      [] {
        guard->shared_mutex.lock();
        guard->fds_mutex.lock();
      },
      [] {
        guard->fds_mutex.unlock();
        guard->shared_mutex.unlock();
      },
      [] {
        // In the child of a child, what the first fork closed may be another file by now.
        if (fds_generation == generation.fetch_add(1)) {
          for (const int fd : guard->fds) close(fd);
        }
        // Only close() is safe here, so the set is emptied by whoever uses it next; its descriptors read as -1 from
        // now.
        guard->fds_mutex.unlock();
        guard->shared_mutex.unlock();
      });
  return new Guard;
}

// Call with `fds_mutex` held: forgets the descriptors that the fork closed.
std::set<int>& CurrentFds() {
  if (fds_generation != ForkGeneration()) {
    guard->fds.clear();
    fds_generation = ForkGeneration();
  }
  return guard->fds;
}

}  // namespace

uint64_t ForkGeneration() { return generation.load(std::memory_order_relaxed); }

std::mutex& ForkSafeMutex() { return guard->shared_mutex; }

OwnedFd::OwnedFd(int fd) : fd_(fd), generation_(ForkGeneration()) {
  std::lock_guard<std::mutex> lock(guard->fds_mutex);
  CurrentFds().insert(fd_);
}

OwnedFd::~OwnedFd() {
  if (get() < 0) return;
  std::lock_guard<std::mutex> lock(guard->fds_mutex);
  CurrentFds().erase(fd_);
  close(fd_);
}

}  // namespace parquetry
