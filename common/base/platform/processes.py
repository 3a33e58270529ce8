"""Processes and threads: what they may use, when they end, and what the system says about them."""

from __future__ import annotations

import ctypes
import errno
import os
import select
import signal
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

_PR_SET_PDEATHSIG = 1
_MEMORY_LIMITS = ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes")  # versions 2 and 1
_EVENTS = ("/sys/fs/cgroup/memory.events", "/sys/fs/cgroup/memory/memory.oom_control", "/proc/vmstat")
_WAITS = "voluntary_ctxt_switches:"


def usable_processors() -> int:
    """Returns the number of processors that this process may use."""
    try:
        return len(os.sched_getaffinity(0))
    except AttributeError:
        return os.cpu_count() or 1


def usable_memory_bytes() -> int:
    """Returns the memory of this machine, or of its container if that has less."""
    limits = [os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")]
    for path in _MEMORY_LIMITS:
        with suppress(OSError, ValueError):  # absent, or "max"
            limits.append(int(Path(path).read_text()))
    return min(limits)


# --- the end of a process ---


def end_of(pid: int) -> int:
    """Returns a descriptor that is readable once the process has ended.

    Raises:
        ProcessLookupError: there is no such process.
        OSError: the system has no such files (an older kernel, macOS), or too many files are open.
    """
    if not hasattr(os, "pidfd_open"):
        raise OSError(errno.ENOSYS, "this system has no descriptors of processes")
    return os.pidfd_open(pid)


def wait_readable(descriptor: int, timeout_s: float | None = None) -> bool:
    """Waits for a descriptor. Returns whether it is readable; ``False`` after ``timeout_s`` seconds."""
    ends = select.poll()  # select() takes no descriptor >= 1024, and a trainer may have that many
    ends.register(descriptor, select.POLLIN)
    return bool(ends.poll(None if timeout_s is None else timeout_s * 1000))


def kill(end: int) -> None:
    """Kills the process of `end_of`, unless it has ended."""
    with suppress(ProcessLookupError):
        signal.pidfd_send_signal(end, signal.SIGKILL)


def end_with_parents_thread() -> None:
    """Lets the kernel kill this process when the thread that started it ends. Linux only; elsewhere it does nothing."""
    if sys.platform == "linux":
        with suppress(OSError, AttributeError):
            ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, int(signal.SIGKILL), 0, 0, 0)


def started_by_main_thread() -> bool:
    """Returns whether the main thread of the parent started this process; ``False`` if the system does not tell."""
    parent = os.getppid()
    try:
        return str(os.getpid()) in Path(f"/proc/{parent}/task/{parent}/children").read_text().split()
    except OSError:
        return False


# --- what the system says about a process ---


def tasks(pid: int | None = None) -> list[str]:
    """Returns the names of all processes, or of the threads of one; nothing if the system does not tell."""
    try:
        return [name for name in os.listdir("/proc" if pid is None else f"/proc/{pid}/task") if name.isdigit()]
    except OSError:
        return []


def waits_of(task: str) -> int:
    """Returns how often a thread, or the main thread of a process, began to wait."""
    try:
        with open(f"/proc/{task}/status") as file:
            return sum(int(line.removeprefix(_WAITS)) for line in file if line.startswith(_WAITS))
    except (OSError, ValueError):
        return 0


def stat_of(pid: int | str) -> list[str]:
    """Returns the fields after the name in a process's ``stat`` file: state, parent, group, ..., see proc(5)."""
    try:
        with open(f"/proc/{pid}/stat") as file:
            return file.read().rpartition(")")[2].split()
    except (OSError, ValueError):
        return []


def killed_for_memory() -> int:
    """Returns how many processes of this container (or of the system) the kernel has killed so far for lack of memory.

    Source: the kernel's "Control Group v2", ``memory.events``; version 1 has ``memory.oom_control``.
    """
    for path in (f"{_own_group()}/memory.events", *_EVENTS):
        with suppress(OSError, ValueError):
            counts = dict(line.split() for line in Path(path).read_text().splitlines())
            if "oom_kill" in counts:
                return int(counts["oom_kill"])
    return 0


def _own_group() -> str:
    with suppress(OSError):
        for line in Path("/proc/self/cgroup").read_text().splitlines():
            if line.startswith("0::"):
                return f"/sys/fs/cgroup/{line[3:].strip('/')}"
    return "/sys/fs/cgroup"


# --- this process and its threads ---


def rename_process(name: str) -> str:
    """Renames this process in `ps` and `top`, if the system can. Returns the old name."""
    try:
        with open("/proc/self/comm", "r+") as file:
            before = file.read().rstrip("\n")
            file.write(name)
    except OSError:
        return name
    return before


def open_descriptors() -> Iterator[int] | None:
    """Returns the descriptors of this process, and one that is closed by now; ``None`` if the system does not tell."""
    try:
        return map(int, os.listdir("/proc/self/fd"))
    except OSError:  # a sandbox without /proc
        return None


def removed_directory() -> str:
    """Returns the working directory, which does not exist anymore, as far as the system tells."""
    try:
        return os.readlink("/proc/self/cwd").removesuffix(" (deleted)")
    except OSError:
        return os.environ.get("PWD", "unknown")


def open_delays() -> int | None:
    """Opens the file that counts how long this thread waited for a processor, for `delay_s`; ``None`` without one."""
    try:
        return os.open("/proc/thread-self/schedstat", os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return None


def delay_s(delays: int) -> float | None:
    """Returns the seconds that the thread of `open_delays` has waited so far; ``None`` if the system does not tell."""
    try:
        return int(os.pread(delays, 64, 0).split()[1]) * 1e-9
    except (OSError, IndexError, ValueError):
        return None
