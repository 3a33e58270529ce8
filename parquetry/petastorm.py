"""Petastorm's API on parquetry's engine: keep the code, and install this instead of Petastorm, or change the import.

Petastorm's modules have their names here, too: ``from parquetry.petastorm.unischema import Unischema``. Each is
imported when you first use it. `install` makes them importable as ``petastorm``. See
``docs/migrating-from-petastorm.md``.
"""

from __future__ import annotations

from .common.compat.petastorm import (
    NoDataAvailableError,
    Reader,
    TransformSpec,
    WeightedSamplingReader,
    edit_field,
    install,
    make_batch_reader,
    make_reader,
)
from .common.compat.petastorm.module_names import name_modules

__all__ = [
    "NoDataAvailableError",
    "Reader",
    "TransformSpec",
    "WeightedSamplingReader",
    "edit_field",
    "install",
    "make_batch_reader",
    "make_reader",
]

__version__ = "0.13.1"
"""The version of Petastorm that this API follows. Parquetry's own is ``parquetry.__version__``."""
__path__: list[str] = []  # a package, whose modules are elsewhere
__getattr__ = name_modules(__name__)
