#include "child_process.h"

#include <dlfcn.h>
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <spawn.h>
#include <sys/eventfd.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <future>
#include <utility>

extern char** environ;

namespace parquetry {
namespace {

using Clock = std::chrono::steady_clock;
using std::chrono::milliseconds;

constexpr int kChildFd = 3;
constexpr int kFirstFreeFd = 10;  // above every number that the child's file actions write to
constexpr size_t kTailBytes = 8192;
constexpr int kPollWithoutPidfdMs = 50;

int PidfdOpen(pid_t pid) {
#ifdef SYS_pidfd_open
  return static_cast<int>(syscall(SYS_pidfd_open, pid, 0));
#else
  (void)pid;
  return -1;
#endif
}

// Moves a descriptor above the child's 0 to 3, because a trainer may run with closed standard
// streams.
int MoveUp(int fd) {
  const int moved = fcntl(fd, F_DUPFD_CLOEXEC, kFirstFreeFd);
  close(fd);
  return moved;
}

void Signal(int event_fd) {
  const uint64_t one = 1;
  [[maybe_unused]] const ssize_t written = write(event_fd, &one, sizeof(one));
}

// Only glibc 2.34 and later has this function. It is looked up when this library loads, so that a
// build made there still loads on an older system.
using CloseAllFromFunction = int (*)(posix_spawn_file_actions_t*, int);
const auto close_all_from =
    reinterpret_cast<CloseAllFromFunction>(dlsym(RTLD_DEFAULT, "posix_spawn_file_actions_addclosefrom_np"));

int SpawnProcess(const std::vector<std::string>& command, int inherited_fd, int stderr_fd, pid_t* pid) {
  std::vector<std::string> arguments = command;
  arguments.push_back("--fd");
  arguments.push_back(std::to_string(kChildFd));
  std::vector<char*> argv;
  for (std::string& argument : arguments) argv.push_back(argument.data());
  argv.push_back(nullptr);

  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  posix_spawn_file_actions_addopen(&actions, 0, "/dev/null", O_RDONLY, 0);
  posix_spawn_file_actions_adddup2(&actions, stderr_fd, 2);
  posix_spawn_file_actions_adddup2(&actions, inherited_fd, kChildFd);
  if (close_all_from != nullptr) close_all_from(&actions, kChildFd + 1);

  posix_spawnattr_t attributes;
  posix_spawnattr_init(&attributes);
  sigset_t none, standard;
  sigemptyset(&none);
  sigemptyset(&standard);
  sigaddset(&standard, SIGPIPE);
  sigaddset(&standard, SIGINT);
  posix_spawnattr_setsigmask(&attributes, &none);
  posix_spawnattr_setsigdefault(&attributes, &standard);
  posix_spawnattr_setpgroup(&attributes, 0);
  posix_spawnattr_setflags(&attributes, POSIX_SPAWN_SETSIGMASK | POSIX_SPAWN_SETSIGDEF | POSIX_SPAWN_SETPGROUP);

  const int failed = posix_spawnp(pid, argv[0], &actions, &attributes, argv.data(), environ);
  posix_spawnattr_destroy(&attributes);
  posix_spawn_file_actions_destroy(&actions);
  return failed;
}

}  // namespace

bool StartDetachedThread(void (*body)(void*), void* argument) {
  struct Call {
    void (*body)(void*);
    void* argument;
  };
  sigset_t all, before;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before);
  pthread_t thread;
  Call* const call = new Call{body, argument};
  const int failed = pthread_create(
      &thread, nullptr,
      [](void* raw) -> void* {
        const Call call = *static_cast<Call*>(raw);
        delete static_cast<Call*>(raw);
        call.body(call.argument);
        return nullptr;
      },
      call);
  if (failed == 0) {
    pthread_detach(thread);
  } else {
    delete call;
  }
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
  return failed == 0;
}

std::shared_ptr<ChildProcess> ChildProcess::Spawn(const std::vector<std::string>& command, int inherited_fd,
                                                  std::string* error) {
  int pipe_fds[2];
  if (pipe2(pipe_fds, O_CLOEXEC) != 0) {
    *error = std::strerror(errno);
    return nullptr;
  }
  const int inherited = fcntl(inherited_fd, F_DUPFD_CLOEXEC, kFirstFreeFd);
  const int stderr_write = MoveUp(pipe_fds[1]);
  fcntl(pipe_fds[0], F_SETFL, O_NONBLOCK);
  // The thread keeps the object alive until the child is reaped. No zombie is left, whoever drops
  // the object. What it refers to here stays valid until it has answered.
  struct Order {
    std::shared_ptr<ChildProcess> process;
    const std::vector<std::string>& command;
    int inherited_fd;
    int stderr_fd;
    std::promise<int> failed;
  };
  const std::shared_ptr<ChildProcess> process(new ChildProcess(pipe_fds[0]));
  auto* const order = new Order{process, command, inherited, stderr_write, {}};
  std::future<int> answer = order->failed.get_future();
  const auto keep = [](void* raw) {
    std::unique_ptr<Order> own(static_cast<Order*>(raw));
    const std::shared_ptr<ChildProcess> held = own->process;
    const int failed = SpawnProcess(own->command, own->inherited_fd, own->stderr_fd, &held->pid_);
    own->failed.set_value(failed);
    own.reset();
    if (failed == 0) held->Watch();
  };
  int failed = EAGAIN;
  if (StartDetachedThread(keep, order)) {
    failed = answer.get();
  } else {
    delete order;
  }
  close(inherited);
  close(stderr_write);
  if (failed != 0) {
    *error = std::strerror(failed);
    return nullptr;
  }
  return process;
}

