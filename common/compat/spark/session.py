"""Spark's sessions, classic and Connect, and parquetry's URLs for Spark.

Everything here takes both kinds of session, except `context_of`: Spark Connect has no
``SparkContext`` and no RDDs.
"""

from __future__ import annotations

import contextlib
import logging
import os
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from ...base.errors import PipelineError
from ...schema.spark_types import require_pyspark
from ...storage.filesystem import local_path

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_LOGGER = logging.getLogger(__name__)
_MOUNTS = ("/Volumes/", "/dbfs/")


def session_of(spark: object, what: str) -> Any:
    """Returns the session of a DataFrame or a ``SparkContext``. You can also pass a session itself.

    Raises:
        CodecUnavailableError: pyspark is not installed.
        PipelineError: ``spark`` is something else.
    """
    require_pyspark(what)
    from pyspark import SparkContext
    from pyspark.sql import SparkSession

    if isinstance(spark, SparkContext):
        return SparkSession(spark)
    session = getattr(spark, "sparkSession", spark)
    if not hasattr(session, "createDataFrame"):
        raise PipelineError(f"{what}: expected a SparkSession or a DataFrame of Spark, got {spark!r}.")
    return session


def context_of(spark: object, what: str) -> Any:
    """Returns the ``SparkContext`` of a classic session. You can also pass the context itself.

    Raises:
        CodecUnavailableError: pyspark is not installed.
        PipelineError: ``spark`` is something else, or a Spark Connect session.
    """
    require_pyspark(what)
    from pyspark import SparkContext
    from pyspark.sql import SparkSession

    if isinstance(spark, SparkContext):
        return spark
    if isinstance(spark, SparkSession):
        return spark.sparkContext
    if type(spark).__module__.startswith("pyspark.sql.connect"):
        raise PipelineError(
            f"{what}: expected a classic Spark session, got one of Spark Connect, which has no RDDs. Use DataFrames: "
            "write_dataframe to write, dataset_as_dataframe to read."
        )
    raise PipelineError(f"{what}: expected a SparkSession or a SparkContext, got {spark!r}.")


@contextlib.contextmanager
def session_settings(session: SparkSession, settings: Mapping[str, str], what: str) -> Iterator[None]:
    """Sets options of a session and restores them.

    Spark passes the options of a session on to Hadoop and Parquet. Serverless sessions refuse most of them; a warning
    then says which ones stay as they are.
    """
    before: dict[str, str | None] = {}
    refused: list[str] = []
    try:
        for key, value in settings.items():
            try:
                old = session.conf.get(key, None)
                session.conf.set(key, value)
            except Exception as error:  # of Java or of a remote server, depending on the session
                _LOGGER.debug("%s: the session refuses %s: %s", what, key, error)
                refused.append(key)
            else:
                before[key] = old
        if refused:
            _LOGGER.warning("%s: this Spark session does not let you set %s.", what, ", ".join(refused))
        yield
    finally:
        for key, old in before.items():
            if old is None:
                session.conf.unset(key)
            else:
                session.conf.set(key, old)


def session_parallelism(session: SparkSession) -> int:
    """Returns the number of tasks that Spark runs at a time, by its own default."""
    from pyspark.sql import functions

    return int(session.range(1 << 20).select(functions.spark_partition_id()).distinct().count())


def application_id(session: SparkSession) -> str:
    """Returns the id of the Spark application, or ``"spark"`` if the session does not tell."""
    try:
        return session.conf.get("spark.app.id", None) or "spark"
    except Exception:  # of Java or of a remote server, depending on the session
        return "spark"


def spark_url(url: str | os.PathLike[str]) -> str:
    """Returns the URL with which Spark reaches the same place as parquetry does with ``url``.

    A local path stays local, whatever ``fs.defaultFS`` is set to. It is not percent-encoded,
    because Hadoop does not decode it. On Databricks, Spark reaches the mounts ``/Volumes`` and
    ``/dbfs`` through ``dbfs:/``.
    """
    text = os.fspath(url)
    if "://" in text and not text.lower().startswith(("file://", "dbfs://")):
        return text
    path = local_path(text)
    if path.startswith(_MOUNTS) and (text.lower().startswith("dbfs:") or "DATABRICKS_RUNTIME_VERSION" in os.environ):
        return f"dbfs:{path.removeprefix('/dbfs')}"
    return f"file://{path}"
