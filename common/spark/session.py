"""Runs functions on executors, and converts parquetry URLs for Spark."""

from __future__ import annotations

import os
import pickle
from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeVar

from ..errors import ParquetryError, PipelineError
from ..layout.filesystem import local_path
from ..schema.spark_types import require_pyspark
from ..stages.functions import pickle_with_files

_Item = TypeVar("_Item")
_LEAST_WAVE = 64


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


def run_tasks(spark: object, what: str, function: Callable[[_Item], Any], items: Sequence[_Item]) -> Iterator[Any]:
    """Runs ``function`` on each item, and yields the results in order.

    Each item is one task on an executor. A parquetry error is raised unchanged and without retries.
    Left to Spark, the task would be retried and the error then reported as a Java error.
    """
    if not items:
        return
    context = context_of(spark, what)
    wave = max(_LEAST_WAVE, 4 * context.defaultParallelism)  # limits how much the driver holds
    for first in range(0, len(items), wave):
        # Pickle here, because Spark would batch several large items into one message.
        pickled = [pickle_with_files(item) for item in items[first : first + wave]]
        context.setJobDescription(f"parquetry: {what}")
        try:
            results = context.parallelize(pickled, len(pickled)).map(Guarded(function)).collect()
        finally:
            context.setJobDescription(None)
        for ok, result in results:
            if not ok:
                raise pickle.loads(result)
            yield pickle.loads(result)


class Guarded:
    """Wraps a function to take pickled items, and to return parquetry errors, not raise them."""

    def __init__(self, function: Callable[[Any], Any]) -> None:
        self._function = function

    def __call__(self, item: bytes) -> tuple[bool, bytes]:
        try:
            return True, pickle.dumps(self._function(pickle.loads(item)))
        except ParquetryError as error:
            return False, pickle.dumps(error)
