"""Adds a client's stages to the served pipeline: its shard, and other stages that contain no code.

Takes the served `Pipeline` and the stages of a request, as JSON; returns the pipeline to serve to this client. Nothing
that a client sends is ever unpickled or executed.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from typing import Any

from ..base.errors import ParquetryError, PipelineError
from ..base.memory.lru_cache import LRUCache
from ..pipeline.pipeline import Pipeline
from ..stages.base import Decision, Stage, stage_from_json
from ..stages.shard import is_shard
from ..transport.served.served_plan import check_sendable, sendable_verbs
from .limits import ClientLimits

_MOST_KEPT = 64


def with_added(served: Pipeline, added: Sequence[Stage], seed: int | None = None) -> Pipeline:
    """Adds a client's stages to the served pipeline. A shard goes before the batch, so that it divides rows.

    Raises:
        PipelineError: a stage is not valid there.
        StateError: ``seed`` differs from the seed that was given explicitly for the served pipeline.
    """
    stages = list(served.stages)
    for stage in added:
        check_sendable(stage.verb)
        at = _end_of_rows(stages) if stage.decides is Decision.PART else len(stages)
        stages.insert(at, stage)
        if seed is None:
            served.with_stages(stages)  # so that an error names the invalid stage
    result = served.with_stages(stages) if added else served
    if seed is not None and result.drawn_seed is not None:
        result = result.with_seed(seed)
    return result


def accepted(pipeline: Pipeline) -> list[str]:
    """Returns the verbs that may follow the pipeline."""
    return [verb for verb in sendable_verbs() if _fits(pipeline, verb)]


def _fits(pipeline: Pipeline, verb: str) -> bool:
    if is_shard(verb):
        return not any(stage.decides is Decision.PART for stage in pipeline.stages)
    return pipeline.accepts(verb)


def _end_of_rows(stages: list[Stage]) -> int:
    """Returns where a shard would divide each pass evenly: after the last stage that cuts or shuffles rows."""
    batches = [number for number, stage in enumerate(stages) if stage.decides is Decision.BATCHES]
    if not batches:
        return len(stages)
    end = batches[0]
    while end and stages[end - 1].decides not in (Decision.ORDER, Decision.CUT):
        end -= 1
    return end


class ClientPipelines:
    """Keeps the pipelines that clients have asked for, so that each is planned only once. Thread-safe."""

    def __init__(self, served: Pipeline, limits: ClientLimits) -> None:
        self.served = served
        self._limits = limits
        self._names = frozenset(str(output.path[-1]) for output in served.element.outputs)
        self._recent: LRUCache[str, Pipeline] = LRUCache(_MOST_KEPT)

    def of(self, request: dict[str, Any]) -> tuple[str, Pipeline]:
        """Returns the pipeline of a request, with a key that identifies it.

        Raises:
            PipelineError: a stage is not valid there, cannot be sent by a client, or exceeds a limit.
        """
        self._limits.check_request(request, self._names)
        added, seed = request.get("stages") or [], request.get("seed")
        key = hashlib.sha256(json.dumps([added, seed], sort_keys=True).encode()).hexdigest()
        pipeline = self._recent.get(key)
        if pipeline is None:
            made = with_added(self.served, [_stage(item) for item in added], seed)
            if added:
                self._limits.check_element(made.element)
            self._recent.keep(key, made)
            pipeline = self._recent.get(key)  # another client may have been faster
            if pipeline is None:
                pipeline = made
        return key, pipeline


def _checked(stage: Stage) -> Stage:
    """Returns the stage, unless it names files that the server would read."""
    for field in stage.declared:
        if not field.storage.in_column:
            raise PipelineError(
                f"{stage.verb}: field '{field.name}': a client cannot say which videos to read, got "
                f"{type(field.storage).__name__}. Declare the field in the pipeline that the server serves."
            )
    return stage


def _stage(value: Any) -> Stage:
    verb = value.get("verb") if isinstance(value, dict) else None
    check_sendable(str(verb))  # before reading any of it: other stages may contain code
    try:
        return _checked(stage_from_json(value))
    except ParquetryError:
        raise
    except Exception as error:
        raise PipelineError(f"{verb}: expected a stage as written by this version, got {value!r} ({error}).") from error
