"""`log_stats` and `StatsCollector`: each library's own calls, with the same numbers."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import closing
from types import ModuleType
from typing import Any

import numpy as np
import pytest

from parquetry import LoaderStats, Pipeline, RankStats, StatsCollector, log_stats, write_dataset
from parquetry.common import Unischema, UnischemaField
from parquetry.common.base.errors import PipelineError


class Writer:
    """As ``torch.utils.tensorboard.SummaryWriter``."""

    def __init__(self) -> None:
        self.scalars: dict[str, tuple[float, int | None]] = {}
        self.texts: dict[str, tuple[str, int | None]] = {}

    def add_scalar(self, tag: str, scalar_value: float, global_step: int | None = None) -> None:
        self.scalars[tag] = scalar_value, global_step

    def add_text(self, tag: str, text_string: str, global_step: int | None = None) -> None:
        self.texts[tag] = text_string, global_step


class Run:
    """As ``wandb.Run``."""

    def __init__(self) -> None:
        self.logged: list[tuple[dict[str, Any], int | None]] = []

    def log(self, data: dict[str, Any], step: int | None = None, commit: bool | None = None) -> None:
        self.logged.append((data, step))


class Logger:
    """As a logger of Lightning."""

    def __init__(self) -> None:
        self.metrics: list[tuple[dict[str, float], int | None]] = []

    def log_metrics(self, metrics: dict[str, float], step: int | None = None) -> None:
        self.metrics.append((metrics, step))


class Mlflow(Logger):
    """As the module ``mlflow``."""

    def __init__(self) -> None:
        super().__init__()
        self.tags: dict[str, Any] = {}

    def set_tag(self, key: str, value: Any) -> None:
        self.tags[key] = value


class Gauge:
    """As ``prometheus_client.core.GaugeMetricFamily``."""

    def __init__(self, name: str, documentation: str) -> None:
        self.name, self.documentation = name, documentation
        self.samples: list[tuple[str, dict[str, str], float]] = []

    def add_sample(self, name: str, labels: dict[str, str], value: float) -> None:
        self.samples.append((name, labels, value))


@pytest.fixture
def batches(tmp_path: Any) -> Iterator[Any]:
    schema = Unischema("rows", [UnischemaField("id", np.int64)])
    write_dataset(tmp_path / "rows", schema, ({"id": number} for number in range(60)), row_group_rows=20)
    with closing(iter(Pipeline(tmp_path / "rows", executor="threads").batch(7))) as iterator:
        yield iterator


@pytest.fixture
def stats(batches: Any) -> LoaderStats:
    assert len(list(batches)) == 9
    found: LoaderStats = batches.stats()
    return found


def test_a_summary_writer_gets_each_number_and_the_verdict(batches: Any, stats: LoaderStats) -> None:
    writer = Writer()
    log_stats(writer, batches, 100)
    assert writer.scalars["parquetry/rows"] == (60, 100)
    assert set(writer.scalars) == {f"parquetry/{name}" for name in stats.scalars()}
    assert writer.texts == {"parquetry/verdict": (f"too early: {stats.why}", 100)}


def test_weights_and_biases_get_one_call_for_each_step(stats: LoaderStats) -> None:
    run = Run()
    log_stats(run, stats, 100)
    ((data, step),) = run.logged
    assert (data["parquetry/wait_share"], step) == (stats.wait_share, 100)
    assert data["parquetry/verdict"].startswith("too early: ")


@pytest.mark.parametrize("kind", [Logger, Mlflow])
def test_mlflow_and_loggers_of_lightning_get_numbers_only(stats: LoaderStats, kind: type[Logger]) -> None:
    logger = kind()
    log_stats(logger, stats, 100)
    ((metrics, step),) = logger.metrics
    assert (metrics["parquetry/wait_share_store"], step) == (stats.wait_shares["store"], 100)
    assert all(isinstance(value, int | float) for value in metrics.values())
    if isinstance(logger, Mlflow):
        assert list(logger.tags) == ["parquetry/verdict"]


def test_the_slowest_rank_and_each_rank_are_logged(stats: LoaderStats) -> None:
    own = stats.scalars()
    slow = {**own, "wait_share": 0.9, "wait_share_store": 0.8}
    ranks = RankStats(own=stats, rank=0, ranks=({**own, "wait_share": 0.1}, slow, {**own, "wait_share": 0.2}))
    run = Run()
    log_stats(run, ranks)
    data = run.logged[0][0]
    assert data["parquetry/slowest_rank"] == ranks.slowest == 1
    assert (data["parquetry/slowest_wait_share"], data["parquetry/slowest_wait_share_store"]) == (0.9, 0.8)
    assert [data[f"parquetry/wait_share_of_rank_{rank}"] for rank in range(3)] == [0.1, 0.9, 0.2]
    assert "Rank 1 waited the most: 90.0%" in data["parquetry/verdict"]
    assert "rank 1: waited 90.0% (slowest)" in str(ranks)
    with pytest.raises(PipelineError, match="expected a rank below 3, got 3"):
        RankStats(own=stats, rank=3, ranks=ranks.ranks)


def test_other_targets_and_sources_are_refused(stats: LoaderStats) -> None:
    with pytest.raises(PipelineError, match=r"log_stats: expected a SummaryWriter, .* got list"):
        log_stats([], stats)
    with pytest.raises(PipelineError, match="log_stats: expected a parquetry dataset or a loader over one, got list"):
        log_stats(Run(), [1])
    with pytest.raises(PipelineError, match="StatsCollector: expected a parquetry dataset"):
        StatsCollector([1])
    log_stats(None, [1])  # a rank without a log


def test_prometheus_collects_what_the_text_page_shows(batches: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    core = ModuleType("prometheus_client.core")
    core.GaugeMetricFamily = Gauge  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "prometheus_client", ModuleType("prometheus_client"))
    monkeypatch.setitem(sys.modules, "prometheus_client.core", core)
    collector = StatsCollector(batches, {"rank": "0"})
    assert collector.describe() == []
    list(batches)
    gauges = {gauge.name: gauge for gauge in collector.collect()}
    assert gauges["parquetry_rows"].samples == [("parquetry_rows", {"rank": "0"}, 60)]
    verdicts = {labels["verdict"]: value for _, labels, value in gauges["parquetry_verdict"].samples}
    assert verdicts["too early"] == 1 == sum(verdicts.values())
    text = batches.stats().to_prometheus({"rank": "0"})
    assert set(gauges) == {line.split()[2] for line in text.splitlines() if line.startswith("# TYPE")}
    assert 'parquetry_verdict{rank="0",verdict="too early"} 1' in text
