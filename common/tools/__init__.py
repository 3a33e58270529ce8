"""Tools for whole datasets: `convert`, `copy`, `generate_metadata`, `migrate`, `rewrite`.

You can also run them with ``python -m parquetry.common.tools``.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .converting import convert
    from .copying import CopyReport, conditions, copy
    from .generating import generate_metadata
    from .migrating import Migration, migrate
    from .rewriting import rewrite

__all__ = ["CopyReport", "Migration", "conditions", "convert", "copy", "generate_metadata", "migrate", "rewrite"]

_HOMES = {
    "CopyReport": "copying",
    "conditions": "copying",
    "convert": "converting",
    "copy": "copying",
    "generate_metadata": "generating",
    "rewrite": "rewriting",
}


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    home = _HOMES.get(name, "migrating")
    return getattr(import_module(f".{home}", __name__), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
