#include "sidecar_pool.h"

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <cstdlib>
#include <deque>
#include <list>
#include <mutex>
#include <utility>
#include <vector>

#include "child_process.h"
#include "fork_guard.h"

namespace parquetry {
namespace {

using Clock = std::chrono::steady_clock;

// Keep at least this many idle sidecars, however few are in use at once: training and validation
// take turns.
constexpr size_t kFewestKept = 4;
constexpr double kIdleSeconds = 30;

struct Idle {
  std::shared_ptr<Sidecar> sidecar;
  Clock::time_point until;
};

struct Pool {
  const uint64_t generation = ForkGeneration();
  std::list<Idle> idle;  // oldest first
  std::vector<std::weak_ptr<Sidecar>> used;
  std::deque<std::pair<Clock::time_point, size_t>> most_used;  // times ascend, counts descend
  bool janitor_runs = false;
  std::condition_variable changed;
};

Pool* pool = nullptr;

// Call this with the mutex held. A forked child begins with an empty pool. The parent's pool stays
// as it is and is never destroyed.
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

// Records that the sidecar is in use from now on, or was until now. Both count as recent use. Call
// this with the mutex held.
void NoteUse(Pool& own, const std::shared_ptr<Sidecar>& sidecar) {
  const auto is_over = [&sidecar](const std::weak_ptr<Sidecar>& one) {
    return one.expired() || (!one.owner_before(sidecar) && !sidecar.owner_before(one));
  };
  own.used.erase(std::remove_if(own.used.begin(), own.used.end(), is_over), own.used.end());
  own.used.push_back(sidecar);
  while (!own.most_used.empty() && own.most_used.back().second <= own.used.size()) own.most_used.pop_back();
  own.most_used.emplace_back(Clock::now(), own.used.size());
}

// Returns how many sidecars may be idle: as many as were recently in use at once. Call this with
// the mutex held.
size_t MostKept(Pool& own, Clock::duration lately) {
  while (!own.most_used.empty() && own.most_used.front().first < Clock::now() - lately) own.most_used.pop_front();
  return std::max(kFewestKept, own.most_used.empty() ? 0 : own.most_used.front().second);
}

// Moves an idle sidecar to `found`: one with this request, else the oldest that may open it. The
// latter happens only if one more returned sidecar would cause a drop. Call this with the mutex
// held.
void TakeIdle(Pool& own, const Request& request, std::list<Idle>* found) {
  const auto take_first = [&own, found](const auto& fits) {
    const auto it = std::find_if(own.idle.begin(), own.idle.end(), fits);
    if (it != own.idle.end()) found->splice(found->begin(), own.idle, it);
  };
  take_first([&request](const Idle& idle) { return idle.sidecar->request() == request; });
  if (!found->empty() || own.idle.size() < MostKept(own, IdleTime())) return;
  take_first([&request](const Idle& idle) { return idle.sidecar->MayOpen(request); });
}

// Drops sidecars that have been idle too long. Ends when none are idle.
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
  out->reset();
  while (*out == nullptr) {
    std::list<Idle> found;
    {
      std::lock_guard<std::mutex> lock(ForkSafeMutex());
      TakeIdle(CurrentPool(), request, &found);
    }
    if (found.empty()) {
      if (Error error = Sidecar::Open(request, canceller, out)) return error;
      break;
    }
    std::shared_ptr<Sidecar> sidecar = std::move(found.front().sidecar);
    if (!sidecar->Healthy()) continue;
    if (!(sidecar->request() == request)) {
      Error error = sidecar->Reopen(request, canceller);
      if (error.kind == Error::Kind::kBroken) continue;
      if (error) return error;
    }
    *out = std::move(sidecar);
  }
  std::lock_guard<std::mutex> lock(ForkSafeMutex());
  NoteUse(CurrentPool(), *out);
  return {};
}

Error TryWithRestarts(const Request& request, const std::function<Error()>& attempt,
                      const std::function<void(const std::string&)>& warn) {
  int64_t restarts = request.Restarts();
  Error error = attempt();
  for (; error.died && error.kind == Error::Kind::kBroken && restarts > 0; --restarts) {
    warn(error.message.substr(0, error.message.find('\n')) + " Starting another.");
    error = attempt();
  }
  return error;
}

void ReturnSidecar(std::shared_ptr<Sidecar> sidecar) {
  sidecar->Stop();
  const Clock::duration idle_time = IdleTime();
  if (!sidecar->Healthy() || idle_time == Clock::duration::zero()) return;
  std::list<Idle> dropped;
  std::lock_guard<std::mutex> lock(ForkSafeMutex());
  Pool& own = CurrentPool();
  NoteUse(own, sidecar);
  own.used.pop_back();
  own.idle.push_back({std::move(sidecar), Clock::now() + idle_time});
  while (own.idle.size() > MostKept(own, idle_time)) dropped.splice(dropped.end(), own.idle, own.idle.begin());
  if (!own.janitor_runs) {
    own.janitor_runs = true;
    StartDetachedThread(RunJanitor, nullptr);
  }
  own.changed.notify_all();
}

}  // namespace parquetry
