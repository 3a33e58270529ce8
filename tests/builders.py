"""Small datasets with known values, and files, row groups, partitions and nulls exactly where a test needs them.

A dataset is a list of files, a file a list of row groups, a row group a list of rows. `build` writes them and returns a
`Built`, which holds the rows as a reader should return them, each with its file and row group.
"""

from __future__ import annotations

import atexit
import datetime
import decimal
import os
import shutil
import tempfile
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from parquetry.common import (
    CompressedImageCodec,
    CompressedNdarrayCodec,
    ListCodec,
    NdarrayCodec,
    Pipeline,
    TensorCodec,
    Unischema,
    UnischemaField,
    VideoReference,
)
from parquetry.common.schema.encoding import encode_rows
from parquetry.common.write.file_format import arrow_schema, values_schema


@contextmanager
def directory() -> Iterator[Path]:
    """Makes a directory for one example of hypothesis, because all examples of a test share its ``tmp_path``."""
    with tempfile.TemporaryDirectory() as path:
        yield Path(path)


@dataclass(frozen=True)
class StoredRow:
    """A stored row: its values in plain Python form, and its position."""

    values: dict[str, Any]
    file: str
    row_group: int


@dataclass(frozen=True, repr=False)
class Built:
    """A dataset on disk and its rows, in storage order."""

    url: str
    schema: Unischema
    rows: tuple[StoredRow, ...]

    def __repr__(self) -> str:
        return f"Built({self.url!r}, {len(self.rows)} rows)"

    def _repr_pretty_(self, printer: Any, cycle: bool) -> None:
        printer.text(repr(self))  # hypothesis would print every row

    @property
    def plain(self) -> list[dict[str, Any]]:
        """Returns the values of all rows."""
        return [dict(row.values) for row in self.rows]

    def pipeline(self, *fields: str, workers: int = 2, **options: Any) -> Pipeline:
        """Returns a pipeline over the dataset, in threads by default."""
        options = {"executor": "threads", **options}
        return Pipeline(self.url, list(fields) or None, workers=workers, **options)


@dataclass(frozen=True)
class Kind:
    """A kind of field, with a value for every row number; ``nulls`` says for which numbers it is null."""

    field: UnischemaField
    value: Callable[[int], Any]
    nulls: Callable[[int], bool] = lambda number: False

    def of(self, number: int) -> Any:
        """Returns the value of row ``number``."""
        return None if self.nulls(number) else self.value(number)


def _ramp(shape: tuple[int, ...], dtype: Any, number: int) -> np.ndarray:
    return (np.arange(int(np.prod(shape))) * 7 + number).astype(dtype).reshape(shape)


def _strings(number: int, count: int) -> list[str]:
    return [f"s{number}.{k}" + "é" * (k % 2) for k in range(count)]


_MOVIES = Path(tempfile.gettempdir(), f"parquetry-movies-{os.getpid()}")
_MOVIE_FRAMES = 500


