#include "stall_watch.h"

#include <dirent.h>
#include <fcntl.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>

namespace parquetry {
namespace {

constexpr double kWarningSeconds = 30;
constexpr double kIdleShare = 0.01;

struct Found {
  char state = '?';
  int group = 0;
  double seconds = 0;  // of processor time
};

// Reads what /proc says about a process.
bool ReadProcess(const char* name, Found* out) {
  const int file = open(("/proc/" + std::string(name) + "/stat").c_str(), O_RDONLY | O_CLOEXEC);
  if (file < 0) return false;
  char text[1024];
  const ssize_t size = read(file, text, sizeof(text) - 1);
  close(file);
  if (size <= 0) return false;
  text[size] = '\0';
  const char* const after_name = std::strrchr(text, ')');
  unsigned long user = 0, system = 0;
  if (after_name == nullptr ||
      std::sscanf(after_name + 1, " %c %*d %d %*d %*d %*d %*u %*u %*u %*u %*u %lu %lu", &out->state, &out->group, &user,
                  &system) != 4) {
    return false;
  }
  out->seconds = static_cast<double>(user + system) / static_cast<double>(sysconf(_SC_CLK_TCK));
  return true;
}

// Returns the processor time that the processes in a group have used; negative if the system does
// not report it.
double ProcessorSeconds(pid_t group) {
  DIR* const folder = opendir("/proc");
  if (folder == nullptr) return -1;
  double seconds = 0;
  bool any = false;
  while (const dirent* const entry = readdir(folder)) {
    Found found;
    if (entry->d_name[0] < '1' || entry->d_name[0] > '9' || !ReadProcess(entry->d_name, &found)) continue;
    if (found.group != group) continue;
    seconds += found.seconds;
    any = true;
  }
  closedir(folder);
  return any ? seconds : -1;
}

std::string StateOf(pid_t pid) {
  Found found;
  if (!ReadProcess(std::to_string(pid).c_str(), &found)) return "in an unknown state";
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
  const double window = seconds_since(since_);
  if (timeout_s_ == 0 || (used_s_ >= 0 && window < timeout_s_)) return "";
  const double used = ProcessorSeconds(pid_);
  if (used >= 0 && used_s_ >= 0 && used - used_s_ <= kIdleShare * window) {
    return "stalled for " + std::to_string(static_cast<int>(window)) + " s (" + StateOf(pid_) + ")";
  }
  since_ = now;
  used_s_ = used;
  return "";
}

}  // namespace parquetry
