#include "stall_watch.h"

#include <dirent.h>
#include <fcntl.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <utility>

namespace parquetry {
namespace {

constexpr double kWarningSeconds = 30;
constexpr double kIdleShare = 0.01;
// A thread of a sidecar that receives data waits more often than this, per second; one that only
// looks after others does not.
constexpr double kIdleWaits = 10;

struct Found {
  char state = '?';
  int group = 0;
  double seconds = 0;  // of processor time
};

// Returns a file of /proc; an empty string if the process has ended.
std::string ReadText(const std::string& path) {
  std::string text;
  const int file = open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (file < 0) return text;
  char part[4096];
  ssize_t size;
  while ((size = read(file, part, sizeof(part))) > 0) text.append(part, static_cast<size_t>(size));
  close(file);
  return text;
}

// Reads what /proc says about a process.
bool ReadProcess(const std::string& name, Found* out) {
  const std::string text = ReadText("/proc/" + name + "/stat");
  const char* const after_name = std::strrchr(text.c_str(), ')');
  unsigned long user = 0, system = 0;
  if (after_name == nullptr ||
      std::sscanf(after_name + 1, " %c %*d %d %*d %*d %*d %*u %*u %*u %*u %*u %lu %lu", &out->state, &out->group, &user,
                  &system) != 4) {
    return false;
  }
  out->seconds = static_cast<double>(user + system) / static_cast<double>(sysconf(_SC_CLK_TCK));
  return true;
}

// Returns how often a thread, or the main thread of a process, began to wait.
int64_t Waits(const std::string& task) {
  constexpr char kName[] = "\nvoluntary_ctxt_switches:";
  const std::string text = ReadText("/proc/" + task + "/status");
  const size_t at = text.find(kName);
  return at == std::string::npos ? 0 : std::strtoll(text.c_str() + at + sizeof(kName) - 1, nullptr, 10);
}

// Calls `visit` with each number in a folder of processes or threads.
template <typename Visit>
void ForEachNumber(const std::string& folder, Visit visit) {
  DIR* const entries = opendir(folder.c_str());
  if (entries == nullptr) return;
  while (const dirent* const entry = readdir(entries)) {
    if (entry->d_name[0] >= '1' && entry->d_name[0] <= '9') visit(entry->d_name);
  }
  closedir(entries);
}

// Returns false if the system does not tell what the processes in a group have done.
bool ReadActivity(pid_t leader, Activity* out) {
  const std::string own = std::to_string(leader);
  bool any = false;
  ForEachNumber("/proc", [&](const char* name) {
    Found found;
    if (!ReadProcess(name, &found) || found.group != leader) return;
    out->seconds += found.seconds;
    if (name != own) out->worker_waits += Waits(name);
    any = true;
  });
  ForEachNumber("/proc/" + own + "/task", [&](const char* name) {
    if (name != own) out->other_waits[name] = Waits(own + "/task/" + name);
  });
  return any;
}

// Returns whether one of the sidecar's threads has received data in some seconds.
bool Receives(const Activity& before, const Activity& now, double seconds) {
  for (const auto& [thread, waits] : now.other_waits) {
    const auto found = before.other_waits.find(thread);
    const int64_t waits_before = found == before.other_waits.end() ? 0 : found->second;
    if (static_cast<double>(waits - waits_before) > kIdleWaits * seconds) return true;
  }
  return false;
}

std::string StateOf(pid_t pid) {
  Found found;
  if (!ReadProcess(std::to_string(pid), &found)) return "in an unknown state";
  switch (found.state) {
    case 'R':
      return "running";
    case 'S':
      return "sleeping";
    case 'D':
      return "waiting for a disk or network file system";
    case 'T':
      return "stopped";
    default:
      return "alive";
  }
}

double WarningSeconds() {
  if (const char* text = std::getenv("PARQUETRY_STALL_WARNING_S")) {
    char* end = nullptr;
    const double value = std::strtod(text, &end);
    if (end != text && *end == '\0') return value;
  }
  return kWarningSeconds;
}

}  // namespace

// The sidecar itself replaces workers that stall, so it gets some extra time.
StallWatch::StallWatch(pid_t pid, int64_t timeout_ms)
    : pid_(pid), timeout_s_(timeout_ms > 0 ? 1 + 1.25 * static_cast<double>(timeout_ms) / 1000 : 0) {}

std::string StallWatch::Look() {
  const Clock::time_point now = Clock::now();
  const auto seconds_since = [now](Clock::time_point then) { return std::chrono::duration<double>(now - then).count(); };
  const double waited = seconds_since(begin_);
  if (!told_ && waited >= WarningSeconds()) {
    told_ = true;
    std::fprintf(stderr, "parquetry: the trainer has waited %.0f s for process %d, which is %s.\n", waited,
                 static_cast<int>(pid_), StateOf(pid_).c_str());
  }
  const double elapsed_s = seconds_since(since_);
  if (timeout_s_ == 0 || (checked_ && elapsed_s < timeout_s_)) return "";
  Activity now_done;
  if (!ReadActivity(pid_, &now_done)) return "";
  const bool progress = now_done.seconds - done_.seconds > kIdleShare * elapsed_s ||
                        now_done.worker_waits != done_.worker_waits || Receives(done_, now_done, elapsed_s);
  if (checked_ && !progress) {
    return "stalled for " + std::to_string(static_cast<int>(elapsed_s)) + " s (" + StateOf(pid_) + ")";
  }
  since_ = now;
  done_ = std::move(now_done);
  checked_ = true;
  return "";
}

}  // namespace parquetry
