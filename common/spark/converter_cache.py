"""What `spark_converter` has written in this driver: found again by logical plan, removed when the driver ends."""

from __future__ import annotations

import atexit
import datetime
import logging
import posixpath
import threading
import time
import uuid
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

import pyarrow.fs as pafs

from ..errors import DatasetError

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

_LOGGER = logging.getLogger(__name__)
_POLL_S = 0.2


@dataclass(frozen=True, slots=True, kw_only=True)
class CacheKey:
    """What beside the plan decides what the files are."""

    parent: str
    dtype: str | None
    row_group_bytes: int
    compression: str
    storage_options: tuple[tuple[str, Any], ...]


class Written(Protocol):
    """What was written for a DataFrame."""

    @property
    def url(self) -> str:
        """Where."""


Kept = TypeVar("Kept", bound=Written)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Entry:
    df: DataFrame
    plan_hash: int
    key: CacheKey
    converter: Written
    remove: Callable[[], None]


class ConverterCache:
    """The converters of this process; thread-safe.

    Attributes:
        remove_directory: removes the directory at a URL in place of `SparkConverter.delete`, or ``None``.
    """

    def __init__(self) -> None:
        self.remove_directory: Callable[[str], Any] | None = None
        self._entries: list[_Entry] = []
        self._lock = threading.Lock()
        self._registered = False

    def find(self, df: DataFrame, key: CacheKey, kind: type[Kept]) -> Kept | None:
        """The converter of a DataFrame with the same logical plan, by Spark's own comparison."""
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
        """Notes what was written; it is removed at exit."""
        entry = _Entry(df=df, plan_hash=df.semanticHash(), key=key, converter=converter, remove=remove)
        with self._lock:
            self._entries.append(entry)
            if not self._registered:
                self._registered = True
                atexit.register(self.remove_all)

    def forget(self, url: str) -> None:
        """Drops what was written to a URL from the list; the files are the caller's matter."""
        with self._lock:
            self._entries = [entry for entry in self._entries if entry.converter.url != url]

    def remove_all(self) -> None:
        """Removes all files. Idempotent; what cannot be removed is told, not raised."""
        with self._lock:
            entries, self._entries = self._entries, []
        for entry in entries:
            try:
                entry.remove()
            except Exception as error:
                _LOGGER.warning("%s", error)


CACHE = ConverterCache()


def new_directory(parent: str, application: str) -> str:
    """The URL of a directory that nobody else uses; its name says when, and for which Spark application."""
    now = datetime.datetime.now(datetime.timezone.utc).strftime("%Y%m%dT%H%M%SZ")
    return posixpath.join(parent.rstrip("/"), f"{now}-{application}-{uuid.uuid4().hex}")


def wait_for_files(
    filesystem: pafs.FileSystem,
    paths: Sequence[str],
    *,
    timeout_s: float,
    clock: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], None] = time.sleep,
) -> list[pafs.FileInfo]:
    """Waits until every file can be seen; returns what is known of them.

    Raises:
        DatasetError: some files cannot be seen in time; names one.
    """
    end = clock() + timeout_s
    while True:
        infos = filesystem.get_file_info(list(paths))
        missing = [info.path for info in infos if info.type != pafs.FileType.File]
        if not missing:
            return list(infos)
        if clock() >= end:
            raise DatasetError(
                f"cache of a DataFrame: expected {len(paths)} files within {timeout_s} s, got {len(missing)} that "
                f"cannot be seen, such as '{missing[0]}'. Wait longer with wait_s=..., or check that this machine sees "
                "the directory that the executors write to."
            )
        sleep(_POLL_S)
