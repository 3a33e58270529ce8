"""Which store a file system is: what tells two of them apart where their paths are equal.

In: a ``pyarrow.fs`` file system. Out: a text that is the same in every process for the same store, made of its kind and
of where it is (host, endpoint, account, root), never of credentials, which change while the store stays the same.
"""

from __future__ import annotations

import hashlib
import json
import pickle
import posixpath
import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import pyarrow.fs as pafs

if TYPE_CHECKING:
    from fsspec import AbstractFileSystem

_PLACES = ("scheme", "endpoint_override", "account_name", "host", "port")
_CREDENTIAL = re.compile(r"secret|token|passw|credential|sas|(^|_)key($|_)", re.IGNORECASE)


def store_of(filesystem: pafs.FileSystem) -> str:
    """The name of a store; empty if nothing tells it from others of its kind, so that nothing may be kept about it."""
    try:
        if isinstance(filesystem, pafs.SubTreeFileSystem):
            base = store_of(filesystem.base_fs)
            return base and f"{base} below {filesystem.base_path}"
        if isinstance(filesystem, pafs.PyFileSystem):
            handler = filesystem.handler
            fs = fsspec_of(filesystem)
            return f"python {_pickled(handler)}" if fs is None else f"fsspec {_digest(_described(fs))}"
        return " ".join([filesystem.type_name, *_settings(filesystem)])
    except Exception:  # whatever a foreign class raises when it is asked what it is
        return ""


def fsspec_of(filesystem: pafs.FileSystem) -> Any:
    """The fsspec file system behind a wrapped one; ``None`` for others."""
    if not isinstance(filesystem, pafs.PyFileSystem):
        return None
    handler = filesystem.handler
    return handler.fs if isinstance(handler, pafs.FSSpecHandler) else None


def without_subtrees(filesystem: pafs.FileSystem, path: str) -> tuple[pafs.FileSystem, str]:
    """The file system that holds a path, and the path there."""
    while isinstance(filesystem, pafs.SubTreeFileSystem):
        path = posixpath.join(filesystem.base_path, path.lstrip("/"))
        filesystem = filesystem.base_fs
    return filesystem, path


def _settings(filesystem: pafs.FileSystem) -> list[str]:
    if filesystem.type_name == "local":
        return []
    (given,) = filesystem.__reduce__()[1]  # what it was made with: a dict
    found = {
        name: value for name, value in given.items() if name in _PLACES or name.endswith(("_authority", "_scheme"))
    }
    return [f"{name}={value}" for name, value in sorted(found.items()) if value not in (None, "")]


def _described(fs: AbstractFileSystem) -> dict[str, Any]:
    kind = type(fs)
    return {
        "class": f"{kind.__module__}.{kind.__qualname__}",
        "args": [_plain(value) for value in fs.storage_args],
        "options": _plain(fs.storage_options),
    }


def _plain(value: object) -> Any:
    from fsspec import AbstractFileSystem

    if isinstance(value, AbstractFileSystem):
        return _described(value)
    if isinstance(value, Mapping):
        return {str(name): _plain(part) for name, part in value.items() if not _CREDENTIAL.search(str(name))}
    if isinstance(value, list | tuple):
        return [_plain(part) for part in value]
    return value if isinstance(value, str | int | float | bool | None) else _pickled(value)


def _pickled(value: object) -> str:
    return hashlib.blake2b(pickle.dumps(value), digest_size=16).hexdigest()


def _digest(value: object) -> str:
    text = json.dumps(value, sort_keys=True)
    return hashlib.blake2b(text.encode(), digest_size=16).hexdigest()
