"""`OpenFile`: a local file of the dataset that stays open while values are read from it.

The file is always the listed version. If it is truncated or changed in the meantime, reads raise an error.
"""

from __future__ import annotations

import os
import threading
import weakref

import numpy as np

from ...base.errors import DatasetError, ParquetryError
from ...base.platform.files import read_at
from ...storage.file_versions import FileVersion, check_version, local_version
from ...storage.files import DataFile

MOST_GAP_BYTES = 4096  # the largest gap between two values that one call reads
_MOST_BUFFERS = 512  # per call; Linux allows 1024
_MOST_FILES = 64


class OpenFile:
    """A local file open for reading. It is closed when the last object that refers to it is gone."""

    def __init__(self, version: FileVersion) -> None:
        self._version = version
        self.path = version.path
        self.descriptor = os.open(version.path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
        weakref.finalize(self, os.close, self.descriptor).atexit = False

    def current(self) -> FileVersion:
        """Returns the current version of the file."""
        return local_version(self._version.store, self.path, os.fstat(self.descriptor))

    def is_as_listed(self) -> bool:
        """Returns whether the file is still the listed version."""
        return not self._version.became(self.current())

    def check(self) -> None:
        """Raises `DatasetError` if the file changed since it was listed. Call this after every read."""
        check_version(self._version, self.current())


class OpenFiles:
    """The open files that loaded blocks refer to, limited in number. Thread-safe."""

    def __init__(self) -> None:
        self._files: weakref.WeakValueDictionary[FileVersion, OpenFile] = weakref.WeakValueDictionary()
        self._lock = threading.Lock()

    def open(self, file: DataFile) -> OpenFile | None:
        """Opens a file. Returns ``None`` if too many are open, or if it is unreadable or not the listed version."""
        try:
            with self._lock:
                opened = self._files.get(file.version)
                if opened is None:
                    if len(self._files) >= _MOST_FILES:
                        return None
                    opened = self._files[file.version] = OpenFile(file.version)
            return opened if opened.is_as_listed() else None
        except OSError:
            return None  # the next reader of the file reports the cause


def read_values(file: OpenFile, starts: np.ndarray, places: list[memoryview]) -> None:
    """Fills each of ``places`` from the file offset in ``starts``. One call reads values that are close together.

    Raises:
        DatasetError: the file was truncated or changed since it was opened, or cannot be read.
    """
    if not places:
        return
    scratch = memoryview(bytearray(MOST_GAP_BYTES))
    begins = starts.tolist()
    try:
        buffers, begin, end = [places[0]], begins[0], begins[0] + len(places[0])
        for start, place in zip(begins[1:], places[1:], strict=True):
            gap = start - end
            if not 0 <= gap <= MOST_GAP_BYTES or len(buffers) >= _MOST_BUFFERS:
                _read_all(file, buffers, begin)
                buffers, begin = [place], start
            else:
                buffers += [scratch[:gap], place] if gap else [place]
            end = start + len(place)
        _read_all(file, buffers, begin)
        file.check()
    except ParquetryError:
        raise
    except OSError as error:
        raise DatasetError(f"file {file.path}: expected to read the open file, got: {error}.") from error


def _read_all(file: OpenFile, buffers: list[memoryview], begin: int) -> None:
    missing_bytes = sum(map(len, buffers))
    while True:
        read = read_at(file.descriptor, buffers, begin)
        missing_bytes -= read
        if missing_bytes == 0:
            return
        if read == 0:
            file.check()
            raise DatasetError(
                f"file {file.path}: expected {missing_bytes} more bytes at {begin}, got the end of the file. "
                "Write it again."
            )
        begin += read
        while read >= len(buffers[0]):
            read -= len(buffers.pop(0))
        buffers[0] = buffers[0][read:]
