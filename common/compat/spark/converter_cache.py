"""Tracks the files that `spark_converter` wrote in this driver.

They are found again by logical plan and removed when the driver ends.
"""

from __future__ import annotations

import atexit
import datetime
import logging
import posixpath
import threading
import time
import uuid
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

import pyarrow.fs as pafs

from ...base.errors import DatasetError
from ...base.process.dataclass import dataclass

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

_LOGGER = logging.getLogger(__name__)
_POLL_S = 0.2


@dataclass(frozen=True, slots=True, kw_only=True)
class CacheKey:
    """The settings that, together with the logical plan, determine the files."""

    parent: str
    dtype: str | None
    row_group_bytes: int
    compression: str
    storage_options: tuple[tuple[str, Any], ...]


class Written(Protocol):
    """The result of writing a DataFrame."""

    @property
    def url(self) -> str:
        """The directory of the files."""


Kept = TypeVar("Kept", bound=Written)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Entry:
    df: DataFrame
    plan_hash: int
    key: CacheKey
    converter: Written
    remove: Callable[[], None]


class ConverterCache:
    """The converters of this process. Thread-safe.

    Attributes:
        remove_directory: a function that `SparkConverter.delete` calls to remove the directory at a
            URL, or ``None`` to let `SparkConverter.delete` remove it.
    """

    def __init__(self) -> None:
        self.remove_directory: Callable[[str], Any] | None = None
        self._entries: list[_Entry] = []
        self._lock = threading.Lock()
        self._registered = False

    def find(self, df: DataFrame, key: CacheKey, kind: type[Kept]) -> Kept | None:
        """Returns the converter of a DataFrame with the same logical plan, or ``None``.

        Spark compares the plans.
        """
        plan_hash = df.semanticHash()
        with self._lock:
            entries = [entry for entry in self._entries if (entry.plan_hash, entry.key) == (plan_hash, key)]
        for entry in entries:
            if (
                isinstance(entry.converter, kind)
                and entry.df.sparkSession is df.sparkSession
                and df.sameSemantics(entry.df)
            ):
                return entry.converter
        return None

    def keep(self, df: DataFrame, key: CacheKey, converter: Written, remove: Callable[[], None]) -> None:
        """Registers files that were written, so that they are removed at exit."""
        entry = _Entry(df=df, plan_hash=df.semanticHash(), key=key, converter=converter, remove=remove)
        with self._lock:
            self._entries.append(entry)
            if not self._registered:
                self._registered = True
                atexit.register(self.remove_all)

    def forget(self, url: str) -> None:
        """Removes a URL from the list. The caller removes the files."""
        with self._lock:
            self._entries = [entry for entry in self._entries if entry.converter.url != url]

    def remove_all(self) -> None:
        """Removes all files. You can call this more than once.

        If files cannot be removed, this logs a warning and does not raise.
        """
        with self._lock:
            entries, self._entries = self._entries, []
        for entry in entries:
            try:
                entry.remove()
            except Exception as error:
                _LOGGER.warning("%s", error)


CACHE = ConverterCache()


def new_directory(parent: str, application: str) -> str:
    """Returns a URL for a new directory that nobody else uses.

    The directory's name contains the current time and the Spark application's id.
    """
    now = datetime.datetime.now(datetime.UTC).strftime("%Y%m%dT%H%M%SZ")
    return posixpath.join(parent.rstrip("/"), f"{now}-{application}-{uuid.uuid4().hex}")


def wait_for_files(
    filesystem: pafs.FileSystem,
    paths: Sequence[str],
    *,
    timeout_s: float,
    clock: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], None] = time.sleep,
) -> list[pafs.FileInfo]:
    """Waits until every file is visible and returns the information about the files.

    Raises:
        DatasetError: some files are not visible in time. The message names one.
    """
    end = clock() + timeout_s
    while True:
        infos = filesystem.get_file_info(list(paths))
        missing = [info.path for info in infos if info.type != pafs.FileType.File]
        if not missing:
            return list(infos)
        if clock() >= end:
            raise DatasetError(
                f"DataFrame cache: expected {len(paths)} files within {timeout_s} s, got "
                f"{len(missing)} that cannot be seen, such as '{missing[0]}'. Wait longer with "
                "wait_s=..., or check that this machine can access the directory that the "
                "executors write to."
            )
        sleep(_POLL_S)
