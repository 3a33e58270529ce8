"""Serves one pipeline's ordered batches as Arrow IPC streams over sockets.

See `docs/arrow-stream.md`. `serve` starts a server in this process, ``python -m parquetry.common.sidecar serve`` one in
a process of its own. ``Pipeline(address=...)`` is the client.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ..transport.served.address import ServerAddress
    from .limits import ClientLimits
    from .server import ArrowServer, serve

__all__ = ["ArrowServer", "ClientLimits", "ServerAddress", "serve"]

_HOMES = {
    "ArrowServer": ".server",
    "ClientLimits": ".limits",
    "ServerAddress": "..transport.served.address",
    "serve": ".server",
}


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(_HOMES[name], __name__), name)
