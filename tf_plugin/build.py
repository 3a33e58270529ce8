"""The op library: found if it is built already for this TensorFlow and these sources, else compiled once.

In: the C++ sources in ``kernels/`` and the installed TensorFlow. Out: the path of a shared library. Its file name
holds the TensorFlow version and a hash of the sources and flags, so a library that does not fit is never loaded.
Several processes may ask at the same time: one compiles, the others wait, and none ever sees half a file.

``python -m parquetry.tf_plugin.build [folder]`` builds it now, beside the package's modules unless a folder is given.
"""

from __future__ import annotations

import fcntl
import hashlib
import logging
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from functools import lru_cache
from pathlib import Path
from typing import Any

import tensorflow as tf
from platformdirs import user_cache_dir

from parquetry.common.layout.kept import whole_file

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
    name = library_name()
    for folder in (PACKAGE, cache_folder()):
        if (folder / name).is_file():
            return folder / name
    return build_library(cache_folder())


def library_name() -> str:
    """The file name of the library that fits this TensorFlow and these sources."""
    flags = [
        flag for flag in tf.sysconfig.get_compile_flags() if not flag.startswith("-I")
    ]  # not where it is installed
    digest = hashlib.sha256(repr((_FLAGS, flags)).encode())
    for source in sorted((*KERNELS.glob("*.h"), *KERNELS.glob("*.cc"))):
        digest.update(source.name.encode() + b"\0" + source.read_bytes())
    return f"_parquetry_ops-tf{tf.__version__}-{sys.platform}-{os.uname().machine}-{digest.hexdigest()[:16]}.so"


def cache_folder() -> Path:
    """Where a library that is compiled at first use is kept."""
    return Path(user_cache_dir("parquetry")) / "ops"


def build_library(folder: Path) -> Path:
    """Compiles the library into ``folder``, unless it is there, and returns its path.

    Raises:
        RuntimeError: no compiler, or the compiler failed, or the folder cannot be written.
    """
    target = folder / library_name()
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with _locked(target.with_suffix(".lock")):
            if not target.is_file():
                _compile(target)
    except OSError as error:
        raise RuntimeError(
            f"op library of parquetry: expected a folder that can be written, got '{folder}' ({error}). "
            "Set XDG_CACHE_HOME to another folder."
        ) from error
    return target


def _compile(target: Path) -> None:
    compiler = shutil.which(os.environ.get("CXX", "g++"))
    if compiler is None:
        raise RuntimeError(
            "op library of parquetry: expected a C++17 compiler for this TensorFlow "
            f"({tf.__version__}), got no g++. Run: apt-get install g++ (Debian, Ubuntu), dnf install gcc-c++ (Fedora), "
            "or conda install gxx; or set CXX to another compiler."
        )
    # One after the other in one go: most of the time goes into TensorFlow's headers, which are then read once.
    sources = [flag for source in sorted(KERNELS.glob("*.cc")) for flag in ("-include", str(source))]
    _logger.info("compiling the op library for TensorFlow %s (once): %s", tf.__version__, target)
    with whole_file(str(target)) as unfinished:
        command = [compiler, *_FLAGS, *_compile_flags(), *sources, "-x", "c++", os.devnull, "-o", unfinished]
        command += ["-x", "none", *_link_flags(), "-ldl"]
        result = subprocess.run(command, capture_output=True, text=True, check=False)
        if result.returncode != 0:
            raise RuntimeError(
                f"op library of parquetry: the compiler failed with status {result.returncode}.\n"
                f"Command: {' '.join(command)}\n{result.stderr[-4000:]}"
            )
        os.chmod(unfinished, 0o755)


def _compile_flags() -> list[str]:
    # As system headers: TensorFlow's own warnings are not ours to read.
    flags = []
    for flag in tf.sysconfig.get_compile_flags():
        flags += ["-isystem", flag[2:]] if flag.startswith("-I") else [flag]
    return flags


def _link_flags() -> list[str]:
    return list(tf.sysconfig.get_link_flags())


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    with open(path, "w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


if __name__ == "__main__":
    print(build_library(Path(sys.argv[1]) if len(sys.argv) > 1 else PACKAGE))


@lru_cache(maxsize=1)
def load_ops() -> Any:
    """The module with ``parquetry_parquet_dataset`` and ``parquetry_parquet_dataset_state``."""
    return tf.load_op_library(str(library_path()))
