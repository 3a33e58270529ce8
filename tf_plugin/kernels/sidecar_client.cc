#include "sidecar_client.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <mutex>
#include <new>
#include <utility>

#include "child_process.h"
#include "fork_guard.h"
#include "graph_secrets.h"
#include "interrupts.h"
#include "messages.h"
#include "stall_watch.h"

namespace parquetry {

using protocol::BatchHeader;
using protocol::Header;
using protocol::MessageType;
using protocol::TensorEntry;
using std::chrono::milliseconds;

namespace {

// How long to wait for a sidecar that was told to end, and for the exit status of one whose
// connection has ended. The Python client uses the same times.
constexpr milliseconds kGraceToEnd{2000};
constexpr milliseconds kGraceToReport{2000};

// How often to check on a sidecar during a wait.
constexpr int kLookMs = 500;

// A sidecar with this argument may open several requests, one after the other.
constexpr char kShared[] = "--shared";
constexpr char kRestartsFlag[] = "--restarts";
constexpr int64_t kRestarts = 3;  // the same number as in common/plan/options.py
constexpr char kStallTimeoutFlag[] = "--stall-timeout-ms";

// Says where a trace goes (see counters.cc). A sidecar reads it from the counters.
constexpr char kTraced[] = "PARQUETRY_TRACE_SPOOL=";

// Returns the number after a flag of a command; `otherwise` if the command, which may come from an
// older graph, does not have the flag.
int64_t NumberAfter(const std::vector<std::string>& command, const char* flag, int64_t otherwise) {
  const auto found = std::find(command.begin(), command.end(), flag);
  if (found == command.end() || std::next(found) == command.end()) return otherwise;
  return std::strtoll(std::next(found)->c_str(), nullptr, 10);
}

std::string ErrnoText() { return std::strerror(errno); }

// Returns what a new process inherits.
std::string Surroundings() {
  char* const directory = getcwd(nullptr, 0);
  std::string all = directory == nullptr ? "" : directory;
  std::free(directory);
  for (char** entry = environ; *entry != nullptr; ++entry) {
    if (std::strncmp(*entry, kTraced, sizeof(kTraced) - 1) != 0) all.append(1, '\0').append(*entry);
  }
  return all;
}

bool WriteAll(int fd, const std::string& text) {
  size_t done = 0;
  while (done < text.size()) {
    const ssize_t written = pwrite(fd, text.data() + done, text.size() - done, static_cast<off_t>(done));
    if (written < 0 && errno == EINTR) continue;
    if (written <= 0) return false;
    done += static_cast<size_t>(written);
  }
  return true;
}

// Returns the descriptor if it is usable; otherwise closes it, and returns -1.
int OrClosed(int fd, bool is_usable) {
  if (!is_usable) close(fd);
  return is_usable ? fd : -1;
}

}  // namespace

int AnonymousFile(const char* name, size_t size) {
  const auto length = static_cast<off_t>(size);
#ifdef SYS_memfd_create
  constexpr unsigned int kCloseOnExec = 1;
  const int fd = static_cast<int>(syscall(SYS_memfd_create, name, kCloseOnExec));
  if (fd >= 0) return OrClosed(fd, ftruncate(fd, length) == 0);
#endif
  static std::atomic<unsigned> number{0};  // iterators of several threads may be here at once
  const std::string path = "/" + std::string(name) + "-" + std::to_string(getpid()) + "-" + std::to_string(++number);
  const int shared = shm_open(path.c_str(), O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
  if (shared < 0) return -1;
  shm_unlink(path.c_str());
  // Without room, a write through a mapping would kill the process.
  return OrClosed(shared, length == 0 || posix_fallocate(shared, 0, length) == 0);
}

// The socket and the process, shared by the sidecar and by every batch that is still in use.
class Connection {
 public:
  Connection(int fd, std::shared_ptr<ChildProcess> process) : socket(fd), process(std::move(process)) {}

  // Returns false if the other side is gone.
  bool Send(MessageType type, uint64_t generation, uint64_t a, const std::string& body, int descriptor) {
    Header header{protocol::kMagic,
                  protocol::kVersion,
                  static_cast<uint16_t>(type),
                  generation,
                  a,
                  0,
                  static_cast<uint32_t>(body.size()),
                  descriptor < 0 ? 0u : 1u};
    iovec parts[] = {{&header, sizeof(header)}, {const_cast<char*>(body.data()), body.size()}};
    msghdr message{};
    message.msg_iov = parts;
    message.msg_iovlen = body.empty() ? 1 : 2;
    alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int))] = {};
    if (descriptor >= 0) {
      message.msg_control = control;
      message.msg_controllen = sizeof(control);
      cmsghdr* rights = CMSG_FIRSTHDR(&message);
      rights->cmsg_level = SOL_SOCKET;
      rights->cmsg_type = SCM_RIGHTS;
      rights->cmsg_len = CMSG_LEN(sizeof(int));
      std::memcpy(CMSG_DATA(rights), &descriptor, sizeof(int));
    }
    const int fd = socket.get();
    if (fd < 0) return false;
    ssize_t sent;
    do {
      sent = sendmsg(fd, &message, MSG_NOSIGNAL);
    } while (sent < 0 && errno == EINTR);
    return sent >= 0;
  }

  void Release(uint64_t slot, uint64_t generation) {
    leases.fetch_sub(1);
    Send(MessageType::kRelease, generation, slot, "", -1);  // a dead sidecar needs no slot
  }

  void Close() {
    if (socket.get() < 0) return;
    Send(MessageType::kClose, 0, 0, "", -1);
    // The descriptor stays open until the last batch is dropped. Until then, nothing else can get
    // its number.
    shutdown(socket.get(), SHUT_RDWR);
    process->KillAfter(kGraceToEnd);
  }

  const OwnedFd socket;
  const std::shared_ptr<ChildProcess> process;
  std::atomic<int64_t> leases{0};  // slots that we hold now
};

