"""Resolves a URL or path to its file system.

The input is whatever a user writes (``data/train``, ``~/train``, ``file:///data/my%20set``, ``s3://bucket/train``,
``gcs+anything-fsspec-knows://...``). The output is a ``pyarrow.fs.FileSystem`` and the path within it. This path is
never relative to a working directory and never ends in a slash, so it means the same in every process.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from types import ModuleType
from typing import Any
from urllib.parse import quote, unquote

import pyarrow as pa
import pyarrow.fs as pafs

from ..base.errors import DatasetError, missing_package
from ..base.platform.processes import removed_directory
from ..base.urls import clean_cause, url_without_secrets, user_of, without_secrets
from ..schema.plain import is_utf_8
from .retries import is_transient
from .store_answers import ADVICE, CREDENTIALS, SCHEMES, is_refusal
from .stores import ForkSafeHandler, has_plain_handler, with_few_attempts

# Two letters or more, so that a drive letter stays a path; "::" joins fsspec's chains ("simplecache::s3://...").
_SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9+.\-]+)(?=://|::.*://)")
_NOT_IN_SECRETS = re.compile(r"[^A-Za-z0-9._~!$&'()*+,;=:%-]")  # RFC 3986, 3.2.1
_ARROW_SCHEMES = frozenset({"s3", "gs", "gcs", "hdfs", "viewfs", "abfs", "abfss"})
_GCS_RETRY_S = 2  # after that, `with_retries` asks again
# The extra that installs fsspec's library for a scheme.
_EXTRAS = {"s3": "s3", "s3a": "s3", "gs": "gcs", "gcs": "gcs", "hf": "huggingface"}
_EXTRAS |= dict.fromkeys(("abfs", "abfss", "adl", "az"), "azure")
_HADOOP = (
    " For HDFS, pyarrow loads Java and Hadoop's client: set JAVA_HOME and HADOOP_HOME, and CLASSPATH to the output of "
    "`hadoop classpath --glob`."
)


def resolve(
    url: str | os.PathLike[str],
    *,
    filesystem: object = None,
    storage_options: Mapping[str, Any] | None = None,
) -> tuple[pafs.FileSystem, str]:
    """Returns the file system of ``url`` and the path within it.

    Args:
        url: a local path (``~`` and relative paths are made absolute), a ``file://`` URL (percent-decoded), a
            ``dbfs:/`` path of Databricks, or a URL of any scheme that pyarrow or fsspec knows. With ``filesystem``, a
            path or URL within that file system.
        filesystem: a ``pyarrow.fs.FileSystem`` or an fsspec file system to use.
        storage_options: keyword arguments for fsspec. If given, ``s3://`` and ``gs://`` also go through fsspec.

    Raises:
        DatasetError: the scheme is unknown, a library is missing, or the file system cannot be set up.
    """
    text = os.fspath(url) if isinstance(url, os.PathLike) else url
    if not isinstance(text, str) or not text or "\0" in text:
        raise DatasetError(f"dataset URL: expected a non-empty string or path, got {url!r}.")
    shown = url_without_secrets(text)
    if not is_utf_8(text):
        raise DatasetError(f"dataset URL: expected a path in UTF-8, got {shown!r}. Rename it.")
    if filesystem is not None:
        if storage_options:
            raise DatasetError(
                f"storage_options for '{shown}': expected none with filesystem=, got {sorted(storage_options)}. "
                "Pass them to the file system itself."
            )
        return _resolve_in(filesystem, text)
    match = _SCHEME.match(text)
    if match is None or match.group(1).lower() == "file" or (_is_dbfs(text) and not storage_options):
        if storage_options:
            raise DatasetError(
                f"storage_options for '{shown}': expected none for a local path, got {sorted(storage_options)}. "
                "Leave them out."
            )
        return pafs.LocalFileSystem(), local_path(text)
    scheme = match.group(1).lower()
    if scheme in _ARROW_SCHEMES and not storage_options and text.startswith("://", match.end()):
        return _from_arrow(text, scheme)
    return _from_fsspec(text, scheme, dict(storage_options or {}))


def credentials_advice(url: str, error: BaseException) -> str:
    """Advice on credentials to end a message with, if the store refused access; empty for any other error."""
    match = _SCHEME.match(url)
    store = match and SCHEMES.get(match.group(1).lower())
    return f". {CREDENTIALS[store]}" if store and is_refusal(error) else ""


def local_path(text: str) -> str:
    """The absolute path that a local path, a ``file://`` URL or a ``dbfs:/`` path names.

    Databricks mounts ``dbfs:/Volumes`` as ``/Volumes``, and everything else of ``dbfs:/`` below ``/dbfs``.

    Raises:
        DatasetError: the ``file://`` URL names another host.
    """
    if text.lower().startswith("file://"):
        host, slash, rest = text[len("file://") :].partition("/")
        if host not in ("", "localhost") or not slash:
            raise DatasetError(
                f"dataset URL '{text}': expected a file URL of this machine, got host '{host}'. "
                "Write three slashes and an absolute path, as in file:///data/train, or a plain path."
            )
        return _absolute(unquote(slash + rest))
    if text.lower().startswith("file:/"):  # the short form of RFC 8089, which Java writes
        return _absolute(unquote(text[len("file:") :]))
    if _is_dbfs(text):
        path = _absolute(text[len("dbfs:") :])
        return path if path.startswith("/Volumes/") else f"/dbfs{path}"
    return _absolute(text)


def _is_dbfs(text: str) -> bool:
    path = text[len("dbfs:") :]
    return text.lower().startswith("dbfs:/") and (path.startswith("///") or not path.startswith("//"))


def _absolute(path: str) -> str:
    """The absolute path. POSIX lets two slashes at the start mean something else, and Python keeps them."""
    path = absolute(path)
    return path[1:] if path.startswith("//") else path


def _resolve_in(filesystem: pafs.FileSystem, text: str) -> tuple[pafs.FileSystem, str]:
    if isinstance(filesystem, pafs.LocalFileSystem):
        return filesystem, local_path(text)
    if isinstance(filesystem, pafs.FileSystem):
        match = _SCHEME.match(text)
        path = text[match.end() + len("://") :] if match else text
        if isinstance(filesystem, pafs.PyFileSystem) and has_plain_handler(filesystem):
            filesystem = _wrapped(filesystem.handler.fs)
        return filesystem, _trimmed(path)
    if not _is_fsspec(filesystem):
        raise DatasetError(
            f"filesystem for '{url_without_secrets(text)}': expected a pyarrow.fs.FileSystem or an fsspec file system, "
            f"got {type(filesystem).__name__}."
        )
    return _wrapped(filesystem), _trimmed(filesystem._strip_protocol(text))


def _is_fsspec(filesystem: object) -> bool:
    try:
        from fsspec import AbstractFileSystem
    except ImportError:
        return False  # no fsspec, so it cannot be an fsspec file system
    return isinstance(filesystem, AbstractFileSystem)


def _from_arrow(text: str, scheme: str) -> tuple[pafs.FileSystem, str]:
    _check_secret(text)
    limited = _with_retry_limit(text) if scheme in ("gs", "gcs") else text
    try:
        filesystem, path = pafs.FileSystem.from_uri(_with_quoted_brackets(limited))
        if isinstance(filesystem, pafs.S3FileSystem):
            filesystem = with_few_attempts(filesystem)
    except (pa.ArrowException, ImportError, OSError, ValueError) as error:
        reason = without_secrets(str(error)).partition("\n")[0]  # libhdfs lists every place it searched
        advice = _HADOOP if scheme in ("hdfs", "viewfs") else credentials_advice(text, error).removeprefix(".")
        other = "Correct the URL, pass storage_options=... to go through fsspec, or pass a ready filesystem=..."
        raise DatasetError(
            f"file system of '{url_without_secrets(text)}': pyarrow could not set up '{scheme}' ({reason}). "
            f"{ADVICE if is_transient(error) else other}{advice}"
        ) from clean_cause(error)
    return filesystem, _trimmed(path)


def _check_secret(url: str) -> None:
    """Raises `DatasetError` if user or password have characters that would end them early, or expose them in errors."""
    letters = sorted(set(_NOT_IN_SECRETS.findall(user_of(url))))
    if letters:
        changes = ", ".join(f"{letter!r} as {quote(letter, safe='')}" for letter in letters)
        raise DatasetError(
            f"file system of '{url_without_secrets(url)}': expected a percent-encoded secret, got other characters. "
            f"In its secret, write {changes}, or pass storage_options=... to go through fsspec, or a ready "
            "filesystem=..."
        )


def _with_quoted_brackets(url: str) -> str:
    """Quotes the brackets of a pattern, which pyarrow refuses in the path of a URL."""
    scheme, colon, rest = url.partition("://")
    host, slash, path = rest.partition("/")
    return f"{scheme}{colon}{host}{slash}{path.replace('[', '%5B').replace(']', '%5D')}"


def _with_retry_limit(url: str) -> str:
    """Adds a retry limit to the URL of a GCS file system, which by default retries for a quarter of an hour."""
    if "retry_limit_seconds=" in url:
        return url
    return f"{url}{'&' if '?' in url else '?'}retry_limit_seconds={_GCS_RETRY_S}"


def _from_fsspec(text: str, scheme: str, options: dict[str, Any]) -> tuple[pafs.FileSystem, str]:
    fsspec, shown = _import_fsspec(text, scheme), url_without_secrets(text)
    if scheme in ("http", "https"):  # as the client would do; spaces would hide where the URL ends in its errors
        path, mark, query = text.partition("?")
        text = path + mark + re.sub(r"\s", lambda found: quote(found[0]), query)
    try:
        filesystem, path = fsspec.core.url_to_fs(text, **options)
    except ImportError as error:
        raise DatasetError(
            f"file system of '{shown}': the library for '{scheme}' is not installed ({error}). "
            + (f"Run: pip install 'parquetry[{_EXTRAS[scheme]}]'" if scheme in _EXTRAS else "Install it")
            + ", or pass a ready filesystem=..."
        ) from clean_cause(error)
    except ValueError as error:
        advice = credentials_advice(text, error)
        if advice:
            raise DatasetError(
                f"file system of '{shown}': fsspec cannot set up '{scheme}': {error}{advice}"
            ) from clean_cause(error)
        raise DatasetError(
            f"file system of '{shown}': expected a scheme that pyarrow or fsspec knows, got '{scheme}' ({error}). "
            "Correct the URL, or pass a ready filesystem=..."
        ) from clean_cause(error)
    except (OSError, TypeError) as error:
        raise DatasetError(
            f"file system of '{shown}': fsspec could not set up '{scheme}' with the options {sorted(options)} "
            f"({error}). Correct storage_options, or pass a ready filesystem=..."
            f"{credentials_advice(text, error).removeprefix('.')}"
        ) from clean_cause(error)
    return _wrapped(filesystem), _trimmed(path)


def _import_fsspec(text: str, scheme: str) -> ModuleType:
    shown = url_without_secrets(text)
    try:
        import fsspec.core
    except ImportError as error:
        raise DatasetError(
            f"file system of '{shown}': '{scheme}' {missing_package(error, 'fsspec', _EXTRAS.get(scheme, 'remote'))}"
        ) from clean_cause(error)
    result: ModuleType = fsspec
    return result


def _wrapped(filesystem: object) -> pafs.FileSystem:
    return pafs.PyFileSystem(ForkSafeHandler(filesystem))


def _trimmed(path: str) -> str:
    return path.rstrip("/") or path[:1]


def absolute(path: str) -> str:
    """Returns the absolute path that a path names; ``~`` stands for the user's directory.

    Raises:
        DatasetError: the path is relative, and the working directory was removed.
    """
    try:
        return os.path.abspath(os.path.expanduser(path))
    except FileNotFoundError as error:
        raise DatasetError(
            f"path '{path}': it is relative, and the working directory of this process, '{removed_directory()}', no "
            "longer exists. Pass an absolute path, or change to a directory that exists: os.chdir(...)."
        ) from error
