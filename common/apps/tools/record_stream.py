"""Reads and decompresses a file of records sequentially. The file may be truncated, damaged or malicious.

The input is a plain or compressed stream, and the output is its bytes. Sizes claimed by the file never cause a large
allocation. Everything that prevents further reading raises `DamageError`.
"""

from __future__ import annotations

import bz2
import gzip
import io
import lzma
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, BinaryIO

import pyarrow as pa

from ...base.errors import access_failed

_PIECE_BYTES = 1 << 20
_DAMAGED = (gzip.BadGzipFile, ValueError, zlib.error, lzma.LZMAError, pa.ArrowException)
_OPENERS: dict[bytes, Callable[[Any], Any]] = {
    b"\x1f\x8b": lambda stream: gzip.GzipFile(fileobj=stream),
    b"BZh": bz2.BZ2File,
    b"\xfd7zXZ\x00": lzma.LZMAFile,
    b"\x28\xb5\x2f\xfd": lambda stream: pa.CompressedInputStream(pa.PythonFile(stream, mode="r"), "zstd"),
}


class DamageError(Exception):
    """Says why a stream cannot be read further, and what to do. The caller adds the file and position."""


@contextmanager
def _explaining() -> Iterator[None]:
    try:
        yield
    except EOFError as error:
        raise _cut_short() from error
    except _DAMAGED as error:
        raise _damaged(error) from error
    except OSError as error:  # without an errno, it comes from a decompressor
        if error.errno is None:
            raise _damaged(error) from error
        raise DamageError(f"it cannot be read: {error}. {access_failed(error)}".rstrip()) from error


def _cut_short() -> DamageError:
    return DamageError("it is cut short. Write it again.")


def _damaged(why: object) -> DamageError:
    return DamageError(f"it is damaged: {why}. Write it again.")


class RecordStream:
    """The bytes of a file. Compression (gzip, bzip2, xz, zstd) is detected from the first bytes.

    Implements the forward-only subset of the file API that `tarfile.TarFile` needs.
    """

    def __init__(self, stream: BinaryIO) -> None:
        buffered = io.BufferedReader(stream, _PIECE_BYTES)  # type: ignore[type-var]  # Arrow streams work too
        with _explaining():
            start = buffered.peek(8)
            opener = next((opener for magic, opener in _OPENERS.items() if start.startswith(magic)), None)
            self._stream: Any = buffered if opener is None else opener(buffered)
        self._place = 0

    def tell(self) -> int:
        """The number of bytes read so far."""
        return self._place

    def read(self, size: int) -> bytes:
        """Reads exactly ``size`` bytes.

        Raises:
            DamageError: fewer bytes are left.
        """
        content = self.read_up_to(min(size, _PIECE_BYTES))
        if len(content) < size:  # read in pieces, because the claimed size may be wrong
            pieces, left = [content], size - len(content)
            while left and pieces[-1]:
                pieces.append(self.read_up_to(min(left, _PIECE_BYTES)))
                left -= len(pieces[-1])
            if left:
                raise _cut_short()
            content = b"".join(pieces)
        return content

    def read_up_to(self, size: int) -> bytes:
        """Reads up to ``size`` bytes. Returns fewer only at the end."""
        with _explaining():
            content: bytes = self._stream.read(size)
        self._place += len(content)
        return content

    def seek(self, place: int) -> None:
        """Skips forward to a position.

        Raises:
            DamageError: the stream ends before the position, or the position was already passed.
        """
        if place < self._place:
            raise _damaged("it has a part of negative size")
        while self._place < place:
            if not self.read_up_to(min(place - self._place, _PIECE_BYTES)):
                raise _cut_short()
