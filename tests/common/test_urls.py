"""Texts and errors show URLs without credentials."""

from __future__ import annotations

import traceback

import pytest

from parquetry.common.errors import DatasetError
from parquetry.common.urls import clean_cause, without_secrets


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("s3://KEY:SECRET@bucket/train", "s3://bucket/train"),
        ("s3://KEY:SE/CR+ET@bucket/train", "s3://bucket/train"),
        ("s3://KEY:12/CR+ET@bucket/train", "s3://bucket/train"),
        ("http://host/a?sig=abc: gone.", "http://host/a: gone."),
        ("'https://me@host:8080/a?sig=abc': gone", "'https://host:8080/a': gone"),
        ("hf://datasets/me/set@main/a.parquet", "hf://datasets/me/set@main/a.parquet"),
        ("http://host:8080/me@home", "http://host:8080/me@home"),
        ("/data/part-?.parquet", "/data/part-?.parquet"),
    ],
)
def test_urls_are_shown_without_secrets(text: str, shown: str) -> None:
    assert without_secrets(text) == shown


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
