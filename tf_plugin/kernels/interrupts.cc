#include "interrupts.h"

#include <dlfcn.h>
#include <signal.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string_view>
#include <thread>

#include "child_process.h"

namespace parquetry {
namespace {

using Clock = std::chrono::steady_clock;
using Handler = void (*)(int);

constexpr int kSliceMs = 100;
constexpr std::chrono::milliseconds kPatience{200};   // with a main thread that may run Python, and would serve it
constexpr std::chrono::milliseconds kSecondChance{500};  // for one that waits in TensorFlow, once our wait has ended

// The few functions of Python's stable ABI that are needed. Looked up where Python runs already: this library is linked
// to none, and its client runs without one.
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
  void* (*frame)();
  void* (*code_of)(void*);
  const char* (*text)(void*);

  template <typename Function>
  static bool Find(const char* name, Function* out) {
    *out = reinterpret_cast<Function>(dlsym(RTLD_DEFAULT, name));
    return *out != nullptr;
  }

  // Nothing where no Python runs.
  static const Python* Get() {
    static const Python* const found = [] {
      auto python = std::make_unique<Python>();
      const bool complete =
          Find("Py_IsInitialized", &python->is_initialized) && Find("Py_AddPendingCall", &python->add_pending_call) &&
          Find("PyGILState_Ensure", &python->ensure) && Find("PyGILState_Release", &python->release) &&
          Find("PyImport_ImportModule", &python->import) && Find("PyObject_GetAttrString", &python->attribute) &&
          Find("PyObject_CallFunction", &python->call) && Find("Py_DecRef", &python->forget) &&
          Find("PyErr_Clear", &python->clear_error) && Find("PyEval_GetFrame", &python->frame) &&
          Find("PyFrame_GetCode", &python->code_of) && Find("PyUnicode_AsUTF8", &python->text);
      return complete ? python.release() : nullptr;
    }();
    return found != nullptr && found->is_initialized() != 0 ? found : nullptr;
  }

  // signal.getsignal(SIGINT) is signal.default_int_handler, without a line of Python: it would serve the signal here.
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

  // Whether TensorFlow is making an exception of our status at the moment. One that is raised in there is lost.
  bool InsideTensorFlowsException() const {
    void* const running = frame();  // borrowed
    void* const code = running == nullptr ? nullptr : code_of(running);
    void* const file = code == nullptr ? nullptr : attribute(code, "co_filename");
    const char* const name = file == nullptr ? nullptr : text(file);
    const bool inside = name != nullptr && std::string_view(name).find("tensorflow/python/eager/core.py") !=
                                               std::string_view::npos;
    for (void* const object : {code, file}) {
      if (object != nullptr) forget(object);
    }
    clear_error();
    return inside;
  }
};

// A SIGINT that comes during a wait of ours is held back from Python, which would otherwise raise KeyboardInterrupt while
// TensorFlow makes an exception of our status, and lose it. It is handed on as soon as Python's main thread runs outside
// of that, and in any case after a while.
std::atomic<int> waits{0};
std::atomic<uint64_t> held{0};
std::atomic<Handler> python_handler{nullptr};
std::atomic<bool> handling{false};
std::atomic<bool> nudging{false};
std::atomic<bool> abandoned{false};  // a wait was ended: so is every other one, until Python's main thread runs again

void HandOn() {
  if (held.exchange(0) == 0) return;
  if (const Handler handler = python_handler.load()) handler(SIGINT);
}

void OnInterrupt(int) {
  if (nudging.exchange(false)) return;
  if (handling.exchange(true)) return;  // another library has put us behind itself, and itself behind us
  held.fetch_add(1);
  if (waits.load() == 0) HandOn();
  handling.store(false);
}

// Hands on, and ends the system call that the main thread may be in: it was ended by the signal before, when Python knew
// of none.
void HandOnAndNudge() {
  HandOn();
  struct sigaction now{};
  if (sigaction(SIGINT, nullptr, &now) != 0 || now.sa_handler != OnInterrupt) return;  // it would be a second one
  nudging.store(true);
  syscall(SYS_tgkill, getpid(), getpid(), SIGINT);
}

// Puts us in front of the handler that Python has installed, again whenever Python has installed it anew.
void Listen() {
  struct sigaction now{};
  if (sigaction(SIGINT, nullptr, &now) != 0 || (now.sa_flags & SA_SIGINFO) != 0) return;
  if (now.sa_handler == OnInterrupt || now.sa_handler == SIG_DFL || now.sa_handler == SIG_IGN) return;
  static std::mutex mutex;
  std::lock_guard<std::mutex> lock(mutex);
  if (sigaction(SIGINT, nullptr, &now) != 0 || now.sa_handler == OnInterrupt) return;
  python_handler.store(now.sa_handler);
  now.sa_handler = OnInterrupt;
  sigaction(SIGINT, &now, nullptr);
}

// Called by Python in its main thread, between two lines.
int HandOnInPython(void*) {
  const Python* const python = Python::Get();
  const bool later = held.load() > 0 && python != nullptr && python->InsideTensorFlowsException();
  if (later && python->add_pending_call(HandOnInPython, nullptr) == 0) return 0;
  abandoned.store(false);
  HandOn();
  return 0;
}

// For a main thread that waits for something else, such as `time.sleep`, where no line of Python follows.
void HandOnInAnyCase(void*) {
  std::this_thread::sleep_for(kSecondChance);
  if (held.load() > 0) HandOnAndNudge();
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
    HandOnAndNudge();  // the user's own handler decides, and it is served when the main thread goes on
  }
  return raises;
}

}  // namespace parquetry
