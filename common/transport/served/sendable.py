"""The verbs that a client of a served pipeline may add to it: those that are plain numbers and names, no code."""

from __future__ import annotations

from ...errors import PipelineError

SENDABLE = (
    "select",
    "nulls",
    "pad",
    "permute",
    "decimals",
    "shard",
    "shuffle",
    "batch",
    "repeat",
    "take",
    "skip",
)
"""The verbs that a client may add; the others belong into the pipeline that is served."""


def check_sendable(verb: str) -> None:
    """Raises `PipelineError` for a verb that a client cannot send."""
    if verb not in SENDABLE:
        raise PipelineError(
            f"{verb}: expected one of {', '.join(SENDABLE)} on a served pipeline, got {verb}. Put it into the pipeline "
            "that the server is given."
        )
