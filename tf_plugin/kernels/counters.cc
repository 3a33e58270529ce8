#include "counters.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>

#include "sidecar_client.h"

namespace parquetry {
namespace counters_layout {

constexpr size_t kRows = 4096;
constexpr size_t kWidth = 40;
constexpr size_t kBytes = (1 + kRows) * kWidth * sizeof(double);
constexpr size_t kPathAt = 64;
constexpr double kMagic = 2026;
constexpr double kShortestTraced = 50e-6;  // seconds
// A wait is split by cause if it is long, or after a while with those before it.
constexpr double kSplitAfter = 1e-3;  // seconds
constexpr double kSplitEvery = 10e-3;
enum HeaderNumber { kMagicAt, kUsed, kPathBytes };
enum RowNumber {
  kOwner = 0,
  kRowsGiven = 1,
  kElements = 2,
  kDeliveredBytes = 3,
  kWaitSeconds = 4,
  kStages = 5,  // store, Parquet, decode, transform, hand-over, blocked by reading
  kFailed = 16,
  kBegan = 18,
  kFirst = 19,
  kLast = 20,
  kRestarts = 21,
  kWaitedStore = 32  // and after it: Parquet, decode, transform, hand-over
};

}  // namespace counters_layout

namespace layout = counters_layout;

namespace {

// Stores the path of the file to trace to. Python's `trace` sets it for the whole process.
void SetTrace(double* memory) {
  const char* const path = std::getenv("PARQUETRY_TRACE_SPOOL");
  const size_t size = path == nullptr ? 0 : std::strlen(path);
  if (size == 0 || size > layout::kWidth * sizeof(double) - layout::kPathAt) return;
  std::memcpy(reinterpret_cast<char*>(memory) + layout::kPathAt, path, size);
  memory[layout::kPathBytes] = static_cast<double>(size);
}

}  // namespace

std::shared_ptr<Counters> Counters::Make() {
  const int fd = AnonymousFile("parquetry-counters", layout::kBytes);
  if (fd < 0) return nullptr;
  void* const memory = mmap(nullptr, layout::kBytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  if (memory == MAP_FAILED) {
    close(fd);
    return nullptr;
  }
  return std::shared_ptr<Counters>(new Counters(fd, static_cast<double*>(memory)));
}

Counters::Counters(int fd, double* memory) : file_(fd), memory_(memory), row_(memory + layout::kWidth) {
  SetTrace(memory);
  memory[layout::kUsed] = 1;
  memory[layout::kMagicAt] = layout::kMagic;
  row_[layout::kOwner] = static_cast<double>(getpid());
  row_[layout::kBegan] = Now();
}

Counters::~Counters() { munmap(memory_, layout::kBytes); }

double Counters::Now() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

int Counters::Duplicate() const { return fd() < 0 ? -1 : fcntl(fd(), F_DUPFD_CLOEXEC, 0); }

void Counters::Given(double rows, double bytes, double begin) {
  const double now = Now();
  row_[layout::kRowsGiven] += rows;
  row_[layout::kElements] += 1;
  row_[layout::kDeliveredBytes] += bytes;
  if (row_[layout::kFirst] == 0) {
    row_[layout::kFirst] = split_at_ = now;
    worked_ = SecondsOfStages();
  } else {
    row_[layout::kWaitSeconds] += now - begin;
    unsplit_ += now - begin;
    if (now - begin > layout::kSplitAfter || now - split_at_ > layout::kSplitEvery) Split(now);
  }
  row_[layout::kLast] = now;
  if (memory_[layout::kPathBytes] > 0 && now - begin > layout::kShortestTraced) Trace(begin, now);
}

Counters::Stages Counters::SecondsOfStages() const {
  Stages sums{};
  const auto rows = std::min(static_cast<size_t>(memory_[layout::kUsed]), layout::kRows);
  for (size_t row = 1; row <= rows; ++row) {
    const double* const stages = memory_ + row * layout::kWidth + layout::kStages;
    for (size_t stage = 0; stage < sums.size(); ++stage) sums[stage] += stages[stage];
  }
  return sums;
}

// As `split_wait` in common/base/metrics/counters.py.
void Counters::Split(double now) {
  const Stages before = worked_;
  worked_ = SecondsOfStages();
  Stages work;
  for (size_t stage = 0; stage < work.size(); ++stage) work[stage] = std::max(worked_[stage] - before[stage], 0.0);
  const double reading = work[0] + work[1];
  const double share = reading > 0 ? std::min(work[5] / reading, 1.0) : 0;
  work[0] *= share;
  work[1] *= share;
  double total = 0;
  for (size_t stage = 0; stage < 5; ++stage) total += work[stage];
  const double scale = total > 0 ? std::min(unsplit_ / total, 1.0) : 0;
  for (size_t stage = 0; stage < 5; ++stage) row_[layout::kWaitedStore + stage] += scale * work[stage];
  unsplit_ = 0;
  split_at_ = now;
}

// Appends a line to the file of Python's `trace`. If the file no longer exists, this is not an
// error.
void Counters::Trace(double begin, double end) const {
  const auto size = static_cast<size_t>(memory_[layout::kPathBytes]);
  const std::string path(reinterpret_cast<const char*>(memory_) + layout::kPathAt, size);
  const int file = open(path.c_str(), O_WRONLY | O_APPEND | O_CLOEXEC);
  if (file < 0) return;
  char line[256];
  const int length = std::snprintf(line, sizeof(line),
                                   "{\"name\": \"wait for an element\", \"ph\": \"X\", \"ts\": %.3f, \"dur\": %.3f, "
                                   "\"pid\": %d, \"tid\": %ld, \"args\": {\"thread\": \"tf.data\"}}\n",
                                   begin * 1e6, (end - begin) * 1e6, static_cast<int>(getpid()),
                                   static_cast<long>(syscall(SYS_gettid)));
  [[maybe_unused]] const ssize_t written = write(file, line, static_cast<size_t>(length));
  close(file);
}

void Counters::Failed() { row_[layout::kFailed] += 1; }

void Counters::Restarted() { row_[layout::kRestarts] += 1; }

}  // namespace parquetry
