"""Tells which options of a file system are not secret: `without_secret_options`, `is_plain_filesystem`.

They take ``storage_options`` or a file system, and return what anybody may see. A text counts as secret unless the
option's name is known to be harmless.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pyarrow.fs as pafs

from ..base.urls import without_secrets
from .stores import CREDENTIAL, fsspec_of, has_plain_handler, without_subtrees

_PLAIN = frozenset(
    {"access", "account_host", "account_name", "addressing_style", "cache_storage", "cache_type", "client_id"}
    | {"consistency", "default_cache_type", "default_location", "endpoint", "endpoint_override", "endpoint_url", "host"}
    | {"location", "namespace", "profile", "project", "protocol", "region", "region_name", "repo_id", "repo_type"}
    | {"revision", "scheme", "signature_version", "target_protocol", "tenant_id"}
)
_PLAIN_TOKENS = frozenset({"anon", "browser", "cache", "cloud", "google_default"})  # how gcsfs finds credentials


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
