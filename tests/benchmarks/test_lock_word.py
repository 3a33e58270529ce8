"""Whether the interpreter's lock is held, seen from outside."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from processes import eventually

from benchmarks import lock_word
from benchmarks.lock_word import LockError, Place, place, shares

SPIN = "while True: pass"
SLEEP = "import time; time.sleep(600)"


@contextmanager
def running(program: str) -> Iterator[subprocess.Popen[str]]:
    """A Python process that has started its program."""
    code = f"print('started', flush=True)\n{program}"
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        process.stdout.readline()
        try:
            yield process
        finally:
            process.kill()


def sampled(*processes: subprocess.Popen[str]) -> list[float]:
    try:
        found = shares([process.pid for process in processes], seconds=0.3)
    except LockError as error:
        pytest.skip(str(error))
    return [found[process.pid] for process in processes]


def test_a_process_that_computes_holds_its_lock_and_one_that_sleeps_does_not() -> None:
    with running(SPIN) as busy, running(SLEEP) as quiet:  # which may take a while to begin
        assert eventually(lambda: sampled(busy)[0] > 0.8)
        assert eventually(lambda: sampled(quiet)[0] < 0.2)


def test_calls_that_release_the_lock_do_not_count() -> None:
    hashing = "import hashlib\nblock = bytes(1 << 28)\nwhile True: hashlib.sha256(block)"
    with running(hashing) as process:
        assert eventually(lambda: sampled(process)[0] < 0.2)


def test_a_process_of_another_program_has_no_lock() -> None:
    with subprocess.Popen(["sleep", "600"]) as process:
        try:
            assert place().address(process.pid) is None
        finally:
            process.kill()


def test_without_the_right_to_read_the_error_says_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(path: str, flags: int) -> int:
        raise PermissionError(1, "Operation not permitted", path)

    monkeypatch.setattr(lock_word.os, "open", refuse)
    with running(SLEEP) as process, pytest.raises(LockError, match=r"memory of process \d+ failed: .* Run as root"):
        shares([process.pid], seconds=0.01)


def test_an_interpreter_without_a_lock_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lock_word, "_candidates", lambda address, size: iter([]))
    with pytest.raises(LockError, match=r"expected CPython 3\.11 to 3\.13"):
        place()


def test_a_place_is_the_same_whenever_it_is_looked_for() -> None:
    assert place() == place()
    assert isinstance(place(), Place)