@cache
def _movie() -> np.ndarray:
    """Makes a video for each drive, all alike. Returns the frames as PyAV decodes them, uint8 ``[n, 16, 16, 3]``."""
    import av

    _MOVIES.mkdir()
    atexit.register(shutil.rmtree, _MOVIES)
    with av.open(str(_MOVIES / "d0"), "w", format="mp4") as target:
        stream = target.add_stream("libx264", 30, options={"g": "5", "threads": "1"})
        stream.width = stream.height = 16
        stream.pix_fmt = "yuv420p"
        for number in range(_MOVIE_FRAMES):
            pixels = np.random.default_rng(number).integers(0, 256, (2, 2, 3), np.uint8).repeat(8, 0).repeat(8, 1)
            target.mux(stream.encode(av.VideoFrame.from_ndarray(pixels, format="rgb24")))
        target.mux(stream.encode(None))
    for number in range(1, _MOVIE_FRAMES // 10 + 1):
        (_MOVIES / f"d{number}").hardlink_to(_MOVIES / "d0")
    with av.open(str(_MOVIES / "d0")) as source:
        return np.stack([frame.to_ndarray(format="rgb24") for frame in source.decode(video=0)])


F = UnischemaField
_GROUND = datetime.datetime(2021, 3, 4)

KINDS: dict[str, Kind] = {
    kind.field.name: kind
    for kind in [
        Kind(F("id", np.int64), lambda n: n),
        Kind(F("drive", str), lambda n: f"d{n // 10}"),
        Kind(F("ts", np.int64), lambda n: 100 * (n - (n % 7 == 3)) + 500 * (n // 5)),
        Kind(F("speed", np.float32, nullable=True), lambda n: n / 2, lambda n: n % 5 == 0),
        Kind(F("odd", np.float64), lambda n: float("nan") if n % 4 == 0 else n * 0.5),
        Kind(F("flag", np.bool_, nullable=True), lambda n: n % 2 == 0, lambda n: n % 7 == 3),
        Kind(F("small", np.uint16), lambda n: 65535 - n),
        Kind(F("half", np.float16), lambda n: np.float16(n / 4)),
        Kind(F("label", str, nullable=True), lambda n: f"l{n}", lambda n: n % 3 == 0),
        Kind(F("raw", bytes), lambda n: bytes([n % 256, 0, 255])),
        Kind(
            F("when", "datetime64[us]", nullable=True),
            lambda n: _GROUND + n * datetime.timedelta(hours=1),
            lambda n: n % 6 == 1,
        ),
        Kind(F("price", decimal.Decimal), lambda n: decimal.Decimal(n) / 8),
        Kind(F("image", np.uint8, (4, 3, 3), CompressedImageCodec("png")), lambda n: _ramp((4, 3, 3), np.uint8, n)),
        Kind(F("vector", np.float32, (3,), TensorCodec()), lambda n: _ramp((3,), np.float32, n)),
        Kind(
            F("matrix", np.int32, (2, 2), NdarrayCodec(), nullable=True),
            lambda n: _ramp((2, 2), np.int32, n),
            lambda n: n % 4 == 2,
        ),
        Kind(F("points", np.float32, (None, 3), NdarrayCodec()), lambda n: _ramp((n % 4, 3), np.float32, n)),
        Kind(
            F("packed", np.int16, (None,), CompressedNdarrayCodec(), nullable=True),
            lambda n: _ramp((n % 3,), np.int16, n),
            lambda n: n % 5 == 2,
        ),
        Kind(F("level", np.float64, (), CompressedNdarrayCodec()), lambda n: np.float64(n) / 16),
        Kind(F("tags", str, (None,)), lambda n: _strings(n, n % 3)),
        Kind(F("codes", np.int32, (None,), nullable=True), lambda n: list(range(n % 4)), lambda n: n % 6 == 4),
        Kind(F("pair", np.int16, (2,), nullable=True), lambda n: [n, -n], lambda n: n % 8 == 5),
        Kind(F("names", str, (2,), nullable=True), lambda n: _strings(n, 2), lambda n: n % 4 == 1),
        Kind(
            F("words", str, (2,), NdarrayCodec(), nullable=True),
            lambda n: np.array(_strings(n, 2)),
            lambda n: n % 5 == 4,
        ),
        Kind(F("grid", np.int8, (None, 2), ListCodec()), lambda n: _ramp((n % 3, 2), np.int8, n)),
        # Two lists of equal length with up to nine values. Tokens of different rows differ.
        Kind(F("tokens", np.int32, (None,)), lambda n: [16 * (n + 1) + k for k in range(n * 7 % 10)]),
        Kind(F("marks", np.int16, (None,)), lambda n: [(n + 3 * k) % 7 for k in range(n * 7 % 10)]),
        Kind(
            F("frame", np.uint8, (16, 16, 3), VideoReference(file="drive", frame="id", root=str(_MOVIES))),
            lambda n: _movie()[n],
        ),
    ]
}
TOKEN_FIELDS = ("tokens", "marks")
FRAME_FIELDS = ("frame",)
"""Fields without a column, which need PyAV."""
ALL_FIELDS = tuple(name for name in KINDS if name not in (*TOKEN_FIELDS, *FRAME_FIELDS))
STRICT_FIELDS = tuple(name for name in ALL_FIELDS if not KINDS[name].field.nullable)
"""Fields without nulls, which frameworks that cannot represent nulls can read."""


NARROWER: dict[str, pa.DataType] = {
    "id": pa.int32(),
    "drive": pa.dictionary(pa.int32(), pa.string()),
    "ts": pa.int16(),
    "odd": pa.float32(),
    "small": pa.uint16(),
    "label": pa.dictionary(pa.int32(), pa.string()),
    "raw": pa.large_binary(),
    "price": pa.decimal128(12, 3),
    "tags": pa.large_list(pa.large_string()),
    "codes": pa.list_(pa.int8()),
    "tokens": pa.large_list(pa.int16()),
}
"""Narrower types in which older files may store some fields, with the same values."""


def make_row(number: int, names: Sequence[str] = ALL_FIELDS) -> dict[str, Any]:
    """Returns row ``number`` in the form a writer takes."""
    return {name: KINDS[name].of(number) for name in names}


def build(
    directory: Path,
    files: Sequence[Sequence[int]],
    *,
    names: Sequence[str] = ALL_FIELDS,
    partition: str | None = None,
    change: Callable[[dict[str, Any]], dict[str, Any]] | None = None,
    narrow: Collection[int] = (),
    lacking: Collection[int] = (),
    shadowed: Collection[int] = (),
    linked: Collection[int] = (),
) -> Built:
    """Writes rows 0, 1, 2, ... in storage order.

    Args:
        files: for each file, the row counts of its row groups.
        names: the fields, from `KINDS`.
        partition: a text field stored in the directory names; it must have one value per file.
        change: applied to each row before it is written.
        narrow: numbers of the files that store the values in the types of `NARROWER`, and times as INT96.
        lacking: numbers of the files without the nullable fields, which are null there.
        shadowed: numbers of the files that also store the ``partition``, with another value.
        linked: numbers of the files that have a link beside them.
    """
    schema = Unischema("built", [KINDS[name].field for name in names])
    stored: list[StoredRow] = []
    number = row_group = 0
    for position, groups in enumerate(files):
        rows = [make_row(number + k, names) for k in range(sum(groups))]
        number += len(rows)
        if change is not None:
            rows = [change(row) for row in rows]
        place = directory / f"part-{position:03d}.parquet"
        if partition is not None:
            value = rows[0][partition] if rows else "none"
            rows = [{**row, partition: value} for row in rows]
            # The number keeps the files in the order they are written.
            place = directory / f"{position:03d}" / f"{partition}={value}" / "part.parquet"
        nullable = [name for name in names if KINDS[name].field.nullable and position in lacking]
        rows = [{**row, **dict.fromkeys(nullable)} for row in rows]
        without = nullable if partition is None or position in shadowed else [*nullable, partition]
        written = rows if partition is None else [{**row, partition: "of the file"} for row in rows]
        types, old = (NARROWER, True) if position in narrow else ({}, False)
        write_groups(place, schema, written, groups, without=without, types=types, int96=old)
        if position in linked:
            place.with_name(f"a-link-to-{place.name}").symlink_to(place.name)
        at = 0
        for size in groups:
            stored += [StoredRow(delivered(schema, row), str(place), row_group) for row in rows[at : at + size]]
            at += size
            row_group += 1
    return Built(str(directory), schema, tuple(stored))


def built_once(files: Sequence[Sequence[int]], **options: Any) -> Any:
    """Returns a fixture that calls `build` once for a module: ``built = built_once([[20, 13]], names=["id"])``."""

    @pytest.fixture(scope="module")
    def built(tmp_path_factory: pytest.TempPathFactory) -> Built:
        return build(tmp_path_factory.mktemp("built"), files, **options)

    return built


def write_groups(
    path: Path,
    schema: Unischema,
    rows: Sequence[Mapping[str, Any]],
    groups: Sequence[int],
    *,
    without: Sequence[str] = (),
    types: Mapping[str, pa.DataType] | None = None,
    int96: bool = False,
) -> None:
    """Writes a file with row groups of exactly these sizes (zero too); ``types`` overrides the schema's types.

    Args:
        int96: whether timestamps are INT96.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    values, _ = values_schema(schema)
    columns = encode_rows(values, [{name: row[name] for name in values.fields} for row in rows])
    stored = arrow_schema(schema, without=without)
    table = pa.table([columns[field.name] for field in stored], schema=stored)
    for number, field in enumerate(stored):
        kind = (types or {}).get(field.name, field.type)
        stored = stored.set(number, field.with_type(kind))
        table = table.set_column(number, stored.field(number), table.column(number).cast(kind))
    with pq.ParquetWriter(path, stored, use_deprecated_int96_timestamps=int96) as writer:
        at = 0
        for size in groups:
            writer.write_table(table.slice(at, size), row_group_size=max(size, 1))
            at += size


def write_table(directory: Path, table: pa.Table, name: str = "part.parquet", **options: Any) -> str:
    """Writes a plain Parquet file with pyarrow; returns the directory."""
    directory.mkdir(parents=True, exist_ok=True)
    pq.write_table(table, directory / name, **options)
    return str(directory)


def write_int96(path: Path, table: pa.Table, *, created_by: str | None = None, **options: Any) -> str:
    """Writes columns of ``pa.binary(12)`` as INT96, so that it stores what any writer might; returns the directory.

    Args:
        created_by: replaces pyarrow's name, and must not be longer.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(table, path, write_statistics=False, store_schema=False, **options)
    content = path.read_bytes()
    start = len(content) - 8 - int.from_bytes(content[-8:-4], "little")
    footer = content[start:].replace(b"\x15\x0e\x15\x18\x15", b"\x15\x06\x15\x18\x15")  # in the schema
    footer = footer.replace(b"\x1c\x15\x0e\x19", b"\x1c\x15\x06\x19")  # in the row groups
    if created_by is not None:
        name = pq.read_metadata(path).created_by.encode()
        assert len(created_by) <= len(name)
        footer = footer.replace(name, created_by.encode().ljust(len(name)))
    path.write_bytes(content[:start] + footer)
    return str(path.parent)


def int96_column(counts: Sequence[int | None], unit: str = "us") -> pa.Array:
    """Returns the bytes of INT96 for counts since 1970, for `write_int96`."""
    per_day = 86_400 * {"us": 10**6, "ns": 10**9}[unit]
    return pa.array([None if n is None else int96_bytes(*divmod(n, per_day), unit) for n in counts], pa.binary(12))


def int96_bytes(day: int, time: int, unit: str = "ns") -> bytes:
    """Returns an INT96 value of a day since 1970 and a time of that day."""
    nanoseconds = time * {"us": 1000, "ns": 1}[unit]
    return nanoseconds.to_bytes(8, "little", signed=True) + (day + 2_440_588).to_bytes(4, "little", signed=True)


def delivered(schema: Unischema, row: Mapping[str, Any]) -> dict[str, Any]:
    """Returns a row in the plain form a reader returns: times as int64, decimals as text, arrays as lists."""
    return {field.name: _delivered(field, row[field.name]) for field in schema}


def _delivered(field: UnischemaField, value: Any) -> Any:
    if value is None:
        return None
    if field.dtype is decimal.Decimal:
        return format(value.normalize(), "f")
    if isinstance(value, datetime.datetime):
        return int(np.datetime64(value).astype(field.dtype).astype(np.int64))
    if field.shape == () and field.dtype.kind == "f":
        value = float(field.dtype.type(value))
        return "nan" if value != value else value
    return value.tolist() if isinstance(value, np.ndarray | np.generic) else value
