// What outlives a dataset's C++ object: tf.data makes a new one whenever it rewrites the graph, and each of them must
// count on from the iterators that the others have made.
//
// Datasets are told apart by the key that Python gave them. Thread-safe, and never destroyed.

#ifndef PARQUETRY_KERNELS_DATASET_REGISTRY_H_
#define PARQUETRY_KERNELS_DATASET_REGISTRY_H_

#include <algorithm>
#include <cstdint>
#include <deque>
#include <iterator>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <unordered_map>
#include <utility>

#include "sidecar_client.h"

namespace parquetry {

// The latest iteration of a dataset, and which elements of it came after elements that were left out. The elements in
// between follow each other, so the jumps are enough to know every position.
class Progress {
 public:
  static constexpr size_t kMostJumps = 1 << 16;

  explicit Progress(Started started) : started_(std::move(started)) {}

  // Element number `given` (counted from the START, from 0) is number `first` of the iteration.
  void Jump(int64_t given, int64_t first) {
    jumps_.emplace_back(given, first);
    if (jumps_.size() > kMostJumps) jumps_.pop_front(), ++forgotten_;
  }

  // The position after `given` elements from the START on; nothing if that is too long ago.
  std::optional<int64_t> PositionAfter(int64_t given) const {
    const auto after = std::lower_bound(jumps_.begin(), jumps_.end(), std::make_pair(given, int64_t{-1}));
    if (after != jumps_.begin()) return std::prev(after)->second + given - std::prev(after)->first;
    if (forgotten_ > 0) return std::nullopt;
    return started_.consumed + given;
  }

  const Started& started() const { return started_; }

 private:
  const Started started_;
  std::deque<std::pair<int64_t, int64_t>> jumps_;  // rising
  int64_t forgotten_ = 0;
};

// What is known about a dataset for as long as one of its C++ objects lives.
struct DatasetFacts {
  std::mutex mutex;
  std::optional<int64_t> cardinality;
};

class DatasetRegistry {
 public:
  static DatasetRegistry& Get() {
    static auto* const registry = new DatasetRegistry;
    return *registry;
  }

  // With `passing` all that is known under the key is forgotten when the facts are dropped.
  std::shared_ptr<DatasetFacts> Facts(const std::string& key, bool passing) {
    std::lock_guard<std::mutex> lock(mutex_);
    Entry& entry = entries_[key];
    std::shared_ptr<DatasetFacts> facts = entry.facts.lock();
    if (facts != nullptr) return facts;
    facts.reset(new DatasetFacts, [this, key, passing](DatasetFacts* dropped) {
      delete dropped;
      if (passing) Forget(key);
    });
    entry.facts = facts;
    return facts;
  }

  // A key that no other dataset of this process has.
  std::string NewKey() {
    std::lock_guard<std::mutex> lock(mutex_);
    return "made-" + std::to_string(next_key_++);
  }

  // The number of the iteration that an iterator made now is to be.
  int64_t TakeIteration(const std::string& key) {
    std::lock_guard<std::mutex> lock(mutex_);
    return entries_[key].next_iteration++;
  }

  // The iteration is underway. After one that was restored the next iterator is the epoch after it, whatever was read
  // before. Gives the number under which `Jump` knows it.
  int64_t SetStarted(const std::string& key, const Started& started, bool restored) {
    std::lock_guard<std::mutex> lock(mutex_);
    Entry& entry = entries_[key];
    if (restored || started.iteration >= entry.next_iteration) entry.next_iteration = started.iteration + 1;
    entry.latest.emplace(started);
    return ++entry.starts;
  }

  // See `Progress::Jump`; of no effect once another iteration has begun.
  void Jump(const std::string& key, int64_t start, int64_t given, int64_t first) {
    std::lock_guard<std::mutex> lock(mutex_);
    Entry& entry = entries_[key];
    if (entry.starts == start) entry.latest->Jump(given, first);
  }

  // The latest iteration, of whichever iterator.
  std::optional<Progress> Latest(const std::string& key) {
    std::lock_guard<std::mutex> lock(mutex_);
    return entries_[key].latest;
  }

  // The next new iterator begins at this state of this iteration, and those after it come after it, whatever was made before.
  void SetNextState(const std::string& key, const std::string& state, int64_t iteration) {
    std::lock_guard<std::mutex> lock(mutex_);
    Entry& entry = entries_[key];
    entry.next_iteration = iteration + 1;
    entry.next_state = state;
  }

  std::optional<std::string> TakeNextState(const std::string& key) {
    std::lock_guard<std::mutex> lock(mutex_);
    return std::exchange(entries_[key].next_state, std::nullopt);
  }

 private:
  struct Entry {
    int64_t next_iteration = 0;
    std::weak_ptr<DatasetFacts> facts;
    int64_t starts = 0;
    std::optional<Progress> latest;
    std::optional<std::string> next_state;
  };

  void Forget(const std::string& key) {
    std::lock_guard<std::mutex> lock(mutex_);
    const auto found = entries_.find(key);
    if (found != entries_.end() && found->second.facts.expired()) entries_.erase(found);
  }

  std::mutex mutex_;
  std::unordered_map<std::string, Entry> entries_;
  int64_t next_key_ = 0;
};

}  // namespace parquetry

#endif  // PARQUETRY_KERNELS_DATASET_REGISTRY_H_
