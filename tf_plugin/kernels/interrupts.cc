#include "interrupts.h"

#include <dlfcn.h>
#include <signal.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <thread>

#include "child_process.h"
#include "fork_guard.h"

namespace parquetry {
namespace {

using Clock = std::chrono::steady_clock;
using Handler = void (*)(int);

constexpr int kSliceMs = 100;
// How long to wait for a main thread that may be running Python and could handle the signal.
constexpr std::chrono::milliseconds kPatience{200};
// How long a main thread that waits elsewhere may take after our wait has ended.
constexpr std::chrono::milliseconds kSecondChance{500};
// How long a main thread may take if it does not get out of TensorFlow.
constexpr std::chrono::seconds kLastChance{30};

// The few functions of Python's stable ABI that are needed. They are looked up only in a process
// that runs Python: this library does not link to Python, and its client also runs without it.
struct Python {
  int (*is_initialized)();
  int (*add_pending_call)(int (*)(void*), void*);
  int (*ensure)();
  void (*release)(int);
  void* (*import)(const char*);
  void* (*attribute)(void*, const char*);
  void* (*call)(void*, const char*, ...);
  void (*forget)(void*);
  void (*clear_error)();
  int (*check_signals)();
  void* (*frame)();
  void* (*caller_of)(void*);
  void* (*code_of)(void*);
  const char* (*text)(void*);

  template <typename Function>
  static bool Find(const char* name, Function* out) {
    *out = reinterpret_cast<Function>(dlsym(RTLD_DEFAULT, name));
    return *out != nullptr;
  }

  // Returns null if this process has no Python.
  static const Python* FindAll() {
    auto python = std::make_unique<Python>();
    const bool complete =
        Find("Py_IsInitialized", &python->is_initialized) && Find("Py_AddPendingCall", &python->add_pending_call) &&
        Find("PyGILState_Ensure", &python->ensure) && Find("PyGILState_Release", &python->release) &&
        Find("PyImport_ImportModule", &python->import) && Find("PyObject_GetAttrString", &python->attribute) &&
        Find("PyObject_CallFunction", &python->call) && Find("Py_DecRef", &python->forget) &&
        Find("PyErr_Clear", &python->clear_error) && Find("PyErr_CheckSignals", &python->check_signals) &&
        Find("PyEval_GetFrame", &python->frame) && Find("PyFrame_GetBack", &python->caller_of) &&
        Find("PyFrame_GetCode", &python->code_of) && Find("PyUnicode_AsUTF8", &python->text);
    return complete ? python.release() : nullptr;
  }

  // Returns null if Python is not running.
  static const Python* Get();

  // Whether signal.getsignal(SIGINT) is signal.default_int_handler. Runs no Python code, because
  // Python would handle the signal at its first line.
  bool RaisesKeyboardInterrupt() const {
    const int state = ensure();
    void* const module = import("_signal");
    void* const get = module == nullptr ? nullptr : attribute(module, "getsignal");
    void* const standard = module == nullptr ? nullptr : attribute(module, "default_int_handler");
    void* const handler = get == nullptr ? nullptr : call(get, "i", SIGINT);
    const bool raises = handler != nullptr && handler == standard;
    for (void* const object : {module, get, standard, handler}) {
      if (object != nullptr) forget(object);
    }
    clear_error();
    release(state);
    return raises;
  }

  // Whether TensorFlow is turning our status into an exception, or entering or leaving a scope. An
  // exception raised in the first case is lost; in the second, it leaves the scope open.
  bool InsideTensorFlowsCare() const {
    bool inside = false;
    void* running = frame();  // a borrowed reference, unlike its callers
    for (bool first = true; running != nullptr && !inside; first = false) {
      void* const code = code_of(running);
      const std::string file = TextOf(code, "co_filename"), function = TextOf(code, "co_name");
      const bool theirs = Has(file, "tensorflow/python/") || Has(file, "contextlib.py");
      const bool exception = Has(file, "/eager/core.py") || Has(file, "/framework/errors_impl.py");
      inside = theirs && (exception || function == "__enter__" || function == "__exit__");
      void* const caller = theirs && !inside ? caller_of(running) : nullptr;
      if (code != nullptr) forget(code);
      if (!first) forget(running);
      running = caller;
    }
    clear_error();
    return inside;
  }

  // Whether the innermost line of Python that the main thread runs belongs to TensorFlow.
  bool MainThreadInTensorFlow() const {
    const int state = ensure();
    void* const threading = import("threading");
    void* const sys = import("sys");
    void* const main_thread = threading == nullptr ? nullptr : attribute(threading, "_main_thread");
    void* const number = main_thread == nullptr ? nullptr : attribute(main_thread, "ident");
    void* const current_frames = sys == nullptr ? nullptr : attribute(sys, "_current_frames");
    void* const frames = current_frames == nullptr ? nullptr : call(current_frames, nullptr);
    void* const get = frames == nullptr ? nullptr : attribute(frames, "get");
    void* const running = get == nullptr || number == nullptr ? nullptr : call(get, "O", number);
    void* const code = running == nullptr ? nullptr : attribute(running, "f_code");
    const bool inside = Has(TextOf(code, "co_filename"), "tensorflow/python/");
    for (void* const object : {threading, sys, main_thread, number, current_frames, frames, get, running, code}) {
      if (object != nullptr) forget(object);
    }
    clear_error();
    release(state);
    return inside;
  }

