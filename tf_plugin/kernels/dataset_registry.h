// Keeps what outlives a dataset's C++ object. tf.data makes a new object whenever it rewrites the
// graph, and each new object must continue the iterator count of the others.
//
// The key from Python identifies a dataset. The registry is thread-safe and is never destroyed.

#ifndef PARQUETRY_KERNELS_DATASET_REGISTRY_H_
#define PARQUETRY_KERNELS_DATASET_REGISTRY_H_

#include <chrono>
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

// The latest iteration of a dataset, and which of its elements came right after skipped elements
// (the jumps). All other elements follow each other, so the jumps are enough to compute every
// position.
class Progress {
 public:
  static constexpr size_t kMostJumps = 1 << 16;

  explicit Progress(Started started) : started_(std::move(started)) {}

  // Element number `given` (counted from START, from 0) is element number `first` of the iteration.
  void Jump(int64_t given, int64_t first);

  // Once the iteration has given `end.elements` elements, the text of a state ends with `end.text`.
  void EndStates(StateEnd end);

  // Returns the state at a position, or nothing if the position is too far back.
  std::optional<std::string> StateAt(int64_t position) const;

  // Returns the position after `given` elements since START, or nothing if it is too far back.
  std::optional<int64_t> PositionAfter(int64_t given) const;

  const Started& started() const { return started_; }

 private:
  const Started started_;
  std::deque<std::pair<int64_t, int64_t>> jumps_;  // ascending
  int64_t forgotten_ = 0;
  std::deque<StateEnd> state_ends_;  // ascending
  bool forgot_state_end_ = false;
};

// What is known about a dataset while any of its C++ objects lives.
struct DatasetFacts {
  std::mutex mutex;
  std::optional<int64_t> cardinality;
  std::chrono::steady_clock::time_point unknown_until{};  // see `CardinalityOrUnknown`
  std::shared_ptr<const Counters> counters;               // of the latest iteration
};

// Finds the number of elements in a whole iteration. If a sidecar dies, calls `warn` and starts
// another, as often as the request allows. Stores the answer in `facts` (may be null), but never
// stores a failure.
Error FindCardinality(const Request& request, DatasetFacts* facts, void (*warn)(const std::string&),
                      int64_t* cardinality);

// The same for callers that cannot report an error: calls `warn` and returns `kUnknown`.
//
// With `in_graph`, tf.data asks while it writes a graph, and asks again for each dataset that is made
// from this one. A failure then answers all of them: for 10 seconds, or until an iteration fails to
// begin. Without it, a user asks, so the next caller tries again, as the cause may be repaired.
int64_t CardinalityOrUnknown(const Request& request, DatasetFacts& facts, bool in_graph,
                             void (*warn)(const std::string&));

// Call this when an iteration could not begin: the next `CardinalityOrUnknown` tries again.
void TryCardinalityAgain(DatasetFacts& facts);

class DatasetRegistry {
 public:
  static DatasetRegistry& Get();

  // If `passing` is true, the registry forgets everything about the key when the facts are dropped.
  std::shared_ptr<DatasetFacts> Facts(const std::string& key, bool passing);

  // Returns the counters of the latest iteration; null if there was none or the dataset is gone.
  std::shared_ptr<const Counters> LatestCounters(const std::string& key);

  // Returns a key that no other dataset in this process has.
  std::string NewKey();

  // Returns the iteration number for an iterator that is made now, and reserves it.
  int64_t TakeIteration(const std::string& key);

  // Call this when the iteration has started. After a restored iteration, the next iterator is the
  // epoch after it, whatever was read before. Returns the number that `Jump` takes as `start`.
  // Sets `lost_rest` if an iteration that a state began was not at its end, and if nobody will ask. It
  // is null if several iterators share the iteration, so that its end is unknown.
  int64_t SetStarted(const std::string& key, const Started& started, bool restored, bool* lost_rest);

  // See `Progress::Jump`. Does nothing once another iteration has begun.
  void Jump(const std::string& key, int64_t start, int64_t given, int64_t first);

  // See `Progress::EndStates`. Does nothing once another iteration has begun.
  void EndStates(const std::string& key, int64_t start, StateEnd end);

  // Returns the latest iteration, whichever iterator it belongs to; nothing if a state waits for the
  // next one.
  std::optional<Progress> Latest(const std::string& key);

  // The next new iterator begins at this state of this iteration. Iterators after it continue from
  // there, whatever was made before.
  void SetNextState(const std::string& key, const std::string& state, int64_t iteration);

  std::optional<std::string> TakeNextState(const std::string& key);

  // Call this when an iteration has given its last element, or has found no more.
  void SetEnded(const std::string& key, int64_t start);

  // Call this before an iteration begins of which you will ask `TakeLostRest`.
  void WillAsk(const std::string& key);

  // Returns whether that iteration began while one that a state began was not at its end.
  bool TakeLostRest(const std::string& key);

 private:
  struct Entry {
    int64_t next_iteration = 0;
    std::weak_ptr<DatasetFacts> facts;
    int64_t starts = 0;
    std::optional<Progress> latest;
    std::optional<std::string> next_state;
    bool is_resumed = false;  // the latest iteration began at a state, and has not ended
    bool will_ask = false;
    bool lost_rest = false;
  };

  void Forget(const std::string& key);

  std::mutex mutex_;
  std::unordered_map<std::string, Entry> entries_;
  int64_t next_key_ = 0;
};

}  // namespace parquetry

#endif  // PARQUETRY_KERNELS_DATASET_REGISTRY_H_
