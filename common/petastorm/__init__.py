"""Petastorm's public names and arguments on parquetry's engine: change the import, keep the code.

``from petastorm import make_reader`` becomes ``from parquetry.common.petastorm import make_reader``, and so for its
modules; ``petastorm.tf_utils`` and ``petastorm.pytorch`` are ``parquetry.tf_plugin.petastorm`` and
``parquetry.torch_plugin.petastorm``. What differs, and why, is in ``docs/migrating-from-petastorm.md``.
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