 private:
  static bool Has(const std::string& text, const char* part) { return text.find(part) != std::string::npos; }

  std::string TextOf(void* object, const char* name) const {
    void* const found = object == nullptr ? nullptr : attribute(object, name);
    const char* const utf8 = found == nullptr ? nullptr : text(found);
    const std::string value = utf8 == nullptr ? "" : utf8;
    if (found != nullptr) forget(found);
    return value;
  }
};

// Found while the library loads, not at first use: if a fork happened during first use, the child
// would wait for it forever.
const Python* const python_found = Python::FindAll();

const Python* Python::Get() {
  return python_found != nullptr && python_found->is_initialized() != 0 ? python_found : nullptr;
}

// If a SIGINT arrives during one of our waits, it is held back from Python. Otherwise Python would
// raise KeyboardInterrupt while TensorFlow turns our status into an exception, and the
// KeyboardInterrupt would be lost. The signal is passed on as soon as Python's main thread has left
// that code, and after a while in any case.
std::atomic<int> waits{0};
std::atomic<uint64_t> held{0};
std::atomic<Handler> python_handler{nullptr};
std::atomic<bool> handling{false};
std::atomic<bool> nudging{false};
// True after a wait was ended. Every other wait then ends too, until Python's main thread runs
// again.
std::atomic<bool> abandoned{false};

void HandOn() {
  if (held.exchange(0) == 0) return;
  if (const Handler handler = python_handler.load()) handler(SIGINT);
}

void OnInterrupt(int) {
  if (nudging.exchange(false)) return;
  // Another library installed its handler over ours, and the two now call each other.
  if (handling.exchange(true)) return;
  held.fetch_add(1);
  if (waits.load() == 0) HandOn();
  handling.store(false);
}

// Passes the signal on, and interrupts the system call that the main thread may be in. The original
// signal interrupted it too, but Python did not know about that signal yet.
void HandOnAndNudge() {
  HandOn();
  struct sigaction now{};
  // With another handler in front, this would count as a second signal.
  if (sigaction(SIGINT, nullptr, &now) != 0 || now.sa_handler != OnInterrupt) return;
  nudging.store(true);
  syscall(SYS_tgkill, getpid(), getpid(), SIGINT);
}

// Installs our handler in front of Python's. Does so again whenever Python installs a new one.
void Listen() {
  struct sigaction now{};
  if (sigaction(SIGINT, nullptr, &now) != 0 || (now.sa_flags & SA_SIGINFO) != 0) return;
  if (now.sa_handler == OnInterrupt || now.sa_handler == SIG_DFL || now.sa_handler == SIG_IGN) return;
  std::lock_guard<std::mutex> lock(ForkSafeMutex());
  if (sigaction(SIGINT, nullptr, &now) != 0 || now.sa_handler == OnInterrupt) return;
  python_handler.store(now.sa_handler);
  now.sa_handler = OnInterrupt;
  sigaction(SIGINT, &now, nullptr);
}

// Python calls this in its main thread, between two lines. The signal is handled here, because at
// the next line TensorFlow may be in code that must not be interrupted.
int HandOnInPython(void*) {
  const Python* const python = Python::Get();
  const bool later = held.load() > 0 && python != nullptr && python->InsideTensorFlowsCare();
  if (later && python->add_pending_call(HandOnInPython, nullptr) == 0) return 0;
  abandoned.store(false);
  HandOn();
  return python == nullptr ? 0 : python->check_signals();
}

// For a main thread that waits in something else, such as `time.sleep`, where no line of Python
// follows. A main thread that is still leaving TensorFlow, on a busy machine, reaches
// `HandOnInPython` by itself.
void HandOnInAnyCase(void*) {
  const auto last_chance = Clock::now() + kLastChance;
  do {
    std::this_thread::sleep_for(kSecondChance);
    if (held.load() == 0) return;
  } while (Clock::now() < last_chance && Python::Get() != nullptr && Python::Get()->MainThreadInTensorFlow());
  HandOnAndNudge();
}

}  // namespace

InterruptWatch::InterruptWatch() : active_(Python::Get() != nullptr) {
  if (!active_) return;
  Listen();
  waits.fetch_add(1);
}

InterruptWatch::~InterruptWatch() {
  if (!active_) return;
  waits.fetch_sub(1);
  const Python* const python = held.load() > 0 ? Python::Get() : nullptr;
  if (python != nullptr && python->add_pending_call(HandOnInPython, nullptr) != 0) HandOn();
}

int InterruptWatch::slice_ms() const { return active_ ? kSliceMs : -1; }

bool InterruptWatch::Interrupted() {
  if (active_ && abandoned.load()) return true;
  if (!active_ || held.load() == 0) return asked_ = false;
  const Python* const python = Python::Get();
  if (python == nullptr) return false;
  if (!asked_) {
    asked_ = python->add_pending_call(HandOnInPython, nullptr) == 0;
    until_ = Clock::now() + kPatience;
    return false;
  }
  if (Clock::now() < until_) return false;
  const bool raises = python->RaisesKeyboardInterrupt();
  if (raises) {
    abandoned.store(true);
    StartDetachedThread(HandOnInAnyCase, nullptr);
  } else {
    // The user's own handler decides. It runs when the main thread continues.
    HandOnAndNudge();
  }
  return raises;
}

}  // namespace parquetry
