"""`log_stats`: writes a loader's statistics, and which side is slow, to a ``SummaryWriter``."""

from __future__ import annotations

from typing import Protocol

from parquetry.common.base.errors import PipelineError
from parquetry.common.base.metrics.watching import stats_of


class Writer(Protocol):
    """The methods of ``torch.utils.tensorboard.SummaryWriter`` that are used."""

    def add_scalar(self, tag: str, scalar_value: float, global_step: int | None = None) -> object:
        """Writes a number."""

    def add_text(self, tag: str, text_string: str, global_step: int | None = None) -> object:
        """Writes text."""


def log_stats(writer: Writer, loader: object, step: int | None = None) -> None:
    """Writes the stats of a loader's running or latest epoch: ``parquetry/rows_per_s``, ``parquetry/wait_share`` ...

    >>> writer = SummaryWriter("logs")  # doctest: +SKIP
    >>> for step, batch in enumerate(loader):  # doctest: +SKIP
    ...     train(batch)
    ...     if step % 100 == 0:
    ...         log_stats(writer, loader, step)

    Args:
        writer: a ``torch.utils.tensorboard.SummaryWriter``, or an object with its methods.
        loader: what you iterate: a dataset, pipe or node of this package, or a loader over one.
        step: the training step.

    Raises:
        PipelineError: the loader does not read through parquetry, or was not iterated yet.
    """
    stats = stats_of(loader)
    if stats is None:
        raise PipelineError(
            f"log_stats: expected a parquetry dataset or a loader over one, got {type(loader).__name__}."
        )
    values = stats()
    for name, value in values.scalars().items():
        writer.add_scalar(f"parquetry/{name}", value, step)
    writer.add_text("parquetry/verdict", f"{values.verdict}: {values.why}", step)
