"""An fsspec store whose paths are URLs with a query, like signed HTTP URLs."""

from __future__ import annotations

import os
from typing import Any
from urllib.parse import urlsplit

from fsspec import AbstractFileSystem


class SignedStore(AbstractFileSystem):
    """Serves the local files below ``root`` as ``https://host/...``, with any query.

    Attributes:
        opened: the URL of each file that was opened.
    """

    cachable = False
    protocol = "https"

    def __init__(self, root: str, **options: Any) -> None:
        super().__init__(root=root, **options)
        self.root = root
        self.opened: list[str] = []

    @classmethod
    def _strip_protocol(cls, path: str) -> str:
        return path

    def info(self, path: str, **options: Any) -> dict[str, Any]:
        status = os.stat(self._local(path))
        return {"name": path, "size": status.st_size, "type": "file", "mtime": status.st_mtime}

    def _open(self, path: str, mode: str = "rb", **options: Any) -> Any:
        self.opened.append(path)
        return open(self._local(path), mode)

    def _local(self, path: str) -> str:
        return self.root + urlsplit(path).path
