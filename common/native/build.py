"""The library of the compiled core: built beside the package at installation, and loaded from there if it is there.

In: the C++ sources in this folder. Out: the loaded library, or ``None``: then numpy and Arrow do the same work. The
file's name holds a hash of the sources and flags, so a library that does not fit is never loaded. Nothing is compiled
at first use: `setup.py` does it, or ``python -m parquetry.common.native.build [folder]``. It is trusted as the package
is, because it lies in it.

``PARQUETRY_NATIVE=0`` in the environment leaves the library out, where it would be built and where it would be used.
"""

from __future__ import annotations

import ctypes
import logging
import os
import sys
from functools import lru_cache
from pathlib import Path

from .compiler import digest_of, find_compiler, has_content, locked, run_compiler

SOURCES = Path(__file__).resolve().parent
BUILT = SOURCES / "built"  # a folder of its own, because Python takes what lies in a package for a module
# No part of the C++ runtime is needed, so none is linked: the library runs wherever its C library is.
_FLAGS = ("-std=c++17", "-O3", "-fPIC", "-shared", "-fvisibility=hidden", "-fno-exceptions", "-fno-rtti", "-Wl,-z,now")

_logger = logging.getLogger(__name__)


def is_wanted() -> bool:
    """Whether ``PARQUETRY_NATIVE`` allows the library."""
    return os.environ.get("PARQUETRY_NATIVE", "1") != "0"


def library_name() -> str:
    """The file name of the library that fits these sources and this machine."""
    sources = sorted(SOURCES.glob("*.cc"))
    return f"_parquetry_native-{sys.platform}-{os.uname().machine}-{digest_of(sources, _FLAGS)}.so"


def library_path() -> Path:
    """Where the library lies that is loaded, if it is built."""
    return BUILT / library_name()


def build_library(folder: Path = BUILT) -> Path:
    """Compiles the library into ``folder``, unless it is there, and returns its path.

    Raises:
        RuntimeError: no compiler, or the compiler failed.
        OSError: the folder cannot be written.
    """
    target = folder / library_name()
    folder.mkdir(exist_ok=True)
    with locked(target, "its core", _logger):
        if has_content(target):
            return target
        compiler = find_compiler()
        if compiler is None:
            raise RuntimeError(
                "native core of parquetry: expected a C++17 compiler, got no g++. Run: apt-get install g++ (Debian, "
                "Ubuntu), dnf install gcc-c++ (Fedora), or conda install gxx; or set CXX to another compiler. Without "
                "it, numpy and Arrow do the same work more slowly."
            )
        unfinished = target.with_suffix(".unfinished")  # under the lock, so nobody else writes it
        sources = map(str, sorted(SOURCES.glob("*.cc")))
        run_compiler([*compiler, *_FLAGS, *sources, "-o", str(unfinished)], "native core of parquetry")
        unfinished.replace(target)
    return target


@lru_cache(maxsize=1)
def library() -> ctypes.CDLL | None:
    """The library, loaded once for each process; ``None`` if it is not built, not wanted, or cannot be loaded."""
    path = library_path()
    if not is_wanted() or not has_content(path):
        return None
    try:
        return ctypes.CDLL(str(path))  # its functions run without the interpreter's lock
    except OSError as error:
        _logger.warning("'%s' cannot be loaded (%s): numpy does its work, more slowly", path, error)
        return None


if __name__ == "__main__":
    print(build_library(Path(sys.argv[1]).resolve() if len(sys.argv) > 1 else BUILT))
