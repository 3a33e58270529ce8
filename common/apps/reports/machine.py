"""`doctor` checks this machine: versions, the op, memory for the sidecar, limits, caches and libraries.

It imports no framework. Only if an op has been built, a separate process imports TensorFlow to find out which file name
matches.
"""

from __future__ import annotations

import os
import platform
import resource
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import suppress
from functools import lru_cache
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path
from typing import Literal

import platformdirs

from ...base.errors import SidecarError
from ...base.native.build import is_wanted, library_path
from ...base.native.compiler import find_compiler
from ...base.native.kernels import decodes_parts
from ...base.native.library import is_compiled
from ...base.platform.memory_file import has_memfd, memory_file, shared_memory_room
from ...base.platform.processes import usable_processors
from ...base.process.dataclass import dataclass
from ...storage.whole_files import cache_root
from ...transport.processes import python_command
from .kept_files import CacheReport, caches

_LIBRARIES = {
    "numpy": "always required",
    "pyarrow": "always required",
    "pillow": "always required",
    "simplejpeg": "decoding JPEG directly into the batch",
    "tensorflow": "ParquetDataset",
    "torch": "ParquetPipe, ParquetIterable, ParquetMap",
    "torchdata": "ParquetNode",
    "imagecodecs": "PNG with more than one 16-bit channel",
    "av": "frames of videos",
    "fsspec": "stores that pyarrow does not support",
    "deltalake": "from_delta",
    "pyiceberg": "from_iceberg",
    "pandas": "from_pandas",
    "polars": "from_polars",
    "pyspark": "datasets from Spark",
    "tokenizers": "show --tokenizer",
}
_NEEDED = ("numpy", "pyarrow", "pillow")
_TENSORFLOWS = ("tensorflow", "tensorflow-cpu", "tf-nightly", "tensorflow-macos")
_FEW_DESCRIPTORS = 1024
_LITTLE_DISK = 1 << 30


@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    """The result of one check.

    Attributes:
        level: ``"fine"``, ``"note"``, or ``"problem"``.
        found: what was found.
        remedy: what to do; empty if it is fine.
    """

    name: str
    level: Literal["fine", "note", "problem"]
    found: str
    remedy: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class MachineReport:
    """The result of `doctor`.

    Attributes:
        versions: the versions of parquetry, Python and the platform.
        libraries: versions by distribution name; ``None`` = not installed.
        uses: what each library is for.
        processors: the number of processors that this process may use.
        caches: the contents of the cache directory.
    """

    versions: dict[str, str]
    libraries: dict[str, str | None]
    uses: dict[str, str]
    processors: int
    memory_bytes: int
    checks: tuple[Check, ...]
    caches: tuple[CacheReport, ...]

    @property
    def problems(self) -> tuple[Check, ...]:
        """The checks that failed."""
        return tuple(check for check in self.checks if check.level == "problem")


def doctor() -> MachineReport:
    """Checks this machine.

    >>> doctor().problems  # doctest: +SKIP
    ()
    """
    libraries = {name: _version(name) for name in _LIBRARIES}
    libraries["tensorflow"] = next(filter(None, map(_version, _TENSORFLOWS)), None)
    return MachineReport(
        versions={
            "parquetry": _version("parquetry") or "not installed",
            "python": platform.python_version(),
            "platform": platform.platform(),
        },
        libraries=libraries,
        uses=dict(_LIBRARIES),
        processors=usable_processors(),
        memory_bytes=os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
        checks=tuple(_checks(libraries)),
        caches=caches(),
    )


def _version(name: str) -> str | None:
    try:
        return version(name)
    except PackageNotFoundError:
        return None


def _checks(libraries: dict[str, str | None]) -> Iterator[Check]:
    missing = [name for name in _NEEDED if libraries[name] is None]
    if missing:
        result, remedy = f"{', '.join(missing)} missing", f"Run: pip install {' '.join(missing)}"
        yield Check(name="libraries", level="problem", found=result, remedy=remedy)
    yield _core()
    yield _op(libraries["tensorflow"])
    yield _shared_memory()
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    few = soft != resource.RLIM_INFINITY and soft < _FEW_DESCRIPTORS
    shown = f"{_limit(soft)} open files, up to {_limit(hard)}"
    remedy = f"Run: ulimit -n {_limit(hard)}. The sidecar and readers of many files need more." if few else ""
    yield Check(name="limits", level="note" if few else "fine", found=shown, remedy=remedy)
    yield _cache_directory()


def _limit(number: int) -> str:
    return "unlimited" if number == resource.RLIM_INFINITY else f"{number:,}"


