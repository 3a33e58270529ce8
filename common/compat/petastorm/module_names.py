"""Petastorm's module names, for ``parquetry.petastorm`` and, after `install`, for ``petastorm`` itself.

A name such as ``petastorm.unischema`` is another name of one module here. That module is imported when a program first
imports the name, so neither framework is imported before ``petastorm.pytorch`` or ``petastorm.tf_utils`` is.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from importlib import import_module
from importlib.abc import InspectLoader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import CodeType, ModuleType
from typing import Any

from .errors import PetastormLoadedError

_FACADE = "parquetry.petastorm"
_PACKAGES = ("benchmark", "etl", "spark", "test_util", "tools", "workers_pool")
_SAME_NAMES = (
    *_PACKAGES,
    "benchmark.throughput",
    "codecs",
    "errors",
    "etl.dataset_metadata",
    "etl.petastorm_generate_metadata",
    "etl.rowgroup_indexers",
    "etl.rowgroup_indexing",
    "fs_utils",
    "local_disk_cache",
    "ngram",
    "predicates",
    "reader",
    "selectors",
    "spark.spark_dataset_converter",
    "spark_utils",
    "test_util.reader_mock",
    "tools.copy_dataset",
    "transform",
    "unischema",
    "utils",
    "weighted_sampling_reader",
    "workers_pool.process_pool",
)
HOMES = {
    **{name: f"parquetry.common.compat.petastorm.{name}" for name in _SAME_NAMES},
    "cache": "parquetry.common.compat.petastorm.local_disk_cache",
    "pytorch": "parquetry.torch_plugin.petastorm",
    "tf_utils": "parquetry.tf_plugin.petastorm",
}
"""The module for each of Petastorm's names."""
INTERNAL = frozenset(
    (
        "arrow_reader_worker",
        "benchmark.cli",
        "benchmark.dummy_reader",
        "etl.legacy",
        "etl.metadata_util",
        "gcsfs_helpers",
        "generator",
        "hdfs",
        "namedtuple_gt_255_fields",
        "py_dict_reader_worker",
        "pyarrow_helpers",
        "reader_impl",
        "test_util.shuffling_analysis",
        "tools.spark_session_cli",
        "workers_pool.dummy_pool",
        "workers_pool.thread_pool",
        "workers_pool.ventilator",
        "workers_pool.worker_base",
    )
)
"""Petastorm's modules that have no counterpart here."""


def install() -> None:
    """Makes ``import petastorm`` import this API, in this process and in the worker processes of its readers.

    Call it before the first import of Petastorm, which need not be installed. Calling it again does nothing. The
    distribution in ``compat/petastorm-shim`` calls it when a program imports ``petastorm``.

        >>> import parquetry.petastorm
        >>> parquetry.petastorm.install()
        >>> from petastorm import make_reader
        >>> from petastorm.pytorch import DataLoader

    Raises:
        PetastormLoadedError: Petastorm itself is already imported (an ``ImportError``).
    """
    facade = import_module(_FACADE)
    if is_installed():
        return
    loaded = [name for name, module in sys.modules.items() if name.partition(".")[0] == "petastorm" and module]
    if loaded:
        place = getattr(sys.modules[loaded[0]], "__file__", None)
        raise PetastormLoadedError(
            f"parquetry.petastorm.install: {loaded[0]} is already imported, from {place}. Call install() before "
            "anything imports petastorm; a program cannot use both."
        )
    sys.modules["petastorm"] = facade
    name_modules("petastorm")


def is_installed() -> bool:
    """Whether ``petastorm`` is this API in this process."""
    return sys.modules.get("petastorm") is not None and sys.modules["petastorm"] is sys.modules.get(_FACADE)


def name_modules(package: str) -> Callable[[str], Any]:
    """Makes Petastorm's module names importable from a package; returns its ``__getattr__``, which imports them, too.

    The package needs a ``__path__``, which may be empty.
    """
    if package not in _FINDER.packages:
        _FINDER.packages.append(package)
    if _FINDER not in sys.meta_path:
        # First: Python's own finder would load a second copy of a module in a package that has files.
        sys.meta_path.insert(0, _FINDER)

    def get(name: str) -> Any:
        if name not in HOMES:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        return import_module(f"{package}.{name}")

    return get


class _Finder(MetaPathFinder):
    """Finds Petastorm's module names in ``packages``."""

    def __init__(self) -> None:
        self.packages: list[str] = []

    def find_spec(
        self, fullname: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        for package in self.packages:
            name = fullname.removeprefix(f"{package}.")
            if name == fullname:
                continue
            if name in INTERNAL:
                raise ModuleNotFoundError(
                    f"{fullname}: an internal module of Petastorm, which parquetry does not have. "
                    "docs/migrating-from-petastorm.md lists what is missing, and what to use.",
                    name=fullname,
                )
            if name in HOMES:
                return ModuleSpec(fullname, _Loader(HOMES[name]), is_package=name in _PACKAGES)
        return None


_FINDER = _Finder()


class _Loader(InspectLoader):
    """Puts another module in the place of a new one."""

    def __init__(self, home: str) -> None:
        self._home = home

    def exec_module(self, module: ModuleType) -> None:
        sys.modules[module.__name__] = import_module(self._home)  # which the import system then takes

    def get_code(self, fullname: str) -> CodeType:
        """Returns code that runs the module as a program, for ``python -m``."""
        call = f"import runpy\nrunpy.run_module({self._home!r}, run_name='__main__', alter_sys=True)\n"
        return compile(call, f"<{fullname}>", "exec")

    def get_source(self, fullname: str) -> None:
        return None

    def is_package(self, fullname: str) -> bool:
        return fullname.rpartition(".")[2] in _PACKAGES
