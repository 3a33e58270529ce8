"""Names the store behind a file system, to tell stores with equal paths apart, and says which options are secret.

It takes a ``pyarrow.fs`` file system and returns a text that is the same in every process for the same store. The text
depends on the kind and location of the store (host, endpoint, account, root) and never on credentials, which change
while the store stays the same.

`without_secret_options` and `is_plain_filesystem` take ``storage_options`` or a file system, and return what anybody
may see. A text counts as secret unless the option's name is known to be harmless.
"""

from __future__ import annotations

import hashlib
import json
import os
import pickle
import posixpath
import re
from collections.abc import Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import pyarrow.fs as pafs

from ..base.process.forks import ForkLock
from ..base.urls import without_secrets, without_signature

if TYPE_CHECKING:
    from fsspec import AbstractFileSystem

_S3_ATTEMPTS = 3  # after that, `with_retries` asks again
_forked = ForkLock()
_ADDRESSES = ("endpoint_override", "endpoint_url", "account_name", "host", "region")
_PLACES = ("scheme", "endpoint_override", "account_name", "host", "port")
CREDENTIAL = re.compile(r"secret|token|passw|credential|sas|(^|_)key($|_)", re.IGNORECASE)
_PLAIN = frozenset(
    {"access", "account_host", "account_name", "addressing_style", "cache_storage", "cache_type", "client_id"}
    | {"consistency", "default_cache_type", "default_location", "endpoint", "endpoint_override", "endpoint_url", "host"}
    | {"location", "namespace", "profile", "project", "protocol", "region", "region_name", "repo_id", "repo_type"}
    | {"revision", "scheme", "signature_version", "target_protocol", "tenant_id"}
)
_PLAIN_TOKENS = frozenset({"anon", "browser", "cache", "cloud", "google_default"})  # how gcsfs finds credentials


class ForkSafeHandler(pafs.FSSpecHandler):
    """Wraps an fsspec file system, and makes a new one in a forked process.

    Most fsspec file systems of remote stores run an event loop in a thread, which a fork does not copy. They refuse to
    be used in a forked process, such as a ``DataLoader`` worker.
    """

    def __init__(self, fs: AbstractFileSystem) -> None:
        self._fs, self._pid = fs, os.getpid()

    @property
    def fs(self) -> Any:
        """The file system of this process."""
        if self._pid != os.getpid():
            with suppress(Exception):  # without pickle, it may still work here
                self._fs = pickle.loads(pickle.dumps(self._fs))
            self._pid = os.getpid()
        return self._fs

    def __reduce__(self) -> tuple[Any, ...]:
        return ForkSafeHandler, (self.fs,)


class ForkSafeFileSystem:
    """A file system of pyarrow, and a new one like it in a forked process.

    The child of a fork has copies of the connections that its parent keeps open. If both used one, each would get
    answers to the other's requests.
    """

    def __init__(self, filesystem: pafs.FileSystem) -> None:
        self._inherited: list[pafs.FileSystem] = []  # closing them would end the parent's connections
        self._filesystem, self._pid = filesystem, os.getpid()

    @property
    def here(self) -> pafs.FileSystem:
        """The file system of this process."""
        if self._pid != os.getpid():
            with _forked:
                if self._pid != os.getpid():
                    self._inherited.append(self._filesystem)
                    self._filesystem, self._pid = _made_again(self._filesystem), os.getpid()
        return self._filesystem

    def __reduce__(self) -> tuple[Any, ...]:
        return ForkSafeFileSystem, (self.here,)


def with_few_attempts(filesystem: pafs.S3FileSystem) -> pafs.S3FileSystem:
    """Returns a file system like this one whose client does not retry for half a minute by itself."""
    (given,) = filesystem.__reduce__()[1]  # its constructor arguments: a dict
    return pafs.S3FileSystem(**given, retry_strategy=pafs.AwsStandardS3RetryStrategy(max_attempts=_S3_ATTEMPTS))


def _made_again(filesystem: pafs.FileSystem) -> pafs.FileSystem:
    if isinstance(filesystem, pafs.LocalFileSystem | pafs.PyFileSystem):
        return filesystem  # without connections, or with a handler that does the same
    if isinstance(filesystem, pafs.S3FileSystem):
        return with_few_attempts(filesystem)
    with suppress(Exception):  # without pickle, it may still work here
        return pickle.loads(pickle.dumps(filesystem))
    return filesystem


def has_plain_handler(filesystem: pafs.PyFileSystem) -> bool:
    """Whether nobody has changed how pyarrow calls the fsspec file system that it wraps."""
    return type(filesystem.handler) in (pafs.FSSpecHandler, ForkSafeHandler)


def store_of(filesystem: pafs.FileSystem) -> str:
    """The name of a store; empty if it cannot be told from others of its kind, so nothing about it may be cached."""
    try:
        if isinstance(filesystem, pafs.SubTreeFileSystem):
            base = store_of(filesystem.base_fs)
            return base and f"{base} below {filesystem.base_path}"
        if isinstance(filesystem, pafs.PyFileSystem):
            handler = filesystem.handler
            fs = fsspec_of(filesystem)
            return f"python {_pickled(handler)}" if fs is None else f"fsspec {_digest(_described(fs))}"
        return " ".join([filesystem.type_name, *_settings(filesystem)])
    except Exception:  # foreign classes may raise anything
        return ""