// A slot that the sidecar has lent us. It goes back with the last batch that shares the lease.
class SlotLease {
 public:
  SlotLease(std::shared_ptr<Connection> connection, uint64_t slot, uint64_t generation)
      : connection_(std::move(connection)), slot_(slot), generation_(generation) {}
  ~SlotLease() { connection_->Release(slot_, generation_); }
  SlotLease(const SlotLease&) = delete;
  SlotLease& operator=(const SlotLease&) = delete;

 private:
  const std::shared_ptr<Connection> connection_;
  const uint64_t slot_;
  const uint64_t generation_;
};

struct Sidecar::Packet {
  Header header{};
  const char* data = nullptr;  // of the body
  std::unique_ptr<OwnedFd> descriptor;

  // Whether it belongs to an iteration that is over. An error of the sidecar itself belongs to
  // none.
  bool late(uint64_t generation) const {
    return header.generation < generation && (header.generation != 0 || type() != MessageType::kError);
  }
  MessageType type() const { return static_cast<MessageType>(header.type); }
  std::string_view body() const { return {data, header.body_bytes}; }
};

struct Sidecar::Slot {
  std::unique_ptr<OwnedFd> descriptor;
  uint64_t mapped_bytes = 0;
  std::shared_ptr<const void> mapping;

  // Maps the slot. Returns why it cannot be mapped, or an empty string. The size is checked because
  // touching memory that does not exist would kill the process.
  std::string Map(uint64_t bytes) {
    struct stat file {};
    const std::string what = "slot of " + std::to_string(bytes) + " bytes: ";
    if (fstat(descriptor->get(), &file) != 0) return what + ErrnoText();
    if (static_cast<uint64_t>(file.st_size) < bytes) return what + "it only has " + std::to_string(file.st_size);
    // Writable: whoever holds a batch has leased the slot, and may change it in place (for example
    // through DLPack).
    void* const address = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, descriptor->get(), 0);
    if (address == MAP_FAILED) return what + "cannot map it: " + ErrnoText();
    mapping = std::shared_ptr<const void>(address, [bytes](const void* p) { munmap(const_cast<void*>(p), bytes); });
    mapped_bytes = bytes;
    return "";
  }
};

