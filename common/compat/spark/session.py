"""Spark's sessions, and parquetry's URLs for Spark."""

from __future__ import annotations

import os
from typing import Any

from ...base.errors import PipelineError
from ...schema.spark_types import require_pyspark
from ...storage.filesystem import local_path


def context_of(spark: object, what: str) -> Any:
    """Returns the ``SparkContext`` of a session. You can also pass the context itself.

    Raises:
        CodecUnavailableError: pyspark is not installed.
        PipelineError: ``spark`` is something else, or a Spark Connect session, which has no
            ``SparkContext``.
    """
    require_pyspark(what)
    from pyspark import SparkContext
    from pyspark.sql import SparkSession

    if isinstance(spark, SparkContext):
        return spark
    if not isinstance(spark, SparkSession):
        raise PipelineError(
            f"{what}: expected a SparkSession with a SparkContext (Spark Connect has none), got {spark!r}."
        )
    return spark.sparkContext


def session_of(df: object, what: str) -> Any:
    """Returns the session of a DataFrame.

    Raises:
        CodecUnavailableError: pyspark is not installed.
        PipelineError: ``df`` is not a Spark DataFrame.
    """
    require_pyspark(what)
    if not hasattr(df, "sparkSession"):
        raise PipelineError(f"{what}: expected a DataFrame of Spark, got {df!r}.")
    return df.sparkSession


def spark_url(url: str | os.PathLike[str]) -> str:
    """Returns the URL with which Spark reaches the same place as parquetry does with ``url``.

    A local path stays local, whatever ``fs.defaultFS`` is set to. It is not percent-encoded,
    because Hadoop does not decode it.
    """
    text = os.fspath(url)
    if "://" in text and not text.lower().startswith("file://"):
        return text
    return f"file://{local_path(text)}"
