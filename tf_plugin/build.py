"""Finds the op library for this TensorFlow and these sources, or compiles it once.

It takes the C++ sources in ``kernels/`` and the installed TensorFlow, and returns the path of a
shared library. Its file name contains the TensorFlow version and a hash of the sources and flags,
so a library that does not match is never loaded. Several processes can ask at the same time: one
compiles, the others wait, and none ever sees a partial file. The operating system releases the lock
when its process ends, so a killed process does not block the others.

A library inside the package is trusted like the package itself. A library that was compiled at
first use is loaded only if this user (or root) owns it, nobody else can write to it or its folder,
and it has not changed since a trial process loaded it. Its hash is stored next to it. Otherwise it
is compiled again.

Platform wheels contain libraries for many TensorFlow versions next to this module. ``python -m
parquetry.tf_plugin.build [folder]`` builds a library now, next to this module unless you give a
folder. ``--name`` prints its file name.
"""

from __future__ import annotations

import hashlib
import logging
import os
import re
import stat
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import lru_cache
from pathlib import Path
from typing import Any

from platformdirs import user_cache_dir

from parquetry.common.base.errors import needs_framework
from parquetry.common.base.native.compiler import (
    chosen_compiler,
    digest_of,
    find_compiler,
    has_content,
    locked,
    run_compiler,
)
from parquetry.common.base.progress import pulse
from parquetry.common.storage.whole_files import whole_file
from parquetry.common.transport.processes import python_command

with needs_framework("parquetry.tf_plugin", "tensorflow", extra="tensorflow"):
    import tensorflow as tf

PACKAGE = Path(__file__).resolve().parent
KERNELS = PACKAGE / "kernels"
_FLAGS = ("-O2", "-fPIC", "-shared", "-pthread", "-fvisibility=hidden", "-Wl,-z,now")

_logger = logging.getLogger(__name__)


@lru_cache(maxsize=1)
def library_path() -> Path:
    """Returns the path of the library for this TensorFlow, and compiles it if there is none yet.

    Raises:
        RuntimeError: the library must be compiled, and that fails. Without a compiler, the message
            says what to run.
    """
    packaged = PACKAGE / library_name()
    return packaged if has_content(packaged) else kept_library(cache_folder())


def library_name() -> str:
    """Returns the file name of the library that matches this TensorFlow and these sources."""
    flags = [
        flag for flag in tf.sysconfig.get_compile_flags() if not flag.startswith("-I")
    ]  # without the include paths, which depend on where TensorFlow is installed
    digest = digest_of(sorted((*KERNELS.glob("*.h"), *KERNELS.glob("*.cc"))), (_FLAGS, flags))
    return f"_parquetry_ops-tf{tf.__version__}-{sys.platform}-{os.uname().machine}-{digest}.so"


def cache_folder() -> Path:
    """Returns the folder for libraries that are compiled at first use."""
    return Path(user_cache_dir("parquetry")) / "ops"


def build_library(folder: Path) -> Path:
    """Compiles the library into ``folder``, unless it exists there, and returns its path.

    Raises:
        RuntimeError: there is no compiler, the compiler fails, or the folder cannot be written to.
    """
    target = folder / library_name()
    with _writes(folder):
        folder.mkdir(parents=True, exist_ok=True)
        with locked(target, "its op", _logger):
            if not has_content(target):
                _compile(target)
    return target


def kept_library(folder: Path) -> Path:
    """Returns the library in this user's folder.

    If the library is missing, or has changed since it was last tried, this compiles it and tries to
    load it.

    Raises:
        RuntimeError: for the reasons listed at `build_library`, if another user owns the folder, if
            others can write to it, or if the library cannot be loaded.
    """
    target = folder / library_name()
    with _writes(folder):
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        _make_private(folder)
        if _is_as_tried(target):
            return target
        with locked(target, "its op", _logger):
            if _is_as_tried(target) or (_is_usable(target) and not _record_of(target).exists() and not _tried(target)):
                return target
            target.unlink(missing_ok=True)  # empty, truncated, changed, or owned by another user
            _compile(target)
            problem = _tried(target)
            if problem:
                target.unlink(missing_ok=True)
                raise RuntimeError(
                    "parquetry op library: expected a library that "
                    f"TensorFlow {tf.__version__} can load, got "
                    f"'{target}', which it cannot.\n{problem}"
                )
    return target


@contextmanager
def _writes(folder: Path) -> Iterator[None]:
    """Adds the folder's name to the error if the folder cannot be used."""
    try:
        yield
    except OSError as error:
        raise RuntimeError(
            f"parquetry op library: expected a folder that can be written, got '{folder}' "
            f"({error}). Set XDG_CACHE_HOME to another folder."
        ) from error


