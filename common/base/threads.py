"""`ThreadPool`: threads that run calls for as long as any thread of the program goes on, shared by all pools.

Python ends its own pools with the main thread, although another thread, such as one that trains, may still need them.
These threads end when they have been idle for a while, or when the interpreter exits.
"""

from __future__ import annotations

import atexit
import logging
import os
import queue
import sys
import threading
from collections import deque
from collections.abc import Callable
from concurrent.futures import Executor, Future
from contextlib import suppress
from contextvars import Context
from typing import Any, NamedTuple, ParamSpec, TypeVar

from .errors import ResourceError, limit_reached

_LOGGER = logging.getLogger(__name__)
_P = ParamSpec("_P")
_T = TypeVar("_T")


def start_thread(thread: threading.Thread) -> None:
    """Starts a thread.

    Raises:
        ResourceError: the system allows no more. The message names the limit.
    """
    try:
        thread.start()
    except RuntimeError as error:
        raise ResourceError(f"thread {thread.name}: {error}. {limit_reached(error)}") from error


class ThreadPool(Executor):
    """Makes calls in threads, at most so many at a time. Thread-safe.

    All pools of a process share their threads: one that has no more calls of a pool waits for those of any other, and
    ends after `IDLE_S` seconds. So a pool that waits, such as that of an open iterator between two batches, has no
    threads. A pool never waits for the calls of another one: if no thread is idle, it starts one.

    Each call has an empty context (`contextvars`), so it sees nothing that the calls before it in its thread have set.

    If the system allows no more threads, the pool works with those that it has.

    Args:
        threads: the most threads.
        name: of the threads while they work for this pool.
        begin: called before each call, in its context. It must not raise.
    """

    def __init__(self, threads: int, name: str, begin: Callable[[], object] = int) -> None:
        self._most = threads
        self._name = name
        self._begin = begin
        self._calls: deque[_Call] = deque()  # that wait for a thread
        self._working = 0  # threads
        # Reentrant, because the collector may close the pool in one of its threads; and used by itself, because Ctrl-C
        # inside the Python code of a condition would leave its lock held.
        self._lock = threading.RLock()
        self._ended = threading.Condition(self._lock)
        self._closed = False

    def submit(self, fn: Callable[_P, _T], /, *args: _P.args, **kwargs: _P.kwargs) -> Future[_T]:
        """Starts a call.

        Raises:
            RuntimeError: the pool is closed, or the interpreter exits.
            ResourceError: the system allows not even one thread.
        """
        future: Future[_T] = Future()
        call = _Call(future, fn, args, kwargs)
        with self._lock:
            if self._closed or _exiting:
                raise RuntimeError("cannot start a call in a closed pool of threads")
            if self._working < self._most:
                self._start(call)
            else:
                self._calls.append(call)
        return future

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """Refuses further calls. Idempotent.

        Args:
            wait: whether to return after the calls that were started are made.
            cancel_futures: whether to cancel the calls that no thread has begun.
        """
        with self._lock:
            self._closed = True
            while cancel_futures and self._calls:
                self._calls.popleft().future.cancel()
        if wait:
            self.wait()

    def wait(self) -> None:
        """Returns when all calls so far are made, or cancelled and not begun."""
        with self._lock:
            self._ended.wait_for(lambda: self._working <= 0)  # below after Ctrl-C inside `_start`

    def work(self, call: _Call | None) -> None:
        """Makes a call, and then those that wait. For the threads."""
        while call is not None:
            Context().run(call.make, self._begin)
            call = None  # a thread keeps no references while it waits for the lock
            with self._lock:
                try:
                    call = self._calls.popleft()
                except IndexError:
                    self._working -= 1
                    self._ended.notify_all()

    def _start(self, call: _Call) -> None:
        task = _Task(self, self._name, call)
        try:
            _idle.pop().tasks.put(task)
        except IndexError:
            _end_with_child()
            try:
                start_thread(_Thread(task))
            except ResourceError as error:
                if not self._working:
                    raise
                _LOGGER.warning("%s Working with %d.", error, self._working)
                self._most = self._working
                self._calls.append(call)
                return
        self._working += 1


class _Call:
    __slots__ = ("_arguments", "_function", "_keywords", "future")

    def __init__(
        self, future: Future[Any], function: Callable[..., Any], arguments: tuple[Any, ...], keywords: dict[str, Any]
    ) -> None:
        self.future = future
        self._function = function
        self._arguments = arguments
        self._keywords = keywords

    def make(self, begin: Callable[[], object]) -> None:
        begin()
        if not self.future.set_running_or_notify_cancel():
            return
        try:
            result = self._function(*self._arguments, **self._keywords)
        except BaseException as error:
            self.future.set_exception(error)
            del self  # otherwise the traceback would keep the error alive
        else:
            self.future.set_result(result)


class _Task(NamedTuple):
    """The work that a thread is woken for: a pool, its name, and the first call."""

    pool: ThreadPool
    name: str
    call: _Call


class _Thread(threading.Thread):
    """Makes the calls of a pool, and waits for those of another when there are no more.

    It is a daemon, because Python waits for all other threads before it says that the interpreter exits.

    Attributes:
        tasks: what it does next; ``None`` ends it.
    """

    def __init__(self, task: _Task) -> None:
        super().__init__(name=task.name, daemon=True)
        self.tasks: queue.SimpleQueue[_Task | None] = queue.SimpleQueue()
        self.tasks.put(task)

    def run(self) -> None:
        while (task := self._next()) is not None:
            self.name = task.name
            task.pool.work(task.call)
            self.name = IDLE_NAME
            del task  # an idle thread keeps no references
            _idle.append(self)
            if _exiting:
                self.tasks.put(None)

    def _next(self) -> _Task | None:
        with suppress(queue.Empty):
            return self.tasks.get(timeout=IDLE_S)
        try:
            _idle.remove(self)
        except ValueError:  # it was chosen in the meantime; after Ctrl-C inside `ThreadPool._start`, for nothing
            with suppress(queue.Empty):
                return self.tasks.get(timeout=IDLE_S)
        return None


IDLE_NAME = "parquetry-idle"
IDLE_S = 30.0
"""How long a thread waits for a call. Those that read from a store keep connections open."""
_idle: list[_Thread] = []  # the last one has worked last; changed by single operations, so it needs no lock
_exiting = False
_child = -1  # the process in which `_end_with_child` has done its work


def _end_with_child() -> None:
    """Makes a child that multiprocessing started, such as a loader worker, end its threads when it exits.

    Such a process calls no function of `atexit`. A read that it has claimed for others would be cut off.
    """
    global _child
    multiprocessing = sys.modules.get("multiprocessing.util")
    if multiprocessing is None or _child == os.getpid():
        return
    _child = os.getpid()
    if sys.modules["multiprocessing.process"].parent_process() is not None:
        multiprocessing.Finalize(None, _end_all, exitpriority=0)


def _end_all() -> None:
    """Ends all threads, because exiting while a daemon is inside of C++ code may end the process with an error.

    Calls that were started are made, because others may wait for them. Those of an iteration fail at once: it is
    cancelled (`progress.CancelToken`).
    """
    global _exiting
    _exiting = True
    with suppress(IndexError):
        while True:
            _idle.pop().tasks.put(None)
    for each in threading.enumerate():
        if isinstance(each, _Thread):
            each.join()


atexit.register(_end_all)
os.register_at_fork(after_in_child=_idle.clear)  # a child has none of them
