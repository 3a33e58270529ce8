"""Where a server is: `Endpoint` (a socket's address) and `ServerAddress` (that, and what a client needs to get in).

In: texts such as ``unix:/run/data.sock``, ``tcp://127.0.0.1:9100`` or ``tls://data.example:9100``. What always holds: a
plain TCP address is one of this machine; every other goes through TLS with a token.
"""

from __future__ import annotations

import ipaddress
import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal
from urllib.parse import urlsplit

from ...errors import PipelineError

_FORMS = "unix:PATH, tcp://127.0.0.1:PORT or tls://HOST:PORT"
_LONGEST_UNIX_PATH = 107


@dataclass(frozen=True, slots=True, kw_only=True)
class Endpoint:
    """The address of a listening socket.

    Attributes:
        kind: a Unix socket at ``path``, or TCP at ``host`` and ``port`` (0 = any free one).
        tls: whether bytes on it are encrypted.
    """

    kind: Literal["unix", "tcp"]
    path: str = ""
    host: str = ""
    port: int = 0
    tls: bool = False

    @property
    def is_local(self) -> bool:
        """Whether only processes of this machine reach it."""
        return self.kind == "unix" or is_loopback(self.host)

    def __str__(self) -> str:
        if self.kind == "unix":
            return f"unix:{self.path}"
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{'tls' if self.tls else 'tcp'}://{host}:{self.port}"

    @property
    def for_tensorflow_io(self) -> str:
        """As ``ArrowStreamDataset`` wants it."""
        return f"unix://{self.path}" if self.kind == "unix" else f"tcp://{self.host}:{self.port}"


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerAddress:
    """A served pipeline, as its clients name it.

    Attributes:
        url: ``unix:PATH``, ``tcp://127.0.0.1:PORT``, or ``tls://HOST:PORT``.
        token_file: a file whose first line is the server's token; ``None`` = the token that a server of this user made
            for itself, if it is on a TCP port of this machine.
        tls_ca_file: certificates (PEM) that the server's is held to; ``None`` = those of the system.
        shared: take the next batches of one epoch that all such clients share, instead of a shard of one's own.
        seed: in place of a shuffle seed that nobody chose; set when a state with another one is loaded.
    """

    url: str
    token_file: str | None = None
    tls_ca_file: str | None = None
    shared: bool = False
    seed: int | None = None

    def __post_init__(self) -> None:
        endpoint = self.endpoint
        if endpoint.kind == "tcp" and not endpoint.is_local and not endpoint.tls:
            raise PipelineError(
                f"address {self.url!r}: expected tls://HOST:PORT for another machine, got plain TCP. "
                "Start the server with a token and TLS, and give token_file= and tls_ca_file= here."
            )
        if endpoint.port == 0 and endpoint.kind == "tcp":
            raise PipelineError(
                f"address {self.url!r}: expected a port, got none. The server tells its own when it starts."
            )

    @property
    def endpoint(self) -> Endpoint:
        """The socket's address."""
        return parse_endpoint(self.url)

    def to_json(self) -> dict[str, Any]:
        """The fields; the token itself stays in its file."""
        return {name: getattr(self, name) for name in ("url", "token_file", "tls_ca_file", "shared", "seed")}

    @classmethod
    def of(cls, value: str | os.PathLike[str] | Mapping[str, Any] | ServerAddress | Any) -> ServerAddress:
        """An address from a URL, from JSON, from a server (anything with an ``address``), or as it is.

        Raises:
            PipelineError: it is none.
        """
        if isinstance(value, ServerAddress):
            return value
        if isinstance(value, Mapping):
            return cls(**value)
        own = getattr(value, "address", value)
        if isinstance(own, ServerAddress):
            return own
        if not isinstance(own, str):
            raise PipelineError(f"address: expected {_FORMS}, or a ServerAddress, got {value!r}.")
        return cls(url=own)


def parse_endpoint(url: str) -> Endpoint:
    """The socket address that a URL names.

    Raises:
        PipelineError: no such form.
    """
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
    if parts_wrong(url) or host is None or port is None:
        raise PipelineError(f"address {url!r}: expected {_FORMS}.")
    return Endpoint(kind="tcp", host=host, port=port, tls=url.startswith("tls://"))


def parts_wrong(url: str) -> bool:
    """Whether a URL has another scheme than TCP's, or more than a host and a port."""
    return not url.startswith(("tcp://", "tls://")) or "/" in url[6:] or "@" in url


def is_loopback(host: str) -> bool:
    """Whether a host name means this machine and nothing else."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
