"""A forked child can use cached properties and locks, regardless of its parent's threads."""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import suppress
from types import FrameType
from typing import Any

import pytest
from processes import PATIENCE_S, exit_status_of_fork

from parquetry.common.base.process import forks
from parquetry.common.base.process.forks import ForkLock, cached_property, importing, reading

pytestmark = [
    pytest.mark.versions,
    pytest.mark.filterwarnings("ignore:This process:DeprecationWarning"),  # Python 3.12 and newer: it has threads
]


class Slow:
    """Its value is ready once it is released."""

    def __init__(self) -> None:
        self.begun = threading.Semaphore(0)
        self.go = threading.Event()
        self.calls = 0

    @cached_property
    def value(self) -> list[int]:
        self.calls += 1
        self.begun.release()
        assert self.go.wait(PATIENCE_S)
        return [self.calls]


def test_a_property_that_a_thread_computes_is_usable_in_a_child() -> None:
    slow, other = Slow(), Slow()
    other.go.set()
    with ThreadPoolExecutor(1) as pool:
        computed = pool.submit(lambda: slow.value)
        slow.begun.acquire()
        assert exit_status_of_fork(lambda: other.value == [1]) == 0
        assert exit_status_of_fork(lambda: slow.go.set() is None and slow.value == [2]) == 0
        slow.go.set()
        assert computed.result() == [1]


def test_threads_that_compute_a_property_at_once_get_one_object() -> None:
    slow = Slow()
    with ThreadPoolExecutor(2) as pool:
        values = [pool.submit(lambda: slow.value) for _ in range(2)]
        slow.begun.acquire()
        slow.begun.acquire()
        slow.go.set()
        assert values[0].result() is values[1].result() is slow.value
    assert slow.calls == 2
    assert isinstance(Slow.value, cached_property)


def test_a_lock_that_a_thread_holds_is_free_in_a_child() -> None:
    lock, held, go = ForkLock(), threading.Event(), threading.Event()

    def hold() -> None:
        with lock:
            held.set()
            assert go.wait(PATIENCE_S)

    def takes_it() -> bool:
        with lock:
            return True

    with ThreadPoolExecutor(1) as pool:
        holding = pool.submit(hold)
        assert held.wait(PATIENCE_S)
        assert exit_status_of_fork(takes_it) == 0
        go.set()
        holding.result()
    assert takes_it()


def test_a_child_leaves_the_lock_that_its_own_thread_held() -> None:
    lock = ForkLock()
    leave = lock.__exit__  # as ``with`` looks it up

    def leave_and_take_it() -> bool:
        leave(None, None, None)
        with lock:
            return True

    with lock:
        assert exit_status_of_fork(leave_and_take_it) == 0


def test_an_interrupt_never_leaves_a_lock_held() -> None:
    lock = ForkLock()

    def take_it(wanted: int) -> None:
        """Takes the lock, and is interrupted at the ``wanted``-th event of Python code on the way in and out."""
        events = 0

        def trace(frame: FrameType, event: str, _: object) -> Any:
            nonlocal events
            if frame.f_code.co_filename == forks.__file__:
                frame.f_trace_opcodes = True
                events += 1
                if events == wanted:
                    raise KeyboardInterrupt
            return trace

        sys.settrace(trace)
        try:
            with lock:
                pass
        finally:
            sys.settrace(None)

    interrupted = 0
    for wanted in range(1, 60):
        with suppress(KeyboardInterrupt):
            take_it(wanted)
            continue
        interrupted += 1
        assert not lock._lock.locked()
    assert interrupted > 1


def test_a_fork_waits_for_the_end_of_an_import() -> None:
    inside, forked, ended = threading.Event(), threading.Event(), threading.Event()

    def import_slowly() -> None:
        with importing():
            inside.set()
            assert not forked.wait(0.2)  # time for a fork that does not wait
            ended.set()

    with ThreadPoolExecutor(1) as pool:
        importer = pool.submit(import_slowly)
        assert inside.wait(PATIENCE_S)
        assert exit_status_of_fork(lambda: ended.is_set()) == 0
        forked.set()
        importer.result()


