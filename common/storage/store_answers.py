"""Extracts a store's answer from its client's exception, and says what to do about it.

It takes a file system and an exception of pyarrow, or of a library behind fsspec. It returns a `StoreError`, or
``None`` if the exception is about the content of a file and not about the store.
"""

from __future__ import annotations

import errno
import re
from collections.abc import Iterator, Mapping
from typing import Any

import pyarrow as pa
import pyarrow.fs as pafs

from ..base.errors import ParquetryError
from ..base.urls import without_secrets
from .stores import fsspec_of, without_subtrees

ADVICE = "Check the network, the endpoint, the region, and how many requests the store allows."
SCHEMES = {"s3": "s3", "s3a": "s3", "gs": "gs", "gcs": "gs", "hf": "hf", "http": "http", "https": "http"}
SCHEMES |= dict.fromkeys(("abfs", "abfss", "adl", "az"), "azure")
"""The kind of store that a URL's scheme, or the type of a file system, belongs to."""
CREDENTIALS = {
    "s3": "The credentials for S3 are missing or have no access. Set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY (and "
    "AWS_SESSION_TOKEN), or AWS_PROFILE, or pass storage_options={'key': ..., 'secret': ...}; for a public bucket "
    "storage_options={'anon': True}.",
    "gs": "The credentials for Google Cloud are missing or have no access. Set GOOGLE_APPLICATION_CREDENTIALS to a key "
    "file, run `gcloud auth application-default login`, or pass storage_options={'token': ...}; for a public bucket "
    "storage_options={'token': 'anon'}.",
    "azure": "The credentials for Azure are missing or have no access. Set AZURE_TENANT_ID, AZURE_CLIENT_ID and "
    "AZURE_CLIENT_SECRET, run `az login`, or pass storage_options={'account_name': ..., 'account_key': ...}; for a "
    "public container storage_options={'account_name': ..., 'anon': True}.",
    "hf": "The token for Hugging Face is missing or has no access. Set HF_TOKEN, run `hf auth login`, or pass "
    "storage_options={'token': ...}.",
    "http": "The server refuses access. If the URLs are signed, their signatures may have expired: make new ones. "
    "Otherwise pass what it asks for, such as storage_options={'headers': {'Authorization': ...}}.",
}
_OTHER_CREDENTIALS = "The credentials are missing, have expired, or have no access."
_EXPIRED = " If they worked before, they have expired: get new ones, make the pipeline again, and resume from a state."
_GONE = "The file is no longer there. Create the pipeline again to read the files that are there now."
_ELSEWHERE = (
    "The bucket is in another region or behind another endpoint. Name its region: AWS_REGION, '?region=...' at the end "
    "of the URL, or storage_options={'client_kwargs': {'region_name': ...}}."
)
_REFUSED_STATUS, _GONE_STATUS, _ELSEWHERE_STATUS = {401, 403, 407}, {404, 410}, {301, 302, 307, 308}
_REFUSED = re.compile(
    r"access.?denied|permission.?denied|unauthenticated|unauthorized|forbidden|\b40[13]\b|credential|anonymous caller"
    r"|InvalidAccessKeyId|SignatureDoesNotMatch|ExpiredToken|InvalidToken|Authentication|valid account name",
    re.IGNORECASE,
)
_MISSING = re.compile(r"no.?such.?(key|bucket)|(resource|path|blob|container).?not.?found|\(NOT_FOUND", re.IGNORECASE)
_REGION = re.compile(r"AuthorizationHeaderMalformed|Permanent.?Redirect|Moved Permanently|wrong.?region", re.IGNORECASE)
_KEYWORD = re.compile(r"unexpected keyword argument '(\w+)'")
_TEXT_STATUS = re.compile(r"HTTP status (\d{3})\b")
_OF_CONTENT = (ParquetryError, pa.ArrowException, ValueError, LookupError, MemoryError, ArithmeticError, TypeError)


class StoreError(OSError):
    """A fault of a store that persists. The caller adds what was read.

    Attributes:
        advice: what the user can do about it.
        is_gone: whether the store says that there is no such file.
    """

    def __init__(self, text: str, advice: str = ADVICE, *, is_gone: bool = False) -> None:
        super().__init__(text)
        self.advice = advice
        self.is_gone = is_gone


