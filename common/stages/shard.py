"""``shard``: takes one rank's part of the items or of the row groups."""

from __future__ import annotations

from dataclasses import field, replace
from typing import Any, ClassVar, Literal

from ..base.errors import PipelineError
from ..base.process.dataclass import dataclass
from .base import Decision, Stage, is_integer, kinds, positive_integer
from .recut import Recut

Even = Literal["pad", "drop", "none"]


@dataclass(frozen=True)
class Shard(Stage):
    """Takes one rank's part.

    Attributes:
        even: ``"pad"`` repeats a few rows so that all parts have equal length, ``"drop"`` leaves a few out, ``"none"``
            lets lengths differ by one.
        canonical_shards: number of streams in the global order; ``None`` = ``num_shards``.
        resumed_streams: the number of streams of a state, which replaces ``num_shards`` in the last line.
        recut: how a state cuts one pass.
    """

    verb: ClassVar[str] = "shard"
    sendable: ClassVar[bool] = True
    decides: ClassVar[Decision] = Decision.PART
    unnamed: ClassVar[frozenset[str]] = frozenset(
        {"num_shards", "index", "canonical_shards", "resumed_streams", "recut"}
    )
    sample_arguments: ClassVar[tuple[object, ...]] = (1, 0)
    num_shards: int
    index: int
    even: Even = "pad"
    canonical_shards: int | None = None
    resumed_streams: int | None = field(default=None, repr=False)
    recut: Recut | None = field(default=None, repr=False)

    @classmethod
    def of(cls, num_shards: int, index: int, even: Even, canonical_shards: int | None, policy: str) -> Shard:
        """Creates a stage that takes items (``policy="global"``) or row groups (``"rowgroup_modulo"``)."""
        if policy == "rowgroup_modulo":
            return ShardRowGroups(num_shards, index, "none")
        if policy != "global":
            raise PipelineError(f"shard: expected policy='global' or 'rowgroup_modulo', got {policy!r}.")
        return Shard(num_shards, index, even, canonical_shards)

    def check(self) -> None:
        positive_integer("shard", "num_shards", self.num_shards)
        if not is_integer(self.index) or not 0 <= self.index < self.num_shards:
            raise PipelineError(
                f"shard: expected index from 0 to num_shards - 1 = {self.num_shards - 1}, got {self.index!r}."
            )
        if self.canonical_shards is not None:
            positive_integer("shard", "canonical_shards", self.canonical_shards)

    @classmethod
    def from_parameters(cls, parameters: dict[str, Any]) -> Stage:
        recut = parameters.get("recut")
        return super().from_parameters({**parameters, "recut": None if recut is None else Recut(**recut)})

    @property
    def streams(self) -> int:
        """The number of canonical streams."""
        return self.canonical_shards or self.resumed_streams or self.num_shards

    def with_streams(self, count: int, recut: Recut | None) -> Shard:
        if self.canonical_shards is not None:
            return self
        return replace(self, resumed_streams=None if count == self.num_shards else count, recut=recut)


@dataclass(frozen=True)
class ShardRowGroups(Shard):
    """Takes row groups ``index``, ``index + num_shards``, ... of the dataset, as Petastorm does."""

    verb: ClassVar[str] = "shard_row_groups"
    sendable: ClassVar[bool] = False
    decides: ClassVar[Decision] = Decision.ROW_GROUPS


def is_shard(verb: str) -> bool:
    """Whether the stage of a verb takes one rank's part."""
    return issubclass(kinds()[verb], Shard)
