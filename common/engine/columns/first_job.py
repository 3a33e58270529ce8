"""`FirstJob`: threads that would decode later jobs help with the first one, so that the first batch arrives early."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from ...base.progress import check_cancelled

_SHORT = 4  # values in a part while the first job is not over, so that a thread soon looks for work of that job
_PARTS_PER_THREAD = 2


class FirstJob:
    """The first job of an iteration, as the threads see it that run jobs. Thread-safe.

    Args:
        threads: how many threads run jobs.

    Attributes:
        is_over: whether it has ended.
    """

    def __init__(self, threads: int) -> None:
        self._threads = threads
        self._work: _SharedWork | None = None
        self.is_over = False

    @contextmanager
    def first_batch_boost(self, job: int) -> Iterator[None]:
        """While the block runs, `in_parts` shares the work of this thread if ``job`` is 0; otherwise it helps."""
        if self._threads < 2 or (self.is_over and job):
            yield
            return
        _here.first_job, _here.is_first = self, job == 0
        try:
            yield
        finally:
            _here.first_job = None
            if job == 0:
                self.is_over = True

    def share(self, count: int, most: int, function: Callable[[slice], None]) -> None:
        """Calls ``function`` as `in_parts` does. Other threads call it for some of the parts."""
        length = min(most, -(-count // (_PARTS_PER_THREAD * self._threads)))
        work = self._work = _SharedWork(parts_of(count, max(length, 1)), function)
        try:
            work.help()
        finally:
            self._work = None
            work.wait()

    def help(self) -> None:
        """Does parts of the first job's work until none is left."""
        work = self._work
        if work is not None:
            work.help()


class _SharedWork:
    def __init__(self, parts: Iterator[slice], function: Callable[[slice], None]) -> None:
        self._parts = deque(parts)
        self._function = function
        self._running = 0
        self._changed = threading.Condition()
        self._errors: list[BaseException] = []

    def help(self) -> None:
        """Does parts until none is left."""
        while True:
            with self._changed:
                if not self._parts:
                    return
                part = self._parts.popleft()
                self._running += 1
            failure: BaseException | None = None
            try:
                check_cancelled()
                self._function(part)
            except BaseException as error:
                failure = error
            with self._changed:
                if failure is not None:
                    self._parts.clear()
                    self._errors.append(failure)
                self._running -= 1
                self._changed.notify_all()

    def wait(self) -> None:
        """Waits for the parts that other threads have begun. Raises the first error of a part."""
        with self._changed:
            while self._running:
                self._changed.wait()
        if self._errors:
            raise self._errors[0]


class _Here(threading.local):
    first_job: FirstJob | None = None
    is_first: bool = False


_here = _Here()


def in_parts(count: int, most: int, function: Callable[[slice], None]) -> None:
    """Calls ``function`` for slices of ``range(count)``, in order, of at most ``most`` values each.

    In the first job of an iteration, other threads call it, too, at the same time.

    Raises:
        PipelineError: the iteration was closed in the meantime.
    """
    first_job = _here.first_job
    if first_job is not None and _here.is_first:
        first_job.share(count, most, function)
    elif first_job is not None:
        first = 0
        while first < count:
            first_job.help()
            check_cancelled()
            last = min(first + (most if first_job.is_over else min(most, _SHORT)), count)
            function(slice(first, last))
            first = last
    else:
        for part in parts_of(count, most):
            check_cancelled()
            function(part)


def parts_of(count: int, most: int) -> Iterator[slice]:
    """Returns slices of ``range(count)``, of at most ``most`` values each."""
    return (slice(first, min(first + most, count)) for first in range(0, count, most))
