"""C++ compiled where parquetry is installed: which compiler, one process at a time, and what its failure says.

In: a command line, or a library's path. Out: the library. Used by both libraries: the core here, and TensorFlow's op.
What always holds: only the standard library is imported, because `setup.py` builds where nothing else is installed.
"""

from __future__ import annotations

import fcntl
import hashlib
import logging
import os
import shlex
import shutil
import subprocess
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from ..progress import pulse

COMPILERS = ("g++", "c++", "clang++")


def digest_of(sources: Iterable[Path], flags: object) -> str:
    """16 hex digits that change with the sources and the flags."""
    digest = hashlib.sha256(repr(flags).encode())
    for source in sources:
        digest.update(source.name.encode() + b"\0" + source.read_bytes())
    return digest.hexdigest()[:16]


def has_content(path: Path) -> bool:
    """Whether it is a file, and not an empty one."""
    return path.is_file() and path.stat().st_size > 0


def chosen_compiler() -> list[str]:
    """The command that ``$CXX`` names; empty if it names none."""
    return shlex.split(os.environ.get("CXX", ""))


def find_compiler() -> list[str] | None:
    """The command of ``$CXX``, or of the first compiler that is there; ``None`` if there is none."""
    chosen = chosen_compiler()
    candidates = [chosen] if chosen else [[name] for name in COMPILERS]
    return next((command for command in candidates if shutil.which(command[0]) is not None), None)


def run_compiler(command: Sequence[str], what: str) -> None:
    """Runs a compiler's command line.

    Raises:
        RuntimeError: it failed; with the command and the end of what it said.
    """
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    if result.returncode != 0:
        raise RuntimeError(
            f"{what}: the compiler failed with status {result.returncode}.\n"
            f"Command: {' '.join(command)}\n{result.stderr[-4000:]}"
        )


@contextmanager
def locked(target: Path, what: str, log: logging.Logger) -> Iterator[None]:
    """Lets one process at a time build a library; the others say that they wait for one that compiles ``what``."""
    with open(target.with_suffix(".lock"), "w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            with pulse(f"parquetry waits for another process that compiles {what}", log):
                fcntl.flock(file, fcntl.LOCK_EX)
        except OSError:  # a file system without locks: two may compile, and each library appears whole
            pass
        yield