def test_a_thread_that_imports_may_fork() -> None:
    def imports() -> bool:
        with importing():
            return True

    with importing():
        assert exit_status_of_fork(imports) == 0


def test_a_fork_waits_for_threads_that_read_and_holds_up_others(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(forks, "_READS_WITHIN_S", PATIENCE_S)
    begun, go = threading.Event(), threading.Event()
    order = []

    def read() -> None:
        with reading():
            begun.set()
            assert go.wait(PATIENCE_S)
            with reading():  # nested in another one while the fork waits
                order.append("read")

    def read_later() -> None:
        with reading():
            order.append("read later")

    with ThreadPoolExecutor(3) as pool:
        first = pool.submit(read)
        begun.wait()
        child = pool.submit(exit_status_of_fork, lambda: forks._reads.inside == 0 and order == ["read"])
        while not (forks._reads.forks or child.done()):
            time.sleep(0.001)
        wait([child], 0.5)  # time for a fork that does not wait
        later = pool.submit(read_later)
        go.set()
        assert child.result() == 0
        first.result()
        later.result()
    assert order == ["read", "read later"]
    assert (forks._reads.inside, forks._reads.forks) == (0, 0)


def test_a_fork_does_not_wait_forever_for_a_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(forks, "_READS_WITHIN_S", 0.05)
    begun, go = threading.Event(), threading.Event()

    def read() -> None:
        with reading():
            begun.set()
            assert go.wait(PATIENCE_S)

    with ThreadPoolExecutor(1) as pool:
        slow = pool.submit(read)
        begun.wait()
        assert exit_status_of_fork(lambda: True) == 0
        go.set()
        slow.result()


def test_a_thread_that_reads_can_fork() -> None:
    def read() -> bool:
        with reading():
            return True

    with reading():
        assert exit_status_of_fork(read) == 0


def test_the_error_of_a_property_has_no_context() -> None:
    class Failing:
        @cached_property
        def value(self) -> int:
            raise ValueError("bad")

    with pytest.raises(ValueError, match="bad") as raised:
        _ = Failing().value
    assert raised.value.__context__ is None


FORKS_BESIDE_PANDAS = """
import os, sys, threading, time
from parquetry.common.base.memory.arrow_views import as_numpy, texts_as_arrow
texts = texts_as_arrow(["b"] * 7)
begun = threading.Event()
class Slow:
    def find_spec(self, name, path=None, target=None):
        if name == "pandas":
            begun.set()
            time.sleep(0.5)
sys.meta_path.insert(0, Slow())
assert "pandas" not in sys.modules
thread = threading.Thread(target=as_numpy, args=(texts,))
thread.start()
begun.wait()
child = os.fork()
if not child:
    os._exit(len(as_numpy(texts)))
thread.join()
sys.exit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""


FORKS_BESIDE_ARROW = """
import os, sys, threading, time
import pyarrow as pa
import parquetry.common.base.process.forks
thread = threading.Thread(target=pa.array, args=(["a"],))
thread.start()
while "pandas" not in sys.modules:
    time.sleep(0.001)
child = os.fork()
if not child:
    os._exit(len(pa.array(["b"] * 7)))
thread.join()
sys.exit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""


@pytest.mark.slow
@pytest.mark.parametrize("program", [FORKS_BESIDE_PANDAS, FORKS_BESIDE_ARROW], ids=["guarded", "any call"])
def test_a_fork_waits_while_arrow_imports_pandas(program: str) -> None:
    pytest.importorskip("pandas")
    assert subprocess.run([sys.executable, "-c", program], timeout=PATIENCE_S, check=False).returncode == 7


def test_an_interrupt_of_a_fork_that_waits_leaves_no_trace(monkeypatch: pytest.MonkeyPatch) -> None:
    class Interrupted:
        def acquire(self, timeout: float) -> bool:
            raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(forks, "_imports", Interrupted())
        with pytest.raises(KeyboardInterrupt):
            forks._before_fork()
        forks._after_in_parent()
    assert forks._reads.forks == 0
