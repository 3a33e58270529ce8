"""`show_state` shows a saved state, and whether it fits a pipeline."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from ..errors import StateError
from ..pipeline.pipeline import Pipeline
from ..plan.state import State, parse_state, read_state
from ..process.dataclass import dataclass

_DEPTH = 20


@dataclass(frozen=True, slots=True, kw_only=True)
class StateReport:
    """A state found in a file.

    Attributes:
        place: the path inside the file, such as ``"$.train.loader"``; ``"$"`` if the file is the state itself.
        fits: whether the state fits the given pipeline; ``None`` without a pipeline.
        why_not: how the state differs, if it does not fit.
    """

    place: str
    state: State
    fits: bool | None
    why_not: str | None


def show_state(path: str | os.PathLike[str], pipeline: Pipeline | None = None) -> tuple[StateReport, ...]:
    """Finds every state in a JSON file, including those nested in the checkpoints of trainers.

    Args:
        pipeline: the pipeline to check the states against.

    Raises:
        StateError: the file cannot be read, is not JSON, or holds no state.
    """
    try:
        value = json.loads(Path(path).read_bytes())
    except (OSError, ValueError, RecursionError) as error:
        raise StateError(
            f"state file {os.fspath(path)}: expected JSON, got {error}. Write it with: "
            "json.dump(iterator.state_dict(), file)."
        ) from error
    found = tuple(_reported(place, state, pipeline) for place, state in _states(value, "$", 0))
    if not found:
        raise StateError(f"state file {os.fspath(path)}: expected what state_dict() returned, found no state in it.")
    return found


def _states(value: Any, place: str, depth: int) -> Iterator[tuple[str, State]]:
    if depth > _DEPTH:
        return
    if isinstance(value, str) and value.lstrip().startswith("{"):
        try:
            value = json.loads(value)
        except ValueError:
            return
    if isinstance(value, dict) and {"fingerprint", "consumed"} <= value.keys():
        yield place, read_state(value)
    elif isinstance(value, dict):
        for key, each in value.items():
            yield from _states(each, f"{place}.{key}", depth + 1)
    elif isinstance(value, list):
        for number, each in enumerate(value):
            yield from _states(each, f"{place}[{number}]", depth + 1)


def _reported(place: str, state: State, pipeline: Pipeline | None) -> StateReport:
    if pipeline is None:
        return StateReport(place=place, state=state, fits=None, why_not=None)
    try:
        parse_state(pipeline.plan(), state.to_json(), worker=state.worker, workers=state.workers)
    except StateError as error:
        return StateReport(place=place, state=state, fits=False, why_not=str(error))
    return StateReport(place=place, state=state, fits=True, why_not=None)
