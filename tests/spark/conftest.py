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
        session = (
            sql.SparkSession.builder.master("local[2, 2]")  # each task is tried twice
            .config("spark.ui.enabled", "false")
            .config("spark.driver.host", "127.0.0.1")
            .config("spark.driver.bindAddress", "127.0.0.1")
            .config("spark.local.dir", str(directory / "local"))
            .config("spark.sql.warehouse.dir", str(directory / "warehouse"))
            .config("spark.sql.session.timeZone", "America/New_York")
            .config("spark.sql.shuffle.partitions", "2")
            # Spark 4's defaults, also for 3.5.
            .config("spark.sql.parquet.datetimeRebaseModeInWrite", "CORRECTED")
            .config("spark.sql.parquet.int96RebaseModeInWrite", "CORRECTED")
            # Small data: compiling costs more than it saves.
            .config("spark.driver.extraJavaOptions", "-XX:TieredStopAtLevel=1")
            .config("spark.sql.codegen.wholeStage", "false")
            .config("spark.sql.adaptive.enabled", "false")
            .getOrCreate()
        )
        session.sparkContext.setLogLevel("OFF")
    yield session
    session.stop()
