"""`ParquetNode`: a Parquet dataset as a source node of ``torchdata.nodes``."""

from __future__ import annotations

import operator
from typing import TYPE_CHECKING, Any

from torchdata.nodes import BaseNode
from typing_extensions import Self

from parquetry.common import Pipeline
from parquetry.common.counting.loader_stats import LoaderStats
from parquetry.common.pipeline.iteration import Given

from .carrier import PipelineCarrier
from .iterable import ParquetIterable
from .iterator import ElementIterator, parse


class ParquetNode(PipelineCarrier, BaseNode[Given]):
    """Elements of a `Pipeline` as dicts of tensors (see `parquetry.torch_plugin.tensors`), with exact resume.

    Each ``reset()`` without a state is the next epoch; a pass of which nothing was taken does not count. It has the
    verbs of `Pipeline`; each returns a new node. In a process group it gives the rank's part, as a `ParquetIterable`
    does.

    Args:
        url_or_urls, fields, filesystem, storage_options, workers, memory_limit, executor, verify, max_value_bytes,
            on_error, max_errors, address: as for `ParquetIterable`.
    """

    _iterator: ElementIterator[Given] | None

    def set_epoch(self, epoch: int) -> None:
        """The next ``reset()`` without a state is epoch ``epoch`` (counted from 0)."""
        self.close()
        self._iterator = None
        self._epoch = operator.index(epoch)

    if TYPE_CHECKING:

        def as_tuple(self, *parts: object) -> ParquetNode[Any]: ...

    # --- what torchdata calls ---

    def reset(self, initial_state: dict[str, Any] | None = None) -> None:
        """Starts the next epoch, or goes on from a state.

        Raises:
            StateError: the state belongs to another dataset or pipeline.
        """
        self._reset(initial_state, strict=True)

    def next(self) -> Given:
        """The next element."""
        assert self._iterator is not None  # BaseNode resets first
        return next(self._iterator)

    def load_state_dict(self, state_dict: dict[str, Any] | str, *, strict: bool = True) -> Self:
        """Goes on where a state was taken, also when a ``Loader`` resets the node before it takes the first element.

        It works in place, and returns the node.

        Args:
            strict: ``False`` takes a state of a pipeline with other fields or transforms, if the order is the same.

        Raises:
            StateError: the state belongs to another dataset or pipeline.
        """
        self._reset(parse(state_dict), strict)
        self._loaded = True
        return self

    def get_state(self) -> dict[str, Any]:
        """How far the node has come: a small JSON-serialisable dict, the same in every face."""
        assert self._iterator is not None  # BaseNode resets first
        return self._iterator.state_dict()

    def stats(self) -> LoaderStats:
        """What the running or latest epoch did so far, and which side is slow; see `ParquetIterable.stats`.

        Raises:
            PipelineError: the node was never reset.
        """
        return self._source.stats()

    def close(self) -> None:
        """Stops all work; the node can be reset again. Idempotent."""
        if self._iterator is not None:
            self._iterator.close()

    def _reset(self, state: dict[str, Any] | None, strict: bool) -> None:
        BaseNode.reset(self, state)
        previous, loaded, self._loaded = self._iterator, self._loaded, False
        if previous is not None:
            if loaded and state is None and not previous.begun:
                return
            previous.close()
            self._epoch = previous.progress.iteration + (1 if previous.begun else 0)
        self._source.set_epoch(self._epoch)
        if state is not None:
            self._source.load_state_dict(state, strict=strict)
        self._iterator = iter(self._source)

    def _start(self, pipeline: Pipeline) -> None:
        BaseNode.__init__(self)
        super()._start(pipeline)
        self._source = ParquetIterable.from_pipeline(pipeline)
        self._epoch = 0
        self._iterator = None
        self._loaded = False  # by name, not by whoever resets the node
