"""Builds the library of the compiled core, which is installed inside the package.

The library is compiled from the C++ sources in this folder. If it is missing, numpy and Arrow do the same work. The
file name contains a hash of the sources and flags, so a library that does not match is never loaded. Nothing is
compiled at first use: `setup.py` builds the library, or ``python -m parquetry.common.base.native.build [folder]``. The
library is as trusted as the package that contains it.

Set ``PARQUETRY_NATIVE=0`` in the environment to neither build nor use the library.
"""

from __future__ import annotations

import logging
import os
import sys
from pathlib import Path

from .compiler import digest_of, find_compiler, has_content, locked, run_compiler

SOURCES = Path(__file__).resolve().parent
BUILT = SOURCES / "built"  # a separate folder, because Python treats a .so file in a package as a module
# The C++ runtime is not needed and not linked: the library runs wherever its C library is available.
_FLAGS = (
    *("-std=c++17", "-O3", "-fPIC", "-shared", "-fvisibility=hidden", "-fno-exceptions", "-fno-rtti"),
    *(() if sys.platform == "darwin" else ("-Wl,-z,now",)),  # Apple's linker does so by itself
    "-ffp-contract=off",  # the same numbers on every processor
)

_logger = logging.getLogger(__name__)


def is_wanted() -> bool:
    """Returns whether ``PARQUETRY_NATIVE`` allows the library."""
    return os.environ.get("PARQUETRY_NATIVE", "1") != "0"


def library_name() -> str:
    """Returns the file name of the library for these sources and this machine."""
    sources = sorted([*SOURCES.glob("*.cc"), *SOURCES.glob("*.h")])
    return f"_parquetry_native-{sys.platform}-{os.uname().machine}-{digest_of(sources, _FLAGS)}.so"


def library_path() -> Path:
    """Returns the path from which the library is loaded if it has been built."""
    return BUILT / library_name()


def build_library(folder: Path = BUILT) -> Path:
    """Compiles the library into ``folder`` unless it already exists, and returns its path.

    Raises:
        RuntimeError: there is no compiler, or the compiler failed.
        OSError: the folder is not writable.
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
                "Ubuntu), dnf install gcc-c++ (Fedora), xcode-select --install (macOS), or conda install gxx; or set "
                "CXX to another compiler. Without it, numpy and Arrow do the same work more slowly."
            )
        unfinished = target.with_suffix(".unfinished")  # the lock protects it; `storage.whole_files` is above this room
        sources = map(str, sorted(SOURCES.glob("*.cc")))
        run_compiler([*compiler, *_FLAGS, *sources, "-o", str(unfinished)], "native core of parquetry")
        unfinished.replace(target)
    return target


if __name__ == "__main__":
    print(build_library(Path(sys.argv[1]).resolve() if len(sys.argv) > 1 else BUILT))
