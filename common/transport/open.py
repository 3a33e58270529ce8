"""`open_source`: starts the transport for a request."""

from __future__ import annotations

import logging
import multiprocessing
from functools import cache

from ..engine.run.step_source import StepRequest, StepSource
from ..engine.run.threads import ThreadedEngine

_LOGGER = logging.getLogger(__name__)


def open_source(request: StepRequest) -> StepSource:
    """Opens the steps of an iteration, each in the requested form.

    Raises:
        EmptySelectionError: the pipeline selects nothing.
    """
    if request.executor == "server":
        from .served.client import ServedSource
        from .served.served_plan import ServedPlan

        assert isinstance(request.plan, ServedPlan)
        return ServedSource(request, request.plan.address)
    request.plan.check_not_empty()
    if request.executor == "sidecar":
        from .sidecar.sidecar_source import SidecarSource

        return SidecarSource(request)
    if request.options.stall_timeout is not None and multiprocessing.parent_process() is None:
        _warn_of_stall_timeout(request.options.stall_timeout)
    return ThreadedEngine(request)


@cache
def _warn_of_stall_timeout(seconds: float) -> None:
    """Logs, once in a process that is no loader worker, that the option has no effect in threads."""
    _LOGGER.warning(
        "stall_timeout=%g has no effect: this pipeline runs in threads, which cannot be replaced. If one of them "
        "hangs, a warning names its rows. Use executor='sidecar' to have processes that hang replaced.",
        seconds,
    )
