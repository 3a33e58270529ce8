#include "fork_guard.h"

#include <pthread.h>
#include <unistd.h>

#include <atomic>
#include <set>

namespace parquetry {
namespace {

std::atomic<uint64_t> generation{0};
uint64_t fds_generation = 0;  // the generation of the process in which `fds` are open

struct Guard {
  std::mutex fds_mutex;
  std::set<int> fds;
  std::mutex shared_mutex;
};

Guard* MakeGuard();

// Made while the library loads, not at first use: if a fork happened during first use, the child
// would wait for it forever. Leaked on purpose, because our threads may still run while the process
// exits.
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
        // In the child of a child, a number that the first fork closed may belong to another file
        // by now.
        if (fds_generation == generation.fetch_add(1)) {
          for (const int fd : guard->fds) close(fd);
        }
        // Only close() is safe here, so the next user of the set empties it. From now on, its
        // descriptors read as -1.
        guard->fds_mutex.unlock();
        guard->shared_mutex.unlock();
      });
  return new Guard;
}

// Removes the descriptors that the fork closed. Call this with `fds_mutex` held.
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