def _core() -> Check:
    """Checks whether the compiled core copies rows, or numpy does."""
    if is_compiled():
        parts = "" if decodes_parts() else "; decodes whole JPEG images, even for a crop: built without libjpeg-turbo"
        return Check(name="compiled core", level="fine", found=f"loaded: {library_path()}{parts}")
    if not is_wanted():
        result, remedy = "switched off: numpy and Arrow are used instead", "Unset PARQUETRY_NATIVE to use it."
    else:
        result = "not built for this machine: numpy and Arrow are used instead, and are slower"
        remedy = "Build it: python -m parquetry.common.base.native.build (needs a C++ compiler)."
    return Check(name="compiled core", level="note", found=result, remedy=remedy)


def _op(tensorflow: str | None) -> Check:
    """Checks whether the TensorFlow op is built, or can be built."""
    if tensorflow is None:
        return Check(name="TensorFlow op", level="fine", found="not needed: TensorFlow is not installed")
    candidates = [path for folder in _op_folders() for path in folder.glob(f"_parquetry_ops-tf{tensorflow}-*.so")]
    library = _library_name() if candidates else ""
    built = [path for path in candidates if path.name == library and _size(path)]
    if built:
        return Check(name="TensorFlow op", level="fine", found=f"built for TensorFlow {tensorflow}: {built[0]}")
    compiler = find_compiler()
    if compiler is not None:
        result = f"not built for TensorFlow {tensorflow} yet; {shutil.which(compiler[0])} will compile it at first use"
        return Check(
            name="TensorFlow op", level="note", found=result, remedy="Build it now: python -m parquetry.tf_plugin.build"
        )
    return Check(
        name="TensorFlow op",
        level="problem",
        found=f"not built for TensorFlow {tensorflow}, and there is no C++ compiler",
        remedy="Install g++ (apt-get install g++, dnf install gcc-c++, conda install gxx), or set CXX.",
    )


def _size(path: Path) -> int:
    with suppress(FileNotFoundError):  # another process has just removed it
        return path.stat().st_size
    return 0


@lru_cache(maxsize=1)
def _library_name() -> str:
    """Returns the file name of the op for this TensorFlow and these sources. Empty if TensorFlow cannot be imported.

    Runs in a separate process, because it imports TensorFlow.
    """
    environment = {**os.environ, "CUDA_VISIBLE_DEVICES": "", "TF_CPP_MIN_LOG_LEVEL": "3"}
    try:
        command = python_command("parquetry.tf_plugin.build", "--name")
        completed = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120, check=True)
    except (OSError, subprocess.SubprocessError, SidecarError):
        return ""
    return completed.stdout.split()[-1]


def _op_folders() -> Iterator[Path]:
    spec = find_spec("parquetry")
    for place in (spec.submodule_search_locations or ()) if spec is not None else ():
        yield Path(place) / "tf_plugin"
    yield Path(__file__).resolve().parents[3] / "tf_plugin"
    yield Path(platformdirs.user_cache_dir("parquetry")) / "ops"


def _shared_memory() -> Check:
    """Checks where the sidecar can put batches: in a memfd, or in ``/dev/shm``."""
    if has_memfd():
        return Check(name="shared memory", level="fine", found="memfd")
    reason = "this system or sandbox has no memfd"
    try:
        os.close(memory_file("doctor", 1))
        room = shared_memory_room()
    except OSError as error:
        remedy = 'Use executor="threads", which needs no shared memory.'
        result = f"{reason}, and /dev/shm cannot be used: {error}"
        return Check(name="shared memory", level="problem", found=result, remedy=remedy)
    if room is None:
        return Check(name="shared memory", level="note", found=f"{reason}, and no /dev/shm: threads need neither")
    free, _ = room
    little = free < 1 << 30
    return Check(
        name="shared memory",
        level="note" if little else "fine",
        found=f"{reason}; /dev/shm has {free >> 20:,} MiB free",
        remedy="Give the container more: docker run --shm-size=8g." if little else "",
    )


def _cache_directory() -> Check:
    place = cache_root()
    there, free = _nearest(place)
    if not os.access(there, os.W_OK):
        remedy = "Set PARQUETRY_CACHE_DIR to a writable directory."
        return Check(name="cache directory", level="problem", found=f"{place} cannot be written", remedy=remedy)
    little = free < _LITTLE_DISK
    return Check(
        name="cache directory",
        level="note" if little else "fine",
        found=f"{place}, {free >> 20:,} MiB free",
        remedy="Set PARQUETRY_CACHE_DIR to a larger disk, or run: parquetry cache clear." if little else "",
    )


def _nearest(place: Path) -> tuple[Path, int]:
    """The first directory that exists, of a place and those above it, and the free space on its disk."""
    for path in (place, *place.parents):
        with suppress(FileNotFoundError, NotADirectoryError):  # another process may remove it at any time
            return path, shutil.disk_usage(path).free
    raise FileNotFoundError(place)  # not even the root exists
