"""`RankStats`: a loader's statistics on all ranks. `log_stats` and `StatsCollector` pass a loader's statistics on to
TensorBoard, Weights & Biases, MLflow and Prometheus.

These libraries are used through the objects that you pass, so none of them needs to be installed.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import suppress
from typing import Any

from ..errors import PipelineError
from ..process.dataclass import dataclass
from .loader_stats import LoaderStats
from .watching import stats_of

_PREFIX = "parquetry"


@dataclass(frozen=True, slots=True, kw_only=True)
class RankStats:
    """What a loader did on each rank, as ``gather_stats`` of a plug-in returns it.

    If your ranks talk in another way, such as MPI, gather ``stats().scalars()`` yourself:

    >>> gathered = comm.allgather(loader.stats().scalars())  # doctest: +SKIP
    >>> RankStats(own=loader.stats(), rank=comm.rank, ranks=tuple(gathered)).slowest  # doctest: +SKIP
    3

    Attributes:
        own: this rank's stats.
        rank: this rank's number, from 0.
        ranks: each rank's `LoaderStats.scalars`.

    Raises:
        PipelineError: there is no such rank.
    """

    own: LoaderStats
    rank: int
    ranks: tuple[Mapping[str, float], ...]

    def __post_init__(self) -> None:
        if not 0 <= self.rank < len(self.ranks):
            raise PipelineError(f"RankStats: expected a rank below {len(self.ranks)}, got {self.rank}.")

    @property
    def wait_shares(self) -> tuple[float, ...]:
        """Each rank's share of the time that it waited for data, 0 to 1."""
        return tuple(scalars["wait_share"] for scalars in self.ranks)

    @property
    def slowest(self) -> int:
        """The rank that waited the largest share of its time. All others wait for it at the end of a step."""
        return max(range(len(self.ranks)), key=self.wait_shares.__getitem__)

    @property
    def verdict(self) -> str:
        """This rank's verdict."""
        return self.own.verdict

    @property
    def why(self) -> str:
        """The reason for this rank's verdict, and which rank waited the most."""
        return f"{self.own.why} Rank {self.slowest} waited the most: {self.wait_shares[self.slowest]:.1%} of its time."

    def scalars(self) -> dict[str, float]:
        """Returns this rank's numbers, the shares of waiting of the slowest rank, and each rank's share."""
        slowest = {name: value for name, value in self.ranks[self.slowest].items() if name.startswith("wait_share")}
        return {
            **self.own.scalars(),
            "slowest_rank": self.slowest,
            **{f"slowest_{name}": value for name, value in slowest.items()},
            **{f"wait_share_of_rank_{rank}": share for rank, share in enumerate(self.wait_shares)},
        }

    def __str__(self) -> str:
        return "\n".join(
            f"rank {rank}: waited {share:.1%}{' (slowest)' if rank == self.slowest else ''}"
            for rank, share in enumerate(self.wait_shares)
        )


def log_stats(target: object, source: object, step: int | None = None) -> None:
    """Logs the stats of a running or latest epoch: ``parquetry/wait_share``, ``parquetry/wait_share_store`` ...

    >>> for step, batch in enumerate(loader):  # doctest: +SKIP
    ...     train(batch)
    ...     if step % 100 == 0:
    ...         log_stats(wandb.run, loader, step)

    Args:
        target: a Weights & Biases run (or the module ``wandb``), the module ``mlflow``, a Lightning logger, a
            ``SummaryWriter``, or an object with their method ``log``, ``log_metrics``, or ``add_scalar`` and
            ``add_text``. ``None`` logs nothing, for ranks without a log.
        source: what you iterate: a `Pipeline`'s iterator, a parquetry dataset, pipe or node, or a loader over one; or
            the result of ``stats()`` or ``gather_stats()``.
        step: the training step.

    Raises:
        PipelineError: the target has none of these methods; the source does not read through parquetry, or was not
            iterated yet.
    """
    if target is None:
        return
    stats = _stats(source)
    scalars = {f"{_PREFIX}/{name}": value for name, value in stats.scalars().items()}
    verdict, why = f"{_PREFIX}/verdict", f"{stats.verdict}: {stats.why}"
    if hasattr(target, "add_scalar") and hasattr(target, "add_text"):
        for name, value in scalars.items():
            target.add_scalar(name, value, step)
        target.add_text(verdict, why, step)
    elif hasattr(target, "log_metrics"):
        target.log_metrics(scalars, step=step)
        if hasattr(target, "set_tag"):
            target.set_tag(verdict, why)
    elif hasattr(target, "log"):
        target.log({**scalars, verdict: why}, step=step)
    else:
        raise PipelineError(
            "log_stats: expected a SummaryWriter, a Weights & Biases run, the module mlflow or a Lightning logger, got "
            f"{type(target).__name__}. For Prometheus, register a StatsCollector."
        )


def _stats(source: object) -> LoaderStats | RankStats:
    if isinstance(source, LoaderStats | RankStats):
        return source
    stats = stats_of(source)
    if stats is None:
        raise PipelineError(
            f"log_stats: expected a parquetry dataset or a loader over one, got {type(source).__name__}."
        )
    return stats()


class StatsCollector:
    """Gives Prometheus the stats of a loader's running or latest epoch whenever it asks, under the names of
    `LoaderStats.to_prometheus`.

    >>> prometheus_client.REGISTRY.register(StatsCollector(loader, {"rank": "0"}))  # doctest: +SKIP

    Until the loader is iterated, there are no samples. Needs ``prometheus-client``.

    Args:
        loader: as the ``source`` of `log_stats`.
        labels: labels for every sample.

    Raises:
        PipelineError: the loader does not read through parquetry.
    """

    def __init__(self, loader: object, labels: Mapping[str, str] | None = None) -> None:
        stats = stats_of(loader)
        if stats is None:
            raise PipelineError(
                f"StatsCollector: expected a parquetry dataset or a loader over one, got {type(loader).__name__}."
            )
        self._stats = stats
        self._labels = dict(labels or {})

    def describe(self) -> list[Any]:
        """Returns nothing: the registry then does not collect when this is registered."""
        return []

    def collect(self) -> Iterator[Any]:
        """Yields a gauge for each number, and one for the verdict."""
        from prometheus_client.core import GaugeMetricFamily

        with suppress(PipelineError):  # it was not iterated yet
            stats = self._stats()
            for name, samples in stats.gauges().items():
                gauge = GaugeMetricFamily(f"{_PREFIX}_{name}", "See parquetry's LoaderStats.")
                for labels, value in samples:
                    gauge.add_sample(gauge.name, {**self._labels, **labels}, value)
                yield gauge
