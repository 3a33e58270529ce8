"""Serves one pipeline's ordered batches as Arrow IPC streams over sockets.

See `docs/arrow-stream.md`. `serve` starts a server in this process, ``parquetry serve`` one in a process of its own.
``Pipeline(address=...)`` is the client.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..base.process.lazy_names import lazy_names

if TYPE_CHECKING:
    from ..transport.served.address import ServerAddress
    from .limits import ClientLimits
    from .server import ArrowServer, serve

__all__ = ["ArrowServer", "ClientLimits", "ServerAddress", "serve"]

__getattr__, __dir__ = lazy_names(
    __name__,
    {
        "..transport.served.address": ("ServerAddress",),
        ".limits": ("ClientLimits",),
        ".server": ("ArrowServer", "serve"),
    },
)
