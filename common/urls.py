"""Shows URLs without the credentials they may contain: `without_secrets` for texts, `clean_cause` for exceptions.

They take texts and exceptions, ours or another library's, and return the same without the user, password and query of
each URL.
Every text that leaves the process (an error, a log, ``repr``) goes through here.
"""

from __future__ import annotations

import re

_USERS = re.compile(r"([a-z][a-z0-9+.-]*://)(?:[^/\s:@'\"]+:(?!\d+/)[^\s@'\"]*|[^/\s'\"]*)@", re.IGNORECASE)
_KEYS = re.compile(r"((?:s3a?|gs|gcs|abfss?)://)[^/\s:@'\"]+:[^\s@'\"]*@", re.IGNORECASE)  # buckets have no port
_NAMED = re.compile(r"(?:gs|gcs|abfss?|hdfs|viewfs|hf)://[^/\s:@]*@", re.IGNORECASE)
_QUERIES = re.compile(r"([a-z][a-z0-9+.-]*://[^\s?'\"]*)\?(?:[^\s'\",)]*[^\s'\",):;.])?", re.IGNORECASE)


def without_secrets(text: str) -> str:
    """Removes user, password and query from the URLs in a text, because they may contain keys.

    >>> without_secrets("s3://KEY:SECRET@bucket/train?token=abc")
    's3://bucket/train'
    """
    return _QUERIES.sub(r"\1", _USERS.sub(r"\1", _KEYS.sub(r"\1", text))) if "://" in text else text


def without_users(url: str) -> str:
    """Removes user and password from a URL. A user without a password stays if it is no secret in this scheme.

    >>> without_users("https://TOKEN@host/a?b=1"), without_users("abfs://container@account/a")
    ('https://host/a?b=1', 'abfs://container@account/a')
    """
    shown = _KEYS.sub(r"\1", url)
    return shown if _NAMED.match(shown) else _USERS.sub(r"\1", shown)


def clean_cause(error: BaseException) -> BaseException:
    """Returns the error, or a stand-in if its text, or that of an error behind it, shows a secret.

    Use it after ``raise ... from``: a traceback prints the text of every cause.
    """
    behind = error.__cause__ or (None if error.__suppress_context__ else error.__context__)
    kept = None if behind is None else clean_cause(behind)
    text = str(error)
    if kept is behind and without_secrets(text) == text:
        return error
    stand_in = OSError(f"{type(error).__name__}: {without_secrets(text)}").with_traceback(error.__traceback__)
    stand_in.__cause__ = kept
    return stand_in