Request Request::OnThisMachine() const {
  Request request = *this;
  std::string& program = request.command[0];
  const char* const chosen = std::getenv("PARQUETRY_PYTHON");
  if (chosen != nullptr && *chosen != '\0') {
    program = chosen;
  } else if (program.find('/') != std::string::npos && access(program.c_str(), X_OK) != 0) {
    program = "python3";
  }
  return request;
}

int64_t Request::Restarts() const { return NumberAfter(command, kRestartsFlag, kRestarts); }

int64_t Request::StallTimeoutMs() const { return NumberAfter(command, kStallTimeoutFlag, 0); }

Canceller::Canceller() : fd_(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)) {}

Canceller::~Canceller() { close(fd_); }

void Canceller::Cancel() {
  cancelled_.store(true);
  const uint64_t one = 1;
  [[maybe_unused]] const ssize_t written = write(fd_, &one, sizeof(one));
}

std::shared_ptr<const Batch> Batch::CopyOut() const {
  std::shared_ptr<Batch> copy(new Batch);
  copy->tensors_ = tensors_;
  copy->first_element_ = first_element_;
  copy->num_elements_ = num_elements_;
  copy->num_rows_ = num_rows_;
  copy->num_bytes_ = num_bytes_;
  size_t total_bytes = 0;
  for (TensorEntry& tensor : copy->tensors_) {
    tensor.offset = total_bytes;
    total_bytes += (tensor.bytes + protocol::kAlignment - 1) / protocol::kAlignment * protocol::kAlignment;
  }
  void* const memory = std::aligned_alloc(protocol::kAlignment, std::max(total_bytes, protocol::kAlignment));
  if (memory == nullptr) throw std::bad_alloc();
  copy->memory_ = std::shared_ptr<const void>(memory, [](const void* p) { std::free(const_cast<void*>(p)); });
  copy->base_ = static_cast<const char*>(memory);
  for (size_t i = 0; i < tensors_.size(); ++i) {
    std::memcpy(static_cast<char*>(memory) + copy->tensors_[i].offset, data(tensors_[i]), tensors_[i].bytes);
  }
  return copy;
}

Sidecar::Sidecar(Request request, std::shared_ptr<Connection> connection)
    : request_(std::move(request)),
      surroundings_(Surroundings()),
      connection_(std::move(connection)),
      buffer_(sizeof(Header) + protocol::kMaxBodyBytes) {}

Sidecar::~Sidecar() { connection_->Close(); }

Error Sidecar::Open(const Request& request, const Canceller* canceller, std::shared_ptr<Sidecar>* out) {
  std::shared_ptr<Sidecar> sidecar;
  {
    // A fork must not happen in between: the child would keep copies of the sockets that nothing
    // tracks.
    std::lock_guard<std::mutex> lock(ForkSafeMutex());
    if (Error error = Launch(request, &sidecar)) return error;
  }
  if (Error error = sidecar->SendOpen(canceller)) return error;
  *out = std::move(sidecar);
  return {};
}

Error Sidecar::Reopen(const Request& request, const Canceller* canceller) {
  request_ = request;
  ++generation_;
  return SendOpen(canceller);
}

bool Sidecar::MayOpen(const Request& request) const {
  if (connection_->leases.load() > 0) return false;
  const auto shared = std::find(request.command.begin(), request.command.end(), kShared);
  return shared != request.command.end() && request.command == request_.command && surroundings_ == Surroundings();
}

Error Sidecar::SendOpen(const Canceller* canceller) {
  stall_timeout_ms_ = request_.StallTimeoutMs();
  const OwnedFd file(AnonymousFile("parquetry-request", 0));
  const std::string whole = WithSecrets(request_.json);
  if (file.get() < 0 || !WriteAll(file.get(), whole)) {
    return Error::Broken("sidecar: cannot write the request to shared memory: " + ErrnoText() + ".");
  }
  if (Error error = Send(MessageType::kOpen, whole.size(), "", file.get())) return error;
  Packet packet;
  if (Error error = Await(MessageType::kOpened, canceller, &packet)) return error;
  cardinality_ = static_cast<int64_t>(packet.header.a);
  restarts_ = static_cast<int64_t>(packet.header.b & 0xffffffff);
  stall_timeout_ms_ = static_cast<int64_t>(packet.header.b >> 32);
  return {};
}

