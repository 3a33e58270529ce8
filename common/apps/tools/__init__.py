"""Tools for datasets: `convert`, `copy`, `generate_metadata`, `migrate`, `rewrite`; for programs: `migrate_code`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ...base.process.lazy_names import lazy_names

if TYPE_CHECKING:
    from .converting import convert
    from .copying import CopyReport, conditions, copy
    from .petastorm_code import CodeChange, migrate_code
    from .rewriting import rewrite
    from .stored_schema import Migration, generate_metadata, migrate

__all__ = [
    "CodeChange",
    "CopyReport",
    "Migration",
    "conditions",
    "convert",
    "copy",
    "generate_metadata",
    "migrate",
    "migrate_code",
    "rewrite",
]

__getattr__, __dir__ = lazy_names(
    __name__,
    {
        ".converting": ("convert",),
        ".copying": ("CopyReport", "conditions", "copy"),
        ".petastorm_code": ("CodeChange", "migrate_code"),
        ".rewriting": ("rewrite",),
        ".stored_schema": ("Migration", "generate_metadata", "migrate"),
    },
)
