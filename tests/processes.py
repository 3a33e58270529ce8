"""Waiting for the end of processes that are not our children."""

from __future__ import annotations

import os
import select
import time

WITHIN_S = 5.0  # two seconds are promised; a busy machine gets some more


def gone(pids: list[int], within_s: float) -> list[int]:
    """The processes that have not ended after a while; waits without polling."""
    left = {}
    for pid in pids:
        try:
            left[os.pidfd_open(pid)] = pid
        except ProcessLookupError:
            continue
    poll = select.poll()
    for descriptor in left:
        poll.register(descriptor, select.POLLIN)
    end = time.monotonic() + within_s
    alive = dict(left)
    while alive and time.monotonic() < end:
        for descriptor, _ in poll.poll(max(0.0, end - time.monotonic()) * 1000):
            poll.unregister(descriptor)
            alive.pop(descriptor)
    for descriptor in left:
        os.close(descriptor)
    return list(alive.values())
