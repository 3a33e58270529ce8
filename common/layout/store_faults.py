"""`asking_again`: reads from a store that fails for a moment are made again, a little later each time.

In: a file system and a function that reads from it. Out: what the function gives. Always holds: it waits only for
faults that pass by themselves (the store is busy, the connection broke), and raises any other error at once, as it is.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, NoReturn, TypeVar

import pyarrow.fs as pafs

from ..counting.counters import Count, add
from ..errors import ParquetryError
from .deadlines import answer_of
from .stores import without_subtrees

if TYPE_CHECKING:
    from tenacity import RetryCallState

_T = TypeVar("_T")
_LOGGER = logging.getLogger(__name__)
ATTEMPTS = 8
"""How often a read is made. The waits between are random, of up to 0.4 s, 0.8 s and so on to 10 s: half a minute."""
FEW_ATTEMPTS = 3
"""The same where an answer was too short, as that of a damaged file is, and before a store has answered at all."""
FIRST_WAIT_S = 0.4
_LONGEST_WAIT_S = 10.0
ADVICE = "Check the network, the endpoint, the region, and how many requests the store allows."
_BUSY_STATUS = frozenset({408, 425, 429, 500, 502, 503, 504})
# What stores and their clients say, behind the name of the exception's class.
_BUSY = re.compile(
    r"slow.?down|too.?many.?requests|throttl|internal.?(server.?)?(error|failure)|service.?unavailable|bad.?gateway"
    r"|timed?.?out|network.?connection|connection.{0,20}(reset|refused|aborted|closed|lost)|broken.?pipe"
    r"|server.?disconnected|connector.?error|remote.?(protocol|disconnected)|status:? (408|425|429|50[0234])\b",
    re.IGNORECASE,
)
_CUT = re.compile(
    r"incomplete.?read|payload.?error|content.?length|unexpected end of stream|but (only )?got \d|premature|ends early",
    re.IGNORECASE,
)
_QUERY = re.compile(r"(https?://[^\s?'\"]+)\?[^\s'\"]+")


class StoreError(OSError):
    """A fault of a store that has not passed; the caller says what was read."""


def asking_again(
    filesystem: pafs.FileSystem,
    read: Callable[[], _T],
    place: str,
    *,
    most: int = ATTEMPTS,
    size_bytes: int = 0,
    is_listing: bool = False,
) -> _T:
    """Returns what ``read`` returns. Where the files are not local, it is called again after faults that pass.

    A read that does not answer is such a fault: see `deadlines.answer_of`.

    Args:
        place: what is read, in words.
        most: how often it is called.
        size_bytes: how much it reads, which decides how long it may take.
        is_listing: whether it lists a directory, which may take minutes.

    Raises:
        StoreError: the fault has not passed.
    """
    if is_local(filesystem):
        return read()
    from tenacity import Retrying, retry_if_exception, wait_random_exponential  # only where there is a store

    def give_up(state: RetryCallState) -> NoReturn:
        error = _error_of(state)
        raise StoreError(f"the store failed {state.attempt_number} times, at last with: {told(error)}") from error

    retrying = Retrying(
        retry=retry_if_exception(passes),
        stop=lambda state: state.attempt_number >= min(most, _most_attempts(_error_of(state))),
        wait=wait_random_exponential(multiplier=FIRST_WAIT_S, max=_LONGEST_WAIT_S),
        before_sleep=lambda state: _note(state, place),
        retry_error_callback=give_up,
    )
    return retrying(lambda: answer_of(read, place, size_bytes=size_bytes, is_listing=is_listing))


def is_local(filesystem: pafs.FileSystem) -> bool:
    """Whether the files lie on this machine, or where the system mounts them."""
    return isinstance(without_subtrees(filesystem, "")[0], pafs.LocalFileSystem)


def passes(error: BaseException) -> bool:
    """Whether the error is of the store or of the way to it, so that asking again may help."""
    return _most_attempts(error) > 1


def told(error: BaseException) -> str:
    """An error on one line, without the query of a URL, which may hold a signature."""
    text = " ".join(str(error).split()).rstrip(".")
    return _QUERY.sub(r"\1?...", text) or type(error).__name__


def _most_attempts(error: BaseException) -> int:
    """How often a read that fails in this way is made."""
    for each in _causes(error):
        if isinstance(each, ParquetryError | StoreError | FileNotFoundError | PermissionError | MemoryError):
            return 1
        said = f"{type(each).__name__} {each}"
        if isinstance(each, TimeoutError | ConnectionError) or _status(each) in _BUSY_STATUS or _BUSY.search(said):
            return ATTEMPTS
        if _CUT.search(said):
            return FEW_ATTEMPTS
    return 1


def _causes(error: BaseException | None) -> Iterator[BaseException]:
    while error is not None:
        yield error
        error = error.__cause__


def _status(error: BaseException) -> object:
    """The status of an HTTP answer, where the libraries behind fsspec keep it."""
    answer: Any = getattr(error, "response", None)
    if isinstance(answer, dict):  # of botocore
        return answer.get("ResponseMetadata", {}).get("HTTPStatusCode")
    places = ((error, "status"), (error, "code"), (answer, "status_code"))
    return next((found for each, name in places if isinstance(found := getattr(each, name, None), int)), None)


def _error_of(state: RetryCallState) -> BaseException:
    error = None if state.outcome is None else state.outcome.exception()
    assert error is not None  # it is asked of calls that failed
    return error


def _note(state: RetryCallState, place: str) -> None:
    add(Count.RETRIES, 1)
    _LOGGER.warning("%s: the store failed, asking again (%d): %s", place, state.attempt_number, told(_error_of(state)))
