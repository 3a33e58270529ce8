"""Reads whole Parquet footers, once per file version in each process. `group_footers` reads parts of them."""

from __future__ import annotations

import hashlib
import logging
import re
import resource
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TypeVar

import pyarrow as pa
import pyarrow.fs as pafs
import pyarrow.parquet as pq

from ..base.errors import DatasetError, ParquetryError, access_failed, limit_reached
from ..base.memory.lru_cache import LRUCache
from ..base.urls import clean_cause
from ..storage.files import DataFile
from ..storage.opening import opened
from ..storage.retries import retry_if_damaged, with_retries
from ..storage.store_answers import StoreError, told
from .footer_check import check_footer

_LOGGER = logging.getLogger(__name__)
_MOST_KEPT_BYTES = 64 << 20  # of parsed footers, which take up to ten times as much as stored ones
_GROWTH = 10
FIRST_BYTES = 64 << 10
"""How much of the end of a file is read at first, if nothing is known of its footer."""
_SIGNATURE_BYTES = 28
_UNSUPPORTED = re.compile(r"not (yet )?implemented|unsupported|not supported|support for .* not built", re.IGNORECASE)
_ANNOTATION = re.compile(
    r"-annotated|annotated as|cannot be applied to|can only annotate|[Mm]ap node|[Ii]nvalid logical type"
)
_ENCRYPTED = "It is encrypted, and parquetry has no keys. Decrypt it first, and read the copy."
REMOVED = "no longer exists. It was removed after it was listed. Create the pipeline again"
CLEANED = ", with a newer version of the table if it was cleaned up (vacuum, expired snapshots)"
_kept: LRUCache[str, pq.FileMetaData] = LRUCache(_MOST_KEPT_BYTES, lambda footer: _GROWTH * int(footer.serialized_size))
Found = TypeVar("Found")


def read_footer(filesystem: pafs.FileSystem, file: DataFile) -> pq.FileMetaData:
    """Like `load_footer`, but cached in memory per file version, and loaded once for all threads that need it."""
    return _kept.made(file.version.key, lambda: load_footer(filesystem, file))


def kept_footer(file: DataFile) -> pq.FileMetaData | None:
    """Returns the footer of a file if `read_footer` has kept it."""
    return _kept.get(file.version.key)


def load_footer(filesystem: pafs.FileSystem, file: DataFile) -> pq.FileMetaData:
    """Reads the footer of one file, and checks it.

    Raises:
        DatasetError: the file is not Parquet, cannot be read, is encrypted, or changed since it was listed.
    """

    def load() -> pq.FileMetaData:
        with naming_file(file):
            return check_loaded(file, *from_footer(filesystem, file, parse_footer))

    return retry_if_damaged(filesystem, load, f"file {file.shown_path}")


def check_loaded(file: DataFile, footer: pq.FileMetaData, signed: bool, stored: bytes) -> pq.FileMetaData:
    """Returns the footer of a file after `check_footer`, given what `parse_footer` returned.

    Raises:
        DatasetError, ValueError: the file is encrypted; the footer is damaged.
    """
    if signed:  # asking Arrow about an encrypted column chunk would terminate the process
        raise DatasetError(f"file {file.shown_path}: expected plain columns, got some that need a key. {_ENCRYPTED}")
    footer, rows = check_footer(stored, footer, file.size_bytes)
    if rows != footer.num_rows:
        _LOGGER.warning(
            "file %s: expected a footer that counts the %s rows of its row groups, got a count of %s. The row groups "
            "are read.",
            *(file.shown_path, f"{rows:,}", f"{footer.num_rows:,}"),
        )
    return footer


def from_footer(filesystem: pafs.FileSystem, file: DataFile, read: Callable[[pa.NativeFile], Found]) -> Found:
    """Opens a file and reads from it. Asks again if the store fails for a moment."""

    def once() -> Found:
        with opened(filesystem, file.version, ranges=True) as source:
            return read(source)

    return with_retries(filesystem, once, f"file {file.shown_path}")


@contextmanager
def naming_file(file: DataFile) -> Iterator[None]:
    """Raises errors of the block, which reads a footer, as `DatasetError`."""
    try:
        yield
    except ParquetryError:
        raise
    except StoreError as error:
        raise DatasetError(
            f"file {file.shown_path}: the footer cannot be read, {error}. {error.advice}"
        ) from clean_cause(error)
    except FileNotFoundError as error:
        raise DatasetError(f"file {file.shown_path}: {REMOVED}{CLEANED}.") from clean_cause(error)
    except (pa.ArrowException, OSError, ValueError, MemoryError) as error:
        if "more than 64 bits" in str(error):  # 128-bit integers of polars; Arrow does not say in which column
            raise DatasetError(
                f"file {file.shown_path}: expected columns that pyarrow {pa.__version__} has types for, got: "
                f"{why(error)}. Write such columns as decimals or as integers of at most 64 bits, or leave them out."
            ) from error
        if advice := access_failed(error):
            raise DatasetError(f"file {file.shown_path}: cannot be read: {why(error)}. {advice}") from clean_cause(
                error
            )
        if _ANNOTATION.search(str(error)):  # old Hive and others; Arrow does not say in which column
            quoted = file.shown_path.replace("'", "''")
            raise DatasetError(
                f"file {file.shown_path}: expected a schema that pyarrow {pa.__version__} accepts, got: {why(error)}. "
                "If the file is whole, write it again with a reader that accepts more, such as DuckDB: "
                f"duckdb.sql(\"COPY (FROM '{quoted}') TO 'new.parquet'\")."
            ) from clean_cause(error)
        raise DatasetError(
            f"file {file.shown_path}: expected a readable Parquet file, got {file.size_bytes} bytes that cannot be "
            f"read as one: {why(error)}. {remedy(error, _advice(file.shown_path))}"
        ) from clean_cause(error)