ChildProcess::ChildProcess(int stderr_fd)
    : stderr_fd_(stderr_fd),
      ended_fd_(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)),
      wake_fd_(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)) {}

ChildProcess::~ChildProcess() {
  close(stderr_fd_);
  close(ended_fd_);
  close(wake_fd_);
}

void ChildProcess::Watch() {
  const int pidfd = PidfdOpen(pid_);
  bool stderr_open = true;
  while (true) {
    int timeout_ms = pidfd < 0 ? kPollWithoutPidfdMs : -1;
    {
      std::lock_guard<std::mutex> lock(mutex_);
      if (kill_at_ != Clock::time_point::max()) {
        const auto left = std::chrono::duration_cast<milliseconds>(kill_at_ - Clock::now()).count();
        if (left <= 0) {
          kill(pid_, SIGKILL);
          kill_at_ = Clock::time_point::max();
        } else if (timeout_ms < 0 || left < timeout_ms) {
          timeout_ms = static_cast<int>(left) + 1;
        }
      }
    }
    pollfd fds[] = {{stderr_open ? stderr_fd_ : -1, POLLIN, 0}, {pidfd, POLLIN, 0}, {wake_fd_, POLLIN, 0}};
    poll(fds, 3, timeout_ms);
    if (fds[0].revents != 0) stderr_open = ReadStderr();
    if (fds[2].revents != 0) {
      uint64_t count;
      [[maybe_unused]] const ssize_t got = read(wake_fd_, &count, sizeof(count));
    }
    int status = 0;
    const pid_t reaped = waitpid(pid_, &status, WNOHANG);
    if (reaped == 0 || (reaped < 0 && errno == EINTR)) continue;
    // The child was reaped here, or another part of this process waits for all children (ECHILD).
    // In that case, the status is lost.
    if (stderr_open) ReadStderr();
    std::lock_guard<std::mutex> lock(mutex_);
    ended_ = true;
    status_known_ = reaped == pid_;
    status_ = status;
    Signal(ended_fd_);
    changed_.notify_all();
    break;
  }
  if (pidfd >= 0) close(pidfd);
}

// Forwards the available output. Returns false at the end of the stream.
bool ChildProcess::ReadStderr() {
  char buffer[4096];
  while (true) {
    const ssize_t got = read(stderr_fd_, buffer, sizeof(buffer));
    if (got < 0 && errno == EINTR) continue;
    if (got <= 0) return got < 0 && errno == EAGAIN;
    [[maybe_unused]] const ssize_t written = write(STDERR_FILENO, buffer, static_cast<size_t>(got));
    std::lock_guard<std::mutex> lock(mutex_);
    tail_.append(buffer, static_cast<size_t>(got));
    if (tail_.size() > kTailBytes) tail_.erase(0, tail_.size() - kTailBytes);
  }
}

bool ChildProcess::WaitEnded(milliseconds limit) {
  std::unique_lock<std::mutex> lock(mutex_);
  return changed_.wait_for(lock, limit, [this] { return ended_; });
}

std::string ChildProcess::Ending() {
  std::lock_guard<std::mutex> lock(mutex_);
  if (!ended_) return "it is still running";
  if (!status_known_) return "exit status unknown";
  if (WIFSIGNALED(status_)) {
    const int number = WTERMSIG(status_);
    return "signal " + std::to_string(number) + " (" + strsignal(number) + ")";
  }
  return "exit status " + std::to_string(WEXITSTATUS(status_));
}

std::string ChildProcess::StderrTail() {
  std::lock_guard<std::mutex> lock(mutex_);
  return tail_;
}

void ChildProcess::KillAfter(milliseconds grace) {
  {
    std::lock_guard<std::mutex> lock(mutex_);
    if (ended_) return;
    kill_at_ = std::min(kill_at_, Clock::now() + grace);
  }
  Signal(wake_fd_);
}

}  // namespace parquetry
