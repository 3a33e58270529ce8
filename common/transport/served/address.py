"""`Endpoint`, the address of a socket, and `ServerAddress`, which adds what a client needs to connect.

Both are made from URLs such as ``unix:/run/data.sock`` or ``tcp://127.0.0.1:9100``, which are always on this machine.
Another machine is reached through a tunnel.
"""

from __future__ import annotations

import ipaddress
import os
from collections.abc import Mapping
from typing import Any, Literal
from urllib.parse import urlsplit

from ...base.errors import PipelineError
from ...base.process.dataclass import dataclass

_FORMS = "unix:PATH or tcp://127.0.0.1:PORT"
_LONGEST_UNIX_PATH = 107


@dataclass(frozen=True, slots=True, kw_only=True)
class Endpoint:
    """The address of a listening socket.

    Attributes:
        kind: ``"unix"`` for a Unix socket at ``path``, or ``"tcp"`` for ``host`` and ``port`` (0 = any free port).
    """

    kind: Literal["unix", "tcp"]
    path: str = ""
    host: str = ""
    port: int = 0

    def __str__(self) -> str:
        if self.kind == "unix":
            return f"unix:{self.path}"
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"tcp://{host}:{self.port}"

    @property
    def for_tensorflow_io(self) -> str:
        """The address in the form that ``ArrowStreamDataset`` expects."""
        return f"unix://{self.path}" if self.kind == "unix" else f"tcp://{self.host}:{self.port}"


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerAddress:
    """The address of a served pipeline, with the options of a client.

    Attributes:
        url: ``unix:PATH`` or ``tcp://127.0.0.1:PORT``.
        token_file: a file whose first line is the server's token. ``None`` means the token that a server of the same
            user created for itself, if it listens on a TCP port.
        shared: whether to share one epoch with all other clients that set this, instead of reading a shard.
        seed: replaces a shuffle seed that nobody chose. Set when a state with another seed is loaded.
    """

    url: str
    token_file: str | None = None
    shared: bool = False
    seed: int | None = None

    def __post_init__(self) -> None:
        endpoint = self.endpoint
        if endpoint.port == 0 and endpoint.kind == "tcp":
            raise PipelineError(
                f"address {self.url!r}: expected a port, got none. The server prints its port when it starts."
            )

    @property
    def endpoint(self) -> Endpoint:
        """The address of the socket."""
        return parse_endpoint(self.url)

    def to_json(self) -> dict[str, Any]:
        """Returns the fields. The token itself stays in its file."""
        return {name: getattr(self, name) for name in ("url", "token_file", "shared", "seed")}

    @classmethod
    def of(cls, value: str | os.PathLike[str] | Mapping[str, Any] | ServerAddress | Any) -> ServerAddress:
        """Converts a URL, JSON, or a server (anything with an ``address``) to an address. Returns an address as it is.

        Raises:
            PipelineError: the value is not an address.
        """
        if isinstance(value, ServerAddress):
            return value
        if isinstance(value, Mapping):
            try:
                return cls(**value)
            except TypeError:
                raise PipelineError(f"address: expected {_FORMS}, or a ServerAddress, got {value!r}.") from None
        own = getattr(value, "address", value)
        if isinstance(own, ServerAddress):
            return own
        if not isinstance(own, str):
            raise PipelineError(f"address: expected {_FORMS}, or a ServerAddress, got {value!r}.")
        return cls(url=own)


def parse_endpoint(url: str) -> Endpoint:
    """Parses a URL to the address of a socket.

    Raises:
        PipelineError: the URL has none of the known forms, or names another machine.
    """
    if not isinstance(url, str):
        raise PipelineError(f"address: expected {_FORMS}, got {url!r}.")
    if url.startswith("unix:"):
        path = os.path.abspath(url.removeprefix("unix://").removeprefix("unix:"))
        if path == os.path.abspath("") or len(os.fsencode(path)) > _LONGEST_UNIX_PATH:
            raise PipelineError(
                f"address {url!r}: expected the path of a socket, of at most {_LONGEST_UNIX_PATH} bytes, got '{path}'."
            )
        return Endpoint(kind="unix", path=path)
    try:
        parts = urlsplit(url)
        host, port = parts.hostname, parts.port
    except ValueError:
        host = port = None
    if not url.startswith("tcp://") or "/" in url[6:] or "@" in url or host is None or port is None:
        raise PipelineError(f"address {url!r}: expected {_FORMS}.")
    if not is_loopback(host):
        raise PipelineError(
            f"address {url!r}: expected {_FORMS}, because a server serves its own machine only, got the host {host!r}. "
            f"Start the server with --listen tcp://127.0.0.1:{port} --token-file FILE, and on the other machine open "
            f"a tunnel with: ssh -N -L {port}:127.0.0.1:{port} SERVER. The address there is tcp://127.0.0.1:{port}, "
            "with the same token_file=."
        )
    return Endpoint(kind="tcp", host=host, port=port)


def is_loopback(host: str) -> bool:
    """Returns whether a host name refers to this machine's loopback interface."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
