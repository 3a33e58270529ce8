"""Collects and checks the ids from a loop over any face, whose elements have a field ``id``."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np

from parquetry.common.pipeline.pipeline_iterator import PipelineIterator


def ids(elements: Iterable[Any]) -> list[int]:
    """Returns the ids of all elements in a flat list."""
    return [int(number) for element in elements for number in np.atleast_1d(element["id"]).reshape(-1)]


def ids_by_element(elements: Iterable[Any]) -> list[Any]:
    """Returns the ids of each element: a number for a row, a list for a batch."""
    return [np.asarray(element["id"]).tolist() for element in elements]


def id_of(element: dict[str, Any]) -> Any:
    """Returns the id of a row, or those of a batch, as the element holds them."""
    return element["id"]


def epoch_of(dataset: Any, epoch: int) -> list[Any]:
    """Returns the ids of each element of one epoch, as the pipeline itself gives them."""
    return ids_by_element(PipelineIterator(getattr(dataset, "pipeline", dataset), epoch))


def flat(batches: Iterable[Any]) -> list[Any]:
    """Returns the numbers of batches, and of single rows among them, in one list."""
    return [number for batch in batches for number in (batch if isinstance(batch, list) else [batch])]
