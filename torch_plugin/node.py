"""`ParquetNode`: a Parquet dataset as a source node of ``torchdata.nodes``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Self

from torchdata.nodes import BaseNode

from parquetry.common import Pipeline
from parquetry.common.base.metrics.loader_stats import LoaderStats
from parquetry.common.pipeline.pipeline_iterator import ElementT
from parquetry.common.pipeline.resumes import is_at_end

from .epochs import epoch_number, warn_of_dropped_state
from .iterable import ParquetIterable
from .iterable_carrier import IterableCarrier, Part
from .iterator import ElementIterator, parse


class ParquetNode(IterableCarrier, BaseNode[ElementT]):
    """Elements of a `Pipeline` as dicts of tensors (see `parquetry.torch_plugin.tensors`), with exact resume.

        >>> loader = torchdata.nodes.Loader(ParquetNode(url, ["id"]).shuffle(16, seed=7).batch(8))
        >>> next(iter(loader))["id"].shape
        torch.Size([8])

    Each ``reset()`` without a state starts the next epoch; a pass that yielded no element does not count. A node has
    the verbs of `Pipeline`; each returns a new node. In a process group, it yields the rank's part, like a
    `ParquetIterable`.

    Args:
        url_or_urls, fields, filesystem, storage_options, address, mesh: as for `ParquetIterable`.
        workers, memory_limit, executor, verify, max_value_bytes, on_error, max_errors: as for `ParquetIterable`.
    """

    _iterator: ElementIterator[ElementT] | None

    def set_epoch(self, epoch: int) -> None:
        """Makes the next ``reset()`` without a state start epoch ``epoch`` (counted from 0).

        A state that was loaded before is kept if it is from that epoch. Otherwise it is dropped, with a warning unless
        it is the end of the epoch before.

        Raises:
            PipelineError: the epoch is not an integer of at least 0.
        """
        number = epoch_number(epoch)
        if self._loaded and self._iterator is not None and not self._iterator.begun:
            progress = self._iterator.progress
            if progress.cursor.iteration == number:
                return
            ended = is_at_end(progress.pipeline.plan(), progress.cursor, progress.consumed)
            warn_of_dropped_state(progress.cursor.iteration, number, ended=ended)
        self.close()
        self._iterator = None
        self._epoch = number

    if TYPE_CHECKING:

        def as_tuple(self, *parts: object) -> ParquetNode[Any]: ...

    # --- called by torchdata ---

    def reset(self, initial_state: dict[str, Any] | None = None) -> None:
        """Starts the next epoch, or resumes from a state.

        Raises:
            StateError: the state belongs to another dataset or pipeline.
        """
        self._reset(initial_state, strict=True)

    def next(self) -> ElementT:
        """Returns the next element."""
        return next(self._begun_iterator())

    def load_state_dict(self, state_dict: dict[str, Any] | str, *, strict: bool = True) -> Self:
        """Resumes from a state, even if a ``Loader`` resets the node before it takes the first element.

        Works in place and returns the node.

        Args:
            strict: ``False`` accepts a state from a pipeline with other fields or transforms, if the order is the same.

        Raises:
            StateError: the state belongs to another dataset or pipeline.
        """
        self._reset(parse(state_dict), strict)
        self._loaded = True
        return self

    def get_state(self) -> dict[str, Any]:
        """Returns the position of the node: a small JSON-serializable dict, the same in every dataset class."""
        return self._begun_iterator().state_dict()

    def stats(self) -> LoaderStats:
        """Returns statistics of the running or latest epoch, and which side is slow; see `ParquetIterable.stats`.

        Raises:
            PipelineError: the node was never reset.
        """
        return self._source.stats()

    def _copied(self, seconds: float) -> None:
        """Records that the consumer also waited for the copy of an element to a device."""
        self._source._copied(seconds)

    def close(self) -> None:
        """Stops all work; you can reset the node afterwards. Idempotent."""
        if self._iterator is not None:
            self._iterator.close()

    def _begun_iterator(self) -> ElementIterator[ElementT]:
        if self._iterator is None:  # BaseNode resets first, but not again after `set_epoch`
            self._reset(None, strict=True)
        assert self._iterator is not None
        return self._iterator

    def _reset(self, state: dict[str, Any] | None, strict: bool) -> None:
        BaseNode.reset(self, state)
        previous, loaded, self._loaded = self._iterator, self._loaded, False
        if previous is not None:
            if loaded and state is None and not previous.begun:
                return
            previous.close()
            self._epoch = previous.progress.cursor.iteration + (1 if previous.begun else 0)
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
        self._loaded = False  # load_state_dict() was called, not reset() with a state

    def _deal_along(self, part: Part | None) -> None:
        super()._deal_along(part)
        self._source._deal_along(part)
