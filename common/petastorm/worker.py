"""The worker process of ``reader_pool_type="process"``: jobs in on stdin, results out on stdout.

The first message is the parent's ``sys.path``, the second the loader by cloudpickle, every other one a job; an answer
is ``(True, result)`` or ``(False, exception)``. The end of stdin, which the parent's death brings about, ends the
process.
"""

from __future__ import annotations

import os
import pickle
import sys
import traceback
from typing import Any

import cloudpickle

from ..errors import TransformError
from .pools import receive, send


def main() -> None:
    """Answers until stdin ends."""
    requests = os.fdopen(os.dup(0), "rb")
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # what user code prints must not end up between the answers
    sys.stdin = open(os.devnull)  # noqa: SIM115  # open for as long as the process lives
    try:
        sys.path[:] = pickle.loads(receive(requests))
        loader = pickle.loads(receive(requests))
        failure: Exception | None = None
    except EOFError:
        return
    except Exception as error:
        loader, failure = None, error
    while True:
        try:
            job = pickle.loads(receive(requests))
        except EOFError:
            return
        try:
            if failure is not None:
                raise failure
            answer: tuple[bool, Any] = True, loader.load(job)
        except Exception as error:
            answer = False, error
        send(answers, _packed(answer))


def _packed(answer: tuple[bool, Any]) -> bytes:
    try:
        data = cloudpickle.dumps(answer, protocol=5)
        if not answer[0]:
            pickle.loads(data)  # exceptions that pickle but do not come back would look like a dead worker
        return data
    except Exception as error:
        text = "".join(traceback.format_exception(answer[1] if not answer[0] else error)).rstrip()
        return cloudpickle.dumps((False, TransformError(f"worker process: a result could not travel back.\n{text}")))


if __name__ == "__main__":
    main()
