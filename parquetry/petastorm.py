"""Petastorm's API on parquetry's engine: change the import, keep the code. See ``docs/migrating-from-petastorm.md``.

Petastorm's modules have their names here, too: ``from parquetry.petastorm.unischema import Unischema``.
"""

from __future__ import annotations

import pkgutil
import sys
from importlib import import_module

from .common.compat import petastorm
from .common.compat.petastorm import (
    NoDataAvailableError,
    Reader,
    TransformSpec,
    WeightedSamplingReader,
    edit_field,
    make_batch_reader,
    make_reader,
)

__all__ = [
    "NoDataAvailableError",
    "Reader",
    "TransformSpec",
    "WeightedSamplingReader",
    "edit_field",
    "make_batch_reader",
    "make_reader",
]

for _module in pkgutil.walk_packages(petastorm.__path__, f"{petastorm.__name__}."):
    sys.modules[_module.name.replace(petastorm.__name__, __name__, 1)] = import_module(_module.name)
