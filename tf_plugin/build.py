"""The op library: found if it is built already for this TensorFlow and these sources, else compiled once.

In: the C++ sources in ``kernels/`` and the installed TensorFlow. Out: the path of a shared library. Its file name
holds the TensorFlow version and a hash of the sources and flags, so a library that does not fit is never loaded.
Several processes may ask at the same time: one compiles, the others wait, and none ever sees half a file. The lock
ends with its process, so one that is killed keeps nobody waiting.

What lies in the package is trusted as the package is. What was compiled at first use is loaded only if it is this
user's own, in a folder that nobody else can write, and as it was when a trial process loaded it: its hash is kept
beside it. Otherwise it is compiled again.

Wheels for a platform hold libraries for many versions of TensorFlow beside this module. ``python -m
parquetry.tf_plugin.build [folder]`` builds one now, there unless a folder is given; ``--name`` prints its file name.
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

from parquetry.common.errors import needs_framework
from parquetry.common.layout.kept import whole_file
from parquetry.common.native.compiler import (
    chosen_compiler,
    digest_of,
    find_compiler,
    has_content,
    locked,
    run_compiler,
)
from parquetry.common.progress import pulse
from parquetry.common.transport.processes import python_command

with needs_framework("parquetry.tf_plugin", "tensorflow", extra="tensorflow"):
    import tensorflow as tf

PACKAGE = Path(__file__).resolve().parent
KERNELS = PACKAGE / "kernels"
_FLAGS = ("-O2", "-fPIC", "-shared", "-pthread", "-fvisibility=hidden", "-Wl,-z,now")

_logger = logging.getLogger(__name__)


@lru_cache(maxsize=1)
def library_path() -> Path:
    """The library for this TensorFlow; compiles it if it is nowhere yet.

    Raises:
        RuntimeError: it has to be compiled and cannot be; says what to run.
    """
    packaged = PACKAGE / library_name()
    return packaged if has_content(packaged) else kept_library(cache_folder())


def library_name() -> str:
    """The file name of the library that fits this TensorFlow and these sources."""
    flags = [
        flag for flag in tf.sysconfig.get_compile_flags() if not flag.startswith("-I")
    ]  # not where it is installed
    digest = digest_of(sorted((*KERNELS.glob("*.h"), *KERNELS.glob("*.cc"))), (_FLAGS, flags))
    return f"_parquetry_ops-tf{tf.__version__}-{sys.platform}-{os.uname().machine}-{digest}.so"


def cache_folder() -> Path:
    """Where a library that is compiled at first use is kept."""
    return Path(user_cache_dir("parquetry")) / "ops"


def build_library(folder: Path) -> Path:
    """Compiles the library into ``folder``, unless it is there, and returns its path.

    Raises:
        RuntimeError: no compiler, or the compiler failed, or the folder cannot be written.
    """
    target = folder / library_name()
    with _writes(folder):
        folder.mkdir(parents=True, exist_ok=True)
        with locked(target, "its op", _logger):
            if not has_content(target):
                _compile(target)
    return target


def kept_library(folder: Path) -> Path:
    """The library in the folder of this user, compiled and tried if it is not there as it was tried before.

    Raises:
        RuntimeError: what `build_library` raises; the folder is another user's, or others can write it; or the library
            cannot be loaded.
    """
    target = folder / library_name()
    with _writes(folder):
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        _make_private(folder)
        if _is_as_tried(target):
            return target
        with locked(target, "its op", _logger):
            if _is_as_tried(target) or (_is_usable(target) and not _tried(target)):
                return target
            target.unlink(missing_ok=True)  # empty, cut off, changed, or somebody else's
            _compile(target)
            problem = _tried(target)
            if problem:
                target.unlink(missing_ok=True)
                raise RuntimeError(
                    f"op library of parquetry: expected one that TensorFlow {tf.__version__} can load, got "
                    f"'{target}', which it cannot.\n{problem}"
                )
    return target


@contextmanager
def _writes(folder: Path) -> Iterator[None]:
    """Names the folder in the error if it cannot be used."""
    try:
        yield
    except OSError as error:
        raise RuntimeError(
            f"op library of parquetry: expected a folder that can be written, got '{folder}' ({error}). "
            "Set XDG_CACHE_HOME to another folder."
        ) from error


def _make_private(folder: Path) -> None:
    """Takes a folder from everybody else, and drops what they may have put there.

    Raises:
        PermissionError: it is another user's, or stays writable for others.
    """
    if _is_own(folder.stat()):
        return
    if folder.stat().st_uid == os.geteuid():
        os.chmod(folder, 0o700)
        for path in folder.glob("_parquetry_ops-*"):
            path.unlink(missing_ok=True)
        _logger.warning("others could write '%s': its op library is compiled again", folder)
    if not _is_own(folder.stat()):
        raise PermissionError("it is another user's, or others can write it")


def _is_own(status: os.stat_result) -> bool:
    """Whether a file or folder is this user's (or root's), and nobody else can write it."""
    return status.st_uid in (os.geteuid(), 0) and not status.st_mode & 0o022


def _is_usable(target: Path) -> bool:
    """Whether the library is a file with content that nobody else can write."""
    try:
        status = target.lstat()
    except FileNotFoundError:
        return False
    return stat.S_ISREG(status.st_mode) and status.st_size > 0 and _is_own(status)


def _is_as_tried(target: Path) -> bool:
    """Whether the library is the one that a trial process could load."""
    try:
        return _is_usable(target) and _record_of(target).read_text() == _digest(target)
    except FileNotFoundError:
        return False


def _tried(target: Path) -> str:
    """Loads the library in a process of its own; keeps its hash if that goes well, else returns what it said."""
    digest = _digest(target)
    command = python_command("parquetry.tf_plugin.build", "--try", str(target))
    environment = {**os.environ, "CUDA_VISIBLE_DEVICES": ""}
    result = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    if result.returncode:
        return f"Trial process: exit status {result.returncode}.\n{result.stderr[-4000:]}"
    with suppress(OSError), whole_file(str(_record_of(target))) as unfinished:  # a folder of root's is only read
        Path(unfinished).write_text(digest)
    return ""


def _record_of(target: Path) -> Path:
    return target.with_suffix(".sha256")


def _digest(target: Path) -> str:
    return hashlib.sha256(target.read_bytes()).hexdigest()


def _compile(target: Path) -> None:
    compiler = _compiler()
    # One after the other in one go: most of the time goes into TensorFlow's headers, which are then read once.
    sources = [flag for source in sorted(KERNELS.glob("*.cc")) for flag in ("-include", str(source))]
    what = f"parquetry compiles its op for TensorFlow {tf.__version__}, once, about a minute"
    with pulse(what, _logger), whole_file(str(target)) as unfinished:
        command = [*compiler, *_FLAGS, *_compile_flags(), *sources, "-x", "c++", os.devnull, "-o", unfinished]
        command += ["-x", "none", *_link_flags(), "-ldl"]
        run_compiler(command, "op library of parquetry")
        os.chmod(unfinished, 0o755)


def _compiler() -> list[str]:
    """The command of ``$CXX``, or of the first compiler that is there.

    Raises:
        RuntimeError: there is none.
    """
    compiler = find_compiler()
    if compiler is not None:
        return compiler
    prebuilt = sorted({found[1] for path in PACKAGE.glob("*.so") if (found := re.search(r"-tf([^-]+)-", path.name))})
    raise RuntimeError(
        f"op library of parquetry: expected a C++17 compiler, because none is built for TensorFlow {tf.__version__} "
        f"(built are those for: {', '.join(prebuilt) or 'none'}), got no {(chosen_compiler() or ['g++'])[0]}. "
        "Run: apt-get install g++ (Debian, Ubuntu), dnf install gcc-c++ (Fedora), or conda install gxx; or set CXX to "
        "another compiler; or install a wheel of parquetry for your platform, which holds the op, and a TensorFlow "
        "that it is built for (docs/installing.md)."
    )


def _compile_flags() -> list[str]:
    # As system headers: TensorFlow's own warnings are not ours to read.
    flags = []
    for flag in tf.sysconfig.get_compile_flags():
        flags += ["-isystem", flag[2:]] if flag.startswith("-I") else [flag]
    return flags


def _link_flags() -> list[str]:
    return list(tf.sysconfig.get_link_flags())


@lru_cache(maxsize=1)
def load_ops() -> Any:
    """Registers the op with TensorFlow in this process, and returns the module that holds it.

    `ParquetDataset` does this by itself. Call it in a process that only runs the graphs of others: a worker of the
    tf.data service, or a program that loads a saved model.

        >>> from parquetry.tf_plugin import load_ops
        >>> load_ops()

    If no library was built for this TensorFlow, the first call compiles one, which takes about a minute.

    Raises:
        RuntimeError: the op has to be compiled, and there is no compiler or it fails.
    """
    return tf.load_op_library(str(library_path()))


if __name__ == "__main__":
    if sys.argv[1:] == ["--name"]:
        print(library_name())
    elif sys.argv[1:2] == ["--try"]:
        tf.load_op_library(sys.argv[2])
    else:
        print(build_library(Path(sys.argv[1]) if len(sys.argv) > 1 else PACKAGE))
