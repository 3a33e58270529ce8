"""One small Spark session for all tests, and rows with every kind of field."""

from __future__ import annotations

import os
import shutil
import sys
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

# Executors run this same interpreter and import what tests import.
os.environ["PYSPARK_PYTHON"] = os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable
# PARQUETRY_SPARK=connect runs the same tests with Spark Connect.
CONNECT = os.environ.get("PARQUETRY_SPARK") == "connect"
MASTER = "local[2, 2]"  # each task is tried twice
_TESTS = str(Path(__file__).resolve().parents[1])


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Ignores warnings that pyspark causes in its own code."""
    for item in items:
        if item.path.parent == Path(__file__).parent:
            item.add_marker(pytest.mark.filterwarnings("ignore:distutils Version classes:DeprecationWarning"))
            item.add_marker(pytest.mark.filterwarnings("ignore::DeprecationWarning:pyspark"))
            item.add_marker(pytest.mark.filterwarnings("ignore::FutureWarning:pyspark"))
            sockets = r"ignore:Exception ignored in. <socket\.socket:pytest.PytestUnraisableExceptionWarning"
            item.add_marker(pytest.mark.filterwarnings(sockets))


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """Starts a session with two cores and, on purpose, a time zone other than UTC."""
    with warnings.catch_warnings(), pytest.MonkeyPatch.context() as patch:
        warnings.simplefilter("ignore")  # from pyspark's own imports
        patch.setenv("PYTHONPATH", os.pathsep.join(filter(None, [_TESTS, os.environ.get("PYTHONPATH")])))
        sql = pytest.importorskip("pyspark.sql")
        if not (os.environ.get("JAVA_HOME") or shutil.which("java")):
            pytest.skip("Spark needs Java 17 or newer, and none is installed")
        directory: Path = tmp_path_factory.mktemp("spark")
        options = {
            "spark.ui.enabled": "false",
            "spark.driver.host": "127.0.0.1",
            "spark.driver.bindAddress": "127.0.0.1",
            "spark.local.dir": str(directory / "local"),
            "spark.sql.warehouse.dir": str(directory / "warehouse"),
            "spark.sql.session.timeZone": "America/New_York",
            "spark.sql.shuffle.partitions": "2",
            # Spark 4's defaults, also for 3.5.
            "spark.sql.parquet.datetimeRebaseModeInWrite": "CORRECTED",
            "spark.sql.parquet.int96RebaseModeInWrite": "CORRECTED",
            # Small data: compiling costs more than it saves.
            "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1",
            "spark.sql.codegen.wholeStage": "false",
            "spark.sql.adaptive.enabled": "false",
        }
        session = _session(sql.SparkSession.builder, options, patch)
    yield session
    session.stop()


@pytest.fixture(scope="session")
def context(spark: Any) -> Any:
    """Returns the session's ``SparkContext``, for tests of RDDs."""
    if CONNECT:
        pytest.skip("Spark Connect has no RDDs")
    return spark.sparkContext


def _session(builder: Any, options: dict[str, str], patch: pytest.MonkeyPatch) -> Any:
    for name, value in options.items():
        builder = builder.config(name, value)
    if CONNECT:
        patch.setenv("SPARK_TESTING", "1")  # any free port
        return builder.remote(MASTER).getOrCreate()
    session = builder.master(MASTER).getOrCreate()
    session.sparkContext.setLogLevel("OFF")
    return session
