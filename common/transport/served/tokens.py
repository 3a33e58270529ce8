"""Tokens of servers and clients.

A server on a TCP port always has one. Tokens are compared in constant time and never appear in a message, command line
or stored pipeline. A server that is given none generates its own and stores it in a private directory of its user,
where clients of the same user find it.
"""

from __future__ import annotations

import contextlib
import fcntl
import hmac
import os
import secrets
import stat
import time
from pathlib import Path

from ...base.errors import PipelineError
from .address import Endpoint, ServerAddress

_SHORTEST_TOKEN = 16
_NEW_S = 60.0  # a newer token file may not be locked yet


def read_token(path: str) -> str:
    """Returns the token in the first line of a file.

    Raises:
        PipelineError: the file cannot be read, or the token is too short to be secure.
    """
    try:
        lines = Path(path).read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise PipelineError(f"token file '{path}': expected a text file, got {error}.") from error
    token = lines[0].strip() if lines else ""
    if len(token) < _SHORTEST_TOKEN:
        raise PipelineError(
            f"token file '{path}': expected at least {_SHORTEST_TOKEN} characters in its first line, got {len(token)}. "
            "Make one with: python -c 'import secrets; print(secrets.token_urlsafe(32))'."
        )
    return token


class OwnToken:
    """A server's token for clients of the same user on this machine. Its file exists as long as the server runs."""

    def __init__(self) -> None:
        self.text = secrets.token_urlsafe(32)
        self._path = ""
        self._file = -1

    def publish(self, endpoint: Endpoint) -> None:
        """Writes the file.

        Raises:
            PipelineError: another user has access to the directory, or the file cannot be written.
        """
        directory = _token_directory()
        try:
            with contextlib.suppress(FileExistsError):
                os.mkdir(directory, 0o700)
            if not _is_private(directory, stat.S_IFDIR):
                raise PermissionError(f"'{directory}' is not a directory that only this user can access")
            _remove_old_tokens(directory)
            path = _token_path(endpoint.host, endpoint.port)
            with contextlib.suppress(FileNotFoundError):
                os.unlink(path)  # left by a server that was killed, because the port is ours now
            self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
            os.write(self._file, self.text.encode() + b"\n")
            self._path = path
            with contextlib.suppress(OSError):
                fcntl.flock(self._file, fcntl.LOCK_SH)  # keeps cleaners of temporary files away
        except OSError as error:
            self.close()
            raise PipelineError(
                f"serve at {endpoint}: expected to store a token that only this user can read, got {error}. "
                "Give a token file, or listen on a Unix socket."
            ) from error

    def close(self) -> None:
        """Removes the file. Idempotent."""
        path, self._path = self._path, ""
        file, self._file = self._file, -1
        if path:
            with contextlib.suppress(OSError):
                os.unlink(path)
        if file >= 0:
            os.close(file)


def client_token(address: ServerAddress) -> str | None:
    """Returns the client's token, from its file or from a server of the same user on this machine.

    Raises:
        PipelineError: the token file holds no token.
    """
    endpoint = address.endpoint
    if address.token_file is not None:
        return read_token(address.token_file)
    if endpoint.kind == "unix":
        return None
    for host in ("127.0.0.1", "::1") if endpoint.host == "localhost" else (endpoint.host,):
        path = _token_path(host, endpoint.port)
        if _is_private(_token_directory(), stat.S_IFDIR) and _is_private(path, stat.S_IFREG):
            return read_token(path)
    return None


def _remove_old_tokens(directory: str) -> None:
    """Removes the token files of servers that were killed. Those are not locked by any process."""
    for entry in list(os.scandir(directory)):
        with contextlib.suppress(OSError):  # it is locked, or already gone
            if time.time() - entry.stat().st_mtime > _NEW_S:
                file = os.open(entry.path, os.O_RDONLY | os.O_CLOEXEC)
                try:
                    fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    os.unlink(entry.path)
                finally:
                    os.close(file)


def _token_directory() -> str:
    return f"/tmp/parquetry-{os.geteuid()}"  # not TMPDIR, which differs between jobs


def _token_path(host: str, port: int) -> str:
    return f"{_token_directory()}/tcp-{host}-{port}.token"


def _is_private(path: str, kind: int) -> bool:
    """Returns whether a path is of this kind (not a link), belongs to this user, and is closed to all others."""
    try:
        status = os.lstat(path)
    except OSError:
        return False
    return stat.S_IFMT(status.st_mode) == kind and status.st_uid == os.geteuid() and not status.st_mode & 0o077


def same_token(expected: str | None, received: object) -> bool:
    """Returns whether a client's token is the server's. If the server has none, every client is accepted."""
    if expected is None:
        return True
    return isinstance(received, str) and hmac.compare_digest(expected.encode(), received.encode())
