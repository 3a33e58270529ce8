"""Who may connect: the token, and TLS contexts, for both ends.

What always holds: a server that other machines can reach has both; tokens are compared in constant time and appear in
no message, command line or stored pipeline.
"""

from __future__ import annotations

import hmac
import ssl
from dataclasses import dataclass
from pathlib import Path

from ...errors import PipelineError
from .address import Endpoint, ServerAddress

_SHORTEST_TOKEN = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class Security:
    """What a server asks of its clients: nothing, a token, TLS, or both."""

    token_file: str | None = None
    tls_cert_file: str | None = None
    tls_key_file: str | None = None

    def check(self, endpoint: Endpoint) -> None:
        """Refuses what would open a server to other machines.

        Raises:
            PipelineError: an address beyond this machine without a token and TLS.
        """
        if (self.tls_cert_file is None) != (self.tls_key_file is None):
            raise PipelineError("serve: expected a TLS certificate and its key together, got only one of them.")
        if self.has_tls and endpoint.kind == "unix":
            raise PipelineError(f"serve at {endpoint}: expected TCP for TLS, got a Unix socket, whose file guards it.")
        if not endpoint.is_local and (self.token_file is None or not self.has_tls):
            raise PipelineError(
                f"serve at {endpoint}: expected an address of this machine (a Unix socket, 127.0.0.1), because other "
                "machines could connect. Give a token file, a TLS certificate and its key, or listen on 127.0.0.1."
            )

    @property
    def has_tls(self) -> bool:
        """Whether connections are encrypted."""
        return self.tls_cert_file is not None

    def token(self) -> str | None:
        """The token, or ``None`` where none is asked for."""
        return None if self.token_file is None else read_token(self.token_file)

    def context(self) -> ssl.SSLContext | None:
        """The TLS side of a server.

        Raises:
            PipelineError: files that are no certificate and key.
        """
        if self.tls_cert_file is None:
            return None
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        try:
            context.load_cert_chain(self.tls_cert_file, self.tls_key_file)
        except (OSError, ssl.SSLError) as error:
            raise PipelineError(
                f"serve: expected a PEM certificate in '{self.tls_cert_file}' and its key in '{self.tls_key_file}', "
                f"got {error}."
            ) from error
        return context


def client_context(address: ServerAddress) -> ssl.SSLContext | None:
    """The TLS side of a client; ``None`` where the address has no TLS.

    Raises:
        PipelineError: a file that holds no certificates.
    """
    if not address.endpoint.tls:
        return None
    try:
        return ssl.create_default_context(cafile=address.tls_ca_file)
    except (OSError, ssl.SSLError) as error:
        raise PipelineError(
            f"address {address.url}: expected PEM certificates in '{address.tls_ca_file}', got {error}."
        ) from error


def read_token(path: str) -> str:
    """The first line of a token file.

    Raises:
        PipelineError: the file is missing, or its token is too short to keep anybody out.
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


def same_token(wanted: str | None, given: object) -> bool:
    """Whether a client may come in."""
    if wanted is None:
        return True
    return isinstance(given, str) and hmac.compare_digest(wanted.encode(), given.encode())