Error Sidecar::Launch(const Request& request, std::shared_ptr<Sidecar>* out) {
  int sockets[2];
  if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, sockets) != 0) {
    return Error::Broken("sidecar: cannot make a socket: " + ErrnoText() + ".");
  }
  std::string why;
  std::shared_ptr<ChildProcess> process = ChildProcess::Spawn(request.command, sockets[1], &why);
  close(sockets[1]);
  if (process == nullptr) {
    close(sockets[0]);
    return Error::Broken("sidecar: cannot run '" + request.command[0] + "': " + why +
                         ". Set PARQUETRY_PYTHON to a Python in which parquetry is installed.");
  }
  out->reset(new Sidecar(request, std::make_shared<Connection>(sockets[0], std::move(process))));
  return {};
}

Error Sidecar::Start(int64_t iteration, const std::string* state, bool merge, const Canceller* canceller, Started* out,
                     int counters) {
  ++generation_;
  ready_.clear();
  const std::string body = PackStart(iteration, state, merge);
  if (body.size() > protocol::kMaxBodyBytes) {
    return {Error::Kind::kRemote, "StateError",
            "state: expected at most " + std::to_string(protocol::kMaxBodyBytes) + " bytes, got " +
                std::to_string(body.size()) + ". This is not a state that parquetry saved."};
  }
  if (Error error = Send(MessageType::kStart, 0, body, counters)) return error;
  active_ = true;
  Packet packet;
  if (Error error = Await(MessageType::kStarted, canceller, &packet)) return error;
  const std::string problem = ReadStarted(packet.header, packet.body(), out);
  if (!problem.empty()) return Broken(problem);
  promised_slots_ = out->most_slots;
  state_ends_.clear();
  return {};
}

Error Sidecar::Next(const Canceller* canceller, std::shared_ptr<const Batch>* out, bool* end) {
  *end = false;
  Packet packet;
  while (true) {
    if (!ready_.empty()) {
      *out = std::move(ready_.front());
      ready_.pop_front();
      return {};
    }
    if (Error error = Receive(canceller, &packet)) return error;
    if (packet.late(generation_)) continue;
    switch (packet.type()) {
      case MessageType::kBatch:
        if (Error error = AddBatches(packet)) return error;
        break;
      case MessageType::kState:
        state_ends_.push_back({static_cast<int64_t>(packet.header.a), std::string(packet.body())});
        break;
      case MessageType::kEnd:
        active_ = false;
        *end = true;
        return {};
      case MessageType::kError: {
        Error error = Reported(packet);
        if (packet.header.a > 0 && error.kind == Error::Kind::kRemote) {
          error.kind = Error::Kind::kElement;
          error.position = static_cast<int64_t>(packet.header.b);
        } else {
          active_ = false;
        }
        return error;
      }
      default:
        return Broken("expected BATCH, STATE, END or ERROR, got message type " + std::to_string(packet.header.type));
    }
  }
}

void Sidecar::Stop() {
  if (active_ && !broken_) Send(MessageType::kStop, 0, "");
  active_ = false;
  ready_.clear();
}

bool Sidecar::Healthy() {
  if (broken_ || interrupted_ || connection_->socket.get() < 0) return false;
  pollfd fds[] = {{connection_->process->ended_fd(), POLLIN, 0}, {connection_->socket.get(), 0, 0}};
  // Ask only whether the other side of the socket hung up.
  return poll(fds, 2, 0) == 0;
}

Error Sidecar::Send(MessageType type, uint64_t a, const std::string& body, int descriptor) {
  if (connection_->Send(type, generation_, a, body, descriptor)) return {};
  return Ended();
}

// Receives messages up to the wanted one of this generation, or up to its ERROR.
Error Sidecar::Await(MessageType wanted, const Canceller* canceller, Packet* packet) {
  while (true) {
    if (Error error = Receive(canceller, packet)) return error;
    if (packet->late(generation_)) continue;
    if (packet->type() == wanted) return {};
    if (packet->type() == MessageType::kError) {
      active_ = false;
      return Reported(*packet);
    }
    return Broken("expected message type " + std::to_string(static_cast<int>(wanted)) + ", got " +
                  std::to_string(packet->header.type));
  }
}

