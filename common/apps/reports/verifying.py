"""`verify` reads every byte of a dataset, decodes every value, and checks footers, index and codecs against the data.

The input is a URL or a pipeline. The output is a `Verification` that lists every `Damage`. Damaged data raises no
errors. Row groups are read in parallel, and each is decoded a few rows at a time.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ...base.errors import ELEMENT_ERRORS, DatasetError, ParquetryError, SchemaError
from ...base.platform.processes import usable_processors
from ...base.process.dataclass import dataclass
from ...base.progress import in_parallel
from ...base.urls import without_secrets
from ...dataset.arrow_read import count_rows, read_group
from ...dataset.dataset import StoredDataset
from ...engine.read.fetch import Fetcher, fetch_threads
from ...parquet.footer_check import row_count
from ...parquet.group_footers import FileFooter, read_group_footer
from ...pipeline.notebook import with_lists_as_stored
from ...pipeline.pipeline import Pipeline
from ...plan.plan import Plan
from ...plan.selection.possible import believed, contradiction, impossible
from ...plan.selection.pruning import ColumnStatistics
from ...plan.selection.statistics import stated_statistics
from ...schema.dtypes import is_bytes
from ...schema.encoding import encode_rows
from ...schema.field import Unischema, UnischemaField
from ...schema.images import CompressedImageCodec
from ...stages.cast import Cast
from ...stages.select import Select
from .inspecting import Source, pipeline_of
from .values import scalar_value

_ROWS_AT_A_TIME = 64
_MOST_TOLD = 1000  # damages of a row group that are reported one by one; a column may fail in every row
_MOST_RANGES = 100
_ADVICE = "Write the file again."


@dataclass(frozen=True, slots=True, kw_only=True)
class Damage:
    """One problem in the data.

    Attributes:
        check: ``"file"``, ``"bytes"``, ``"rows"``, ``"statistics"``, ``"decoding"``, ``"codec"``, ``"index"`` or
            ``"partition"``.
        file: the path of the file, without the query of a URL; ``None`` for the whole dataset.
        row_group: the index of the row group in the file.
        what: what was expected and what was found.
    """

    check: str
    file: str | None
    row_group: int | None
    what: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Verification:
    """The result of `verify`.

    Attributes:
        rows, row_groups, files: how many were read in full.
        bytes: the compressed size of the columns that were read.
        round_trips: the number of values that were encoded and decoded again.
        indexed: whether a row-group index matches the files. If so, it was compared with the footers.
        undecoded: the columns whose values were not decoded, with the reason. Their bytes were read.
    """

    files: int
    row_groups: int
    rows: int
    bytes: int
    round_trips: int
    indexed: bool
    damages: tuple[Damage, ...]
    undecoded: Mapping[str, str]


def verify(
    source: Source,
    *,
    storage_options: Mapping[str, Any] | None = None,
    workers: int | None = None,
    round_trips: int = 16,
) -> Verification:
    """Reads a whole dataset and reports what is wrong with it.

    It reads every page (and verifies page checksums if present), counts rows and nulls, checks every value against the
    bounds in the footers, decodes it, and compares the index with the footers, and stored columns with the directories
    that take their place.

    >>> verify("data/train").damages  # doctest: +SKIP
    ()

    Args:
        source: a URL or path, or a pipeline. Then the stored fields that its elements are made of are decoded as it
            declares them, in all rows.
        workers: row groups to read in parallel; ``None`` = one per processor.
        round_trips: rows per row group whose encoded values are encoded and decoded again. JPEG and WebP are lossy, so
            they are only decoded.

    Raises:
        DatasetError: nothing exists at the URL, or the schema cannot be read.
        SchemaError: no column can be read.
    """
    pipeline = pipeline_of(source, storage_options)
    dataset = pipeline.dataset
    broken = tuple(_unreadable_files(dataset))
    if broken:
        return Verification(
            files=len(dataset.files),
            row_groups=0,
            rows=0,
            bytes=0,
            round_trips=0,
            indexed=False,
            damages=broken,
            undecoded={},
        )
    plan = _plan_of(pipeline)
    dataset, fields = plan.dataset, list(plan.program.fields)
    checker = _Checker(_decoding(pipeline, plan), round_trips)
    threads = fetch_threads(dataset.remote, workers or usable_processors())
    numbers = range(len(dataset.row_groups))
    parts = in_parallel(checker.check, numbers, "verifying", threads)
    damages = [*_miscounted_files(dataset), *_index_damages(dataset), *(damage for part in parts for damage in part[0])]
    return Verification(
        files=len(dataset.files),
        row_groups=len(numbers),
        rows=int(dataset.row_groups.rows.sum()),
        bytes=sum(part[2] for part in parts),
        round_trips=sum(part[1] for part in parts),
        indexed=dataset.index is not None,
        damages=tuple(damages),
        undecoded=dict(_undecoded(dataset, fields)),
    )


def _plan_of(pipeline: Pipeline) -> Plan:
    """The plan of a pipeline, without the columns that cannot become tensors, unless it selects fields itself."""
    plan = pipeline.plan()
    assert isinstance(plan, Plan)  # `pipeline_of` refuses mixes
    if not len(plan.dataset.schema):
        reasons = " ".join(plan.dataset.refused.values()) or "The files have no columns."
        raise SchemaError(f"verify {', '.join(pipeline.urls)}: expected columns that can be read, got none. {reasons}")
    if not plan.dataset.refused or any(isinstance(stage, Select) for stage in pipeline.stages):
        return plan
    readable = pipeline.with_stages(()).select(*map(re.escape, plan.dataset.schema.fields))
    plan = readable.with_stages((*readable.stages, *pipeline.stages)).plan()
    assert isinstance(plan, Plan)
    return plan


def _decoding(pipeline: Pipeline, plan: Plan) -> Pipeline:
    """Returns a pipeline whose elements are all rows, with the stored fields of a plan as it decodes them."""
    fields, casts = plan.program.fields, plan.casts
    whole = pipeline.with_stages(())
    whole = whole.select(*(re.escape(field.name) if field.name in casts else field for field in fields))
    whole = _with_any_lists(whole, fields)
    place = next(number for number, stage in enumerate(whole.stages, 1) if isinstance(stage, Select))
    cast = [Cast.of(dtype, [re.escape(name)]) for name, dtype in casts.items() if name in {f.name for f in fields}]
    return whole.with_stages((*whole.stages[:place], *cast, *whole.stages[place:]))


def _undecoded(dataset: StoredDataset, fields: Sequence[UnischemaField]) -> Iterator[tuple[str, str]]:
    """Yields the columns whose values were not decoded, and why."""
    yield from dataset.refused.items()
    decoded = {field.name: field for field in fields}
    for stored in dataset.schema:
        field = decoded.get(stored.name)
        if field is None:
            yield stored.name, "The pipeline has no such field."
        elif is_bytes(field.dtype) and not field.storage.coded:
            made = f'UnischemaField("{field.name}", "uint8", (None, None, 3), CompressedImageCodec("jpeg"))'
            advice = "" if field.shape else f" If they are images, decode them with select({made}, '.*')."
            yield field.name, f"It holds bytes.{advice}"


def _with_any_lists(whole: Pipeline, fields: Sequence[UnischemaField]) -> Pipeline:
    """Lets plain lists have different lengths at every level, and nulls inside, as they may be stored."""
    lists = [field.name for field in fields if field.is_list]
    taken = set(whole.dataset.schema.fields)
    names = {name: _name_with_free_mask(name, taken) for name in lists}
    whole = with_lists_as_stored(whole)
    new_names = {old: new for old, new in names.items() if old != new}
    whole = whole.rename(new_names) if new_names else whole
    return whole.nulls("mask", *map(re.escape, names.values()), elements=True) if lists else whole


def _name_with_free_mask(name: str, taken: set[str]) -> str:
    """A name for a field whose mask replaces no field of the names ``taken``, to which it is added."""
    new = name
    while f"{new}__valid" in taken or (new != name and new in taken):
        new += "_"
    taken |= {new, f"{new}__valid"}
    return new


def _unreadable_files(dataset: StoredDataset) -> Iterator[Damage]:
    for number, file in enumerate(dataset.files):
        try:
            dataset.footer(number)
        except DatasetError as error:
            yield Damage(check="file", file=file.shown_path, row_group=None, what=str(error))


def _miscounted_files(dataset: StoredDataset) -> Iterator[Damage]:
    """Yields the files whose footer counts other rows than those of its row groups, which are read."""
    for number, file in enumerate(dataset.files):
        footer = dataset.footer(number)
        rows = row_count(footer)
        if rows != footer.num_rows:
            what = f"footer: expected a count of {rows} rows, as in its row groups, got {footer.num_rows}."
            yield Damage(check="rows", file=file.shown_path, row_group=None, what=what)


def _index_damages(dataset: StoredDataset) -> Iterator[Damage]:
    """Yields the entries where the index disagrees with the footers."""
    if dataset.index is None:
        return
    groups = dataset.row_groups
    for number, (file, group, rows) in enumerate(zip(groups.file, groups.group, groups.rows, strict=True)):
        footer = dataset.footer(int(file))
        footer_rows = footer.row_group(int(group)).num_rows if group < footer.num_row_groups else None
        if footer_rows != rows:
            what = f"row-group index, line {number}: expected {footer_rows} rows as the footer says, got {rows}."
        elif _tells_other_places(dataset, number):
            what = f"row-group index, line {number}: expected the places of columns as the footer says, got others."
        else:
            continue
        yield Damage(check="index", file=dataset.files[int(file)].shown_path, row_group=int(group), what=what)


def _tells_other_places(dataset: StoredDataset, row_group: int) -> bool:
    """Whether the index says that columns of a row group are elsewhere than its footer says."""
    file, group = (int(numbers[row_group]) for numbers in (dataset.row_groups.file, dataset.row_groups.group))
    listed = dataset.files[file]
    try:
        told = None if dataset.index is None else dataset.index.group_footers([row_group], listed, None)
    except DatasetError:
        return True
    if told is None:
        return False
    footer = read_group_footer(FileFooter(filesystem=dataset.filesystem, file=listed), group, listed)
    return told[0].chunk_descriptions() != footer.chunk_descriptions()


class _Checker:
    """Checks row groups. Thread-safe."""

    def __init__(self, whole: Pipeline, round_trips: int) -> None:
        plan = whole.plan()
        assert isinstance(plan, Plan)  # `pipeline_of` refuses mixes
        self._dataset = plan.dataset
        apart = {*self._dataset.partitions, *plan.casts}  # what is cast need not fit the type of the dataset
        self._fields = [field for field in plan.program.fields if field.name not in apart]
        self._fetcher = Fetcher(self._dataset, self._fields)
        self._stated = {
            field.name: stated_statistics(self._dataset, field.name)
            for field in self._fields
            if not field.storage.coded and not field.shape
        }
        self._impossible = {name: impossible(stated) for name, stated in self._stated.items()}
        self._bounds = {name: believed(stated) for name, stated in self._stated.items()}
        self._before = plan.selection.items_before
        self._elements = whole.at_epoch(0)
        self._round_trips = round_trips
        self._again = [
            field for field in self._fields if field.storage.coded and field.storage.in_column and not _is_lossy(field)
        ]

    def check(self, row_group: int) -> tuple[list[Damage], int, int]:
        """Returns the damages in a row group, the number of round trips, and the compressed bytes."""
        groups = self._dataset.row_groups
        file, group = int(groups.file[row_group]), int(groups.group[row_group])
        damages: list[Damage] = []
        tried = 0

        def found(check: str, what: object) -> None:
            text = without_secrets(" ".join(str(what).split()))
            damages.append(Damage(check=check, file=self._dataset.files[file].shown_path, row_group=group, what=text))

        meta = self._dataset.footer(file).row_group(group)
        size = sum(meta.column(number).total_compressed_size for number in range(meta.num_columns))
        try:
            rows = count_rows(self._dataset, row_group, advice=_ADVICE)
            if rows != int(groups.rows[row_group]):
                found("rows", f"expected {int(groups.rows[row_group])} rows as the footer says, got {rows}.")
        except (pa.ArrowException, OSError, ParquetryError) as error:
            found("bytes", error)
            return damages, 0, size
        try:
            for what in _unlike_directories(self._dataset, row_group):
                found("partition", what)
            for what in self._outside(row_group):
                found("statistics", what)
        except (pa.ArrowException, ParquetryError) as error:
            found("decoding", error)
            return damages, 0, size
        first, last = int(self._before[row_group]), int(self._before[row_group + 1])
        more: list[int] = []  # rows that fail, beyond those that are reported one by one
        before = ""
        for start in range(first, last, _ROWS_AT_A_TIME):
            sound: list[Any] = []
            for number, outcome in self._decode_runs(start, min(start + _ROWS_AT_A_TIME, last)):
                if not isinstance(outcome, ParquetryError):
                    sound += outcome
                elif str(outcome) == before:
                    return damages, tried, size  # the message names no row: the whole row group fails
                elif len(damages) < _MOST_TOLD:
                    before = str(outcome)
                    found("decoding", outcome)
                else:
                    more.append(number - first)
            some = sound[: max(0, self._round_trips - (start - first))]
            for row in some:
                for field in self._again:
                    tried += 1
                    problem = _round_trip(field, row[field.name])
                    if problem is not None:
                        found("codec", problem)
        if more:
            found("decoding", f"{len(more):,} more rows fail: {_ranges_text(more)}.")
        return damages, tried, size

    def _decode_runs(self, start: int, stop: int) -> Iterator[tuple[int, list[Any] | ParquetryError]]:
        """Yields runs of elements with the number of the first, and an error in place of each element that fails."""
        try:
            yield start, self._elements[start:stop]
        except ELEMENT_ERRORS as error:
            if stop - start == 1:
                yield start, error
            else:
                middle = (start + stop) // 2
                yield from self._decode_runs(start, middle)
                yield from self._decode_runs(middle, stop)
        except ParquetryError as error:
            yield start, error

    def _outside(self, row_group: int) -> Iterator[str]:
        """Describes columns whose values contradict the footer."""
        table = self._fetcher.stored(row_group)
        for name, known in self._bounds.items():
            if self._impossible[name][row_group]:
                what = contradiction(self._stated[name], row_group)
                yield f"field '{name}': expected {what} in the footer. Filters do not use these statistics."
            column = table.column(name)
            nulls = int(known.null_count[row_group])
            if nulls >= 0 and column.null_count != nulls:
                yield f"field '{name}': expected {nulls} nulls as the footer says, got {column.null_count}."
            yield from _out_of_bounds(name, column, known, row_group)


def _unlike_directories(dataset: StoredDataset, row_group: int) -> Iterator[str]:
    """Describes stored columns with other values than the directories that take their place."""
    shadowed = dataset.shadowed
    if not shadowed:
        return
    file = int(dataset.row_groups.file[row_group])
    stored = read_group(
        dataset,
        row_group,
        lambda schema: [key for key in shadowed if key in schema.names],
        pre_buffer=False,
        advice=_ADVICE,
    )
    for key in stored.column_names:
        value, column = dataset.partitions[key][file], stored.column(key)
        try:
            typed = column.cast(value.type)
            same = pc.fill_null(pc.equal(typed, value), False) if value.is_valid else pc.is_null(typed)
        except (pa.ArrowInvalid, pa.ArrowNotImplementedError):
            same = pa.chunked_array([pa.repeat(False, len(column))])
        if column.null_count < len(column) and not pc.all(same, min_count=0).as_py():
            other = column.filter(pc.invert(same))
            yield (
                f"field '{key}': expected {scalar_value(value)!r} in every row, as the name of the directory says, got "
                f"{_shown(other[0])} or others in {len(other):,} of {len(column):,} rows. The directory counts."
            )


def _shown(value: pa.Scalar) -> str:
    try:
        return repr(scalar_value(value))
    except UnicodeDecodeError:
        return "text that is not UTF-8"


def _ranges_text(numbers: Sequence[int]) -> str:
    """Writes ascending numbers as ranges.

    >>> _ranges_text([3, 5, 6, 7])
    '3, 5-7'
    """
    starts = [number for before, number in zip([None, *numbers], numbers, strict=False) if number - 1 != before]
    ends = [number for number, after in zip(numbers, [*numbers[1:], None], strict=True) if number + 1 != after]
    shown = [str(a) if a == b else f"{a}-{b}" for a, b in zip(starts, ends, strict=True)]
    return ", ".join([*shown[:_MOST_RANGES], *(["..."] if len(shown) > _MOST_RANGES else [])])


def _out_of_bounds(name: str, column: pa.ChunkedArray, known: ColumnStatistics, row_group: int) -> Iterator[str]:
    if known.minimum is None or known.maximum is None or column.null_count == len(column):
        return
    if pa.types.is_dictionary(column.type):
        column = column.cast(column.type.value_type)
    kind = column.type
    try:
        bounds = pc.min_max(column.cast(pa.int64()) if pa.types.is_duration(kind) else column)
    except pa.ArrowNotImplementedError:
        return  # the type has no order
    least, most = bounds["min"].cast(kind), bounds["max"].cast(kind)
    low, high = known.minimum[row_group], known.maximum[row_group]
    below, above = pc.less(least, low).as_py(), pc.greater(most, high).as_py()  # None if one is null
    try:
        shown = [scalar_value(value) if wrong else None for value, wrong in ((least, below), (most, above))]
    except UnicodeDecodeError:
        return  # decoding reports it
    if below:
        yield f"field '{name}': expected values >= {scalar_value(low)!r} as the footer says, got {shown[0]!r}."
    if above and not _is_cut(scalar_value(high), shown[1]):
        yield f"field '{name}': expected values <= {scalar_value(high)!r} as the footer says, got {shown[1]!r}."


def _is_cut(bound: object, value: object) -> bool:
    """Whether a bound is a truncated prefix of a string, as old writers stored it."""
    return isinstance(bound, str | bytes) and isinstance(value, type(bound)) and value.startswith(bound)  # type: ignore[arg-type]


def _is_lossy(field: UnischemaField) -> bool:
    codec = field.storage
    return isinstance(codec, CompressedImageCodec) and codec.image_codec != "png"


def _round_trip(field: UnischemaField, value: object) -> str | None:
    """Encodes and decodes a value again. Returns what is wrong, or ``None`` if the value is unchanged."""
    if value is None or value is np.ma.masked:
        return None
    try:
        stored = encode_rows(Unischema("again", [field]), [{field.name: value}])[field.name][0].as_py()
        data = memoryview(stored)
        array = np.asarray(value)
        again = np.empty(field.storage.shape_of(field, data), dtype=array.dtype)
        if array.dtype != object and array.dtype.kind not in "SU":
            field.storage.decode_into(field, data, again)
            if not np.array_equal(array, again, equal_nan=array.dtype.kind == "f"):
                return f"field '{field.name}': a value changes when it is encoded and decoded again."
    except (ParquetryError, ValueError, TypeError) as error:
        return f"field '{field.name}': a value cannot be encoded and decoded again: {error}"
    return None
