// The trainer's side of docs/protocol.md. Starts a sidecar, runs iterations on it, maps its slots,
// and hands out batches as leases on shared memory. Plain C++17 without framework headers, so that
// it can be tested alone.
//
// Threads: only one thread at a time may call the methods of a `Sidecar`. You can drop a `Batch` on
// any thread at any time, even after its sidecar has ended or been dropped.

#ifndef PARQUETRY_KERNELS_SIDECAR_CLIENT_H_
#define PARQUETRY_KERNELS_SIDECAR_CLIENT_H_

#include <atomic>
#include <cstdint>
#include <deque>
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
    kRemote,  // an error message from the sidecar, which can still begin another iteration
    kElement,  // an error about one element; the iteration continues after it
    kBroken,  // the sidecar is gone, or violated the protocol
  };

  static Error Broken(std::string message) { return {Kind::kBroken, "SidecarError", std::move(message)}; }
  static Error Cancelled() { return {Kind::kCancelled, "", "iteration was cancelled"}; }

  explicit operator bool() const { return kind != Kind::kNone; }

  Kind kind = Kind::kNone;
  std::string error_class;  // a class in common/base/errors.py
  std::string message;
  int64_t position = 0;  // for kElement: the position after the element
  bool died = false;     // for kBroken: whether the process died
};

// Ends every wait that uses it, permanently. Any thread may call `Cancel`.
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

// What a sidecar is asked to do. Two iterators with equal requests may use the same sidecar, one
// after the other: it keeps nothing between iterations, and the JSON contains the version of the
// dataset's files.
struct Request {
  // For example {"/usr/bin/python3", "-m", "parquetry.common.sidecar"}.
  std::vector<std::string> command;
  std::string json;                  // the body of OPEN
  std::string dataset_key;           // counts iterators by this key; sidecars do not know it

  // Returns the request with the Python to run on this machine, which may differ from the machine
  // that made the request: PARQUETRY_PYTHON, else the Python in the command, else python3.
  Request OnThisMachine() const;

  // How many times in a row to restart a sidecar that died before it sent its own limit.
  int64_t Restarts() const;

  // How long a sidecar may stay inactive until it has sent its own limit; 0: forever.
  int64_t StallTimeoutMs() const;

  bool operator==(const Request& other) const { return json == other.json && command == other.command; }
};

class Connection;
class SlotLease;

// Returns a descriptor for `size` bytes of unnamed memory, which is closed on exec; -1 if the system has none. A
// sandbox may forbid memfd; the memory is then in /dev/shm, as in common/base/platform/memory_file.py.
int AnonymousFile(const char* name, size_t size);

// Elements of one size, from a BATCH message, and their memory. The slot goes back to the sidecar
// when the last batch of the message is dropped. Every tensor is guaranteed to lie inside the memory, to begin on a 64-byte boundary, and
// to be as long as its dtype and shape say.
class Batch {
 public:
  Batch(const Batch&) = delete;
  Batch& operator=(const Batch&) = delete;

  const std::vector<protocol::TensorEntry>& tensors() const { return tensors_; }
  const char* data(const protocol::TensorEntry& tensor) const { return base_ + tensor.offset; }
  int64_t first_element() const { return first_element_; }
  int64_t num_elements() const { return num_elements_; }
  int64_t num_rows() const { return num_rows_; }      // of all elements
  int64_t num_bytes() const { return num_bytes_; }  // of their tensors

  // True if at most one slot was free when this batch arrived. Keeping the batch may then stall the
  // sidecar.
  bool scarce() const { return scarce_; }

  // Returns the same batch in its own memory. The copy holds no slot.
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
  std::shared_ptr<const SlotLease> lease_;  // null for a copy
};

class Sidecar {
 public:
  // Starts a sidecar and waits until it has opened the request.
  static Error Open(const Request& request, const Canceller* canceller, std::shared_ptr<Sidecar>* out);
  ~Sidecar();

  // Opens another request in the same process. Returns kBroken if that is not possible; the process
  // has then ended.
  Error Reopen(const Request& request, const Canceller* canceller);

  // Whether you may call `Reopen`. True if a new process for that request would be like this one,
  // and no batch holds a slot (a request may have few slots).
  bool MayOpen(const Request& request) const;

  const Request& request() const { return request_; }
  int64_t cardinality() const { return cardinality_; }

  // How many times in a row to start another sidecar after this one has died.
  int64_t restarts() const { return restarts_; }

  // Begins an iteration and ends the previous one. `state` may be null. With `merge`, a message may
  // hold several batches. `counters` is the descriptor of the memory that the iteration counts in;
  // -1 for none.
  Error Start(int64_t iteration, const std::string* state, bool merge, const Canceller* canceller, Started* out,
              int counters = -1);

  // Gets the next batch of the iteration, or sets `*end`.
  Error Next(const Canceller* canceller, std::shared_ptr<const Batch>* out, bool* end);

  // Returns what the sidecar has said about how states end, up to the latest batch or error. Each
  // item is returned once.
  std::vector<StateEnd> TakeStateEnds() { return std::exchange(state_ends_, {}); }

  // Ends the iteration early. You can start the sidecar again.
  void Stop();

  // Returns false once the sidecar can no longer be used.
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
  Error AddBatches(const Packet& packet);
  Error Reported(const Packet& packet);
  Error Broken(const std::string& message);
  Error Ended();

  Request request_;
  const std::string surroundings_;  // environment and working directory when the process began
  const std::shared_ptr<Connection> connection_;
  int64_t cardinality_ = protocol::kUnknown;
  int64_t restarts_ = 0;
  int64_t stall_timeout_ms_;  // 0: none
  std::string stalled_;           // what the process was doing when it was killed for stalling
  uint64_t generation_ = 0;
  bool broken_ = false;
  // Interrupted by Ctrl-C. A function that nobody waits for may still be running, and no new work
  // may queue behind it.
  bool interrupted_ = false;
  bool active_ = false;  // an iteration is running
  int64_t promised_slots_ = 0;
  std::vector<StateEnd> state_ends_;
  std::deque<std::shared_ptr<const Batch>> ready_;  // batches of the latest message
  std::map<uint64_t, std::unique_ptr<Slot>> slots_;
  std::vector<char> buffer_;
};

}  // namespace parquetry

#endif  // PARQUETRY_KERNELS_SIDECAR_CLIENT_H_