// Receives one packet. Before returning, handles what concerns all generations: slots, and batches
// that arrive late.
Error Sidecar::Receive(const Canceller* canceller, Packet* packet) {
  if (broken_) return Ended();
  while (true) {
    if (canceller != nullptr && canceller->cancelled()) return Error::Cancelled();
    iovec part{buffer_.data(), buffer_.size()};
    alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int))];
    msghdr message{};
    message.msg_iov = &part;
    message.msg_iovlen = 1;
    message.msg_control = control;
    message.msg_controllen = CMSG_LEN(sizeof(int));  // the control buffer itself has room for two
    const int fd = connection_->socket.get();
    if (fd < 0) return Broken("made before a fork, used after it. Create the iterator in the process that uses it");
    const ssize_t got = recvmsg(fd, &message, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
    if (got < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) {
      if (Error error = Wait(canceller)) return error;
      continue;
    }
    // ECONNRESET is reported once, when the other side went away without reading our messages. Its
    // last messages may still be in the socket.
    if (got < 0 && (errno == EINTR || errno == ECONNRESET)) continue;
    if (got <= 0) return Ended();

    packet->descriptor.reset();
    for (cmsghdr* part = CMSG_FIRSTHDR(&message); part != nullptr; part = CMSG_NXTHDR(&message, part)) {
      if (part->cmsg_level != SOL_SOCKET || part->cmsg_type != SCM_RIGHTS) continue;
      int descriptor;
      std::memcpy(&descriptor, CMSG_DATA(part), sizeof(int));
      packet->descriptor = std::make_unique<OwnedFd>(descriptor);
    }
    Header& header = packet->header;
    const std::string_view bytes(buffer_.data(), static_cast<size_t>(got));
    const std::string problem = ReadHeader(bytes, packet->descriptor ? 1 : 0, &header);
    if (!problem.empty()) return Broken(problem);
    packet->data = buffer_.data() + sizeof(Header);
    if (header.generation > generation_) {
      return Broken("expected generation " + std::to_string(generation_) + ", got " +
                    std::to_string(header.generation));
    }

    if (packet->type() == MessageType::kSlot) {
      if (Error error = AddSlot(*packet)) return error;
      continue;
    }
    if (packet->type() == MessageType::kBatch) {
      connection_->leases.fetch_add(1);
      if (header.generation != generation_) connection_->Release(header.a, header.generation);
    }
    return {};
  }
}

// Waits until there is something to receive, the process has ended, or the wait is cancelled.
Error Sidecar::Wait(const Canceller* canceller) {
  pollfd fds[] = {{connection_->socket.get(), POLLIN, 0},
                  {connection_->process->ended_fd(), POLLIN, 0},
                  {canceller == nullptr ? -1 : canceller->fd(), POLLIN, 0}};
  InterruptWatch watch;
  StallWatch stall(connection_->process->pid(), stall_timeout_ms_);
  const int slice_ms = watch.slice_ms() < 0 ? kLookMs : watch.slice_ms();
  while (poll(fds, 3, slice_ms) <= 0) {
    if (watch.Interrupted()) {
      interrupted_ = true;
      return Error::Cancelled();
    }
    stalled_ = stall.Look();
    if (!stalled_.empty()) return Ended();
  }
  if (fds[2].revents != 0) return Error::Cancelled();
  // Another process may hold the other end of the socket, so watching only for its end is not
  // enough.
  if (fds[1].revents != 0 && fds[0].revents == 0) return Ended();
  return {};
}

Error Sidecar::AddSlot(const Packet& packet) {
  auto slot = std::make_unique<Slot>();
  // The descriptor moves out of `packet`. The packet is ours, and const only for its readers.
  slot->descriptor = std::move(const_cast<Packet&>(packet).descriptor);
  if (slot->descriptor == nullptr) return Broken("expected a descriptor with SLOT, got none");
  const std::string problem = packet.header.b > 0 ? slot->Map(packet.header.b) : "";
  if (!problem.empty()) return Broken(problem);
  slots_[packet.header.a] = std::move(slot);
  return {};
}

