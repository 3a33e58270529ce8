"""`HttpFile`: a file on a plain HTTP server. Every answer is checked before its bytes are used.

It takes fsspec's HTTP file system, whose session and options it uses, and a URL. It returns exactly the requested
bytes, all from one version of the file. The status, ``Content-Range``, the length, and the version (``ETag``,
``Last-Modified``, size) of each answer must match. fsspec itself accepts any answer with status 206.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from typing import TYPE_CHECKING

from .chunk_ranges import SizedFile
from .request_slots import held_here
from .store_answers import StoreError

if TYPE_CHECKING:
    from aiohttp import ClientResponse
    from fsspec import AbstractFileSystem

_RANGE = re.compile(r"bytes (?:(\d+)-(\d+)|\*)/(\d+)")
_WHOLE, _PARTIAL, _BEYOND_END = 200, 206, 416
_MOST_WHOLE_BYTES = 64 << 20
_NO_RANGES = (
    "Read the files from a server that answers range requests (RFC 9110, section 14), or copy them to a local disk."
)

CheckVersion = Callable[[Mapping[str, str], int], bool]
"""Takes the headers of an answer and the size of the file. Returns whether they tell its version, and raises if it is
another one."""


def answers_http(fs: AbstractFileSystem) -> bool:
    """Whether an fsspec file system is the one for plain HTTP servers."""
    names = (fs.protocol,) if isinstance(fs.protocol, str) else fs.protocol
    return "http" in names and hasattr(fs, "set_session") and hasattr(fs, "encode_url")


class HttpFile(SizedFile):
    """A file of a known size. Each read is one request. Wrap it in a ``pyarrow.PythonFile``.

    Args:
        fs: fsspec's HTTP file system.
        check: see `CheckVersion`.

    Attributes:
        is_checked: whether all answers told the version of the file.
    """

    def __init__(self, fs: AbstractFileSystem, url: str, size_bytes: int, check: CheckVersion) -> None:
        super().__init__(size_bytes)
        self._fs, self._url, self._check = fs, url, check
        self.is_checked = True

    def read(self, size: int = -1) -> bytes:
        """Returns the next bytes.

        Raises:
            DatasetError: the file has changed.
            StoreError: the server does not answer range requests.
            OSError: it answers with other bytes.
            aiohttp.ClientError: it does not answer, or refuses.
        """
        import asyncio  # fsspec has imported it

        first, end = self._position, self._end_of(size)
        if first >= end:
            return b""
        loop = self._fs.loop
        answer = asyncio.run_coroutine_threadsafe(self._fetch_bytes(first, end), loop)
        held = held_here()
        with nullcontext() if held is None else held.when_closed(answer.cancel):
            content = answer.result()
        self._position = end
        return content

    async def _fetch_bytes(self, first: int, end: int) -> bytes:
        session, options = await self._fs.set_session(), dict(self._fs.kwargs)
        headers = {**(options.pop("headers", None) or {}), "Range": f"bytes={first}-{end - 1}"}
        headers["Accept-Encoding"] = "identity"
        async with session.get(self._fs.encode_url(self._url), headers=headers, **options) as answer:
            if answer.status == _BEYOND_END:
                self._hold(answer.headers, _total(answer.headers))
            answer.raise_for_status()
            if answer.status == _WHOLE:
                return await self._part_of_whole(answer, first, end)
            self._hold(answer.headers, _total(answer.headers))
            match = _RANGE.fullmatch(answer.headers.get("Content-Range", ""))
            if answer.status != _PARTIAL or match is None or (match[1], match[2]) != (str(first), str(end - 1)):
                received = answer.headers.get("Content-Range", "no Content-Range").removeprefix("bytes ")
                raise OSError(
                    f"unexpected range: expected bytes {first}-{end - 1}, got {received} (status {answer.status})"
                )
            return _whole(await answer.read(), end - first)

    async def _part_of_whole(self, answer: ClientResponse, first: int, end: int) -> bytes:
        """Returns a range of an answer to which the server has sent the whole file."""
        self._hold(answer.headers, answer.content_length)
        if self._size_bytes > _MOST_WHOLE_BYTES:
            raise StoreError(f"it answers a request for {end - first} bytes with {self._size_bytes}", _NO_RANGES)
        return _whole(await answer.read(), self._size_bytes)[first:end]

    def _hold(self, headers: Mapping[str, str], size_bytes: int | None) -> None:
        tells = self._check(headers, self._size_bytes if size_bytes is None else size_bytes)
        self.is_checked = self.is_checked and tells


def _total(headers: Mapping[str, str]) -> int | None:
    """Returns the size of the file that an answer names."""
    match = _RANGE.fullmatch(headers.get("Content-Range", ""))
    return None if match is None else int(match[3])


def _whole(content: bytes, size_bytes: int) -> bytes:
    if len(content) != size_bytes:
        raise OSError(f"expected {size_bytes} bytes, but got {len(content)}")
    return content
