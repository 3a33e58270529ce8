"""What parquetry asks of a Spark session, and its URLs for Spark."""

from __future__ import annotations

import logging

import pytest

from parquetry.common.compat.spark.session import session_settings, spark_url


@pytest.mark.parametrize(
    ("url", "here", "on_databricks"),
    [
        ("/data/a b", "file:///data/a b", "file:///data/a b"),
        ("file:/data/a%20b", "file:///data/a b", "file:///data/a b"),
        ("s3a://bucket/x", "s3a://bucket/x", "s3a://bucket/x"),
        ("/Volumes/main/x", "file:///Volumes/main/x", "dbfs:/Volumes/main/x"),  # macOS mounts disks there
        ("file:///dbfs/x", "file:///dbfs/x", "dbfs:/x"),
        ("dbfs:/x", "dbfs:/x", "dbfs:/x"),
        ("dbfs:/Volumes/main/x", "dbfs:/Volumes/main/x", "dbfs:/Volumes/main/x"),
    ],
)
def test_spark_reaches_the_place_that_python_reaches(
    url: str, here: str, on_databricks: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("DATABRICKS_RUNTIME_VERSION", raising=False)
    assert spark_url(url) == here
    monkeypatch.setenv("DATABRICKS_RUNTIME_VERSION", "16.4")
    assert spark_url(url) == on_databricks


class Serverless:
    """A session whose server lets you set one option."""

    def __init__(self) -> None:
        self.conf = self
        self.options: dict[str, str] = {}

    def get(self, key: str, default: str | None) -> str | None:
        return self.options.get(key, default)

    def set(self, key: str, value: str) -> None:
        if key != "spark.sql.allowed":
            raise RuntimeError("[CONFIG_NOT_AVAILABLE]")
        self.options[key] = value

    def unset(self, key: str) -> None:
        del self.options[key]


def test_a_session_that_refuses_options_is_used_as_it_is(caplog: pytest.LogCaptureFixture) -> None:
    session = Serverless()
    with (
        caplog.at_level(logging.WARNING),
        session_settings(session, {"parquet.block.size": "9", "spark.sql.allowed": "1"}, "materialize_dataset"),
    ):
        assert session.options == {"spark.sql.allowed": "1"}
    assert session.options == {}
    assert "materialize_dataset: this Spark session does not let you set parquet.block.size." in caplog.text
