"""Petastorm's API on parquetry's engine: change the import, keep the code.

``from petastorm import make_reader`` becomes ``from parquetry.petastorm import make_reader``; the other modules
move the same way. ``petastorm.tf_utils`` and ``petastorm.pytorch`` become ``parquetry.tf_plugin.petastorm`` and
``parquetry.torch_plugin.petastorm``. ``docs/migrating-from-petastorm.md`` lists all differences and their reasons.
"""

from .errors import NoDataAvailableError
from .reader import Reader, make_batch_reader, make_reader
from .transform import TransformSpec, edit_field
from .weighted_sampling_reader import WeightedSamplingReader

__all__ = [
    "NoDataAvailableError",
    "Reader",
    "TransformSpec",
    "WeightedSamplingReader",
    "edit_field",
    "make_batch_reader",
    "make_reader",
]
