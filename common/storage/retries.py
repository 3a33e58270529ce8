"""`with_retries` repeats reads from a store that fails for a moment, with growing waits in between.

It takes a file system and a function that reads from it, and returns what the function returns. It retries only
transient faults (the store is busy, the connection broke). Any other response of the store is a `StoreError` at once;
an error about the content of a file is raised unchanged.
"""

from __future__ import annotations

import logging
import math
import re
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, NoReturn, TypeVar

import pyarrow.fs as pafs

from ..base.errors import DatasetError, ParquetryError, access_failed, missing_package
from ..base.metrics.counters import Count, add
from ..base.process.forks import importing
from ..base.progress import pause
from ..base.urls import clean_cause, without_secrets
from .hedged_reads import Patience, hedged_read
from .store_answers import StoreError, causes, status_of, store_answer, told
from .stores import endpoint_of, without_subtrees

if TYPE_CHECKING:
    from tenacity import RetryCallState

_T = TypeVar("_T")
_LOGGER = logging.getLogger(__name__)
ATTEMPTS = 8
"""The most attempts at a read. The waits are random, up to 0.4 s, 0.8 s and so on to 10 s: half a minute in total."""
FEW_ATTEMPTS = 3
"""The most attempts if a response is too short or damaged (the file may be, too), or the store has never responded."""
FIRST_WAIT_S = 0.4
_LONGEST_WAIT_S = 10.0
_BUSY_STATUS = frozenset({408, 425, 429, 500, 502, 503, 504})
# Matched against the name of the exception's class and the message of the store or its client.
_BUSY = re.compile(
    r"slow.?down|too.?many.?requests|throttl|internal.?(server.?)?(error|failure)|service.?unavailable|bad.?gateway"
    r"|timed?.?out|network.?connection|connection.{0,20}(reset|refused|aborted|closed|lost)|broken.?pipe"
    r"|Status\((UNAVAILABLE|DEADLINE_EXCEEDED|RESOURCE_EXHAUSTED|ABORTED|INTERNAL)\b"  # Google Cloud's client
    r"|(network|host) is unreachable|no route to host|temporary failure in name resolution"
    r"|server.?disconnected|connector.?error|remote.?(protocol|disconnected)|status:? (408|425|429|50[0234])\b",
    re.IGNORECASE,
)
_CUT = re.compile(
    r"incomplete.?read|partial.?file|payload.?error|content.?length|unexpected (end of stream|range)|but (only )?got \d"
    r"|premature|ends early",
    re.IGNORECASE,
)


def with_retries(
    filesystem: pafs.FileSystem,
    read: Callable[[], _T],
    place: str,
    *,
    most: int = ATTEMPTS,
    size_bytes: int = 0,
    is_listing: bool = False,
    is_question: bool = False,
) -> _T:
    """Returns what ``read`` returns. Unless the files are local, ``read`` is retried after transient faults.

    A read without a response is such a fault; see `hedged_reads.hedged_read`. Its attempts take at most
    `hedged_reads.PATIENCE_S` in total, and three seconds for each megabyte.

    Args:
        place: what is read, for messages.
        most: the most times to call ``read``.
        size_bytes: how much it reads, which decides how long it may take.
        is_listing: whether it lists a directory, which may take minutes.
        is_question: whether it asks about a file, which takes seconds at most.

    Raises:
        StoreError: the fault persists, or the store refuses.
        DatasetError: tenacity is not installed.
    """
    if is_local(filesystem):
        return read()
    place = without_secrets(place)
    try:
        with importing():  # only if there is a store
            from tenacity import Retrying, retry_if_exception, wait_random_exponential
    except ImportError as error:
        raise DatasetError(f"{place}: a store {missing_package(error, 'tenacity', 'remote')}") from error

    def give_up(state: RetryCallState) -> NoReturn:
        error = _error_of(state)
        text = f"the store failed {state.attempt_number} times, most recently: {told(error)}"
        raise StoreError(text) from clean_cause(error)

    def sleep(seconds: float) -> None:
        pause(seconds)
        patience.left_s -= seconds

    patience = Patience(math.inf) if is_listing else Patience.of_read(size_bytes)
    retrying = Retrying(
        retry=retry_if_exception(is_transient),
        stop=lambda state: patience.left_s < 1 or state.attempt_number >= min(most, _most_attempts(_error_of(state))),
        wait=wait_random_exponential(multiplier=FIRST_WAIT_S, max=_LONGEST_WAIT_S),
        sleep=sleep,
        before_sleep=lambda state: _note(state, place),
        retry_error_callback=give_up,
    )
    ask = partial(
        hedged_read,
        read,
        place,
        size_bytes=size_bytes,
        is_listing=is_listing,
        is_question=is_question,
        endpoint=endpoint_of(filesystem),
        patience=patience,
    )
    try:
        return retrying(ask)
    except Exception as error:
        answer = store_answer(filesystem, error)
        if answer is None:
            raise
        raise answer from clean_cause(error)


def retry_if_damaged(filesystem: pafs.FileSystem, read: Callable[[], _T], place: str) -> _T:
    """Returns what ``read`` returns. If what a store sent is damaged, ``read`` is retried, up to `FEW_ATTEMPTS` in all.

    The store, or something in between, may have sent other bytes than it has. Not every client notices.

    Args:
        read: raises `DatasetError` with another library's exception as its cause if the bytes are damaged.
    """
    for _ in range(1, FEW_ATTEMPTS):
        try:
            return read()
        except DatasetError as error:
            cause = error.__cause__
            if is_local(filesystem) or cause is None or isinstance(cause, ParquetryError | StoreError):
                raise
            add(Count.RETRIES, 1)
            what = "cannot be read" if access_failed(cause) else "damaged"
            _LOGGER.warning("%s: %s, reading it again: %s", without_secrets(place), what, told(cause))
    return read()


def is_local(filesystem: pafs.FileSystem) -> bool:
    """Whether the files are on a local or mounted disk."""
    return isinstance(without_subtrees(filesystem, "")[0], pafs.LocalFileSystem)


def is_transient(error: BaseException) -> bool:
    """Whether the error is a fault of the store or the network, so that another attempt may succeed."""
    return _most_attempts(error) > 1


def _most_attempts(error: BaseException) -> int:
    """The most attempts at a read that fails with this error."""
    for each in causes(error):
        if isinstance(each, FileNotFoundError) and each.__cause__ is not None:
            continue  # fsspec's HTTP file system raises it for every failure
        if isinstance(each, ParquetryError | StoreError | FileNotFoundError | PermissionError | MemoryError):
            return 1
        text = f"{type(each).__name__} {each}"
        if isinstance(each, TimeoutError | ConnectionError) or status_of(each) in _BUSY_STATUS or _BUSY.search(text):
            return ATTEMPTS
        if _CUT.search(text):
            return FEW_ATTEMPTS
    return 1


def _error_of(state: RetryCallState) -> BaseException:
    error = None if state.outcome is None else state.outcome.exception()
    assert error is not None  # only called after failures
    return error


def _note(state: RetryCallState, place: str) -> None:
    add(Count.RETRIES, 1)
    attempt = state.attempt_number + 1
    _LOGGER.warning("%s: transient store error, retrying (attempt %d): %s", place, attempt, told(_error_of(state)))
