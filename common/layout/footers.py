"""Reading Parquet footers: in parallel, once per file version in a process."""

from __future__ import annotations

import hashlib
import re
from collections import OrderedDict
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from threading import Lock

import pyarrow as pa
import pyarrow.fs as pafs
import pyarrow.parquet as pq

from ..errors import DatasetError
from ..progress import progress
from .file_versions import opened
from .files import DataFile

_MOST_KEPT_BYTES = 256 << 20
_TAIL_BYTES = 64 << 10
_SIGNATURE_BYTES = 28
_ENCRYPTED = "It is encrypted, and parquetry holds no keys: decrypt it first, and read the copy."
_kept: OrderedDict[str, pq.FileMetaData] = OrderedDict()
_kept_bytes = 0
_lock = Lock()


def read_footers(filesystem: pafs.FileSystem, files: Sequence[DataFile]) -> list[pq.FileMetaData]:
    """The footer of each file, in order; a progress bar appears when it takes longer than two seconds.

    Raises:
        DatasetError: a file that is not Parquet, or cannot be read; says which.
    """
    if len(files) <= 2:
        return [read_footer(filesystem, file) for file in files]
    with ThreadPoolExecutor(max_workers=16, thread_name_prefix="parquetry-footers") as pool:
        footers = pool.map(lambda file: read_footer(filesystem, file), files)
        return list(progress(footers, "reading footers", len(files), unit="file"))


def read_footer(filesystem: pafs.FileSystem, file: DataFile) -> pq.FileMetaData:
    """The footer of one file, from memory if this version of the file was read before."""
    key = file.version.key
    with _lock:
        if key in _kept:
            _kept.move_to_end(key)
            return _kept[key]
    footer = load_footer(filesystem, file)
    _keep(key, footer)
    return footer


def load_footer(filesystem: pafs.FileSystem, file: DataFile) -> pq.FileMetaData:
    """The footer of one file, read now.

    Raises:
        DatasetError: the file is not Parquet, cannot be read, is encrypted, or changed since it was listed.
    """
    try:
        with opened(filesystem, file.version) as source:
            footer, signed = parse_footer(source)
    except DatasetError:
        raise
    except (pa.ArrowException, OSError, UnicodeDecodeError) as error:
        raise DatasetError(
            f"file {file.path}: expected a readable Parquet file, got {file.size_bytes} bytes that are none: "
            f"{why(error)}. {remedy(error, 'Remove it, or write it again.')}"
        ) from error
    if signed:  # to ask Arrow about an encrypted column chunk would end the process
        raise DatasetError(f"file {file.path}: expected plain columns, got some that need a key. {_ENCRYPTED}")
    return footer


def parse_footer(source: pa.NativeFile) -> tuple[pq.FileMetaData, bool]:
    """A footer, and whether a signature stands behind it, which is so where columns are encrypted and it is not.

    Source: Parquet Modular Encryption, "Plaintext footer mode": a nonce of 12 bytes and a tag of 16 follow the footer.
    """
    size = source.size()
    tail = source.read_at(min(size, _TAIL_BYTES), max(size - _TAIL_BYTES, 0))
    length = int.from_bytes(tail[-8:-4], "little")
    if len(tail) < length + 8 <= size:
        tail = source.read_at(length + 8, size - length - 8)
    if length + 8 > size:
        return pq.read_metadata(source), False  # raises, and knows the file's true size
    footer = pq.read_metadata(pa.BufferReader(tail))
    return footer, length - footer.serialized_size == _SIGNATURE_BYTES


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
    if re.search(r"\b(en|de)crypt", str(error)):
        return _ENCRYPTED
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
