"""`pc`: `pyarrow.compute`, imported when a function of it is first used.

The import takes a tenth of the time that a reader needs to start, and many pipelines do without it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import pyarrow.compute as pc
else:

    class _Compute:
        def __getattr__(self, name: str) -> object:
            import pyarrow.compute

            value = getattr(pyarrow.compute, name)
            setattr(self, name, value)
            return value

    pc = _Compute()

__all__ = ["pc"]
