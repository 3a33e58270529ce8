"""`Codec`: the contract between a field's value and the Parquet column that holds it.

A codec is an immutable value with a JSON form. It knows the Arrow type of its column, encodes one checked value, and
decodes one stored value into an array that the caller owns.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Protocol

import numpy as np
import pyarrow as pa

from ..base.errors import ParquetryError, SchemaError
from .plain import PlainFields

DAMAGE = (ValueError, OSError, MemoryError, OverflowError, IndexError)
"""The exceptions that a codec may raise for damaged bytes."""

_REGISTRY: dict[str, type[Codec]] = {}


class CodedField(Protocol):
    """The parts of a field that a codec may use. `UnischemaField` implements this."""

    @property
    def name(self) -> str:
        """The name, for messages."""

    @property
    def dtype(self) -> Any:
        """The dtype of one value."""

    @property
    def shape(self) -> tuple[int | None, ...]:
        """The shape of one value; ``None`` marks an axis of variable length."""

    @property
    def nullable(self) -> bool:
        """Whether values may be missing."""

    @property
    def is_fixed(self) -> bool:
        """Whether every value has the same shape."""

    @property
    def storage(self) -> Codec:
        """The codec that stores the field."""


class Codec(PlainFields):
    """Base class of all codecs. Subclasses are frozen dataclasses.

    Attributes:
        kind: the name in JSON.
        coded: whether a stored value is a byte string that must be decoded into an array; otherwise the column holds
            plain Arrow values (scalars, strings, lists).
        costly: whether decoding costs far more than a copy (compressed images, zip), so spreading it over workers pays.
        takes_encoded: whether a row may hold the ``bytes`` to store instead of an array.
        in_column: whether a field has a column of its own in the Parquet files.
        names_files: whether the first of the columns that stand for it names files.
    """

    refusal: ClassVar[type[ParquetryError]] = SchemaError
    kind: ClassVar[str]
    coded: ClassVar[bool] = True
    costly: ClassVar[bool] = False
    takes_encoded: ClassVar[bool] = False
    in_column: ClassVar[bool] = True
    names_files: ClassVar[bool] = False

    def __init_subclass__(cls, **kwargs: object) -> None:
        super().__init_subclass__(**kwargs)
        if "kind" in cls.__dict__:
            _REGISTRY[cls.kind] = cls

    @property
    def frees_interpreter(self) -> bool:
        """Whether costly decoding mostly runs without the GIL, so threads are enough."""
        return False

    @property
    def compound(self) -> bool:
        """Whether its columns have several parts (`engine.columns.batch.Compound`)."""
        return False

    def check_field(self, field: CodedField) -> None:
        """Raises `SchemaError` if this codec cannot hold the field's dtype and shape."""

    def arrow_type(self, field: CodedField) -> pa.DataType:
        """Returns the Arrow type of the stored column."""
        return pa.binary()

    def encode(self, field: CodedField, value: object) -> Any:
        """Returns the stored form of one value that `encoding.check_value` has accepted."""
        raise NotImplementedError

    def shape_of(self, field: CodedField, data: memoryview) -> tuple[int, ...]:
        """Reads the shape of the stored value from its header. Raises ``ValueError`` if the header is damaged."""
        raise NotImplementedError

    def check_stored(self, field: CodedField, data: memoryview) -> None:
        """Raises ``ValueError`` with a description of the value if a stored value's header does not fit the field."""
        shape = self.shape_of(field, data)
        if not fits_shape(shape, field.shape):
            raise ValueError(f"a value of shape {shape}")

    def decode_into(self, field: CodedField, data: memoryview, out: np.ndarray) -> None:
        """Decodes the value into ``out``, which has the value's shape and the field's dtype.

        Raises:
            ValueError: the bytes do not decode, or decode to another dtype or shape. The caller adds file and row.
        """
        raise NotImplementedError

    def to_json(self) -> dict[str, Any]:
        """Returns ``{"kind": ..., **parameters}``."""
        return {"kind": self.kind}

    @classmethod
    def from_parameters(cls, parameters: Mapping[str, Any]) -> Codec:
        """Builds the codec from the parameters in its JSON form (without ``kind``)."""
        return cls(**parameters)


def fits_shape(shape: Sequence[int | None], wanted: Sequence[int | None]) -> bool:
    """Whether a shape is the wanted one, in which ``None`` stands for any length of an axis."""
    return len(shape) == len(wanted) and all(w in (None, s) for s, w in zip(shape, wanted, strict=True))


def codec_from_json(value: Mapping[str, Any]) -> Codec:
    """Returns the codec that `Codec.to_json` described.

    Raises:
        SchemaError: this release does not know the codec.
    """
    parameters = dict(value)
    kind = parameters.pop("kind", None)
    if kind not in _REGISTRY:
        raise SchemaError(
            f"stored codec: expected one of {sorted(_REGISTRY)}, got {kind!r}. Update parquetry to read it, "
            "or import the module that defines this codec."
        )
    return _REGISTRY[kind].from_parameters(parameters)
