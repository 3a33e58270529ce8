"""What a row is: fields, codecs, Arrow types, and their JSON form."""

from .codec import Codec
from .codecs import CompressedNdarrayCodec, ListCodec, NdarrayCodec, ScalarCodec, TensorCodec
from .field import Unischema, UnischemaField
from .images import CompressedImageCodec
from .video import VideoCodec, VideoReference

__all__ = [
    "Codec",
    "CompressedImageCodec",
    "CompressedNdarrayCodec",
    "ListCodec",
    "NdarrayCodec",
    "ScalarCodec",
    "TensorCodec",
    "Unischema",
    "UnischemaField",
    "VideoCodec",
    "VideoReference",
]
