"""The planned pipeline of a client's request, with the runner of its jobs."""

from __future__ import annotations

import base64
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from ..base.process.dataclass import dataclass
from ..engine.read.column_reader import ReadContext
from ..engine.read.fetch import Fetcher, fetchers_of
from ..engine.run.block_loader import loaders_of
from ..engine.run.vocabularies import ready_program
from ..pipeline.pipeline import Pipeline
from ..plan.plan import BasePlan
from ..plan.program import ElementProgram, MixedProgram
from ..stages.shard import is_shard
from ..transport.sidecar.request import check_outputs, requested_versions
from ..transport.sidecar.request_secrets import whole_pipeline
from ..transport.sidecar.runners import Runner, make_runner
from ..transport.sidecar.worker_process import WorkerProcess


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenedRequest:
    """A planned pipeline.

    Attributes:
        versions: the versions of the datasets that were found.
        program: how rows become elements.
        fetchers: one for each dataset.
        runner: runs the jobs; owned by the caller of `prepare`.
        workers: the number of jobs that run at once.
        memory_limit: the maximum number of bytes in flight.
        max_errors: how many rows may be left out because they fail.
    """

    plan: BasePlan
    versions: list[str]
    program: ElementProgram | MixedProgram
    fetchers: list[Fetcher]
    runner: Runner
    workers: int
    memory_limit: int
    max_errors: float | None


def prepare(
    pipeline: Pipeline,
    request: Mapping[str, Any],
    start: Callable[[], WorkerProcess],
    started: Sequence[WorkerProcess] = (),
) -> OpenedRequest:
    """Plans a pipeline and makes the runner of its jobs.

    Args:
        pipeline: the pipeline of the request.
        request: the OPEN request.
        started: workers that already run; the runner uses them first and owns them.

    Raises:
        ParquetryError: files or fields differ from those of the request, or planning failed.
    """
    versions = requested_versions(request)
    if versions is not None:
        pipeline.require_versions(versions)
    plan = pipeline.plan()
    check_outputs(request, plan.element)
    workers = pipeline.options.parallelism
    memory_limit = pipeline.options.memory_bytes
    fetchers = fetchers_of(plan, ReadContext(room_bytes=memory_limit))
    program = ready_program(plan, replace(plan.program, strict_nulls=request.get("strict_nulls", True)))
    return OpenedRequest(
        plan=plan,
        versions=pipeline.versions,
        program=program,
        fetchers=fetchers,
        runner=make_runner(
            loaders_of(plan, fetchers),
            program,
            workers=workers,
            start=start,
            started=started,
            stall_timeout=pipeline.options.stall_timeout,
        ),
        workers=workers,
        memory_limit=memory_limit,
        max_errors=pipeline.options.max_errors,
    )


def requested_pipeline(request: Mapping[str, Any]) -> Pipeline:
    """Returns the pipeline of a request, with the shard and the URLs that became known only when it was sent.

    Raises:
        ParquetryError: the pipeline is invalid.
    """
    described = whole_pipeline(request)
    if "urls" in request:
        described["urls"] = [base64.urlsafe_b64decode(url).decode() for url in request["urls"]]
    if "shard" in request:
        numbers = dict(zip(("num_shards", "index"), request["shard"], strict=True))
        described["stages"] = [
            {**stage, **numbers} if is_shard(stage["verb"]) else stage for stage in described["stages"]
        ]
    return Pipeline.from_json(described)
