"""`CodedColumn`: values in a loaded block that a codec decodes, each directly into its place in the batch."""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Sequence
from functools import partial
from typing import Any

import numpy as np
import pyarrow as pa

from ...base.errors import DecodeError, ParquetryError, ResourceError, limit_met
from ...base.native.jpeg import Box
from ...base.process.forks import cached_property
from ...dataset.row_groups import MOST_VALUES
from ...schema.codec import DAMAGE, Codec, fits_shape
from ...schema.codecs import NdarrayCodec
from ...schema.dtypes import delivered_dtype, is_bytes, is_string_like
from ...schema.field import UnischemaField
from ...schema.images import CompressedImageCodec
from ..read.file_cells import Part
from .batch import Column, Dense, Ragged, Strings
from .list_column import strings_of
from .plain_numbers import take_valid, validity_of
from .protocols import DecodeContext
from .shared_rows import Places, SharedRows
from .stored_values import IntactRows, JpegFiles, StoredValues, can_decode

_DECODER_COPIES = 4  # a decoder may need this many times the memory of a value


class CodedColumn:
    """Byte strings that the field's codec decodes, each directly into its place in the batch."""

    def __init__(
        self,
        field: UnischemaField,
        codec: Codec,
        parts: Sequence[Part],
        context: DecodeContext,
        intact: Callable[[], IntactRows] | None = None,
    ) -> None:
        self._max_bytes = context.max_value_bytes
        self._find_intact = intact
        self._item_bytes = 1 if is_string_like(field.dtype) else delivered_dtype(field.dtype).itemsize
        self._field = field
        self._codec = codec
        self._describe = context.describe
        self._shared_rows = SharedRows() if context.reuse else None
        self._finished: dict[Hashable, SharedRows] = {}
        self._stored = StoredValues(parts)
        self._valid = validity_of(parts)

    def gather(self, rows: np.ndarray, out: np.ndarray | None) -> Column:
        valid = take_valid(self._valid, rows)
        if is_string_like(self._field.dtype):
            return self._gather_strings(rows, valid)
        if self._field.is_fixed:
            assert out is not None
            self._decode_all(rows, out, valid)
            return Dense(out, valid)
        return self._gather_ragged(rows, valid)

    @property
    def field(self) -> UnischemaField:
        """The stored field."""
        return self._field

    @cached_property
    def jpegs(self) -> JpegFiles | None:
        """The images, if they may be JPEG files that the compiled core decodes; ``None`` for other columns."""
        if not can_decode(self._field, self._codec):
            return None
        count = len(self._stored)
        unknown = IntactRows([None], [np.arange(count)], [count])
        return JpegFiles(self._stored, intact=unknown if self._find_intact is None else self._find_intact())

    @property
    def reused(self) -> bool:
        """Whether rows are requested several times, so that results are kept."""
        return self._shared_rows is not None

    def finished(self, name: Hashable) -> SharedRows:
        """Returns the store of rows to which the operation ``name`` has already been applied."""
        return self._finished.setdefault(name, SharedRows())

    def valid(self, rows: np.ndarray) -> np.ndarray | None:
        """Returns which of the given rows are not null; ``None`` means all of them."""
        return take_valid(self._valid, rows)

    def shape(self, row: int) -> tuple[int, ...]:
        """Returns the shape of one value."""
        return self._field.shape if self._field.is_fixed else self._checked_shape(row)  # type: ignore[return-value]

    def decode(self, row: int, out: np.ndarray, *, keep: bool = True) -> None:
        """Decodes one value into ``out``. If rows are reused and ``keep`` is set, each row is decoded at most once.

        Raises:
            DecodeError: the value cannot be decoded. The error names file, row group and row.
        """
        self._decode_to(row, Places([out], [0]), keep=keep)

    def decode_reduced(self, row: int, factor: int, out: np.ndarray) -> bool:
        """Decodes one image at ``1 / factor`` of its size (rounded up) into ``out``.

        Returns False if the codec cannot do that.

        Raises:
            DecodeError: the image cannot be decoded. The error names file, row group and row.
        """
        if not isinstance(self._codec, CompressedImageCodec):
            return False
        data = self._stored.bytes_of(row)
        try:
            return self._codec.decode_reduced_into(data, factor, out)
        except DAMAGE as error:
            raise self._undecodable(row, error, out.nbytes) from error

    def decode_part(self, row: int, size: tuple[int, int], factor: int, box: Box, out: np.ndarray) -> bool:
        """Decodes a part of one image, as `CompressedImageCodec.decode_part_into` does. Damage raises no error."""
        if not isinstance(self._codec, CompressedImageCodec):
            return False
        return self._codec.decode_part_into(self._stored.bytes_of(row), size, factor, box, out)

    def _decode_to(self, row: int, places: Places, *, keep: bool = True) -> None:
        decode = partial(self._codec.decode_into, self._field, self._stored.bytes_of(row))
        try:
            if self._shared_rows is None or not keep:
                places.decode(decode)
            else:
                self._shared_rows.copy_into(row, places, decode)
        except DAMAGE as error:
            raise self._undecodable(row, error, places.first.nbytes) from error

    def _decode_all(self, rows: np.ndarray, out: Any, valid: np.ndarray | None) -> None:
        done = self._decode_jpegs(rows, out, valid) if isinstance(out, np.ndarray) else None
        if done is not None and done.all():
            return
        decode, field = self._codec.decode_into, self._field
        if isinstance(out, np.ndarray) and out.ndim == 1:
            out = [out[number, ...] for number in range(len(out))]  # views of the scalars, not their values
        numbers: dict[int, list[int]] = {}  # of each row: n-gram windows share rows, and draws repeat them
        for number, row in enumerate(rows.tolist()):
            if valid is not None and not valid[number]:
                out[number][...] = 0
            elif done is None or not done[number]:
                numbers.setdefault(row, []).append(number)
        busy: list[tuple[int, Places]] = []  # rows that another thread is decoding
        for (row, its), data in zip(numbers.items(), self._stored.each(np.fromiter(numbers, np.int64)), strict=True):
            places = Places(out, its)
            decode_value = partial(decode, field, data)
            try:
                if self._shared_rows is None:
                    places.decode(decode_value)
                elif not self._shared_rows.copy_into(row, places, decode_value, wait=False):
                    busy.append((row, places))
            except DAMAGE as error:
                raise self._undecodable(row, error, places.first.nbytes) from error
        for row, places in busy:
            self._decode_to(row, places)

    def _decode_jpegs(self, rows: np.ndarray, out: np.ndarray, valid: np.ndarray | None) -> np.ndarray | None:
        """Decodes images of one size that are JPEG files. Returns which were decoded; ``None`` for other columns."""
        if self.reused or out.dtype != np.uint8 or not out.flags.c_contiguous or self.jpegs is None:
            return None
        places = np.arange(len(rows)) if valid is None else np.flatnonzero(valid)
        sizes = np.tile(np.array(out.shape[1:3], np.int64), (len(places), 1))
        done = np.zeros(len(rows), bool)
        images = out.reshape(*out.shape[:3], -1) if out.size else out[..., None]
        done[places] = self.jpegs.decode(rows[places], images, places, sizes=sizes)
        return done

    def _gather_ragged(self, rows: np.ndarray, valid: np.ndarray | None) -> Ragged:
        field = self._field
        shapes = _empty_shapes(field, len(rows))
        for number, row in enumerate(rows.tolist()):
            if valid is None or valid[number]:
                shapes[number] = self._checked_shape(row)
        sizes = np.prod(shapes, axis=1, dtype=np.int64)
        ends = np.cumsum(sizes)
        if len(rows):
            total, limit = int(ends[-1]) * self._item_bytes, MOST_VALUES * self._max_bytes
            self._check_bytes(int(rows[0]), total, limit, f"a batch of {len(rows)} values from here on")
        values = np.empty(int(ends[-1]) if len(ends) else 0, delivered_dtype(field.dtype))
        places = [values[end - size : end].reshape(shape) for end, size, shape in zip(ends, sizes, shapes, strict=True)]
        self._decode_all(rows, places, valid)
        return Ragged(shapes, values, (len(rows),), valid)

    def _checked_shape(self, row: int) -> tuple[int, ...]:
        data = self._stored.bytes_of(row)
        try:
            shape = self._codec.shape_of(self._field, data)
        except DAMAGE as error:
            raise self._undecodable(row, error, len(data)) from error
        self._check_shape(row, shape)
        return shape

    def _check_shape(self, row: int, shape: tuple[int, ...]) -> None:
        expected = self._field.shape
        if not fits_shape(shape, expected):
            raise self._failed(row, ValueError(f"expected shape {expected}, got {shape}"))
        self._check_bytes(row, math.prod(shape) * self._item_bytes, self._max_bytes, f"a value of shape {shape}")

    def _check_bytes(self, row: int, size: int, limit: int, what: str) -> None:
        if size > limit:
            text = f"expected at most {limit} bytes, got {what}, which takes {size}; max_value_bytes= allows more"
            raise self._failed(row, ValueError(text))

    def _gather_strings(self, rows: np.ndarray, valid: np.ndarray | None) -> Column:
        assert isinstance(self._codec, NdarrayCodec)
        shapes = _empty_shapes(self._field, len(rows))
        items: list[bytes] = []
        for number, row in enumerate(rows.tolist()):
            if valid is not None and not valid[number]:
                items += [b""] * int(np.prod([axis or 0 for axis in self._field.shape], dtype=np.int64))
                continue
            data = self._stored.bytes_of(row)
            try:
                header = self._codec.header_of(data)
                self._check_shape(row, header.shape)
                self._check_bytes(row, header.data_bytes, self._max_bytes, f"a value of shape {header.shape}")
                array = self._codec.decode_strings(self._field, data)
                if array.dtype.kind == "S" and not is_bytes(self._field.dtype):
                    for item in array.reshape(-1).tolist():
                        item.decode("utf-8")  # invalid UTF-8 is an error of this row
            except DAMAGE as error:
                raise self._undecodable(row, error, len(data)) from error
            shapes[number] = array.shape
            flat = array.reshape(-1).tolist()
            items += [item.encode("utf-8") if isinstance(item, str) else item for item in flat]
        strings = strings_of(pa.array(items, pa.large_binary()), (len(items),), None)
        if self._field.is_fixed:
            shape = (len(rows), *(axis or 0 for axis in self._field.shape))
            return Strings(strings.offsets, strings.data, shape, valid)
        return Ragged(shapes, strings, (len(rows),), valid)

    def _undecodable(self, row: int, error: Exception, num_bytes: int) -> ParquetryError:
        """Returns the error for a value of about ``num_bytes`` bytes: a `ResourceError` if memory ran out."""
        limit = limit_met(error, _DECODER_COPIES * num_bytes)
        if not limit:
            return self._failed(row, error)
        why = f" ({error})" if str(error) else ""
        return ResourceError(
            f"field '{self._field.name}', {self._describe(row)}: cannot decode the value{why}. {limit}"
        )

    def _failed(self, row: int, error: Exception) -> DecodeError:
        return DecodeError(
            f"field '{self._field.name}', {self._describe(row)}: {type(self._codec).__name__} could not decode the "
            f"stored value: {str(error).rstrip('.')}."
        )


def _empty_shapes(field: UnischemaField, rows: int) -> np.ndarray:
    """The shapes of nulls: nothing along variable axes, and the length of the others."""
    return np.tile(np.array([axis or 0 for axis in field.shape], np.int64), (rows, 1))
