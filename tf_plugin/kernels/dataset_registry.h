// What outlives a dataset's C++ object: tf.data makes a new one whenever it rewrites the graph, and each of them must
// count on from the iterators that the others have made.
//
// Datasets are told apart by the key that Python gave them. Thread-safe, and never destroyed.

#ifndef PARQUETRY_KERNELS_DATASET_REGISTRY_H_
#define PARQUETRY_KERNELS_DATASET_REGISTRY_H_

#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <unordered_map>

#include "json.h"
#include "sidecar_client.h"

namespace parquetry {

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

  std::shared_ptr<DatasetFacts> Facts(const std::string& key) {
    std::lock_guard<std::mutex> lock(mutex_);
    Entry& entry = entries_[key];
    std::shared_ptr<DatasetFacts> facts = entry.facts.lock();
    if (facts == nullptr) entry.facts = facts = std::make_shared<DatasetFacts>();
    return facts;
  }

  // The number of the iteration that an iterator made now is to be.
  int64_t TakeIteration(const std::string& key) {
    std::lock_guard<std::mutex> lock(mutex_);
    return entries_[key].next_iteration++;
  }

  // The iteration is underway: later iterators come after it, also when it was restored.
  void SetStarted(const std::string& key, const Started& started) {
    std::lock_guard<std::mutex> lock(mutex_);
    Entry& entry = entries_[key];
    const auto state = ParseJsonObject(started.State(0));
    const int64_t iteration = state ? IntegerMember(*state, "iteration", -1) : -1;
    if (iteration >= entry.next_iteration) entry.next_iteration = iteration + 1;
    entry.latest = started;
  }

  // The answer to the latest START, by whichever iterator.
  std::optional<Started> Latest(const std::string& key) {
    std::lock_guard<std::mutex> lock(mutex_);
    return entries_[key].latest;
  }

 private:
  struct Entry {
    int64_t next_iteration = 0;
    std::weak_ptr<DatasetFacts> facts;
    std::optional<Started> latest;
  };

  std::mutex mutex_;
  std::unordered_map<std::string, Entry> entries_;
};

}  // namespace parquetry

#endif  // PARQUETRY_KERNELS_DATASET_REGISTRY_H_
