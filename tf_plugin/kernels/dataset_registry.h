// What outlives a dataset's C++ object: tf.data makes a new one whenever it rewrites the graph, and each of them must
// count on from the iterators that the others have made.
//
// Datasets are told apart by the key that Python gave them. Thread-safe, and never destroyed.

#ifndef PARQUETRY_KERNELS_DATASET_REGISTRY_H_
#define PARQUETRY_KERNELS_DATASET_REGISTRY_H_

#include <cstdint>
#include <deque>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <unordered_map>
#include <utility>

#include "counters.h"
#include "sidecar_client.h"

namespace parquetry {

// The latest iteration of a dataset, and which elements of it came after elements that were left out. The elements in
// between follow each other, so the jumps are enough to know every position.
class Progress {
 public:
  static constexpr size_t kMostJumps = 1 << 16;

  explicit Progress(Started started) : started_(std::move(started)) {}

  // Element number `given` (counted from the START, from 0) is number `first` of the iteration.
  void Jump(int64_t given, int64_t first);

  // From so many elements of the iteration on, a state's text ends otherwise.
  void EndStates(StateEnd end);

  // The state at a position; nothing if that is too long ago.
  std::optional<std::string> StateAt(int64_t position) const;

  // The position after `given` elements from the START on; nothing if that is too long ago.
  std::optional<int64_t> PositionAfter(int64_t given) const;

  const Started& started() const { return started_; }

 private:
  const Started started_;
  std::deque<std::pair<int64_t, int64_t>> jumps_;  // rising
  int64_t forgotten_ = 0;
  std::deque<StateEnd> state_ends_;  // rising
  bool forgot_state_end_ = false;
};

// What is known about a dataset for as long as one of its C++ objects lives.
struct DatasetFacts {
  std::mutex mutex;
  std::optional<int64_t> cardinality;
  std::shared_ptr<const Counters> counters;  // of the latest iteration
};

// Finds the number of elements in a whole iteration. Replaces a sidecar that dies, as often as the request allows, and
// calls `warn` each time. Remembers an answer in `facts` (may be null), but never a failure.
Error FindCardinality(const Request& request, DatasetFacts* facts, void (*warn)(const std::string&),
                      int64_t* cardinality);

class DatasetRegistry {
 public:
  static DatasetRegistry& Get();

  // With `passing` all that is known under the key is forgotten when the facts are dropped.
  std::shared_ptr<DatasetFacts> Facts(const std::string& key, bool passing);

  // The counters of the latest iteration; null if there was none, or the dataset is gone.
  std::shared_ptr<const Counters> LatestCounters(const std::string& key);

  // A key that no other dataset of this process has.
  std::string NewKey();

  // The number of the iteration that an iterator made now is to be.
  int64_t TakeIteration(const std::string& key);

  // The iteration is underway. After one that was restored the next iterator is the epoch after it, whatever was read
  // before. Gives the number under which `Jump` knows it.
  int64_t SetStarted(const std::string& key, const Started& started, bool restored);

  // See `Progress::Jump`; of no effect once another iteration has begun.
  void Jump(const std::string& key, int64_t start, int64_t given, int64_t first);

  // See `Progress::EndStates`, likewise.
  void EndStates(const std::string& key, int64_t start, StateEnd end);

  // The latest iteration, of whichever iterator.
  std::optional<Progress> Latest(const std::string& key);

  // The next new iterator begins at this state of this iteration, and those after it come after it, whatever was made
  // before.
  void SetNextState(const std::string& key, const std::string& state, int64_t iteration);

  std::optional<std::string> TakeNextState(const std::string& key);

 private:
  struct Entry {
    int64_t next_iteration = 0;
    std::weak_ptr<DatasetFacts> facts;
    int64_t starts = 0;
    std::optional<Progress> latest;
    std::optional<std::string> next_state;
  };

  void Forget(const std::string& key);

  std::mutex mutex_;
  std::unordered_map<std::string, Entry> entries_;
  int64_t next_key_ = 0;
};

}  // namespace parquetry

#endif  // PARQUETRY_KERNELS_DATASET_REGISTRY_H_
