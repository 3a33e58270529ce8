"""The OPEN request: what a sidecar is asked for, the same from every face."""

from __future__ import annotations

import json
import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ..pipeline import Pipeline


def open_request(pipeline: Pipeline, *, strict_nulls: bool) -> str:
    """The request as JSON.

    ``start_workers`` lets the sidecar start its workers before it has planned anything: the pipeline's description,
    which is known here, says whether they will be needed.
    """
    from ..iteration import usable_processors
    from .runners import needs_workers

    workers = pipeline.workers or usable_processors()
    if not needs_workers(pipeline.plan().recipe, workers):
        workers = 0
    return json.dumps(
        {
            "pipeline": pipeline.to_json(),
            "sys_path": sys.path,
            "strict_nulls": strict_nulls,
            "start_workers": workers,
        }
    )
