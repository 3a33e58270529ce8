"""An fsspec store that reports as much about its files as a test asks for."""

from __future__ import annotations

from typing import Any

from fsspec import AbstractFileSystem
from fsspec.implementations.memory import MemoryFile


class Store(AbstractFileSystem):
    """Files in memory; reports only what ``says`` derives from a file's content and write count."""

    cachable = False
    protocol = "store"

    def __init__(self, name: str = "", says: str = "") -> None:
        super().__init__(name=name, says=says)
        self.says = says
        self.files: dict[str, bytes] = {}
        self.written: dict[str, int] = {}
        self.asked = 0

    def put_file_bytes(self, path: str, content: bytes) -> None:
        self.files[path] = content
        self.written[path] = self.written.get(path, 0) + 1

    def info(self, path: str, **options: Any) -> dict[str, Any]:
        self.asked += 1
        path = self._strip_protocol(path)
        if path in self.files:
            return self._said(path)
        if any(name.startswith(f"{path}/") for name in self.files):
            return {"name": path, "size": 0, "type": "directory"}
        raise FileNotFoundError(path)

    def _said(self, path: str) -> dict[str, Any]:
        said: dict[str, Any] = {"name": path, "size": len(self.files[path]), "type": "file"}
        number = self.written[path]
        return {**said, **{"tag": {"ETag": f'"{number}"'}, "time": {"LastModified": 1e9 + number}}.get(self.says, {})}

    def find(self, path: str, *args: Any, detail: bool = False, **options: Any) -> Any:
        found = {name: self._said(name) for name in sorted(self.files) if name.startswith(self._strip_protocol(path))}
        return found if detail else list(found)

    def ls(self, path: str, detail: bool = True, **options: Any) -> Any:
        return list(self.find(path, detail=True).values()) if detail else self.find(path)

    def _open(self, path: str, mode: str = "rb", **options: Any) -> Any:
        return MemoryFile(self, path, self.files[path])
