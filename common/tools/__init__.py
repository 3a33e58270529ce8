"""Tools over whole datasets: `migrate`, `copy`, `generate_metadata`; on the command line ``python -m parquetry.common.tools``."""

from .copying import CopyReport, copy
from .generate import generate_metadata
from .migrate import Migration, migrate

__all__ = ["CopyReport", "Migration", "copy", "generate_metadata", "migrate"]
