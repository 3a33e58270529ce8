"""`WeightedSamplingReader`: draws samples from several readers with given probabilities."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

import numpy as np

from ...base.errors import PipelineError
from .reading import DescribedSamples, SampleReader


class WeightedSamplingReader(SampleReader):
    """Draws each sample from one of several readers. It ends when the drawn reader has no more samples.

    Args:
        readers: two or more with equal fields, windows, and batching.
        probabilities: one for each reader; they are scaled to sum to 1.
        seed: seed of the draws; ``None`` for different draws in every run.
    """

    def __init__(self, readers: Sequence[Any], probabilities: Sequence[float], seed: int | None = None) -> None:
        if len(readers) < 2 or len(readers) != len(probabilities):
            raise PipelineError(
                f"WeightedSamplingReader: expected two or more readers and a probability for each, got {len(readers)} "
                f"and {len(probabilities)}."
            )
        weights = np.asarray(probabilities, dtype=np.float64)
        if not (weights >= 0).all() or not weights.sum() > 0:
            raise PipelineError(f"WeightedSamplingReader: expected probabilities >= 0, got {list(probabilities)}.")
        self._readers = list(readers)
        self._borders = np.cumsum(weights / weights.sum())
        self._borders[np.flatnonzero(weights)[-1] :] = 1.0  # rounding must not leave a gap below 1
        self._random = random.Random(seed)
        for other in self._readers[1:]:
            _check_alike(self._readers[0], other)
        self.batched_output = self._readers[0].batched_output
        self.ngram = self._readers[0].ngram
        self.schema = self._readers[0].schema

    def __len__(self) -> int:
        return sum(len(reader) for reader in self._readers)

    def __next__(self) -> Any:
        chosen = int(np.searchsorted(self._borders, self._random.random(), side="right"))
        return next(self._readers[chosen])

    @property
    def last_row_consumed(self) -> bool:
        """Whether any reader has reached its end."""
        return any(reader.last_row_consumed for reader in self._readers)

    @property
    def stopped(self) -> bool:
        """Whether every reader was stopped."""
        return all(reader.stopped for reader in self._readers)

    def reset(self) -> None:
        """Resets the readers that have reached their end; the others continue."""
        for reader in self._readers:
            if reader.last_row_consumed:
                reader.reset()

    def stop(self) -> None:
        """Stops every reader."""
        for reader in self._readers:
            reader.stop()

    def join(self) -> None:
        """Waits until every reader has stopped."""
        for reader in self._readers:
            reader.join()


def _check_alike(first: DescribedSamples, other: DescribedSamples) -> None:
    if first.batched_output != other.batched_output:
        raise PipelineError('WeightedSamplingReader: all readers must agree in "batched_output".')
    if set(first.schema.fields) != set(other.schema.fields):
        raise PipelineError(
            f"WeightedSamplingReader: all readers should have the same schema, got {list(first.schema.fields)} and "
            f"{list(other.schema.fields)}."
        )
    if (first.ngram is None) != (other.ngram is None) or (first.ngram is not None and first.ngram != other.ngram):
        raise PipelineError("WeightedSamplingReader: all readers should have the same ngram.")