// Makes the batches of a message. They share its slot.
Error Sidecar::AddBatches(const Packet& packet) {
  const auto lease = std::make_shared<const SlotLease>(connection_, packet.header.a, generation_);
  const auto found = slots_.find(packet.header.a);
  if (found == slots_.end()) {
    return Broken("expected an announced slot, got " + std::to_string(packet.header.a));
  }
  std::vector<BatchHeader> headers;
  Slot& slot = *found->second;
  std::string problem = ReadBatchHeaders(packet.body(), &headers);
  if (!problem.empty()) return Broken(problem);
  uint64_t slot_bytes = 0;
  for (const BatchHeader& header : headers) slot_bytes = std::max(slot_bytes, header.slot_bytes);
  if (slot_bytes > slot.mapped_bytes) problem = slot.Map(slot_bytes);
  if (!problem.empty()) return Broken(problem);
  // There may be more slots than promised. The extra ones are for elements that are made again.
  const int64_t slots = promised_slots_ > 0 ? promised_slots_ : static_cast<int64_t>(slots_.size());
  const bool scarce = slots - connection_->leases.load() <= 1;
  std::deque<std::shared_ptr<const Batch>> made;
  uint64_t counted = 0;  // of the bytes in front of the tables: the tensors, with padding and earlier tables
  for (const BatchHeader& header : headers) {
    const uint64_t table_bytes = uint64_t{header.num_tensors} * sizeof(TensorEntry);
    uint64_t table_end = 0;
    if (__builtin_add_overflow(header.table_offset, table_bytes, &table_end) || table_end > slot.mapped_bytes) {
      return Broken("expected the tensor table inside the slot, got one at " + std::to_string(header.table_offset));
    }
    std::shared_ptr<Batch> batch(new Batch);
    batch->lease_ = lease;
    batch->memory_ = slot.mapping;
    batch->base_ = static_cast<const char*>(slot.mapping.get());
    batch->first_element_ = static_cast<int64_t>(header.first_element);
    batch->num_elements_ = header.num_elements;
    batch->num_rows_ = static_cast<int64_t>(header.num_rows);
    batch->scarce_ = scarce;
    batch->tensors_.resize(header.num_tensors);
    if (table_bytes > 0) std::memcpy(batch->tensors_.data(), batch->base_ + header.table_offset, table_bytes);
    for (const TensorEntry& tensor : batch->tensors_) {
      if (!TensorFits(tensor, slot.mapped_bytes)) {
        return Broken("tensor of field " + std::to_string(tensor.field) + " role " + std::to_string(tensor.role) +
                      ": expected it aligned and inside the slot, as long as its shape, got " +
                      std::to_string(tensor.bytes) + " bytes at " + std::to_string(tensor.offset));
      }
    }
    if (header.table_offset > counted) {
      batch->num_bytes_ = static_cast<int64_t>(header.table_offset - counted);
      counted = header.table_offset;
    }
    made.push_back(std::move(batch));
  }
  ready_ = std::move(made);
  return {};
}

Error Sidecar::Reported(const Packet& packet) {
  RemoteError error;
  const std::string problem = ReadError(packet.body(), &error);
  if (!problem.empty()) return Broken(problem);
  return {Error::Kind::kRemote, error.name, error.text};
}

Error Sidecar::Broken(const std::string& message) {
  broken_ = true;
  return Error::Broken("sidecar: " + message + ".");
}

Error Sidecar::Ended() {
  broken_ = true;
  ChildProcess& process = *connection_->process;
  if (!stalled_.empty() || !process.WaitEnded(kGraceToReport)) process.KillAfter(milliseconds(0));
  std::string message = "sidecar (process " + std::to_string(process.pid()) + ") ended unexpectedly: " +
                        (stalled_.empty() ? process.Ending() : stalled_) + ".";
  const std::string tail = process.StderrTail();
  message += tail.empty() ? " It wrote nothing to stderr." : " The last lines of its stderr:\n" + tail;
  Error error = Error::Broken(message);
  error.died = true;
  return error;
}

}  // namespace parquetry