def _make_private(folder: Path) -> None:
    """Makes a folder writable for this user only.

    If others could write to it, this also deletes the libraries in it, because others may have put
    them there.

    Raises:
        PermissionError: another user owns the folder, or others can still write to it.
    """
    if _is_own(folder.stat()):
        return
    if folder.stat().st_uid == os.geteuid():
        os.chmod(folder, 0o700)
        for path in folder.glob("_parquetry_ops-*"):
            path.unlink(missing_ok=True)
        _logger.warning("others could write to '%s', so its op library is compiled again", folder)
    if not _is_own(folder.stat()):
        raise PermissionError("it belongs to another user, or others can write to it")


def _is_own(status: os.stat_result) -> bool:
    """Returns whether this user (or root) owns a file or folder and nobody else can write to it."""
    return status.st_uid in (os.geteuid(), 0) and not status.st_mode & 0o022


def _is_usable(target: Path) -> bool:
    """Returns whether the library is a non-empty file that nobody else can write to."""
    try:
        status = target.lstat()
    except FileNotFoundError:
        return False
    return stat.S_ISREG(status.st_mode) and status.st_size > 0 and _is_own(status)


def _is_as_tried(target: Path) -> bool:
    """Returns whether the library is unchanged since a trial process loaded it."""
    try:
        return _is_usable(target) and _record_of(target).read_text() == _digest(target)
    except FileNotFoundError:
        return False


def _tried(target: Path) -> str:
    """Loads the library in a separate process.

    On success, stores the library's hash and returns an empty string. On failure, returns what that
    process printed.
    """
    digest = _digest(target)
    command = python_command("parquetry.tf_plugin.build", "--try", str(target))
    environment = {**os.environ, "CUDA_VISIBLE_DEVICES": ""}
    result = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    if result.returncode:
        return f"Trial process: exit status {result.returncode}.\n{result.stderr[-4000:]}"
    # A folder that root owns is read-only: the hash is not stored there.
    with suppress(OSError), whole_file(str(_record_of(target))) as unfinished:
        Path(unfinished).write_text(digest)
    return ""


def _record_of(target: Path) -> Path:
    return target.with_suffix(".sha256")


def _digest(target: Path) -> str:
    return hashlib.sha256(target.read_bytes()).hexdigest()


def _compile(target: Path) -> None:
    compiler = _compiler()
    # Compile all sources as one unit: most of the time goes into TensorFlow's headers, which are
    # then parsed only once.
    sources = [flag for source in sorted(KERNELS.glob("*.cc")) for flag in ("-include", str(source))]
    what = f"parquetry compiles its op for TensorFlow {tf.__version__}, once, about a minute"
    with pulse(what, _logger), whole_file(str(target)) as unfinished:
        command = [*compiler, *_FLAGS, *_compile_flags(), *sources, "-x", "c++", os.devnull, "-o", unfinished]
        command += ["-x", "none", *list(tf.sysconfig.get_link_flags()), "-ldl"]
        run_compiler(command, "parquetry op library")
        os.chmod(unfinished, 0o755)


def _compiler() -> list[str]:
    """Returns the command from ``$CXX``, or the first compiler that is installed.

    Raises:
        RuntimeError: there is no compiler.
    """
    compiler = find_compiler()
    if compiler is not None:
        return compiler
    prebuilt = sorted({found[1] for path in PACKAGE.glob("*.so") if (found := re.search(r"-tf([^-]+)-", path.name))})
    raise RuntimeError(
        "parquetry op library: expected a C++17 compiler, because there is no prebuilt library for "
        f"TensorFlow {tf.__version__} "
        f"(built are those for: {', '.join(prebuilt) or 'none'}), got no {(chosen_compiler() or ['g++'])[0]}. "
        "Run: apt-get install g++ (Debian, Ubuntu), dnf install gcc-c++ (Fedora), "
        "or conda install gxx. Or set CXX to another compiler. Or install a wheel of parquetry for "
        "your platform, which contains the op, with a TensorFlow version that it is built for "
        "(docs/installing.md)."
    )


def _compile_flags() -> list[str]:
    # Include them as system headers, which silences warnings from TensorFlow's own code.
    flags = []
    for flag in tf.sysconfig.get_compile_flags():
        flags += ["-isystem", flag[2:]] if flag.startswith("-I") else [flag]
    return flags


@lru_cache(maxsize=1)
def load_ops() -> Any:
    """Registers the op with TensorFlow in this process and returns the module that contains it.

    `ParquetDataset` calls this for you. Call it yourself in a process that only runs graphs built
    elsewhere: a tf.data service worker, or a program that loads a saved model.

        >>> from parquetry.tf_plugin import load_ops
        >>> load_ops()

    If no library was built for this TensorFlow, the first call compiles one, which takes about a minute.

    Raises:
        RuntimeError: the op must be compiled, and there is no compiler or the compiler fails.
    """
    return tf.load_op_library(str(library_path()))


if __name__ == "__main__":
    if sys.argv[1:] == ["--name"]:
        print(library_name())
    elif sys.argv[1:2] == ["--try"]:
        tf.load_op_library(sys.argv[2])
    else:
        print(build_library(Path(sys.argv[1]) if len(sys.argv) > 1 else PACKAGE))
