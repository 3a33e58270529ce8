"""Texts and errors show URLs without credentials."""

from __future__ import annotations

import traceback

import pytest

from parquetry.common.base.errors import DatasetError, TransformError
from parquetry.common.base.tracebacks import shorten
from parquetry.common.base.urls import clean_cause, url_without_secrets, without_secrets


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("s3://KEY:SECRET@bucket/train", "s3://bucket/train"),
        ("s3://KEY:SE/CR+ET@bucket/train", "s3://bucket/train"),
        ("s3://KEY:12/CR+ET@bucket/train", "s3://bucket/train"),
        ("s3://KEY:SE/CR ET@bucket/train is gone", "s3://bucket/train is gone"),
        ("s3://KEY:SE'CR\nET@bucket/train", "s3://bucket/train"),
        ("http://me:SE CR'ET@host/a", "http://host/a"),
        ("'s3://KEY:SE CRET@bucket/a?b=c d': gone, write to me@home", "'s3://bucket/a': gone, write to me@home"),
        ("http://host/a?sig=abc: gone.", "http://host/a: gone."),
        ("s3://bucket: access denied, ask me@home", "s3://bucket: access denied, ask me@home"),
        ("http://host:8080: gone, write to me@home", "http://host:8080: gone, write to me@home"),
        ("'http://host/a?sig=a b c' is gone", "'http://host/a' is gone"),
        ("zip://a.zip::http://me:SECRET@host/b?sig=c", "zip://a.zip::http://host/b"),
        ("'https://me@host:8080/a?sig=abc': gone", "'https://host:8080/a': gone"),
        ("hf://datasets/me/set@main/a.parquet", "hf://datasets/me/set@main/a.parquet"),
        ("http://host:8080/me@home", "http://host:8080/me@home"),
        ("/data/part-?.parquet", "/data/part-?.parquet"),
    ],
)
def test_urls_are_shown_without_secrets(text: str, shown: str) -> None:
    assert without_secrets(text) == shown


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("s3://KEY:A SE/CR?ET@bucket/train?b=c d", "s3://bucket/train"),
        ("abfs://account:12/CR+ET==@container/a", "abfs://container/a"),
        ("http://me:SE/CRET@host/a", "http://host/a"),
        ("http://me:12 SECRET@host/a?sig=a\nb", "http://host/a"),
        ("zip://a.zip::http://me:SE CRET@host/b?sig=c d", "zip://a.zip::http://host/b"),
        ("http://host:8080/me@home", "http://host:8080/me@home"),
        ("http://[::1]/me@home", "http://[::1]/me@home"),
        ("hf://datasets/me/set@main/a.parquet", "hf://datasets/me/set@main/a.parquet"),
        ("/data/what?/me@home", "/data/what?/me@home"),
    ],
)
def test_one_url_is_shown_without_secrets_of_any_characters(url: str, shown: str) -> None:
    assert url_without_secrets(url) == shown
    assert without_secrets(f"dataset '{url}': gone") == f"dataset '{shown}': gone"


def test_an_error_shows_no_secret_whoever_made_its_text() -> None:
    error = DatasetError("file http://host/a.parquet?X-Signature=SECRET: gone. s3://KEY:SECRET@lake/rows, too.")
    assert "SECRET" not in str(error) + repr(error)
    assert str(error) == "file http://host/a.parquet: gone. s3://lake/rows, too."


def test_a_traceback_shows_no_secret_of_a_cause() -> None:
    inner, outer = ValueError("http://host/a?sig=" + "SECRET"), RuntimeError("a reader failed")
    outer.__cause__ = inner
    error = DatasetError("a file cannot be read")
    error.__cause__ = clean_cause(outer)
    shown = "".join(traceback.format_exception(error))
    assert "SECRET" not in shown
    assert "ValueError: http://host/a" in shown


def test_a_cause_without_secrets_is_kept() -> None:
    error = OSError("http://host/a is gone")
    assert clean_cause(error) is error


def test_notes_and_errors_behind_a_clean_one_show_no_secret() -> None:
    inner = OSError(5, "http://host/a?sig=" + "SECRET")
    inner.__notes__ = ["read from s3://KEY:SECRET@bucket"]
    outer = RuntimeError("a reader failed")
    outer.__context__ = inner
    assert clean_cause(outer) is outer
    assert "SECRET" not in "".join(traceback.format_exception(outer))
    assert "read from s3://bucket" in str(outer.__context__)
    assert getattr(outer.__context__, "errno", None) == 5


def test_errors_that_leave_a_public_method_have_clean_causes() -> None:
    error = DatasetError("a file cannot be read")
    error.__cause__ = ValueError("http://host/a?sig=" + "SECRET")
    shorten(error)
    assert "SECRET" not in "".join(traceback.format_exception(error))


def test_the_exception_of_a_users_function_stays_unchanged() -> None:
    error, own = TransformError("a function failed"), KeyError("http://host/a?id=1")
    error.__cause__ = own
    shorten(error)
    assert error.__cause__ is own