def parse_footer(source: pa.NativeFile) -> tuple[pq.FileMetaData, bool, bytes]:
    """Returns a footer, whether a signature follows it (a plaintext footer with encrypted columns), and its bytes.

    Source: Parquet Modular Encryption, "Plaintext footer mode": a nonce of 12 bytes and a tag of 16 follow the footer.
    """
    tail = footer_tail(source)
    if tail is None:
        return pq.read_metadata(source), False, b""  # raises, with the file's true size
    footer = pq.read_metadata(pa.BufferReader(tail))
    return footer, is_signed(tail, footer), tail[:-8]


def footer_tail(source: pa.NativeFile, first_bytes: int = FIRST_BYTES) -> bytes | None:
    """Returns a footer as stored, with the eight bytes after it; ``None`` if it is longer than the file.

    Args:
        first_bytes: how much of the file is read at first. If that is not enough, there is a second read.
    """
    size = source.size()
    tail: bytes = source.read_at(min(size, first_bytes), max(size - first_bytes, 0))
    length = int.from_bytes(tail[-8:-4], "little")
    if len(tail) < length + 8 <= size:
        tail = source.read_at(length + 8, size - length - 8)
    return None if length + 8 > size else tail[-length - 8 :]


def is_signed(tail: bytes, footer: pq.FileMetaData) -> bool:
    """Returns whether a signature follows a footer, given its `footer_tail`."""
    return len(tail) - 8 - int(footer.serialized_size) == _SIGNATURE_BYTES


def checked_footer(source: pa.NativeFile) -> pq.FileMetaData:
    """Returns the footer of an open file, after `check_footer`.

    Raises:
        ValueError, pa.ArrowException, OSError: it is damaged or encrypted, or cannot be read.
    """
    footer, signed, stored = parse_footer(source)
    if signed:
        raise ValueError("columns that need a key")
    return check_footer(stored, footer, source.size())[0]


def open_checked(source: pa.NativeFile) -> pq.ParquetFile:
    """Opens a Parquet file that is read whole, such as a list of deleted rows. Raises errors as `checked_footer`."""
    return pq.ParquetFile(source, metadata=checked_footer(source), page_checksum_verification=True)


def footer_digest(footer: pq.FileMetaData) -> bytes:
    """A digest of a footer, including the place of everything in its file and the statistics."""
    sink = pa.BufferOutputStream()
    footer.write_metadata_file(sink)
    return hashlib.blake2b(sink.getvalue(), digest_size=16).digest()


def _advice(path: str) -> str:
    other = re.search(r"\.(csv|tsv|txt|jsonl?|ndjson|arrow|feather|npy|npz)(\.gz|\.zst)?$", path, re.IGNORECASE)
    if other is not None:
        return f"It has the name of a {other[1].upper()} file: write it as Parquet first, for example with pyarrow."
    return "Remove it, or write it again."


def why(error: BaseException) -> str:
    """Arrow's error message, on one line."""
    return told(error)


def remedy(error: BaseException, otherwise: str, *, stored: str = "it", is_rare: bool = False) -> str:
    """What to do about a file that Arrow cannot read.

    Args:
        otherwise: what to do if the file is damaged.
        stored: what cannot be read, and how it is stored.
        is_rare: whether it is stored in a way that Arrow may not know, or decode wrongly.
    """
    if isinstance(error, StoreError):
        return error.advice
    if limit := limit_reached(error):
        if isinstance(error, OSError):
            return limit
        if resource.getrlimit(resource.RLIMIT_AS)[0] != resource.RLIM_INFINITY:
            return f"{limit} If it has enough: {otherwise}"
        return f"{otherwise} If it is whole: {limit}"  # a damaged file may claim any size
    if advice := access_failed(error):
        return advice
    if re.search(r"\b(en|de)crypt", str(error)):
        return _ENCRYPTED
    if "all lists to be of size=0" in str(error):
        return f"pyarrow {pa.__version__} cannot read fixed-size lists of size 0. Deselect the field."
    if "all lists to be of size" in str(error):
        return f"pyarrow {pa.__version__} cannot read nulls in fixed-size lists. Install pyarrow 26 or newer."
    unable = f"pyarrow {pa.__version__} cannot decode {stored}. Write it with another encoding, or update pyarrow."
    if isinstance(error, pa.ArrowNotImplementedError) or _UNSUPPORTED.search(str(error)):
        return unable
    return f"{otherwise} If it is whole: {unable}" if is_rare and "CRC" not in str(error) else otherwise
