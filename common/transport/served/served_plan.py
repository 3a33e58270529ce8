"""`ServedPlan`: the client's view of the plan of a served pipeline.

The server describes the plan once. Anything that needs the dataset is requested from the server when it is needed.
States are those of the server's own plan, so every front end can load them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ...base.errors import PipelineError
from ...base.process.dataclass import dataclass
from ...base.process.forks import cached_property
from ...plan.order.cursor import Origin
from ...plan.plan import BasePlan
from ...plan.stage_order import StageOrder
from ...schema.element import Element
from ...stages.base import Stage, kinds, stage_from_json
from .address import ServerAddress
from .client import ask_once, request_of
from .wire import element_from_json


@dataclass(frozen=True, slots=True, kw_only=True)
class ServedProgram:
    """What a client knows about the program, which runs on the server. See `ElementProgram`."""

    drops: bool
    strict_nulls: bool = False
    has_user_code: bool = False
    costly: bool = False
    frees_interpreter: bool = True


class ServedPlan(BasePlan):
    """The plan of a server's pipeline with this client's stages.

    Raises:
        SidecarError: the server cannot be reached.
        ParquetryError: an error from planning on the server.
    """

    def __init__(self, address: ServerAddress, stages: Sequence[Stage]) -> None:
        self.address = address
        self.stages = tuple(stages)
        self._request = request_of(address, stages)
        self._said = self._ask("describe")
        shard = self._said["shard"]
        order = StageOrder(mixed=self._said["mixed"])
        order.shard = None if shard is None else stage_from_json(shard)  # type: ignore[assignment]  # it is a shard
        self.order = order
        self.hashes = (self._said["hashes"][0], self._said["hashes"][1])
        self.program = ServedProgram(drops=self._said["drops"])  # type: ignore[assignment]  # all that is known here

    @cached_property
    def element(self) -> Element:
        return element_from_json(self._said["element"])

    @property
    def accepts(self) -> Sequence[str]:
        """The verbs that may follow this plan."""
        return list(self._said["accepts"])

    @property
    def fingerprint(self) -> str:
        return str(self._said["fingerprint"])

    @property
    def seed(self) -> int | None:
        seed: int | None = self._said["seed"]
        return seed

    @property
    def seed_is_drawn(self) -> bool:
        return bool(self._said["seed_is_drawn"])

    @property
    def undivided(self) -> str | None:
        if self.order.shard not in self.stages:
            return "the server's pipeline has the shard"
        why: str | None = self._said["undivided"]
        return why

    @property
    def numbered(self) -> bool:
        return False

    @cached_property
    def length(self) -> int | None:  # requested once
        length: int | None = self._ask("length")["length"]
        return length

    def explain(self) -> str:
        """Returns the server's explanation of the plan."""
        return str(self._ask("explain")["text"])

    def origin_after(self, origin: Origin, num_shards: int, rows: int) -> Origin:
        """Returns the global position after each of ``num_shards`` ranks has taken ``rows`` rows from ``origin``."""
        after = self._ask("origin_after", origin=[origin.passes, origin.rows], num_shards=num_shards, rows=rows)
        return Origin(passes=after["origin"][0], rows=after["origin"][1])

    def check_not_empty(self) -> None:
        """Does nothing: the server checks this when an iteration begins."""

    def _ask(self, do: str, **arguments: object) -> dict[str, Any]:
        return ask_once(self.address, {"do": do, **self._request, **arguments})


def sendable_verbs() -> list[str]:
    """Returns the verbs that a client may add. All others belong in the served pipeline."""
    return sorted(verb for verb, kind in kinds().items() if kind.sendable)


def check_sendable(verb: str) -> None:
    """Raises `PipelineError` if a client cannot send a stage with this verb."""
    kind = kinds().get(verb)
    if kind is None or not kind.sendable:
        raise PipelineError(
            f"{verb}: expected one of {', '.join(sendable_verbs())} on a served pipeline, got {verb}. Put it into the "
            "pipeline that the server serves."
        )
