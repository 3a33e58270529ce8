"""Infers the fields of a schema from the features of records (TFRecord, WebDataset), and converts records to rows.

The input is a mapping from feature names to lists of bytes or arrays. The output is fields, and rows for
`DatasetWriter`. Encoded images are kept unchanged.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from ...base.errors import EncodeError, SchemaError
from ...schema.dtypes import is_bytes, is_string_like, is_text
from ...schema.field import Unischema, UnischemaField
from ...schema.image_files import JPEG_MAGIC, PNG_MAGIC, ImageHeader, read_header
from ...schema.images import CompressedImageCodec
from .tfrecord import Feature

_FORMATS = ("jpeg", "png", "webp")


def infer_fields(samples: Iterable[Mapping[str, Feature]]) -> list[UnischemaField]:
    """Infers fields from sample records, in the order in which the names first appear.

    A feature with one value in every record becomes a scalar, and one with several a list. Arrays with more axes may
    vary in size along each axis. Bytes become images if all of them are images, and text if all are UTF-8. A field that
    is missing in some records is nullable.

    Raises:
        SchemaError: a feature has values of different kinds.
    """
    by_name: dict[str, list[Feature]] = {}
    count = 0
    for sample in samples:
        count += 1
        for name, feature in sample.items():
            by_name.setdefault(name, []).append(feature)
    return [_infer(name, features, nullable=len(features) < count) for name, features in by_name.items()]


def _infer(name: str, features: Sequence[Feature], *, nullable: bool) -> UnischemaField:
    arrays = [feature for feature in features if isinstance(feature, np.ndarray)]
    if arrays and (len(arrays) < len(features) or len({(array.dtype, array.ndim) for array in arrays}) > 1):
        raise SchemaError(
            f"feature '{name}': expected values of one kind in all records, got several. Declare it with "
            f"fields=[UnischemaField('{name}', ...)]."
        )
    single = all(len(feature) == 1 for feature in features if isinstance(feature, list) or feature.ndim == 1)
    shape: tuple[int | None, ...] = () if single else (None,)
    if arrays:
        shape = (None,) * arrays[0].ndim if arrays[0].ndim != 1 else shape
        return UnischemaField(name, arrays[0].dtype, shape, nullable=nullable)
    contents = [content for feature in features for content in feature]
    image = _image(name, contents, nullable=nullable) if single else None
    return image or UnischemaField(name, str if all(map(_is_text, contents)) else bytes, shape, nullable=nullable)


def _image(name: str, contents: Sequence[bytes], *, nullable: bool) -> UnischemaField | None:
    """Infers an image field if all contents are images: gray if all are, with an alpha channel if all have one."""
    plain = UnischemaField(name, bytes)
    headers: list[ImageHeader] = []
    for content in contents:
        if not (content.startswith((JPEG_MAGIC, PNG_MAGIC)) or content[8:12] == b"WEBP"):
            return None
        try:
            headers.append(read_header(plain, memoryview(content)))
        except ValueError:
            return None
    formats, modes = {header.format for header in headers}, {header.mode for header in headers}
    if not headers or not formats <= set(_FORMATS):
        return None
    kind = formats.pop() if len(formats) == 1 else "png"
    dtype, channels = "uint8", 3
    if modes <= {"L;16"}:
        dtype, channels = "uint16", 1
    elif modes <= {"1", "L"} and kind != "webp":
        channels = 1
    elif modes <= {"RGBA"} and kind != "jpeg":
        channels = 4
    shape = (None, None) if channels == 1 else (None, None, channels)
    return UnischemaField(name, dtype, shape, CompressedImageCodec(kind, convert=True), nullable=nullable)


def _is_text(content: bytes) -> bool:
    try:
        content.decode()
    except UnicodeDecodeError:
        return False
    return True


def described_fields(description: object, inferred: Sequence[UnischemaField]) -> list[UnischemaField]:
    """Resolves a description of the fields to convert against the inferred fields.

    Args:
        description: ``None`` for all inferred fields; names and `UnischemaField` values; or a TensorFlow feature
            description (``tf.io.FixedLenFeature`` or ``VarLenFeature`` by name). Byte strings in the latter keep their
            inferred type.

    Raises:
        SchemaError: no sample record has a named feature, or a feature description has another type.
    """
    known = {field.name: field for field in inferred}
    if description is None:
        return list(inferred)
    if isinstance(description, Mapping):
        return [_of_tensorflow(str(name), feature, known.get(str(name))) for name, feature in description.items()]
    items = [description] if isinstance(description, str | UnischemaField) else list(description)  # type: ignore[call-overload]
    missing = [name for name in items if isinstance(name, str) and name not in known]
    if missing:
        raise SchemaError(f"fields: expected features of the first records, {sorted(known)}, got {missing}.")
    return [known[item] if isinstance(item, str) else item for item in items]


def _of_tensorflow(name: str, feature: Any, inferred: UnischemaField | None) -> UnischemaField:
    dtype = getattr(getattr(feature, "dtype", None), "as_numpy_dtype", None)
    if isinstance(feature, UnischemaField) and feature.name == name:
        return feature
    has_parts = hasattr(feature, "index_key") or bool(getattr(feature, "partitions", False))
    if isinstance(feature, UnischemaField) or dtype is None or has_parts:
        raise SchemaError(
            f"feature '{name}': expected tf.io.FixedLenFeature, FixedLenSequenceFeature, VarLenFeature or a "
            f"UnischemaField of this name, got {feature!r}."
        )
    shape = tuple(feature.shape) if hasattr(feature, "shape") else (None,)
    if hasattr(feature, "allow_missing"):  # a sequence, padded when it is read
        return UnischemaField(name, bytes if np.dtype(dtype) == object else np.dtype(dtype), (None, *shape))
    if np.dtype(dtype) == object:
        if inferred is not None and shape == () and (is_string_like(inferred.dtype) or inferred.storage.takes_encoded):
            return inferred if feature.default_value is None else inferred.replace(nullable=False)
        return UnischemaField(name, bytes, shape)
    return UnischemaField(name, np.dtype(dtype), shape)


def default_features(description: object, schema: Unischema) -> dict[str, Feature]:
    """Returns what stands for a feature that a record lacks or has no values of, by field.

    It is the ``default_value`` of a ``tf.io.FixedLenFeature``, and no values for features of variable length.

    Raises:
        SchemaError: a default value does not fit its feature.
    """
    features: dict[str, Feature] = {}
    for name, feature in description.items() if isinstance(description, Mapping) else ():
        field = schema[str(name)]
        is_variable = hasattr(feature, "allow_missing") or not hasattr(feature, "default_value")
        default = 0 if is_variable else feature.default_value  # 0 times any value
        if isinstance(feature, UnischemaField) or default is None:
            continue
        try:
            features[field.name] = _filled(field, default)
        except (TypeError, ValueError, EncodeError) as error:
            raise SchemaError(
                f"feature '{name}': expected a default value of {field.dtype} and shape {field.shape}, got {default!r}."
            ) from error
    return features


def _filled(field: UnischemaField, value: object) -> Feature:
    shape = () if field.storage.takes_encoded else tuple(axis or 0 for axis in field.shape)
    if is_string_like(field.dtype) or field.storage.takes_encoded:
        texts = np.broadcast_to(np.array(value, dtype=object), shape).ravel().tolist()
        return [text if isinstance(text, bytes) else str(text).encode() for text in texts]
    return _exactly(field, np.broadcast_to(np.asarray(value), shape).ravel())


def to_row(
    schema: Unischema,
    features: Mapping[str, Feature],
    sources: Mapping[str, Sequence[str]],
    defaults: Mapping[str, Feature],
) -> dict[str, Any]:
    """Converts a record to a row of field values. The writer validates them.

    Args:
        sources: the features that each field may come from.
        defaults: what stands for a missing or empty feature, by field.

    Raises:
        EncodeError: a feature for a scalar does not have exactly one value, its bytes do not fit the field, or the
            record has several features for one field.
    """
    row = {}
    for field in schema:
        present = [name for name in sources[field.name] if name in features]
        if len(present) > 1:
            raise EncodeError(f"field '{field.name}': expected one of its features in each record, got {present}.")
        feature = features[present[0]] if present else None
        if field.name in defaults and (feature is None or _is_empty(feature)):
            feature = defaults[field.name]
        row[field.name] = None if feature is None else _value(field, feature)
    return row


def _is_empty(feature: Feature) -> bool:
    return (len(feature) if isinstance(feature, list) else feature.size) == 0


def _value(field: UnischemaField, feature: Feature) -> Any:
    if isinstance(feature, np.ndarray) and feature.ndim != 1:
        return feature
    if field.shape == () or field.storage.takes_encoded:
        if not len(feature) and field.nullable:
            return None
        if len(feature) != 1:
            raise EncodeError(f"field '{field.name}': expected one value, got {len(feature)}.")
        value = feature[0]
        if is_text(field.dtype) and isinstance(value, bytes):
            return _text(field, value)
        return bool(value) if field.dtype == np.bool_ and value in (0, 1) else value
    if isinstance(feature, list):
        if is_text(field.dtype):
            return [_text(field, value) for value in feature]
        return feature if is_bytes(field.dtype) else _raw(field, feature)
    return _shaped(field, feature if field.dtype == feature.dtype else _exactly(field, feature))


def _exactly(field: UnischemaField, values: np.ndarray) -> np.ndarray:
    with np.errstate(all="ignore"):
        result: np.ndarray = values.astype(field.dtype)
    narrowed = field.dtype.kind == "f" and values.dtype.kind == "f"  # rounded, but not beyond the largest number
    held = np.isfinite(result) | ~np.isfinite(values) if narrowed else result.astype(values.dtype) == values
    if not held.all():
        raise EncodeError(f"field '{field.name}': expected values that {field.dtype} holds, got {values[:5].tolist()}.")
    return result


def _text(field: UnischemaField, value: bytes) -> str:
    try:
        return value.decode()
    except UnicodeDecodeError:
        raise EncodeError(f"field '{field.name}': expected text in UTF-8, got {value[:20]!r}.") from None


def _raw(field: UnischemaField, feature: Sequence[bytes]) -> np.ndarray:
    """Decodes an array whose bytes are stored as one feature, like ``tf.io.decode_raw``."""
    if len(feature) != 1 or is_string_like(field.dtype) or len(feature[0]) % field.dtype.itemsize:
        raise EncodeError(f"field '{field.name}': expected {field.dtype} values or their bytes, got byte strings.")
    return _shaped(field, np.frombuffer(feature[0], field.dtype.newbyteorder("<")).astype(field.dtype))


def _shaped(field: UnischemaField, values: np.ndarray) -> np.ndarray:
    """Reshapes the values to the shape of the field. One axis may have any length."""
    shape = [-1 if axis is None else axis for axis in field.shape]
    try:
        return values.reshape(shape)
    except ValueError:
        raise EncodeError(f"field '{field.name}': expected shape {field.shape}, got {values.size} values.") from None
