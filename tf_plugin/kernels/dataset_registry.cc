#include "dataset_registry.h"

#include <algorithm>
#include <iterator>

#include "sidecar_pool.h"

namespace parquetry {
namespace {

// Made while the library loads, not at first use: if a fork happened during first use, the child
// would wait for it forever.
DatasetRegistry* const registry = new DatasetRegistry;

using Clock = std::chrono::steady_clock;

constexpr std::chrono::seconds kStaysUnknown{10};  // far longer than it takes to write a graph

// Returns the cardinality that a sidecar reports.
Error AskForCardinality(const Request& request, void (*warn)(const std::string&), int64_t* cardinality) {
  std::shared_ptr<Sidecar> sidecar;
  const auto acquire = [&] { return AcquireSidecar(request, nullptr, &sidecar); };
  if (Error error = TryWithRestarts(request, acquire, warn)) return error;
  *cardinality = sidecar->cardinality();
  ReturnSidecar(std::move(sidecar));
  return {};
}

}  // namespace

void Progress::Jump(int64_t given, int64_t first) {
  jumps_.emplace_back(given, first);
  if (jumps_.size() > kMostJumps) jumps_.pop_front(), ++forgotten_;
}

std::optional<int64_t> Progress::PositionAfter(int64_t given) const {
  const auto after = std::lower_bound(jumps_.begin(), jumps_.end(), std::make_pair(given, int64_t{-1}));
  if (after != jumps_.begin()) return std::prev(after)->second + given - std::prev(after)->first;
  if (forgotten_ > 0) return std::nullopt;
  return started_.consumed + given;
}

void Progress::EndStates(StateEnd end) {
  state_ends_.push_back(std::move(end));
  if (state_ends_.size() > kMostJumps) state_ends_.pop_front(), forgot_state_end_ = true;
}

std::optional<std::string> Progress::StateAt(int64_t position) const {
  const auto after = std::upper_bound(state_ends_.begin(), state_ends_.end(), position,
                                      [](int64_t at, const StateEnd& end) { return at < end.elements; });
  if (after != state_ends_.begin()) return started_.State(position, &*std::prev(after));
  if (forgot_state_end_) return std::nullopt;
  return started_.State(position);
}

Error FindCardinality(const Request& request, DatasetFacts* facts, void (*warn)(const std::string&),
                      int64_t* cardinality) {
  std::unique_lock<std::mutex> lock;
  if (facts != nullptr) {
    lock = std::unique_lock<std::mutex>(facts->mutex);
    if (facts->cardinality) {
      *cardinality = *facts->cardinality;
      return {};
    }
  }
  const Error error = AskForCardinality(request, warn, cardinality);
  if (!error && facts != nullptr) facts->cardinality = *cardinality;
  return error;
}

int64_t CardinalityOrUnknown(const Request& request, DatasetFacts& facts, bool in_graph,
                             void (*warn)(const std::string&)) {
  std::lock_guard<std::mutex> lock(facts.mutex);
  if (facts.cardinality) return *facts.cardinality;
  if (Clock::now() < facts.unknown_until) return protocol::kUnknown;
  int64_t cardinality = protocol::kUnknown;
  if (const Error error = AskForCardinality(request, warn, &cardinality)) {
    warn("cardinality of a Parquet dataset: " + error.message);
    if (in_graph && error.kind != Error::Kind::kCancelled) facts.unknown_until = Clock::now() + kStaysUnknown;
    return protocol::kUnknown;
  }
  facts.cardinality = cardinality;
  return cardinality;
}

void TryCardinalityAgain(DatasetFacts& facts) {
  std::lock_guard<std::mutex> lock(facts.mutex);
  facts.unknown_until = {};
}

DatasetRegistry& DatasetRegistry::Get() { return *registry; }

std::shared_ptr<DatasetFacts> DatasetRegistry::Facts(const std::string& key, bool passing) {
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

std::shared_ptr<const Counters> DatasetRegistry::LatestCounters(const std::string& key) {
  std::shared_ptr<DatasetFacts> facts;
  {
    std::lock_guard<std::mutex> lock(mutex_);
    facts = entries_[key].facts.lock();
  }
  if (facts == nullptr) return nullptr;
  std::lock_guard<std::mutex> lock(facts->mutex);
  return facts->counters;
}

std::string DatasetRegistry::NewKey() {
  std::lock_guard<std::mutex> lock(mutex_);
  return "made-" + std::to_string(next_key_++);
}

int64_t DatasetRegistry::TakeIteration(const std::string& key) {
  std::lock_guard<std::mutex> lock(mutex_);
  return entries_[key].next_iteration++;
}

int64_t DatasetRegistry::SetStarted(const std::string& key, const Started& started, bool restored, bool* lost_rest) {
  std::lock_guard<std::mutex> lock(mutex_);
  Entry& entry = entries_[key];
  if (restored || started.iteration >= entry.next_iteration) entry.next_iteration = started.iteration + 1;
  const bool lost = entry.is_resumed && !restored && lost_rest != nullptr;
  entry.lost_rest = std::exchange(entry.will_ask, false) && lost;
  if (lost_rest != nullptr) *lost_rest = lost && !entry.lost_rest;
  entry.is_resumed = restored && lost_rest != nullptr;
  entry.latest.emplace(started);
  return ++entry.starts;
}

void DatasetRegistry::SetEnded(const std::string& key, int64_t start) {
  std::lock_guard<std::mutex> lock(mutex_);
  Entry& entry = entries_[key];
  if (entry.starts == start) entry.is_resumed = false;
}

void DatasetRegistry::WillAsk(const std::string& key) {
  std::lock_guard<std::mutex> lock(mutex_);
  entries_[key].will_ask = true;
}

bool DatasetRegistry::TakeLostRest(const std::string& key) {
  std::lock_guard<std::mutex> lock(mutex_);
  return std::exchange(entries_[key].lost_rest, false);
}

void DatasetRegistry::Jump(const std::string& key, int64_t start, int64_t given, int64_t first) {
  std::lock_guard<std::mutex> lock(mutex_);
  Entry& entry = entries_[key];
  if (entry.starts == start) entry.latest->Jump(given, first);
}

void DatasetRegistry::EndStates(const std::string& key, int64_t start, StateEnd end) {
  std::lock_guard<std::mutex> lock(mutex_);
  Entry& entry = entries_[key];
  if (entry.starts == start) entry.latest->EndStates(std::move(end));
}

std::optional<Progress> DatasetRegistry::Latest(const std::string& key) {
  std::lock_guard<std::mutex> lock(mutex_);
  return entries_[key].latest;
}

void DatasetRegistry::SetNextState(const std::string& key, const std::string& state, int64_t iteration) {
  std::lock_guard<std::mutex> lock(mutex_);
  Entry& entry = entries_[key];
  entry.next_iteration = iteration + 1;
  entry.next_state = state;
  entry.latest.reset();
  entry.is_resumed = false;
  ++entry.starts;
}

std::optional<std::string> DatasetRegistry::TakeNextState(const std::string& key) {
  std::lock_guard<std::mutex> lock(mutex_);
  return std::exchange(entries_[key].next_state, std::nullopt);
}

void DatasetRegistry::Forget(const std::string& key) {
  std::lock_guard<std::mutex> lock(mutex_);
  const auto found = entries_.find(key);
  if (found != entries_.end() && found->second.facts.expired()) entries_.erase(found);
}

}  // namespace parquetry
