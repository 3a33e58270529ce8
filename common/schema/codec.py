"""`Codec`: the contract between a field's value and the Parquet column that holds it.

A codec is an immutable value with a JSON form. It knows the Arrow type of its column, how to encode one checked value,
and how to decode one stored value into an array that somebody else owns.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, Protocol

import numpy as np
import pyarrow as pa

from ..errors import ParquetryError, SchemaError
from .plain import PlainFields

DAMAGE = (ValueError, OSError, MemoryError, OverflowError, IndexError)
"""What a codec may raise for bytes that are not what they should be."""

_REGISTRY: dict[str, type[Codec]] = {}


class CodedField(Protocol):
    """What a codec knows of the field that it stores; `UnischemaField` is one."""

    @property
    def name(self) -> str:
        """For messages."""

    @property
    def dtype(self) -> Any:
        """Of one value."""

    @property
    def shape(self) -> tuple[int | None, ...]:
        """Of one value; ``None`` marks an axis of variable length."""

    @property
    def nullable(self) -> bool:
        """Whether a row may have no value."""

    @property
    def is_fixed(self) -> bool:
        """Whether every value has the same shape."""

    @property
    def storage(self) -> Codec:
        """The codec that stores it."""


class Codec(PlainFields):
    """Base of all codecs; subclasses are frozen dataclasses.

    Attributes:
        kind: the name in JSON.
        coded: whether a stored value is a byte string that `decode` must turn into an array; otherwise the column holds
            plain Arrow values (scalars, strings, lists).
        costly: whether decoding costs far more than a copy (compressed images, zip), so that it pays to spread it.
        takes_encoded: whether a row may be written as the ``bytes`` that are to be stored.
    """

    refusal: ClassVar[type[ParquetryError]] = SchemaError
    kind: ClassVar[str]
    coded: ClassVar[bool] = True
    costly: ClassVar[bool] = False
    takes_encoded: ClassVar[bool] = False

    def __init_subclass__(cls, **kwargs: object) -> None:
        super().__init_subclass__(**kwargs)
        if "kind" in cls.__dict__:
            _REGISTRY[cls.kind] = cls

    @property
    def frees_interpreter(self) -> bool:
        """Whether nearly all of a costly decoding runs without the interpreter lock, so that threads are enough."""
        return False

    @property
    def compound(self) -> bool:
        """Whether a column of it has several parts (`engine.columns.batch.Compound`)."""
        return False

    def check_field(self, field: CodedField) -> None:
        """Raises `SchemaError` if this codec cannot hold the field's dtype and shape."""

    def arrow_type(self, field: CodedField) -> pa.DataType:
        """The Arrow type of the stored column."""
        return pa.binary()

    def encode(self, field: CodedField, value: object) -> Any:
        """The stored form of one value that is already known to fit the field (see `encoding.check_value`)."""
        raise NotImplementedError

    def shape_of(self, field: CodedField, data: memoryview) -> tuple[int, ...]:
        """The shape of the stored value, read from its header; raises `DecodeError`-compatible ``ValueError``."""
        raise NotImplementedError

    def check_stored(self, field: CodedField, data: memoryview) -> None:
        """Raises ``ValueError``, which says what was found, unless a stored value's header fits the field."""
        shape = self.shape_of(field, data)
        if len(shape) != len(field.shape) or any(w not in (None, s) for w, s in zip(field.shape, shape, strict=True)):
            raise ValueError(f"a value of shape {shape}")

    def decode_into(self, field: CodedField, data: memoryview, out: np.ndarray) -> None:
        """Writes the value into ``out``, which has the value's shape and the field's dtype.

        Raises:
            ValueError: bytes that do not decode, or decode to another dtype or shape; the caller adds file and row.
        """
        raise NotImplementedError

    def to_json(self) -> dict[str, Any]:
        """``{"kind": ..., **parameters}``."""
        return {"kind": self.kind}

    @classmethod
    def from_parameters(cls, parameters: Mapping[str, Any]) -> Codec:
        """Builds the codec from the JSON form's parameters (without ``kind``)."""
        return cls(**parameters)


def codec_from_json(value: Mapping[str, Any]) -> Codec:
    """The codec that `Codec.to_json` described.

    Raises:
        SchemaError: a codec that this release does not know.
    """
    parameters = dict(value)
    kind = parameters.pop("kind", None)
    if kind not in _REGISTRY:
        raise SchemaError(
            f"stored codec: expected one of {sorted(_REGISTRY)}, got {kind!r}. Update parquetry to read it."
        )
    return _REGISTRY[kind].from_parameters(parameters)
