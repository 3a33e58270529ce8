"""From parquetry's schemas to Petastorm's form of them."""

from __future__ import annotations

import numpy as np

from ..schema import codecs as core_codecs
from ..schema.codecs import ListCodec
from ..schema.field import Unischema as CoreUnischema
from ..schema.field import UnischemaField as CoreField
from ..schema.images import CompressedImageCodec as CoreImageCodec
from .codecs import (
    CompressedImageCodec,
    CompressedNdarrayCodec,
    DataframeColumnCodec,
    NdarrayCodec,
    ScalarCodec,
    StoredCodec,
)
from .unischema import Unischema, UnischemaField


def from_parquetry(schema: CoreUnischema) -> Unischema:
    """A stored schema in Petastorm's form."""
    return Unischema(schema.name, [field_from_parquetry(field) for field in schema])


def field_from_parquetry(field: CoreField) -> UnischemaField:
    """A stored field in Petastorm's form."""
    dtype = field.dtype.type if isinstance(field.dtype, np.dtype) else field.dtype
    return UnischemaField(field.name, dtype, field.shape, _codec_from_parquetry(field), field.nullable)


def _codec_from_parquetry(field: CoreField) -> DataframeColumnCodec | None:
    codec = field.codec
    if codec is None or isinstance(codec, ListCodec):
        return None if not field.storage.coded else StoredCodec(field.storage)
    if isinstance(codec, core_codecs.ScalarCodec):
        return ScalarCodec(codec.arrow_type(field))
    if type(codec) is core_codecs.CompressedNdarrayCodec:
        return CompressedNdarrayCodec()
    if type(codec) is core_codecs.NdarrayCodec:
        return NdarrayCodec()
    if isinstance(codec, CoreImageCodec):
        return CompressedImageCodec(codec.image_codec, codec.quality)
    return StoredCodec(codec)
