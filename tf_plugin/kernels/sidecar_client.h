// The trainer's side of docs/protocol.md: starts a sidecar, runs iterations on it, maps its slots, and hands out
// batches as leases on shared memory. Plain C++17 without a framework header, so that it can be tested alone.
//
// Threads: one thread at a time may call the methods of a `Sidecar`; a `Batch` may be dropped on any thread at any
// time, also after its sidecar has ended or been dropped.

#ifndef PARQUETRY_KERNELS_SIDECAR_CLIENT_H_
#define PARQUETRY_KERNELS_SIDECAR_CLIENT_H_

#include <atomic>
#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "messages.h"
#include "protocol.h"

namespace parquetry {

struct Error {
  enum class Kind {
    kNone,
    kCancelled,
    kRemote,  // an error message of the sidecar, which is well and can begin another iteration
    kElement,  // the same, of one element; the iteration goes on behind it
    kBroken,  // the sidecar is gone, or did not keep to the protocol
  };

  static Error Broken(std::string message) { return {Kind::kBroken, "SidecarError", std::move(message)}; }
  static Error Cancelled() { return {Kind::kCancelled, "", "iteration was cancelled"}; }

  explicit operator bool() const { return kind != Kind::kNone; }

  Kind kind = Kind::kNone;
  std::string error_class;  // a class of common/errors.py
  std::string message;
  int64_t position = 0;  // behind the element, for kElement
  bool died = false;     // the process, for kBroken
};

// Ends every wait that was given it, for good. May be cancelled from any thread.
class Canceller {
 public:
  Canceller();
  ~Canceller();
  Canceller(const Canceller&) = delete;
  Canceller& operator=(const Canceller&) = delete;

  void Cancel();
  bool cancelled() const { return cancelled_.load(); }
  int fd() const { return fd_; }

 private:
  const int fd_;
  std::atomic<bool> cancelled_{false};
};

// What is wanted of a sidecar. Two iterators with equal requests may share one, one after the other: it keeps nothing
// from one iteration to the next, and the JSON holds the version of the dataset's files.
struct Request {
  std::vector<std::string> command;  // for example {"/usr/bin/python3", "-m", "parquetry.common.sidecar"}
  std::string json;                  // the body of OPEN
  std::string dataset_key;           // under which iterators are counted; nothing that a sidecar knows of

  // With the Python to run here, which may be another machine than where the request was made: PARQUETRY_PYTHON, else
  // the command's own, else python3.
  Request OnThisMachine() const;

  // How often in a row a sidecar is started again that died before it told how often that is to be done.
  int64_t Restarts() const;

  bool operator==(const Request& other) const { return json == other.json && command == other.command; }
};

class Connection;

// A descriptor of memory that has no name, closed on exec; -1 if the system has none.
int AnonymousFile(const char* name);

// One BATCH message and the memory that it is in. The slot goes back to the sidecar when the last reference is
// dropped. Always holds: every tensor lies inside the memory, begins on a 64-byte boundary, and is as long as its
// dtype and shape say.
class Batch {
 public:
  ~Batch();
  Batch(const Batch&) = delete;
  Batch& operator=(const Batch&) = delete;

  const std::vector<protocol::TensorEntry>& tensors() const { return tensors_; }
  const char* data(const protocol::TensorEntry& tensor) const { return base_ + tensor.offset; }
  int64_t first_element() const { return first_element_; }
  int64_t num_elements() const { return num_elements_; }
  int64_t num_rows() const { return num_rows_; }      // of all elements
  int64_t num_bytes() const { return num_bytes_; }  // of their tensors

  // True if at most one slot was free when this batch came: holding on to it may stall the sidecar.
  bool scarce() const { return scarce_; }

  // The same batch in memory of its own; holds no slot.
  std::shared_ptr<const Batch> CopyOut() const;

 private:
  friend class Sidecar;
  Batch() = default;

  std::vector<protocol::TensorEntry> tensors_;
  const char* base_ = nullptr;
  std::shared_ptr<const void> memory_;  // the mapping, or the copy
  int64_t first_element_ = 0;
  int64_t num_elements_ = 0;
  int64_t num_rows_ = 0;
  int64_t num_bytes_ = 0;
  bool scarce_ = false;
  std::shared_ptr<Connection> connection_;  // none for a copy
  uint64_t slot_ = 0;
  uint64_t generation_ = 0;
};

class Sidecar {
 public:
  // Starts a sidecar and waits until it has opened the request.
  static Error Open(const Request& request, const Canceller* canceller, std::shared_ptr<Sidecar>* out);
  ~Sidecar();

  // Opens another request in the same process. Fails with kBroken if that cannot be done; the process has ended then.
  Error Reopen(const Request& request, const Canceller* canceller);

  // Whether `Reopen` may be called: a new process for that request would be like this one was, and nobody holds a slot,
  // of which a request may have few.
  bool MayOpen(const Request& request) const;

  const Request& request() const { return request_; }
  int64_t cardinality() const { return cardinality_; }

  // How often in a row another is to be started in its place once it has died.
  int64_t restarts() const { return restarts_; }

  // Begins an iteration; ends the one before it. `state` may be null. With `merge` a message may hold several batches.
  // `counters`: the descriptor of the memory that the iteration counts in; -1 = none.
  Error Start(int64_t iteration, const std::string* state, bool merge, const Canceller* canceller, Started* out,
              int counters = -1);

  // The next batch of the iteration, or `*end`.
  Error Next(const Canceller* canceller, std::shared_ptr<const Batch>* out, bool* end);

  // What was said, up to the latest batch or error, about how states end; each is given once.
  std::vector<StateEnd> TakeStateEnds() { return std::exchange(state_ends_, {}); }

  // Ends the iteration early. The sidecar can be started again.
  void Stop();

  // False once it cannot be used any more.
  bool Healthy();

 private:
  struct Packet;
  struct Slot;

  Sidecar(Request request, std::shared_ptr<Connection> connection);
  static Error Launch(const Request& request, std::shared_ptr<Sidecar>* out);
  Error SendOpen(const Canceller* canceller);
  Error Send(protocol::MessageType type, uint64_t a, const std::string& body, int descriptor = -1);
  Error Receive(const Canceller* canceller, Packet* packet);
  Error Wait(const Canceller* canceller);
  Error Await(protocol::MessageType wanted, const Canceller* canceller, Packet* packet);
  Error AddSlot(const Packet& packet);
  Error MakeBatch(const Packet& packet, std::shared_ptr<const Batch>* out);
  Error Reported(const Packet& packet);
  Error Broken(const std::string& message);
  Error Ended();

  Request request_;
  const std::string surroundings_;  // environment and working directory that the process began with
  const std::shared_ptr<Connection> connection_;
  int64_t cardinality_ = protocol::kUnknown;
  int64_t restarts_ = 0;
  int64_t stall_timeout_ms_ = 0;  // 0: none
  std::string stalled_;           // what the process did when it was killed for that
  uint64_t generation_ = 0;
  bool broken_ = false;
  bool interrupted_ = false;  // by Ctrl-C: a function may run on that nobody waits for, and none must wait behind it
  bool active_ = false;  // an iteration runs
  int64_t promised_slots_ = 0;
  std::vector<StateEnd> state_ends_;
  std::map<uint64_t, std::unique_ptr<Slot>> slots_;
  std::vector<char> buffer_;
};

}  // namespace parquetry

#endif  // PARQUETRY_KERNELS_SIDECAR_CLIENT_H_
