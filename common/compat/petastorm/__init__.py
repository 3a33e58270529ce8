"""Petastorm's API on parquetry's engine: keep the code, and install this instead of Petastorm, or change the import.

``from petastorm import make_reader`` becomes ``from parquetry.petastorm import make_reader``; the other modules move
the same way. After `install`, programs need no change. ``docs/petastorm-differences.md`` lists all differences and
their reasons.
"""

from .errors import NoDataAvailableError
from .module_names import install
from .reader import Reader, make_batch_reader, make_reader
from .transform import TransformSpec, edit_field
from .weighted_sampling_reader import WeightedSamplingReader

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
