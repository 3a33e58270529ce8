"""`ThreadPool`: threads that run calls for as long as any thread of the program goes on.

Python ends its own pools with the main thread, although another thread, such as one that trains, may still need them.
These end when they are closed, or when the interpreter exits.
"""

from __future__ import annotations

import atexit
import logging
import os
import queue
import sys
import threading
import weakref
from collections.abc import Callable
from concurrent.futures import Executor, Future
from contextlib import suppress
from typing import Any, ParamSpec, TypeVar

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
    """A pool of threads, each started when it is first needed. Thread-safe.

    If the system allows no more threads, the pool works with those that it has.

    Args:
        threads: the most threads.
        begin: what each thread calls first. It must not raise.
    """

    def __init__(self, threads: int, name: str, begin: Callable[[], object] = int) -> None:
        self._most = threads
        self._name = name
        self._begin = begin
        self._calls: queue.SimpleQueue[_Call | None] = queue.SimpleQueue()
        self._idle = threading.Semaphore(0)
        self._threads: list[threading.Thread] = []
        self._lock = threading.Lock()
        self._closed = False
        weakref.finalize(self, self._calls.put, None).atexit = False

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
            self._calls.put(call)  # first: a new thread that found none would count as idle
            if not self._idle.acquire(blocking=False) and len(self._threads) < self._most:
                self._start()
        return future

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """Ends the threads after the calls that were started. Idempotent.

        Args:
            wait: whether to return after the threads have ended.
            cancel_futures: whether to cancel the calls that no thread has begun.
        """
        with self._lock:
            self._closed = True
            while cancel_futures:
                try:
                    call = self._calls.get_nowait()
                except queue.Empty:
                    break
                if call is not None:
                    call.future.cancel()
            self._calls.put(None)
        for thread in self._threads if wait else ():
            thread.join()

    def _start(self) -> None:
        _end_with_child()
        thread = _Thread(f"{self._name}_{len(self._threads)}", self._calls, self._idle, self._begin)
        try:
            start_thread(thread)
        except ResourceError as error:
            if not self._threads:
                self._calls.get()  # the call, which nobody will make
                raise
            _LOGGER.warning("%s Working with %d.", error, len(self._threads))
            self._most = len(self._threads)
        else:
            self._threads.append(thread)


class _Call:
    __slots__ = ("_arguments", "_function", "_keywords", "future")

    def __init__(
        self, future: Future[Any], function: Callable[..., Any], arguments: tuple[Any, ...], keywords: dict[str, Any]
    ) -> None:
        self.future = future
        self._function = function
        self._arguments = arguments
        self._keywords = keywords

    def make(self) -> None:
        if not self.future.set_running_or_notify_cancel():
            return
        try:
            result = self._function(*self._arguments, **self._keywords)
        except BaseException as error:
            self.future.set_exception(error)
            del self  # otherwise the traceback would keep the error alive
        else:
            self.future.set_result(result)


class _Thread(threading.Thread):
    """Makes the calls of a pool. It keeps no reference to the pool, and ends with it.

    It is a daemon, because Python waits for all other threads before it says that the interpreter exits.
    """

    def __init__(
        self,
        name: str,
        calls: queue.SimpleQueue[_Call | None],
        idle: threading.Semaphore,
        begin: Callable[[], object],
    ) -> None:
        super().__init__(name=name, daemon=True)
        self._calls = calls
        self._idle = idle
        self._begin = begin

    def run(self) -> None:
        self._begin()
        while (call := self._next()) is not None:
            call.make()
            del call  # an idle thread keeps no references
        self.end()  # of the others

    def end(self) -> None:
        """Makes the threads of the pool end. Call it from any thread."""
        self._calls.put(None)

    def _next(self) -> _Call | None:
        with suppress(queue.Empty):
            return self._calls.get_nowait()
        self._idle.release()
        return self._calls.get()


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
    threads = [thread for thread in threading.enumerate() if isinstance(thread, _Thread)]
    for thread in threads:
        thread.end()
    for thread in threads:
        thread.join()


atexit.register(_end_all)
