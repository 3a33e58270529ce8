"""`TableSource`: what a table maker found, ready to become a pipeline."""

from __future__ import annotations

from dataclasses import dataclass, replace
from importlib import import_module
from types import ModuleType
from typing import Any

from ...errors import DatasetError
from ..table import Table


@dataclass(frozen=True, slots=True, kw_only=True)
class TableSource:
    """A snapshot of a table, and how its files are reached.

    Attributes:
        filesystem: where the files are; ``None`` = the URL's own.
    """

    url: str
    table: Table
    filesystem: Any = None


def sorted_files(table: Table) -> Table:
    """The table with its files in the order of their paths, as every dataset has them."""
    return replace(table, files=tuple(sorted(table.files, key=lambda file: file.path)))


def import_package(name: str, *, extra: str, what: str) -> ModuleType:
    """An optional package, or an error that names the extra to install."""
    try:
        return import_module(name)
    except ImportError as error:
        raise DatasetError(
            f"{what}: it needs the package '{name.partition('.')[0]}', which cannot be imported ({error}). "
            f"Run: pip install 'parquetry[{extra}]'"
        ) from error
