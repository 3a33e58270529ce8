"""`UncheckedPages`: reads values from a file and compares their pages with the checksums, in the same pass.

A value is delivered only after its whole page matched. The rest of the page is read too, but only once: the processes
that read a dataset together remember which pages passed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from ...base.errors import DatasetError
from ...base.memory.arena import SCRATCH
from ...base.native.kernels import crc32, read_pages
from ...base.native.parquet import WantedPage
from ...parquet.checksums import WRONG_CHECKSUMS
from ...parquet.pages import StoredPages
from .open_file import OpenFile, read_values
from .passed_pages import PassedPages

_PIECE_BYTES = 256 << 10  # so that the bytes are still in the processor's cache when their checksum is computed


class UncheckedPages:
    """Pages of a column chunk in a file, each checked when one of its values is first read. Thread-safe.

    Args:
        pages: the pages that have checksums, in the order of the file, with offsets in the chunk.
        begin: the offset of the chunk in the file.
        keys: the pages as `passed_pages.page_keys` names them.
        passed: pages that passed before. Pages that pass are added.
        place: names the file, row group and column in errors.
    """

    def __init__(
        self,
        file: OpenFile,
        pages: StoredPages,
        *,
        begin: int,
        keys: np.ndarray,
        passed: PassedPages,
        place: str,
    ) -> None:
        self._file = file
        self._begins = pages.begins + begin
        self._ends = pages.ends + begin
        self._checksums = pages.checksums
        self._keys = keys
        self._passed = passed
        self._left = set(np.flatnonzero(~passed.contains(keys)).tolist())
        self._busy: set[int] = set()
        self._place = place

    def read(self, starts: np.ndarray, places: list[memoryview]) -> None:
        """Fills each of ``places`` from the file offset in ``starts``.

        Raises:
            DatasetError: a page does not match its checksum; or as `read_values`.
        """
        if not self._left:
            read_values(self._file, starts, places)
            return
        pages, offsets = self._pages_of(starts), starts.tolist()
        left = list(range(len(offsets)))
        for even_busy in (False, True):  # pages that other threads read come last, because they may have passed by then
            unchecked = self._unchecked(pages)
            numbers_of: dict[int, dict[int, int]] = {}  # for each page, the number of the value at each offset
            for number in left:
                page = pages[number]
                if page in unchecked and (even_busy or page not in self._busy):
                    numbers_of.setdefault(page, {})[offsets[number]] = number
            self._read_pages(
                {
                    page: [(offset, places[number]) for offset, number in sorted(here.items())]
                    for page, here in numbers_of.items()
                }
            )
            read = {number for here in numbers_of.values() for number in here.values()}
            left = [number for number in left if number not in read]
        read_values(self._file, starts[left], [places[number] for number in left])

    def check(self, starts: np.ndarray) -> None:
        """Checks the pages with values at these file offsets. Raises like `read`."""
        if not self._left:
            return
        self._read_pages({page: [] for page in self._unchecked(self._pages_of(starts))})

    def _pages_of(self, starts: np.ndarray) -> list[int]:
        """Returns the number of each value's page; -1 for values in pages without a checksum.

        An empty value may begin where its page ends. No other page begins there, but its header.
        """
        pages = np.searchsorted(self._begins, starts, side="right") - 1
        pages[(pages >= 0) & (starts > self._ends[pages])] = -1
        numbers: list[int] = pages.tolist()
        return numbers

    def _unchecked(self, pages: Sequence[int]) -> set[int]:
        """Returns those of the pages that no process has checked."""
        left = sorted(self._left.intersection(pages))
        if left:
            self._left.difference_update(np.array(left)[self._passed.contains(self._keys[left])].tolist())
        return self._left.intersection(left)

    def _read_pages(self, places_of: Mapping[int, Sequence[tuple[int, memoryview]]]) -> None:
        """Reads some pages and checks them. ``wanted`` has the places of values in each page, as `WantedPage` does."""
        if not places_of:
            return
        pages = [
            WantedPage(int(self._begins[page]), int(self._ends[page]), places) for page, places in places_of.items()
        ]
        spare = SCRATCH.array("unwanted", (_PIECE_BYTES,), np.dtype(np.uint8))
        self._busy.update(places_of)
        try:
            checksums = read_pages(self._file.descriptor, pages, spare)
            for number, page, checksum in zip(places_of, pages, checksums, strict=True):
                if checksum is not None:
                    self._compare(number, checksum)
                    continue
                self._compare(number, self._checksum(page, memoryview(spare)))  # type: ignore[arg-type]  # a buffer
                starts = np.array([start for start, _ in page.places], np.int64)
                read_values(self._file, starts, [memory for _, memory in page.places])
        finally:
            self._busy.difference_update(places_of)

    def _compare(self, page: int, checksum: int) -> None:
        self._file.check()
        if checksum != self._checksums[page]:
            raise DatasetError(
                f"{self._place}, got: the page at byte {self._begins[page]} does not match the CRC checksum in "
                f"its header. The file is damaged: write it again. {WRONG_CHECKSUMS}"
            )
        self._passed.add(self._keys[page])
        self._left.discard(page)

    def _checksum(self, page: WantedPage, spare: memoryview) -> int:
        """Returns the CRC-32 of a page without the core. Raises as `read_values`."""
        so_far = 0
        for begin in range(page.begin, page.end, len(spare)):
            piece = spare[: page.end - begin]
            read_values(self._file, np.array([begin]), [piece])
            so_far = crc32(piece, so_far)
        return so_far
