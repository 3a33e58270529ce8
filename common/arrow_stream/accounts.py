"""`Accounts`: what each peer of a server uses: streams, their memory, and processor time.

A peer is a machine (`peer_of`), or a user of a Unix socket. Clients can open any number of connections, so limits per
connection would limit nothing. All connections of a peer share one account.
"""

from __future__ import annotations

import ipaddress
import logging
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from math import ceil

from ..errors import PipelineError
from ..transport.source import usable_memory_bytes
from .limits import ClientLimits

_LOGGER = logging.getLogger(__name__)
_MINUTE_S = 60.0
THIS_MACHINE = "this machine"
_NETWORK_BITS = 64  # of an IPv6 address; a machine may use any address in it


def peer_of(host: str) -> str:
    """Returns the name of the peer at an address. All addresses that one machine can choose freely share a name.

    >>> peer_of("127.0.0.7"), peer_of("::ffff:10.0.0.1"), peer_of("2001:db8::1:2")
    ('this machine', '10.0.0.1', '2001:db8::/64')
    """
    address = ipaddress.ip_address(host.partition("%")[0])
    if isinstance(address, ipaddress.IPv6Address) and address.ipv4_mapped is not None:
        address = address.ipv4_mapped
    if address.is_loopback:
        return THIS_MACHINE
    if isinstance(address, ipaddress.IPv6Address):
        return str(ipaddress.ip_network((int(address), _NETWORK_BITS), strict=False))
    return str(address)


class Accounts:
    """The accounts of all peers. Thread-safe.

    Args:
        limits: the limits of each peer.
        clock: seconds that never go backward.
    """

    def __init__(self, limits: ClientLimits, clock: Callable[[], float] = time.monotonic) -> None:
        self._limits = limits
        self._clock = clock
        self._lock = threading.Lock()
        self._accounts: dict[str, Account] = {}

    @contextmanager
    def of(self, peer: str) -> Iterator[Account]:
        """Yields a peer's account, for one connection."""
        with self._lock:
            account = self._accounts.get(peer)
            if account is None:
                account = self._accounts[peer] = Account(peer, self._limits, self._clock)
            account.connections += 1
        try:
            yield account
        finally:
            with self._lock:
                account.connections -= 1
                for name in [name for name, other in self._accounts.items() if other.is_unused]:
                    del self._accounts[name]

    def __len__(self) -> int:
        with self._lock:
            return len(self._accounts)


class Account:
    """What one peer uses. Thread-safe."""

    def __init__(self, peer: str, limits: ClientLimits, clock: Callable[[], float] = time.monotonic) -> None:
        self.peer = peer
        self.connections = 0  # counted by `Accounts`
        self._limits = limits
        self._clock = clock
        self._lock = threading.Lock()
        self._streams = 0
        self._told = False
        total_bytes = limits.total_memory_bytes or usable_memory_bytes() // 2
        self._least_bytes = max(1, total_bytes // (2 * limits.max_streams))
        self._free_bytes = max(0, total_bytes - limits.max_streams * self._least_bytes)
        self._cpu_s, self._cpu_at = 0.0, clock()

    @property
    def is_unused(self) -> bool:
        """Whether it is equal to a new account."""
        with self._lock:
            return not self.connections and not self._streams and self._used_cpu_s() <= 0

    @property
    def streams(self) -> int:
        """Number of open streams."""
        return self._streams

    def open_stream(self, wanted_bytes: int) -> StreamShare:
        """Opens a stream, whose share is at most ``wanted_bytes`` of memory. Close the result when it ends.

        Half of the peer's memory is divided equally among as many streams as it may open. The other half goes to the
        first ones, each of which gets at most a quarter of what is left. So memory alone never refuses a stream.

        Raises:
            PipelineError: the peer has the maximum number of streams.
        """
        with self._lock:
            if self._streams >= self._limits.max_streams:
                raise PipelineError(
                    f"server: expected at most {self._limits.max_streams} streams from {self.peer} at once, got one "
                    "more. Close iterators that you no longer need, use fewer loader workers, or start the server "
                    "with a higher limit max_streams."
                )
            extra_bytes = min(max(0, wanted_bytes - self._least_bytes), self._free_bytes // 4)
            granted_bytes = min(wanted_bytes, self._least_bytes + extra_bytes)
            if granted_bytes < wanted_bytes:  # a power of two, so that equal requests share sidecars
                granted_bytes = 1 << (granted_bytes.bit_length() - 1)
            extra_bytes = max(0, granted_bytes - self._least_bytes)
            self._streams += 1
            self._free_bytes -= extra_bytes
            number = self._streams
            tell = granted_bytes < wanted_bytes and not self._told
            self._told = self._told or tell
        if tell:
            _LOGGER.warning(
                "stream %d of %s gets %s of %s bytes of memory, and later ones less, so they may be slower. Raise the "
                "limit total_memory_bytes if this machine has more.",
                number,
                self.peer,
                f"{granted_bytes:,}",
                f"{wanted_bytes:,}",
            )
        return StreamShare(granted_bytes, lambda: self._close_stream(extra_bytes))

    def _close_stream(self, extra_bytes: int) -> None:
        with self._lock:
            self._streams -= 1
            self._free_bytes += extra_bytes

    @property
    def limits_cpu(self) -> bool:
        """Whether processor time is limited."""
        return self._limits.cpu_s is not None

    def use_cpu(self, seconds: float) -> None:
        """Counts processor time that was used for this peer."""
        if self.limits_cpu:
            with self._lock:
                self._cpu_s = self._used_cpu_s() + max(0.0, seconds)

    def check_cpu(self) -> None:
        """Refuses more work for a peer that has used up its processor time.

        Raises:
            PipelineError: it is used up.
        """
        most = self._limits.cpu_s
        if most is None:
            return
        with self._lock:
            used_s = self._used_cpu_s()
        if used_s > most:
            raise PipelineError(
                f"server: expected at most {most:g} s of processor time per minute for {self.peer}, got "
                f"{used_s:.3g} s. Ask again in {ceil(_MINUTE_S * (used_s - most) / most)} s, read slower, or start "
                "the server with a higher limit cpu_s."
            )

    def _used_cpu_s(self) -> float:
        """Brings the used time up to date; call with the lock held. It decreases over time, as the limit allows."""
        now = self._clock()
        allowed_s = (self._limits.cpu_s or 0.0) * (now - self._cpu_at) / _MINUTE_S
        self._cpu_s, self._cpu_at = max(0.0, self._cpu_s - allowed_s), now
        return self._cpu_s


class StreamShare:
    """One open stream's part of an account.

    Attributes:
        memory_bytes: memory that the stream may fill ahead of its client.
    """

    def __init__(self, memory_bytes: int, close: Callable[[], None]) -> None:
        self.memory_bytes = memory_bytes
        self._close: Callable[[], None] | None = close

    def close(self) -> None:
        """Gives the share back. Idempotent."""
        close, self._close = self._close, None
        if close is not None:
            close()

    def __enter__(self) -> StreamShare:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
