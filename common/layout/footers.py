"""Reading Parquet footers: in parallel, once per file version in a process."""

from __future__ import annotations

import hashlib
import re
from collections import OrderedDict
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

import pyarrow as pa
import pyarrow.fs as pafs
import pyarrow.parquet as pq

from ..errors import DatasetError, limit_reached
from ..forks import ForkLock
from ..progress import progress
from .file_versions import opened
from .files import DataFile
from .footer_check import check_footer
from .store_faults import ADVICE, StoreError, asking_again

_MOST_KEPT_BYTES = 256 << 20
_MOST_CHECKED = 20_000  # column chunks, when all footers are read at once: about two seconds
_TAIL_BYTES = 64 << 10
_SIGNATURE_BYTES = 28
_ENCRYPTED = "It is encrypted, and parquetry holds no keys: decrypt it first, and read the copy."
_kept: OrderedDict[str, pq.FileMetaData] = OrderedDict()
_kept_bytes = 0
_lock = ForkLock()


def read_footers(filesystem: pafs.FileSystem, files: Sequence[DataFile]) -> list[pq.FileMetaData]:
    """The footer of each file, in order; a progress bar appears when it takes longer than two seconds.

    Raises:
        DatasetError: a file that is not Parquet, or cannot be read; says which.
    """
    if len(files) <= 2:
        return [read_footer(filesystem, file) for file in files]
    most = _MOST_CHECKED // len(files)
    with ThreadPoolExecutor(max_workers=16, thread_name_prefix="parquetry-footers") as pool:
        footers = pool.map(lambda file: read_footer(filesystem, file, most_chunks=most), files)
        return list(progress(footers, "reading footers", len(files), unit="file"))


def read_footer(filesystem: pafs.FileSystem, file: DataFile, *, most_chunks: int | None = None) -> pq.FileMetaData:
    """As `load_footer`; from memory if this version of the file was read before."""
    key = file.version.key
    with _lock:
        if key in _kept:
            _kept.move_to_end(key)
            return _kept[key]
    footer = load_footer(filesystem, file, most_chunks=most_chunks)
    _keep(key, footer)
    return footer


def load_footer(filesystem: pafs.FileSystem, file: DataFile, *, most_chunks: int | None = None) -> pq.FileMetaData:
    """The footer of one file, read now.

    Args:
        most_chunks: a footer with more column chunks is not held to `check_footer`; ``None`` = each one is.

    Raises:
        DatasetError: the file is not Parquet, cannot be read, is encrypted, or changed since it was listed.
    """

    def read() -> tuple[pq.FileMetaData, bool, bytes]:
        with opened(filesystem, file.version) as source:
            return parse_footer(source)

    try:
        footer, signed, stored = asking_again(filesystem, read, f"file {file.path}")
        if signed:  # to ask Arrow about an encrypted column chunk would end the process
            raise DatasetError(f"file {file.path}: expected plain columns, got some that need a key. {_ENCRYPTED}")
        if most_chunks is None or footer.num_row_groups * footer.num_columns <= most_chunks:
            check_footer(stored, footer, file.size_bytes)
    except DatasetError:
        raise
    except StoreError as error:
        raise DatasetError(f"file {file.path}: the footer cannot be read, {error}. {ADVICE}") from error
    except (pa.ArrowException, OSError, ValueError, MemoryError) as error:
        raise DatasetError(
            f"file {file.path}: expected a readable Parquet file, got {file.size_bytes} bytes that are none: "
            f"{why(error)}. {remedy(error, 'Remove it, or write it again.')}"
        ) from error
    return footer


def parse_footer(source: pa.NativeFile) -> tuple[pq.FileMetaData, bool, bytes]:
    """A footer, whether a signature stands behind it (columns are encrypted, and it is not), and its bytes.

    Source: Parquet Modular Encryption, "Plaintext footer mode": a nonce of 12 bytes and a tag of 16 follow the footer.
    """
    size = source.size()
    tail = source.read_at(min(size, _TAIL_BYTES), max(size - _TAIL_BYTES, 0))
    length = int.from_bytes(tail[-8:-4], "little")
    if len(tail) < length + 8 <= size:
        tail = source.read_at(length + 8, size - length - 8)
    if length + 8 > size:
        return pq.read_metadata(source), False, b""  # raises, and knows the file's true size
    footer = pq.read_metadata(pa.BufferReader(tail))
    return footer, length - footer.serialized_size == _SIGNATURE_BYTES, tail[-length - 8 : -8]


def footer_digest(footer: pq.FileMetaData) -> bytes:
    """Tells one footer from others: where everything is in its file, and the statistics."""
    sink = pa.BufferOutputStream()
    footer.write_metadata_file(sink)
    return hashlib.blake2b(sink.getvalue(), digest_size=16).digest()


def why(error: BaseException) -> str:
    """What Arrow says about a file, on one line."""
    return " ".join(str(error).split()).rstrip(".")


def remedy(error: BaseException, otherwise: str) -> str:
    """What to do about a file that Arrow cannot read."""
    if isinstance(error, StoreError):
        return ADVICE
    if limit := limit_reached(error):
        return limit if isinstance(error, OSError) else f"{otherwise} If it is whole: {limit}"
    if re.search(r"\b(en|de)crypt", str(error)):
        return _ENCRYPTED
    if "all lists to be of size" in str(error):
        return f"pyarrow {pa.__version__} reads no null among lists of one length: install a newer pyarrow."
    return otherwise


def _keep(key: str, footer: pq.FileMetaData) -> None:
    """Keeps a footer; the least recently used ones go when all together pass the limit."""
    global _kept_bytes
    with _lock:
        if key in _kept:
            return
        _kept[key] = footer
        _kept_bytes += footer.serialized_size
        while _kept_bytes > _MOST_KEPT_BYTES:
            _, dropped = _kept.popitem(last=False)
            _kept_bytes -= dropped.serialized_size
