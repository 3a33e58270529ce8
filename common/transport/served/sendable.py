"""Which stages a client may add to a served pipeline: those that are plain numbers and names, no code."""

from __future__ import annotations

from ...errors import PipelineError
from ...stages.base import kinds


def sendable_verbs() -> list[str]:
    """The verbs that a client may add; the others belong into the pipeline that is served."""
    return sorted(verb for verb, kind in kinds().items() if kind.sendable)


def check_sendable(verb: str) -> None:
    """Raises `PipelineError` for the verb of a stage that a client cannot send."""
    kind = kinds().get(verb)
    if kind is None or not kind.sendable:
        raise PipelineError(
            f"{verb}: expected one of {', '.join(sendable_verbs())} on a served pipeline, got {verb}. Put it into the "
            "pipeline that the server is given."
        )
