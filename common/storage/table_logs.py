"""Refuses directories of tables whose log says which files are live: the others hold deleted or replaced rows.

It takes the names of files in and above a directory, and raises an error that says how to read the table.
"""

from __future__ import annotations

import os
import posixpath
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress

import pyarrow as pa
import pyarrow.fs as pafs

from ..base.errors import DatasetError
from ..base.process.dataclass import dataclass
from .retries import FEW_ATTEMPTS, is_local, is_transient, with_retries

LOGS = ("_delta_log", "metadata", ".hoodie", "_spark_metadata")
"""The directories in which tables keep their logs."""
_ABOVE_PARTITIONS = ("_delta_log", "metadata", "_spark_metadata")  # in a partition, Hudi has a file of its own
_FIELD_ID = b"PARQUET:field_id"
_DELETE_IDS = {b"2147483546", b"2147483545"}  # of file_path and pos, which Iceberg reserves


@dataclass(frozen=True, slots=True, kw_only=True)
class _Kind:
    """A kind of table.

    Attributes:
        log: matches a file of its log, by the path below a directory; the group ``table`` is the table's directory.
        keeps: the files that are not live.
    """

    name: str
    log: re.Pattern[str]
    keeps: str = "files of deleted rows"
    advice: str


_KINDS = (
    _Kind(
        name="a Delta table",
        log=re.compile(r"(?P<table>|.+/)_delta_log/(\d{20}\..+|_last_checkpoint)"),
        advice="Open it with from_delta(url); in Python, copy() and rewrite() take such a Pipeline.",
    ),
    _Kind(
        name="an Iceberg table",
        log=re.compile(
            r"(?P<table>|.+/)metadata/(v\d+|\d{5,}-[0-9a-fA-F-]{36})(\.[a-z0-9]+)?\.metadata\.json(\.[a-z0-9]+)?"
        ),
        advice="Open it with from_iceberg(table); in Python, copy() and rewrite() take such a Pipeline.",
    ),
    _Kind(
        name="a Hudi table",
        log=re.compile(r"(?P<table>|.+/)(\.hoodie/.+|\.hoodie_partition_metadata(\.\w+)?)"),
        advice="Write the live rows as plain Parquet, or name the files that hold them.",
    ),
    _Kind(
        name="the output of a Spark stream",
        log=re.compile(r"(?P<table>|.+/)_spark_metadata/\d+(\.compact)?"),
        keeps="files of failed batches",
        advice="Write its rows as plain Parquet with Spark, which reads its log, or name the files that are complete.",
    ),
)


def is_hidden(relative: str) -> bool:
    """Whether a path below a dataset is not data: one of its parts begins with ``_`` or ``.``."""
    return any(part.startswith(("_", ".")) and "=" not in part for part in relative.split("/"))


def is_log(relative: str) -> bool:
    """Whether a file below a directory may belong to the log of a table."""
    *folders, name = relative.split("/")
    return not set(folders).isdisjoint(LOGS) or name.startswith(".hoodie_partition_metadata")


def check_no_table(url: str, names: Iterable[str], chosen: Sequence[str] | None = None) -> None:
    """Refuses tables.

    Args:
        names: the files of a directory, relative to it.
        chosen: those that are wanted; ``None`` = all.

    Raises:
        DatasetError: the directory is a table, or contains one, from which files are wanted.
    """
    for name in names:
        for kind in _KINDS if is_log(name) else ():
            match = kind.log.fullmatch(name)
            if match is None or is_hidden(match["table"]):
                continue
            if chosen is None or any(name.startswith(match["table"]) for name in chosen):
                raise DatasetError(
                    f"dataset {url!r}: expected plain Parquet files, found {kind.name} ('{name}'), which keeps "
                    f"{kind.keeps}. {kind.advice}"
                )


def check_no_deletes(where: str, schema: pa.Schema) -> None:
    """Refuses a file of deleted rows of an Iceberg table. Raises `DatasetError`."""
    if {(field.metadata or {}).get(_FIELD_ID) for field in schema} >= _DELETE_IDS:
        raise DatasetError(
            f"file {where}: expected rows, found the position deletes of an Iceberg table. Open the table with "
            "from_iceberg(table), or leave the file out."
        )


def logs_above(path: str, list_names: Callable[[str], list[str]]) -> list[str]:
    """Returns the log files of all tables that a directory may belong to, relative to the table.

    The table of a partition directory (``key=value``) is its parent. The table of a ``data`` directory is the
    directory that contains it.

    Args:
        list_names: `names_in` of the file system.
    """
    return [
        f"{log}/{name}"
        for table, logs in _tables_above(path)
        for log in logs
        for name in list_names(posixpath.join(table, log))
    ]


def above_partitions(path: str) -> str | None:
    """The directory that contains a partition directory, ``None`` if the path is not one."""
    root = path.rstrip("/")
    while "=" in posixpath.basename(root):
        root = posixpath.dirname(root)
    return None if root == path.rstrip("/") else root


def _tables_above(path: str) -> Iterator[tuple[str, Sequence[str]]]:
    """Yields the directories that may be tables, and the logs that they may have."""
    above = above_partitions(path)
    if above is not None:
        yield above, _ABOVE_PARTITIONS
    parts = path.rstrip("/").split("/")
    if "data" in parts:
        last = len(parts) - 1 - parts[::-1].index("data")
        yield "/".join(parts[:last]), ("metadata",)


def names_in(filesystem: pafs.FileSystem, directory: str) -> list[str]:
    """The names of the files in a directory, with one listing; empty if it does not exist or must not be listed.

    Raises:
        StoreError: the store cannot be reached.
    """
    if is_local(filesystem):  # pyarrow cannot name a file whose name is not UTF-8
        with suppress(OSError), os.scandir(directory) as entries:
            return [entry.name for entry in entries if entry.is_file()]
        return []
    selector = pafs.FileSelector(directory, allow_not_found=True)

    def listed() -> list[pafs.FileInfo]:
        try:
            return list(filesystem.get_file_info(selector))
        except Exception as error:  # whatever a client raises for a directory that is not the user's
            if is_transient(error):
                raise
            return []

    infos = with_retries(filesystem, listed, f"directory {directory}", most=FEW_ATTEMPTS, is_listing=True)
    return [posixpath.basename(info.path) for info in infos if info.type == pafs.FileType.File]
