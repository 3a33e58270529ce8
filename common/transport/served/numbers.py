"""`Numbers`: which part of a pipeline's order a stream is; the same in requests, in states, and on the server."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

from ...errors import StateError

Layout = Literal["rows", "cells"]
"""How batches are laid out: see `encode` and `cells`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Numbers:
    """Which part of a pipeline's order a stream is.

    Attributes:
        iteration: decides the epoch.
        origin, start: where it begins, as a state says it.
        worker, workers: every ``workers``-th element from ``worker``.
    """

    iteration: int = 0
    origin: tuple[int, int] = (0, 0)
    start: int = 0
    worker: int = 0
    workers: int = 1

    def __post_init__(self) -> None:
        values = [self.iteration, *self.origin, self.start, self.worker, self.workers]
        whole = all(isinstance(value, int) and value >= 0 for value in values) and len(values) == 6
        if not whole or not self.worker < self.workers:
            raise StateError(
                f"stream: expected whole numbers >= 0, and a worker below the number of workers, got {self}."
            )

    @classmethod
    def of(cls, request: dict[str, Any]) -> Numbers:
        """What a request says; the beginning of the first epoch where it says nothing."""
        found = {name: request[name] for name in cls.__dataclass_fields__ if name in request}
        if "origin" in found:
            found["origin"] = tuple(found["origin"])
        return cls(**found)

    def to_json(self) -> dict[str, Any]:
        """As a request says it."""
        return {name: getattr(self, name) for name in self.__dataclass_fields__}
