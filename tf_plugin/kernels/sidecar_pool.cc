#include "sidecar_pool.h"

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <cstdlib>
#include <list>
#include <mutex>
#include <utility>

#include "child_process.h"
#include "fork_guard.h"

namespace parquetry {
namespace {

using Clock = std::chrono::steady_clock;

constexpr size_t kMostIdle = 4;
constexpr double kIdleSeconds = 30;

struct Idle {
  std::shared_ptr<Sidecar> sidecar;
  Clock::time_point until;
};

struct Pool {
  const uint64_t generation = ForkGeneration();
  std::list<Idle> idle;  // oldest first
  bool janitor_runs = false;
  std::condition_variable changed;
};

Pool* pool = nullptr;

// Call with the mutex held. A forked child begins with an empty pool; its parent's is left as it is, never destroyed.
Pool& CurrentPool() {
  if (pool == nullptr || pool->generation != ForkGeneration()) pool = new Pool;
  return *pool;
}

Clock::duration IdleTime() {
  double seconds = kIdleSeconds;
  if (const char* text = std::getenv("PARQUETRY_SIDECAR_IDLE_S")) {
    char* end = nullptr;
    const double value = std::strtod(text, &end);
    if (end != text && *end == '\0' && value >= 0) seconds = value;
  }
  return std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(seconds));
}

// Drops what has been idle too long; ends when nothing is idle.
void RunJanitor(void*) {
  std::unique_lock<std::mutex> lock(ForkSafeMutex());
  Pool& own = CurrentPool();
  while (!own.idle.empty()) {
    std::list<Idle> expired;
    Clock::time_point next = Clock::time_point::max();
    for (auto it = own.idle.begin(); it != own.idle.end();) {
      const auto current = it++;
      if (current->until <= Clock::now()) {
        expired.splice(expired.end(), own.idle, current);
      } else {
        next = std::min(next, current->until);
      }
    }
    if (!expired.empty()) {
      lock.unlock();
      expired.clear();
      lock.lock();
    } else {
      own.changed.wait_until(lock, next);
    }
  }
  own.janitor_runs = false;
}

}  // namespace

Error AcquireSidecar(const Request& request, const Canceller* canceller, std::shared_ptr<Sidecar>* out) {
  std::list<Idle> found;
  {
    std::lock_guard<std::mutex> lock(ForkSafeMutex());
    Pool& own = CurrentPool();
    for (auto it = own.idle.begin(); it != own.idle.end();) {
      const auto current = it++;
      if (!(current->sidecar->request() == request)) continue;
      const bool healthy = current->sidecar->Healthy();
      found.splice(healthy ? found.begin() : found.end(), own.idle, current);
      if (healthy) break;
    }
  }
  if (!found.empty() && found.front().sidecar->Healthy()) {
    *out = std::move(found.front().sidecar);
    return {};
  }
  return Sidecar::Open(request, canceller, out);
}

void ReturnSidecar(std::shared_ptr<Sidecar> sidecar) {
  sidecar->Stop();
  const Clock::duration idle_time = IdleTime();
  if (!sidecar->Healthy() || idle_time == Clock::duration::zero()) return;
  std::list<Idle> dropped;
  std::lock_guard<std::mutex> lock(ForkSafeMutex());
  Pool& own = CurrentPool();
  own.idle.push_back({std::move(sidecar), Clock::now() + idle_time});
  if (own.idle.size() > kMostIdle) dropped.splice(dropped.end(), own.idle, own.idle.begin());
  if (!own.janitor_runs) {
    own.janitor_runs = true;
    StartDetachedThread(RunJanitor, nullptr);
  }
  own.changed.notify_all();
}

}  // namespace parquetry
