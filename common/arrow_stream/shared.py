"""`SharedEpochs`: epochs whose batches are divided among several clients; each batch goes to exactly one of them.

Epochs are identified by number. A client joins an epoch at its current position; an epoch that has ended yields nothing
more. The work for an epoch stops when its last client leaves. The next client continues it where it was left. Batches
that were sent to a client that died are not sent again.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Iterator

from ..errors import SidecarError
from ..order.cursor import Cursor
from ..pipeline.pipeline import Pipeline
from .accounts import Account, StreamShare
from .epoch_log import EpochLog
from .sending import SentStep, WorkMeter, open_steps


class SharedEpoch:
    """One epoch of one pipeline, from a position on. Thread-safe."""

    def __init__(self, pipeline: Pipeline, epoch: int, position: int, *, strict_nulls: bool) -> None:
        self._steps = open_steps(pipeline, Cursor(iteration=epoch, start=position), strict_nulls=strict_nulls)
        self._meter = WorkMeter(self._steps)
        self._lock = threading.Lock()
        self._error: Exception | None = None
        self.position = position
        self.clients: Counter[Account] = Counter()
        self.shares: dict[Account, StreamShare] = {}  # each peer pays for the epoch, as any of them may be the last
        self.finished = False

    def next(self, account: Account) -> SentStep | None:
        """Returns the next step, or ``None`` at the end. An error is raised to every client."""
        with self._lock:
            try:
                return self._next()
            finally:
                self._meter.charge(account)

    def _next(self) -> SentStep | None:
        if self._error is not None:
            raise self._error
        try:
            count, columns = next(self._steps)
        except StopIteration:
            if not self._steps.ended:
                raise SidecarError("server: expected more of a shared epoch, but the server is closing.") from None
            self.finished = True
            return None
        except Exception as error:
            self._error = error
            raise
        self.position = self._steps.position
        return count, columns, self.position

    def close(self) -> None:
        """Stops all work, also while another thread waits for a step. Idempotent."""
        self._steps.close()


class SharedEpochs:
    """The shared epochs of all pipelines. Thread-safe."""

    def __init__(self) -> None:
        self._epochs: dict[tuple[str, int], SharedEpoch] = {}
        self._log = EpochLog()
        self._lock = threading.Lock()
        self._closed = False

    def steps(
        self,
        key: str,
        pipeline: Pipeline,
        epoch: int,
        *,
        strict_nulls: bool,
        asked: Callable[[], bool],
        account: Account,
    ) -> Iterator[SentStep]:
        """Yields this client's part of an epoch: the steps that it asks for before another client does.

        Args:
            key: identifies the pipeline; short, because it is kept.
            pipeline: the pipeline to read.
            epoch: the number of the epoch.
            strict_nulls: as for `open_steps`.
            asked: waits until the client asks for a step; returns False if it left instead.
            account: pays for the work. All clients of one account in an epoch count as one stream.

        Raises:
            PipelineError: the account has no room for another stream.
        """
        name = f"{key} {strict_nulls}", epoch
        shared = self._join(name, pipeline, account, strict_nulls=strict_nulls)
        if shared is None:
            return
        try:
            while asked() and (step := shared.next(account)) is not None:
                yield step
        finally:
            self._leave(name, shared, account)

    def close(self) -> None:
        """Stops all work. Idempotent."""
        with self._lock:
            self._closed = True
            left = list(self._epochs.values())
        for epoch in left:
            epoch.close()

    def _join(
        self, name: tuple[str, int], pipeline: Pipeline, account: Account, *, strict_nulls: bool
    ) -> SharedEpoch | None:
        """Returns the epoch, or ``None`` if it has ended."""
        with self._lock:
            if self._closed:
                raise SidecarError("server: expected to join a shared epoch, but the server is closing.")
            shared = self._epochs.get(name)
            if shared is None:
                position = self._log.position(*name)
                if position is None:
                    return None
                share = account.open_stream(pipeline.options.memory_bytes)
                try:
                    limited = pipeline.with_options(memory_limit=share.memory_bytes)
                    shared = SharedEpoch(limited, name[1], position, strict_nulls=strict_nulls)
                except BaseException:
                    share.close()
                    raise
                self._epochs[name] = shared
                shared.shares[account] = share
            elif account not in shared.shares:
                shared.shares[account] = account.open_stream(pipeline.options.memory_bytes)
            shared.clients[account] += 1
            return shared

    def _leave(self, name: tuple[str, int], shared: SharedEpoch, account: Account) -> None:
        with self._lock:
            shared.clients[account] -= 1
            if not shared.clients[account]:
                del shared.clients[account]
                shared.shares.pop(account).close()
            if shared.clients:
                return
            del self._epochs[name]
            in_use = {key for key, _ in self._epochs}
            if shared.finished:
                self._log.end(*name, in_use=in_use)
            else:
                self._log.leave(*name, shared.position, in_use=in_use)
        shared.close()
