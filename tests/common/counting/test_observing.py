"""`observe`: gauges for OpenTelemetry, with a stand-in for the package."""

from __future__ import annotations

import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import parquetry
from parquetry.common.counting.loader_stats import LoaderStats


class Observation(NamedTuple):
    value: float
    attributes: dict[str, str]


class Meter:
    def __init__(self) -> None:
        self.gauges: dict[str, Any] = {}

    def create_observable_gauge(self, name: str, callbacks: list[Any], description: str) -> None:
        (self.gauges[name],) = callbacks


def test_every_number_becomes_a_gauge(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    package, metrics, meter = ModuleType("opentelemetry"), ModuleType("opentelemetry.metrics"), Meter()
    metrics.Observation, metrics.get_meter = Observation, {"parquetry": meter}.get  # type: ignore[attr-defined]
    package.metrics = metrics  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "opentelemetry", package)
    pq.write_table(pa.table({"id": range(60)}), tmp_path / "rows.parquet")
    batches = iter(parquetry.Pipeline(str(tmp_path / "rows.parquet"), executor="threads").batch(10))
    parquetry.observe(batches, {"split": "train"})
    list(batches)
    assert meter.gauges["parquetry.rows"](None) == [Observation(60, {"split": "train"})]
    assert "parquetry.wait_share" in meter.gauges


def test_the_gauges_of_an_export_share_one_snapshot(monkeypatch: pytest.MonkeyPatch) -> None:
    class Loader:
        taken = 0

        def stats(self) -> Any:
            self.taken += 1
            return SimpleNamespace(scalars=lambda: dict.fromkeys(LoaderStats.numbers(), float(self.taken)))

    Loader.__module__ = "parquetry.loaders"
    metrics, meter, loader = ModuleType("opentelemetry.metrics"), Meter(), Loader()
    metrics.Observation = Observation  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "opentelemetry", SimpleNamespace(metrics=metrics))
    parquetry.observe(loader, meter=meter)
    for export in (1.0, 2.0):
        assert {measure(None)[0].value for measure in meter.gauges.values()} == {export}
    del loader
    assert [measure(None) for measure in meter.gauges.values()] == [[]] * len(meter.gauges)


def test_a_missing_package_says_what_to_install(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setitem(sys.modules, "opentelemetry", None)
    pq.write_table(pa.table({"id": range(60)}), tmp_path / "rows.parquet")
    batches = iter(parquetry.Pipeline(str(tmp_path / "rows.parquet"), executor="threads").batch(10))
    with pytest.raises(ModuleNotFoundError, match="pip install opentelemetry-api"):
        parquetry.observe(batches)
