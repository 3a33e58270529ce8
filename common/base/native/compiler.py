"""Compiles C++ on the machine where parquetry is installed: finds a compiler, locks the target, and reports failures.

Both libraries use it: the core here, and the TensorFlow op. This module imports only the standard library, because
`setup.py` runs where nothing else is installed.
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
from functools import partial
from pathlib import Path

from ..process.locks import holder_of, locked_within
from ..progress import pulse

_PATIENCE_S = 600.0
COMPILERS = ("g++", "c++", "clang++")


def digest_of(sources: Iterable[Path], flags: object) -> str:
    """Returns a hash of the sources and the flags as 16 hex digits."""
    digest = hashlib.sha256(repr(flags).encode())
    for source in sources:
        digest.update(source.name.encode() + b"\0" + source.read_bytes())
    return digest.hexdigest()[:16]


def has_content(path: Path) -> bool:
    """Returns whether a path is a file that is not empty."""
    return path.is_file() and path.stat().st_size > 0


def chosen_compiler() -> list[str]:
    """Returns the command in ``$CXX``, or an empty list if it is not set."""
    return shlex.split(os.environ.get("CXX", ""))


def find_compiler() -> list[str] | None:
    """Returns the command in ``$CXX`` or of the first compiler found; ``None`` if there is no compiler."""
    chosen = chosen_compiler()
    candidates = [chosen] if chosen else [[name] for name in COMPILERS]
    return next((command for command in candidates if shutil.which(command[0]) is not None), None)


def run_compiler(command: Sequence[str], what: str) -> None:
    """Runs a compiler command line.

    Raises:
        RuntimeError: the compiler failed. The error contains the command and the end of the compiler's output.
    """
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    if result.returncode != 0:
        raise RuntimeError(
            f"{what}: the compiler failed with status {result.returncode}.\n"
            f"Command: {' '.join(command)}\n{result.stderr[-4000:]}"
        )


@contextmanager
def locked(target: Path, what: str, log: logging.Logger) -> Iterator[None]:
    """Lets one process at a time build a library. Others log that they wait for one that compiles ``what``.

    If that takes more than `_PATIENCE_S`, the process was probably stopped, and others compile it as well.
    """
    with open(target.with_suffix(".lock"), "w") as file:
        lock = partial(fcntl.flock, file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        try:
            if not locked_within(lock, 0):
                with pulse(f"parquetry waits for another process that compiles {what}", log):
                    is_locked = locked_within(lock, _PATIENCE_S)
                if not is_locked:
                    log.warning("%s is locked by %s; compiling here, too.", file.name, holder_of(file.fileno()))
        except OSError:  # no locks on this file system: two processes may compile, but neither leaves a partial library
            pass
        yield