def store_answer(filesystem: pafs.FileSystem, error: BaseException) -> StoreError | None:
    """Returns the error for what the store answered; ``None`` if the exception is about something else."""
    wrong = wrong_option(filesystem, error)
    if wrong:
        return StoreError(f"its client does not take the option '{wrong}'", "Correct storage_options.")
    status = status_of(error)
    if isinstance(error, StoreError) or (status is None and _is_of_content(error)):
        return None
    text = f"{type(error).__name__} {told(error)}"
    answer = f"the store answered: {told(error)}"
    if status in _GONE_STATUS or (status is None and (isinstance(error, FileNotFoundError) or _MISSING.search(text))):
        return StoreError(answer, _GONE, is_gone=True)
    if status in _ELSEWHERE_STATUS or getattr(error, "errno", None) == errno.EREMCHG or _REGION.search(text):
        return StoreError(answer, _ELSEWHERE)
    if status in _REFUSED_STATUS or (status is None and (isinstance(error, PermissionError) or _REFUSED.search(text))):
        return StoreError(answer, CREDENTIALS.get(_kind(filesystem), _OTHER_CREDENTIALS) + _EXPIRED)
    if status is None and isinstance(error, OSError):
        return None
    return StoreError(answer)


def wrong_option(filesystem: pafs.FileSystem, error: BaseException) -> str:
    """The option that an fsspec client refuses, when it first connects, as an unknown keyword; empty if it is none."""
    fs = fsspec_of(without_subtrees(filesystem, "")[0])
    match = _KEYWORD.search(str(error)) if isinstance(error, TypeError) and fs is not None else None
    return match[1] if match is not None and match[1] in _names(fs.storage_options) else ""


def _names(options: Mapping[Any, Any]) -> set[str]:
    """The names of options, and of those inside them, such as ``client_kwargs``."""
    inside = (_names(value) for value in options.values() if isinstance(value, Mapping))
    return {str(name) for name in options}.union(*inside)


def is_refusal(error: BaseException) -> bool:
    """Whether a store refused access."""
    return isinstance(error, PermissionError) or _REFUSED.search(f"{type(error).__name__} {error}") is not None


def is_absence(error: FileNotFoundError) -> bool:
    """Whether the store said that there is no such file. fsspec's HTTP file system raises this for every failure."""
    return error.__cause__ is None or status_of(error) in _GONE_STATUS


def told(error: BaseException) -> str:
    """An error and what caused it, on one line, without the secrets of URLs."""
    parts: list[str] = []
    for each in causes(error):
        text = without_secrets(" ".join(str(each).split())).rstrip(".") or type(each).__name__
        if not any(text in part for part in parts):
            parts.append(text)
    return parts[0] + (f" ({'; '.join(parts[1:])})" if parts[1:] else "")


def causes(error: BaseException | None) -> Iterator[BaseException]:
    """Yields an error and those behind it."""
    while error is not None:
        yield error
        error = error.__cause__


def status_of(error: BaseException) -> int | None:
    """The HTTP status code behind an error, which the libraries behind fsspec store in different places."""
    for each in causes(error):
        status = _own_status(each)
        if status is not None:
            return status
    return None


def _own_status(error: BaseException) -> int | None:
    answer: object = getattr(error, "response", None)
    if isinstance(answer, dict):  # botocore
        status = answer.get("ResponseMetadata", {}).get("HTTPStatusCode")
        return status if isinstance(status, int) else None
    places = ((error, "status"), (error, "code"), (answer, "status_code"))
    for each, name in places:
        status = getattr(each, name, None)
        if isinstance(status, int) and 300 <= status < 600:
            return status
    named = _TEXT_STATUS.search(str(error)) if isinstance(error, OSError) else None  # pyarrow
    return None if named is None else int(named[1])


def _is_of_content(error: BaseException) -> bool:
    return isinstance(error, _OF_CONTENT) or (type(error).__module__ == "builtins" and not isinstance(error, OSError))


def _kind(filesystem: pafs.FileSystem) -> str:
    base = without_subtrees(filesystem, "")[0]
    fs = fsspec_of(base)
    names = [base.type_name] if fs is None else [fs.protocol] if isinstance(fs.protocol, str) else list(fs.protocol)
    return next((SCHEMES[name] for name in names if name in SCHEMES), "")
