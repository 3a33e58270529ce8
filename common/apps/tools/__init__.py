"""Tools for whole datasets: `convert`, `copy`, `generate_metadata`, `migrate`, `rewrite`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ...base.process.lazy_names import lazy_names

if TYPE_CHECKING:
    from .converting import convert
    from .copying import CopyReport, conditions, copy
    from .rewriting import rewrite
    from .stored_schema import Migration, generate_metadata, migrate

__all__ = ["CopyReport", "Migration", "conditions", "convert", "copy", "generate_metadata", "migrate", "rewrite"]

__getattr__, __dir__ = lazy_names(
    __name__,
    {
        ".converting": ("convert",),
        ".copying": ("CopyReport", "conditions", "copy"),
        ".rewriting": ("rewrite",),
        ".stored_schema": ("Migration", "generate_metadata", "migrate"),
    },
)
