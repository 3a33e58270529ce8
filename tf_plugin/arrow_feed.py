"""`ArrowFeed`: the server and the endpoint behind a dataset with ``transport="arrow"``.

A pipeline over files gets its own server process. A pipeline with an address uses the server at
that address. States are interchangeable with those of the native op. When the dataset is garbage
collected, its endpoint closes, and its own server stops as soon as the last reader is done.
"""

from __future__ import annotations

import json
import weakref
from collections.abc import Mapping
from typing import Any

import tensorflow as tf

from parquetry.common import Pipeline
from parquetry.common.base.errors import StateError
from parquetry.common.plan.order.cursor import START, Cursor, Origin
from parquetry.common.plan.state import resume, state_of
from parquetry.common.server.endpoints import ReaderEndpoint
from parquetry.common.server.own_server import OwnServer

from .arrow_source import arrow_dataset
from .arrow_versions import Reader


class ArrowFeed:
    """A ``tf.data.Dataset`` that reads a pipeline's stream and tracks its position in the order.

    Args:
        state: where the first iterator begins, see `ParquetDataset.load_state_dict`. Empty means
            the start.
    """

    def __init__(self, pipeline: Pipeline, reader: Reader, *, state: str = "") -> None:
        first = Cursor()
        if state:
            pipeline, first = _resumed(pipeline, state)
        self._pipeline = pipeline
        self._server = None if pipeline.source.served else OwnServer(pipeline)
        address = pipeline.address if self._server is None else self._server.address
        assert address is not None
        try:
            self._endpoint = ReaderEndpoint(address, () if self._server is not None else pipeline.stages)
        except BaseException:
            if self._server is not None:
                self._server.close()
            raise
        weakref.finalize(self, _close, self._endpoint, self._server)
        if state:
            self._endpoint.start_next_at(first)
        self.dataset: tf.data.Dataset = arrow_dataset(pipeline.element, self._endpoint.endpoint, reader)

    def start_next_at(self, state: Mapping[str, Any] | str) -> None:
        """Makes the next iterator continue from a state."""
        pipeline, cursor = _resumed(self._pipeline, state)
        if pipeline.drawn_seed != self._pipeline.drawn_seed:
            raise StateError(
                "state: it has another shuffle seed, which was drawn at random. "
                "To resume from this state, use load_state_dict()."
            )
        own, shard = self._pipeline.plan().order.shard, pipeline.plan().order.shard
        if own is not None and shard not in (own, own.with_streams(own.streams, None)):
            raise StateError(
                "state: it is from another number of ranks. To resume from this state, use load_state_dict()."
            )
        self._endpoint.start_next_at(cursor)

    def progress(self, elements: int) -> tuple[dict[str, Any], int]:
        """Returns the state after ``elements`` elements of the latest iterator.

        Also returns how many elements that iterator still had ahead of it when it began.

        Raises:
            tf.errors.FailedPreconditionError: no iterator has begun, or its elements cannot be
                counted.
        """
        plan, latest = self._pipeline.plan(), self._endpoint.latest
        if latest is None or plan.program.drops:
            got = "none" if latest is None else "one whose elements cannot be counted (drops=True)"
            raise tf.errors.FailedPreconditionError(
                None, None, f"state_dict: expected an iterator that has begun, got {got}."
            )
        after = Cursor(iteration=latest.iteration, origin=latest.origin, start=latest.start + elements)
        state = state_of(plan, after)
        length = plan.length if latest.origin == START else plan.elements_from(latest.origin)
        left = plan.cardinality_of(None if length is None else max(0, length - latest.start))
        return json.loads(state.to_json()), left

    @property
    def cardinality(self) -> int:
        """The number of elements in a whole iteration, in tf.data's encoding."""
        return self._pipeline.plan().cardinality


def _resumed(pipeline: Pipeline, state: Mapping[str, Any] | str) -> tuple[Pipeline, Cursor]:
    """Returns the pipeline and the position of the state in its order.

    If you did not choose a seed, the returned pipeline has the state's seed.
    """
    pipeline, position = resume(pipeline, lambda made: made.plan(), state if isinstance(state, str) else dict(state))
    origin = Origin(passes=position.origin[0], rows=position.origin[1])
    return pipeline, Cursor(iteration=position.iteration, origin=origin, start=position.consumed)


def _close(endpoint: ReaderEndpoint, server: OwnServer | None) -> None:
    endpoint.close()
    if server is not None:
        server.close()
