"""Reads a pipeline with Ray Data: ``ray.data.read_datasource(ParquetrySource(pipeline))``.

Ray (2.48 or newer) is imported on first use. Install it with ``pip install 'parquetry[ray]'``.
Install parquetry on the cluster's workers too, because they read and decode.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ...base.errors import needs_framework

if TYPE_CHECKING:
    from .source import ParquetrySource

__all__ = ["ParquetrySource"]


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    with needs_framework(f"parquetry.common.compat.ray_data.{name}", "ray", extra="ray"):
        from . import source

        return getattr(source, name)


def __dir__() -> list[str]:
    return __all__
