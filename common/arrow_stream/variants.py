"""What a client adds to the served pipeline: its shard, and other stages that carry no code.

In: the served `Pipeline` and the stages of a request, as JSON. Out: the pipeline that this client is served. What
always holds: nothing that a client sends is unpickled or run.
"""

from __future__ import annotations

import json
from collections import OrderedDict
from collections.abc import Sequence
from threading import Lock
from typing import Any

from ..errors import ParquetryError, PipelineError
from ..pipeline.pipeline import Pipeline
from ..stages.base import Decision, Stage, stage_from_json
from ..transport.served.served_plan import check_sendable, sendable_verbs
from .limits import ClientLimits

_MOST_KEPT = 64


def with_added(served: Pipeline, added: Sequence[Stage], seed: int | None = None) -> Pipeline:
    """The served pipeline with a client's stages; a shard goes before the batch, where each rank gets its own rows.

    Raises:
        PipelineError: stages that make no sense there.
        StateError: ``seed`` is not the served pipeline's, and that was chosen by somebody.
    """
    stages = list(served.stages)
    for stage in added:
        check_sendable(stage.verb)
        at = _end_of_rows(stages) if stage.decides is Decision.PART else len(stages)
        stages.insert(at, stage)
        if seed is None:
            served.with_stages(stages)  # so that an error names the stage that does not fit
    result = served.with_stages(stages) if added else served
    if seed is not None and result.drawn_seed is not None:
        result = result.with_seed(seed)
    return result


def accepted(pipeline: Pipeline) -> list[str]:
    """The verbs that may follow."""
    return [verb for verb in sendable_verbs() if _fits(pipeline, verb)]


def _fits(pipeline: Pipeline, verb: str) -> bool:
    if verb == "shard":
        return not any(stage.decides is Decision.PART for stage in pipeline.stages)
    return pipeline.accepts(verb)


def _end_of_rows(stages: list[Stage]) -> int:
    """Where a shard deals every pass evenly: after the last stage before the batch that cuts or shuffles rows."""
    batches = [number for number, stage in enumerate(stages) if stage.decides is Decision.BATCHES]
    if not batches:
        return len(stages)
    end = batches[0]
    while end and stages[end - 1].decides not in (Decision.ORDER, Decision.CUT):
        end -= 1
    return end


class Variants:
    """The pipelines that clients ask for, each planned once. Thread-safe."""

    def __init__(self, served: Pipeline, limits: ClientLimits) -> None:
        self.served = served
        self._limits = limits
        self._names = frozenset(str(output.path[-1]) for output in served.element.outputs)
        self._made: OrderedDict[str, Pipeline] = OrderedDict()
        self._lock = Lock()

    def of(self, request: dict[str, Any]) -> tuple[str, Pipeline]:
        """The pipeline of a request, and a key that says which it is.

        Raises:
            PipelineError: stages that make no sense, that a client cannot send, or that ask for too much.
        """
        self._limits.check_request(request, self._names)
        added, seed = request.get("stages") or [], request.get("seed")
        key = json.dumps([added, seed], sort_keys=True)
        with self._lock:
            if key in self._made:
                self._made.move_to_end(key)
                return key, self._made[key]
        pipeline = with_added(self.served, [_stage(item) for item in added], seed)
        if added:
            self._limits.check_element(pipeline.element)
        with self._lock:
            made = self._made.setdefault(key, pipeline)
            while len(self._made) > _MOST_KEPT:
                self._made.popitem(last=False)
        return key, made


def _stage(value: Any) -> Stage:
    verb = value.get("verb") if isinstance(value, dict) else None
    check_sendable(str(verb))  # before anything of it is read: other stages may carry code
    try:
        return stage_from_json(value)
    except ParquetryError:
        raise
    except Exception as error:
        raise PipelineError(
            f"{verb}: expected the stage as this version writes it, got {value!r} ({error})."
        ) from error
