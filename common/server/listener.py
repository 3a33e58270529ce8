"""`Listener`: a listening socket that handles each connection in its own thread.

Only its user can access a Unix socket's file. `close` removes the file, and `stop` also ends all connections.
A Unix socket refuses processes of other users, and every socket refuses clients when it has too many.
"""

from __future__ import annotations

import contextlib
import errno
import logging
import os
import secrets
import socket
import stat
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial

from ..base.errors import PipelineError
from ..base.platform.sockets import user_of
from ..transport.processes import start_vital
from ..transport.served.address import Endpoint

_LOGGER = logging.getLogger(__name__)
_BACKLOG = 64
_JOIN_S = 5.0
_PAUSE_S = 0.1
_MOST_REFUSALS = 32  # refused clients that are sent the reason at a time; others only see the connection close
_EXHAUSTED = {errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM}


class Listener:
    """Listens until it is closed.

    Args:
        endpoint: the address to listen on; port 0 becomes a free port.
        handle: called with each connection in its own thread; the connection is closed when it returns.
        most: maximum number of connections.
        refuse: called like ``handle`` with connections over the maximum, a few at once. Others are closed.

    Raises:
        PipelineError: it cannot listen on the address.
    """

    def __init__(
        self,
        endpoint: Endpoint,
        handle: Callable[[socket.socket], None],
        *,
        most: int,
        refuse: Callable[[socket.socket], None] | None = None,
    ) -> None:
        self._handle = handle
        self._refuse = refuse
        self._refusals = 0
        self._lock = threading.Lock()
        self._closed = False
        self._connections: dict[socket.socket, threading.Thread] = {}
        self._most = most
        try:
            self._socket, self.endpoint = _listening(endpoint)
        except OSError as error:
            raise PipelineError(
                f"serve at {endpoint}: expected an address that can be listened on, got {error}. Use another one."
            ) from error
        self._thread = start_vital(self._accept, name="parquetry-accept", failed=self._end)

    def close(self) -> None:
        """Stops accepting connections; open ones continue. Idempotent."""
        with self._lock:
            if self._closed:
                return
            self._closed = True
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)  # wakes accept()
        self._socket.close()
        if self.endpoint.kind == "unix":
            with contextlib.suppress(OSError):
                os.unlink(self.endpoint.path)
        if threading.current_thread() is not self._thread:
            self._thread.join(_JOIN_S)

    def stop(self) -> None:
        """Stops accepting connections and ends the open ones. Idempotent."""
        self.close()
        with self._lock:
            left = dict(self._connections)
        for connection in left:
            with contextlib.suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)
        for thread in left.values():
            if thread is not threading.current_thread():
                thread.join(_JOIN_S)

    @property
    def connections(self) -> int:
        """Number of open connections."""
        with self._lock:
            return len(self._connections)

    def wait(self) -> None:
        """Waits until all connections that are open now have ended."""
        with self._lock:
            left = list(self._connections.values())
        for thread in left:
            thread.join()

    def _accept(self) -> None:
        while True:
            try:
                connection, _ = self._socket.accept()
            except OSError as error:
                if self._closed:
                    return
                if error.errno in _EXHAUSTED:
                    _LOGGER.warning("a client has to wait: %s", error)
                    time.sleep(_PAUSE_S)  # accept() has no way to wait for free descriptors
                continue  # or the client left before it was accepted
            with self._lock:
                if self._closed:
                    connection.close()
                    return
                self._begin(connection)

    def _begin(self, connection: socket.socket) -> None:
        """Serves a client in a thread; call with the lock held."""
        try:
            if self.endpoint.kind == "tcp":
                connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)  # a client that asks waits for it all
            else:
                _check_user(connection)
            refused = len(self._connections) - self._refusals >= self._most
            if refused:
                _LOGGER.error("a client was refused: there are %d connections, the maximum", self._most)
                if self._refuse is None or self._refusals >= _MOST_REFUSALS:
                    connection.close()
                    return
            serve = partial(self._serve, connection, refused)
            self._connections[connection] = start_vital(serve, name="parquetry-client", failed=self._report)
            self._refusals += refused
        except (OSError, RuntimeError) as error:  # RuntimeError: the system is out of threads
            _LOGGER.error("a client was refused: %s", error)
            connection.close()

    def _report(self) -> None:
        _LOGGER.exception("connection closed because of an error in the server")

    def _end(self) -> None:
        """Stops after a failure, so that new clients are refused immediately instead of waiting."""
        _LOGGER.exception("server stopped because of an internal error")
        self.stop()

    def _serve(self, connection: socket.socket, refused: bool) -> None:
        answer = self._refuse if refused and self._refuse is not None else self._handle
        try:
            answer(connection)
        except OSError as error:  # the client left
            _LOGGER.debug("connection ended: %s", error)
        finally:
            with self._lock:
                self._connections.pop(connection, None)
                self._refusals -= refused
            connection.close()


def _listening(endpoint: Endpoint) -> tuple[socket.socket, Endpoint]:
    if endpoint.kind == "unix":
        return _listening_file(endpoint.path), endpoint
    family = socket.AF_INET6 if ":" in endpoint.host else socket.AF_INET
    result = socket.create_server((endpoint.host, endpoint.port), family=family, backlog=_BACKLOG)
    return result, replace(endpoint, port=result.getsockname()[1])


def _listening_file(path: str) -> socket.socket:
    """Listens on a Unix socket whose file appears when clients can connect, not before.

    bind() alone makes the file, and clients are refused until listen(). The file gets its name afterwards, by a link,
    which fails if another server was faster.
    """
    _remove_left_over(path)
    unfinished = _hidden_beside(path)
    result = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        result.bind(unfinished)
        try:
            os.chmod(unfinished, 0o600)  # before listen(), so that nobody can connect first
            result.listen(_BACKLOG)
            _name(unfinished, path)
        finally:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(unfinished)
    except FileExistsError:
        result.close()
        raise OSError(errno.EADDRINUSE, os.strerror(errno.EADDRINUSE)) from None
    except BaseException:
        result.close()
        raise
    return result


def _name(unfinished: str, path: str) -> None:
    try:
        os.link(unfinished, path)
    except FileExistsError:
        raise
    except OSError:  # a file system without hard links
        os.rename(unfinished, path)


def _check_user(connection: socket.socket) -> None:
    """Checks who connected to a Unix socket.

    Raises:
        PermissionError: it is a process of another user, except root, who can become any user.
    """
    user = user_of(connection)
    if user not in (os.geteuid(), 0, None):
        raise PermissionError(f"expected a process of user {os.geteuid()}, got one of user {user}")


def _remove_left_over(path: str) -> None:
    """Removes the socket of a server that was killed. If a server still listens on it, link() raises later.

    Another server that starts at the same time may have removed it, too, and listen under the name by now. So the file
    is renamed first, and gets its name back if somebody listens on it. Only a third server could take the name in
    between.
    """
    with contextlib.suppress(OSError):
        if not stat.S_ISSOCK(os.stat(path).st_mode) or _is_served(path):
            return
        taken = _hidden_beside(path)
        os.rename(path, taken)
        try:
            if _is_served(taken):
                _name(taken, path)
        finally:
            os.unlink(taken)


def _is_served(path: str) -> bool:
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.setblocking(False)  # a stopped server may have a full backlog
        try:
            probe.connect(path)
        except ConnectionRefusedError:
            return False
        except OSError:  # it has too many clients, or is not ours
            return True
    return True


def _hidden_beside(path: str) -> str:
    return os.path.join(os.path.dirname(path), f".{secrets.token_hex(3)}")  # short: Unix sockets limit the path
