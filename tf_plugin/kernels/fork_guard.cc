#include "fork_guard.h"

#include <pthread.h>
#include <unistd.h>

#include <atomic>
#include <set>

namespace parquetry {
namespace {

std::atomic<uint64_t> generation{0};

struct Guard {
  std::mutex fds_mutex;
  std::set<int> fds;
  std::mutex shared_mutex;
};

Guard* guard = nullptr;

// Leaked on purpose: threads of ours may still run while the process exits.
Guard& Get() {
  static Guard* made = [] {
    guard = new Guard;
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
          generation.fetch_add(1);
          for (const int fd : guard->fds) close(fd);
          // Only close() is safe here, so the set itself is emptied by whoever uses it next; its descriptors are -1 now.
          guard->fds_mutex.unlock();
          guard->shared_mutex.unlock();
        });
    return guard;
  }();
  return *made;
}

uint64_t fds_generation = 0;

// Call with `fds_mutex` held: forgets the descriptors that the fork closed.
std::set<int>& CurrentFds(Guard& guard) {
  if (fds_generation != ForkGeneration()) {
    guard.fds.clear();
    fds_generation = ForkGeneration();
  }
  return guard.fds;
}

}  // namespace

uint64_t ForkGeneration() { return generation.load(std::memory_order_relaxed); }

std::mutex& ForkSafeMutex() { return Get().shared_mutex; }

OwnedFd::OwnedFd(int fd) : fd_(fd), generation_(ForkGeneration()) {
  std::lock_guard<std::mutex> lock(Get().fds_mutex);
  CurrentFds(Get()).insert(fd_);
}

OwnedFd::~OwnedFd() {
  if (get() < 0) return;
  std::lock_guard<std::mutex> lock(Get().fds_mutex);
  CurrentFds(Get()).erase(fd_);
  close(fd_);
}

}  // namespace parquetry