def endpoint_of(filesystem: pafs.FileSystem) -> str:
    """Names where a file system sends its requests, for people and to bound their number: kind and address, no path.

    Example:
        >>> endpoint_of(pafs.S3FileSystem(endpoint_override="http://127.0.0.1:9000", region="us-east-1"))
        's3 http://127.0.0.1:9000'
    """
    base = without_subtrees(filesystem, "")[0]
    fs = fsspec_of(base)
    if fs is None:
        settings: object = {}
        with suppress(Exception):  # file systems of Python may raise anything
            settings = base.__reduce__()[1][0]
        places = [settings.get(name) for name in _ADDRESSES] if isinstance(settings, dict) else []
        return " ".join([base.type_name, *(without_secrets(str(place)) for place in places if place)])
    kind = fs.protocol if isinstance(fs.protocol, str) else fs.protocol[0]
    options = {**fs.storage_options, **(fs.storage_options.get("client_kwargs") or {})}
    places = [getattr(fs, "endpoint", None), *(options.get(name) for name in _ADDRESSES)]
    return " ".join([kind, *sorted({without_secrets(place) for place in places if isinstance(place, str)})])


def fsspec_of(filesystem: pafs.FileSystem) -> Any:
    """The fsspec file system that a pyarrow file system wraps; ``None`` if it wraps none."""
    if not isinstance(filesystem, pafs.PyFileSystem):
        return None
    handler = filesystem.handler
    return handler.fs if isinstance(handler, pafs.FSSpecHandler) else None


def without_subtrees(filesystem: pafs.FileSystem, path: str) -> tuple[pafs.FileSystem, str]:
    """Unwraps ``SubTreeFileSystem``: returns the base file system and the path in it."""
    while isinstance(filesystem, pafs.SubTreeFileSystem):
        path = posixpath.join(filesystem.base_path, path.lstrip("/"))
        filesystem = filesystem.base_fs
    return filesystem, path


def _settings(filesystem: pafs.FileSystem) -> list[str]:
    if filesystem.type_name == "local":
        return []
    (given,) = filesystem.__reduce__()[1]  # its constructor arguments: a dict
    settings = {
        name: value for name, value in given.items() if name in _PLACES or name.endswith(("_authority", "_scheme"))
    }
    return [f"{name}={value}" for name, value in sorted(settings.items()) if value not in (None, "")]


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
        return {str(name): _plain(part) for name, part in value.items() if not CREDENTIAL.search(str(name))}
    if isinstance(value, list | tuple):
        return [_plain(part) for part in value]
    if isinstance(value, str):
        return without_signature(value)  # in a chain, the URL of the file that holds the others
    return value if isinstance(value, int | float | bool | None) else _pickled(value)


def _pickled(value: object) -> str:
    return hashlib.blake2b(pickle.dumps(value), digest_size=16).hexdigest()


def _digest(value: object) -> str:
    text = json.dumps(value, sort_keys=True)
    return hashlib.blake2b(text.encode(), digest_size=16).hexdigest()


def without_secret_options(name: str, value: Any) -> Any:
    """Returns an option without the parts that may be secret; ``None`` if nothing is left."""
    if value is None or isinstance(value, bool | int | float):
        return value
    if isinstance(value, Mapping):
        kept = {key: without_secret_options(key, part) for key, part in value.items()}
        return {key: part for key, part in kept.items() if part is not None or value[key] is None}
    if isinstance(value, list | tuple):
        return value if all(without_secret_options(name, part) == part for part in value) else None
    plain = isinstance(value, str) and (name in _PLAIN or (name == "token" and value in _PLAIN_TOKENS))
    return value if plain and without_secrets(value) == value else None


def is_plain_filesystem(filesystem: object) -> bool:
    """Whether a file system certainly holds no credentials."""
    if isinstance(filesystem, pafs.FileSystem):
        base = without_subtrees(filesystem, "")[0]
        if isinstance(base, pafs.LocalFileSystem):
            return True
        fs = fsspec_of(base)
        if fs is not None:
            return has_plain_handler(base) and is_plain_filesystem(fs)
        if isinstance(base, pafs.PyFileSystem):
            return False
        (given,) = base.__reduce__()[1]  # its constructor arguments: a dict
        return not any(_is_credential(name, value) for name, value in given.items())
    args, options = getattr(filesystem, "storage_args", None), getattr(filesystem, "storage_options", None)
    if args is None or not isinstance(options, Mapping):
        return False
    return not args and all(without_secret_options(name, value) == value for name, value in options.items())


def _is_credential(name: str, value: object) -> bool:
    if isinstance(value, Mapping):
        return any(_is_credential(key, part) for key, part in value.items())
    return bool(value) and isinstance(value, str) and CREDENTIAL.search(name) is not None
